"""The op that sorts unsigned integers, as tuples of one from each operand, by a bitonic network (`network.py`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...dtypes import bool_, int32
from ...ir.builder import Builder, element_type, extents_of, type_as, type_of
from ...ir.graph import Call, choice_of
from ...ir.op import op
from ...types import Tile
from ..language.promotion import collective
from ..reduce.layout_digits import test_inside
from .network import LANES, Network, choose_network, network_layouts, steps

# Up to this many comparisons and exchanges among threads, a network is written out. Loops take longer than the
# instructions that they save where a thread has few elements, whose shuffles wait for each other.
WRITTEN_OUT = 400
# The bytes of shared memory by which warps exchange elements at a time, unless one of each thread takes more. With
# fewer, they take more barriers.
EXCHANGED = 1 << 16

# Both integers of 64 bits, the lower one first, by one comparison (two instructions) and selections of words. Of
# selections of 64 bits, ptxas makes a minimum and a maximum, each with its own comparison.
ORDER_64 = ("{ .reg .pred p; .reg .b32 a<2>, b<2>, l<2>, h<2>; setp.lt.u64 p, $3, $2; "
            "mov.b64 {a0, a1}, $2; mov.b64 {b0, b1}, $3; selp.b32 l0, b0, a0, p; selp.b32 l1, b1, a1, p; "
            "selp.b32 h0, a0, b0, p; selp.b32 h1, a1, b1, p; mov.b64 $0, {l0, l1}; mov.b64 $1, {h0, h1}; }")

Element = tuple  # one value of each operand


@op("pure", attrs=("axis", "kept"), collective=True)
def sort_keys(*xs, axis, kept):
    """The `kept` smallest elements along `axis`, in ascending order. An element is a tuple of unsigned integers, one of
    each operand, which compare lexicographically."""


@sort_keys.infer
def _(g: Builder, *xs, axis, kept):
    collective(g, "a sort")
    return tuple(Tile(type_of(x).dtype, tuple(kept if d == axis else n for d, n in enumerate(type_of(x).shape)))
                 for x in xs)


def _network(call: Call, threads: int) -> Network:
    types = [type_as(a, Tile) for a in call.args]
    words = sum(max(1, t.dtype.bits // 32) for t in types)
    return choose_network(types[0].shape, call.attrs["axis"], call.attrs["kept"], threads, words)


def _layout(assigner, call: Call, types: tuple) -> tuple[tuple, tuple]:
    network, shape = _network(call, assigner.scope.threads), extents_of(call.args[0])
    whole, kept = network_layouts(network, shape)
    return (tuple(Tile(element_type(a), shape, *whole) for a in call.args),
            tuple(Tile(element_type(r), extents_of(r), *kept) for r in call.results))


def _plan(context, call: Call) -> Network:
    return _network(call, context.scope.threads)


def _scratch(call: Call) -> int:
    network: Network = choice_of(call).plan
    element = sum(element_type(a).nbytes for a in call.args)
    return _elements_at_once(network, element) * network.threads * element if network.through_shared else 0


def _elements_at_once(network: Network, nbytes: int) -> int:
    """How many elements of `nbytes` each thread has in shared memory at a time while warps exchange theirs."""
    return max(1, min(network.rows << network.result_bits, EXCHANGED // (network.threads * nbytes)))


sort_keys.rules.layout = _layout
sort_keys.rules.plan = _plan
sort_keys.rules.scratch = _scratch


# -- simulation --------------------------------------------------------------------------------------------------------

@sort_keys.simulate
def _(m, call, *xs):
    network: Network = call.choice.plan
    shape, axis, kept = type_of(call.args[0]).shape, call.attrs["axis"], call.attrs["kept"]
    batch, missing = max(x.shape[0] for x in xs), (1 << network.bits) - shape[axis]
    values = []
    for x in xs:
        x = np.moveaxis(np.broadcast_to(x, (batch, *shape)), axis + 1, -1)
        padding = [(0, 0)] * (x.ndim - 1) + [(0, missing)]
        values.append(np.pad(x, padding, constant_values=np.iinfo(x.dtype).max))
    values = m.run_network(values, steps(network.bits, network.kept), network.kept)
    return tuple(np.moveaxis(v[..., :kept], -1, axis + 1) for v in values)


# -- emission ----------------------------------------------------------------------------------------------------------

@sort_keys.emit
def _(e, call, *xs):
    elements = _Sorter(e, call, call.choice.plan).run(xs)
    columns = tuple([element[n] for element in elements] for n in range(len(xs)))
    return columns[0] if len(columns) == 1 else columns


class _Sorter:
    """Emits a network. ``values`` are the thread's elements, by row and by the position's lowest bits.

    The thread's number along the axis, `thread`, gives the position's other bits. Where one of them decides the
    direction of a stage, threads that sort downwards complement their elements, and sort upwards: after the stage
    whose direction bit n decides, and until the next one, the elements of threads whose bit n is set are complemented.
    """

    def __init__(self, e, call: Call, network: Network):
        self.e, self.call, self.network = e, call, network
        self.type = type_as(call.args[0], Tile)
        self.dtypes = [element_type(a) for a in call.args]
        self.values: dict[tuple[int, int], Element] = {}
        self.thread = (e.warp.digit("laneid", 1 << network.lanes, 1)
                       + e.warp.digit("warpid", 1 << network.warps, 1) * (1 << network.lanes))
        self.rolled = network.work_among_threads * len(self.dtypes) > WRITTEN_OUT
        self.scratch_used = False

    def run(self, xs: tuple) -> list[Element]:
        """The thread's elements of the result."""
        network = self.network
        for reg, element in enumerate(zip(*xs)):
            self.values[divmod(reg, 1 << network.registers)] = self.padded(reg, element)
        for stage in range(network.registers + 1):
            self.stage_in_registers(stage)
        spread, blocks = network.lanes + network.warps, max(0, network.kept - network.registers)
        self.loop(1, blocks + 1, self.stage)
        self.loop(blocks, network.lanes, lambda bit: self.halve(bit, self.from_lanes))
        self.loop(max(blocks, network.lanes), spread, lambda bit: self.halve(bit, self.from_warps))
        return [self.values[place] for place in sorted(self.values)]

    def padded(self, reg: int, element: Element) -> Element:
        """The element of a register, or the largest one where the register is not within the axis."""
        inside = test_inside(self.e, self.type, reg, (self.network.axis,))
        if inside is None:
            return element
        return self.choose(inside, element, tuple(self.e.const(-1, v.dtype) for v in element))

    # -- stages --------------------------------------------------------------------------------------------------------

    def stage_in_registers(self, stage: int) -> None:
        """A stage that joins positions of one thread only; in stage 0, a block is one element."""
        network = self.network
        if stage > network.kept:
            self.values = {(row, at): self.least(element, self.values[row, at | 1 << stage - 1])
                           for (row, at), element in self.values.items() if not at >> stage - 1 & 1}
        if stage == network.registers:
            self.complement(0)
        self.merge_registers(min(stage, network.kept), lambda at: stage < network.registers and at >> stage & 1)

    def stage(self, n) -> None:
        """The stage that merges blocks of ``2**n`` threads; `n` is an int or a value."""
        self.complement(n, n - 1)
        self.merge_threads(n)
        self.merge_registers(self.network.registers)

    def halve(self, bit, fetch: Callable) -> None:
        """A stage that keeps the lowest elements of two neighbouring blocks, which differ in `bit` of the thread."""
        blocks = max(0, self.network.kept - self.network.registers)
        self.complement(bit)
        others = fetch(bit)
        self.values = {place: self.least(element, others[place]) for place, element in self.values.items()}
        self.complement(bit + 1)
        self.merge_threads(blocks)
        self.merge_registers(self.network.result_bits)

    def _smaller(self, n, limit: int):
        if isinstance(n, int):
            return min(n, limit)
        return self.e.ins(f"call i32 @llvm.smin.i32({n.typed_text}, i32 {limit})", int32)

    def merge_threads(self, n) -> None:
        """The comparators of the distances ``2**(n - 1)``, ..., 2, 1 among threads."""
        lanes, within = self.network.lanes, n
        if self.network.warps:
            self.loop(0, n - lanes, lambda i: self.exchange(n - 1 - i, self.from_warps))
            within = self._smaller(n, lanes)
        if lanes:
            self.loop(0, within, lambda i: self.exchange(within - 1 - i, self.from_lanes))

    def merge_registers(self, bits: int, downwards: Callable[[int], int] = lambda at: 0) -> None:
        """The comparators of the distances 2**(bits - 1), ..., 2, 1 within the thread."""
        for bit in reversed(range(bits)):
            for row, at in [place for place in self.values if not place[1] >> bit & 1]:
                places = [(row, at), (row, at | 1 << bit)]
                low, high = places[::-1] if downwards(at) else places
                self.values[low], self.values[high] = self.put_in_order(self.values[low], self.values[high])

    def exchange(self, bit, fetch: Callable) -> None:
        """The comparators between threads that differ in `bit`: each keeps the lower or the higher element."""
        e = self.e
        lower, others = (self.thread & e.as_value(1, int32) << bit).equals(0), fetch(bit)
        for place, element in self.values.items():
            less = self.is_below(others[place], element)
            self.values[place] = self.choose(e.ins(f"icmp eq i1 {less.text}, {lower.text}", bool_), others[place],
                                             element)

    # -- where the other elements are ----------------------------------------------------------------------------------

    def from_lanes(self, bit) -> dict[tuple[int, int], Element]:
        """The elements of the lane that differs in `bit`."""
        mask = self.e.as_value(1, int32) << bit
        return {place: tuple(self.e.warp.shuffle("bfly", v, mask) for v in element)
                for place, element in self.values.items()}

    def from_warps(self, bit) -> dict[tuple[int, int], Element]:
        """The elements of the thread that differs in `bit`, the number of a warp. Each thread has a column of shared
        memory, so that there are no bank conflicts."""
        e, threads, own = self.e, self.network.threads, self.e.thread_id()
        other = own ^ (e.as_value(LANES, int32) << bit - self.network.lanes)
        at_once = _elements_at_once(self.network, sum(d.nbytes for d in self.dtypes))
        rows = [threads * sum(d.nbytes for d in self.dtypes[:n]) * at_once for n in range(len(self.dtypes))]
        found, places = {}, list(self.values)
        for part in (places[first:first + at_once] for first in range(0, len(places), at_once)):
            if self.rolled or self.scratch_used:
                e.sync.scope()
            else:
                e.begin_scratch(self.call)
            self.scratch_used = True
            for i, place in enumerate(part):
                for v, row in zip(self.values[place], rows):
                    address, constant = e.scratch_address(self.call, own * v.dtype.nbytes)
                    e.vector_store("shared", address, constant + row + i * threads * v.dtype.nbytes, v.dtype, [v],
                                   None, None)
            e.sync.scope()
            for i, place in enumerate(part):
                elements: list = []
                for dtype, row in zip(self.dtypes, rows):
                    address, constant = e.scratch_address(self.call, other * dtype.nbytes)
                    elements += e.vector_load("shared", address, constant + row + i * threads * dtype.nbytes, dtype,
                                              [e.const(0, dtype)], None, None)
                found[place] = tuple(elements)
        return found

    # -- elements ------------------------------------------------------------------------------------------------------

    def is_below(self, a: Element, b: Element):
        """Whether `a` comes before `b`."""
        e, test = self.e, None
        for x, y in zip(a[::-1], b[::-1]):
            less = e.ins(f"icmp ult {x.typed_text}, {y.text}", bool_)
            if test is not None:
                equal = e.ins(f"icmp eq {x.typed_text}, {y.text}", bool_)
                less = e.ins(f"or i1 {less.text}, {e.ins(f'and i1 {equal.text}, {test.text}', bool_).text}", bool_)
            test = less
        return test

    def choose(self, test, a: Element, b: Element) -> Element:
        return tuple(self.e.select(test, x, y) for x, y in zip(a, b))

    def put_in_order(self, a: Element, b: Element) -> tuple[Element, Element]:
        """Both elements, the lower one first."""
        if len(a) == 1 and a[0].dtype.bits == 64:
            low, high = self.e.asm(ORDER_64, [a[0].dtype] * 2, [a[0], b[0]], pure=True)
            return (low,), (high,)
        if len(a) == 1:
            return self.extreme("min", a, b), self.extreme("max", a, b)
        swap = self.is_below(b, a)
        return self.choose(swap, b, a), self.choose(swap, a, b)

    def least(self, a: Element, b: Element) -> Element:
        return self.extreme("min", a, b) if len(a) == 1 else self.choose(self.is_below(b, a), b, a)

    def extreme(self, which: str, a: Element, b: Element) -> Element:
        """The lower ('min') or higher ('max') of two integers. Written as PTX: LLVM 22 takes 3 s for the network of 64
        registers if it sees minima and maxima, and 0.1 s if it does not."""
        dtype = a[0].dtype
        return (self.e.asm(f"{which}.u{dtype.bits} $0, $1, $2;", [dtype], [a[0], b[0]], pure=True)[0],)

    def complement(self, *bits) -> None:
        """Complement the elements of threads for which an odd number of these bits of the thread's number are set."""
        e = self.e
        if isinstance(self.thread, int):
            return
        odd = self.thread >> bits[0]
        for bit in bits[1:]:
            odd = odd ^ (self.thread >> bit)
        mask = 0 - (odd & 1)
        masks = {d: mask if d.bits == 32 else e.ins(f"sext {mask.typed_text} to {d.llvm}", d) for d in set(self.dtypes)}
        for place, element in self.values.items():
            self.values[place] = tuple(e.ins(f"xor {v.typed_text}, {masks[v.dtype].text}", v.dtype) for v in element)

    # -- loops ---------------------------------------------------------------------------------------------------------

    def loop(self, start: int, stop, body: Callable) -> None:
        """``for i in range(start, stop): body(i)``, as a loop at run time if the network is not written out."""
        if isinstance(stop, int) and (not self.rolled or stop - start <= 1):
            for i in range(start, stop):
                body(i)
            return
        places = list(self.values)

        def trip(i, flat: list) -> list:
            self.set(places, flat)
            body(i)
            return self.flatten(places)
        self.set(places, self.e.control.emit_loop(start, stop, self.flatten(places), trip))

    def flatten(self, places: list[tuple[int, int]]) -> list:
        return [v for place in places for v in self.values[place]]

    def set(self, places: list[tuple[int, int]], flat: list) -> None:
        width = len(self.dtypes)
        self.values = {place: tuple(flat[n * width:(n + 1) * width]) for n, place in enumerate(places)}
