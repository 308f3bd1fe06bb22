"""Every kernel that a test lowers becomes machine code for every target, or is refused in the compiler's own words.

`tests/conftest.py` lets `Kernels` watch each test: whatever the test simulates, compiles or launches is lowered by one
method of the package, and is kept until the test has ended. Then it is lowered for each target and emitted. A kernel that
a target has no instructions for must be refused by an error that names the target and what it lacks
(`says_what_is_missing`). What becomes PTX is assembled together with that of other tests of the file
(`tests/assembled_together.py`), at the latest when the file's last test has ended: what the assembler refuses is an error
there, with the name of the test whose kernel it is.

Of a kernel that one test calls in many versions (other constants, dtypes, facts), as properties do, a few are, and of the
kernels of one name whose texts a property draws. The first and the last of them are assembled for every target, each one
between for one that takes it, by turns; so are the kernels of one name whose texts a test makes. A kernel of the package,
which is made for some targets, is lowered for another one until that has refused it a few times.

At the end of a run of the whole suite, kernels that stand in a file of `tests/` and that no test lowered are an error
too (`defined`): a new kernel cannot be forgotten, not even one that only a machine with a GPU runs.
"""

from __future__ import annotations

import ast
import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from threading import local
from zlib import crc32

import tilejit.compile
import tilejit.frontend.calls as calls
from tilejit.compile import Lowered
from tilejit.config import config
from tilejit.emit.emitter import emit
from tilejit.errors import CompilationError, TileError
from tilejit.ir.graph import Call, walk
from tilejit.jit import Kernel
from tilejit.manifest import code_key
from tilejit.toolchain import llvm

from tests.assembled_together import LATER, Queue, Waiting

TESTS = Path(__file__).resolve().parent
TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
PACKAGE = os.path.join(os.path.dirname(os.path.realpath(tilejit.compile.__file__)), "")
VERSIONS = 6  # of one kernel that are assembled for one test
REFUSALS = 2  # for one target of versions that are `_alike`, after which no more are asked for
MODULES = 50  # of LLVM that are kept for other targets, at most

Place = tuple[str, int]  # a kernel's file and line
real = lru_cache(maxsize=None)(os.path.realpath)


@dataclass
class Sighting:
    """A kernel as a test called it. `met` are its graphs, by target, as the test itself had them lowered."""

    kernel: Kernel
    bound: object
    options: dict
    met: dict[str, Lowered] = field(default_factory=dict)


class Kernels:
    """What the tests of this process lowered.

    `claims` is a file that the processes of one run share: the first to claim a graph's code assembles it.
    """

    def __init__(self, claims: Path):
        claims.parent.mkdir(parents=True, exist_ok=True)
        self.claims = os.open(claims, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.claimed: set[bytes] = set()  # what the file says, as far as it was read
        self.read = 0                     # bytes of it
        self.sightings: dict[tuple, Sighting] = {}
        self.walked: set[Place] = set()  # kernels and helpers that were lowered, or were begun to be
        self.count: Counter = Counter()  # by target and outcome
        self.refused: Counter = Counter()  # versions that are `_alike`, by target
        self.queue = Queue()
        self.compiled: list[Waiting] = []  # by a test whose kernels are `assembled_later`
        self.modules: dict[tuple, object] = {}  # LLVM's after the passes, of texts that the kernels of a test became
        self.of_a_kernel = local()        # whether LLVM is at work on one, in a thread
        self.watching = True
        self._watch()

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        lower, write, inline, optimize = Kernel._lower, tilejit.compile.assemble_graph, calls.inline, llvm.optimized

        def lowered(kernel, bound, options, target):
            self._walk(kernel.source)
            found = lower(kernel, bound, options, target)
            if self.watching:
                key = id(kernel), bound.key, tuple(sorted(found.facts.items())), repr(sorted(options.items()))
                self.sightings.setdefault(key, Sighting(kernel, bound.without_data(), options)).met[target] = found
            return found

        def written(found, *meanwhile):
            try:
                with self._at_work():
                    code = write(found, *meanwhile)
            except TileError:  # the test provoked it, or fails by it
                self.sightings = {k: s for k, s in self.sightings.items() if all(graph is not found for graph in s.met.values())}
                raise
            target = found.graph.target
            if (code.assembled.cubin or code.assembled is LATER) and not config().override and self._claim(code_key(found)):
                self.count[target, "assembled"] += 1
                if code.assembled is LATER:
                    title = f"{os.environ['PYTEST_CURRENT_TEST']}: {found.graph.name} for {target}"
                    self.compiled.append(Waiting(title, target, code.ptx, found.graph.launch.spills))
            return code

        def inlined(walker, source, args, kwargs):
            self._walk(source)
            return inline(walker, source, args, kwargs)

        def optimized(ir, target, passes, libdevice):
            """By the passes that ran for another target, where the texts are the same: they take nearly half of LLVM's time. (Functions of
            libdevice may ask for the target.)"""
            if not getattr(self.of_a_kernel, "now", False):
                return optimize(ir, target, passes, libdevice)
            key = ir, passes, target if libdevice else ""
            module = self.modules.get(key)
            if module is None:
                if len(self.modules) >= MODULES:
                    self.modules.clear()
                module = self.modules[key] = optimize(ir, target, passes, libdevice)
            return module.clone()

        Kernel._lower, tilejit.compile.assemble_graph, calls.inline, llvm.optimized = lowered, written, inlined, optimized

    @contextmanager
    def _at_work(self):
        self.of_a_kernel.now = True
        try:
            yield
        finally:
            self.of_a_kernel.now = False

    def _walk(self, source) -> None:
        self.walked.add((real(source.file), source.tree.lineno))

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self, test: str, drawn: bool = False) -> list[str]:
        """Lower for every target what was seen since the last call, by `test`, and let it be assembled; what is wrong. `drawn`:
        the test is a property, which may draw kernels' texts."""
        seen, self.sightings = self.sightings, {}
        self.watching = False
        versions: dict[str, list[Sighting]] = {}
        for sighting in seen.values():
            source = sighting.kernel.source
            versions.setdefault(source.name if source.file.startswith("<") else source.fingerprint(), []).append(sighting)
        compiled, self.compiled = self.compiled, []
        try:
            return [*(problem for kernel in compiled for problem in self.queue.add(kernel)),
                    *(problem for same in versions.values() for problem in self._problems(spread(same, VERSIONS) if drawn else few(same), test))]
        finally:
            self.watching = True
            self.modules.clear()

    def finish(self) -> list[str]:
        """Assemble what still waits; what is wrong with it."""
        return self.queue.finish()

    def _problems(self, same: list[Sighting], test: str) -> list[str]:
        """What is wrong with a kernel's versions."""
        problems = []
        for n, sighting in enumerate(same):
            turn = (crc32(test.encode()) + n) % len(TARGETS)  # the same whenever this test runs
            for target in (*TARGETS[turn:], *TARGETS[:turn]):
                found = self._asked(sighting, target, test)
                problems += found or []
                if found is not None and 0 < n < len(same) - 1:
                    break
        return problems

    def _asked(self, sighting: Sighting, target: str, test: str) -> list[str] | None:
        """What is wrong with one version for a target; None where the target has refused it, or others like it."""
        alike = (target, *_alike(sighting, test))
        if self.refused[alike] >= REFUSALS:
            return None
        found = self._problem(sighting, target, test)
        if found is None:
            self.refused[alike] += 1
            self.count[target, "refused"] += 1
        return found

    def _problem(self, sighting: Sighting, target: str, test: str) -> list[str] | None:
        """What is wrong with one version for a target; None where it is refused for what the target lacks."""
        name = f"{sighting.kernel.source!r} for {target}"
        try:
            found = sighting.met.get(target) or sighting.kernel._lower(sighting.bound, sighting.options, target)
            if of_the_tests_own(found) or not self._claim(code_key(found)):
                return []
            emitted = emit(found.graph)
            with self._at_work():
                ptx = llvm.to_ptx(emitted.llvm_ir, target, passes=emitted.passes, libdevice=emitted.libdevice)
        except CompilationError as error:
            return None if says_what_is_missing(str(error), target) else [f"{name} is refused, and not for what the target lacks: {error}"]
        except Exception as error:
            return [f"{name}: {type(error).__name__}: {error}"]
        self.count[target, "assembled"] += 1
        return self.queue.add(Waiting(f"{test}: {name}", target, ptx))

    def _claim(self, key: str) -> bool:
        line = key.encode() + b"\n"
        fcntl.flock(self.claims, fcntl.LOCK_EX)
        try:
            since = os.pread(self.claims, os.fstat(self.claims).st_size - self.read, self.read)
            self.read += len(since)
            self.claimed.update(since.splitlines(keepends=True))
            return line not in self.claimed and os.write(self.claims, line) > 0
        finally:
            fcntl.flock(self.claims, fcntl.LOCK_UN)


def _alike(sighting: Sighting, test: str) -> tuple:
    """What versions have in common that lack the same instructions of a target: all but facts, or being of one kernel of the package."""
    source = sighting.kernel.source
    if real(source.file).startswith(PACKAGE):
        return source.file, source.name
    return test, source.fingerprint(), sighting.bound.key, repr(sighting.options)


def few(versions: list[Sighting]) -> list[Sighting]:
    """Some versions of each text."""
    texts: dict[str, list[Sighting]] = {}
    for sighting in versions:
        texts.setdefault(sighting.kernel.source.fingerprint(), []).append(sighting)
    return [sighting for same in texts.values() for sighting in spread(same, VERSIONS)]


def spread(versions: list, count: int) -> list:
    """So many of a list, from its first to its last."""
    return versions if len(versions) <= count else [versions[i * (len(versions) - 1) // (count - 1)] for i in range(count)]


def says_what_is_missing(message: str, target: str) -> bool:
    """Whether an error refuses a kernel because of the target: in one line it says which targets have what is needed, and
    names the target at hand; or it says how much shared memory the target has."""
    needs = re.search(rf"(needs?|exists on)\b[^\n]*sm_\d+[^\n]*\b{target}\b", message)
    memory = re.search(rf"\b{target}\b.*bytes of shared memory|bytes of shared memory.*\b{target}\b", message)
    return bool(needs or memory)


def of_the_tests_own(found: Lowered) -> bool:
    """Whether a graph has ops that a test declared for the simulator alone (`tests/sim/engine_ops.py`)."""
    return any(map(_of_the_simulator_alone, {call.op for call in walk(found.graph.body) if isinstance(call, Call)}))


@cache
def _of_the_simulator_alone(op) -> bool:
    return "emit" not in op.rules and Path(op.rules["infer"].__code__.co_filename).is_relative_to(TESTS)


# -- what there is to be lowered -------------------------------------------------------------------------------------------

def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Those of a module, at any depth. (Statements alone are looked at: expressions are most of a tree, and hold none.)"""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef):
            yield inner
        if isinstance(inner, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _functions(inner)


def defined() -> dict[Place, str]:
    """The name of each function under ``@tile.jit`` in the files of `tests/`, by its place."""
    found = {}
    for path in TESTS.rglob("*.py"):
        for node in _functions(ast.parse(path.read_text())):
            if any(ast.unparse(d).startswith(("tile.jit", "tilejit.jit", "jit")) for d in node.decorator_list):
                found[str(path), node.lineno] = node.name
    return found
