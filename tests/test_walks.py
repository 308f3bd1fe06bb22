"""The walks of docs/contributing: what a page adds is all that it takes.

Each test takes the page's op, variant, instruction or pass out of a copy of the package. There, everything else still
works. Then it adds the page's code to the copy, and runs a kernel with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.docs.source_blocks import ROOT, WALKS, Walk, read_walk

# What the package does without the walk: it loads, lowers, simulates and assembles.
WITHOUT = """
import importlib, pkgutil
import numpy as np
import tilejit as tile
for module in pkgutil.walk_packages(tile.__path__, "tilejit."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

@tile.jit
def staged(x, y, N: tile.constexpr):
    buffer = tile.alloc((N, 64), x.dtype)
    tile.copy_async(buffer, x[0:N, 0:64]).wait()
    tile.store(y[0:N], tile.sum(tile.load(buffer), axis=1))

x, y = np.ones((16, 64), np.float32), np.zeros(16, np.float32)
staged.simulate((1,), x, y, N=16).raise_first()
assert (y == 64).all() and staged.compile(x, y, N=16, target="sm_90a").cubin
"""


# The generated files that the op's page lists. `python -m tests.public.generate` also writes the other pages, in 5 s.
GENERATE = """
from tests.public.families import FAMILIES
from tests.public.generate import ROOT
from tests.public.pages import page, unplaced
from tests.public.stub import stub

assert not unplaced()
(ROOT / "tilejit" / "__init__.pyi").write_text(stub())
(ROOT / "docs" / "reference").mkdir()
(ROOT / "docs" / "reference" / "creation.md").write_text(page(next(f for f in FAMILIES if f.page == "creation")))
"""


def take_out(package: Path, walk: Walk) -> list[int]:
    """Undo in a copy of the package what the walk adds; where each edit was."""
    for path in walk.files:
        (package / path).unlink()
    places = []
    for edit in walk.edits:
        text = (package / edit.path).read_text()
        assert text.count(edit.after) == 1, f"{edit.path} has this {text.count(edit.after)} times: {edit.after}"
        places.append(text.index(edit.after))
        (package / edit.path).write_text(text.replace(edit.after, edit.before))
    return places


def put_in(package: Path, walk: Walk, places: list[int]) -> None:
    """Add the walk's files and edits, as its page shows them."""
    for path, text in walk.files.items():
        (package / path).write_text(text)
    for edit, n in zip(reversed(walk.edits), reversed(places)):
        text = (package / edit.path).read_text()
        assert text.startswith(edit.before, n)
        (package / edit.path).write_text(text[:n] + edit.after + text[n + len(edit.before):])


def run(package: Path, script: str, name: str = "script.py") -> subprocess.CompletedProcess:
    """A program in a process of its own, which imports the copy."""
    (package / name).write_text(script)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TILEJIT_")}
    environment |= {"PYTHONPATH": str(package), "TILEJIT_CACHE_DIR": str(package / "cache"), "TILEJIT_COLUMNS": "0",
                    "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, name], cwd=package, env=environment, capture_output=True, text=True,
                          timeout=300)


def files_of(page: Path) -> list[str]:
    """The first column of the page's table of files."""
    table = page.read_text().partition("| file | what is added |\n")[2].partition("\n\n")[0]
    return [path for line in table.splitlines() for path in re.findall(r"`([^`]+)`", line.split("|")[1])]


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the package, with the bytecode that there is: compiling all files takes seconds."""
    for folder in ("tilejit", "tests/public"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for source in (ROOT / folder).rglob("*.py"):
            compiled = Path(cache_from_source(str(source)))
            if compiled.exists():
                to = Path(cache_from_source(str(tmp_path / source.relative_to(ROOT))))
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(compiled, to)
    return tmp_path


def walk_through(package: Path, name: str, script: str, missing: str) -> Walk:
    """`script` fails without the walk, with an error that says `missing`, and runs with it. Nothing else needs it."""
    page = WALKS / f"{name}.md"
    walk = read_walk(page)
    listed = files_of(page)
    assert set(walk.touched) <= set(listed)
    assert all((ROOT / path).exists() for path in listed)
    places = take_out(package, walk)
    without = run(package, WITHOUT)
    assert without.returncode == 0, f"without the {name}: {without.stderr[-2000:]}"
    failed = run(package, script)
    assert failed.returncode != 0 and missing in failed.stderr, failed.stdout + failed.stderr
    put_in(package, walk, places)
    done = run(package, script)
    assert done.returncode == 0, done.stderr
    return walk


def others(name: str, walk: Walk) -> list[str]:
    """What the page lists beside the package's files: its test and its page."""
    return [path for path in files_of(WALKS / f"{name}.md") if path not in walk.touched]


def test_an_instruction_is_one_row(package):
    """With it a kernel runs on the simulator by a function of its own, and the assembler takes it for every target."""
    walk = walk_through(package, "instruction", """
import numpy as np
import tilejit as tile

def reversed_bits(a):
    return np.array([int(f"{n:032b}"[::-1], 2) for n in a.ravel()], np.uint32).reshape(a.shape)

@tile.jit(num_warps=1)
def reverse(x, out):
    tile.store(out[0:32], tile.ptx.brev.b32(tile.load(x[0:32]), simulate=reversed_bits))

x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
reverse[1,](x, out)
assert out[1] == 1 << 31 and out[3] == 3 << 30
for target in ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"):
    compiled = reverse.compile(x, out, target=target)
    assert "brev.b32" in compiled.ptx and compiled.cubin
""", "brev")
    (row,) = walk.edits
    assert not walk.files and row.after.startswith("    Row(") and "\n" not in row.after
    assert not others("instruction", walk)


def test_a_pass_is_one_file_and_its_place_in_the_order(package):
    """And its test, and its row on the page of passes."""
    walk = walk_through(package, "pass", """
import numpy as np
import tilejit as tile

@tile.jit
def beyond(out, AT: tile.constexpr):
    buffer = tile.alloc((8,), tile.float32)
    tile.store(buffer, 1)
    tile.sync()
    tile.store(out[0], tile.load(buffer[AT]))

out = np.zeros(1, np.float32)
beyond[1,](out, AT=7)
assert out[0] == 1
try:
    beyond.compile(out, AT=8)
except tile.CompilationError as error:
    assert "this names element 8" in str(error)
else:
    raise SystemExit("element 8 was not refused")
""", "element 8 was not refused")
    assert walk.touched == ["tilejit/passes/checks/constant_bounds.py", "tilejit/compile.py"] and len(walk.files) == 1
    assert [path.split("/")[0] for path in others("pass", walk)] == ["tests", "docs"]


def test_an_op_is_one_file_a_module_to_load_and_a_name(package):
    """And its test, and its row in the guide."""
    walk = walk_through(package, "op", """
import numpy as np
import tilejit as tile

@tile.jit
def joined(x, y, out):
    tile.store(out[0:2, 0:32], tile.stack((tile.load(x[0:32]), tile.load(y[0:32]))))

x, y, out = np.arange(32, dtype=np.float32), np.arange(32, dtype=np.float32) + 50, np.zeros((2, 32), np.float32)
joined.simulate(1, x, y, out).raise_first()
assert (out == np.stack((x, y))).all()
for target in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
    assert joined.compile(x, y, out, target=target).cubin
""", "tile has no attribute 'stack'")
    assert [path for path in walk.touched if path.startswith("tilejit")] == [
        "tilejit/ops/language/stack.py", "tilejit/ops/__init__.py", "tilejit/api.py"]
    assert [path.split("/")[0] for path in others("op", walk)] == ["tests", "docs"]
    (package / "docs").mkdir()
    (package / "tilejit" / "__init__.pyi").unlink()
    generated = run(package, GENERATE)
    assert generated.returncode == 0, generated.stderr
    assert "def stack(" in (package / "tilejit" / "__init__.pyi").read_text()
    assert "`tile.stack`" in (package / "docs" / "reference" / "creation.md").read_text()


def test_a_variant_is_one_file_and_its_place_in_the_order(package):
    """And its test, and its page."""
    walk = walk_through(package, "variant", """
import numpy as np
import tilejit as tile

@tile.jit
def fetch(x, y):
    buffer, bar = tile.alloc((4, 60), x.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(buffer.nbytes)
        tile.copy_async(buffer, x[0:4, 0:60], mbar=bar, variant="bulk")
    bar.wait(phase=0)
    tile.copy(y[0:4, 0:60], buffer)

x, y = np.arange(256, dtype=np.float32).reshape(4, 64), np.zeros((4, 60), np.float32)
fetch.simulate(1, x, y).raise_first()
assert (x[:, :60] == y).all()
compiled = fetch.compile(x, y, target="sm_90a")
assert compiled.cubin and compiled.copies[0].variant == "bulk" and "cp.async.bulk.shared::cluster.global" in compiled.ptx
""", "dsmem, tcgen05_cp, vector, not 'bulk'")
    assert [path.rpartition("/")[2] for path in walk.touched] == ["bulk.py", "__init__.py"] and len(walk.files) == 1
    assert [path.split("/")[0] for path in others("variant", walk)] == ["tests", "docs"]
