"""Choose the layouts of shared buffers that were left to the compiler (``tile.auto``), each by its uses.

The candidates are the standard swizzles that the rows allow, the widest first, or columns of 16 bytes where they
allow none, and row-major. Every copy or product that has variants is evaluated with each candidate. The best
candidate is one that no use declines; then one that leaves no use a slower variant (a copy by ordinary loads and
stores, a product by other instructions); then, if products or register tiles use the buffer, which read down its
rows, the widest swizzle; if only copies do, the one for which they take the fewest instructions.

Columns of 16 bytes are for uses that decline all others: TMA fills them 16 bytes at a time, so that a pipelined
product of 24 to 72 columns by wgmma takes 1.02 to 1.5 times as long as one by mma.sync from plain rows (on an H100).
The slots of a ring may also lie apart, where that saves copies instructions: TMA cannot reach a slot close behind
another, and bulk copies then move a row each. Where some use has no variant or a slower one with every candidate, and
an array that is copied has no contiguous rows, column-major candidates are evaluated as well, with the other buffers
as chosen. So are the candidates before the choice that only slow products: the other operand's layout of that turn may
have been the reason, as where warpgroups divide the columns of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ...dispatch import Choice, choose, reasons, variants_at
from ...dtypes import DType
from ...errors import DispatchError, line_of
from ...ir.builder import Facts, as_value, type_as, type_of
from ...ir.graph import Block, Call, For, Graph, Operand, Value, blocks
from ...ir.op_rules import require_rule
from ...layout import TileLayout, axis, standard_layout
from ...ops.memory.packed import bytes_without_padding, without_padding
from ...ops.memory.regions import points, region
from ...ops.memory.shared import alloc_shared, default_align, peer_buffer
from ...ops.mma.dot import dot_
from ...ops.moves.copy import copy_
from ...ops.moves.copy_async import copy_async_
from ...ops.structure.ring_release import ring_release
from ...ops.sync.proxies import hand_over
from ...records import LayoutRecord
from ...types import Barrier, BarrierRef, Buffer, Points, Region, Selected, Type
from ..analysis.context import Context
from ..analysis.program_slices import Copier

COLUMNS, ROW_MAJOR, APART = "columns of 16 bytes", "row-major", "row-major, each slot at a multiple of 128 bytes"
COLUMN_MAJOR = "column-major"
SLOWER_VARIANTS = {copy_: ("scalar",), copy_async_: ("vector",), dot_: ("mma_sync", "fma")}
PLACES = Buffer, Region, Points
NO_ACCESS = (region, points, peer_buffer, ring_release, hand_over)  # calls that touch no element


def candidates(dtype: DType, shape: tuple[int, ...], slots: bool = False) -> dict[str, TileLayout]:
    """The layouts that a buffer, or the `slots` of a ring, may have, by name; preferred ones first."""
    found: dict[str, TileLayout] = {}
    if len(shape) > 1 and shape[-2] % 8 == 0:
        found = {f"a swizzle of {n} bytes": standard_layout(dtype.bits, shape, n)
                 for n in (128, 64, 32) if shape[-1] * dtype.bits % (8 * n) == 0}
        if not found and shape[-1] * dtype.bits % 128 == 0 and shape[-1] * dtype.bits > 128:
            found[COLUMNS] = standard_layout(dtype.bits, shape, 0)
    found[ROW_MAJOR], unit = TileLayout.row_major(shape), 128 // dtype.nbytes
    slot = prod(shape[1:])
    if slots and slot % unit:
        found[APART] = TileLayout([(shape[0], -(-slot // unit) * unit, axis.m),
                                   *TileLayout.row_major(shape[1:]).shards])
    return found


def column_major_candidates(dtype: DType, shape: tuple[int, ...]) -> dict[str, TileLayout]:
    """The layouts with contiguous columns that a buffer may have, by name."""
    if len(shape) < 2:
        return {}
    order, turned = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2), (*shape[:-2], shape[-1], shape[-2])
    def name_of(name: str) -> str:
        return COLUMN_MAJOR if name == ROW_MAJOR else f"{name}, by columns"
    return {name_of(name): layout.permute(order, turned)
            for name, layout in candidates(dtype, turned).items() if name != COLUMNS}


@dataclass
class CandidateUses:
    """How the uses of a buffer fare with one candidate: the variant of each, which ones have none or a slower one,
    and the instructions of its copies."""

    taken: dict[Call, str] = field(default_factory=dict)
    declined: dict[Call, DispatchError] = field(default_factory=dict)
    slower: list[Call] = field(default_factory=list)
    instructions: int = 0

    def objections(self, best: CandidateUses) -> str:
        """Why not this candidate, in terms of the variants that the best candidate gets."""
        words = []
        for call, error in self.declined.items():
            reasons = dict(error.declined)
            path = best.taken.get(call)
            why = f"{path} {reasons[path]}" if path in reasons else f"no lowering of {call.op.name}"
            words.append(f"line {line_of(call.loc)}: {why}")
        return "; ".join(dict.fromkeys(words or [f"line {line_of(call.loc)}: {call.op.name} by "
                                                 f"{self.taken[call]}" for call in self.slower]))


@dataclass
class OpenLayout:
    """A buffer whose layout is to be chosen."""

    call: Call
    layouts: dict[str, TileLayout]
    by_rows: bool = False  # whether products or register tiles use it
    uses: dict[str, CandidateUses] = field(default_factory=dict)

    def cost(self, name: str) -> tuple[Any, ...]:
        """What a candidate is ranked by; the least is chosen."""
        uses, at, turned = (self.uses[name], list(self.layouts).index(name),
                            name == COLUMN_MAJOR or name.endswith("by columns"))
        swizzle = at if name not in (ROW_MAJOR, APART) else len(self.layouts)
        first = len(uses.declined), name == COLUMNS, len(uses.slower), turned
        if self.by_rows:
            return *first, swizzle, uses.instructions, name == APART
        return *first, uses.instructions, name == APART, -at

    @property
    def is_settled(self) -> bool:
        """Whether the first candidate cannot be bettered."""
        first = self.uses[next(iter(self.layouts))]
        return (len(self.layouts) == 1 or self.by_rows and not {APART, COLUMNS} & set(self.layouts)
                and not first.declined and not first.slower)

    @property
    def choice(self) -> str:
        return min(self.uses, key=self.cost)

    @property
    def slowed_by_others(self) -> list[str]:
        """Candidates before the choice with which products, and no other uses, are slower: perhaps because of what was
        tried for the other operand at the same time."""
        names = list(self.layouts)
        found = {name: self.uses[name] for name in names[:names.index(self.choice)]}
        return [name for name, uses in found.items()
                if uses.slower and not uses.declined and all(call.op is dot_ for call in uses.slower)]

    @property
    def wants_columns(self) -> bool:
        """Whether column-major candidates should be evaluated as well: a use has no variant, or a slower one, and a
        copy's array has non-contiguous rows."""
        uses = self.uses[self.choice]
        places = (type_of(a) for call in (*uses.declined, *uses.taken) if call.op in (copy_, copy_async_)
                  for a in call.args[:2])
        apart = any(isinstance(t, Region) and t.scope == "global" and (t.buffer.strides or ())[-1:] != (1,)
                    for t in places)
        return apart and bool(uses.declined or uses.slower)

    def record(self) -> LayoutRecord:
        """The choice, with the reason against each other candidate, for `.explain()`."""
        name = self.choice
        best = self.uses[name]
        declined: list[tuple[str, str]] = []
        for other in self.layouts:
            if other == name:
                continue
            uses = self.uses.get(other)
            if uses is None or (len(uses.declined), len(uses.slower)) == (len(best.declined), len(best.slower)):
                why = f"{name} comes first"
                if (uses is not None and uses.instructions > best.instructions
                    and (not self.by_rows or name == APART)):
                    why = f"{uses.instructions} instructions a thread for its copies, {best.instructions} by {name}"
            else:
                why = uses.objections(best)
            declined.append((other, why))
        loc = self.call.loc
        assert loc is not None
        shape = tuple(type_as(self.call.result, Buffer).shape)
        return LayoutRecord(loc.line, loc.source_line.strip(), shape,
                            str(self.layouts[name]), name, tuple(declined))


def choose_shared_layouts(graph: Graph, facts: Facts) -> Graph:
    """The graph with a layout for every buffer that was left to the compiler."""
    opened = {n.result: OpenLayout(n, candidates(n.attrs["dtype"], n.attrs["shape"], bool(n.attrs.get("slots"))))
              for n in graph.body.nodes
              if isinstance(n, Call) and n.op is alloc_shared and n.attrs.get("auto") is not None}
    if not opened:
        return graph
    asking, turn = dict(opened), 0
    while asking:
        tried = {buffer: list(o.layouts)[turn] for buffer, o in asking.items()}
        _UseEvaluator(graph, facts, asking, tried).block(graph.body)
        turn += 1
        asking = {b: o for b, o in asking.items() if not (o.is_settled and turn == 1) and turn < len(o.layouts)}
    layouts = {buffer: o.layouts[o.choice] for buffer, o in opened.items()}
    for buffer, o in opened.items():
        for name in o.slowed_by_others:
            _UseEvaluator(graph, facts, {buffer: o}, {buffer: name}, layouts).block(graph.body)
        layouts[buffer] = o.layouts[o.choice]
        if o.wants_columns:
            t = type_as(buffer, Buffer)
            turned = column_major_candidates(t.dtype, t.shape)
            names, o.layouts = (o.choice, *turned), o.layouts | turned
            for name in names:
                _UseEvaluator(graph, facts, {buffer: o}, {buffer: name}, layouts).block(graph.body)
            layouts[buffer] = o.layouts[o.choice]
    body = _Retyper(layouts).block(graph.body)
    return replace(graph, body=body, layouts=tuple(o.record() for o in opened.values()))


def with_layout(t: Type, layout: TileLayout) -> Type:
    """The type of a buffer, or of a place in it, with another layout."""
    if isinstance(t, Buffer):
        return replace(t, layout=layout)
    assert isinstance(t, (Region, Points, Selected))
    return replace(t, buffer=replace(t.buffer, layout=layout))


# -- evaluation --------------------------------------------------------------------------------------------------------

class _UseEvaluator:
    """Evaluates every use of the `opened` buffers with the layouts `tried`; other buffers have those in `given`."""

    def __init__(self, graph: Graph, facts: Facts, opened: dict[Value, OpenLayout], tried: dict[Value, str],
                 given: dict[Value, TileLayout] | None = None):
        self.context, self.facts, self.opened, self.tried = Context(graph, facts), facts, opened, tried
        self.given = (given or {}) | {buffer: opened[buffer].layouts[name] for buffer, name in tried.items()}
        for buffer, name in tried.items():
            opened[buffer].uses[name] = CandidateUses()

    def block(self, block: Block, pipelined: bool = False) -> None:
        with self.context.in_block(block):
            for node in block.nodes:
                if isinstance(node, Call):
                    options = node.attrs.get("options") or {}
                    self.call(node, pipelined or bool(options.get("ahead")))
                with self.context.in_scope_of(node):
                    for inner in blocks(node):
                        self.block(inner, isinstance(node, For) and node.pipeline is not None)

    def call(self, call: Call, pipelined: bool) -> None:
        roots: dict[Operand, Value] = {a: self.root(a) for a in call.args
                                       if isinstance(a, Value) and isinstance(a.type, PLACES)}
        buffers = {r for r in roots.values() if r in self.opened}
        if not buffers or call.op in NO_ACCESS:
            return
        if call.op not in (copy_, copy_async_):
            for buffer in buffers:
                self.opened[buffer].by_rows = True
        if not call.op.variants or call.op.traits.access:  # registers have no layouts yet, on which these depend
            return
        args = tuple(self.with_tried_layout(a, roots.get(a)) for a in call.args)
        found = self.evaluate(replace(call, args=args), pipelined)
        for buffer in buffers:
            uses = self.opened[buffer].uses[self.tried[buffer]]
            if isinstance(found, DispatchError):
                uses.declined[call] = found
                continue
            uses.taken[call] = found.variant
            uses.slower += [call] if found.variant in SLOWER_VARIANTS.get(call.op, ()) else []
            uses.instructions += found.plan.instructions if call.op in (copy_, copy_async_) else 0

    def root(self, value: Value) -> Value:
        """The allocation that a place in shared memory is part of."""
        made = self.context.definitions
        while isinstance(value.type, PLACES) and value not in self.given and value in made and made[value].args:
            value = as_value(made[value].args[0])
        return value

    def with_tried_layout(self, arg: Operand, root: Value | None) -> Operand:
        """The operand as it would be with the layout that is tried."""
        if root is None or root not in self.given or not isinstance(arg, Value):
            return arg
        made = replace(arg, type=with_layout(arg.type, self.given[root]))
        self.context.definitions[made] = self.context.definitions[arg]
        return made

    def evaluate(self, call: Call, pipelined: bool) -> Choice | DispatchError:
        """The variant that the call would be lowered to, or why there is none."""
        if pipelined and call.op is copy_async_ and call.args[2] is None and not call.attrs["options"].get("token"):
            ahead = replace(call, args=(*call.args[:2], Value("mbarrier", BarrierRef(Barrier(1, 1)))))
            found = self.evaluate(ahead, False)  # as the pipelined loop issues it if it completes by bytes
            if not isinstance(found, DispatchError):
                return found
        site = require_rule(call.op.rules.site)(self.context, call)
        variants = variants_at(call.op.variants, site)
        only, before = (call.attrs.get("options") or {}).get("variant"), dict(self.facts.asked)
        try:
            first = next((v for v in variants if only in (None, v.name) and not reasons(v, site)), None)
            if first:
                return Choice(first.name, first.make_plan(site))
            return choose(call.op.name, variants, site, only=only)
        except DispatchError as error:
            return error
        finally:
            self.facts.asked = before  # facts asked only to rank candidates do not become guards


# -- writing the choice ------------------------------------------------------------------------------------------------

class _Retyper(Copier):
    """Rewrites a graph with the chosen layouts of its buffers, and of all places in them;
    other values keep their types."""

    def __init__(self, layouts: dict[Value, TileLayout]):
        super().__init__()
        self.layouts = layouts
        self.places: dict[Value, TileLayout] = {}  # new value -> its layout

    def _copy_value(self, value: Value) -> Value:
        return value

    def call(self, call: Call) -> Call:
        if call.op is alloc_shared and call.result in self.layouts:
            layout, asked = self.layouts[call.result], call.attrs["auto"]
            attrs = {**call.attrs, "layout": layout, "align": asked or default_align(layout), "auto": None}
            return replace(call, attrs=attrs, results=(self.place(call.result, layout),))
        args = self.all(call.args)
        given = next((self.places[a] for a in args if isinstance(a, Value) and a in self.places), None)
        if given is None:
            return call
        if call.op is bytes_without_padding:
            t = type_as(args[0], Buffer)
            given = without_padding(given, t.shape, t.dtype)
        places = isinstance(call.results[0].type, PLACES) if call.results else False
        return replace(call, args=args,
                       results=tuple(self.place(r, given) for r in call.results) if places else call.results)

    def place(self, old: Value, layout: TileLayout) -> Value:
        new = self.retype(old, with_layout(old.type, layout))
        self.places[new] = layout
        return new


__all__ = ["candidates", "choose_shared_layouts", "column_major_candidates", "with_layout"]
