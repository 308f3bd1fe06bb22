"""The faulty kernels of tests/sim in a form that can be launched on a GPU, each with its repaired twin: `FAULTS`. `HIDDEN` has those of which a GPU
shows nothing, with the reason.

To add a kernel, add a line to `FAULTS`: ``fault(kernel, twin, *arguments)``, or ``fault(kernel, dict(FENCE=True), *arguments, FENCE=False)`` if the
twin is the same kernel with other constants. What the twin computes on the simulator is what the faulty kernel should compute on the GPU; where the
two do different things, ``expect={number of the argument: array}`` says it. A test asks for every kernel with a mark ``# finds:`` in the modules of
`MODULES`, so that none is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import test_async_copies as copies
import test_barriers as barriers
import test_causes as causes
import test_clusters as clusters
import test_global_races as races
import test_global_thread_races as threads
import test_grid_order as order
import test_odd_corners as corners
import test_parted_threads as parted
import test_refills as refills
import test_shared_races as shared
import test_shown_on_the_chip as chip

MODULES = (copies, barriers, causes, clusters, shared, races, threads, corners)


@dataclass(frozen=True)
class Side:
    """A kernel with its constants, and what it should leave in its arguments, by their numbers; None: what it leaves on the simulator."""

    kernel: object
    constants: dict
    expect: dict[int, np.ndarray] | None = None


@dataclass(frozen=True)
class Fault:
    """A faulty kernel, its repaired twin (None: there is none), and the arguments and the number of CTAs of a launch.

    On a GPU, `ctas` CTAs are launched, if it is not 0. They write the same values to the same places, or, if `stacked` is the number of an argument,
    each `grid` of them to a part of its own."""

    name: str
    faulty: Side
    twin: Side | None
    arguments: tuple
    grid: int
    ctas: int
    stacked: int | None

    @cached_property
    def on_gpu(self) -> list:
        """The arguments of a launch on a GPU."""
        parts = self.ctas // self.grid
        return [np.concatenate([a] * parts) if n == self.stacked and parts else a for n, a in enumerate(self.arguments)]

    @cached_property
    def from_twin(self) -> dict[int, np.ndarray]:
        """The arrays after a run of the twin on the simulator, which must find nothing."""
        arrays = [a.copy() if isinstance(a, np.ndarray) else a for a in self.arguments]
        report = self.twin.kernel.simulate((self.grid,), *arrays, **self.twin.constants)
        assert not report.findings, f"the twin of {self.name}: {report}"
        return {n: a for n, a in enumerate(arrays) if isinstance(a, np.ndarray)}

    def wrong(self, side: Side, jitter: int | None) -> bool:
        """Launch on the GPU, and compare."""
        import tilejit as tile
        there = [tile.to_device(a) if isinstance(a, np.ndarray) else a for a in self.on_gpu]
        side.kernel[self.ctas or self.grid,](*there, **side.constants, jitter=jitter)
        after = {n: x.numpy() for n, x in enumerate(there) if isinstance(self.on_gpu[n], np.ndarray)}  # this waits for the kernel
        for n, want in (self.from_twin if side.expect is None else side.expect).items():
            got = after[n]
            if n == self.stacked:
                got, want = got.reshape(-1, *want.shape), want[None]
            if not (got == want).all():
                return True
        return False


def fault(kernel, twin, *arguments, grid=1, expect=None, twin_constants=None, ctas=0, stacked=None, **constants) -> Fault:
    """A line of the catalogue. `twin` is the repaired kernel (with `twin_constants`, or the same constants), or the constants that repair
    this one."""
    words = [kernel.name, *(f"{n.lower()}={getattr(v, 'name', v)}" for n, v in constants.items())]
    if isinstance(twin, dict):
        other = Side(kernel, {**constants, **twin})
    else:
        other = None if twin is None else Side(twin, constants if twin_constants is None else twin_constants)
    return Fault(" ".join(words), Side(kernel, constants, expect), other, arguments, grid, ctas, stacked)


def at_top(like: np.ndarray, rows) -> np.ndarray:
    """Zeros of the shape of `like`, with `rows` as the first rows or elements."""
    whole = np.zeros_like(like)
    whole[:len(rows)] = rows
    return whole


A, B = copies.A, copies.B
ROWS, OUT = barriers.A, barriers.B
X, Y = races.X, races.Y
LONG, EMPTY = X[:256], Y[:256]
PEERS = clusters.A
NUMBERS = np.arange(16, dtype=np.int32)
PART = np.zeros(8, np.float32)
COUNTER = np.zeros(1, np.int32)

FAULTS: list[Fault] = [
    # copies by threads
    fault(copies.unwaited_group, copies.waited_group, A, B),
    fault(copies.unsynced_group, copies.waited_group, A, B, expect={1: at_top(B, A[1:])}),
    fault(copies.wrong_group_count, copies.right_group_count, A, B),
    fault(barriers.copies_after_the_arrival, barriers.copies_on_a_barrier, ROWS, OUT),
    fault(barriers.copies_on_a_barrier_unfenced, barriers.copies_on_a_barrier_for_the_engine, ROWS, OUT),
    # copies by the engines
    fault(copies.load_unwaited, copies.load_waited, A, B),
    fault(copies.load_waited_by_one_warp, copies.load_waited, A, B),
    fault(copies.one_of_two_barriers, copies.both_barriers, A, B),
    fault(copies.store_unfenced, copies.store_fenced, A, B, ctas=264),
    fault(copies.store_fenced_by_one, copies.store_fenced, A, B, ctas=264),
    fault(copies.store_unsynced, copies.store_fenced, A, B, ctas=264),
    fault(copies.source_reused, copies.source_freed, A, np.zeros((128, 64), np.float32)),
    fault(corners.filled_again, None, ROWS, OUT, expect={1: at_top(OUT, np.pad(ROWS[:2, :64], ((0, 0), (0, 192))))}),
    fault(corners.filled_too_early, None, ROWS, OUT, expect={1: at_top(OUT, np.pad(ROWS[:1, :64], ((0, 0), (0, 192))))}),
    fault(barriers.inverted_parity, barriers.asks_and_counts, ROWS, OUT),
    fault(barriers.computes_and_does_not_wait, None, ROWS, OUT, expect={1: at_top(OUT, ROWS[1:2])}),
    fault(causes.reads_each_slot_without_a_wait, None, ROWS, OUT, expect={1: at_top(OUT, ROWS[:3])}),
    fault(causes.reads_each_slot_behind_a_wait_that_passes_at_once, None, ROWS, OUT, expect={1: at_top(OUT, ROWS[:3])}),
    # barriers and roles
    fault(barriers.ring_that_never_flips, barriers.ring, ROWS, OUT, 8, twin_constants=dict(STAGES=2)),
    fault(barriers.ring_without_empty_wait, barriers.ring, ROWS, OUT, 4, twin_constants=dict(STAGES=2)),
    fault(barriers.ring_released_before_the_read, barriers.ring, ROWS, OUT, 8, twin_constants=dict(STAGES=2)),
    fault(barriers.waits_for_two, None, OUT, expect={}),
    fault(barriers.disagreeing_roles, None, ROWS, OUT, 4, 5, expect={}),
    fault(barriers.ring_whose_consumer_leaves, None, ROWS, OUT, expect={}),
    fault(barriers.ring_whose_producer_leaves, None, ROWS, OUT, expect={}),
    fault(barriers.arrival_forgotten, None, OUT, expect={}),
    fault(barriers.counts_for_ever, None, OUT, expect={}),
    fault(causes.forgets_the_last_copy, None, ROWS, OUT, 6, expect={}),
    fault(causes.never_gives_back, None, ROWS, OUT, grid=2, expect={}),
    fault(causes.waits_for_the_next_phase, dict(AHEAD=0), ROWS, OUT, grid=2, AHEAD=1),
    fault(corners.all_must_meet, None, ROWS, np.zeros((2, 128), np.float32), expect={}),
    # clusters
    fault(clusters.read_a_peer_unsynced, clusters.read_a_peer, PEERS, clusters.B, grid=2, expect={1: at_top(clusters.B, PEERS[1:2])}),
    fault(clusters.push_to_the_wrong_barrier, None, PEERS, clusters.B, grid=2, expect={}),
    fault(clusters.multicast_ring_for_itself, clusters.multicast_ring, PEERS, np.zeros((2, 3, 4, 128), np.float32), grid=2),
    fault(clusters.one_cta_stays_away, None, PEERS, grid=4, expect={}),
    fault(clusters.sends_unfenced, clusters.sends_what_the_peer_s_engine_stores, PEERS[:2], clusters.B[:2], grid=2),
    # ordinary accesses of shared memory
    fault(shared.unsynced_shift, shared.synced_shift, LONG, EMPTY),
    fault(shared.loop_without_second_barrier, shared.loop_with_second_barrier, LONG, np.zeros((3, 256), np.float32)),
    fault(shared.two_warps, shared.two_warps_synced, LONG, EMPTY),
    fault(shared.written_after_arrival, shared.through_a_barrier, LONG, EMPTY),
    fault(shared.counts_beside_the_zeros, None, LONG, EMPTY, expect={1: at_top(EMPTY, np.full(8, 4))}),
    fault(shared.one_thread_each_unsynced, shared.one_thread_each, LONG, EMPTY),
    # global memory
    fault(races.overlapping_writes, None, X, Y, grid=4, expect={1: at_top(Y, X[:513])}),
    fault(races.read_of_anothers_write, None, X, Y, grid=4, expect={0: np.concatenate([X[128:512], np.zeros(128), X[512:]])}),
    fault(races.in_place_with_halo, None, X, grid=8, expect={0: X + np.append(X[1:], 0)}),
    fault(races.overwritten_by_a_reader, None, X, np.tile(np.arange(128, dtype=np.int32), 4), Y, grid=4,
          expect={2: at_top(Y, np.tile(X[:128], 4))}),
    fault(races.last_block_unfenced, races.last_block_fenced, X[:8], PART, COUNTER, np.zeros(1, np.float32), grid=8),
    fault(races.last_block_without_counter, races.last_block, X[:8], PART, COUNTER, np.zeros(1, np.float32), grid=8, expect={3: np.float32([56])}),
    fault(races.spins_for_ever, None, COUNTER, np.zeros(1, np.float32), grid=2, expect={}),
    *(fault(races.released_by_one_thread, dict(MEET=True), X[:64], Y[:64], COUNTER, Y[:64], grid=2, ATOMIC=atomic, FENCE=fence, MEET=False)
      for atomic in (False, True) for fence in (False, True)),
    *(fault(races.acquired_by_one_thread, dict(MEET=True), X[:64], Y[:64], COUNTER, Y[:65], grid=2, HOW=how, MEET=False)
      for how in ("load", "fence")),
    fault(threads.shifted_read, threads.shifted_read_after_sync, X, Y, Y),
    fault(threads.rows_shifted_read, threads.rows_shifted_read_after_sync, X.reshape(4, 256), Y.reshape(4, 256), Y.reshape(4, 256), grid=4),
    fault(threads.smoothed_in_place, threads.smoothed_in_place_after_sync, X),
    fault(threads.written_twice, threads.written_twice_with_a_barrier, X, Y),
    fault(threads.in_loops, threads.in_loops_with_both_barriers, X, 5),
    fault(threads.scalar_for_all, threads.scalar_for_all_after_sync, X, Y),
    fault(threads.transposed_in_place, threads.transposed_in_place_after_sync, X.reshape(32, 32)),
    fault(threads.between_warpgroups, threads.between_warpgroups_by_mbarrier, X, Y, Y),
    fault(threads.counted_from_zero, threads.counted_from_zero_after_sync, np.ones(128, np.int32), COUNTER),
    fault(threads.beyond_the_cluster, None, X.reshape(8, 128), Y.reshape(8, 128), Y.reshape(8, 128), grid=8, expect={2: X.reshape(8, 128)[::-1]}),
    # refills behind reads without a fence; the others of that module refill with the same values, or keep only the last
    fault(refills.full_and_empty, dict(FENCE=True), refills.A, np.zeros_like(refills.A), 5, ctas=264, WARPS=4, FENCE=False),
    fault(refills.by_turns, dict(FENCE=True), refills.A, np.zeros_like(refills.A), 4, ctas=264, FENCE=False),
    fault(refills.by_named_barriers, dict(FENCE=True), refills.A, np.zeros_like(refills.A), 4, ctas=264, FENCE=False),
    # what some threads do, which does not count for others
    fault(parted.handed_over, dict(ONE=False), ROWS, OUT, SYNC=True, ONE=True),
    # not SYNC=False, ONE=False: a warp's stores are in order before the arrival of its lane 0
    fault(parted.sent, dict(MINE=True), parted.A, parted.B, parted.B, MINE=False),
    *(fault(parted.published, dict(SYNC=True), parted.A, parted.B, parted.B, parted.FLAG, grid=2, WHO=who, NEED=need, HOW=how, SYNC=False)
      for who, need, how in ((parted.one_thread, 1, "release"), (parted.one_thread, 1, "store"), (parted.first_lanes, 4, "relaxed"))),
    *(fault(parted.taken, dict(SYNC=True), parted.A, parted.B, parted.B, parted.FLAG, grid=2, RELAXED=relaxed, SYNC=False)
      for relaxed in (False, True)),
    fault(parted.counted_by_two, dict(FENCE=True), parted.A, parted.B, FENCE=False, COPY=False),
    fault(parted.counted_by_two, dict(FENCE=True), parted.A, parted.B, FENCE=False, COPY=True),
    fault(parted.another_s, dict(SYNC=True), parted.A, parted.B, SYNC=False),
    # what threads release and acquire
    fault(order.passed_on, dict(SYNC=True), order.A, order.B, order.B, order.FLAGS, grid=3, SYNC=False),
    fault(order.fenced_by, dict(READER=True), order.A, order.B, order.B, order.FLAGS, grid=2, READER=False),
    fault(order.loaded_behind, dict(AFTER=True), order.A, order.B, order.B, order.FLAGS, grid=2, AFTER=False),
    fault(order.released_in_parts, dict(BOTH=True), order.B, order.B, order.FLAGS, grid=2, BOTH=False),
    fault(order.polled_by_warps, dict(HOW="acquire"), order.A, order.B, order.B, order.FLAGS, grid=2, HOW="no barrier", ROUNDS=12),
    *(fault(order.met_by_the_grid, dict(MISSING=0), order.A, order.B, order.B, order.FLAGS, grid=8, MISSING=missing, HOW=how)
      for missing in (1, 3) for how in ("load", "fence")),
    fault(order.read_by_the_last, dict(FENCE=True), np.ones((8, 128), np.int32), order.FLAGS, order.B, grid=8, FENCE=False),
    fault(order.read_beside_the_release, dict(SYNC=True), order.A, order.B, order.FLAGS, grid=2, SYNC=False),
    fault(order.beside_a_flag, dict(SYNC=True), order.A, order.B, order.FLAGS, COND=True, SYNC=False),
    fault(order.swapped_behind_a_flag, dict(SYNC=True), order.A, order.FLAGS, SYNC=False),
    fault(order.handed_over_by_a_flag, dict(HOW="release"), order.A, order.B, order.B, order.FLAGS, HOW="relaxed"),
    # not counted_in_between: each warp has its values before it can store others
    fault(order.announced_by_two, dict(BYTES=64), order.A, order.B, BYTES=128),
    fault(order.each_its_parity, dict(PARITY=0), order.A, order.B, PARITY=1),
    fault(order.asked_once, dict(WAIT=True), order.A, order.B, WAIT=False),
    # made for the GPU
    *(fault(kernel, repaired, chip.A, chip.output_of(kernel), chip.BLOCKS, grid=len(chip.output_of(kernel)), ctas=528, stacked=1, **faulty)
      for kernel, faulty, repaired, kinds in chip.FAULTS),
]

_ANYTHING = "memory that nobody has written may hold anything, also what would be right"
_NO_COPY = "uses an engine by an operation that only the simulator has"
HIDDEN = {
    copies.load_never_waited: "nobody uses what it loads; that the CTA may end first is rare and harms another kernel",
    copies.one_element_too_few: _NO_COPY + "; the compiler refuses such a count where it is known",
    copies.one_element_too_many: _NO_COPY + "; the compiler refuses such a count where it is known",
    copies.operand_forgotten: _NO_COPY + "; the compiler refuses such a count where it is known",
    copies.store_unwaited: "shared memory of a CTA that has ended is given to another CTA only; the copy is far ahead of that",
    copies.mma_unfenced: _NO_COPY + " (multiplied shows it)",
    copies.mma_overwritten: _NO_COPY + " (multiplied shows it)",
    copies.bulk_of_24_bytes: _NO_COPY,
    barriers.one_arrival_too_many: "what more arrivals than the count do is undefined; the phase completes all the same",
    barriers.handover_short_of_threads: _NO_COPY,
    clusters.arrives_again: "undefined, and it has no output",
    clusters.ends_without_a_wait: "undefined, and it has no output",
    shared.never_written: _ANYTHING,
    shared.counts_from_nothing: _ANYTHING,
    shared.overlapping_slices: "either order of the two stores is as good: there is no right value",
    shared.out_of_bounds: "reads what lies behind its buffer: nothing there is right",
    races.all_write_one: "all write the same value",
    races.copied_ahead: "either order of the load and the store is as good: there is no right value",
    races.tensor_stores_that_overlap: "both write the same values",
    threads.stored_whole: "needs an array whose elements alias, which a device array cannot be",
    threads.stored_windows: "needs an array whose elements alias, which a device array cannot be",
    corners.partial_access_unwritten: _ANYTHING,
    parted.refilled: "refills once, at the kernel's end (one_buffer and slots show it, with fences of some threads)",
    parted.waited: "memory that nobody has written holds what the launch before left there, which is right (by_cp_async and slots show it)",
    parted.overwritten: "a thread has its value before it can store it, and stores it before the barrier",
    corners.counts_for_ever: "ptxas may remove a loop without an effect",
}
