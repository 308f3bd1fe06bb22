"""Every notebook of tutorials/ runs from its first cell to its last."""

from __future__ import annotations

import json
import os
import re
import runpy
from functools import reduce
from pathlib import Path

import pytest

from tests.gpu import gpu_targets, needs_gpu, needs_module, run_child

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
SECONDS = 50  # time limit per cell, in seconds
OTHERWISE = (  # output that differs between processes, machines or assemblers
    (r"\S*ipykernel_\d+/\d+\.py", "cell.py"), (r"compiled in ms: .*?; assembled by \S+", "compiled in ms: ..."), (r"\b\d+ registers", "N registers"),
    (r"\b\d+\.\d+ (m?s)\b", r"T \1"))


def test_there_are_tutorials():
    """Otherwise an empty folder would go unnoticed."""
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_tutorial_runs(path, tmp_path, monkeypatch):
    """In a fresh kernel, with an empty cache; on the GPU if there is one, otherwise on the simulator."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEJIT_COLUMNS", raising=False)  # messages as readers see them
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    if not gpu_targets():
        kept(path, notebook)


def kept(path: Path, run) -> None:
    """The outputs stored in the file match those of this run. With TILEJIT_UPDATE_GOLDEN they are updated."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    differ = [(old, new) for old, new in zip(stored["cells"], run.cells) if old["cell_type"] == "code" and shown(old) != shown(new)]
    if os.environ.get("TILEJIT_UPDATE_GOLDEN"):
        for old, new in differ:
            old["outputs"] = [{**output, "text": re.sub(*OTHERWISE[0], output["text"]).splitlines(True)} for output in new["outputs"]]
        path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        assert [shown(old) for old, _ in differ] == [shown(new) for _, new in differ]


def shown(cell) -> str:
    """A cell's output, with everything that may vary replaced."""
    texts = ["".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]) for output in cell["outputs"]]
    return reduce(lambda text, otherwise: re.sub(*otherwise, text), OTHERWISE, "".join(texts))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_is_stored_with_its_outputs_and_without_errors(path):
    """So that it can be read without running it."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


def run_as_program(path: str) -> None:
    runpy.run_path(path)


@pytest.mark.unperturbed
@pytest.mark.unsanitized  # it compares times, also with those of a library's kernels
@needs_gpu("sm_90a")
@needs_module("torch")
def test_the_steps_of_the_matrix_product_tutorial_are_timed_on_the_gpu(tmp_path):
    """The last cell, run as a program: every step computes the product and has a time, and the last step is far faster than the first."""
    cells = json.loads((ROOT / "tutorials" / "03_matrix_products.ipynb").read_text())["cells"]
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    lines = run_child(run_as_program, timeout=120, path=str(program)).splitlines()
    times = [(found[1], float(found[2])) for line in lines if (found := re.fullmatch(r"(\S.*?) +([\d.]+) ms +[\d.]+ TFLOP/s", line))]
    steps = ["torch.mm", "1 naive", "2 staged", "3 by_tma", "4 ringed", "5 persistent", "6 short", "7 split", "8 matmul"]
    assert [name for name, _ in times] == [*steps, "torch.mm", *steps[5:]]
    large = dict(times[:len(steps)])
    assert all(t > 0 for _, t in times) and large["8 matmul"] * 10 < large["1 naive"]
