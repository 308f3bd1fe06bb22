"""Assembles the PTX of many kernels in one run of ptxas, since its start takes longer than most kernels: 15 of 20 ms.

Modules with the same declarations are merged; kernels are renamed, and the modules' files renumbered, to be unique. If a run
fails, each of its kernels is assembled alone, to find out which one has the error.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan

from tilejit.errors import TileError
from tilejit.jit import Kernel
from tilejit.toolchain.assembler import Assembled, assemble

AT_ONCE = 24  # kernels per run

# The assembler's result for a kernel that waits: no machine code, and counts with which no assertion about a kernel holds.
LATER = Assembled(None, registers=nan, spill_bytes=-1, stack_bytes=nan, shared_bytes=nan, barriers=nan, notes=(), assembler="", version="")

_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.M)
_COMMENT = re.compile(r"^\s*//.*\n", re.M)


@dataclass(frozen=True)
class Waiting:
    """A kernel's PTX that waits for a run, its title in messages, and the bytes that it may spill (None: any number)."""

    title: str
    target: str
    ptx: str
    spills: int | None = None


@dataclass(frozen=True)
class Module:
    """The text of a module with one kernel: the declarations, the kernel, the text after it."""

    head: str
    name: str
    body: str
    tail: str

    @staticmethod
    def of(ptx: str) -> Module | None:
        """The parts of a module's text; None if it has more than one function."""
        entry = _ENTRY.search(ptx)
        if entry is None or len(_ENTRY.findall(ptx)) > 1 or ".func" in ptx:
            return None
        end = ptx.rindex("\n}\n") + 3
        return Module(_COMMENT.sub("", ptx[:entry.start()]), entry[1], ptx[entry.start():end], ptx[end:])

    def numbered(self, number: int, file: int) -> str:
        """The kernel and the text after it, with `number` appended to the kernel's name and `file` added to the numbers of files."""
        text = self.body + self.tail
        for before, after in ((".entry ", "("), (" ", "_param_"), ("[", "_param_")):
            text = text.replace(f"{before}{self.name}{after}", f"{before}{self.name}_{number}{after}")
        for n in range(self.files if file else 0, 0, -1):  # from the last down, so that no number is replaced twice
            for directive in (".loc", ".file"):
                text = text.replace(f"\t{directive}\t{n} ", f"\t{directive}\t{n + file} ")
        return text

    @property
    def files(self) -> int:
        return self.tail.count(".file\t")


class Queue:
    """Kernels that wait for a run of ptxas, grouped by target and declarations. The methods return problems, in words."""

    def __init__(self):
        self.waiting: dict[tuple[str, str], list[tuple[Waiting, Module]]] = {}
        self.pool: ThreadPoolExecutor | None = None
        self.started: list[Future] = []

    def add(self, kernel: Waiting) -> list[str]:
        """Enqueue a kernel; runs its group if it is full."""
        module = Module.of(kernel.ptx)
        if module is None:
            return alone(kernel)
        group = self.waiting.setdefault((kernel.target, module.head), [])
        group.append((kernel, module))
        return self._run(kernel.target, module.head) if len(group) >= AT_ONCE else []

    def finish(self) -> list[str]:
        """Assemble all kernels that wait."""
        problems = [problem for key in list(self.waiting) for problem in self._run(*key)]
        return [*problems, *(problem for run in self.started for problem in run.result())]

    @contextmanager
    def beside(self):
        """A context in which runs of ptxas go on while kernels are added; `finish` has their problems."""
        with ThreadPoolExecutor(os.cpu_count()) as self.pool:
            yield
        self.pool, self.started = None, []

    def _run(self, target: str, head: str) -> list[str]:
        group = self.waiting.pop((target, head))
        if self.pool is None:
            return together(target, head, group)
        self.started.append(self.pool.submit(together, target, head, group))
        return []


def together(target: str, head: str, group: list[tuple[Waiting, Module]]) -> list[str]:
    """The problems of kernels that are assembled in one run, in words."""
    text, files = head, 0
    for number, (_, module) in enumerate(group):
        text += module.numbered(number, files)
        files += module.files
    try:
        made = assemble(text, target)
    except TileError as error:
        return [p for kernel, _ in group for p in alone(kernel)] or [f"{len(group)} kernels for {target} assemble, but not in one "
                                                                     f"module: {error}"]
    missing = [kernel.title for number, (kernel, module) in enumerate(group) if f".text.{module.name}_{number}\0".encode() not in made.cubin]
    spilling = (kernel for kernel, _ in group if kernel.spills is not None and made.spill_bytes > kernel.spills)  # `made` has the run's maximum
    return [*(f"{title}: no machine code" for title in missing), *(p for kernel in spilling for p in alone(kernel))]


@contextmanager
def later(target: str, **options):
    """Replaces `toolchain.assembler.start_assembler`; starts no assembler."""
    yield lambda ptx, meanwhile: meanwhile() or LATER


@contextmanager
def put_off(monkeypatch):
    """A context in which kernels are compiled without the assembler. If they are requested again after it, they are compiled anew."""
    met, compiled = [], Kernel.compiled
    monkeypatch.setattr(Kernel, "compiled", lambda kernel, *args: met.append(kernel) or compiled(kernel, *args))
    monkeypatch.setattr("tilejit.toolchain.assembler.start_assembler", later)
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    yield
    for version in (v for kernel in met for versions in kernel.versions.values() for v in versions):
        if version.compiled is not None and version.compiled.cubin is None:
            version.compiled = None


def alone(kernel: Waiting) -> list[str]:
    """The problems of a kernel that is assembled by itself, in words."""
    try:
        made = assemble(kernel.ptx, kernel.target)
    except TileError as error:
        return [f"{kernel.title}: {type(error).__name__}: {error}"]
    if not made.cubin:
        return [f"{kernel.title}: no machine code"]
    over = kernel.spills is not None and made.spill_bytes > kernel.spills
    return [f"{kernel.title}: {made.spill_bytes} bytes of registers spill, and {kernel.spills} may"] if over else []
