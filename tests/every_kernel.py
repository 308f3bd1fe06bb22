"""Checks that every kernel that a test lowers assembles for every target, or is rejected with a proper error.

`tests/conftest.py` lets `Kernels` observe each test: all that a test simulates, compiles or launches is lowered by one
method of the package, and recorded. After the test, each recorded kernel is lowered for every target and emitted. If a target
lacks instructions that the kernel needs, the kernel must be rejected by an error that names the target and what is missing
(`says_what_is_missing`). The PTX is assembled together with that of other tests (`tests/assembled_together.py`),
at the latest after the last test. Kernels that do not assemble are an error there, with the name of their test. A
kernel is not assembled if all its instructions have the forms of ones that are (`tests/instruction_forms.py`,
`tests/form_cover.py`).

If a test calls a kernel in many versions (constants, dtypes, facts), as property-based tests do, only a few versions are
checked; the same holds for the kernels of one name whose texts a property-based test generates. The first version of the first case
of a parametrized test is assembled for every target, each other one for one target that accepts it, by turns
(``TILEJIT_ALL_CASES=1``: the first and the last version of every case, for every target). Kernels of the package are
made for some targets only, and are not lowered for a target any more after it has rejected them a few times.

At the end of a run of the whole suite, kernels in the files of `tests/` that no test has lowered are an error too
(`defined`), so that a new kernel cannot be forgotten, not even one that only runs on a machine with a GPU.
"""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock, RLock, local
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
from tilejit.toolchain import llvm, screen

from tests import graph_forms
from tests.assembled_together import LATER, Queue, Waiting
from tests.chosen_cases import all_cases
from tests.form_cover import Candidate, Cover
from tests.frozen_digests import Frozen, instructions
from tests.instruction_forms import forms

TESTS = Path(__file__).resolve().parent
TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
PACKAGE = os.path.join(os.path.dirname(os.path.realpath(tilejit.compile.__file__)), "")
VERSIONS = 6  # versions of one kernel that are assembled per test
REFUSALS = 2  # after so many rejections by a target, further versions that are `_alike` are not tried
MODULES = 50  # maximum number of LLVM modules that are kept for other targets

Place = tuple[str, int]  # a kernel's file and line
real = lru_cache(maxsize=None)(os.path.realpath)


@dataclass
class Sighting:
    """A version of a kernel that a test called. `met` has the graphs, by target, that the test itself lowered."""

    kernel: Kernel
    bound: object
    options: dict
    met: dict[str, Lowered] = field(default_factory=dict)
    calls: frozenset[str] | None = None  # the forms of its calls


class Kernels:
    """The kernels that the tests of this process lowered.

    `claims` is a file that the processes of one run share: the process that first claims the key of a graph's code, or of an instruction's
    form, assembles it.
    """

    def __init__(self, claims: Path):
        claims.parent.mkdir(parents=True, exist_ok=True)
        self.claims = os.open(claims, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.claimed: set[str] = set()    # the keys in the file, as far as it was read
        self.read = 0                     # bytes of the file that were read
        self.one_thread = Lock()
        self.sightings: dict[tuple, Sighting] = {}
        self.lowered: dict[int, Kernel] = {}  # kernels with versions, by id
        self.walked: set[Place] = set()  # kernels and helpers whose lowering was at least begun
        self.count: Counter = Counter()  # of kernels, by target and outcome
        self.tests: dict[tuple, str] = {}  # by test function and kernel, the first case of a parametrized test
        self.refused: Counter = Counter()  # of rejected versions, by target and `_alike`
        self.queue = Queue()
        self.cover = Cover()
        self.frozen = Frozen()
        self.differing: list[str] = []  # kernels of the current test that differ from the record
        self.compiled: list[Waiting] = []  # compiled by a test with the fixture `assembled_later`
        self.modules: dict[tuple, object] = {}  # optimised LLVM modules of the current test, by their IR text
        self.modules_in_use = RLock()     # tests compile in several threads, and one would close what another copies
        self.of_a_kernel = local()        # .now: whether this thread is compiling a kernel
        self.watching = True
        self.for_all = True  # whether some kernels are assembled for every target
        self._watch()

    # -- recording -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        lower, write, inline, optimize = Kernel._lower, tilejit.compile.assemble_graph, calls.inline, llvm.optimize

        def lowered(kernel, bound, options, target):
            self._walk(kernel.source)
            self.lowered[id(kernel)] = kernel
            found = lower(kernel, bound, options, target)
            if self.watching:
                key = id(kernel), bound.key, tuple(sorted(found.facts.items())), repr(sorted(options.items()))
                self.sightings.setdefault(key, Sighting(kernel, bound.without_data(), options)).met[target] = found
            return found

        def written(found, *meanwhile):
            try:
                with self._at_work():
                    code = write(found, *meanwhile)
            except TileError:  # the test expects the error, or fails anyway
                self.sightings = {k: s for k, s in self.sightings.items() if all(graph is not found for graph in s.met.values())}
                raise
            target = found.graph.target
            if self.watching and not config().override and (test := os.environ.get("PYTEST_CURRENT_TEST")):
                self.differing += self.frozen.code(found, code.texts["llvm_ir"], code.params, code.maps, test.rpartition(" (")[0])
            if (code.assembled.cubin or code.assembled is LATER) and not config().override and self._claim(code_key(found)):
                self.count[target, "assembled"] += 1
                new = self._has_new_forms(code.texts["llvm_ir"], target)
                later = code.assembled is LATER
                if later and (new or all_cases() or found.graph.launch.spills is not None):
                    title = f"{os.environ['PYTEST_CURRENT_TEST']}: {found.graph.name} for {target}"
                    self.compiled.append(Waiting(title, target, code.ptx, found.graph.launch.spills))
                if new or not later:
                    self.cover.shown(self._form_keys(code.texts["llvm_ir"], target))
            return code

        def inlined(walker, source, args, kwargs):
            self._walk(source)
            return inline(walker, source, args, kwargs)

        def optimized(ir, target, passes, libdevice):
            """Reuse the result of LLVM's passes for another target if the IR is the same: they take nearly half of LLVM's time. (Not with
            libdevice, whose functions may depend on the target.)"""
            if not getattr(self.of_a_kernel, "now", False):
                return optimize(ir, target, passes, libdevice)
            key = ir, passes, target if libdevice else ""
            with self.modules_in_use:
                if key not in self.modules:
                    if len(self.modules) >= MODULES:
                        self._forget_modules()
                    self.modules[key] = optimize(ir, target, passes, libdevice)
                return self.modules[key].clone()

        Kernel._lower, tilejit.compile.assemble_graph, calls.inline, llvm.optimize = lowered, written, inlined, optimized

    def forget_versions(self) -> None:
        """Free the versions that kernels keep. Later files hardly need them, and new graphs are made in memory that is still in caches."""
        while self.lowered:
            self.lowered.popitem()[1].versions.clear()

    def _forget_modules(self):
        with self.modules_in_use:
            while self.modules:
                self.modules.popitem()[1].close()

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
        """Lower the kernels recorded since the last call, from `test`, for every target, and enqueue them for the assembler; returns the
        problems. `drawn` says that the test is property-based, and may generate kernels' texts."""
        seen, self.sightings = self.sightings, {}
        self.watching = False
        versions: dict[str, list[Sighting]] = {}
        for sighting in seen.values():
            versions.setdefault(_text(sighting), []).append(sighting)
        compiled, self.compiled = self.compiled, []
        self.frozen.drawn = drawn
        try:
            for sighting in seen.values():
                for found in sighting.met.values():
                    self.differing += self.frozen.version(sighting.kernel, sighting.bound, found, test)
            problems = [*(problem for kernel in compiled for problem in self.queue.add(kernel)),
                        *(problem for same in versions.values() for problem in self._problems(spread(same, VERSIONS) if drawn else few(same), test))]
            return [*problems, *self.differing, instructions(test)] if self.differing else problems
        finally:
            self.watching, self.differing = True, []
            self._forget_modules()
            self.frozen.forget()

    def finish(self) -> list[str]:
        """Assemble the kernels that still wait; returns the problems."""
        try:
            with self.queue.beside():
                return [*self._cover_forms(), *self.queue.finish()]
        finally:
            self._forget_modules()

    def _problems(self, same: list[Sighting], test: str) -> list[str]:
        """The problems of a kernel's versions."""
        problems = []
        first = all_cases() or self.for_all and self.tests.setdefault((test.partition("[")[0], _text(same[0])), test) == test
        for n, sighting in enumerate(same):
            turn = (crc32(test.encode()) + n) % len(TARGETS)  # deterministic for each test
            for_all = first and n in ((0, len(same) - 1) if all_cases() else (0,))
            asked = False
            for target in TARGETS if for_all else (*TARGETS[turn:], *TARGETS[:turn]):
                unknown = self._unknown_calls(sighting, target)
                if unknown == ():
                    continue
                found = self._asked(sighting, target, test)
                self._learn_calls(unknown, target, found is not None)
                problems += found or []
                asked = asked or found is not None
                if asked and not for_all:
                    break
            if not asked and sighting.met:
                problems += self._asked(sighting, next(iter(sighting.met)), test) or []
        return problems

    def _unknown_calls(self, sighting: Sighting, target: str) -> tuple[str, ...] | None:
        """The keys of the forms of calls, in the graph that the test lowered, that no kernel had that the target accepts; none
        if a kernel with the same unknown forms was rejected. None if the test lowered it for the target, or all are to be tried."""
        if all_cases() or not sighting.met or target in sighting.met:
            return None
        if sighting.calls is None:
            sighting.calls = graph_forms.forms(next(iter(sighting.met.values())).graph)
        self._claim()  # what other processes have learnt
        keys = sorted(form_key(form, f"calls-{target}") for form in sighting.calls)
        unknown = tuple(key for key in keys if key not in self.claimed)
        known = not unknown or _rejection(unknown, target) in self.claimed
        self.count[target, "of known calls" if known else "of new calls"] += 1
        return () if known else unknown

    def _learn_calls(self, unknown: tuple[str, ...] | None, target: str, accepted: bool) -> None:
        """Only a kernel that the target accepts shows what becomes of all its calls."""
        if unknown:
            self._claim(*(unknown if accepted else (_rejection(unknown, target),)))

    def _asked(self, sighting: Sighting, target: str, test: str) -> list[str] | None:
        """The problems of one version for a target; None if the target rejects it, or has rejected enough that are alike."""
        alike = (target, *_alike(sighting, test))
        if self.refused[alike] >= REFUSALS:
            return None
        found = self._problem(sighting, target, test)
        if found is None:
            self.refused[alike] += 1
            self.count[target, "refused"] += 1
        return found

    def _problem(self, sighting: Sighting, target: str, test: str) -> list[str] | None:
        """The problems of one version for a target; None if it is rejected because the target lacks something."""
        name = f"{sighting.kernel.source!r} for {target}"
        try:
            found = sighting.met.get(target) or sighting.kernel._lower(sighting.bound, sighting.options, target)
            if target not in sighting.met:
                self.differing += self.frozen.version(sighting.kernel, sighting.bound, found, test)
            if of_the_tests_own(found) or not self._claim(code_key(found)):
                return []
            emitted = emit(found.graph)
            self.differing += self.frozen.code(found, emitted.llvm_ir, emitted.params, emitted.maps, test)
            screen.check(emitted.llvm_ir, target)
            new = self._new_forms(emitted.llvm_ir, target)
        except CompilationError as error:
            return None if says_what_is_missing(str(error), target) else [f"{name} is refused, and not for what the target lacks: {error}"]
        except Exception as error:
            return [f"{name}: {type(error).__name__}: {error}"]
        kernel = Candidate(f"{test}: {name}", target, emitted.llvm_ir, emitted.passes, emitted.libdevice, self._form_keys(emitted.llvm_ir, target))
        if all_cases():
            return self._made(kernel)
        self.cover.add(kernel, new)
        return []

    def _cover_forms(self) -> list[str]:
        """Of the kernels that wait, assemble some with all forms; returns the problems."""
        return [problem for kernel in self.cover.choose() for problem in self._made(kernel)]

    def _made(self, kernel: Candidate) -> list[str]:
        """Compile a kernel to PTX and enqueue it for the assembler; returns the problems."""
        try:
            with self._at_work():
                ptx = llvm.to_ptx(kernel.llvm_ir, kernel.target, passes=kernel.passes, libdevice=kernel.libdevice)
        except Exception as error:
            return [f"{kernel.title}: {type(error).__name__}: {error}"]
        self.count[kernel.target, "assembled"] += 1
        return self.queue.add(Waiting(kernel.title, kernel.target, ptx))

    def _has_new_forms(self, llvm_ir: str, target: str) -> bool:
        """Whether some instructions have forms that are new. The caller assembles the kernel then."""
        return bool(self._new_forms(llvm_ir, target))

    def _new_forms(self, llvm_ir: str, target: str) -> list[str]:
        """The keys of forms of instructions that no kernel had that was, or will be, assembled for the target, or for the oldest one: what that
        accepts, later ones accept. The caller sees to them."""
        keys = {form_key(form, target): form_key(form, TARGETS[0]) for form in forms(llvm_ir)}
        return [key for key in self._claim(*keys) if keys[key] not in self.claimed]

    def _form_keys(self, llvm_ir: str, target: str) -> frozenset[str]:
        """The keys of the forms that are shown if a kernel assembles for the target."""
        return frozenset(form_key(form, shown) for form in forms(llvm_ir) for shown in (TARGETS if target == TARGETS[0] else (target,)))

    def _claim(self, *keys: str) -> list[str]:
        """Those of the keys that no process has claimed; they are this one's now."""
        with self.one_thread:  # the file's lock holds between processes
            fcntl.flock(self.claims, fcntl.LOCK_EX)
            try:
                since = os.pread(self.claims, os.fstat(self.claims).st_size - self.read, self.read)
                self.read += len(since)
                self.claimed.update(since.decode().split())
                new = [key for key in keys if key not in self.claimed]
                os.write(self.claims, "".join(f"{key}\n" for key in new).encode())
                return new
            finally:
                fcntl.flock(self.claims, fcntl.LOCK_UN)


def _rejection(unknown: tuple[str, ...], target: str) -> str:
    return form_key(" ".join(unknown), f"rejected-{target}")


@cache
def form_key(form: str, target: str) -> str:
    return f"{target}:{blake2b(form.encode(errors='surrogatepass'), digest_size=10).hexdigest()}"


def _text(sighting: Sighting) -> str:
    """What tells a test's kernels apart: their texts, or the names of those whose texts the test generates."""
    source = sighting.kernel.source
    return source.name if source.file.startswith("<") else source.fingerprint()


def _alike(sighting: Sighting, test: str) -> tuple:
    """A key of versions that probably need the same instructions: those that differ only in facts, or all versions of a kernel of the package."""
    source = sighting.kernel.source
    if real(source.file).startswith(PACKAGE):
        return source.file, source.name
    return test, source.fingerprint(), sighting.bound.key, repr(sighting.options)


def few(versions: list[Sighting]) -> list[Sighting]:
    """At most `VERSIONS` versions of each kernel text."""
    texts: dict[str, list[Sighting]] = {}
    for sighting in versions:
        texts.setdefault(sighting.kernel.source.fingerprint(), []).append(sighting)
    return [sighting for same in texts.values() for sighting in spread(same, VERSIONS)]


def spread(versions: list, count: int) -> list:
    """At most `count` elements of a list, evenly spaced from the first to the last."""
    return versions if len(versions) <= count else [versions[i * (len(versions) - 1) // (count - 1)] for i in range(count)]


def says_what_is_missing(message: str, target: str) -> bool:
    """Whether an error rejects a kernel because of the target: one line says which targets have what the kernel needs, and names the
    current target; or it says how much shared memory the target has."""
    needs = re.search(rf"(needs?|exists on)\b[^\n]*sm_\d+[^\n]*\b{target}\b", message)
    memory = re.search(rf"\b{target}\b.*bytes of shared memory|bytes of shared memory.*\b{target}\b", message)
    return bool(needs or memory)


def of_the_tests_own(found: Lowered) -> bool:
    """Whether a graph has ops for the simulator only: `print`, `breakpoint`, or those of `tests/sim/engine_ops.py`."""
    return any(map(_of_the_simulator_alone, {call.op for call in walk(found.graph.body) if isinstance(call, Call)}))


@cache
def _of_the_simulator_alone(op) -> bool:
    return op.traits.simulated or op.rules.emit is None and Path(op.rules.infer.__code__.co_filename).is_relative_to(TESTS)


# -- the kernels in the files of tests -------------------------------------------------------------------------------------

def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """The functions in a module's tree, at any depth. Expressions, the bulk of a tree, are skipped, since they contain none."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef):
            yield inner
        if isinstance(inner, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _functions(inner)


def defined() -> dict[Place, str]:
    """The names of the functions decorated with ``@tile.jit`` in the files of `tests/`, by location, but for files whose tests need a library
    that is not installed."""
    found = {}
    for path in TESTS.rglob("*.py"):
        text = path.read_text()
        library = re.search(r'^pytestmark = needs_module\("(\w+)"\)', text, re.MULTILINE)
        if library and importlib.util.find_spec(library[1]) is None:
            continue
        for node in _functions(ast.parse(text)):
            if any(ast.unparse(d).startswith(("tile.jit", "tilejit.jit", "jit")) for d in node.decorator_list):
                found[str(path), node.lineno] = node.name
    return found
