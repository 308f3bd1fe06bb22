"""tcgen05_ldst: moves between tensor memory and registers, by whole warpgroups or one warp.

A warp accesses its quarter of the lanes.

Emits ``tcgen05.ld`` and ``tcgen05.st`` of every shape. Two 16-bit elements share a register also if each has a column
of its own (``.pack::16b``, ``.unpack::16b``). PTX ISA, "Tensor Memory and Register Load/Store Instructions".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...dispatch import Need, Site, Variant, result_of
from ...dtypes import int32
from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import builtin
from ...ir.graph import Const, Value
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits, Writes
from ...types import Buffer, Region, Tile, layout_of
from ..language.expect_variant import asked_variant
from ..language.promotion import coerce, collective
from ..memory.packed import refuse_packed
from ..memory.regions import whole_region
from .ldst_plan import SHAPES, WORDS, Plan, digits_of, plan_moves
from .targets import TENSOR_MEMORY, needs_tensor_memory

ATTRS = ("shape", "pack", "wait")


@dataclass(frozen=True)
class MoveSite(Site):
    """One move between a region of tensor memory and a register tile.

    `first` is the scope's first warp (`first_warp`); `registers` is how many registers a thread has
    when the CTA starts.
    """

    region: Region
    starts: tuple
    tile: Tile
    scope: str
    threads: int
    first: int | None
    registers: int
    target: str
    shape: str | None
    pack: bool | None
    load: bool
    g: Any = field(repr=False, hash=False, compare=False)

    @staticmethod
    def of_call(g, call) -> MoveSite:
        region = call.args[0]
        tile = call.result.type if call.results else type_of(call.args[1])
        return MoveSite(region.type, g.definition(region).args[1:], tile, g.scope.kind, g.scope.threads,
                        first_warp(g.scope), g.graph.launch.registers, g.target, call.attrs["shape"],
                        call.attrs["pack"], bool(call.results), g)

    def __str__(self) -> str:
        return f"{self.region} and registers, by one {self.scope} of {self.threads} threads, for {self.target}"


def first_warp(scope) -> int | None:
    """The first warp of a scope in the CTA; None for a warp known only at run time, and 0 for such a warpgroup.

    Only the number modulo 4 matters, since it selects the quarter of the lanes; for every warpgroup it is 0.
    """
    first = scope.first.value if isinstance(scope.first, Const) else scope.first
    if scope.kind == "cta":
        return 0
    if isinstance(first, int):
        return first * {"warpgroup": 4, "warp": 1}.get(scope.kind, 0)
    return 0 if scope.kind == "warpgroup" else None


def find_plan(s: MoveSite) -> Plan | str:
    """The plan of the first shape that moves the region; a string says why none does."""
    made = s.memoize("plan", lambda: search(s.region, s.starts, s.g.divisor, s.threads, s.shape, s.pack, s.load))
    return made if isinstance(made, str) else made.for_threads_of(s.registers)


def search(region: Region, starts: tuple, divisor, threads: int, shape: str | None, pack: bool | None,
           load: bool) -> Plan | str:
    """The plan of the first shape that moves the region, of those that `shape` and `pack` allow, or a string with
    each one's reason."""
    if len(region.kept) != 2 and len(region.kept) != 1:
        return f"the region has {len(region.kept)} dimensions"
    read = digits_of(region, starts, divisor)
    if isinstance(read, str):
        return read
    digits, offset = read
    lane, column, bits = offset.get("TLane", 0), offset.get("TCol", 0), region.dtype.bits
    if not isinstance(lane, int):
        return "the lane in which it begins is known at run time only"
    if (column if isinstance(column, int) else column.of) * bits % 32:
        return "it begins inside a column of 32 bits"
    reasons = []
    frozen = tuple(tuple(part) for part in digits)
    packings = (True, False) if bits == 16 else (False,)
    for name in (shape,) if shape else SHAPES:
        for packed in packings if pack is None else (pack,):
            made = plan_moves(frozen, layout_of(region.buffer).replicas, lane, bits, threads, name, packed, load)
            if not isinstance(made, str):
                return made
            reasons.append(f"{name}{' packed' if packed else ''}: {made}")
    return "; ".join(dict.fromkeys(reasons))


def _has_plan(s: MoveSite) -> bool | str:
    plan = find_plan(s)
    return plan if isinstance(plan, str) else True


def _quarter(s: MoveSite) -> bool | str:
    """Whether every warp stays in the lanes that it can access: 32 * (warp % 4) to 32 * (warp % 4) + 31."""
    _, at = result_of(digits_of(s.region, s.starts, s.g.divisor))
    lane = at.get("TLane", 0)
    if s.threads == 32 and not result_of(find_plan(s)).quarters:
        if s.first is None:
            return "a warp known at run time only"
        mine = s.first % 4
        return (lane // 32 == mine or f"warp {s.first} reaches lanes {32 * mine} to {32 * mine + 31}, "
                                      f"and the region begins in lane {lane}")
    return lane < 32 or f"the region begins in lane {lane}, and the first of the scope's warps reaches lanes 0 to 31"


NEEDS = (
    TENSOR_MEMORY,
    Need("whole warpgroups as the scope, or one warp",
         lambda s: s.threads % 128 == 0 or s.threads == 32 or f"a {s.scope} of {s.threads} threads", gate=True),
    Need("a region of one or two dimensions that an instruction's shape moves", _has_plan, gate=True),
    Need("each warp in its own quarter of the lanes", _quarter),
)


def _text(plan: Plan, store: bool, repeat: int, operands: tuple[str, str]) -> str:
    words, address = operands
    half = f", {plan.half}" if plan.shape == "16x32bx2" else ""
    modifier = ""
    if plan.packed:
        modifier = ".unpack::16b" if store else ".pack::16b"
    head = f"tcgen05.{'st' if store else 'ld'}.sync.aligned.{plan.shape}.x{repeat}{modifier}.b32"
    return f"{head} [{address}]{half}, {{{words}}};" if store else f"{head} {{{words}}}, [{address}]{half};"


def _address(e, plan: Plan, region):
    """The address at which the calling warp starts: lanes are in bits 16 and up, so 32 lanes are 1 << 21."""
    address = e.tmem.address(region)
    if not plan.quarters:
        return address
    warp = e.warp_id()
    address = address + ((warp & 3) << 21)
    if plan.across:
        warp = e.scope_warp()
        address = address + (warp >> 2) * plan.across
    return address


def emit(e, plan: Plan, call, region, value=None):
    """Emit all instructions and the wait in one asm statement, so that the registers are not used before the wait."""
    store = value is not None
    address, dtype = _address(e, plan, region), region.type.dtype
    total = plan.registers
    lines: list[str] = []
    base = 0 if store else total
    for issue in plan.issues:
        n = issue.repeat * WORDS[plan.shape]
        words = ", ".join(f"${(1 if store else 0) + issue.first + i}" for i in range(n))
        lines.append(_text(plan, store, issue.repeat, (words, f"t{len(lines)}")))
    moved = [i.lane << 16 | i.column for i in plan.issues]
    place = " ".join(f".reg .b32 t{k}; add.u32 t{k}, ${base}, {m};" for k, m in enumerate(moved))
    kind = "st" if store else "ld"
    wait = f" tcgen05.wait::{kind}.sync.aligned;" if call.attrs["wait"] else ""
    text = f"{{ {place} {' '.join(lines)}{wait} }}"
    if store:
        e.asm(text, [], [address, *_words(e, plan, value)], convergent=True)
        return None
    words = e.asm(text, [int32] * total, [address], convergent=True)
    if plan.elements == 1 and dtype.bits < 32:
        return [e.tmem.narrow(w, dtype) for w in words]
    return e.from_units(words, dtype, total * plan.elements)


def _words(e, plan: Plan, values: list) -> list:
    if plan.elements == 1 and plan.bits < 32:
        return [e.tmem.widened_bits(v) for v in values]
    return e.to_units(values, values[0].dtype) if len(values) * plan.bits >= 32 else e.mma.packed_words(values)


def simulate(m, plan: Plan, call, region, value=None):
    return m.tmem.load(plan, call, region) if value is None else m.tmem.store(plan, call, region, value)


VARIANT = Variant("tcgen05_ldst", plan=lambda s: find_plan(s), emit=emit, simulate=simulate, needs=NEEDS, doc=__doc__)
VARIANTS = (VARIANT,)


# -- the operations ----------------------------------------------------------------------------------------------------

@op("reads", attrs=ATTRS, variants=VARIANTS, collective=True, traits=Traits(copy=True, anchor=True))
def tmem_load(src: Reads, shape=None, pack=None, wait=True):
    """Load a region of tensor memory to a register tile."""


@tmem_load.infer
def _(g, src, shape, pack, wait):
    return Tile(src.type.dtype, src.type.shape)


@op("writes", attrs=(*ATTRS, "options"), variants=VARIANTS, collective=True, traits=Traits(copy=True))
def tmem_store(dst: Writes, value: Registers, shape=None, pack=None, wait=True, options=None):
    """Store a register tile to a region of tensor memory. `options` are the hints of a copy,
    which the store does not use."""


@tmem_store.infer
def _(g, dst, value, shape, pack, wait, options=None):
    return None


def _instruction_layout(assigner, call, region: Value, t: Tile) -> Tile:
    """The tile's type with the layout that the instruction gives or takes;
    the default layout if no instruction moves it."""
    g = assigner.context
    made = search(type_as(region, Region), g.definition(region).args[1:], g.divisor, assigner.scope.threads,
                  call.attrs["shape"], call.attrs["pack"], bool(call.results))
    if isinstance(made, str):
        return assigner.default(t.shape, t.dtype)
    return Tile(t.dtype, t.shape, made.layout, made.domain)


@tmem_load.layout
def _(assigner, call, types):
    return (None,), (_instruction_layout(assigner, call, call.args[0], type_as(call.result, Tile)),)


@tmem_store.layout
def _(assigner, call, types):
    return (None, _instruction_layout(assigner, call, call.args[0], type_as(call.args[1], Tile))), ()


for moved in (tmem_load, tmem_store):
    moved.site(MoveSite.of_call)
    moved.simulate(lambda m, call, *args: call.choice.lowering.simulate(m, call.choice.plan, call, *args))
    moved.emit(lambda e, call, *args: call.choice.lowering.emit(e, call.choice.plan, call, *args))


def check_region(g: Builder, name: str, x, shape, pack, wait) -> Value:
    """The region of tensor memory that the builtin `name` moves. CompilationError if it or the options are invalid."""
    needs_tensor_memory(g, name)
    collective(g, name)
    t = type_of(x)
    if not isinstance(t, (Buffer, Region)) or t.scope != "tmem":
        raise g.error(f"{name} takes a region of tensor memory, not {describe(x)}")
    if shape is not None and shape not in SHAPES:
        raise g.error(f"the shape is one of {', '.join(SHAPES)}, or None for the first that fits, not {shape!r}")
    if pack not in (None, True, False) or not isinstance(wait, bool):
        raise g.error("pack is True, False or None, and wait is True or False, known at compile time")
    asked_variant(g, None, (VARIANT.name,))
    x = whole_region(g, x)
    refuse_packed(g, name, x.type.dtype)
    g.require_uniform(f"this {name}", *g.definitions[x].args[1:])
    return x


@builtin
def tcgen05_ld(g: Builder, source, shape=None, pack=None, wait=True):
    """Load a region of tensor memory to a register tile: ``tile.load`` with the options of the instruction.

    The scope is one or more whole warpgroups, or one warp that stays in its own 32 lanes. `shape` is the shape of the
    instruction: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2"; by default the first that fits. It determines
    the layout of the tile. ``pack=True`` puts two 16-bit elements that have a column each in one register. With
    ``wait=False``, the tile may be used and the region overwritten only after ``tcgen05_wait("ld")``.
    """
    return g.call(tmem_load, check_region(g, "tcgen05_ld", source, shape, pack, wait), shape=shape, pack=pack,
                  wait=wait)


@builtin
def tcgen05_st(g: Builder, target, value, shape=None, pack=None, wait=True):
    """Store a tile to a region of tensor memory: ``tile.store`` with the options of the instruction
    (see ``tcgen05_ld``).

    With ``wait=False``, the store is complete only after ``tcgen05_wait("st")``.
    """
    target = check_region(g, "tcgen05_st", target, shape, pack, wait)
    g.call(tmem_store, target, coerce(g, value, Tile(target.type.dtype, target.type.shape)), shape=shape, pack=pack,
           wait=wait)


__all__ = ["MoveSite", "VARIANT", "check_region", "search", "tcgen05_ld", "tcgen05_st", "tmem_load", "tmem_store"]
