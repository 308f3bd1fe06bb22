"""What `emit` rules may use of the emitter: a protocol for each of its components, and one for the rest.

In the emitter a scalar is one emitted value of the thread, and a tile is a list of them, one per register.
`tests/test_protocols.py` refuses a rule that uses another name, and mypy an emitter that lacks one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from ..dtypes import DType
from ..errors import Loc
from ..types import Buffer, Sym, TensorMap, Tile
from .graph import Block, Call, Graph, Operand, Value

# What rules get from the emitter and give back to it; its folder comes after that of the rules.
Emitted: TypeAlias = Any   # an `emit.value.V`
EBuffer: TypeAlias = Any   # of emit/buffers.py, as are the next two
ERegion: TypeAlias = Any
EPoints: TypeAlias = Any
EBarrier: TypeAlias = Any  # of emit/barriers.py, as is the next
EBarriers: TypeAlias = Any
EMap: TypeAlias = Any      # of emit/named_maps.py
Pins: TypeAlias = Any      # of emit/accumulators.py


class Tiles(Protocol):
    """Register tiles: which elements a thread holds, and moves through scratch memory."""

    def registers(self, t: Tile) -> int:
        """The number of the tile's elements that a thread holds."""
    def register_coordinates(self, t: Tile, reg: int) -> tuple[int, ...]:
        """The part of register `reg`'s coordinates that is the same in all threads; `thread_coordinate` is the rest."""
    def register_at(self, t: Tile, at: tuple[int, ...]) -> int:
        """The register whose `register_coordinates` are `at`."""
    def thread_coordinate(self, t: Tile, dim: int) -> Any:
        """The part of the coordinate along `dim` that depends on the thread's lane and warp (an int if it does not)."""
    def warp_coordinate(self, t: Tile, dim: int) -> Any:
        """The part of the coordinate along `dim` that depends on the thread's warp (an int if it does not)."""
    def coordinates(self, t: Tile, reg: int) -> tuple[Any, ...]:
        """The coordinates in the tile of the thread's register `reg`."""
    def first_replica(self, t: Tile) -> Emitted | None:
        """Whether the thread holds the first replica of its elements; None if only one thread holds each element."""
    def is_element(self, t: Tile, reg: int) -> Emitted | None:
        """Whether register `reg` is an element of the tile rather than padding; None if that is known."""
    def move_through_scratch(self, call: Any, values: list[Emitted], source: Tile, target: Tile,
                             shape: tuple[int, ...], place: Any = None, pitch: int | None = None) -> list[Emitted]:
        """The elements of `target`, which threads read from the call's scratch after all have written those of `source`
        there: in parts, for an op with the trait `in_parts`, where scratch is smaller than the tile. `shape` and
        `place` are those of `scratch_load`."""
    def scratch_store(self, call: Any, values: list[Emitted], t: Tile, pitch: int | None = None,
                      part: range | None = None) -> None:
        """All threads write their elements of the tile to the call's scratch, row-major, with rows `pitch` elements
        apart (contiguous if None)."""
    def scratch_store_joined(self, call: Any, tiles: Iterable[tuple[list[Emitted], Tile, tuple[int, ...]]],
                             shape: tuple[int, ...]) -> None:
        """As `scratch_store`, of tiles (values, type, start) that make up one of `shape`."""
    def scratch_load(self, call: Any, t: Tile, shape: tuple[int, ...], place: Any = None, pitch: int | None = None,
                      part: range | None = None, earlier: list[Emitted] | None = None) -> list[Emitted]:
        """All threads read their elements of tile `t` from the call's scratch, which holds a tile of `shape`."""


class Warp(Protocol):
    """Exchanges among the lanes of a warp, and digits of thread ids."""

    def shuffle(self, kind: str, value: Emitted, operand: Any) -> Emitted:
        """The value that another lane has."""
    def vote(self, kind: str, condition: Emitted, mask: Emitted | None = None) -> Emitted:
        """Whether `condition` holds in 'any' or 'all' lanes of `mask`, by default the scope's part of the warp, or the
        mask of those where it holds ('ballot')."""
    def match(self, value: Emitted, mask: Emitted | None = None) -> Emitted:
        """The mask of the lanes that have the same bits in `value`."""
    def members(self) -> Emitted:
        """The mask of the lanes of the current scope."""
    def redux(self, word: str, value: Emitted, mask: Emitted | None = None) -> Emitted:
        """A reduction across the whole warp, or the lanes of `mask` for integers, by one instruction.

        It is 'add', 'min', 'max', 'and', 'or' or 'xor' of integers of at most 32 bits, 'min' or 'max' of float32 that
        propagate NaN (sm_100a and sm_103a), 'and' or 'or' of bools."""
    def digit(self, axis: str, extent: int, stride: int) -> Any:
        """The digit ``(id // stride) % extent`` of the thread's id on the axis 'laneid', or 'warpid' (within the
        scope)."""
    def as_test(self, digit: Any) -> Emitted | None:
        """Whether a digit is 0; None if it always is."""
    def not_below(self, digit: Emitted, n: int) -> Emitted:
        """``digit >= n``."""
    def packed(self, values: list[Emitted]) -> list[Emitted]:
        """16-bit values packed in pairs, the first of each in the low half of an i32."""


class Control(Protocol):
    """Control flow inside a rule."""

    def emit_counted_loop(self, n: int, body: Callable[[Emitted], None]) -> None:
        """Emit ``for i in range(n): body(i)`` for a constant `n` of at least 1; `body` emits one trip."""
    def emit_loop(self, start: int, stop: Any, values: list[Emitted],
               body: Callable[[Emitted, list[Emitted]], list[Emitted]]) -> list[Emitted]:
        """Emit ``for i in range(start, stop): values = body(i, values)``, not unrolled, and return the last values."""
    def emit_either(self, test: Emitted, then: Callable[[], list[Emitted]],
                    orelse: Callable[[], list[Emitted]]) -> list[Emitted]:
        """Emit a branch, and return the values of the code that ran: of `then` where the test holds, or else of
        `orelse`."""
    def by_first_thread(self, then: Callable[[], None]) -> None:
        """Run `then` in the first thread of the scope, or if `first_thread` is None, in each thread that gets here."""


class Synchronisation(Protocol):
    """Barriers of scopes, hardware barriers, the cluster's barrier, groups of copies and fences."""

    def scope(self) -> None:
        """Synchronise the threads of the current scope."""
    def named_barrier(self, what: str, barriers: Any, index: Any) -> None:
        """``bar.sync`` or ``bar.arrive`` (`what`) on number `index` of the kernel's named barriers."""
    def vote(self, word: str, condition: Any) -> Any:
        """Whether a condition holds in all threads of the current scope of several warps, or in any, by its barrier."""
    def first_turn(self, barriers: Any) -> None:
        """Arrive on barrier 0 of a `turns` object, so that its first member may begin."""
    def cp_async_commit(self) -> None:
        """``cp.async.commit_group``."""
    def cp_async_wait(self, n: int) -> None:
        """``cp.async.wait_group``."""
    def bulk_commit(self) -> None:
        """``cp.async.bulk.commit_group``."""
    def bulk_wait(self, n: int, read: bool) -> None:
        """``cp.async.bulk.wait_group``; with `read`, only until the sources are read."""
    def fence_proxy_async(self, space: str) -> None:
        """``fence.proxy.async`` of "shared", "global" or "all" memory."""
    def fence_mbarrier_init(self) -> None:
        """``fence.mbarrier_init``."""
    def cluster_arrive(self) -> None:
        """``barrier.cluster.arrive``."""
    def cluster_wait(self) -> None:
        """``barrier.cluster.wait``."""
    def griddepcontrol_wait(self) -> None:
        """``griddepcontrol.wait``."""
    def griddepcontrol_launch_dependents(self) -> None:
        """``griddepcontrol.launch_dependents``."""


class Barriers(Protocol):
    """mbarriers."""

    def array(self, value: Value) -> EBarriers:
        """The barriers of an allocation."""
    def at(self, block: Any, at: Any, rank: Any = None) -> EBarrier:
        """One of several barriers; of this CTA, or of the cluster's CTA `rank`."""
    def arrive(self, barrier: EBarrier, n: Emitted) -> None:
        """Arrive `n` times, once for the scope."""
    def expect_tx(self, barrier: EBarrier, nbytes: Emitted) -> None:
        """Announce bytes, once for the scope."""
    def arrive_expect_tx(self, barrier: EBarrier, nbytes: Emitted) -> None:
        """Announce bytes and arrive once, for the scope."""
    def wait(self, barrier: EBarrier, parity: Emitted, seen: Emitted | None = None) -> None:
        """Spin on ``try_wait``, which suspends the thread in hardware (sm_90 and later), or on ``test_wait``, unless
        the end of the phase was `seen`."""
    def peek(self, barrier: EBarrier, parity: Emitted) -> Emitted:
        """Whether the phase with this parity has completed, the same for all lanes of a warp."""
    def test(self, barrier: EBarrier, parity: Emitted) -> Emitted:
        """Whether the phase with this parity has completed."""
    def arrive_on_copies(self, barrier: EBarrier, noinc: bool) -> None:
        """``cp.async.mbarrier.arrive``: arrive when the thread's copies so far have landed."""


class PtxOperands(Protocol):
    """Operands and results of PTX instruction forms."""

    def dtype(self, operand: Any) -> DType:
        """The dtype of the register class of an operand."""
    def register(self, operand: Any, x: Emitted) -> Emitted:
        """A value in the register class of an operand: floats are bit-cast to integers where it takes those, bytes
        zero-extended to 16 bits."""
    def result(self, operand: Any, x: Emitted, dtype: DType) -> list[Emitted]:
        """A result register as values of `dtype`: 128 bits as two 64-bit words, 16 bits truncated to a byte, bits as a
        float."""
    def widen(self, low: Emitted, high: Emitted) -> Emitted:
        """The 128-bit value of two 64-bit words."""
    def address(self, operand: Any, place: Any) -> tuple[Emitted, int]:
        """(address, constant byte offset) for an address operand."""


class TensorCopies(Protocol):
    """Bulk tensor copies. A place is (address, constant byte offset) in shared memory."""

    def prefetch_map(self, tensor_map: Any) -> None:
        """At the kernel's entry, thread 0 prefetches a map to the cache from which copies read it."""
    def load(self, tensor_map: Any, coordinates: list[Any], place: tuple[Emitted, int], barrier: EBarrier, *,
             mode: str = '', offsets: Any = (), mask: Any = None, cta_group: int | None = None,
             space: str = "shared::cluster", policy: Any = None) -> None:
        """Global to shared memory."""
    def store(self, tensor_map: Any, coordinates: list[Any], place: tuple[Emitted, int], *, mode: str = '.tile',
              reduce: str | None = None, policy: Any = None) -> None:
        """Shared to global memory, or a reduction there, as part of the thread's current bulk group."""
    def prefetch(self, tensor_map: Any, coordinates: list[Any], *, mode: str = '.tile', offsets: Any = (),
                 policy: Any = None) -> None:
        """Prefetch a box to L2."""


class BulkCopies(Protocol):
    """Bulk copies without a tensor map, and addresses of peers' shared memory."""

    def load(self, to: tuple[Emitted, int], source: Emitted, nbytes: int, barrier: EBarrier, *, mask: Any = None,
             policy: Any = None) -> None:
        """Global to shared memory."""
    def store(self, to: Emitted, source: tuple[Emitted, int], nbytes: int, *, policy: Any = None,
              reduce: tuple[str, str] | None = None) -> None:
        """Shared to global memory, or a reduction there, as part of the thread's current bulk group."""
    def to_peer(self, to: tuple[Emitted, int], source: tuple[Emitted, int], nbytes: int, barrier: Emitted, *,
                reduce: tuple[str, str] | None = None) -> None:
        """Shared memory to that of another CTA of the cluster, or a reduction there."""
    def store_remote(self, to: tuple[Emitted, int], dtype: DType, values: list[Emitted], barrier: Emitted,
                     predicate: Emitted | None, kind: str | None, type_: str | None) -> None:
        """``st.async`` of consecutive elements to the shared memory of a peer CTA, or with a reduction `kind`
        ``red.async`` of one element."""
    def prefetch(self, source: Emitted, nbytes: int, *, policy: Any = None) -> None:
        """Prefetch `nbytes` of global memory to L2."""
    def prefetch_line(self, source: Emitted, test: Emitted | None) -> None:
        """Prefetch the cache line of an address to L2, where `test` is true."""
    def map_to_rank(self, address: Emitted, offset: int, rank: Any) -> Emitted:
        """The shared::cluster address in CTA `rank` that corresponds to this CTA's ``address + offset``."""
    def peer_barrier(self, barrier: EBarrier, rank: Any) -> EBarrier:
        """The barrier of CTA `rank` at the same offset as a barrier of this CTA."""
    def half_word(self, x: Any) -> Emitted:
        """An integer truncated to a 16-bit value."""


class NamedMaps(Protocol):
    """Tensor maps that the kernel names."""

    def named_map(self, type_: TensorMap, slot: Any, shared: Any) -> EMap:
        """A map by name, with its slot."""
    def seed(self, map_: EMap) -> None:
        """Initialise a map from the one that the launch encoded: one thread copies all 128 bytes, 16 at a time, since a
        driver may have written any of them."""
    def rebind(self, map_: EMap, place: Any, *numbers: Any) -> None:
        """Replace the address, the dimensions and the strides (`numbers`:"""
    def release(self, map_: EMap, scope: str) -> None:
        """``fence.proxy.tensormap`` that releases the edits."""
    def acquire(self, map_: EMap, scope: str) -> None:
        """``fence.proxy.tensormap`` that acquires the edits of a map."""
    def publish(self, map_: EMap, scope: str) -> None:
        """Copy an edited map from shared memory to its slot and release it: by the scope's first warp, between two
        barriers of the scope."""
    def prefetch(self, map_: EMap) -> None:
        """``prefetch.tensormap``."""


class Products(Protocol):
    """Operands and accumulators of matrix products."""

    def accumulate(self, call: Call) -> tuple[Pins, bool]:
        """Make the registers that a product accumulates in hold its accumulator, by a move if it is elsewhere."""
    def renew(self, call: Call) -> Pins:
        """Copy the registers of the call's first operand to those of its result, by ``prmt``, which ptxas does not
        treat as a copy."""
    def packed_words(self, values: list[Emitted]) -> list[Emitted]:
        """A tile's elements packed into 32-bit words, from the lowest bits up."""
    def unpacked_words(self, words: list[Emitted], dtype: DType) -> list[Emitted]:
        """The inverse of `packed_words`."""
    def matrix_address(self, region: Any) -> Any:
        """The shared address of a region's first element without the swizzle: the hardware applies the swizzle to
        addresses."""
    def descriptor(self, address: Emitted, bits: int) -> Emitted:
        """A matrix descriptor (PTX ISA, "Matrix descriptor") of `address`, with the other fields given as `bits`."""


class TensorMemory(Protocol):
    """Tensor memory."""

    def deallocate(self, value: Value) -> None:
        """``tcgen05.dealloc`` of the allocation that holds a buffer, by the first warp."""
    def narrow(self, word: Emitted, dtype: Any) -> Emitted:
        """The element of fewer than 32 bits in the low bits of a register."""
    def widened_bits(self, value: Emitted) -> Emitted:
        """An element of fewer than 32 bits, zero-extended to a register."""
    def fence(self, side: str) -> None:
        """``tcgen05.fence`` before or after thread synchronisation."""
    def buffer(self, value: Value) -> Any:
        """The buffer of an allocation."""
    def address(self, region: Any) -> Emitted:
        """The address of a region's first element, which must begin a 32-bit column."""


class Ranges(Protocol):
    """Named ranges."""

    def mark(self, name: str, begins: bool) -> None:
        """Record the time of the beginning or the end of a range."""


class Emitter(Protocol):
    """LLVM IR for the code of one thread, as `emit` rules see it. `emit.emitter.Emitter` implements it."""

    loc: Loc | None  # The location of the current call.
    uses_libdevice: bool  # Whether libdevice must be linked.
    @property
    def architecture(self) -> int:
        """The number in the target's name: 90 for sm_90a."""
    @property
    def target(self) -> str:
        """The name of the target, such as "sm_90a"."""
    @property
    def fast_math(self) -> bool:
        """The launch option."""
    @property
    def graph(self) -> Graph:
        """What is emitted."""
    @property
    def partial(self) -> bool:
        """Whether perhaps only some of the scope's threads run the code."""
    @property
    def values(self) -> dict[Value, Any]:
        """What has been emitted for each value of the graph."""
    @property
    def tiles(self) -> Tiles: ...
    @property
    def warp(self) -> Warp: ...
    @property
    def control(self) -> Control: ...
    @property
    def sync(self) -> Synchronisation: ...
    @property
    def barriers(self) -> Barriers: ...
    @property
    def ptx(self) -> PtxOperands: ...
    @property
    def tma(self) -> TensorCopies: ...
    @property
    def bulk(self) -> BulkCopies: ...
    @property
    def maps(self) -> NamedMaps: ...
    @property
    def mma(self) -> Products: ...
    @property
    def tmem(self) -> TensorMemory: ...
    @property
    def ranges(self) -> Ranges: ...
    def ins(self, text: str, dtype: DType) -> Emitted:
        """Append an instruction that has a result."""
    def stmt(self, text: str) -> None:
        """Append an instruction without a result."""
    def declare(self, text: str) -> None:
        """Add a declaration to the module, once."""
    def const(self, value: Any, dtype: DType) -> Emitted:
        """A literal."""
    def as_value(self, x: Any, dtype: DType) -> Emitted:
        """A number as a constant; a value as it is."""
    @property
    def f32_dtype(self) -> DType:
        """float32."""
    def suffix(self, dtype: DType) -> str:
        """The suffix of a float dtype in PTX: f16, bf16, f32 or f64."""
    def select(self, test: Emitted, a: Emitted, b: Emitted) -> Emitted:
        """``a`` where the test holds, otherwise ``b``."""
    def in_bounds(self, index: Any, size: Any) -> Emitted:
        """``0 <= index < size``."""
    def inside(self, buffer: EBuffer, d: int, index: Any) -> Emitted:
        """Whether a coordinate along dimension `d` is in the bounds of the buffer, or of its window."""
    def all_of(self, tests: list[Any]) -> Emitted | None:
        """The conjunction of tests; None stands for one that always holds, as an operand and as the result."""
    def mul64(self, a: Any, b: Any) -> Any:
        """``a * b`` in 64 bits, so that offsets do not wrap; an int if both are ints or one is 0."""
    def sum64(self, terms: Any) -> Any:
        """The sum of ints and values in 64 bits."""
    def offset_pointer(self, pointer: Emitted, elements: Any, nbytes: int) -> Emitted:
        """`pointer` advanced by `elements` elements of `nbytes` bytes."""
    def exactly_divided(self, a: Any, n: int) -> Any:
        """``a / n`` of a multiple of `n`, which may be negative (a copy may begin before the array)."""
    def word(self, x: Any) -> Emitted:
        """An integer as a 32-bit value."""
    def resolve(self, sym: int | Sym) -> Any:
        """A size or stride: a constant, or the parameter that holds it."""
    def make_array(self, type_: Buffer, address: Emitted, numbers: Any) -> EBuffer:
        """The array at an address; `numbers` are its extents, then its strides."""
    def make_region(self, type_: Any, buffer: EBuffer, starts: Any) -> ERegion:
        """A region of a buffer."""
    def make_points(self, type_: Any, buffer: EBuffer, indices: Any) -> EPoints:
        """Points of a buffer."""
    def shared_base(self) -> Emitted:
        """The address of the CTA's shared memory."""
    def shared_buffer(self, value: Value) -> EBuffer:
        """The buffer of an allocation in shared memory."""
    def shared_address(self, buffer: EBuffer, coordinates: Any,
                       base: Emitted | None = None) -> tuple[Emitted, int]:
        """(address, constant byte offset) of an element of a shared buffer."""
    def begin_scratch(self, call: Call) -> None:
        """Synchronise the scope before the call's first write to its scratch, unless no thread can still be reading
        there."""
    def scratch_address(self, call: Call, offset: Any) -> tuple[Emitted, int]:
        """(address, constant byte offset) of byte `offset` of the call's scratch."""
    def operand(self, operand: Operand) -> Any:
        """An operand in the form that rules take: a value, a list of values for a tile (one per register), a buffer,
        None."""
    def block(self, block: Block) -> None:
        """Emit the nodes of a block."""
    def scope_key(self) -> Any:
        """What tells scopes apart in the keys of memoised values."""
    def memoize_for_region(self, key: Any, make: Any) -> Any:
        """The value of ``make()``, memoised under `key` for the region of code that its first use dominates."""
    def entry(self, key: Any, make: Any) -> Any:
        """The value of ``make()``, emitted once, in the function's entry block."""
    def sreg(self, name: str) -> Emitted:
        """A special register (PTX ISA, "Special Registers")."""
    def grid_extent(self, axis: int) -> Emitted:
        """The launch's number of programs along an axis."""
    def counters(self, name: str, words: int) -> Emitted:
        """The address of so many 64-bit words of the module's own, which are 0 when it is loaded."""
    def absolute_thread(self) -> Emitted:
        """The thread's id in the CTA."""
    def lane_id(self) -> Emitted:
        """`%laneid`: the id in the warp."""
    def warp_id(self) -> Emitted:
        """The warp's id in the CTA, passed through a shuffle so that the assembler can prove it uniform across the
        warp."""
    def warpgroup_id(self) -> Emitted:
        """The warpgroup's id in the CTA."""
    @property
    def threads(self) -> int:
        """The number of threads of the current scope."""
    def scope_warp(self) -> Any:
        """The warp's id in the current scope, provably uniform (see `warp_id`)."""
    def thread_id(self) -> Any:
        """The thread's id in the current scope."""
    def first_thread(self) -> Emitted | None:
        """Whether this is the first thread of the scope."""
    def asm(self, text: str, outputs: Sequence[DType] = (), inputs: Sequence[Emitted] = (),
            ties: dict[int, Emitted] | None = None, *, pure: bool = False, convergent: bool = False) -> list[Emitted]:
        """One inline asm call:"""
    def approx(self, function: str, x: Emitted) -> Emitted:
        """A function of float32 on the special function unit: ex2, lg2, sin, cos, tanh, rsqrt, sqrt or rcp (which get
        ``.approx``), or a full form such as "ex2.approx.ftz"."""
    def fma(self, a: Emitted, b: Emitted, c: Emitted) -> Emitted:
        """``a * b + c`` with one rounding."""
    def libdevice(self, function: str, dtype: DType, *values: Emitted) -> Emitted:
        """A call of libdevice's function of the dtype."""
    def vprintf(self, parts: Sequence[str | int | Emitted]) -> None:
        """Print a line of texts, numbers and values by ``vprintf(format, values)`` (CUDA C++ Programming Guide,
        "Formatted Output")."""
    def f32(self, x: Emitted) -> Emitted:
        """A value of a narrower float type as float32."""
    def cast(self, x: Emitted, target: DType) -> Emitted:
        """`x` converted to `target`; the op `cast` documents rounding and saturation."""
    def cast_many(self, values: list[Emitted], target: DType) -> list[Emitted]:
        """Cast all registers of a tile: two or four at a time where the hardware converts several
        (``cvt.rn.bf16x2.f32``, ``cvt.pack.sat``) or byte permutes do it, the rest one by one."""
    def hide(self, x: Emitted) -> Emitted:
        """The integer `x`, about whose value the assembler cannot know anything. ptxas 13.0 takes registers of which it
        knows that they hold 0 or 1 (``selp 1, 0`` and what is computed from it) for these numbers also where an
        instruction reads them as the bits of a float: it makes ``cvt.rzi.s32.f16`` of them 0 or 1, ``cvt.f32.f16``,
        ``cvt.rn.f16.f32`` and ``cvt.rni.f32.f32`` 0.0 or 1.0, ``neg.f32`` 0 or -1; f32, bf16 and, behind ``neg``, f64
        alike."""
    def to_units(self, values: list[Emitted], dtype: DType) -> list[Emitted]:
        """Elements packed into the registers of a vector instruction (`_units`)."""
    def word_of(self, values: list[Emitted], dtype: DType) -> Emitted | int | None:
        """The 32-bit word that consists of these 8- or 16-bit elements, if it exists without packing: an int if all are
        constants, a value if they are the parts of one word, in order."""
    def from_units(self, units: list[Emitted], dtype: DType, n: int) -> list[Emitted]:
        """The elements in the registers of a vector instruction; the inverse of `to_units`."""
    def vector_load(self, space: str, address: Emitted, offset: int, dtype: DType, other: list[Emitted],
                    predicate: Emitted | None, cache: Any, order: str = "") -> list[Emitted]:
        """Load ``len(other)`` consecutive elements by one instruction; where `predicate` is false, the result is
        `other`."""
    def vector_store(self, space: str, address: Emitted, offset: int, dtype: DType, values: list[Emitted],
                     predicate: Emitted | None, cache: Any, order: str = "") -> None:
        """Store consecutive elements by one instruction, where `predicate` is true."""
    def cp_async(self, address: Emitted, offset: int, pointer: Emitted, nbytes: int, cache: str, inside: Emitted | None,
                 active: Emitted | None, *, prefetch: int | None = None, policy: Any = None) -> None:
        """``cp.async`` of `nbytes` by the thread: zero-filled where `inside` is false, not issued where `active` is
        false."""
