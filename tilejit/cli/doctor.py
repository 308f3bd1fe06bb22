"""``tilejit doctor``: what is here, what works, and what to install. It needs no GPU and reports tools that lack."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import groupby

from ..config import TARGETS, Config, config
from ..errors import TileError
from ..lazy import Lazy
from ..runtime import driver, libcuda
from ..runtime.store import Store
from ..toolchain import assembler, disassembler, libdevice, llvm
from ..toolchain.packages import package
from .cache import size
from .text import count, print_json, wrap

demo = Lazy("tilejit.demo")  # kernels, which bring NumPy
numpy = Lazy("numpy")
device_array = Lazy("tilejit.runtime.device_array")

PACKAGES = ("numpy", "ml_dtypes", "threadpoolctl", "llvmlite", "cuda-bindings")
OPTIONAL = ("numba", "cuda-core", "torch", "jax", "cupy")
EMPTY_KERNEL = "define ptx_kernel void @k() {\n  ret void\n}\n"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `state` is "ok", "missing" or "broken", or "none" for what may be absent."""

    part: str
    name: str
    state: str
    text: str


def run(arguments: argparse.Namespace) -> int:
    """Print the checks; the status is 1 if kernels cannot be compiled, simulated, or launched on a GPU that is here."""
    checks = [*_environment(), *_tools(), *_gpu(), *_what_works()]
    fit = not any(c.state in ("broken", "missing") and c.part != "GPU" and c.name != "SASS" for c in checks)
    if arguments.json:
        print_json({"ok": fit, "checks": list(map(asdict, checks))})
    else:
        for part, group in groupby(checks, lambda c: c.part):
            print(part)
            for c in group:
                print(wrap(f"  {c.state:<7}  {c.name}: {c.text}"))
        print("\n" + ("kernels can be compiled and simulated" if fit else "something is missing or broken: see above"))
    return 0 if fit else 1


def _attempt(part: str, name: str, look: Callable[[], str], failure: str = "missing") -> Check:
    """A check that is ok with the text that `look` returns, or has the text of its error."""
    try:
        return Check(part, name, "ok", look())
    except (TileError, OSError, ImportError) as error:
        return Check(part, name, failure, " ".join(str(error).split()))


def _environment() -> Iterator[Check]:
    part = "Environment"
    yield Check(part, "Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        found = package(name)
        yield Check(part, name, "ok" if found else "missing", found.version if found else f"pip install {name}")
    for name in OPTIONAL:
        if found := package(name):
            yield Check(part, name, "ok", found.version)
    settings = config()
    given = [f"TILEJIT_{f.name.upper()}={os.environ['TILEJIT_' + f.name.upper()]}" for f in fields(Config)
             if "TILEJIT_" + f.name.upper() in os.environ]
    yield Check(part, "settings", "ok", ", ".join(given) or "all by default")
    if settings.no_cache:
        yield Check(part, "cache", "none", "turned off by TILEJIT_NO_CACHE")
    else:
        yield _attempt(part, "cache", _cache, "broken")


def _cache() -> str:
    store = Store(config().cache_path)
    folder = next(p for p in (store.path, *store.path.parents) if p.exists())
    if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        raise OSError(f"{store.path} cannot be written, so kernels are compiled in every process; "
                      "set TILEJIT_CACHE_DIR to another folder")
    return f"{store.path}, {count(len(store.entries()), 'entry', 'entries')}, {size(store.nbytes())}"


def _tools() -> Iterator[Check]:
    def assembler_text() -> str:
        found = assembler.find()
        where = f"at {found.path}" if found.path else ""
        return " ".join(filter(None, (found.kind, found.version, where, f"by {found.name}")))

    yield _attempt("Tools", "assembler", assembler_text)
    yield _attempt("Tools", "libdevice", lambda: f"{libdevice.locate()[0]}")
    yield _attempt("Tools", "SASS", disassembler.find)


def _gpu() -> Iterator[Check]:
    """The driver and its GPUs, which may be absent."""
    if not driver.available():
        try:
            text = f"the driver has {count(driver.device_count(), 'GPU')}"
        except TileError as error:
            text = " ".join(str(error).split())
        yield Check("GPU", "driver", "broken" if libcuda.device_files() else "none", text)
        return
    version = driver.version()
    yield Check("GPU", "driver", "ok", f"for CUDA {version // 1000}.{version % 1000 // 10}")
    for device in range(driver.device_count()):
        yield _attempt("GPU", f"device {device}", partial(_device, device), "broken")


def _device(device: int) -> str:
    return f"{driver.name(device)}, {driver.target(device)}"


def _what_works() -> Iterator[Check]:
    part = "What works"
    for target in TARGETS:
        yield _attempt(part, f"compile for {target}", partial(_assemble, target), "broken")
    yield _attempt(part, "simulate", partial(_add, "sim"), "broken")
    if driver.available():
        yield _attempt(part, "launch", partial(_add, "cuda"), "broken")
    else:
        yield Check(part, "launch", "none", "no GPU here; kernels on NumPy arrays run on the simulator")


def _assemble(target: str) -> str:
    done = assembler.assemble(llvm.to_ptx(EMPTY_KERNEL, target), target)
    return f"by LLVM and {done.assembler} {done.version}".rstrip()


def _add(backend: str) -> str:
    """Run a kernel and check its result."""
    x, out = numpy.arange(1000, dtype="float32"), numpy.zeros(1000, "float32")
    arrays = [x, x, out] if backend == "sim" else [device_array.to_device(a) for a in (x, x, out)]
    demo.vector_add[(4,)](*arrays, BLOCK=256, backend=backend)
    got = out if backend == "sim" else arrays[2].numpy()
    if not (got == 2 * x).all():
        raise OSError("vector_add gave a wrong result")
    return "vector_add, with the right result"
