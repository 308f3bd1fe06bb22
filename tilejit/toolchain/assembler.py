"""Assembles PTX text to a cubin, by the first assembler found.

They are sought in this order: the setting, the wheel, CUDA_HOME, PATH, cuda.pathfinder, the driver, nvJitLink.

ptxas reads from its standard input and writes to an anonymous memory file, so nothing is left behind, and any number
of processes can assemble at the same time. A small kernel takes 12 ms, of which 10 are the start of the program; that
overlaps LLVM's work."""

from __future__ import annotations

import linecache
import os
import re
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from ..config import config
from ..errors import Loc, SlowCodeError, ToolchainError
from . import nvjitlink, pathfinder
from .child_process import Program
from .packages import package

_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")

# Advisories that mean slow code: setmaxnreg ignored (C7504-C7508), wgmma serialised or waited for (C7510-C7518).
SLOW_CODE = tuple(f"C{number}" for number in (7504, 7505, 7506, 7507, 7508, *range(7510, 7519)))

# Advisory for a fence that ptxas adds, such as for a commit of no products. It is ignored: 13.0 gives it, 13.5
# generates the same code without.
_FENCE = "C7519"

_CROWDED = "use fewer registers: smaller tiles, more warps, or the product's operand a in shared memory"
_IN_FLIGHT = ("call tile.mma_wait(0) before anything but a product accesses the sums of products in flight, "
              "and before loops and branches that do")
_CURES = {"C7511": _CROWDED, "C7512": _CROWDED} | dict.fromkeys(("C7513", "C7514", "C7515", "C7516", "C7517"),
                                                                _IN_FLIGHT)

# ptxas touches each page of tens of megabytes once. With pages of 2 MB, which glibc 2.35 and later request from the
# system by this, it takes 0.94 of the time, for large kernels and for small ones.
_LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_NOTE = re.compile(r"\((C\d+)\)")
_LINE = re.compile(r"line (\d+)")
_RELEASE = re.compile(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)")


@dataclass(frozen=True)
class Assembled:
    """A kernel's machine code, and what the assembler reported.

    `cubin` is None if only the driver can assemble (`assembler` is "driver"): then `ptx` is loaded instead, and the
    counts are -1. `registers` and `barriers` are counts, the others bytes: `spill_bytes` is stores plus loads,
    `shared_bytes` the static shared memory. `notes` are the assembler's warnings and coded advisories."""

    cubin: bytes | None
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    barriers: int
    notes: tuple[str, ...]
    assembler: str
    version: str
    ptx: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Assembler:
    """One way to assemble. `kind` is "ptxas", "driver" or "nvjitlink";
    `version` is "" if only running it would tell."""

    kind: str
    name: str
    path: str = ""
    version: str = ""

    @property
    def fingerprint(self) -> str:
        """A text that changes if the assembler does."""
        if self.version:
            return f"{self.name} {self.version}"
        if not self.path:
            return self.name
        status = os.stat(self.path)
        return f"{self.name} {self.path} {status.st_size} {status.st_mtime_ns}"


def fingerprint() -> str:
    """The assembler's identity for cache keys: package metadata, or path, size and time; nothing is run."""
    return find().fingerprint


def find() -> Assembler:
    """The assembler to use. ToolchainError, which says how to get one, if there is none."""
    environment = os.environ
    return _find(config().ptxas, environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or "",
                 environment.get("PATH", ""))


@lru_cache(maxsize=16)
def _find(setting: str, home: str, path: str) -> Assembler:
    if setting:
        found = shutil.which(setting, path=path)
        if found is None:
            raise ToolchainError(f"TILEJIT_PTXAS={setting} is not a program that can be run")
        return Assembler("ptxas", "setting", found)
    wheel = _wheel()
    if wheel is not None:
        return wheel
    places: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("CUDA_HOME", lambda: shutil.which("ptxas", path=os.path.join(home, "bin")) if home else None),
        ("PATH", lambda: shutil.which("ptxas", path=path)),
        ("cuda.pathfinder", lambda: pathfinder.program("ptxas")))
    for name, search in places:
        found = search()
        if found:
            return Assembler("ptxas", name, os.path.realpath(found))
    if pathfinder.library("cuda") is not None:
        return Assembler("driver", "driver")
    linker = nvjitlink.locate()
    if linker is not None:
        return Assembler("nvjitlink", "nvjitlink", str(linker))
    raise ToolchainError("no assembler was found; pip install nvidia-cuda-nvcc brings one, or point TILEJIT_PTXAS, "
                         "CUDA_HOME or PATH to a ptxas")


def _wheel() -> Assembler | None:
    for name in _WHEELS:
        found = package(name)
        path = found.file("ptxas") if found else None
        if found is not None and path is not None and os.access(path, os.X_OK):
            return Assembler("ptxas", name, str(path), found.version)
    return None


@contextmanager
def start_assembler(target: str, *, line_info: bool = True, options: tuple[str, ...] = (), allow: tuple[str, ...] = ()):
    """A context manager that starts the assembler for `target` while its PTX text is still being made. It gives a
    function ``run(ptx, meanwhile)``, which assembles a text and calls `meanwhile` while the assembler works.

    `line_info` keeps the source lines that the text's ``.loc`` directives name. `options` are ptxas' own. Advisories
    that mean slow code (C7504 to C7508, C7510 to C7518) are errors unless `allow` lists them.

    The function raises ToolchainError, with the PTX line, if the assembler rejects the text."""
    assembler = find()
    program = _start(assembler.path, target, line_info, options) if assembler.kind == "ptxas" else None
    try:
        yield lambda ptx, meanwhile=lambda: None: _assemble_with(ptx, target, assembler, program, line_info, options,
                                                                 allow, meanwhile)
    finally:
        if program is not None:
            program.end()


def assemble(ptx: str, target: str, **options) -> Assembled:
    """Assemble PTX text for `target`, with the options of `start_assembler`."""
    with start_assembler(target, **options) as run:
        return run(ptx)


def _assemble_with(ptx: str, target: str, assembler: Assembler, program: Program | None, line_info: bool,
                   options: tuple[str, ...], allow: tuple[str, ...], meanwhile: Callable[[], None]) -> Assembled:
    if assembler.kind != "ptxas":
        meanwhile()
    if assembler.kind == "driver":
        return Assembled(None, -1, -1, -1, -1, -1, (), "driver", "", ptx)
    if assembler.kind == "nvjitlink":
        code, cubin, log = nvjitlink.run(assembler.path, ptx, target, line_info, options)
    else:
        assert program is not None  # ptxas has been started
        code, cubin, printed = program.finish(ptx.encode(), meanwhile)
        log = printed.decode(errors="replace")
        if code == 0 and cubin[:4] != b"\x7fELF":
            raise ToolchainError(f"the assembler {assembler.path} wrote no cubin:\n{log}")
    if code != 0:
        raise _error(ptx, target, assembler, code, log)
    result = _report(cubin, log, assembler)
    _judge_notes(result.notes, ptx, allow, assembler)
    return result


def _start(path: str, target: str, line_info: bool, options: tuple[str, ...]) -> Program:
    lines = ["-lineinfo"] if line_info else []
    try:
        return Program(lambda output: [path, f"-arch={target}", "-v", "-o", output, *options, *lines, "/dev/stdin"],
                       _LARGE_PAGES)
    except OSError as error:
        raise ToolchainError(f"the assembler {path} could not be run: {error}") from None


def _report(cubin: bytes, log: str, assembler: Assembler) -> Assembled:
    registers = barriers = shared = stack = spills = 0
    for used in _USED.finditer(log):
        registers, barriers = max(registers, int(used[1])), max(barriers, int(used[2] or 0))
        static = _SHARED.search(used[3])
        shared = max(shared, int(static[1]) if static else 0)
    for frame in _FRAME.finditer(log):
        stack, spills = max(stack, int(frame[1])), max(spills, int(frame[2]) + int(frame[3]))
    notes = tuple(line.strip() for line in log.splitlines()
                  if (_NOTE.search(line) or "warning" in line.lower()) and _FENCE not in line)
    version = assembler.version
    if not version:
        release = _RELEASE.search(cubin)
        version = release[1].decode() if release else ""
    return Assembled(cubin, registers, spills, stack, shared, barriers, notes, assembler.name, version)


def _judge_notes(notes: tuple[str, ...], ptx: str, allow: tuple[str, ...], assembler: Assembler) -> None:
    bad = {note: code for note in notes for code in _NOTE.findall(note) if code in SLOW_CODE and code not in allow}
    if not bad:
        return
    message = "the assembler dropped what the kernel's speed depends on:\n" + "\n".join(f"  {note}" for note in bad)
    message += "".join(f"\n{cure}" for cure in dict.fromkeys(_CURES[code] for code in bad.values() if code in _CURES))
    if assembler.kind == "nvjitlink":
        message += "\nnvJitLink cannot keep setmaxnreg: pip install nvidia-cuda-nvcc brings ptxas"
    lines, numbers = ptx.splitlines(), [int(found[1]) for found in map(_LINE.search, bad) if found]
    raise SlowCodeError(message, next((place for n in numbers if n > 0 and (place := _source_place(lines, n))), None))


def _error(ptx: str, target: str, assembler: Assembler, code: int, log: str) -> ToolchainError:
    """The assembler's error messages, each with its PTX line, and the source location of the first one that has such a
    line."""
    lines = ptx.splitlines()
    shown, loc = [], None
    for text in log.splitlines():
        if "error" not in text and "fatal" not in text:
            continue
        text = re.sub(r"^ptxas\s+(?:/dev/stdin|application ptx input)?,?\s*", "", text.strip())
        shown.append(f"  {text}")
        number = _LINE.search(text)
        if number and 0 < int(number[1]) <= len(lines):
            shown.append(f"    {number[1]}: {lines[int(number[1]) - 1].strip()}")
            loc = loc or _source_place(lines, int(number[1]))
    name = assembler.path or assembler.name
    if not shown and code < 0:
        return ToolchainError(f"the assembler ({name}) crashed (signal {-code}) on the PTX for {target}; "
                              "this is a fault of its own, which another release may not have: "
                              "pip install -U nvidia-cuda-nvcc")
    if not shown:
        shown = [f"  it ended with code {code}", *(f"  {line}" for line in log.splitlines()[-10:])]
    if len(shown) > 20:
        shown = shown[:20] + ["  ..."]
    return ToolchainError(f"the assembler ({name}) refused the PTX for {target}:\n" + "\n".join(shown), loc)


def _source_place(lines: list[str], number: int) -> Loc | None:
    """The source location named by the last ``.loc`` before PTX line `number`."""
    files = {}
    for line in lines:
        entry = re.match(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s*,?\s*"([^"]*)")?', line)
        if entry:
            files[entry[1]] = os.path.join(entry[2], entry[3]) if entry[3] else entry[2]
    for line in reversed(lines[:number]):
        place = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)", line)
        if place and int(place[2]) > 0 and place[1] in files:
            path = files[place[1]]
            return Loc(path, int(place[2]), max(int(place[3]) - 1, 0),
                       source_line=linecache.getline(path, int(place[2])))
        if re.search(r"\.(?:entry|func)\b", line):
            return None
    return None
