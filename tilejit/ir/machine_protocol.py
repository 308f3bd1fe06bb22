"""What `simulate` rules may use of the machine: a protocol for each of its components, and one for the rest.

In the simulator a scalar is an array (B or 1, T or 1): B is the batch of CTAs that run in lock step, T the threads of
the scope instance. A register tile is an array (B or 1, *shape) of the dtype's NumPy type. A leading 1 means that all
CTAs have the same. `tests/test_protocols.py` refuses a rule that uses another name, and mypy a machine that lacks one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ..errors import Loc
from ..types import Buffer, Points, Region, Sym, TensorMap, Tile

if TYPE_CHECKING:
    from .graph import Value

Array: TypeAlias = np.ndarray[Any, Any]
# What rules get from the machine and give back to it; its folder comes after that of the rules.
SimBuffer: TypeAlias = Any  # of sim/values.py, as are the next four
SimRegion: TypeAlias = Any
SimPoints: TypeAlias = Any
SimBarrier: TypeAlias = Any
SimTensorMap: TypeAlias = Any
SimMap: TypeAlias = Any     # of sim/named_maps.py


class Wait:
    """What a simulate rule returns to block: `ready()` gives a bool per CTA of the batch (or one for all).

    The machine asks again whenever anything has changed, and goes on when all CTAs are ready. Its own waits
    (`sim.waits.RowWait`) can be split: then some CTAs go on without the others. `describe()` is the sentence for the
    report of a deadlock. `then()` runs for the CTAs that go on and returns the results.
    """

    def __init__(self, ready: Callable[[], Any], describe: Callable[[], str], then: Callable[[], Any] | None = None):
        self.ready, self.describe, self.then = ready, describe, then


class Divided:
    """What a simulate rule returns if the CTAs of the batch must go on apart: those where `mask` is true, and the
    others. Each part runs the call again."""

    def __init__(self, mask: Array):
        self.mask = mask


class AddressedArrays(Protocol):
    """Arrays that the kernel makes from addresses."""

    def at(self, value: Value, address: Array, numbers: tuple[Array, ...]) -> Any:
        """The array at an address, or a `Divided`; `numbers` are its extents, then its strides."""


class GlobalAccess(Protocol):
    """Accesses of threads to global memory."""

    def inside(self, buffer: SimBuffer, d: int, c: Array) -> Array:
        """Whether coordinates along dimension `d` are inside a global buffer or window."""


class SharedAccess(Protocol):
    """Accesses of threads to shared memory."""

    def in_buffer(self, region: SimRegion, starts: tuple[Any, ...] | None = None) -> bool:
        """Whether a region that the hardware accesses without clipping lies inside its buffer; if not, it is a
        finding."""


class OrderedAccess(Protocol):
    """Atomics, ordered accesses and fences of global memory."""

    def atomic(self, buffer: SimBuffer, coords: tuple[Any, ...], kind: str, values: Any, compare: Any = None,
               mask: Any = None, *, owner: Any = None, order: str | None = 'acq_rel', scope: str = 'gpu',
               need_old: bool = True) -> Array | None:
        """Read, modify and write elements one after the other, CTA by CTA and element by element."""
    def read(self, buffer: SimBuffer, coords: tuple[Any, ...], other: Any, mask: Any, owner: Any, sem: str, scope: str,
             alone: bool = False) -> Array:
        """Read elements of global memory by relaxed or acquiring loads, with the arguments of `read`."""
    def write(self, buffer: SimBuffer, coords: tuple[Any, ...], values: Any, mask: Any, owner: Any, sem: str,
              scope: str, alone: bool = False) -> None:
        """Write elements of global memory by relaxed or releasing stores, with the arguments of `write`."""
    def threadfence(self, scope: str = "gpu", in_order: bool = False) -> None:
        """``fence.acq_rel`` at `scope`, or `in_order` ``fence.sc``: relaxed atomics before and after it then
        synchronise CTAs."""


class Synchronisation(Protocol):
    """Barriers of scopes, hardware barriers, the cluster's barrier, and fences."""

    def scope(self) -> None:
        """The barrier of the current scope."""
    def groups(self, group: Array) -> None:
        """A barrier of the threads with the same number in `group`, (B or 1, T); those with -1 take no part."""
    def collective(self, what: str) -> None:
        """Check that all threads of the scope take part in a collective operation."""
    def named_barrier(self, number: Any, threads: int, index: Any = 0) -> Wait:
        """Arrive at a hardware barrier for `threads` threads, number `index` of those named `number`, and wait for all
        of them."""
    def named_arrive(self, number: Any, threads: int, index: Any = 0, count: int | None = None) -> Array:
        """Let `count` threads (by default those of the scope) arrive at a hardware barrier without waiting."""
    def cluster_arrive(self, relaxed: bool = False) -> None:
        """Arrive at the cluster barrier."""
    def cluster_wait(self) -> Wait:
        """Wait until all threads of the cluster have arrived."""
    def set_registers(self, count: int) -> Wait:
        """``setmaxnreg``: let each thread of the scope's warpgroups have `count` registers, and wait until the CTA has
        that many left."""
    def fence_proxy_async(self, space: str = "shared") -> None:
        """``fence.proxy.async``: order the threads' ordinary accesses so far to the CTA's shared memory, to the
        cluster's (`space` "cluster"), to global memory ("global") or to all of these ("all") before accesses through
        the async proxy after the next barrier."""
    def fence_mbarrier_init(self) -> None:
        """Make initialised mbarriers visible to other CTAs and the async proxy."""
    def griddepcontrol_wait(self) -> None:
        """Wait for the preceding grids."""
    def griddepcontrol_launch_dependents(self) -> None:
        """Let the next grid start."""


class Barriers(Protocol):
    """mbarriers."""

    def array(self, value: Any, n: int = 1, counts: Any = 1) -> SimBarrier:
        """The `n` barriers of an allocation, initialised and visible to the whole cluster."""
    def init(self, barrier: SimBarrier, count: Array) -> None:
        """Initialise a barrier, (B or 1, 1) arrivals."""
    def in_memory(self, slots: Array, peer: Array | None) -> SimBarrier:
        """The mbarrier at byte ``8 * slots``, (B or 1, 1), of shared memory."""
    def at(self, barrier: SimBarrier, index: Any, rank: Any = None) -> SimBarrier:
        """One of several barriers, by its index; of this CTA, or of the cluster's CTA `rank`."""
    def phases(self, barrier: SimBarrier) -> tuple[Array, Array]:
        """The number of completed phases and of pending arrivals, (B, 1) each."""
    def invalidate(self, barrier: SimBarrier) -> None:
        """Invalidate a barrier."""
    def arrive(self, barrier: SimBarrier, n: Any = 1, alone: bool = False) -> None:
        """Arrive for the scope with `n` arrivals (in a partial scope, `n` for each active thread)."""
    def arrive_each(self, barrier: SimBarrier, n: Array, relaxed: bool = False, drop: bool = False,
                    completes: bool = True) -> None:
        """Arrive with each active thread, (B or 1, 1) times in all."""
    def expect_tx(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Announce bytes for the current phase."""
    def announce(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Announce bytes for the scope (in a partial scope, `nbytes` for each active thread)."""
    def complete_tx(self, barrier: SimBarrier, nbytes: Any) -> None:
        """Count bytes of the current phase as arrived."""
    def arrive_expect_tx(self, barrier: SimBarrier, nbytes: Any, n: Any = 1) -> None:
        """Announce bytes, then arrive."""
    def peek(self, barrier: SimBarrier, parity: Any) -> Array:
        """A test that counts as the wait that it may replace."""
    def test(self, barrier: SimBarrier, parity: Any) -> Array:
        """Whether the phase of that parity is over, (B, 1)."""
    def wait(self, barrier: SimBarrier, parity: Any) -> Wait:
        """Wait until the phase of that parity (any integer, mod 2) is over."""


class Engines(Protocol):
    """Asynchronous operations: groups of copies, and ``cp.async``."""

    def commit(self, queue: str) -> None:
        """``commit_group``: close the open group of each thread of the scope."""
    def wait_groups(self, queue: str, n: int, read: bool = False) -> None:
        """``wait_group``: wait until at most the last `n` groups of each thread are pending."""
    def bulk_commit(self) -> None:
        """``cp.async.bulk.commit_group``."""
    def bulk_wait(self, n: int = 0, read: bool = False) -> None:
        """``cp.async.bulk.wait_group``: the destinations are written, or with `read` only the sources read."""
    def cp_async(self, dst: SimBuffer, dst_offsets: Array, src: SimBuffer, src_offsets: Array, nbytes: int,
                 valid_bytes: Any = None, *, valid: Any = None, active: Any = None) -> None:
        """``cp.async``: each thread copies `nbytes` bytes per offset from global to shared memory."""
    def cp_async_commit(self) -> None:
        """``cp.async.commit_group`` in every thread of the scope."""
    def cp_async_wait(self, n: int | None = 0) -> None:
        """``cp.async.wait_group n`` in every thread of the scope; ``wait_all`` for None."""
    def cp_async_arrive(self, barrier: SimBarrier, noinc: bool = False) -> None:
        """``cp.async.mbarrier.arrive``: each thread arrives when all its copies issued so far have landed."""


class TensorCopies(Protocol):
    """Bulk tensor copies."""

    def load(self, map_: SimTensorMap, coords: tuple[Any, ...], dst: SimBuffer, dst_byte_offset: Any,
             barrier: SimBarrier, *, mode: str = 'tile', offsets: Any = (), multicast: Any = None, paired: bool = False,
             positions: Array | None = None) -> None:
        """Load the box at `coords` (innermost first, (B or 1, 1) each) to `dst`; its bytes complete on `barrier`."""
    def store(self, map_: SimTensorMap, coords: tuple[Any, ...], src: SimBuffer, src_byte_offset: Any, *,
              mode: str = "tile", kind: str | None = None, positions: Array | None = None) -> None:
        """Store shared memory to the box at `coords`, clipped to the map's bounds; with a `kind` (add, min, max, inc,
        dec, and, or, xor), combine it with the elements there."""
    def prefetch(self, map_: SimTensorMap, coords: tuple[Any, ...], mode: str = "tile", offsets: Any = ()) -> None:
        """Prefetch a box to L2."""


class BulkCopies(Protocol):
    """Bulk copies without a tensor map."""

    def peer_buffer(self, type_: Buffer, buffer: SimBuffer, rank: Array) -> SimBuffer:
        """The same buffer in CTA `rank` of the cluster."""
    def copy(self, dst: SimBuffer, dst_byte_offset: Any, src: SimBuffer, src_byte_offset: Any, nbytes: Any,
             barrier: SimBarrier | None = None, *, multicast: Any = None, kind: str | None = None,
             dtype: np.dtype[Any] | None = None, byte_mask: Any = None, positions: Array | None = None) -> None:
        """Copy `nbytes` contiguous bytes between global and shared memory, or to the shared memory of another CTA."""


class RemoteStores(Protocol):
    """``st.async`` and ``red.async``."""

    def store(self, buffer: SimBuffer, coords: tuple[Any, ...], values: Array, barrier: SimBarrier, *,
              owner: Any = None, kind: str | None = None) -> None:
        """Write (or with a `kind`, combine) elements of a peer's shared memory."""


class NamedMaps(Protocol):
    """Tensor maps that the kernel names or edits."""

    def named_map(self, type_: TensorMap, array: SimBuffer, slot: SimRegion | None, shared: SimBuffer | None) -> SimMap:
        """A map by name, with its slot."""
    def in_memory(self, place: SimRegion) -> SimMap:
        """The map in 128 bytes of global or shared memory, for instructions that name it by its address."""
    def seed(self, map_: SimMap) -> None:
        """Set the slot to the map that the launch has encoded."""
    def rebind(self, map_: SimMap, place: Any, *numbers: Any) -> None:
        """Set a new address, dimensions and strides."""
    def replace(self, map_: SimMap, shared: bool, name: str, index: int | None, value: Any) -> None:
        """``tensormap.replace``: set one field of a map, by each thread of the scope."""
    def release(self, map_: SimMap, scope: str) -> None:
        """``fence_release``: release the edits that the scope's threads made to the map."""
    def release_all(self, scope: str) -> None:
        """The release fence as an instruction: release all edits that the scope's threads have made to any map."""
    def publish(self, map_: SimMap, scope: str) -> None:
        """Copy the map in shared memory to its slot and release it, between two barriers of the scope."""
    def copy_map(self, to: SimMap, source: SimMap, scope: str) -> None:
        """A warp copies all 128 bytes of a map in shared memory to a slot and releases it."""
    def acquire(self, map_: SimMap, scope: str) -> None:
        """``fence_acquire``: the copies that follow see the released edits."""
    def prefetch(self, map_: SimMap) -> None:
        """Prefetch the map."""
    def open_map(self, map_: SimMap, positions: Array | None) -> AbstractContextManager[Any]:
        """The maps for a copy: [(map, the positions in the batch that it is for)]."""


class TensorCores(Protocol):
    """Products of warps and warpgroups."""

    def wgmma(self, plan: Any, call: Any, acc: Array | None, a: Any, b: Any) -> Array:
        """``acc + a @ b`` by wgmma."""
    def multiply(self, acc: Array | None, a: Array, b: Array, k: int, t: Tile) -> Array:
        """``acc + a @ b`` for tiles (B, m, k) and (B, k, n), by instructions that take `k` elements along k."""


class TensorMemory(Protocol):
    """Tensor memory."""

    def buffer(self, value: Any) -> SimBuffer:
        """The buffer of an allocation, at the graph's place for it."""
    def deallocate(self, buffer: SimBuffer) -> None:
        """``tcgen05.dealloc``: reports operations still in flight there; later uses are findings."""
    def fence(self, side: str) -> None:
        """``tcgen05.fence`` in every thread of the scope."""
    def wait(self, what: str) -> None:
        """``tcgen05.wait::ld`` or ``tcgen05.wait::st`` in every warp of the scope."""
    def commit(self, barrier: SimBarrier, mask: Any = None) -> None:
        """``tcgen05.commit``: arrive on the barrier, or on the same barrier in each CTA of the mask `mask`, when the
        operations are complete."""
    def load(self, plan: Any, call: Any, region: Any) -> Array:
        """``tcgen05.ld``: returns what is in memory now; the source counts as being read until the wait."""
    def store(self, plan: Any, call: Any, region: Any, values: Array) -> None:
        """``tcgen05.st``: writes at once; the destination counts as being written until the wait."""


class PairOperations(Protocol):
    """``tcgen05.cp``, by one CTA or a pair of them."""

    def copy(self, plan: Any, dst: Any, src: Any) -> None:
        """Issue all copies of a plan as one operation of the thread."""


class TensorProducts(Protocol):
    """``tcgen05.mma``."""

    def issue(self, plan: Any, acc: Any, a: Any, b: Any, accumulate: Any, *scales: Any) -> None:
        """Issue all instructions of a plan as one operation of the thread, on its CTA or its pair."""


class Host(Protocol):
    """Calls of Python's own functions, with NumPy arrays of what the kernel holds."""

    def print(self, call: Any, values: tuple[Any, ...], text: Callable[[tuple[Any, ...]], str]) -> None:
        """Print what `text` makes of the operands, for each CTA."""
    def stop(self, call: Any, values: tuple[Any, ...], names: Callable[[tuple[Any, ...]], dict[str, Any]]) -> None:
        """Call ``breakpoint()`` for each CTA, from code that has the place of the call in the kernel and the names that
        `names` makes of the operands."""


class Machine(Protocol):
    """One scope instance of a batch of CTAs, as `simulate` rules see it. `sim.machine.Machine` implements it."""

    @property
    def batch(self) -> int:
        """B, the number of CTAs."""
    @property
    def threads(self) -> int:
        """T, the threads of this scope instance."""
    @property
    def grid(self) -> tuple[int, int, int]:
        """The number of CTAs per axis; of programs, if CTAs run several."""
    @property
    def low(self) -> int:
        """The id of the first thread in its CTA."""
    @property
    def rank(self) -> int:
        """The rank of the CTAs in their clusters."""
    @property
    def sim(self) -> Any:
        """The simulation that the machine is part of, a `sim.chunk.Chunk`."""
    @property
    def arrays(self) -> AddressedArrays: ...
    @property
    def global_memory(self) -> GlobalAccess: ...
    @property
    def shared(self) -> SharedAccess: ...
    @property
    def ordered(self) -> OrderedAccess: ...
    @property
    def sync(self) -> Synchronisation: ...
    @property
    def barriers(self) -> Barriers: ...
    @property
    def engines(self) -> Engines: ...
    @property
    def tma(self) -> TensorCopies: ...
    @property
    def bulk(self) -> BulkCopies: ...
    @property
    def remote(self) -> RemoteStores: ...
    @property
    def maps(self) -> NamedMaps: ...
    @property
    def tensor_cores(self) -> TensorCores: ...
    @property
    def tmem(self) -> TensorMemory: ...
    @property
    def pair_operations(self) -> PairOperations: ...
    @property
    def tensor_products(self) -> TensorProducts: ...
    @property
    def host(self) -> Host: ...
    @property
    def active(self) -> Array:
        """The threads that take part, (B or 1, T)."""
    def only(self, mask: Array) -> AbstractContextManager[None]:
        """A context in which only those of the active threads act for which `mask` (B or 1, T) is true."""
    @property
    def ctas(self) -> Array:
        """Linear ids of the CTAs in the grid, (B,)."""
    def program_id(self, axis: int) -> Array:
        """The CTA's index in the grid along an axis, (B, 1); (1, 1) if the grid has extent 1 there."""
    def cluster_id(self, axis: int) -> Array:
        """The index of the CTA's cluster in the grid along an axis, (B, 1) or (1, 1)."""
    @property
    def cluster_rank(self) -> Array:
        """The CTA's rank in its cluster, (1, 1)."""
    @property
    def cluster_size(self) -> int:
        """The number of CTAs of a cluster."""
    def thread_ids(self) -> Array:
        """Absolute ids of the threads, (1, T)."""
    def resolve(self, n: int | Sym | tuple[Any, ...]) -> int:
        """The value of a number known at launch: an int, a symbol, or an expression such as ("mul", ("size", 0, 1),
        4)."""
    @property
    def loc(self) -> Loc | None:
        """The source location of the current call."""
    def finding(self, kind: str, message: str, *, loc: Loc | None = None, threads: tuple[Any, ...] = (),
                ctas: Any = None, bytes: tuple[int, int] | None = None, other: Loc | None = None) -> None:
        """Report a fault at `loc`, by default at the current call."""
    def assertion(self, message: str, failed: Array) -> None:
        """Report that something the kernel asserts or assumes does not hold in the CTAs where `failed` (B or 1,) is
        true."""
    def mark_range(self, name: str, begins: bool) -> None:
        """A named range begins or ends."""
    def print(self, text: str, values: tuple[Any, ...], once: bool) -> None:
        """Print a line for each active thread of each CTA, or with `once` for the first one:"""
    def print_tile(self, text: str, value: Array) -> None:
        """Print `text` and a tile for each CTA, as NumPy prints it, without leaving any element out."""
    def alloc_shared(self, value: Any, type_: Buffer | None = None, byte_offset: int | None = None) -> SimBuffer:
        """The buffer of an allocation in shared memory, at the graph's offset for it unless `byte_offset` is given."""
    def make_region(self, type_: Region, buffer: SimBuffer, starts: tuple[Any, ...]) -> SimRegion:
        """A region of a buffer."""
    def make_points(self, type_: Points, buffer: SimBuffer, indices: tuple[Any, ...]) -> SimPoints:
        """Points of a buffer."""
    def tensor_map(self, buffer: SimBuffer, fields: Any, base: int = 0) -> SimTensorMap:
        """The tensor map with the fields that a plan gives, over a global buffer from byte `base` on."""
    def run_network(self, values: list[Array], steps: Sequence[Any], kept: int) -> list[Array]:
        """Sort the last axis of `values` by the `steps` of a network, and keep its lowest ``2**kept`` elements."""
    def add_products(self, acc: Array, x: Array, y: Array) -> Array:
        """``acc + x @ y`` for tiles of one dtype, (B or 1, m, k) and (B or 1, k, n): by a product and a sum for each k
        in turn, both rounded."""
    def owners(self, tile: Tile) -> Array | None:
        """For each element of a tile, the thread of the scope that holds it (its first replica); None for a tile
        without a layout."""
    def read(self, buffer: SimBuffer, coords: tuple[Any, ...] | None, *, mask: Any = None, other: Any = 0,
             owner: Any = None, bounds: bool = True, region: SimRegion | SimPoints | None = None, atomic: bool = False,
             tile: Tile | None = None) -> Array:
        """Read elements of a buffer at `coords`: one integer array per dimension, broadcastable to (B or 1, *shape)."""
    def write(self, buffer: SimBuffer, coords: tuple[Any, ...] | None, values: Array, *, mask: Any = None,
              owner: Any = None, bounds: bool = True, region: SimRegion | SimPoints | None = None,
              atomic: bool = False) -> None:
        """Write elements of a buffer, with the arguments of `read`."""
