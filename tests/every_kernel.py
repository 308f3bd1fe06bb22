"""Every kernel that a test lowers becomes machine code for every target, or is refused in the compiler's own words.

`tests/conftest.py` has `KERNELS` watch each test: whatever the test simulates, compiles or launches is lowered by one
function of the package, and is kept until the test has ended. Then it is lowered again for each target, emitted and
assembled, and what the assembler refuses is an error of that test. A kernel that a target has no instructions for must
have been refused by an error that names the target and what it lacks.

At the end of a run of the whole suite the kernels that stand in the files of `tests/`, and that no test lowered, are an
error too: so a kernel cannot be forgotten.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tilejit.compile
import tilejit.frontend.calls as calls
from tilejit.compile import Lowered
from tilejit.emit.emitter import emit
from tilejit.errors import CompilationError, TileError
from tilejit.jit import Kernel
from tilejit.ir.graph import Call, walk
from tilejit.manifest import code_key
from tilejit.toolchain.assembler import assemble
from tilejit.toolchain.llvm import to_ptx

TESTS = Path(__file__).resolve().parent
TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@dataclass
class Sighting:
    """A kernel as a test called it. `met` are the graphs by target, as the test's own lowering left them."""

    kernel: Kernel
    bound: object
    options: dict
    met: dict[str, Lowered] = field(default_factory=dict)


class Kernels:
    """What the tests of this process lowered."""

    def __init__(self):
        self.sightings: dict[tuple, Sighting] = {}
        self.assembled: set[str] = set()      # code keys
        self.walked: set[tuple[str, int]] = set()  # (file, line) of the kernels and helpers that were lowered
        self.count: Counter = Counter()       # by target and outcome
        self.watching = True
        self._watch()

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        lower, write, inline = Kernel._lower, tilejit.compile.assemble_graph, calls.inline

        def lowered(kernel, bound, options, target):
            self._walk(kernel.source)
            found = lower(kernel, bound, options, target)
            if self.watching:
                key = id(kernel), bound.key, tuple(sorted(found.facts.items())), repr(sorted(options.items()))
                sighting = self.sightings.setdefault(key, Sighting(kernel, bound.without_data(), options))
                sighting.met[target] = found
            return found

        def written(found):
            try:
                return write(found)
            except TileError:  # the test's own business
                self._forget(found)
                raise

        def inlined(walker, source, args, kwargs):
            self._walk(source)
            return inline(walker, source, args, kwargs)

        Kernel._lower, tilejit.compile.assemble_graph, calls.inline = lowered, written, inlined

    def _walk(self, source) -> None:
        self.walked.add((source.file, source.tree.lineno))

    def _forget(self, found: Lowered) -> None:
        self.sightings = {k: s for k, s in self.sightings.items() if found not in s.met.values()}

    @contextmanager
    def _resting(self):
        self.watching = False
        try:
            yield
        finally:
            self.watching = True

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self) -> list[str]:
        """Assemble what was seen since the last call; what is wrong with it."""
        seen, self.sightings = self.sightings, {}
        with self._resting():
            return [problem for sighting in seen.values() for target in TARGETS if (problem := self._problem(sighting, target))]

    def _problem(self, sighting: Sighting, target: str) -> str:
        name = f"{sighting.kernel.source!r} for {target}"
        try:
            found = sighting.met.get(target) or sighting.kernel._lower(sighting.bound, sighting.options, target)
            if any("emit" not in c.op.rules for c in walk(found.graph.body) if isinstance(c, Call)):
                return ""
            key = code_key(found)
            if key in self.assembled:
                return ""
            emitted = emit(found.graph)
        except CompilationError as error:
            self.count[target, "refused"] += 1
            import os, json
            open("/tmp/refusals.txt", "a").write(json.dumps([name, str(error)]) + "\n")
            return "" if says_what_is_missing(str(error), target) else f"{name}: {error}"
        try:
            cubin = assemble(to_ptx(emitted.llvm_ir, target, libdevice=emitted.libdevice), target).cubin
        except TileError as error:
            return f"{name}: {type(error).__name__}: {error}"
        if not cubin:
            return f"{name}: no machine code"
        self.assembled.add(key)
        self.count[target, "assembled"] += 1
        return ""


def says_what_is_missing(message: str, target: str) -> bool:
    """Whether an error is a refusal because of the target, and says so."""
    return target in message
