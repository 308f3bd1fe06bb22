"""Installed packages, as recorded in pip's metadata folders."""

import importlib.metadata

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
