"""Runs the notebooks of tutorials/ in this process, and stores the outputs of their cells in them:

    python -m tests.docs.notebooks              # of all
    python -m tests.docs.notebooks 05 08        # of those whose names begin so

A cell with the tag ``gpu`` measures on a GPU, and says so where there is none. With a GPU, its output is stored together with
the GPU's name; without one, an output that was stored with a GPU is kept as long as the cell has the same source.

The cells run as in Jupyter: in one namespace, with the value of a last expression as a result, and with matplotlib's figures
as pictures where `plt.show` is called (`tests/docs/figures.py`).
"""

from __future__ import annotations

import ast
import base64
import io
import json
import linecache
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import reduce
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
BACKEND = "module://tests.docs.figures"

CELL = re.compile(r"<\d\d_\w+ \d+>")  # the file of a cell: the notebook and the cell's number

# Text of outputs that differs between processes, machines or assemblers.
OTHERWISE = (
    (r"compiled in ms: .*?; assembled by \S+", "compiled in ms: ..."), (r"\b\d+ registers", "N registers"),
    (r"\bglobal sectors: \d+", "global sectors: N"), (r"\b\d+\.\d+ (m?s)\b", r"T \1"))

Output = dict[str, Any]


# -- notebooks as data -------------------------------------------------------------------------------------------------

def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, as they stand in its file."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path: Path) -> list[dict[str, Any]]:
    """The cells of code, each with its number in the notebook as ``"n"``."""
    return [{**cell, "n": n} for n, cell in enumerate(cells_of(path)) if cell["cell_type"] == "code"]


def measures(cell: dict[str, Any]) -> bool:
    """Whether the cell is one that measures on a GPU."""
    return "gpu" in cell["metadata"].get("tags", ())


def needs(cell: dict[str, Any]) -> list[str]:
    """The modules that the cell imports, and without which it says so: those of its tags ``needs-...``."""
    return [tag.removeprefix("needs-") for tag in cell["metadata"].get("tags", ()) if tag.startswith("needs-")]


# -- running -----------------------------------------------------------------------------------------------------------

class Collector:
    """The outputs of a cell, in the order in which they come. Adjacent texts are one."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []

    def write(self, stream: str, text: str) -> None:
        if self.outputs and self.outputs[-1].get("name") == stream:
            self.outputs[-1]["text"] += text
        elif text:
            self.outputs.append({"output_type": "stream", "name": stream, "text": text})

    def result(self, value: object) -> None:
        """The value of the last expression, in every form that Jupyter would ask it for."""
        if value is None:
            return
        from IPython.core.formatters import DisplayFormatter
        data, metadata = DisplayFormatter().format(value)
        self.outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": metadata})

    def figures(self) -> None:
        """Every open figure of matplotlib, which is closed."""
        plt: Any = import_module("matplotlib.pyplot")
        for number in plt.get_fignums():
            figure, drawn = plt.figure(number), io.BytesIO()
            figure.savefig(drawn, format="png", dpi=88, bbox_inches="tight", metadata={"Software": None})
            picture = base64.b64encode(drawn.getvalue()).decode() + "\n"
            self.outputs.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": picture, "text/plain": repr(figure)}})
        plt.close("all")

    def warning(self, message: Warning, category: type[Warning], filename: str, line: int, *_: object) -> None:
        self.write("stderr", f"cell.py:{line}: {category.__name__}: {message}\n")


class Stream(io.TextIOBase):
    """Standard output or standard error of a cell."""

    def __init__(self, collector: Collector, name: str):
        self.collector, self.stream = collector, name

    def write(self, text: str) -> int:
        self.collector.write(self.stream, text)
        return len(text)


NOW = [Collector()]  # the collector of the cell that runs


def compiled(source: str, name: str) -> tuple[CodeType, CodeType | None]:
    """The code of a cell, and that of its last expression."""
    tree = ast.parse(source, name)
    value = None
    if isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        value = compile(ast.Expression(tree.body.pop().value), name, "eval", dont_inherit=True)  # type: ignore[attr-defined]
    return compile(tree, name, "exec", dont_inherit=True), value


def run_cell(source: str, name: str, names: dict[str, Any]) -> list[Output]:
    """The outputs of a cell, which changes `names`."""
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    NOW[0] = collector = Collector()
    out, err = Stream(collector, "stdout"), Stream(collector, "stderr")
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", ResourceWarning)  # of objects that others left
        warnings.showwarning = collector.warning  # type: ignore[assignment]
        body, value = compiled(source, name)
        exec(body, names)
        if value is not None:
            collector.result(eval(value, names))
        if "matplotlib.pyplot" in sys.modules:
            collector.figures()
    for output in collector.outputs:
        if "text" in output:
            output["text"] = CELL.sub("cell.py", output["text"])
    return collector.outputs


@contextmanager
def apart() -> Iterator[None]:
    """An empty working directory, and none of the words on a GPU that is not used."""
    before, jit = os.getcwd(), import_module("tilejit.jit")
    say = jit._say_once_that_a_gpu_is_there
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        jit._say_once_that_a_gpu_is_there = lambda: None
        try:
            yield
        finally:
            os.chdir(before)
            jit._say_once_that_a_gpu_is_there = say


def draw_into_cells() -> None:
    """Figures of matplotlib become outputs. On a machine's first use, it looks for fonts and says so: not in a cell."""
    import_module("matplotlib").use(BACKEND)
    import_module("matplotlib.font_manager")


def run(path: Path) -> tuple[list[list[Output]], dict[str, Any]]:
    """The outputs of each code cell, and the names that they leave. Raises the error of a cell, with its number."""
    found: list[list[Output]] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    if "import matplotlib" in path.read_text(encoding="utf-8"):
        draw_into_cells()
    with apart():
        for cell in code_of(path):
            source, name = "".join(cell["source"]), f"<{path.stem} {cell['n']}>"
            try:
                found.append(run_cell(source, name, names))
            except BaseException as error:
                raise AssertionError(f"{path.name}, cell {cell['n']}: {type(error).__name__}: {error}") from error
    return found, names


# -- comparing and storing -----------------------------------------------------------------------------------------------

def shown(outputs: list[Output]) -> str:
    """Outputs as text, with everything that may vary replaced. Pictures of tilejit's own are part of it, those of matplotlib
    only by their size, since other versions draw other pixels."""
    parts = []
    for output in outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        parts += [f"[{kind}]" if kind == "image/png" else "".join(data[kind]) for kind in sorted(data)]
    return reduce(lambda text, otherwise: re.sub(*otherwise, text), OTHERWISE, "".join(parts))


def stored_form(outputs: list[Output]) -> list[Output]:
    """Outputs as notebooks store them: texts as lists of lines."""
    def lines(value: Any) -> Any:
        return value.splitlines(True) if isinstance(value, str) else value

    made: list[Output] = []
    for output in outputs:
        output = dict(output)
        if "text" in output:
            output["text"] = lines(output["text"])
        else:
            output["data"] = {kind: value if kind == "image/png" else lines(value) for kind, value in output["data"].items()}
        made.append(output)
    return made


def differences(path: Path, outputs: list[list[Output]]) -> list[tuple[int, str, str]]:
    """The cells whose outputs are not those that the file stores: number, text stored, text now. Left out are cells that measure
    on a GPU, and those that need a module that is not installed."""
    pairs = [(cell, shown(cell["outputs"]), shown(new)) for cell, new in zip(code_of(path), outputs, strict=True)
             if not measures(cell) and all(map(find_spec, needs(cell)))]
    return [(cell["n"], old, new) for cell, old, new in pairs if old != new]


def store(path: Path, outputs: list[list[Output]], gpu: str | None) -> None:
    """Write outputs to the file, those of a machine with the GPU of that name (None: without one)."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell, new in zip((c for c in notebook["cells"] if c["cell_type"] == "code"), outputs, strict=True):
        source, metadata = blake2b("".join(cell["source"]).encode(), digest_size=8).hexdigest(), cell["metadata"]
        if measures(cell):
            if gpu is None and metadata.get("measured", {}).get("source") == source:
                continue
            metadata.pop("measured", None)
            if gpu is not None:
                metadata["measured"] = {"gpu": gpu, "source": source}
        elif not all(map(find_spec, needs(cell))) and cell["outputs"]:
            continue
        elif shown(cell["outputs"]) == shown(new) and not [o for o in new if "image/png" in o.get("data", ())]:
            continue  # what may vary stays as it is
        cell["outputs"] = stored_form(new)
    for n, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
        cell["execution_count"] = n
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = n
    path.write_text(as_text(notebook), encoding="utf-8")


def as_text(notebook: dict[str, Any]) -> str:
    """A notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def name_of_gpu() -> str | None:
    """The name of the first GPU, if there is one."""
    driver = import_module("tilejit.runtime.driver")
    return driver.name(0) if driver.available() else None


def main(beginnings: list[str]) -> None:
    for name in [name for name in os.environ if name.startswith("TILEJIT_")]:
        del os.environ[name]
    os.environ["TILEJIT_CACHE_DIR"] = tempfile.mkdtemp(prefix="tilejit-notebooks-")
    gpu = name_of_gpu()
    for path in NOTEBOOKS:
        if not beginnings or path.name.startswith(tuple(beginnings)):
            before = path.read_text(encoding="utf-8")
            store(path, run(path)[0], gpu)
            print(f"{path.name}: {'as it was' if path.read_text(encoding='utf-8') == before else 'stored'}", file=sys.__stdout__)


if __name__ == "__main__":
    import_module("tests.docs.notebooks").main(sys.argv[1:])  # the module that the backend of matplotlib imports
