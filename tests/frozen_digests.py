"""Digests of what the compiler makes of every kernel of the tests, compared with those that `tests/digests` records.

A kernel version has three: of the graph's text, of the plans of its copies, loads, stores, products and reductions, and of the LLVM IR
with the recipes of parameters and tensor maps. `Kernels` (`tests/every_kernel.py`) makes them where it has a version's graph or IR anyway.

The digests are the same in every process and on every machine: source locations and the folder of the repository are removed,
and objects are described by their values (`described`), not by the names of their classes and fields. A version's key is made of
the kernel's name and text, the kinds of the arguments, the constants, the launch options, the captured values and the facts about the
arguments. A version that is not in the record is new, and so is a kernel of a test whose text changes. For kernels of the package the
text is not in the key, so that other results of them are seen.

The IR is emitted by the first test that meets a graph, in whichever process. It is therefore compared by graph and plans, not by test.

``TILEJIT_FREEZE=update`` rewrites the record from a run; ``TILEJIT_FREEZE=folder`` writes the texts to that folder instead of comparing.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from tilejit.compile import Lowered
from tilejit.dtypes import DType
from tilejit.frontend.plain import Function
from tilejit.frontend.source import Source
from tilejit.ir.graph import Call, Const, operands, walk
from tilejit.ir.op import Op

TESTS = Path(__file__).resolve().parent
ROOT = str(TESTS.parent)
PACKAGE = os.path.join(ROOT, "tilejit", "")
RECORD = TESTS / "digests"  # one file for each folder of tests
LATER_OPTIONS = ("profile", "persistent")  # launch options that are newer than the record: left out of keys at their defaults
MISSING = "-"               # stands for the digest of IR that no process of the run emitted
STAGES = ("graph", "plans", "LLVM IR")
LETTERS = 6                 # of a digest; a change stays unseen with a probability of 16 ** -LETTERS
SHOWN = 20                  # new kernels that a run lists
MAY_BE_ABSENT = 0.05        # of the recorded versions: which test of a file meets a version first, and in which process, varies
ONE_TARGET = 0.7            # of them, in a run that takes a part of the cases, most of them for one target

_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LINE = re.compile(r", !dbg !\d+")


def digest(text: str, letters: int = LETTERS) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()[:letters]


def mode() -> str:
    """"check", "update", or the folder to write the texts to."""
    return os.environ.get("TILEJIT_FREEZE", "").strip() or "check"


# -- texts that are the same everywhere ------------------------------------------------------------------------------------

@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def described(x: Any) -> str:
    """A value as text, by the values that it is made of. The names of classes and fields, and addresses, are left out."""
    kind = type(x)
    if kind in _PLAIN:
        return repr(x)
    if isinstance(x, (tuple, list)):
        return f"({','.join(map(described, x))})"
    if isinstance(x, Source):
        return f"{x.name} {'' if _of_the_package(x) else _text_of(x)}"
    if isinstance(x, Function):
        return x.function.__qualname__
    if isinstance(x, (DType, Op, Enum)):
        return x.name
    if isinstance(x, np.generic):
        return repr(x.item())
    if isinstance(x, Mapping):
        return f"{{{','.join(f'{described(k)}:{described(v)}' for k, v in x.items())}}}"
    if isinstance(x, (set, frozenset)):
        return f"{{{','.join(sorted(map(described, x)))}}}"
    if isinstance(x, (type, FunctionType, BuiltinFunctionType, MethodType)):
        return x.__qualname__
    if isinstance(x, ModuleType):
        return "module"
    if isinstance(x, np.ndarray):
        return f"{x.dtype} {x.shape} {x.tobytes().hex()}"
    names = _fields(kind)
    if names is not None:
        return f"[{','.join([described(getattr(x, name)) for name in names])}]"
    return _ADDRESS.sub("", repr(x))


@cache
def _of_the_package(source: Source) -> bool:
    return os.path.realpath(source.file).startswith(PACKAGE)


@cache
def _text_of(source: Source) -> str:
    """A digest of a function's text, wherever its lines are broken."""
    return digest("".join(source.text.split()), 16)


def anywhere(text: str) -> str:
    """A text without the folder of this repository."""
    return text.replace(ROOT, "")


def plans_text(found: Lowered) -> str:
    """The plans of a graph's calls, and the dtypes of its constants, in order."""
    lines = []
    for node in walk(found.graph.body):
        if isinstance(node, Call) and node.choice is not None:
            lines.append(f"{node.op.name} by {node.reported_choice.variant}: {described(node.choice.plan)}")
        lines += [operand.dtype.name for operand in operands(node) if isinstance(operand, Const)]
    return anywhere("\n".join(lines))


def code_text(llvm_ir: str, params: Iterable, maps: Iterable) -> str:
    """LLVM IR without metadata, which are the line tables, and the recipes of the kernel's parameters and tensor maps."""
    bare = _LINE.sub("", llvm_ir.partition("\n!")[0]).replace(" !dbg !4 {", " {", 1)
    return anywhere(f"{bare}\n{described(list(params))}\n{described(list(maps))}\n")


def version_text(kernel, bound, found: Lowered) -> str:
    """All that distinguishes a version of a kernel from the others."""
    values = [described((capture.name, capture.token)) for capture in found.captured if not _of_the_code(capture)]
    facts = sorted(map(described, found.facts.items()))
    launch = found.graph.launch
    options = [getattr(launch, f.name) for f in dataclasses.fields(launch) if f.name not in LATER_OPTIONS or getattr(launch, f.name) != f.default]
    options_text = f"[{','.join(map(described, options))}]"
    return anywhere("\n".join([described(kernel.source), described(bound.key), options_text, *sorted(values), *facts]))


def _of_the_code(capture) -> bool:
    """Whether a captured value is a part of the package, which is named differently when the package's files change."""
    return capture.token[0] in ("Op", "Builtin", "module") or capture.token[0] == "object" and _of_the_package(capture.source)


# -- the record ------------------------------------------------------------------------------------------------------------

Key = tuple[str, str, str, str]  # a test file's path in `tests`, the kernel's name, the target, a digest of `version_text`


@dataclass
class Digests:
    """Digests by version, of the graph and of the plans; and those of the LLVM IR by these two."""

    versions: dict[Key, tuple[str, str]] = field(default_factory=dict)
    code: dict[tuple[str, str], str] = field(default_factory=dict)
    unsteady: set[Key | tuple[str, str]] = field(default_factory=set)  # keys that had several results in one run

    def put(self, key: Key, made: tuple[str, str]) -> None:
        if self.versions.setdefault(key, made) != made:
            self.unsteady.add(key)

    def put_code(self, made: tuple[str, str], code: str) -> None:
        if self.code.setdefault(made, code) != code:
            self.unsteady.add(made)

    def add(self, other: Digests) -> None:
        for key, made in other.versions.items():
            self.put(key, made)
        for made, code in other.code.items():
            self.put_code(made, code)
        self.unsteady |= other.unsteady

    def lines(self) -> list[str]:
        """For another process."""
        return [*("\t".join((*key, *made)) for key, made in self.versions.items()),
                *("\t".join((*made, code)) for made, code in self.code.items()),
                *("\t".join(("unsteady", *key)) for key in self.unsteady)]

    @staticmethod
    def of_lines(lines: Iterable[str]) -> Digests:
        result = Digests()
        for words in (tuple(line.split("\t")) for line in lines):
            if words[0] == "unsteady":
                result.unsteady.add(words[1:])
            elif len(words) == 3:
                result.code[words[:2]] = words[2]
            else:
                result.versions[words[:4]] = words[4:]
        return result


def read(folder: Path = RECORD) -> Digests:
    """The record."""
    result = Digests()
    for path in sorted(folder.glob("*.txt")):
        test = kernel = ""
        for line in path.read_text().splitlines():
            if not line.startswith(" "):
                test, kernel = line.split("\t")
                continue
            target, version, graph, plans, code = line.split()
            result.versions[test, kernel, target, version] = graph, plans
            if code != MISSING:
                result.code[graph, plans] = code
    return result


def write(digests: Digests, folder: Path = RECORD) -> None:
    """Replace the record. Versions without a steady result are left out."""
    files: dict[str, list[str]] = {}
    before = None
    for key in sorted(digests.versions):
        if key in digests.unsteady:
            continue
        test, kernel, target, version = key
        made = digests.versions[key]
        lines = files.setdefault(test.partition("/")[0] if "/" in test else "tests", [])
        if (test, kernel) != before:
            lines.append(f"{test}\t{kernel}")
            before = test, kernel
        code = MISSING if made in digests.unsteady else digests.code.get(made, MISSING)
        lines.append(f" {target} {version} {' '.join(made)} {code}")
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.txt"):
        if path.stem not in files:
            path.unlink()
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def updated(recorded: Digests, met: Digests, replaced: Container[str]) -> Digests:
    """The record after a run that met `met`. What is recorded for the test files `replaced`, which were run as a whole, and was not met, is
    left out."""
    kept = {key: made for key, made in recorded.versions.items() if key[0] not in replaced}
    return Digests({**kept, **met.versions}, {**recorded.code, **met.code}, met.unsteady)


TOO_FEW = ("FAILED: too many of the recorded versions were not met. Either kernels are no longer tested, or their keys have "
           "changed (facts, argument kinds, launch options, captured values), so that nothing was compared: look into it, then update the record")


def too_few(recorded: Digests, met: Digests, all_cases: bool = True) -> bool:
    """Whether a run of all tests compared too few of the recorded versions."""
    return len(recorded.versions.keys() - met.versions.keys()) > (MAY_BE_ABSENT if all_cases else ONE_TARGET) * len(recorded.versions)


def compared(recorded: Digests, met: Digests, whole: bool) -> list[str]:
    """In words, how the versions that a run met relate to the recorded ones; nothing if none is new, absent or unsteady."""
    new = sorted(met.versions.keys() - recorded.versions.keys())
    differing = sum(1 for key, made in met.versions.items() if recorded.versions.get(key, made) != made)
    absent = len(recorded.versions.keys() - met.versions.keys()) if whole else 0
    parts = ((len(new), "new"), (differing, "different"), (absent, "absent"), (len(met.unsteady), "with several results in this run"))
    if not any(count for count, _ in parts):
        return []
    kernels = list(dict.fromkeys(f"{test}: {kernel}" for test, kernel, _, _ in new))
    shown = [*kernels[:SHOWN], *([f"and {len(kernels) - SHOWN} more"] if len(kernels) > SHOWN else [])]
    unsteady = [f"with several results: {' '.join(key)}" for key in sorted(met.unsteady)]
    return [f"{len(met.versions)} versions: " + ", ".join(f"{count} {what}" for count, what in parts if count), *shown, *unsteady]


# -- comparing -------------------------------------------------------------------------------------------------------------

class Frozen:
    """Compares what this process lowers and emits with the record. The methods return problems, in words."""

    def __init__(self, recorded: Digests | None = None, doing: str | None = None):
        self.doing = mode() if doing is None else doing
        self.recorded = recorded if recorded is not None else read() if self.doing == "check" else Digests()
        self.met = Digests()
        self.drawn = False  # whether the test is property-based: its kernels vary from run to run, and are not recorded
        self.made: dict[int, tuple[Lowered, tuple[str, str]]] = {}  # by graph, until `forget`

    def forget(self) -> None:
        self.made.clear()

    def version(self, kernel, bound, found: Lowered, test: str) -> list[str]:
        """Compare the graph and the plans of a version that a test (its node id) met."""
        if self.drawn:
            return []
        key = (file_of(test), kernel.source.name, found.graph.target, digest(version_text(kernel, bound, found), 10))
        made = self._made(found)
        self.met.put(key, made)
        self._dump(key, graph=lambda: anywhere(found.text), plans=lambda: plans_text(found))
        recorded = self.recorded.versions.get(key, made)
        return [_problem(stage, key) for stage, old, new in zip(STAGES, recorded, made) if old != new][:1]

    def code(self, found: Lowered, llvm_ir: str, params: Iterable, maps: Iterable, test: str) -> list[str]:
        """Compare the LLVM IR that was emitted for a graph."""
        made, text = self._made(found), code_text(llvm_ir, params, maps)
        code = digest(text)
        self.met.put_code(made, code)
        key = file_of(test), found.graph.name, found.graph.target, "-".join(made)
        self._dump(key, ll=lambda: text)
        return [] if self.recorded.code.get(made, code) == code else [_problem("LLVM IR", key)]

    def _made(self, found: Lowered) -> tuple[str, str]:
        if id(found) not in self.made:
            self.made[id(found)] = found, (digest(anywhere(found.text)), digest(plans_text(found)))
        return self.made[id(found)][1]

    def _dump(self, key: Key, **texts) -> None:
        if self.doing in ("check", "update"):
            return
        folder = Path(self.doing)
        folder.mkdir(parents=True, exist_ok=True)
        for stage, text in texts.items():
            (folder / f"{key[0].replace('/', '.')}.{'.'.join(key[1:])}.{stage}").write_text(text())


def file_of(test: str) -> str:
    """The path in `tests` of a test's file."""
    return test.partition("::")[0].removeprefix("tests/")


def _problem(stage: str, key: Key) -> str:
    _, kernel, target, version = key
    return f"{kernel} for {target} (version {version}): its {stage} differs from what tests/digests records"


def instructions(test: str) -> str:
    """What to do about kernels of a test that differ."""
    return ("To see the difference, run this on the commit before and, with another folder, on this one, and compare the folders by diff -r:\n"
            f"  TILEJIT_FREEZE=/tmp/before python -m pytest '{test}'\n"
            "If it is intended, update the record, and say in the commit's message which kernels changed and why:\n"
            f"  TILEJIT_FREEZE=update python -m pytest {test.partition('::')[0]}")
