"""The pipeline as one readable function: source, typed graph, passes, LLVM IR, PTX, cubin.

Each stage's text can be dumped (``TILEJIT_DUMP=folder``) and replaced from a file (``TILEJIT_OVERRIDE=folder``).
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter

from .config import config
from .emit.emitter import Emitted, emit
from .errors import CompilationError, ToolchainError
from .frontend.building import build, too_deep
from .ir.builder import Facts, Warning_
from .ir.check import check
from .ir.graph import Call, Const, Graph, Launch, operands, walk, written_arguments
from .ops.barriers import waits_for_grids
from .passes.dots import write_dots
from .passes.joints import await_joints
from .passes.late_waits import wait_late
from .passes.layouts import assign_layouts
from .passes.box_accesses import write_boxes
from .passes.loads_ahead import send_loads_ahead
from .passes.ordinary_loops import loop_records, ordinary_loops
from .passes.pending import check_products
from .passes.pipeline import write_pipelines
from .passes.places import check_places
from .passes.registers import check_registers, check_shares
from .passes.shared import place_shared
from .passes.shared_layouts import choose_shared_layouts
from .passes.slices import without_unused
from .passes.tails import tail_warnings
from .passes.tensor_memory import place_tensor_memory
from .passes.told import access_records, copy_records, product_records
from .passes.tokens import complete_tokens
from .passes.variants import choose_variants
from .records import RECORDS, AccessRecord, CopyRecord, LayoutRecord, LoopRecord, ProductRecord


@dataclass(frozen=True)
class Lowered:
    """A kernel after the passes: what the simulator runs and the emitter writes out."""

    graph: Graph
    warnings: tuple
    facts: dict[tuple, bool]
    captured: tuple
    written: frozenset[int]  # the arguments that the kernel writes
    seconds: dict[str, float]
    printed: tuple[str, ...] = ()  # what the kernel had printed while it was compiled
    find_loops: Callable[[], tuple[LoopRecord, ...]] = tuple

    @cached_property
    def text(self) -> str:
        return str(self.graph)

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

    @cached_property
    def loops(self) -> tuple[LoopRecord, ...]:
        return self.find_loops()

    @property
    def records(self) -> dict[str, tuple]:
        """What the kernel tells, by the names of `RECORDS`."""
        return {name: getattr(self, name) for name in RECORDS}


PASSES = (("boxes", write_boxes), ("ahead", send_loads_ahead), ("places", check_places), ("buffers", choose_shared_layouts), ("dots", write_dots),
          ("pipelines", write_pipelines), ("layouts", assign_layouts), ("registers", lambda graph, facts: check_registers(check_shares(graph))),
          ("variants", choose_variants), ("tokens", complete_tokens), ("waits", wait_late), ("products", check_products), ("joints", await_joints),
          ("shared", lambda graph, facts: place_shared(place_tensor_memory(graph))))


@contextmanager
def uncollected():
    """Without the collector of garbage. Compiling makes objects by the hundred thousand, of which nearly all stay until it ends; their
    number calls the collector again and again, which looks at all that the process has: in one that has compiled before, a third of the
    frontend's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def in_one_piece(function):
    """`function`, and what it calls has its frames in one piece of memory. CPython takes its stack from the system in pieces of 16 KB,
    or of what a frame says that it needs, and gives each back when it is empty: a compiler, which calls and returns across their ends all the
    time, took 1300 of them for one kernel."""
    function.__code__ = function.__code__.replace(co_stacksize=1 << 15)
    return function


@uncollected()
@in_one_piece
def lower(source, arguments: dict, *, target: str, launch: Launch, facts: Facts) -> Lowered:
    """From source to the lowered graph, which the simulator and the GPU share."""
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    built = build(source, arguments, target=target, launch=launch, facts=facts)
    graph = built.graph
    if built.spare:
        graph = replace(graph, body=without_unused(graph.body, lambda call: built.spare.isdisjoint(call.results)))
    clock("frontend")
    find_loops = partial(loop_records, graph, facts) if ordinary_loops(graph) else tuple  # when they are asked for: the assembler runs meanwhile
    warnings = (*built.warnings, *tail_warnings(graph, facts, built.tails))
    checked = config().check or _under_pytest()
    body = None
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
                   written_arguments(c for c in walk(graph.body) if isinstance(c, Call)), seconds, built.printed, find_loops)


def _under_pytest() -> bool:
    import os
    return "PYTEST_CURRENT_TEST" in os.environ


class _Clock:
    """Seconds since the last reading, filed under a stage's name."""

    def __init__(self, seconds: dict[str, float]):
        self.seconds, self.last = seconds, perf_counter()

    def __call__(self, stage: str) -> None:
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now


def lowering_warnings(graph: Graph) -> list[Warning_]:
    """What the chosen lowerings have to say to the kernel's author."""
    calls = [c for c in walk(graph.body) if isinstance(c, Call)]
    plans = (Warning_(c.choice.plan.warning, c.loc) for c in calls if c.choice is not None and getattr(c.choice.plan, "warning", None))
    warnings = list(dict.fromkeys((*graph.warnings, *plans)))
    warnings += _slower_products(calls)
    if graph.launch.pdl and not any(map(waits_for_grids, calls)):
        warnings.append(Warning_("with pdl=True this kernel may begin before the previous one in the stream has ended, and it never waits for "
                                 "that: call tile.griddepcontrol_wait() before it accesses memory that the two share"))
    return warnings


def _slower_products(calls: list[Call]) -> list[Warning_]:
    """For each `dot` that only how its operands lie keeps from a faster path, unless the kernel asks for the one it has."""
    found = {}
    for call in calls:
        for missed, cure in call.choice.cures[:1] if call.choice is not None else ():
            variant = call.choice.variant
            found[call.loc] = Warning_(f"this dot uses {variant} instead of {missed}: {cure} "
                                       f"(or call it with variant={variant!r}, if that is intended)", call.loc)
    return list(found.values())


# -- to code -------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Code:
    """Machine code, and every text on the way to it by its name."""

    texts: dict[str, str]
    assembled: object
    params: list
    maps: list
    seconds: dict[str, float]

    @property
    def ptx(self) -> str:
        return self.texts["ptx"]


@uncollected()
@in_one_piece
def assemble_graph(lowered: Lowered, meanwhile: Callable[[dict[str, str]], None] = lambda texts: None) -> Code:
    """LLVM IR, PTX and cubin of a lowered graph. `meanwhile` is what can be done with the texts while the assembler runs, a program of its own
    that takes longer than anything before it."""
    from .toolchain.assembler import started
    from .toolchain.llvm import to_ptx
    graph, seconds = lowered.graph, dict(lowered.seconds)
    clock = _Clock(seconds)
    _dump(graph.name, "graph", lowered.text)
    with started(graph.target) as assemble:
        emitted: Emitted = emit(graph)
        llvm_ir = _stage(graph.name, "ll", emitted.llvm_ir)
        clock("emit")
        ptx = _stage(graph.name, "ptx", to_ptx(llvm_ir, graph.target, passes=emitted.passes, libdevice=emitted.libdevice))
        clock("llvm")
        texts = {"graph": lowered.text, "llvm_ir": llvm_ir, "ptx": ptx}

        def work() -> None:
            gc.collect(0)  # what the frontend has left
            meanwhile(texts)

        assembled = assemble(ptx, work)
        clock("assemble")
    check_budgets(graph, assembled.registers, assembled.spill_bytes)
    return Code(texts, assembled, emitted.params, emitted.maps, seconds)


def _stage(name: str, suffix: str, text: str) -> str:
    """Dump a stage's text, or take it from the override folder."""
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
    """Budgets are contracts: a kernel over one does not compile."""
    launch: Launch = graph.launch
    if launch.spills is not None and spill_bytes > launch.spills:
        raise CompilationError(f"the kernel spills {spill_bytes} bytes of registers, and spills={launch.spills} allows no more; "
                               "use smaller tiles or more warps", graph.loc)
    if launch.max_registers is not None and registers > launch.max_registers:
        raise CompilationError(f"the kernel uses {registers} registers a thread, more than max_registers={launch.max_registers} allows", graph.loc)


def graph_key(lowered: Lowered) -> str:
    """A digest of everything that decides the code: the text, the constants' dtypes, the plans, the table of lines."""
    graph, digest = lowered.graph, hashlib.sha256(lowered.text.encode())
    digest.update(str(graph.loc).encode())
    for node in walk(graph.body):
        if isinstance(node, Call) and node.choice is not None:
            digest.update(repr(node.choice.plan).encode())
        for operand in operands(node):
            if isinstance(operand, Const):
                digest.update(operand.dtype.name.encode())
        if node.loc is not None:
            digest.update(str(node.loc).encode())
    return digest.hexdigest()[:32]
