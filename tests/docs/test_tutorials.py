"""Every notebook of tutorials/ runs from its first cell to its last, and gives the outputs that it stores (`tests/docs/notebooks.py`)."""

from __future__ import annotations

import ast
import os
import re
import runpy
from pathlib import Path

import pytest
from tilejit.jit import Kernel

from tests.docs import notebooks
from tests.docs.notebooks import FOLDER, NOTEBOOKS, ROOT
from tests.gpu import needs_gpu, needs_module, run_child

SUBJECTS = ("01_first_kernel", "02_tiles_and_layouts", "03_moving_data", "04_barriers_and_pipelines", "05_matrix_products",
            "06_roles_and_clusters", "07_softmax_and_norms", "08_attention", "09_debugging_and_profiling", "10_testing",
            "11_from_triton", "12_torch_and_jax")


def test_there_is_a_notebook_for_each_subject_and_the_index_links_to_each():
    """With 10 to 25 cells."""
    assert [path.stem for path in NOTEBOOKS] == list(SUBJECTS)
    index = (ROOT / "docs" / "index.md").read_text()
    assert not [path.name for path in NOTEBOOKS if f"(../tutorials/{path.name})" not in index]
    assert not [(path.name, n) for path in NOTEBOOKS if not 10 <= (n := len(notebooks.cells_of(path))) <= 25]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_tutorial_runs_on_the_simulator_and_gives_the_output_that_is_stored(path, monkeypatch, tmp_path):
    """In this process, in which `tests/every_kernel.py` sees the kernels."""
    for module in ("IPython", *(name for name in ("matplotlib", "hypothesis") if name in path.read_text())):
        pytest.importorskip(module)
    for name in [n for n in os.environ if n.startswith("TILEJIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tilejit.runtime.driver.available", lambda: False)
    outputs, names = notebooks.run(path)
    assert any(isinstance(value, Kernel) and value.versions for value in names.values())
    assert not (found := notebooks.differences(path, outputs)), "python -m tests.docs.notebooks stores these:\n" + "\n".join(
        f"cell {n} of {path.name} has\n{old}\nand now gives\n{new}" for n, old, new in found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_is_stored_with_its_outputs_and_without_errors(path):
    """So that it can be read without running it. With a picture, if it is not for the eye only."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]


def test_measured_figures_of_a_cell_are_those_of_the_pages_that_it_names():
    """A cell that names pages of docs/lab has dicts of numbers, which stand there."""
    cells = [(path.name, "".join(cell["source"])) for path in NOTEBOOKS for cell in notebooks.code_of(path)]
    named = [(name, source, re.findall(r"docs/lab/\w+\.md", source)) for name, source in cells if "docs/lab/" in source]
    for name, source, pages in named:
        text = "".join((ROOT / page).read_text() for page in pages)
        dicts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)]
        numbers = [n.value for d in dicts for value in d.values for n in ast.walk(value) if isinstance(n, ast.Constant)]
        assert len(numbers) > 3 and not [n for n in numbers if not re.search(rf"(?<![\d.]){re.escape(str(n))}(?![\d.]*\d)", text)], name
    assert len(named) >= 4


def test_jupyter_gives_the_outputs_that_this_runner_gives(tmp_path, monkeypatch):
    """Of the shortest notebook with a figure."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib.font_manager")  # looks for fonts, on a machine's first use, and says so
    path = min((path for path in NOTEBOOKS if "import matplotlib" in path.read_text()), key=lambda path: len(notebooks.code_of(path)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=50, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    run = [in_one(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert notebooks.differences(path, run) == []


def in_one(outputs: list) -> list:
    """Outputs in which texts in a row are one, and the paths of cells are as the runner has them."""
    made: list = []
    for output in outputs:
        if "text" in output:
            output["text"] = re.sub(r"\S*ipykernel_\d+/\d+\.py", "cell.py", output["text"])
            if made and made[-1].get("name") == output["name"]:
                made[-1]["text"] += output["text"]
                continue
        made.append(output)
    return made


# -- the runner itself -------------------------------------------------------------------------------------------------

def test_the_runner_keeps_texts_results_warnings_and_figures_in_their_order():
    pytest.importorskip("IPython")
    names: dict = {}
    cell = "import sys, warnings\nprint('a')\nprint('b', file=sys.stderr)\nwarnings.warn('w')\nprint('c')\nx = 3\nx * 2"
    outputs = notebooks.run_cell(cell, "<a cell>", names)
    assert [(o.get("name"), o.get("text")) for o in outputs[:-1]] == [
        ("stdout", "a\n"), ("stderr", "b\ncell.py:4: UserWarning: w\n"), ("stdout", "c\n")]
    assert outputs[-1]["data"] == {"text/plain": "6"} and names["x"] == 3


def notebook_of(path: Path, *cells: tuple[str, list[str]]) -> Path:
    """A notebook with these cells: source and tags."""
    made = [{"cell_type": "code", "metadata": {"tags": tags}, "source": source, "outputs": [], "execution_count": None}
            for source, tags in cells]
    path.write_text(notebooks.as_text({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def said(text: str) -> list:
    return [{"output_type": "stream", "name": "stdout", "text": text}]


def test_a_changed_output_is_a_difference_unless_only_a_time_or_a_cell_of_a_gpu_changed(tmp_path):
    path = notebook_of(tmp_path / "some.ipynb", ("f()", []), ("g()", ["gpu"]), ("h()", ["needs-no_such_module"]))
    notebooks.store(path, [said("1 in 2.5 ms\n"), said("none\n"), said("none\n")], None)
    assert notebooks.differences(path, [said("1 in 3.5 ms\n"), said("x\n"), said("y\n")]) == []
    assert notebooks.differences(path, [said("2 in 2.5 ms\n"), said("x\n"), said("y\n")]) == [(0, "1 in T ms\n", "2 in T ms\n")]


def test_what_a_gpu_gave_is_kept_where_there_is_none_until_the_cell_changes(tmp_path):
    path = notebook_of(tmp_path / "some.ipynb", ("g()", ["gpu"]))
    notebooks.store(path, [said("4 TB/s\n")], "NVIDIA H200")
    notebooks.store(path, [said("no GPU\n")], None)
    cell, = notebooks.code_of(path)
    assert cell["outputs"][0]["text"] == ["4 TB/s\n"] and cell["metadata"]["measured"]["gpu"] == "NVIDIA H200"
    path.write_text(path.read_text().replace("g()", "g(2)", 1))
    notebooks.store(path, [said("no GPU\n")], None)
    cell, = notebooks.code_of(path)
    assert cell["outputs"][0]["text"] == ["no GPU\n"] and "measured" not in cell["metadata"]


# -- on a GPU ----------------------------------------------------------------------------------------------------------

def run_notebook(path: str) -> None:
    notebooks.run(Path(path))


@pytest.mark.unperturbed
@pytest.mark.unsanitized  # cells measure
@needs_gpu()
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_tutorial_runs_on_the_gpu(path):
    for module in ("IPython", "matplotlib", "hypothesis"):
        pytest.importorskip(module)
    run_child(run_notebook, timeout=120, path=str(path))


def run_as_program(path: str) -> None:
    runpy.run_path(path)


@pytest.mark.unperturbed
@pytest.mark.unsanitized  # it compares times, also with those of a library's kernels
@needs_gpu("sm_90a")
@needs_module("torch")
def test_the_steps_of_the_matrix_product_tutorial_are_timed_on_the_gpu(tmp_path):
    """The last cell, run as a program: every step computes the product and has a time, and the last step is far faster than the first."""
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in notebooks.code_of(FOLDER / "05_matrix_products.ipynb")))
    lines = run_child(run_as_program, timeout=120, path=str(program)).splitlines()
    times = [(found[1], float(found[2])) for line in lines if (found := re.fullmatch(r"(\S.*?) +([\d.]+) ms +[\d.]+ TFLOP/s", line))]
    steps = ["torch.mm", "1 naive", "2 staged", "3 by_tma", "4 ringed", "5 persistent", "6 short", "7 matmul"]
    assert [name for name, _ in times] == steps
    assert all(t > 0 for _, t in times) and dict(times)["7 matmul"] * 10 < dict(times)["1 naive"]
