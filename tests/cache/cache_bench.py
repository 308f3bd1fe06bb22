"""A kernel in a module of its own, loaded as a new process would load it, while the compilation stages that run are counted."""

import importlib.util
import itertools
import linecache
import os
import subprocess
import sys
import textwrap

import pytest
import tilejit as tile
import tilejit.compile

SCALE = """
import tilejit as tile

FACTOR = 2.0
UNRELATED = 1

@tile.jit
def helper(v):
    return v * FACTOR

@tile.jit
def scale(x, y, N: tile.constexpr):
    i = tile.program_id(0)
    tile.store(y[i, 0:N], helper(tile.load(x[i, 0:N])))

def other():
    return 1
"""

STAGE = """
import tilejit as tile

@tile.jit(num_warps=4)
def stage(A, B):
    sA = tile.alloc((8, 256), A.dtype, scope="shared", layout=tile.swizzled(A.dtype, (8, 256), 128))
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(sA.nbytes)
        tile.copy_async(sA, A[0:8, 0:256], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[0:8, 0:256], sA)
"""


class Bench:
    """Loads module texts from one file, and reports which compilation stages have run since the last query."""

    def __init__(self, folder):
        self.file = folder / "kernels.py"
        self.ran: list[str] = []
        self.numbers = itertools.count()

    def load(self, text: str = SCALE):
        """Load this text as a module, as a fresh process would."""
        self.file.write_text(textwrap.dedent(text))
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location(f"kernels{next(self.numbers)}", self.file)
        module = importlib.util.module_from_spec(spec)
        module.__name__ = "kernels"
        exec(compile(self.file.read_text(), str(self.file), "exec"), module.__dict__)
        return module

    def stages(self) -> str:
        """"" for a hit, "lower" if only the graph's code was cached, "lower assemble" for a complete compilation."""
        ran, self.ran[:] = " ".join(self.ran), []
        return ran


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A `Bench` with its own cache folder."""
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("NO_CACHE", "DUMP", "OVERRIDE", "LOG", "PTXAS", "TARGET"):
        monkeypatch.delenv("TILEJIT_" + name, raising=False)
    bench = Bench(tmp_path)
    for stage, name in (("lower", "lower"), ("assemble_graph", "assemble")):
        monkeypatch.setattr(tilejit.compile, stage, _counted(getattr(tilejit.compile, stage), name, bench.ran))
    return bench


def _counted(function, name, ran):
    def run(*args, **kwargs):
        ran.append(name)
        return function(*args, **kwargs)
    return run


def specs(columns: int = 128, rows: int = 64, dtype: str = "float32"):
    """Specs of the two array arguments of `scale` and `stage`."""
    return tile.ArraySpec((rows, columns), dtype), tile.ArraySpec((rows, columns), dtype)


def python(code: str, **environment) -> subprocess.CompletedProcess:
    """Run code in another process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done
