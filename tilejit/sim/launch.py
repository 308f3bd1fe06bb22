"""`simulate`: binds the arguments to memories and runs the grid in chunks of CTAs, each to completion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.random import default_rng  # which NumPy would load at its first use, while another thread may fork

from ..errors import LaunchError
from ..ir.builder import element_type
from ..ir.graph import Graph
from ..types import Buffer
from .blas import one_blas_thread
from .chunk import Chunk, Launched, Steps
from .global_races import GlobalShadow
from .memory import GlobalMemory
from .program import Program
from .report import Report, Writer
from .timed import Recording, TimedChunk
from .values import SimBuffer

Known = Callable[[], list[tuple[str, np.ndarray]]]

SHARED_BYTES = 1 << 28     # limit on the bytes of shared memory of a chunk
# elements of the largest tile over all CTAs of the chunk, if these are more than TOGETHER CTAs
TILE_ELEMENTS = 1 << 22
TOGETHER = 264             # CTAs that run concurrently if memory allows, so that they may wait for each other
# How many CTAs a launch of a persistent kernel starts. None: one for each program, so that programs that race do so in
# CTAs of their own.
RESIDENT: int | None = None


def simulate(graph: Graph, grid: tuple[int, ...], args: list, *, seed: int = 0, checks: bool = True,
             max_findings: int = 100, max_steps: int | None = None,
             watch: tuple[int, tuple[int, ...]] | None = None, known: Known = list, timeline: bool = False) -> Report:
    """Run a lowered graph on NumPy arrays (modified in place) and scalars, and report its faults.

    `seed` randomises the order of everything that the hardware leaves open; with 0, scopes run round robin and copies
    land as late as possible. ``checks=False`` omits the checks of races, waits and proxy fences. After `max_steps`
    operations the simulation stops, and a finding says where. With `watch`, the number of an argument and the index
    of one of its elements, the report's `writer` says who wrote that element last. `known` gives the arrays, with their
    names, that kernels may find by an address besides those of the launch. With `timeline`, the report's `timeline()`
    says who did what when.
    """
    grid = tuple(int(n) for n in grid) + (1,) * (3 - len(grid))
    if len(args) != len(graph.params):
        raise LaunchError(f"{graph.name} takes {len(graph.params)} arguments, {len(args)} were given")
    if any(n < 0 for n in grid) or len(grid) != 3:
        raise LaunchError(f"a grid has up to three extents of at least 0, not {grid}")
    cluster = graph.launch.cluster or (1, 1, 1)
    if any(n % c for n, c in zip(grid, cluster)):
        raise LaunchError(f"the grid {grid} is no multiple of the cluster {cluster}")
    programs = grid
    if graph.persistent:
        grid = (min(int(np.prod(programs)), RESIDENT or int(np.prod(programs))), 1, 1)
    program = Program(graph)
    report = Report(max_findings)
    env, arguments = bind_arguments(graph, args, program, checks, all_threads=watch is not None, known=known)
    clusters = int(np.prod(grid)) // int(np.prod(cluster))
    if not isinstance(seed, Integral) or seed < 0:
        raise LaunchError(f"a seed is an integer of at least 0, not {seed!r}")
    if max_steps is not None and (isinstance(max_steps, bool) or not isinstance(max_steps, Integral) or max_steps < 1):
        raise LaunchError(f"max_steps is a number of operations, at least 1, not {max_steps!r}")
    rng, steps = default_rng(seed), Steps(max_steps)
    size = chunk_size(program, int(np.prod(cluster)))
    make: Any = Chunk
    if timeline:
        report.recording = Recording(graph.name, grid)
        make = partial(TimedChunk, recording=report.recording)
    clocks, launched = None, Launched(grid, programs)
    for first in range(0, clusters, size):
        chunk = make(program, launched, cluster, range(first, min(first + size, clusters)), env, arguments, report, rng,
                      patient=seed == 0, checks=checks, steps=steps)
        if clocks is not None:
            clocks.forget_threads()
            chunk.global_clocks = clocks
        with np.errstate(all="ignore"), one_blas_thread():  # as on a GPU, arithmetic raises no exceptions
            chunk.run()
        clocks = chunk.global_clocks
        if watch is not None:
            report.writer = last_writer(arguments[watch[0]], watch[1], chunk) or report.writer
        if chunk.stuck:
            break
    sizes = {n: m.bytes.size for n, m in enumerate(arguments[:len(args)]) if m is not None}
    report.close(program.nodes, sizes, int(np.prod(grid)))
    return report


def chunk_size(program: Program, ranks: int) -> int:
    """How many clusters run at a time."""
    ctas = max(TOGETHER, TILE_ELEMENTS // max(program.largest_tile, 1))
    ctas = min(ctas, max(1, SHARED_BYTES // max(program.graph.shared_bytes, 1)),
               max(1, (1 << 27) // max(program.largest_tile, 1)))
    return max(1, ctas // ranks)


def last_writer(memory: GlobalMemory, index: tuple[int, ...], chunk: Chunk) -> Writer | None:
    """Which thread, or whose copy, of the chunk's CTAs wrote an element last; None if none did, or if the last
    write was an atomic or a reduction."""
    shadow = memory.shadow
    at = memory.origin + sum(i * s for i, s in zip(index, memory.strides))
    cell = (memory.address + at * memory.itemsize - shadow.address) // shadow.granule
    copied = shadow.last_copy(cell)
    if copied is not None:
        loc, cta = copied
        return Writer(loc, cta, None) if cta in chunk.ctas else None
    marks = shadow.threads.writes if shadow.threads is not None else None
    if marks is None:
        return None
    cta, thread = int(marks.cta[cell]) - 1, int(marks.thread[cell])
    if cta < 0 or cta not in chunk.ctas:
        return None
    return Writer(chunk.locs[int(marks.line[cell])], cta, thread if thread >= 0 else None)


def bind_arguments(graph: Graph, args: list, program: Program, checks: bool,
                   all_threads: bool = False, known: Known = list) -> tuple[dict, list]:
    """The parameters' simulated values, and each argument's memory (None for scalars). With `all_threads`, the
    shadows distinguish threads wherever the kernel writes."""
    env: dict[Any, Any] = {}
    memories: list[GlobalMemory | None] = []
    for number, (param, arg) in enumerate(zip(graph.params, args)):
        if not isinstance(param.type, Buffer):
            with np.errstate(over="ignore"):
                env[param] = np.full((1, 1), arg, element_type(param).np)
            memories.append(None)
            continue
        if not isinstance(arg, np.ndarray):
            raise LaunchError(f"{param.name} is an array; the simulator runs on NumPy arrays, not {type(arg).__name__}")
        if arg.ndim != len(param.type.shape):
            raise LaunchError(f"{param.name} has {len(param.type.shape)} dimensions, not {arg.ndim}")
        if arg.dtype.itemsize != param.type.dtype.nbytes:
            raise LaunchError(f"{param.name} holds {param.type.dtype}, not {arg.dtype}")
        memory = GlobalMemory(arg, param.name, number)
        memory.maybe_written, memory.touched = param in program.written, program.touched[param]
        memory.polled = program.by_address or param in program.polled
        memory.ordered = program.by_address or param in program.ordered
        env[param] = SimBuffer(param.type, memory, 0, arg.shape, memory.strides)
        memories.append(memory)
    if program.by_address:
        know_addresses(program, memories, known())
    if checks:
        all_threads = all_threads or program.meets or program.narrow
        share_shadows([m for m in memories if m is not None], all_threads, program.finest)
    return env, memories


def know_addresses(program: Program, memories: list[GlobalMemory | None], known: list[tuple[str, np.ndarray]]) -> None:
    """Add the arrays that are `known` by their addresses to those of the launch, for a kernel that makes arrays from
    addresses. Whatever it writes through these may lie in any of them."""
    written = not program.written.isdisjoint(program.addressed)
    touched = sum(program.touched[array] for array in program.addressed)
    for m in memories:
        if m is not None:
            m.maybe_written, m.touched = m.maybe_written or written, m.touched + touched
    for name, array in known:
        m = GlobalMemory(array, name, len(memories))
        m.maybe_written, m.touched = written or program.binds_maps, touched + 2 * program.binds_maps
        memories.append(m)


def share_shadows(memories: list[GlobalMemory], all_threads: bool, finest: int) -> None:
    """Give each argument a shadow; arguments that overlap in memory share one. Its cells have at most `finest` bytes.
    """
    ordered = sorted((m for m in memories if m.flat.size), key=lambda m: m.address)
    groups: list[list[GlobalMemory]] = []
    end = -1
    for m in ordered:
        if m.address < end:
            groups[-1].append(m)
        else:
            groups.append([m])
        end = max(end, m.address + m.bytes.size)
    for group in groups:
        low = group[0].address
        high = max(m.address + m.bytes.size for m in group)
        written, polled = any(m.maybe_written for m in group), any(m.polled for m in group)
        acquired = any(m.ordered for m in group)
        contended = written and (all_threads or sum(m.touched for m in group) > 1)
        shadow = GlobalShadow(low, high - low, min(finest, *(m.itemsize for m in group)), contended)
        for m in group:
            m.shadow, m.maybe_written = shadow, written
            m.polled, m.ordered = polled, acquired
    for m in memories:
        if not hasattr(m, "shadow"):
            m.shadow = GlobalShadow(m.address, 0, m.itemsize)
