"""Installed packages, as recorded in pip's metadata folders."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tilejit.toolchain.packages import package


@pytest.mark.parametrize("name", ["llvmlite", "nvidia-cuda-nvcc", "numpy", "ml_dtypes", "pytest"])
def test_versions_agree_with_importlib_metadata(name):
    assert package(name).version == importlib.metadata.version(name)


def test_files_are_found_by_their_names():
    assert package("nvidia-cuda-nvcc").file("ptxas").stat().st_size > 10**6
    assert package("nvidia-cuda-nvcc").file("absent") is None


def test_an_absent_package_is_none():
    assert package("no-such-package-at-all") is None and package("llvm") is None


def test_the_first_folder_on_the_path_wins_and_names_are_normalised(tmp_path, monkeypatch):
    info = tmp_path / "Some_Tool-1.2.3.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("some/bin/tool,sha256=x,3\nsome/bin/mytool,sha256=x,3\n")
    (tmp_path / "some/bin").mkdir(parents=True)
    (tmp_path / "some/bin/tool").write_text("abc")
    monkeypatch.syspath_prepend(tmp_path)
    found = package("some-tool")
    assert found.version == "1.2.3" and found.file("tool") == tmp_path / "some/bin/tool" and found.file("mytool") is None


# -- what an installation brings ---------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required_by(lines: list[str]) -> set[str]:
    """The packages that requirements name, without those of extras."""
    return {normalised(re.match(r"[\w.-]+", line)[0]) for line in lines if not re.search(r"extra ==", line)}


def with_what_they_bring(names: set[str]) -> set[str]:
    found, waiting = set(), set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= required_by(importlib.metadata.requires(name) or []) - found
    return found


def megabytes(name: str) -> float:
    return sum(file.size or 0 for file in importlib.metadata.files(name) or []) / 1e6


def test_the_readme_lists_all_that_an_installation_brings_and_its_size():
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.findall(r'"([^"]+)"', re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1])
    rows = re.findall(r"^\| (`.*?) \| (\d+) \| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    sizes = {tuple(map(normalised, re.findall(r"`([\w-]+)`", names))): int(size) for names, size, _ in rows}
    assert {name for names in sizes for name in names} == with_what_they_bring(required_by(listed))
    for names, size in sizes.items():
        assert sum(map(megabytes, names)) == pytest.approx(size, rel=0.2), names


def test_the_simulator_needs_neither_llvm_nor_what_nvidia_ships():
    """As the README says; and an error says what compiling needs."""
    program = ("import sys\nsys.modules.update(dict.fromkeys(('llvmlite', 'cuda', 'numba', 'nvidia')))\n"
               "import numpy as np, tilejit as tile\n"
               "k = tile.jit(source='def k(x, y):\\n    tile.store(y[0:64], tile.exp(tile.load(x[0:64])))\\n')\n"
               "x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)\n"
               "k[1](x, y)\nprint(y.sum())\n"
               "try:\n    k.compile(x, y)\nexcept tile.ToolchainError as error:\n    print(error.message.partition(' could')[0])\n")
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TILEJIT_NO_CACHE="1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.stdout.splitlines() == ["64.0", "llvmlite is needed to compile kernels and"], done.stderr
