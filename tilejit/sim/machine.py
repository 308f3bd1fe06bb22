"""The machine as `simulate` rules see it: one scope instance of a batch of CTAs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..concurrency import cached_property
from ..errors import Loc, print_text
from ..ir import machine_protocol
from ..types import Buffer, Points, Region, Sym, Tile, layout_of
from .addressed_arrays import AddressedArrays
from .bulk import BulkCopies
from .commits import Commits
from .engines import Engines
from .global_access import GlobalAccess
from .host import Host
from .mbarriers import MBarriers
from .memory import TensorMemory
from .named_maps import NamedMaps
from .networks import run_network
from .ordered_access import OrderedAccess
from .remote import RemoteStores
from .report import Finding
from .shared_access import SharedAccess
from .synchronisation import Synchronisation
from .tensor_copies import PairOperations
from .tensor_cores import TensorCores
from .tensor_memory import TensorMemoryAccess
from .tensor_products import TensorProducts
from .thread_products import add_products
from .tma import TensorCopies
from .traffic import Traffic
from .values import SimBuffer, SimPoints, SimRegion, SimTensorMap
from .world import World


class Machine:
    """The state and operations that a `simulate` rule can use.

    Scalars are arrays (B or 1, T or 1) and tiles are arrays (B or 1, *shape), for B CTAs in lock step and T threads
    of the scope instance. A leading 1 means the same value in every CTA. A machine lives as long as the CTAs of its
    fiber stay the same. Its components have what has a subject of its own, such as TMA.
    """

    # made at first use: each divergence of CTAs makes new machines, and most use few of these
    global_memory = cached_property(GlobalAccess)
    arrays = cached_property(AddressedArrays)
    shared = cached_property(SharedAccess)
    ordered = cached_property(OrderedAccess)
    sync = cached_property(Synchronisation)
    barriers = cached_property(MBarriers)
    engines = cached_property(Engines)
    tma = cached_property(TensorCopies)
    bulk = cached_property(BulkCopies)
    remote = cached_property(RemoteStores)
    maps = cached_property(NamedMaps)
    tensor_cores = cached_property(TensorCores)
    tmem = cached_property(TensorMemoryAccess)
    pair_operations = cached_property(PairOperations)
    tensor_products = cached_property(TensorProducts)
    commits = cached_property(Commits)
    traffic = cached_property(Traffic)
    host = cached_property(Host)

    def __init__(self, fiber):
        self.fiber = fiber
        self.sim = fiber.sim
        self.rows = fiber.rows
        self.rank = fiber.rank
        self.low, self.high = fiber.low, fiber.high
        self.batch = len(fiber.rows)          # B
        self.threads = fiber.high - fiber.low  # T
        self.grid = self.sim.launched.programs
        self.target = self.sim.graph.target
        self.report = self.sim.report
        self.checks = self.sim.checks
        self._worlds: tuple[int, list] | None = None  # cached, with the value of `sim.cuts` for which it holds
        self._peeked: tuple[int, list] | None = None
        self.deeds = 0        # calls so far with an effect other than "pure"
        # `deeds` at the last arrival at an mbarrier, and the epoch of the first in its uninterrupted run of arrivals
        self.burst = -2, 0

    # -- where am I ----------------------------------------------------------------------------------------------------

    @property
    def active_mask(self) -> np.ndarray | None:
        """The active threads, (B or 1, T); None if all are."""
        return self.fiber.frames[-1].active

    @property
    def active(self) -> np.ndarray:
        """The active threads, (B or 1, T)."""
        return np.ones((1, self.threads), bool) if self.active_mask is None else self.active_mask

    @contextmanager
    def only(self, mask: np.ndarray) -> Iterator[None]:
        """A context in which only those of the active threads act for which `mask` (B or 1, T) is true."""
        frame, before = self.fiber.frames[-1], self.active_mask
        frame.active = self.active & mask
        try:
            yield
        finally:
            frame.active = before

    @cached_property
    def ctas(self) -> np.ndarray:
        """Linear ids of the CTAs in the grid, (B,)."""
        return self.sim.ctas[self.rows]

    def program_id(self, axis: int) -> np.ndarray:
        """The CTA's index in the grid along an axis, (B, 1); (1, 1) if the grid has extent 1 there."""
        ids = self.sim.program_ids[axis][self.rows].reshape(-1, 1)
        return ids[:1] if self.sim.grid[axis] == 1 else ids

    def cluster_id(self, axis: int) -> np.ndarray:
        """The index of the CTA's cluster in the grid along an axis, (B, 1) or (1, 1)."""
        return self.program_id(axis) // np.int32(self.sim.cluster[axis])

    @property
    def cluster_rank(self) -> np.ndarray:
        """The CTA's rank in its cluster, (1, 1)."""
        return np.full((1, 1), self.rank, np.int32)

    @property
    def cluster_size(self) -> int:
        return self.sim.ranks

    def thread_ids(self) -> np.ndarray:
        """Absolute ids of the threads, (1, T)."""
        return np.arange(self.low, self.high, dtype=np.int32)[None]

    def resolve(self, n: int | Sym | tuple) -> int:
        """The value of a number known at launch: an int, a symbol, or an expression such as ("mul",
        ("size", 0, 1), 4)."""
        if isinstance(n, Sym):
            n = n.kind, n.arg, n.dim
        if not isinstance(n, tuple):
            return n
        name, *rest = n
        if name in ("size", "stride"):
            memory = self.sim.arguments[rest[0]]
            return (memory.shape if name == "size" else memory.strides)[rest[1]]
        return _OPERATIONS[name](*(self.resolve(part) for part in rest))

    @cached_property
    def row_index(self) -> slice | np.ndarray:
        """The rows of this batch in per-CTA memories; a slice if they are consecutive."""
        first, last = int(self.rows[0]), int(self.rows[-1])
        return slice(first, last + 1) if last - first + 1 == self.batch else self.rows

    def rows_of(self, peer: np.ndarray | None) -> slice | np.ndarray:
        """The rows of the CTAs of cluster rank `peer` (B or 1, 1) in the clusters of this batch; for None, the rows
        of the batch itself."""
        if peer is None:
            return self.row_index
        clusters = self.rows % self.sim.clusters
        return np.broadcast_to(peer[:, 0], (self.batch,)).astype(np.int64) * self.sim.clusters + clusters

    @cached_property
    def atoms(self) -> np.ndarray:
        """The atoms of the scope's threads, as indices into the clocks."""
        return np.arange(self.sim.atom_of[self.low], self.sim.atom_of[self.high - 1] + 1)

    @property
    def active_atoms(self) -> np.ndarray:
        """The atoms that contain a thread that takes part in some CTA."""
        if self.active_mask is None:
            return self.atoms
        return np.unique(self.sim.atom_of[self.low + np.flatnonzero(self.active_mask.any(axis=0))])

    # -- worlds --------------------------------------------------------------------------------------------------------

    def worlds(self, positions: np.ndarray | None = None) -> list[tuple[World, np.ndarray | None]]:
        """The worlds of these CTAs (or of those at `positions` in the batch), split so that they contain no others.

        Each comes with the positions of its CTAs in the batch, or None for all of them.
        """
        if positions is None and self._worlds is not None and self._worlds[0] == self.sim.cuts:
            return self._worlds[1]
        found = []
        for world, where in self.peek(positions):
            count = self.batch if where is None else len(where)
            if count < len(world.clusters):
                clusters = (self.rows if where is None else self.rows[where]) % self.sim.clusters
                world = self.sim.split(world, clusters)
            found.append((world, where))
        if positions is None:
            self._worlds = self.sim.cuts, found
        return found

    def peek(self, positions: np.ndarray | None = None) -> list[tuple[World, np.ndarray | None]]:
        """Like `worlds`, but without splitting: the worlds may contain other CTAs too."""
        if len(self.sim.worlds) == 1:
            return [(self.sim.worlds[0], positions)]
        if positions is None:
            if self._peeked is None or self._peeked[0] != self.sim.cuts:
                self._peeked = self.sim.cuts, self._peek(None)
            return self._peeked[1]
        return self._peek(positions)

    def _peek(self, positions: np.ndarray | None) -> list[tuple[World, np.ndarray | None]]:
        rows = self.rows if positions is None else self.rows[positions]
        numbers = self.sim.world_of[rows % self.sim.clusters]
        if (numbers == numbers[0]).all():
            return [(self.sim.worlds[numbers[0]], positions)]
        at = np.arange(self.batch) if positions is None else positions
        return [(self.sim.worlds[n], at[numbers == n]) for n in np.unique(numbers)]

    def cases(self, *values: Any) -> Iterator[tuple[np.ndarray | None, tuple]]:
        """Group the CTAs by the values of (B or 1, 1) integers. Yields (positions in the batch, or None for all;
        one int per value)."""
        columns = [np.asarray(v).reshape(-1) if v is not None else None for v in values]
        if self.active_mask is not None:
            alive = np.broadcast_to(self.active_mask.any(axis=1), (self.batch,))
            if not alive.all():
                yield from self._cases_alive(columns, np.flatnonzero(alive))
                return
        varying = [c for c in columns if c is not None and len(c) > 1 and (c != c[0]).any()]
        if not varying:
            yield None, tuple(None if c is None else int(c[0]) for c in columns)
            return
        table = np.stack([np.broadcast_to(c, (self.batch,)) for c in varying], axis=1)
        _, group = np.unique(table, axis=0, return_inverse=True)
        group = group.reshape(-1)
        for k in range(group.max() + 1):
            positions = np.flatnonzero(group == k)
            yield positions, tuple(None if c is None else int(c[positions[0] % len(c)]) for c in columns)

    def _cases_alive(self, columns: list, alive: np.ndarray) -> Iterator[tuple[np.ndarray, tuple]]:
        """`cases` for the CTAs `alive`, in which some thread is active."""
        groups: dict[tuple, list[int]] = {}
        for row in alive:
            key = tuple(None if c is None else int(c[row % len(c)]) for c in columns)
            groups.setdefault(key, []).append(int(row))
        for key, rows in groups.items():
            yield np.array(rows), key

    # -- findings ------------------------------------------------------------------------------------------------------

    @property
    def loc(self) -> Loc | None:
        """The source location of the current call."""
        return getattr(self.fiber.node, "loc", None)

    @property
    def line(self) -> int:
        """The number of that location in the table of the simulation."""
        return self.sim.line_of(self.loc)

    def finding(self, kind: str, message: str, *, loc: Loc | None = None, threads: tuple = (), ctas: Any = None,
                bytes: tuple[int, int] | None = None, other: Loc | None = None) -> None:
        """Report a fault at `loc`, by default at the current call."""
        loc = loc or self.loc
        ids = self.ctas[:1] if ctas is None else np.asarray(ctas)
        self.report.add(Finding(kind, loc.line if loc else 0, message, loc, tuple(int(t) for t in threads),
                                tuple(int(c) for c in ids[:8]), bytes, other))

    def fault(self, world: World, kind: str, message: str, *, loc: Loc | None = None, protocol: bool = True,
              **where: Any) -> None:
        """Report a fault of synchronisation in `world`, unless it is the consequence of an earlier one there.
        `protocol` says that barriers or asynchronous copies are involved."""
        verdict = self.sim.verdict(world, kind, loc or self.loc, protocol)
        if verdict is not None:
            kind, loc, note = verdict
            self.finding(kind, note + message, loc=loc, **where)

    def assertion(self, message: str, failed: np.ndarray) -> None:
        """Report that what the kernel asserts or assumes does not hold in the CTAs where `failed` (B or 1,) is true."""
        failed = np.asarray(failed).reshape(-1)
        self.finding("assertion", message, ctas=self.ctas[failed] if failed.size > 1 else None)

    def mark_range(self, name: str, begins: bool) -> None:
        """A named range begins or ends."""
        self.sim.mark_range(self.fiber, name, begins)

    def print(self, text: str, values: tuple, once: bool) -> None:
        """Print a line for each active thread of each CTA, or with `once` for the first one: `text` and the thread's
        values of the scalars `values`."""
        columns = [np.broadcast_to(v, (self.batch, self.threads)) for v in values]
        for b, threads in self.active_threads():
            for t in threads[:1] if once else threads:
                shown = "".join(f" {c[b, t]}" for c in columns)
                print_text(f"{self.prefix(b, None if once else t)}: {text}{shown}")

    def print_tile(self, text: str, value: np.ndarray) -> None:
        """Print `text` and a tile for each CTA, as NumPy prints it, without leaving any element out."""
        for b, _ in self.active_threads():
            shown = np.array2string(value[b % len(value)], threshold=value.size + 1)
            print_text(f"{self.prefix(b, None)}: {text}\n{shown}")

    def active_threads(self) -> Iterator[tuple[int, np.ndarray]]:
        """The CTAs of the batch in which threads are active, with the places of these in the scope."""
        active = np.broadcast_to(self.active, (self.batch, self.threads))
        for b in range(self.batch):
            if active[b].any():
                yield b, np.flatnonzero(active[b])

    def prefix(self, b: int, t: int | None) -> str:
        """The CTA at `b` in the batch and thread `t` of the scope, for a printed line. For None it is what the whole
        scope prints: its first thread is named if it is narrower than the CTA."""
        cta = f"cta {int(self.ctas[b])}"
        if t is None and self.threads == self.sim.graph.launch.threads:
            return cta
        return f"{cta} thread {self.low + int(t or 0)}"

    # -- values --------------------------------------------------------------------------------------------------------

    def alloc_shared(self, value: Any, type_: Buffer | None = None, byte_offset: int | None = None) -> SimBuffer:
        """The buffer of an allocation in shared memory, at the graph's offset for it unless `byte_offset` is given."""
        type_ = type_ or value.type
        offset = self.sim.graph.shared[value] if byte_offset is None else byte_offset
        return SimBuffer(type_, self.sim.shared, offset, tuple(type_.shape))

    def alloc_tmem(self, value: Any, type_: Buffer | None = None, column: int | None = None) -> SimBuffer:
        """The buffer of an allocation in tensor memory. It gets whole columns, a power of two of at least 32, after
        the earlier allocations."""
        type_ = type_ or value.type
        layout = layout_of(type_)
        columns = -(-layout.span("TCol") * type_.dtype.nbytes // 4)
        columns = max(32, 1 << (columns - 1).bit_length())
        places = self.sim.tmem_columns
        if value not in places:
            places[value] = self.sim.tmem_top if column is None else column
            self.sim.tmem_top = places[value] + columns
            if self.sim.tmem_top > TensorMemory.COLUMNS:
                self.finding("tmem", f"{self.sim.tmem_top} columns of tensor memory are allocated, "
                                     f"and a CTA has {TensorMemory.COLUMNS}")
        return SimBuffer(type_, self.sim.tensor_memory(), places[value] * 4, tuple(type_.shape))

    def make_region(self, type_: Region, buffer: SimBuffer, starts: tuple) -> SimRegion:
        return SimRegion(type_, buffer, tuple(starts))

    def make_points(self, type_: Points, buffer: SimBuffer, indices: tuple) -> SimPoints:
        return SimPoints(type_, buffer, tuple(indices))

    def tensor_map(self, buffer: SimBuffer, fields: Any, base: int = 0) -> SimTensorMap:
        """The tensor map with the fields that a plan gives, over a global buffer from byte `base` on. Symbolic fields
        are resolved. Strides are in bytes; a bare symbol as a stride counts elements."""
        # an empty array: the launcher maps memory of its own with this alignment
        if getattr(fields, "nowhere", False):
            base = -(buffer.memory.address + buffer.memory.origin * buffer.memory.itemsize) % 16
        key = (id(fields), id(buffer.memory), base, buffer.base) if np.ndim(buffer.base) == 0 else None
        if key is not None and key in self.sim.maps:
            return self.sim.maps[key][0]
        nbytes = buffer.type.dtype.nbytes
        dims = tuple(self.resolve(n) for n in fields.global_dim)
        strides = tuple(self.resolve(s) * (nbytes if isinstance(s, Sym) else 1) for s in fields.global_strides)
        optional = {k: getattr(fields, k) for k in ("interleave", "swizzle", "l2_promotion", "oob_fill", "im2col")
                    if hasattr(fields, k)}
        made = SimTensorMap(buffer.memory, buffer.base + base, str(fields.dtype), dims, strides,
                            tuple(fields.box) or (1,) * len(dims), tuple(fields.element_strides), **optional)
        if key is not None:
            self.sim.maps[key] = made, fields
        return made

    def owners(self, tile: Tile) -> np.ndarray | None:
        """For each element of a tile, the thread of the scope that holds it (its first replica); None for a tile
        without a layout."""
        return self.sim.owners(tile)

    def run_network(self, values: list[np.ndarray], steps: Sequence[Any], kept: int) -> list[np.ndarray]:
        """Sort the last axis of `values` by the `steps` of a network, and keep its lowest ``2**kept`` elements."""
        return run_network(values, steps, kept)

    def add_products(self, acc: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """``acc + x @ y`` for tiles of one dtype, by a product and a sum for each k in turn, both rounded."""
        return add_products(acc, x, y)

    # -- memory --------------------------------------------------------------------------------------------------------

    def read(self, buffer: SimBuffer, coords: tuple | None, *, mask=None, other=0, owner=None, bounds: bool = True,
             region: SimRegion | SimPoints | None = None, atomic: bool = False, tile: Tile | None = None) -> np.ndarray:
        """Read elements of a buffer at `coords`: one integer array per dimension, broadcastable to (B or 1, *shape).

        Where `mask` is false, and outside a global buffer, the result is `other`. With ``bounds=False``, an element
        outside a global buffer is a finding; outside shared memory it always is. `owner` gives the thread of the
        scope that reads each element. `region`, if given, consists of the elements at `coords` (which may then be
        None), and whole boxes of it are moved at once. For a scalar, the shape is that of its threads: (B or 1, T or
        1). ``atomic`` reads take part in no race. `tile` is the type of the result, if each of the threads that hold
        an element reads it.
        """
        if buffer.memory.scope == "global":
            return self.global_memory.read(buffer, coords, mask, other, owner, bounds, region, atomic)
        return self.shared.read(buffer, coords, mask, other, owner, region, atomic, tile)

    def write(self, buffer: SimBuffer, coords: tuple | None, values: np.ndarray, *, mask=None, owner=None,
              bounds: bool = True, region: SimRegion | SimPoints | None = None, atomic: bool = False) -> None:
        """Write elements of a buffer, with the arguments of `read`. Writes outside a global buffer are dropped.

        If a scalar's address, value and mask are the same for all threads, the first thread writes it.
        """
        self.sim.version += 1
        if np.ndim(values) == 1:
            values = np.reshape(values, (-1, 1))
        if buffer.memory.scope == "global":
            self.global_memory.write(buffer, coords, values, mask, owner, bounds, region, atomic)
        else:
            self.shared.write(buffer, coords, values, mask, owner, region)


_OPERATIONS: dict[str, Callable[..., int]] = {"mul": operator.mul, "floordiv": operator.floordiv, "add": operator.add,
                                              "sub": operator.sub, "min": min, "max": max}



if TYPE_CHECKING:
    def _has_what_rules_use(m: Machine) -> machine_protocol.Machine:
        return m
