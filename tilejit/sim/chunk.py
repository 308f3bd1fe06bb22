"""A chunk of the grid: its memories, worlds and fibers, and the scheduler that runs the fibers to completion."""

from __future__ import annotations

from itertools import count
from time import monotonic
from typing import Any

import numpy as np

from ..concurrency import cached_property
from ..errors import Loc, TileError, warn
from ..ir.graph import Const, While
from ..layout import axis
from ..types import Tile, domain_of, layout_of
from .addressed_arrays import AddressSpace
from .fiber import Fiber, Frame
from .flight import NEVER, Flight
from .global_clocks import GlobalClocks
from .memory import SharedMemory, TensorMemory
from .program import Program
from .report import Report
from .shadow import MANY
from .vector_clocks import Clocks
from .verdicts import Verdicts
from .world import AsyncOp, World

BUDGET = 20000      # nodes that a fiber executes before the next one has its turn
PATIENCE = 4_000_000  # nodes that may execute without any effect before the kernel counts as hanging
SLICE = 500         # nodes after which the clock is looked at
NOTICE = 5.0        # seconds in one while loop after which a warning says where that is
# after this many, a copy lands if a thread has polled meanwhile: a loop with an iteration limit may wait for it
LULL = 100_000


THREADS = {axis.laneid: 1, axis.warpid: 32, axis.wgid: 128, axis.tid: 1}  # threads per unit of an axis


class Steps:
    """How many nodes a simulation may still execute, and whether it has said that it has been in a loop for long."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self.left: Any = float("inf") if limit is None else limit  # an int, if there is a limit
        self.said = False

    def notice(self, fiber: Fiber) -> None:
        """Warn, once, of a while loop that a fiber has been in for NOTICE seconds."""
        now = monotonic()
        for frame in fiber.frames if not self.said else ():
            if frame.since is None:
                frame.since = now
            elif isinstance(frame.node, While) and now - frame.since > NOTICE:
                self.said = True
                place = frame.node.loc
                warn(f"the simulator has been in the loop at line {place.line if place else '?'} for {NOTICE:.0f} "
                     "seconds; if it never ends, max_steps= stops the simulation after so many operations"
                     + (f"\n{place.render()}" if place else ""))


class Launched:
    """What a launch runs: the grid of `programs`, by a grid of `ctas`, which is the same unless CTAs take several in
    turn."""

    def __init__(self, ctas: tuple[int, int, int], programs: tuple[int, int, int]):
        self.ctas, self.programs = ctas, programs
        self.taken = ctas[0]  # programs that a CTA has begun with or taken, as it asks for another

    def take(self, asking: np.ndarray) -> np.ndarray:
        """The next program's number for each of the CTAs that ask, (B, 1)."""
        asking = asking.astype(np.int32)
        numbers = self.taken + np.cumsum(asking, axis=0, dtype=np.int32) - asking
        self.taken += int(asking.sum())
        return numbers


class Chunk(Flight, Verdicts):
    """The CTAs of some clusters. Row ``rank * clusters + i`` of each memory is the CTA of cluster rank `rank` in
    cluster i of the chunk."""

    SERIALS = count(1)
    FIBER = Fiber

    def __init__(self, program: Program, launched: Launched, cluster, which: range, env: dict, arguments: list,
                 report: Report, rng: np.random.Generator, patient: bool, checks: bool, steps: Steps):
        self.program, self.graph, self.report, self.checks = program, program.graph, report, checks
        self.contended = checks and any(m is not None and m.shadow.threads is not None for m in arguments)
        self.launched, self.grid, self.cluster, self.arguments = launched, launched.ctas, cluster, arguments
        self.address_space = AddressSpace(arguments, checks)
        self.rng, self.patient, self.steps = rng, patient, steps
        self.serial = next(self.SERIALS)   # unique in this process
        self.clusters, self.ranks = len(which), int(np.prod(cluster))
        self.rows = self.clusters * self.ranks
        self._number(which)
        self.shared = SharedMemory(self.rows, self.graph.shared_bytes)
        self._tensor_memory: TensorMemory | None = None
        self.tmem_columns: dict[Any, int] = {}
        self.tmem_top = 0
        self.atom_start = np.array(program.bounds[:-1])
        self.atom_of = np.repeat(np.arange(len(self.atom_start)), np.diff(program.bounds))
        world = World(np.arange(self.clusters),
                      Clocks(self.ranks, len(self.atom_start), program.barriers, bool(self.graph.tensor_memory),
                                 self.contended and program.fences_global,
                                 self.contended and program.overwrites_global))
        self.worlds = [world]
        self.world_of = np.zeros(self.clusters, np.int64)
        self.cuts = 0               # how many times a world was split
        # what threads of different clusters know of each other, if they may synchronise
        self.global_clocks: GlobalClocks | None = None
        if self.contended and program.meets:
            self.global_clocks = GlobalClocks(self.cluster_of, world.clocks.known.shape[-1])
        self.version = 0            # counts the changes that may end a wait
        self.tick = 0
        self.flying = 0
        self.operations = 0
        self.barrier_numbers: dict[Any, int] = {}
        self.next_barrier = 0
        # of mbarriers in buffers: offset in shared memory / 8 -> number among them
        self.barrier_slots: dict[int, int] = {}
        self.barrier_values: dict[int, Any] = {}  # number of an allocation's first barrier -> the allocation
        self.places: dict = {}
        self.locs: list[Loc | None] = []
        # lines of accesses whose layout, chosen by the compiler, says which thread accesses an element
        self.laid_out: set[int] = set()
        self._lines: dict[int, int] = {}
        self._constants: dict[tuple, np.ndarray] = {}
        self._scratch = np.empty(0, np.int64)
        self._map_faults: dict = {}
        self.traffic: dict = {}     # cost of accesses, by call and alignment
        self.maps: dict = {}        # tensor maps that rules have made
        self.shared_maps: dict = {}  # (row, offset) -> the tensor map that the kernel edits there
        self.fibers: list[Fiber] = []
        self.turn = 0
        self.stuck = False
        self.idle = 0
        # whether a thread has polled since the last change: tested a barrier, or read by an atomic or acquiring load
        self.asked = False
        for rank in range(self.ranks):
            for clusters in self._parts():
                body = Frame(program.code(self.graph.body))
                self.add(self.FIBER(self, rank, rank * self.clusters + clusters, 0, program.threads, dict(env), [body]))

    def _parts(self) -> list[np.ndarray]:
        """The clusters that run together: all, or where they may synchronise, under other seeds than 0, two parts, of
        which one may be ahead of the other."""
        order = np.arange(self.clusters)
        if self.patient or self.global_clocks is None or self.clusters < 2:
            return [order]
        mask = self.rng.random(self.clusters) < 0.5
        return [part for part in (order[mask], order[~mask]) if len(part)]

    def _number(self, which: range) -> None:
        """Compute the linear and per-axis ids of each row's CTA."""
        many = [n // c for n, c in zip(self.grid, self.cluster)]
        ids = np.arange(which.start, which.stop)
        corner = (ids % many[0], ids // many[0] % many[1], ids // (many[0] * many[1]))
        ranks = np.arange(self.ranks)
        inside = (ranks % self.cluster[0], ranks // self.cluster[0] % self.cluster[1],
                  ranks // (self.cluster[0] * self.cluster[1]))
        self.program_ids = [(c[None, :] * n + i[:, None]).reshape(-1).astype(np.int32)
                            for c, n, i in zip(corner, self.cluster, inside)]
        x, y, z = (p.astype(np.int64) for p in self.program_ids)
        self.ctas = x + self.grid[0] * (y + self.grid[1] * z)

    @cached_property
    def cluster_of(self) -> np.ndarray:
        """A table from CTA id + 1 to cluster id + 1, both in the grid; 0 maps to 0."""
        (nx, ny, nz), (cx, cy, cz) = self.grid, self.cluster
        z, y, x = np.indices((nz, ny, nx))
        clusters = x // cx + nx // cx * (y // cy + ny // cy * (z // cz))
        return np.concatenate([[0], clusters.reshape(-1) + 1])

    def settled_epochs(self, ctas: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The epoch of the last proxy fence of any space in the atoms of other clusters, by `ctas` (CTA + 1) and the
        columns of their clocks; that of CTAs outside of the chunk is infinite."""
        result = np.full(len(ctas), np.iinfo(np.int32).max, np.int32)
        for cta in np.unique(ctas):
            row, mine = np.flatnonzero(self.ctas == cta - 1), ctas == cta
            if len(row):
                rank, cluster = divmod(int(row[0]), self.clusters)
                clocks = self.worlds[self.world_of[cluster]].clocks
                result[mine] = clocks.settled[rank, columns[mine] - clocks.column(rank, 0)]
        return result

    # -- things that rules ask for -------------------------------------------------------------------------------------

    def constant(self, c: Const) -> np.ndarray:
        key = (c.dtype, repr(c.value))  # 0.0 and -0.0 are equal, and so are 1 and True
        if key not in self._constants:
            self._constants[key] = np.array([[c.value]]).astype(c.dtype.np)
        return self._constants[key]

    def line_of(self, loc: Loc | None) -> int:
        """The index of a location in the table `locs`."""
        key = id(loc)
        if key not in self._lines:
            self._lines[key] = len(self.locs)
            self.locs.append(loc)
        return self._lines[key]

    def scratch(self, n: int) -> np.ndarray:
        """An array of at least `n` ints with undefined contents."""
        if len(self._scratch) < n:
            self._scratch = np.zeros(n, np.int64)
        return self._scratch

    def granule(self, space: str) -> int:
        """Bytes per cell of a memory's shadow."""
        return self.program.granule if space == "shared" else 4

    def cells(self, space: str) -> int:
        """Number of cells of a memory's shadow."""
        nbytes = self.shared.nbytes if space == "shared" else TensorMemory.LANES * TensorMemory.COLUMNS * 4
        return -(-nbytes // self.granule(space)) + 64

    def tensor_memory(self) -> TensorMemory:
        if self._tensor_memory is None:
            self._tensor_memory = TensorMemory(self.rows)
        return self._tensor_memory

    def atom_threads(self, atom: int) -> tuple[int, int]:
        """The first thread of an atom, and one past its last."""
        return self.program.bounds[atom], self.program.bounds[atom + 1]

    def owners(self, tile: Tile) -> np.ndarray | None:
        """See `Machine.owners`."""
        if tile.layout is None or not tile.shape:
            return None
        cache = self.program.owners
        if tile not in cache:
            domain = domain_of(tile)
            grid = np.indices(domain, sparse=True)
            at = tile.layout.apply(*grid, shape=domain)
            table = np.broadcast_to(np.asarray(sum(n * at.get(a, 0) for a, n in THREADS.items())), domain)
            cache[tile] = np.ascontiguousarray(table[tuple(slice(0, n) for n in tile.shape)]).astype(np.int32)
        return cache[tile]

    def holders(self, tile: Tile, low: int) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """If several threads hold each element of a tile, of a scope whose first thread is `low`: pairs of an atom of
        each element, in row-major order, and of its thread there (MANY, if several threads of the atom hold it). None
        without replicas."""
        key = tile, low
        if key not in self.program.holders:
            self.program.holders[key] = self._holders(tile, low)
        return self.program.holders[key]

    def _holders(self, tile: Tile, low: int) -> list[tuple[np.ndarray, np.ndarray]] | None:
        shifts = np.zeros(1, np.int32)
        for extent, stride, along in layout_of(tile).replicas:
            shifts = np.add.outer(shifts, np.arange(extent) * stride * THREADS.get(along, 0)).reshape(-1)
        shifts = np.unique(shifts)
        if len(shifts) == 1:
            return None
        owners = self.owners(tile)
        assert owners is not None  # it has a layout
        threads = low + owners.reshape(-1) + shifts[:, None]
        atoms = self.atom_of[threads]
        found = []
        for row in np.unique(atoms, axis=0):
            inside = atoms == row
            found.append((row, np.where(inside.sum(axis=0) > 1, MANY,
                                        np.where(inside, threads, -1).max(axis=0)).astype(np.int16)))
        return found

    def map_faults(self, map_, describe) -> list[str]:
        key = id(map_)
        if key not in self._map_faults:
            self._map_faults[key] = map_, describe(map_)
        return self._map_faults[key][1]

    # -- what a chunk with a clock notes -------------------------------------------------------------------------------

    def note_arrival(self, world: World, key: tuple, number: int) -> None:
        """Something has arrived for completion `number` of a barrier: see `timed.TimedChunk`."""

    def mark_range(self, fiber: Fiber, name: str, begins: bool) -> None:
        """A named range of a fiber begins or ends: see `timed.TimedChunk`."""

    def note_issue(self, op: AsyncOp) -> None:
        """An operation joins those in flight: see `timed.TimedChunk`."""

    # -- worlds --------------------------------------------------------------------------------------------------------

    def split(self, world: World, clusters: np.ndarray) -> World:
        """Move some clusters of a world to a new world."""
        new = world.split(np.isin(world.clusters, clusters))
        self.worlds.append(new)
        self.world_of[new.clusters] = len(self.worlds) - 1
        self.cuts += 1
        self.flying += len(new.flight)
        return new

    # -- the scheduler -------------------------------------------------------------------------------------------------

    def add(self, fiber: Fiber) -> None:
        self.fibers.append(fiber)

    def remove(self, fiber: Fiber) -> None:
        self.fibers.remove(fiber)

    def run(self) -> None:
        """Run every fiber until it ends, or until none can make progress."""
        while self.fibers:
            self.tick += 1
            self._land_due()
            fiber = self._next_fiber()
            if fiber is not None:
                if not self._turn(fiber):
                    return
            elif not self._unstick():
                self._deadlock()
                return
        self._close()

    def _turn(self, fiber: Fiber) -> bool:
        """Run a fiber for a while. Returns False if it loops for ever without any effect."""
        budget, version = BUDGET if self.patient else int(self.rng.integers(1, 64)), self.version
        try:
            left = self._run_slices(fiber, budget)
        except TileError as error:
            error.loc = error.loc or getattr(fiber.node, "loc", None)
            raise
        if self.steps.left <= 0 and self.fibers:
            assert self.steps.limit is not None
            self.beyond_steps(fiber, self.steps.limit)
            return False
        if self.version != version:
            self.idle, self.asked = 0, False
            return not self.stuck
        before, self.idle = self.idle, self.idle + budget - left
        if before // LULL < self.idle // LULL:
            asked, self.asked = self.asked, False
            if asked and self._land_first():
                self.idle = 0
        # a loop may also poll by an ordinary load, or wait for CTAs held up by others of their fiber
        if self.idle > PATIENCE:
            if self._unstick():
                self.idle = 0
            else:
                self.report_endless_loop(fiber)
        return not self.stuck

    def _run_slices(self, fiber: Fiber, budget: int) -> int:
        """Run a fiber until it blocks, parks or ends, or has executed `budget` nodes.
        Returns what is left of the budget."""
        while budget > 0 and not (fiber.done or fiber.parked) and self.steps.left > 0:
            part = min(budget, SLICE, self.steps.left)
            left = fiber.run(part)
            budget, self.steps.left = budget - (part - left), self.steps.left - (part - left)
            if fiber.wait is not None:
                break
            self.steps.notice(fiber)
        return budget

    def _next_fiber(self) -> Fiber | None:
        """The next fiber to run, among those that are ready: round robin with seed 0, otherwise at random."""
        n = len(self.fibers)
        if self.patient:
            for k in range(n):
                fiber = self.fibers[(self.turn + k) % n]
                if fiber.is_ready():
                    self.turn = (self.turn + k + 1) % n
                    return fiber
            return None
        ready = [f for f in self.fibers if f.is_ready()]
        return ready[int(self.rng.integers(len(ready)))] if ready else None

    def _unstick(self) -> bool:
        """Called when no fiber is ready: land an operation in flight, let some CTAs of a fiber go on without the
        others, or let fibers go on without the parts or children that they wait for. False if nothing helps."""
        if self._land_first():
            return True
        for fiber in list(self.fibers):
            mask = fiber.partly_ready()
            if mask is not None:
                fiber.fork(mask)
                return True
        fibers = list(self.fibers)
        return any(f.release_parked() for f in fibers) or any(f.overtake_children() for f in fibers)

    def _close(self) -> None:
        """The kernel has ended: land what is in flight, and report operations that nothing has waited for."""
        for op in self._flight():
            if self.checks and not op.over and (op.reads or op.writes and not op.queued):
                self._report_unawaited(op)
            if op.due < NEVER or not op.queued:
                self.move(op)
        if self.checks:
            self._close_tensor_memory()
            self._close_named_barriers()
            self._close_suspects()
            for world in self.worlds:
                for ops in world.recent.values():
                    for op in ops:
                        if not op.awaited:
                            self._report_unawaited(op)

    def _close_tensor_memory(self) -> None:
        """Report tensor memory that the kernel deallocates on some paths but did not on this one."""
        for value, place in self.graph.tensor_memory.items():
            for world in self.worlds if place.freed else ():
                for rank in range(self.ranks):
                    if ("freed", rank, (place.first + place.column) * 4) not in world.facts:
                        self._fault(world, rank, "tmem",
                                    value.loc, f"{value.name} is deallocated on other paths through the kernel, "
                                               "and not on this one: its columns stay allocated")
                        return
