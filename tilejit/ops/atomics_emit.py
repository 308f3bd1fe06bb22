"""Atomics as instructions: ``red`` where nobody wants the old value, ``atom`` where somebody does."""

from __future__ import annotations

from ..dtypes import DType, bool_, float32, int16, int32, int64
from ..types import Scalar, Tile
from .access import Access
from .atomics import AtomicPlan, atomic_


@atomic_.emit
def _(e, call, place, value, compare, mask):
    plan: AtomicPlan = call.choice.plan
    t = call.result.type
    if isinstance(t, Scalar):
        return _scalar(e, call, plan, place, value, compare, mask)
    access, unit = Access(e, place, t, plan.access), _Unit(e, call, place)
    result = [e.const(0, t.dtype)] * e.registers(t)
    for run in plan.access.groups(t):
        predicate = access.predicate(run[0], mask and mask[run[0]], owned=True)
        take = lambda x: x[run[0]] if isinstance(x, list) else x
        values = [value[r] if isinstance(value, list) else value for r in run]
        old = unit.issue(access.address(run[0]), values, take(compare), predicate, plan.returns)
        if plan.returns:
            result[run[0]] = old
    return to_copies(e, call, t, result) if plan.returns else result


def _scalar(e, call, plan: AtomicPlan, place, value, compare, mask):
    access = Access(e, place, None, plan.access)
    issue = lambda predicate: _Unit(e, call, place).issue(access.address(0), [value], compare, predicate, plan.returns)
    return once_for_scope(e, call, access.predicate(0, mask), issue)


def once_for_scope(e, call, predicate, issue):
    """What ``issue(predicate)`` returns in the scope's first thread, in all of its threads. A release comes after a barrier of
    the scope, an acquire before one; a call of each thread's own is ordered for that thread alone."""
    sem, returns = call.attrs["sem"], call.choice.plan.returns
    first = None if call.attrs["each_thread"] else e.first_thread()
    alone = first is None
    by_scratch = returns and not alone and e.threads > 32
    if not alone and sem in ("release", "acq_rel"):
        e.sync()
    elif by_scratch:
        e.begin_scratch(call)
    old = issue(e.all_of([p for p in (predicate, first) if p is not None]))
    if by_scratch:
        base, offset = e.scratch_address(call, 0)
        e.vector_store("shared", base, offset, old.dtype, [old], first, None)
        e.sync()
        return e.vector_load("shared", base, offset, old.dtype, [old], None, None)[0]
    if not alone and sem in ("acquire", "acq_rel"):
        e.sync()
    if not returns:
        return e.const(0, call.result.type.dtype)
    return old if alone else e.shuffle("idx", old, e.lane_id() - e.thread_id())


def through_scratch(t: Tile) -> bool:
    """Whether the copies of a tile's elements are in several warps."""
    return any(str(axis) == "warpid" for n, _, axis in t.layout.replicas if n > 1)


def to_copies(e, call, t: Tile, values: list) -> list:
    """What the threads of the first copies have, in all threads."""
    copies = [(n, stride, str(axis)) for n, stride, axis in t.layout.replicas if n > 1 and axis != "reg"]
    if through_scratch(t):
        e.scratch_store(call, values, t)
        return e.scratch_load(call, t, t.shape)
    if not copies:
        return values
    away = 0
    for n, stride, axis in copies:
        away = e.digit(axis, n, stride) * stride + away
    return [e.shuffle("idx", v, e.lane_id() - away) for v in values]


class _Unit:
    """Issues the instructions of one atomic call at one address after the other."""

    def __init__(self, e, call, place):
        self.e, self.kind = e, call.attrs["kind"]
        self.dtype: DType = place.type.dtype
        self.space = place.buffer.type.scope
        sem, scope = call.attrs["sem"], call.attrs["scope"]
        if self.space == "shared" and sem == "relaxed" and not e.graph.launch.cluster:
            scope = "cta"  # no other CTA can reach it
        self.sem, self.scope = sem, scope

    def head(self, word: str) -> str:
        return f"{word}.{self.sem}.{self.scope}.{self.space}"

    def issue(self, address, values: list, compare, predicate, returns: bool):
        """One operation, of a vector if there are several values; the old value if it `returns`."""
        d, kind = self.dtype, self.kind
        if kind in ("max", "min") and d.is_float:
            return self._float_extreme(address, values[0], predicate)
        if kind == "add" and d.name == "bfloat16" and self.e.architecture < 90:
            return self._add_by_exchange(address, values[0], predicate)
        if len(values) > 1:
            return self._vector(address, values, predicate)
        operands = [self._register(v) for v in ([compare] if kind == "cas" else []) + values]
        suffix, name = self._type(), kind + (".noftz" if kind == "add" and d.bits == 16 else "")
        if not returns and kind in ("add", "max", "min", "and", "or", "xor", "inc", "dec") and self.sem in ("relaxed", "release"):
            return self._red(f"{self.head('red')}.{name}.{suffix}", address, operands, predicate)
        return self._value(self._atom(f"{self.head('atom')}.{name}.{suffix}", address, operands, predicate))

    def _type(self) -> str:
        """The type in the instruction's name: add wraps, so its s64 is u64; bits have no sign."""
        d = self.dtype
        if self.kind in ("and", "or", "xor", "exch", "cas"):
            return f"b{d.bits}"
        if d.is_float:
            return {"float16": "f16", "bfloat16": "bf16"}.get(d.name, f"f{d.bits}")
        return f"{'s' if d.kind == 'int' and (self.kind != 'add' or d.bits == 32) else 'u'}{d.bits}"

    # -- registers ---------------------------------------------------------------------------------------------------------

    def _bits(self) -> DType:
        return {16: int16, 32: int32, 64: int64}[self.dtype.bits]

    def _register(self, v):
        """A value as the instruction takes it: 16-bit floats, and floats of operations on bits, as integers."""
        if v.dtype.is_float and (v.dtype.bits == 16 or self.kind == "exch"):
            return self.e.ins(f"bitcast {v.typed} to {self._bits().llvm}", self._bits())
        return v

    def _value(self, old):
        """What an instruction returned, as an element."""
        d = self.dtype
        if old.dtype.llvm == d.llvm:
            return type(old)(self.e, old.text, d)
        return self.e.ins(f"bitcast {old.typed} to {d.llvm}", d)

    # -- instructions ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _place(n: int, offset: int) -> str:
        return f"[${n} + {offset}]" if offset else f"[${n}]"

    def _red(self, text: str, address: tuple, operands: list, predicate, packed: str | None = None) -> None:
        base, offset = address
        names = packed or ", ".join(f"${n + 1}" for n in range(len(operands)))
        guard = f"@${len(operands) + 1} " if predicate is not None else ""
        self.e.asm(f"{guard}{text} {self._place(0, offset)}, {names};", [], [base, *operands, *([predicate] if guard else [])])

    def _atom(self, text: str, address: tuple, operands: list, predicate, before=None):
        """`before` is what the result is where the predicate is false."""
        e, (base, offset) = self.e, address
        dtype = operands[0].dtype
        names = ", ".join(f"${n + 2}" for n in range(len(operands)))
        if predicate is None:
            return e.asm(f"{text} $0, {self._place(1, offset)}, {names};", [dtype], [base, *operands])[0]
        before = before if before is not None else e.const(0, dtype)
        return e.asm(f"@${len(operands) + 2} {text} $0, {self._place(1, offset)}, {names};", [dtype], [base, *operands, predicate], {0: before})[0]

    def _vector(self, address: tuple, values: list, predicate) -> None:
        """``red.global.add`` of a vector: .v2/.v4.f32 and .v2/.v4.f16x2 (sm_90), or one .f16x2."""
        e, d = self.e, self.dtype
        if d.bits == 32:
            operands, suffix = values, f"add.v{len(values)}.f32"
        else:
            operands = e.packed(values)
            pair = "f16x2" if d.name == "float16" else "bf16x2"
            suffix = f"add.noftz.v{len(operands)}.{pair}" if len(operands) > 1 else f"add.noftz.{pair}"
        names = ", ".join(f"${n + 1}" for n in range(len(operands)))
        self._red(f"{self.head('red')}.{suffix}", address, operands, predicate, "{" + names + "}" if len(operands) > 1 else names)

    def _float_extreme(self, address: tuple, value, predicate):
        """max and min of floats by those of integers.

        Bits of positive floats are in the order of signed integers, those of negative ones in the reverse order of
        unsigned ones. A NaN with all bits set (but the sign, for max) stays whatever comes; one that was in memory
        before may give way, and is put back when the old value shows it.
        """
        e, d, up = self.e, self.dtype, self.kind == "max"
        bits, n = self._bits(), d.bits
        sticky = e.const((1 << n - 1) - 1 if up else -1, bits)
        nan = e.ins(f"fcmp uno {d.llvm} {value.text}, {value.text}", bool_)
        raw = e.select(nan, sticky, e.ins(f"bitcast {value.typed} to {bits.llvm}", bits))
        negative = e.ins(f"icmp slt {raw.typed}, 0", bool_)
        positive = e.ins(f"xor i1 {negative.text}, true", bool_)
        both = lambda test: e.all_of([test, predicate])
        head, other = self.head("atom"), "min" if up else "max"
        old = self._atom(f"{head}.{self.kind}.s{n}", address, [raw], both(positive))
        old = self._atom(f"{head}.{other}.u{n}", address, [raw], both(negative), before=old)
        result = self._value(old)
        lost = e.ins(f"fcmp uno {d.llvm} {result.text}, {result.text}", bool_)
        self._atom(f"{head}.exch.b{n}", address, [sticky], both(lost))
        return result

    def _add_by_exchange(self, address: tuple, value, predicate):
        """bfloat16 before sm_90: read, add in float32, round, and compare-and-swap until nobody came between."""
        e, (base, offset) = self.e, address
        place = self._place(1, offset)
        text = (f"{{ .reg .pred q; .reg .b16 was, now, zero; .reg .b32 w; .reg .f32 f; @!$3 bra DONE; mov.b16 zero, 0; "
                f"ld.relaxed.{self.scope}.{self.space}.b16 $0, {place}; "
                f"LOOP: mov.b16 was, $0; mov.b32 w, {{zero, was}}; mov.b32 f, w; add.rn.f32 f, f, $2; cvt.rn.bf16.f32 now, f; "
                f"{self.head('atom')}.cas.b16 $0, {place}, was, now; setp.ne.b16 q, $0, was; @q bra LOOP; DONE: }}")
        predicate = predicate if predicate is not None else e.const(True, bool_)
        old = e.asm(text, [int16], [base, e.cast(value, float32), predicate], {0: e.const(0, int16)})[0]
        return self._value(old)
