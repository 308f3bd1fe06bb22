"""Disassembles a cubin to SASS text, by nvdisasm (or cuobjdump, which runs it)."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache

from ..errors import ToolchainError
from . import pathfinder
from .packages import package

_WHEELS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump", "nvidia-cuda-nvcc")


def find() -> str:
    """The path of the disassembler. ToolchainError, which says how to get one, if there is none."""
    environment = os.environ
    return _find(environment.get("CUDA_HOME") or environment.get("CUDA_PATH") or "", environment.get("PATH", ""))


@lru_cache(maxsize=16)
def _find(home: str, path: str) -> str:
    for wheel in _WHEELS:
        there = package(wheel)
        program = there.file("nvdisasm") if there else None
        if program is not None and os.access(program, os.X_OK):
            return str(program)
    search = os.pathsep.join(filter(None, (home and os.path.join(home, "bin"), path)))
    for name in ("nvdisasm", "cuobjdump"):
        found = shutil.which(name, path=search)
        if found:
            return found
    for name in ("nvdisasm", "cuobjdump"):
        found = pathfinder.program(name)
        if found:
            return found
    raise ToolchainError("no disassembler was found: pip install nvidia-cuda-nvdisasm brings one")


def sass(cubin: bytes, *, lines: bool = True) -> str:
    """The SASS of every function in `cubin`; with `lines`, source lines precede the instructions.

    Raises ToolchainError if there is no disassembler or it rejects the cubin."""
    program = find()
    name = os.path.basename(program)
    with_lines = ["-c", "-g"] if lines else ["-c"]
    options = ["-sass"] if name.startswith("cuobjdump") else with_lines
    source = os.memfd_create("cubin")
    try:
        with open(source, "wb", closefd=False) as file:
            file.write(cubin)
        done = subprocess.run([program, *options, f"/proc/self/fd/{source}"], capture_output=True, pass_fds=(source,))
    except OSError as error:
        raise ToolchainError(f"the disassembler {program} could not be run: {error}") from None
    finally:
        os.close(source)
    if done.returncode:
        raise ToolchainError(f"the disassembler {program} refused the cubin: "
                             f"{done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")
