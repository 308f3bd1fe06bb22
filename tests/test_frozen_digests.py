"""The digests of kernels are the same wherever they are made, and a difference from the record is reported by kernel, target and stage."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from tilejit.emit.emitter import emit
from tilejit.ir.graph import Call, walk

from tests.frozen_digests import MISSING, Digests, Frozen, described, instructions, read, too_few, updated, write

TEST = "tests/folder/test_file.py::test_case[1]"


@tile.jit
def through_shared(x, y, n: tile.constexpr):
    s = tile.alloc((64,), x.dtype)
    token = tile.copy_async(s[0:64], x[0:64])
    token.wait()
    tile.store(y[0:64], tile.load(s[0:64]) * n)


@dataclass
class Sized:
    size: int
    parts: tuple


@dataclass
class Renamed:
    length: int
    pieces: tuple


def lowered(target: str = "sm_90a", n: int = 3):
    """The kernel, the call, and the lowered kernel."""
    from tilejit.runtime.arguments import bind_arguments
    x = np.zeros(64, np.float32)
    bound = bind_arguments("through_shared", through_shared.parameters, (x, x, n), {}).without_data()
    return through_shared, bound, through_shared._lower(bound, {}, target)


def compared(recorded: Digests, found, llvm_ir: str | None = None, n: int = 3) -> list[str]:
    frozen = Frozen(recorded, "check")
    emitted = emit(found.graph)
    kernel, bound, _ = lowered(n=n)
    return [*frozen.version(kernel, bound, found, TEST), *frozen.code(found, llvm_ir or emitted.llvm_ir, emitted.params, emitted.maps, TEST)]


@pytest.fixture(scope="module")
def recorded() -> Digests:
    kernel, bound, found = lowered()
    frozen = Frozen(Digests(), "update")
    emitted = emit(found.graph)
    assert frozen.version(kernel, bound, found, TEST) == frozen.code(found, emitted.llvm_ir, emitted.params, emitted.maps, TEST) == []
    return frozen.met


def test_the_same_kernel_has_the_recorded_digests(recorded):
    assert compared(recorded, lowered()[2]) == []
    assert [key[:3] for key in recorded.versions] == [("folder/test_file.py", "through_shared", "sm_90a")]


def test_another_version_of_a_kernel_is_new(recorded):
    assert compared(recorded, lowered(n=4)[2], n=4) == []


def test_the_stage_that_differs_is_named(recorded):
    (version,) = {key[3] for key in recorded.versions}
    says = f"through_shared for sm_90a (version {version}): its %s differs from what tests/digests records"

    found = lowered()[2]
    assert compared(recorded, replace(found, graph=replace(found.graph, shared_bytes=found.graph.shared_bytes + 8)))[0] == says % "graph"

    found = lowered()[2]
    copy = next(n for n in walk(found.graph.body) if isinstance(n, Call) and n.choice is not None and n.op.name == "copy_async")
    object.__setattr__(copy.choice, "plan", (copy.choice.plan, "more"))
    frozen = Frozen(recorded, "check")
    kernel, bound, _ = lowered()
    assert frozen.version(kernel, bound, found, TEST) == [says % "plans"]

    found = lowered()[2]
    assert ": its LLVM IR differs" in compared(recorded, found, emit(found.graph).llvm_ir.replace("ret void", "unreachable"))[0]


def test_line_tables_are_no_part_of_the_code(recorded):
    found = lowered()[2]
    assert compared(recorded, found, emit(found.graph).llvm_ir.replace("!DILocation(line: ", "!DILocation(line: 1")) == []


def test_a_record_that_was_written_is_read_again_without_unsteady_versions(recorded, tmp_path):
    write(recorded, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.txt"]
    again = read(tmp_path)
    assert (again.versions, again.code) == (recorded.versions, recorded.code)

    several = Digests.of_lines(recorded.lines())
    (key, made), = several.versions.items()
    several.put(("folder/other.py", *key[1:]), ("1", "2"))
    several.put(key, ("3", "4"))
    write(Digests.of_lines(several.lines()), tmp_path)
    assert read(tmp_path).versions == {("folder/other.py", *key[1:]): ("1", "2")} and MISSING in (tmp_path / "folder.txt").read_text()


def test_an_update_replaces_the_files_that_were_run_and_keeps_the_others():
    old = Digests({("a.py", "k", "sm_80", "1"): ("1", "1"), ("a.py", "k", "sm_80", "2"): ("2", "2"), ("b.py", "k", "sm_80", "3"): ("3", "3")})
    met = Digests({("a.py", "k", "sm_80", "1"): ("4", "4")})
    assert updated(old, met, {"a.py"}).versions == {("a.py", "k", "sm_80", "1"): ("4", "4"), ("b.py", "k", "sm_80", "3"): ("3", "3")}
    assert updated(old, met, ()).versions == {**old.versions, **met.versions}


def test_a_run_of_all_tests_that_compares_little_fails():
    old = Digests({("a.py", "k", "sm_80", str(n)): ("1", "1") for n in range(100)})
    assert not too_few(old, Digests(dict([*old.versions.items()][:95]))) and too_few(old, Digests(dict([*old.versions.items()][:94])))


def test_values_are_described_without_the_names_of_classes_and_fields_and_without_addresses():
    class Opaque:
        pass
    assert described(Sized(3, (1, tile.float32))) == described(Renamed(3, (1, tile.float32))) == "[3,(1,float32)]"
    assert described(Sized(3, (1,))) != described(Sized(3, ((1,),)))
    assert "0x" not in described(Opaque()) and described(np.int32(3)) == "3" and described({"b", "a"}) == "{'a','b'}"


def test_the_message_says_how_to_see_the_difference_and_how_to_update_the_record():
    assert f"TILEJIT_FREEZE=/tmp/before python -m pytest '{TEST}'" in instructions(TEST)
    assert "TILEJIT_FREEZE=update python -m pytest tests/folder/test_file.py" in instructions(TEST)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_digests_are_the_same_in_another_folder_and_for_other_hash_seeds(recorded, seed, tmp_path):
    here = Path(__file__).parent.parent
    for part in ("tilejit", "tests/frozen_digests.py", "tests/test_frozen_digests.py"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (here / part).is_dir() else shutil.copy
        copy(here / part, tmp_path / part)
    code = "from tests.test_frozen_digests import *\nprint('\\n'.join(recorded.__wrapped__().lines()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ""},
                          capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == recorded.lines(), done.stdout + done.stderr
