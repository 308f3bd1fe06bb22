"""Emission of atomics: ``red`` if nothing reads the old value, otherwise ``atom``."""

from __future__ import annotations

from ...dtypes import DType, bool_, float32, int16, int32, int64
from ...types import Scalar, Tile, layout_of
from .access import Access
from .atomics import AtomicPlan, atomic_


@atomic_.emit
def _(e, call, place, value, compare, mask):
    plan: AtomicPlan = call.choice.plan
    t = call.result.type
    if isinstance(t, Scalar):
        return _scalar(e, call, plan, place, value, compare, mask)
    access, unit = Access(e, place, t, plan.access), _Unit(e, call, place)
    result = [e.const(0, t.dtype)] * e.tiles.registers(t)
    for run in plan.access.groups(t):
        predicate = access.predicate(run[0], mask and mask[run[0]], owned=True)
        def take(x):
            return x[run[0]] if isinstance(x, list) else x
        values = [value[r] if isinstance(value, list) else value for r in run]
        old = unit.issue(access.address(run[0]), values, take(compare), predicate, plan.returns)
        if plan.returns:
            result[run[0]] = old
    return to_copies(e, call, t, result) if plan.returns else result


def _scalar(e, call, plan: AtomicPlan, place, value, compare, mask):
    access = Access(e, place, None, plan.access)
    def issue(predicate):
        return _Unit(e, call, place).issue(access.address(0), [value], compare, predicate, plan.returns)
    return once_for_scope(e, call, access.predicate(0, mask), issue)


def once_for_scope(e, call, predicate, issue):
    """Run ``issue(predicate)`` in the scope's first thread and hand its result to all threads of the scope.

    A barrier of the scope precedes a release and follows an acquire, so that they order the accesses of all its
    threads. If each thread performs its own operation, it is issued in every thread, without a barrier.
    """
    sem, returns = call.attrs["sem"], call.choice.plan.returns
    first = None if call.attrs["each_thread"] else e.first_thread()
    alone = first is None
    by_scratch = returns and not alone and e.threads > 32
    if not alone and sem in ("release", "acq_rel"):
        e.sync.scope()
    elif by_scratch:
        e.begin_scratch(call)
    old = issue(e.all_of([p for p in (predicate, first) if p is not None]))
    if by_scratch:
        base, offset = e.scratch_address(call, 0)
        e.vector_store("shared", base, offset, old.dtype, [old], first, None)
        e.sync.scope()
        return e.vector_load("shared", base, offset, old.dtype, [old], None, None)[0]
    if not alone and sem in ("acquire", "acq_rel"):
        e.sync.scope()
    if not returns:
        return e.const(0, call.result.type.dtype)
    return old if alone else e.warp.shuffle("idx", old, e.lane_id() - e.thread_id())


def through_scratch(t: Tile) -> bool:
    """Whether several warps hold copies of a tile's elements."""
    return any(str(axis) == "warpid" for n, _, axis in layout_of(t).replicas if n > 1)


def to_copies(e, call, t: Tile, values: list) -> list:
    """Hand the values of the threads that hold the first replica to the threads with the other replicas, by shuffle
    or scratch memory."""
    copies = [(n, stride, str(axis)) for n, stride, axis in layout_of(t).replicas if n > 1 and axis != "reg"]
    if through_scratch(t):
        e.tiles.scratch_store(call, values, t)
        return e.tiles.scratch_load(call, t, t.shape)
    if not copies:
        return values
    away = 0
    for n, stride, axis in copies:
        away = e.warp.digit(axis, n, stride) * stride + away
    return [e.warp.shuffle("idx", v, e.lane_id() - away) for v in values]


class _Unit:
    """Emits the instructions of one atomic call, address by address."""

    def __init__(self, e, call, place):
        self.e, self.kind = e, call.attrs["kind"]
        self.dtype: DType = place.type.dtype
        self.space = place.buffer.type.scope
        sem, scope = call.attrs["sem"], call.attrs["scope"]
        if self.space == "shared" and sem == "relaxed" and not e.graph.launch.cluster:
            scope = "cta"  # without a cluster, no other CTA can access this shared memory
        self.sem, self.scope = sem, scope

    def head(self, word: str) -> str:
        return f"{word}.{self.sem}.{self.scope}.{self.space}"

    def issue(self, address, values: list, compare, predicate, returns: bool):
        """Emit one operation, a vector one if there are several values. Returns the old value if `returns`."""
        d, kind = self.dtype, self.kind
        if kind in ("max", "min") and d.is_float:
            return self._float_extreme(address, values[0], predicate)
        if kind == "add" and d.name == "bfloat16" and self.e.architecture < 90:
            return self._add_by_exchange(address, values[0], predicate)
        if len(values) > 1:
            return self._vector(address, values, predicate)
        operands = [self._register(v) for v in ([compare] if kind == "cas" else []) + values]
        suffix, name = self._type(), kind + (".noftz" if kind == "add" and d.bits == 16 else "")
        if (not returns and kind in ("add", "max", "min", "and", "or", "xor", "inc", "dec")
            and self.sem in ("relaxed", "release")):
            return self._emit_red(f"{self.head('red')}.{name}.{suffix}", address, operands, predicate)
        return self._value(self._atom(f"{self.head('atom')}.{name}.{suffix}", address, operands, predicate))

    def _type(self) -> str:
        """The type suffix of the instruction. There is no add.s64, but add.u64 gives the same bits; bitwise
        operations take .b types."""
        d = self.dtype
        if self.kind in ("and", "or", "xor", "exch", "cas"):
            return f"b{d.bits}"
        if d.is_float:
            return {"float16": "f16", "bfloat16": "bf16"}.get(d.name, f"f{d.bits}")
        return f"{'s' if d.kind == 'int' and (self.kind != 'add' or d.bits == 32) else 'u'}{d.bits}"

    # -- registers -----------------------------------------------------------------------------------------------------

    def _bits(self) -> DType:
        return {16: int16, 32: int32, 64: int64}[self.dtype.bits]

    def _register(self, v):
        """A value as an operand of the instruction: 16-bit floats, and the floats of ``exch``,
        are passed as integers."""
        if v.dtype.is_float and (v.dtype.bits == 16 or self.kind == "exch"):
            return self.e.ins(f"bitcast {v.typed_text} to {self._bits().llvm}", self._bits())
        return v

    def _value(self, old):
        """The result of an instruction as a value of the element's dtype."""
        d = self.dtype
        if old.dtype.llvm == d.llvm:
            return type(old)(self.e, old.text, d)
        return self.e.ins(f"bitcast {old.typed_text} to {d.llvm}", d)

    # -- instructions --------------------------------------------------------------------------------------------------

    @staticmethod
    def _place(n: int, offset: int) -> str:
        return f"[${n} + {offset}]" if offset else f"[${n}]"

    def _emit_red(self, text: str, address: tuple, operands: list, predicate, packed: str | None = None) -> None:
        base, offset = address
        names = packed or ", ".join(f"${n + 1}" for n in range(len(operands)))
        guard = f"@${len(operands) + 1} " if predicate is not None else ""
        self.e.asm(f"{guard}{text} {self._place(0, offset)}, {names};", [],
                   [base, *operands, *([predicate] if guard else [])])

    def _atom(self, text: str, address: tuple, operands: list, predicate, before=None):
        """Emit an ``atom``; its result is `before` (by default 0) where the predicate is false."""
        e, (base, offset) = self.e, address
        dtype = operands[0].dtype
        names = ", ".join(f"${n + 2}" for n in range(len(operands)))
        if predicate is None:
            return e.asm(f"{text} $0, {self._place(1, offset)}, {names};", [dtype], [base, *operands])[0]
        before = before if before is not None else e.const(0, dtype)
        return e.asm(f"@${len(operands) + 2} {text} $0, {self._place(1, offset)}, {names};", [dtype],
                     [base, *operands, predicate], {0: before})[0]

    def _vector(self, address: tuple, values: list, predicate) -> None:
        """``red.global.add`` of a vector: .v2/.v4.f32 and .v2/.v4.f16x2 (sm_90), or one .f16x2."""
        e, d = self.e, self.dtype
        if d.bits == 32:
            operands, suffix = values, f"add.v{len(values)}.f32"
        else:
            operands = e.warp.packed(values)
            pair = "f16x2" if d.name == "float16" else "bf16x2"
            suffix = f"add.noftz.v{len(operands)}.{pair}" if len(operands) > 1 else f"add.noftz.{pair}"
        names = ", ".join(f"${n + 1}" for n in range(len(operands)))
        self._emit_red(f"{self.head('red')}.{suffix}", address, operands, predicate,
                       "{" + names + "}" if len(operands) > 1 else names)

    def _float_extreme(self, address: tuple, value, predicate):
        """max and min of floats, by integer atomics on their bits.

        As signed integers, the bits of non-negative floats are in the order of the floats; as unsigned integers,
        those of negative floats are in reverse order. So max is the signed maximum for a non-negative value and the
        unsigned minimum for a negative one; min is the signed minimum and the unsigned maximum. A NaN value is
        replaced by one whose bits are all set (for max, all but the sign), which no later value replaces. Another NaN
        in memory may be overwritten; where the old value is a NaN, the former is written in its place.
        """
        e, d, up = self.e, self.dtype, self.kind == "max"
        bits, n = self._bits(), d.bits
        sticky = e.const((1 << n - 1) - 1 if up else -1, bits)
        nan = e.ins(f"fcmp uno {d.llvm} {value.text}, {value.text}", bool_)
        raw = e.select(nan, sticky, e.ins(f"bitcast {value.typed_text} to {bits.llvm}", bits))
        negative = e.ins(f"icmp slt {raw.typed_text}, 0", bool_)
        positive = e.ins(f"xor i1 {negative.text}, true", bool_)
        def and_predicate(test):
            return e.all_of([test, predicate])
        head, other = self.head("atom"), "min" if up else "max"
        old = self._atom(f"{head}.{self.kind}.s{n}", address, [raw], and_predicate(positive))
        old = self._atom(f"{head}.{other}.u{n}", address, [raw], and_predicate(negative), before=old)
        result = self._value(old)
        lost = e.ins(f"fcmp uno {d.llvm} {result.text}, {result.text}", bool_)
        self._atom(f"{head}.exch.b{n}", address, [sticky], and_predicate(lost))
        return result

    def _add_by_exchange(self, address: tuple, value, predicate):
        """Add of bfloat16 before sm_90: a compare-and-swap loop that adds in float32 and rounds, until no other
        thread intervened."""
        e, (base, offset) = self.e, address
        place = self._place(1, offset)
        text = (f"{{ .reg .pred q; .reg .b16 was, now, zero; .reg .b32 w; .reg .f32 f; @!$3 bra DONE; mov.b16 zero, "
                f"0; ld.relaxed.{self.scope}.{self.space}.b16 $0, {place}; LOOP: mov.b16 was, $0; mov.b32 w, {{zero, "
                f"was}}; mov.b32 f, w; add.rn.f32 f, f, $2; cvt.rn.bf16.f32 now, f; {self.head('atom')}.cas.b16 $0, "
                f"{place}, was, now; setp.ne.b16 q, $0, was; @q bra LOOP; DONE: }}")
        predicate = predicate if predicate is not None else e.const(True, bool_)
        old = e.asm(text, [int16], [base, e.cast(value, float32), predicate], {0: e.const(0, int16)})[0]
        return self._value(old)
