"""The compilation pipeline: source, typed graph, passes, LLVM IR, PTX, cubin.

`lower` goes from source to the lowered graph, `assemble_graph` from there to the cubin.

Each stage's text can be written to a file (``TILEJIT_DUMP=folder``) and replaced from a file
(``TILEJIT_OVERRIDE=folder``).
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .concurrency import cached_property
from .config import config
from .emit.emitter import Emitted, emit
from .emit.jitter import add_jitter
from .errors import CompilationError, ToolchainError
from .frontend.building import build, too_deep
from .frontend.captures import attached_captures
from .ir.builder import Facts, Warning_
from .ir.check import check
from .ir.graph import Call, Const, Graph, Launch, operands, walk, written_arrays
from .ops.language.addressed import array_
from .ops.sync.barriers import waits_for_grids
from .passes.analysis.lowering_records import access_records, copy_records, product_records
from .passes.analysis.program_slices import without_dead_code
from .passes.checks.constant_bounds import check_constant_bounds
from .passes.checks.register_limits import check_registers, check_warpgroup_registers
from .passes.checks.scan_tails import tail_warnings
from .passes.checks.untyped_bits import untyped_bits_warnings
from .passes.layouts.box_accesses import write_boxes
from .passes.layouts.layouts import assign_layouts
from .passes.layouts.shared_layouts import choose_shared_layouts
from .passes.layouts.variants import choose_variants
from .passes.pipelining.bulk_store_waits import delay_bulk_store_waits
from .passes.pipelining.loads_ahead import send_loads_ahead
from .passes.pipelining.persistent_programs import judge_persistence
from .passes.pipelining.pipeline import write_pipelines
from .passes.pipelining.pipelining_candidates import candidate_loops, loop_records
from .passes.pipelining.proxy_fences import insert_proxy_fences
from .passes.pipelining.tokens import complete_tokens
from .passes.placement.shared_memory import place_shared
from .passes.placement.tensor_memory import place_tensor_memory
from .passes.products.dots import write_dots
from .passes.products.flushed_powers import flush_powers
from .passes.products.held_reductions import hold_reductions
from .passes.products.mma_hazards import check_mma_hazards
from .passes.products.scaled_extremes import scale_extremes
from .passes.products.skipped_rescales import skip_rescales
from .passes.products.wgmma_waits import insert_wgmma_waits
from .passes.products.whole_masks import skip_whole_masks
from .records import (
    RECORDS,
    AccessRecord,
    CopyRecord,
    LayoutRecord,
    LoadRecord,
    LoopRecord,
    MaskRecord,
    PersistenceRecord,
    ProductRecord,
    RotationRecord,
)
from .toolchain import assembler, llvm

if TYPE_CHECKING:
    from .frontend.source import Source
    from .toolchain.assembler import Assembled

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Lowered:
    """A kernel after the passes: what the simulator and the emitter both work from."""

    graph: Graph
    warnings: tuple[Any, ...]
    facts: dict[tuple[Any, ...], bool]
    captured: tuple[Any, ...]
    written: frozenset[int]  # the indices of the arguments that the kernel writes
    seconds: dict[str, float]
    printed: tuple[str, ...] = ()  # the lines of `static_print`
    find_loops: Callable[[], tuple[LoopRecord, ...]] = tuple

    @cached_property
    def text(self) -> str:
        return str(self.graph)

    @property
    def by_address(self) -> bool:
        """Whether the kernel makes arrays from addresses."""
        return any(isinstance(n, Call) and n.op is array_ for n in walk(self.graph.body))

    @cached_property
    def copies(self) -> tuple[CopyRecord, ...]:
        return copy_records(self.graph)

    @cached_property
    def accesses(self) -> tuple[AccessRecord, ...]:
        return access_records(self.graph)

    @cached_property
    def products(self) -> tuple[ProductRecord, ...]:
        return product_records(self.graph)

    @property
    def layouts(self) -> tuple[LayoutRecord, ...]:
        return self.graph.layouts

    @property
    def loads(self) -> tuple[LoadRecord, ...]:
        return self.graph.loads

    @property
    def masks(self) -> tuple[MaskRecord, ...]:
        return self.graph.masks

    @property
    def rotations(self) -> tuple[RotationRecord, ...]:
        return self.graph.rotations

    @property
    def persistence(self) -> tuple[PersistenceRecord, ...]:
        return self.graph.persistence

    @cached_property
    def loops(self) -> tuple[LoopRecord, ...]:
        return self.find_loops()

    @property
    def records(self) -> dict[str, tuple[Any, ...]]:
        """The records of all kinds, by the names in `RECORDS`."""
        return {name: getattr(self, name) for name in RECORDS}


# (name, function) of each pass, in order. The name is that of its module in passes/.
PASSES = (("persistent_programs", judge_persistence), ("scaled_extremes", scale_extremes),
          ("flushed_powers", flush_powers), ("box_accesses", write_boxes),
          ("loads_ahead", send_loads_ahead), ("constant_bounds", check_constant_bounds),
          ("shared_layouts", choose_shared_layouts), ("dots", write_dots), ("whole_masks", skip_whole_masks),
          ("pipeline", write_pipelines), ("layouts", assign_layouts), ("skipped_rescales", skip_rescales),
          ("register_limits", lambda graph, facts: check_registers(check_warpgroup_registers(graph))),
          ("variants", choose_variants), ("tokens", complete_tokens), ("proxy_fences", insert_proxy_fences),
          ("bulk_store_waits", delay_bulk_store_waits), ("mma_hazards", check_mma_hazards),
          ("wgmma_waits", insert_wgmma_waits), ("held_reductions", hold_reductions),
          ("tensor_memory", lambda graph, facts: place_tensor_memory(graph)),
          ("shared_memory", lambda graph, facts: place_shared(graph)))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector. Compiling allocates hundreds of thousands of objects, nearly all of which live until
    it ends. So many new objects trigger the collector again and again, and it scans every object of the process: in a
    process that has compiled before, this takes a third of the frontend's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def in_one_piece(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: keep the frames of `function`, and of all that it calls, in one chunk of CPython's frame stack, by a
    large ``co_stacksize``. CPython allocates that stack in chunks of 16 KB, or of the size that a frame needs, and
    frees a chunk when it is empty. A compiler calls and returns across the ends of chunks all the time: one kernel
    allocated 1300 chunks."""
    plain: Any = function  # written with `def`, so it has a code object
    plain.__code__ = plain.__code__.replace(co_stacksize=1 << 15)
    return function


@pause_garbage_collection()
@in_one_piece
def lower(source: Source, arguments: dict[str, Any], *, target: str, launch: Launch, facts: Facts) -> Lowered:
    """Compile a kernel's source to the lowered graph."""
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    built = build(source, arguments, target=target, launch=launch, facts=facts)
    graph = built.graph
    if built.spare:
        graph = replace(graph, body=without_dead_code(graph.body, lambda call: built.spare.isdisjoint(call.results)))
    clock("frontend")
    # computed on request, while the assembler runs
    find_loops = partial(loop_records, graph, facts) if candidate_loops(graph) else tuple
    warnings = (*built.warnings, *tail_warnings(graph, facts, built.tails), *untyped_bits_warnings(graph))
    checked = config().check or _under_pytest()
    body = None
    with attached_captures(lambda: built.captured):
        for name, run in PASSES:
            try:
                graph = run(graph, facts)
            except RecursionError:
                raise too_deep(graph.loc) from None
            if checked and graph.body is not body:
                check(graph)
            body = graph.body
            clock(name)
    return Lowered(graph, (*warnings, *lowering_warnings(graph)), dict(facts.asked), built.captured,
                   frozenset(array for array in written_arrays(c for c in walk(graph.body) if isinstance(c, Call))
                             if isinstance(array, int)), seconds, built.printed,
                   find_loops)


def _under_pytest() -> bool:
    return "PYTEST_CURRENT_TEST" in os.environ


class _Clock:
    """A stopwatch: a call adds the seconds since the last call to `seconds` under a stage's name."""

    def __init__(self, seconds: dict[str, float]):
        self.seconds, self.last = seconds, perf_counter()

    def __call__(self, stage: str) -> None:
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now


def lowering_warnings(graph: Graph) -> list[Warning_]:
    """The warnings of the passes and of the chosen plans."""
    calls = [c for c in walk(graph.body) if isinstance(c, Call)]
    plans = (Warning_(c.choice.plan.warning, c.loc)
             for c in calls if c.choice is not None and getattr(c.choice.plan, "warning", None))
    warnings = list(dict.fromkeys((*graph.warnings, *plans)))
    warnings += _slower_products(calls)
    if graph.launch.pdl and not any(map(waits_for_grids, calls)):
        warnings.append(Warning_("with pdl=True this kernel may begin before the previous one in the stream has ended, "
                                 "and it never waits for that: call tile.griddepcontrol_wait() before it accesses "
                                 "memory that the two share"))
    return warnings


def _slower_products(calls: list[Call]) -> list[Warning_]:
    """Warn of each `dot` that a change to the kernel (a cure) would give a faster variant, unless the call names its
    variant."""
    found = {}
    for call in calls:
        choice = call.reported_choice
        if choice is None:
            continue
        for missed, cure in choice.cures[:1]:
            variant = choice.variant
            found[call.loc] = Warning_(f"this dot uses {variant} instead of {missed}: {cure} "
                                       f"(or call it with variant={variant!r}, if that is intended)", call.loc)
    return list(found.values())


# -- to code -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Code:
    """Machine code with its parameters, tensor maps, compile times and the texts of the stages, by name."""

    texts: dict[str, str]
    assembled: Assembled
    params: list[Any]
    maps: list[Any]
    seconds: dict[str, float]

    @property
    def ptx(self) -> str:
        return self.texts["ptx"]


@pause_garbage_collection()
@in_one_piece
def assemble_graph(lowered: Lowered, meanwhile: Callable[[dict[str, str]], None] = lambda texts: None) -> Code:
    """Compile a lowered graph to LLVM IR, PTX and cubin. `meanwhile` is called with the texts while the assembler
    runs, in another process and for longer than any stage before it."""
    graph, seconds = lowered.graph, dict(lowered.seconds)
    clock = _Clock(seconds)
    _dump(graph.name, "graph", lowered.text)
    seed = graph.launch.jitter
    with assembler.start_assembler(graph.target, allow=() if seed is None else assembler.SLOW_CODE) as assemble:
        emitted: Emitted = emit(graph)
        llvm_ir = _stage(graph.name, "ll", emitted.llvm_ir)
        clock("emit")
        ptx = llvm.to_ptx(llvm_ir, graph.target, passes=emitted.passes, libdevice=emitted.libdevice)
        ptx = _stage(graph.name, "ptx", ptx if seed is None else add_jitter(ptx, seed))
        clock("llvm")
        texts = {"graph": lowered.text, "llvm_ir": llvm_ir, "ptx": ptx}

        def work() -> None:
            gc.collect(0)  # garbage of the frontend
            meanwhile(texts)

        assembled = assemble(ptx, work)
        clock("assemble")
    check_budgets(graph, assembled.registers, assembled.spill_bytes)
    return Code(texts, assembled, emitted.params, emitted.maps, seconds)


def _stage(name: str, suffix: str, text: str) -> str:
    """A stage's text, or its replacement from the override folder; the text is also dumped."""
    folder = config().override
    if folder:
        if not Path(folder).is_dir():
            raise ToolchainError(f"TILEJIT_OVERRIDE={folder} is no folder")
        path = Path(folder) / f"{name}.{suffix}"
        try:
            text = path.read_text() if path.exists() else text
        except (OSError, UnicodeDecodeError) as error:
            raise ToolchainError(f"TILEJIT_OVERRIDE: {path} cannot be read: {error}") from None
    _dump(name, suffix, text)
    return text


def _dump(name: str, suffix: str, text: str) -> None:
    folder = config().dump
    if folder:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.{suffix}").write_text(text)
        except OSError as error:
            raise ToolchainError(f"TILEJIT_DUMP={folder} cannot be written: {error}") from None


def check_budgets(graph: Graph, registers: int, spill_bytes: int) -> None:
    """Raise CompilationError if the kernel exceeds its `spills` or `max_registers`. With `jitter` it may: idle time
    takes registers too."""
    launch: Launch = graph.launch
    if launch.jitter is not None:
        return
    if launch.spills is not None and spill_bytes > launch.spills:
        cure = ", or persistent=False, which takes a few registers less" if graph.persistent else ""
        raise CompilationError(f"the kernel spills {spill_bytes} bytes of registers, and spills={launch.spills} allows "
                               f"no more; use smaller tiles or more warps{cure}", graph.loc)
    if launch.max_registers is not None and registers > launch.max_registers:
        raise CompilationError(f"the kernel uses {registers} registers a thread, "
                               f"more than max_registers={launch.max_registers} allows", graph.loc)


def graph_key(lowered: Lowered) -> str:
    """A digest of all that determines the code: the graph's text, the dtypes of constants, plans, and source
    locations."""
    graph, digest = lowered.graph, hashlib.sha256(lowered.text.encode(errors="surrogatepass"))
    digest.update(str(graph.loc).encode(errors="surrogatepass"))
    for node in walk(graph.body):
        if isinstance(node, Call) and node.choice is not None:
            digest.update(repr(node.choice.plan).encode())
        for operand in operands(node):
            if isinstance(operand, Const):
                digest.update(operand.dtype.name.encode())
        if node.loc is not None:
            digest.update(str(node.loc).encode(errors="surrogatepass"))
    return digest.hexdigest()[:32]
