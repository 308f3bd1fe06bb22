"""Simulates asynchronous engines: cp.async, bulk copies, tensor core instructions.

Their issue, their groups, and waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from .component import Component
from .faults import Reporter
from .flight import NEVER
from .global_flight import LOAD
from .shadow import COPIED, MANY, Access, Cells, index_of
from .shared_access import Place
from .values import SimBarrier, SimBuffer, take
from .vector_clocks import BEFORE, FENCED, ORDER, PASSED, READ
from .world import AsyncOp, World


@dataclass
class Span:
    """Bytes that an operation accesses in shared or tensor memory: pieces of `nbytes` bytes at ``start +
    pattern[i]``. `pattern` may be a function of the start, for swizzles. `start` is (B or 1, 1); `peer` is the
    cluster rank (B or 1, 1) of the CTA whose memory it is, None for the CTA's own."""

    space: str
    start: np.ndarray
    pattern: np.ndarray | Callable[[int], np.ndarray]
    nbytes: int
    peer: np.ndarray | None = None

    @staticmethod
    def of(buffer: SimBuffer, offset: Any, nbytes: int, pattern: np.ndarray | Callable | None = None) -> Span:
        """`nbytes` bytes at byte `offset` of a buffer; with `pattern`,
        one such piece at each of its offsets from there."""
        start = (np.asarray(offset) + np.asarray(buffer.base)).reshape(-1, 1)
        return Span(buffer.memory.scope, start, np.zeros(1, np.int64) if pattern is None else pattern, nbytes,
                    buffer.peer)


@dataclass
class Operation:
    """An asynchronous operation to issue, which reads and writes spans of shared or tensor memory.

    The first thread of the scope issues it, or with `collective` all its threads together. It completes on `barriers`,
    each with a number of bytes, or in the group `queue` of the issuing thread. ``collect(rows, params) -> dict`` reads
    its sources and ``land(rows, params)`` writes its destinations, for the CTAs `rows` of the chunk; `params` are
    arrays with a leading batch axis. `proxy` says that it accesses memory through the async proxy. Operations of a
    thread in the same `pipe` execute in issue order without waits between them. `threads` gives the thread of each
    cell written, if an atom issues it. A `reducing` operation may overlap with others of the same bytes. `touches` are
    its accesses to global memory (`GlobalAccess.touch`).
    """

    what: str
    _: KW_ONLY
    land: Callable[[np.ndarray, dict], None]
    params: dict[str, Any]
    collect: Callable[[np.ndarray, dict], dict] | None = None
    reads: Sequence[Span] = ()
    writes: Sequence[Span] = ()
    barriers: Sequence[tuple[SimBarrier, int]] = ()
    queue: str | None = None
    pipe: str | None = None
    proxy: bool = True
    collective: bool = False
    threads: np.ndarray | None = None
    reducing: bool = False
    touches: tuple = ()


class Engines(Component):
    """The part of the machine that issues asynchronous operations and waits for them."""

    def issue(self, operation: Operation, *, positions: np.ndarray | None = None, atom: int | None = None) -> None:
        """Issue an operation, in all CTAs of the batch or in those at `positions`. With `atom`, the threads of that
        atom issue it together."""
        self.m.sim.version += 1
        for where, reads, writes, targets in self._resolve(operation, positions):
            for world, at in self.m.worlds(where):
                if all(self.m.barriers.is_usable(world, rank, number) for rank, number, _ in targets):
                    thread = MANY if operation.collective or atom is not None else self.m.low
                    params = operation.params
                    if at is not None:
                        params = {k: take(v, at) for k, v in params.items()}
                    op = self.operation(operation.what, world, reads, writes, operation.land, params, targets, thread,
                                        atom)
                    self._launch(op, operation, world)

    def _resolve(self, operation: Operation, positions: np.ndarray | None) -> Iterator[tuple[Any, list, list, list]]:
        """The cells that an operation reads and writes, and the mbarriers on which it completes, as in `AsyncOp`: once
        for each set of CTAs in which they are the same, with their positions."""
        spans, barriers, split = [*operation.reads, *operation.writes], operation.barriers, len(operation.reads)
        keys = [s.start for s in spans] + [s.peer for s in spans]
        keys += [x for b, _ in barriers for x in (b.index, b.peer)]
        for where, ints in self.cases_at(positions, keys):
            starts, peers = ints[:len(spans)], ints[len(spans):2 * len(spans)]
            named = ints[2 * len(spans):]
            places = [(s.space, self.m.rank if p is None else p,
                       self.span_cells(s, at)) for s, at, p in zip(spans, starts, peers)]
            targets = [(self.m.rank if peer is None else peer, b.first + (index or 0), n)
                       for (b, n), index, peer in zip(barriers, named[::2], named[1::2])]
            yield where, places[:split], places[split:], targets

    def _launch(self, op: AsyncOp, operation: Operation, world: World) -> None:
        """Put an operation in flight, after those ahead of it in its pipe."""
        op.collect, op.pipe, op.threads = operation.collect, operation.pipe, operation.threads
        op.generic = bool(op.targets) and not operation.proxy
        op.reducing, op.touches = operation.reducing, operation.touches
        ahead: list[AsyncOp] = []
        if op.pipe is not None:
            op.pipe_number = 1 + self.m.rank * self.m.sim.program.threads + self.m.low
            ahead = [o for o in world.flight if (o.pipe, o.rank, o.thread) == (op.pipe, op.rank, op.thread)]
            op.due = max([op.due, *(o.due for o in ahead if o.due < NEVER)])
        self.m.sim.note_issue(op)
        if self.m.checks:
            self._check_issue(op, world, operation.proxy, ahead)
            for rank, number, _ in op.targets if operation.proxy else ():
                self.m.barriers.check_visible(world, rank, number)
        world.launch(op, self.m.sim.cells)
        self.m.sim.flying += 1
        for rank, number, _ in op.targets:
            self.m.barriers.within_limit(world, world.barriers[rank, number])
        if operation.queue is not None:
            op.queued = True
            issuer = ("atom", op.atom) if operation.collective else op.thread
            world.queue(operation.queue, self.m.rank, issuer).open.append(op)

    def cases_at(self, positions, keys):
        if positions is None:
            yield from self.m.cases(*keys)
            return
        for where, ints in self.m.cases(np.isin(np.arange(self.m.batch), positions).reshape(-1, 1).astype(int), *keys):
            if ints[0]:
                yield where, ints[1:]

    def span_cells(self, span: Span, start: int) -> Cells:
        granule = self.m.sim.granule(span.space)
        pattern = span.pattern(start) if callable(span.pattern) else span.pattern
        if (pattern[1:] - pattern[:-1] == span.nbytes).all():  # contiguous pieces
            first = start + int(pattern[0])
            return range(first // granule, -(-(first + len(pattern) * span.nbytes) // granule))
        count = -(-span.nbytes // granule)
        return ((start + pattern)[:, None] // granule + np.arange(count)).reshape(-1)

    def operation(self, what, world, reads, writes, land, params, targets, thread: int | None = None,
                  atom: int | None = None) -> AsyncOp:
        atom = int(self.m.atoms[0]) if atom is None else atom
        if thread is None:
            thread = self.m.low if self.m.threads == 1 else MANY
        reads, writes = (reads, writes) if self.m.checks else ([], [])
        op = AsyncOp(self.m.sim.next_operation(), what, self.m.rank, atom, thread, self.m.line, reads, writes, land,
                     params, targets, self.m.sim.landing_time())
        op.world = world
        op.clock = world.clocks.known[self.m.rank, atom].copy()
        op.epoch = int(world.clocks.now[self.m.rank, atom])
        if thread == MANY or self.m.threads <= 32:
            op.clock[PASSED, world.clocks.column(self.m.rank, atom)] = op.epoch
        return op

    def _check_issue(self, op: AsyncOp, world, proxy: bool, ahead: Sequence[AsyncOp] = ()) -> None:
        """Check that the operation is ordered after earlier accesses to its bytes, in the right proxy. Operations
        `ahead` in its pipe are ordered in any case."""
        plane = FENCED if proxy else 0
        after = tuple(o.number for o in ahead)
        read_ahead = [(world.shadow(space, rank, self.m.sim.cells(space)),
                       cells) for o in ahead for space, rank, cells in o.reads]
        for shadow, cells in read_ahead:
            shadow.busy[index_of(cells)] -= 1
        for writing, places in ((False, op.reads), (True, op.writes)):
            for space, rank, cells in places:
                shadow = world.shadow(space, rank, self.m.sim.cells(space))
                threads = np.asarray(op.thread if op.threads is None else op.threads, np.int16)
                access = Access(cells, np.asarray(op.atom), threads, op.line, after=after, reducing=op.reducing,
                                pipe=op.pipe_number if shadow.tensor else 0)
                through = plane if space == "shared" else ORDER  # tensor memory has no proxies
                if writing:
                    found = shadow.write(world.clocks, self.m.rank, access, through, keep=False, combines=op.reducing)
                else:
                    found = shadow.read(world.clocks, self.m.rank, access, through, keep=False)
                if found is not None:
                    where = next(at for other, at in self.m.peek() if other is world)
                    Reporter(self.m, world, rank, space, where).report_operation(op, access, found, writing)
        for shadow, cells in read_ahead:
            shadow.busy[index_of(cells)] += 1

    # -- groups of a thread --------------------------------------------------------------------------------------------

    def commit(self, queue: str) -> None:
        """``commit_group``: close the open group of each thread of the scope."""
        for world, _ in self.m.worlds():
            for q in self.queues(world, queue):
                q.groups.append(q.open)
                q.open = []

    def wait_groups(self, queue: str, n: int, read: bool = False) -> None:
        """``wait_group``: wait until at most the last `n` groups of each thread are pending. With `read`, wait only
        until the earlier groups have read their sources."""
        self.m.sim.version += 1
        for world, _ in self.m.worlds():
            for q in self.queues(world, queue):
                done = q.groups[:len(q.groups) - n] if n else q.groups
                for group in done:
                    for op in group:
                        op.awaited = True
                        if read:
                            self.m.sim.free_sources(op)
                        else:
                            self.m.sim.land(op)
                if not read:
                    q.groups = q.groups[len(done):]

    def queues(self, world, queue: str):
        wanted = {MANY} | set((self.m.low + np.flatnonzero(self.m.active.any(axis=0))).tolist())
        threads = range(self.m.low, self.m.high) if self.m.threads == 1 else (MANY,)
        keys: list[tuple[str, int, Any]] = [(queue, self.m.rank, t) for t in threads]
        if queue in ("cp.async", "wgmma", "tcgen05.ld", "tcgen05.st"):
            keys = [(queue, self.m.rank, ("atom", int(a))) for a in self.m.active_atoms]
        elif self.m.threads > 1:
            keys = [k for k in world.queues if k[0] == queue and k[1] == self.m.rank and k[2] in wanted] or keys
        return [world.queue(*k) for k in keys]

    def bulk_commit(self) -> None:
        """``cp.async.bulk.commit_group``."""
        self.commit("bulk")

    def bulk_wait(self, n: int = 0, read: bool = False) -> None:
        """``cp.async.bulk.wait_group``: the destinations are written, or with `read` only the sources read."""
        self.wait_groups("bulk", n, read)

    # -- cp.async ------------------------------------------------------------------------------------------------------

    def cp_async(self, dst: SimBuffer, dst_offsets: np.ndarray, src: SimBuffer, src_offsets: np.ndarray, nbytes: int,
                 valid_bytes=None, *, valid=None, active=None) -> None:
        """``cp.async``: each thread copies `nbytes` bytes per offset from global to shared memory. Offsets are (B or
        1, T, k), from the bases of the buffers.

        Only the first `valid_bytes` bytes (with a bool `valid`, all or none) are read; the rest is written as zeros.
        `active` masks whole copies. The bytes land when the thread waits for its group; until then the destination
        keeps its contents.
        """
        to = np.asarray(dst_offsets) + np.asarray(dst.base).reshape(-1, 1, 1)
        count = np.asarray(nbytes if valid_bytes is None else valid_bytes)
        if valid is not None:
            count = np.where(valid, count, 0)
        keep = None if active is None else np.asarray(active)
        if self.m.active_mask is not None:
            keep = self.m.active_mask[:, :, None] if keep is None else keep & self.m.active_mask[:, :, None]
        source = np.asarray(src_offsets) + np.asarray(src.base).reshape(-1, 1, 1)
        shape = np.broadcast_shapes(to.shape, source.shape, count.shape, () if keep is None else keep.shape)
        def broadcast(x):
            return np.broadcast_to(x, (x.shape[0] if x.ndim == len(shape) else 1, *shape[1:]))
        to, source, count = broadcast(to), broadcast(source), broadcast(np.asarray(count))
        keep = None if keep is None or keep.all() else broadcast(keep)
        elements = self._check_cp_async(to, src, source, count, keep, nbytes)
        def flatten(x):
            return x.reshape(x.shape[0], -1)
        place = Place(flatten(to), (), None if keep is None else flatten(keep))
        self.m.global_memory.count("global -> shared (cp.async)", self.m.shared.count_access(place) * nbytes)
        threads = np.broadcast_to(np.arange(self.m.low, self.m.high)[:, None], shape[1:])
        early = self.m.sim.coin()
        for atom in self.m.active_atoms:
            start, stop = (max(x - self.m.low, 0) for x in self.m.sim.atom_threads(int(atom)))
            cut = slice(start, min(stop, self.m.threads))
            touches: tuple = ()
            if elements:
                element, inside = (x[:, cut] for x in elements)
                touches = self._touch_sources(src.memory, element, inside, int(atom), threads[cut])
            own = [None if x is None else flatten(x[:, cut]) for x in (to, source, count, keep)]
            self._cp_async_atom(int(atom), touches, dst, src, own[0], own[1], own[2], own[3], threads[cut].reshape(-1),
                                nbytes, early)

    def _cp_async_atom(self, atom, touches, dst, src, to, source, count, keep, threads, nbytes, early) -> None:
        params = {"to": to, "from": source, "count": count, "keep": keep}
        memory, target = src.memory, dst.memory

        def collect(rows, params):
            return {"data": _cp_async_bytes(memory, params["from"], params["count"], nbytes)}

        def land(rows, params):
            scatter_bytes(target.data, rows, params["to"], params["data"], params["keep"])

        for where, offsets, mask in self.m.shared.group_alike(Place(to, (to.shape[1],), keep)):
            if mask is not None and not mask.any():
                continue
            who = threads if mask is None else threads[mask]
            cells = self.m.shared.cells_of(offsets if mask is None else offsets[mask], nbytes)
            for world, at in self.m.worlds(where):
                chosen = dict(params)
                if at is not None:
                    chosen = {k: None if v is None else take(v, at) for k, v in params.items()}
                op = self.operation("copy_async by cp.async", world, [], [("shared", self.m.rank, cells)], land, chosen,
                                    [], MANY, atom)
                op.threads = np.repeat(who, len(cells) // len(who)).astype(np.int16)
                op.collect, op.due, op.queued, op.touches = collect, NEVER, True, touches
                if self.m.checks:
                    self._check_issue(op, world, proxy=False)
                world.launch(op, self.m.sim.cells)
                self.m.sim.flying += 1
                if early:
                    self.m.sim.collect(op)
                world.queue("cp.async", self.m.rank, ("atom", atom)).open.append(op)

    def _check_cp_async(self, to, src, source, count, keep, nbytes) -> tuple[np.ndarray, np.ndarray] | None:
        """Check the addresses. Returns the global elements of which each copy may read a byte,
        if the kernel may write them."""
        read = count > 0 if keep is None else (count > 0) & keep
        address = src.memory.address + src.memory.origin * src.memory.itemsize
        if (((source + address) % nbytes != 0) & read).any():
            self.m.finding("misaligned", f"cp.async of {nbytes} bytes reads global memory at an address that is no "
                                         f"multiple of {nbytes}")
        if ((to % nbytes != 0) & (True if keep is None else keep)).any():
            self.m.finding("misaligned", f"cp.async of {nbytes} bytes writes shared memory at an address that is no "
                                         f"multiple of {nbytes}")
        low = source + src.memory.origin * src.memory.itemsize
        if (((low < 0) | (low + count > src.memory.bytes.size)) & read).any():
            self.m.finding("out-of-bounds", f"cp.async reads outside of {src.memory.name}")
        if self.m.checks and src.memory.maybe_written:
            return self._sources(src.memory, low, count, read, nbytes)
        return None

    def _sources(self, memory, low: np.ndarray, count: np.ndarray, read: np.ndarray,
                 nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """The global elements of which a cp.async may read a byte, (B or 1, T, k, n), and which of them it does: of
        each copy `count` bytes from byte `low` (B or 1, T, k). Elements outside of the array are left out."""
        size = memory.itemsize
        most = (nbytes + size - 2) // size + 1
        element = low[..., None] // size + np.arange(most)
        inside = (read[..., None] & (element * size < (low + count)[..., None]) & (element >= 0)
                  & (element < memory.flat.size))
        return np.broadcast_to(element, inside.shape), inside

    def _touch_sources(self, memory, element: np.ndarray, inside: np.ndarray, atom: int, threads: np.ndarray) -> tuple:
        """Check what copies of an atom read, as reads by their `threads` (T, k) that last until these wait."""
        threads = np.broadcast_to(threads[..., None], element.shape[1:])
        cells = self.m.global_memory.cells(memory, np.where(inside, element, 0))
        return self.m.global_memory.touch(memory, "copy_async by cp.async", LOAD, cells, inside, None, threads,
                                          proxy=False, atom=atom)

    def cp_async_commit(self) -> None:
        """``cp.async.commit_group`` in every thread of the scope."""
        self.commit("cp.async")

    def cp_async_wait(self, n: int | None = 0) -> None:
        """``cp.async.wait_group n`` in every thread of the scope; ``wait_all`` for None."""
        if n is None:
            self.commit("cp.async")
        self.wait_groups("cp.async", n or 0)

    def cp_async_arrive(self, barrier: SimBarrier, noinc: bool = False) -> None:
        """``cp.async.mbarrier.arrive``: each thread arrives when all its copies issued so far have landed."""
        arrivals = self.m.threads if self.m.active_mask is None else self.m.active_mask.sum(axis=1, keepdims=True)
        for world, rank, number, (threads,) in self.m.barriers.each_barrier(barrier, arrivals):
            b = world.barriers[rank, number]
            if not noinc:
                b.pending += threads
            # one thread's copies land in order
            elif threads > b.pending - b.coming and max(b.count, self.m.threads) > 1:
                self.m.fault(world, "barrier-phase", b.too_many(threads))
                threads = max(b.pending - b.coming, 0)
            b.coming += threads
            pending = []
            for q in self.queues(world, "cp.async"):
                pending += [op for group in q.groups for op in group] + q.open
                q.groups, q.open = [], []
            op = self.operation("arrive_on_copies", world, [], [], _write_nothing, {}, [])
            op.clock = world.clocks.release(self.m.rank, self.m.active_atoms)
            if noinc:
                self.m.barriers.follow(world, rank, number, op.clock)
            op.then = _arrival(self.m, pending, rank, number, threads)
            world.launch(op, self.m.sim.cells)
            self.m.sim.flying += 1


def _write_nothing(rows, params) -> None:
    """The `land` of an operation that writes nothing."""


def _arrival(m, pending: list[AsyncOp], rank: int, number: int, count: int) -> Callable:
    """The `arrive` of an arrival that waits for operations. These are looked up by number when it runs, so that it
    works in each part of a world that was split meanwhile."""
    numbers = [op.number for op in pending]
    sim, own = m.sim, m.rank

    def arrive(op: AsyncOp) -> None:
        world = op.world
        b, clocks = world.barriers[rank, number], world.clocks
        clock = np.zeros_like(b.clock)
        clock[PASSED] = op.clock_at_issue()[PASSED]
        for n in numbers:
            waited = world.ops.get(n)
            if waited is None:
                continue
            waited.awaited, waited.threads = True, None
            sim.land(waited, tag=(clocks.barrier_column(rank, number), b.phase + 1, COPIED))
            column = clocks.column(own, waited.atom)
            clock[ORDER, column] = clock[READ, column] = clocks.now[own, waited.atom]
            clock[FENCED, column] = clocks.fenced[own, waited.atom]
            if clocks.tensor:
                clock[BEFORE, column] = clocks.before[own, waited.atom]
        clocks.now[own] += 1
        b.coming -= count
        sim.arrive(op, rank, number, count, clock)

    return arrive


def _cp_async_bytes(memory, source: np.ndarray, count: np.ndarray, nbytes: int) -> np.ndarray:
    """The bytes that each copy writes: `count` bytes of its source, then zeros."""
    at = memory.origin * memory.itemsize + source
    wide = np.dtype(f"u{nbytes}") if nbytes in (4, 8) else None
    inside = (count == nbytes) | (count == 0)
    if wide is not None and inside.all() and not (at % nbytes).any() and memory.bytes.size >= nbytes:
        units = memory.bytes[:memory.bytes.size // nbytes * nbytes].view(wide)
        data = units[np.clip(np.where(count > 0, at // nbytes, 0), 0, units.size - 1)]
        return np.where(count > 0, data, 0).astype(wide)[..., None].view(np.uint8)
    if nbytes == 16 and inside.all() and not (at % 16).any() and memory.bytes.size >= 16:
        units = memory.bytes[:memory.bytes.size // 16 * 16].reshape(-1, 16)
        data = units[np.clip(np.where(count > 0, at // 16, 0), 0, len(units) - 1)]
        return np.where((count > 0)[..., None], data, np.uint8(0))
    if not memory.bytes.size:
        return np.zeros((*np.broadcast_shapes(at.shape, count.shape), nbytes), np.uint8)
    lanes = np.arange(nbytes)
    bytes_ = memory.bytes[np.clip(at[..., None] + lanes, 0, memory.bytes.size - 1)]
    return np.where(lanes < count[..., None], bytes_, np.uint8(0))


def scatter_bytes(data: np.ndarray, rows: np.ndarray, to: np.ndarray, values: np.ndarray,
                  keep: np.ndarray | None) -> None:
    """Write bytes (B or 1, n, nbytes) at the offsets `to` (B or 1, n) of each row, where `keep` is true."""
    nbytes = values.shape[-1]
    shape = (len(rows), to.shape[1])
    if not (to % nbytes).any() and data.shape[1] % nbytes == 0:
        units = data.reshape(data.shape[0], -1, nbytes)
        index, which = np.broadcast_to(to // nbytes, shape), np.broadcast_to(rows[:, None], shape)
        values = np.broadcast_to(values, (*shape, nbytes))
        if keep is None:
            units[which, index] = values
        else:
            keep = np.broadcast_to(keep, shape)
            units[which[keep], index[keep]] = values[keep]
        return
    at = np.broadcast_to(to, shape)[..., None] + np.arange(nbytes)
    which = np.broadcast_to(rows[:, None, None], at.shape)
    values = np.broadcast_to(values, at.shape)
    if keep is not None:
        chosen = np.broadcast_to(keep, shape)
        at, which, values = at[chosen], which[chosen], values[chosen]
    inside = (at >= 0) & (at < data.shape[1])
    data[which[inside], at[inside]] = values[inside]
