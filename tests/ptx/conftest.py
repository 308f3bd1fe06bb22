"""The fixtures of the PTX tests: the assembler."""

import importlib.metadata
import shutil
import subprocess

import pytest


def find_ptxas():
    """The assembler of the wheel nvidia-cuda-nvcc, or the one on PATH."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvcc") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    return next((str(file.locate()) for file in files if file.name == "ptxas"), None) or shutil.which("ptxas")


@pytest.fixture(scope="session")
def assemble():
    """assemble(ptx, target) returns the assembler's messages if it refuses the module, otherwise None."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas: neither the wheel nvidia-cuda-nvcc nor PATH has one")

    def run(ptx, target):
        done = subprocess.run([ptxas, f"-arch={target}", "-O1", "-", "-o", "/dev/null"], input=ptx, capture_output=True, text=True)
        return None if done.returncode == 0 else done.stdout + done.stderr
    return run
