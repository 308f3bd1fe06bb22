"""The examples and the errors of the reference, which are run when its pages are generated.

``tests/public/examples/PAGE.md`` has, under the name of each function or class, an example and some wrong calls. An
example is a block of Python, or an expression: ``tile.sum(x) -> float32[]; x = [1, 2, 3]`` stands for a kernel that
stores the sum of what it loads from x to an array of this dtype and shape. A block marked ``unrun`` is shown only: it needs a GPU or another library.

A wrong call is an item of a list, in a kernel where the words of STANDING are defined. Before it may stand a target
(``sm_100a:``), ``host:`` for a call outside of kernels, or ``sim:`` for a kernel that is wrong when it runs.
"""

from __future__ import annotations

import io
import linecache
import re
import textwrap
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tilejit as tile

FOLDER = Path(__file__).with_name("examples")

# {a word that wrong calls use: (what it is, how a kernel defines it)}
STANDING = {
    "A": ("an array float32 [64, 64]", ""),
    "I": ("an array int32 [64]", ""),
    "n": ("an integer that is known at run time", ""),
    "x": ("a tile float32 [4, 8]", "tile.zeros((4, 8))"),
    "i": ("a tile int32 [8]", "tile.arange(8)"),
    "t": ("the thread's id", "tile.thread_id()"),
    "s": ("a shared buffer float32 [64, 64]", "tile.alloc((64, 64), tile.float32)"),
    "h": ("a shared buffer float16 [64, 64]", "tile.alloc((64, 64), tile.float16, layout=tile.auto)"),
    "d": ("tensor memory float32 [128, 64]", 'tile.alloc((128, 64), tile.float32, scope="tmem")'),
    "bar": ("an mbarrier", "tile.mbarrier()"),
    "ring": ("a ring of two slots", "tile.ring(2, S=((64, 64), tile.float32))"),
    "turns": ("turns of two groups", "tile.turns(2)"),
}
HOST = {
    "row": ("the shape and dtype of an array float32 [64]", tile.ArraySpec((64,), "float32")),
    "fill": ("a kernel that sets the eight elements of its only argument to 1",
             tile.jit(source="def fill(x): tile.store(x[0:8], 1)")),
}

KERNEL = """\
@tile.jit
def kernel({parameters}):
    tile.store({place}, {value})

{inputs}out = np.zeros({shape}, np.{dtype})
kernel[1]({parameters})
print({shown})
"""

_EXPRESSION = re.compile(r"(?P<value>.*?) -> (?P<dtype>\w+)\[(?P<shape>.*?)\](?P<inputs>(?:; .*)?)")


@dataclass(frozen=True)
class Entry:
    """What the examples' file has for a name: its code, whether it is run, and the wrong calls."""

    code: str
    runs: bool
    wrong: tuple[str, ...]


def slices(shape: tuple[int, ...]) -> str:
    return ", ".join(f"0:{extent}" for extent in shape) or "0"


def program(line: str) -> str:
    """The program of an expression."""
    parts = _EXPRESSION.fullmatch(line)
    if parts is None:
        raise ValueError(f"not an expression with a result, as in `tile.sum(x) -> float32[]; x = [1, 2]`: {line}")
    shape = tuple(int(extent) for extent in parts["shape"].split(",") if extent.strip())
    value, inputs, names = parts["value"], "", []
    for given in filter(None, parts["inputs"].split("; ")):
        name, _, values = given.partition(" = ")
        name, _, dtype = name.partition(": ")
        extents = np.array(eval(values, {"np": np})).shape
        inputs += f"{name} = np.array({values}, np.{dtype or 'float32'})\n"
        value = re.sub(rf"(?<![\w.]){name}(?!\w|=)", f"tile.load({name}[{slices(extents)}])", value)
        names.append(name)
    shown = "out.round(3)" if parts["dtype"].startswith("float") else "out"
    return KERNEL.format(parameters=", ".join([*names, "out"]), place=f"out[{slices(shape)}]", value=value,
                         inputs=inputs, shape=shape[0] if len(shape) == 1 else shape or 1, dtype=parts["dtype"],
                         shown=shown)


@cache
def entries(page: str) -> dict[str, Entry]:
    """{name: its example and wrong calls} of a page."""
    found = {}
    for part in re.split(r"^## ", (FOLDER / f"{page}.md").read_text(), flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        block = re.search(r"^```python([^\n]*)\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)
        lines = [line for line in body.replace(block[0] if block else "", "").splitlines() if line]
        wrong = tuple(line[2:] for line in lines if line.startswith("- "))
        code = block[2] if block else "".join(program(line) for line in lines if not line.startswith("- "))
        found[name] = Entry(code, not block or "unrun" not in block[1], wrong)
    return found


# -- running -----------------------------------------------------------------------------------------------------------

def executed(code: str, names: dict[str, Any]) -> None:
    """Run code whose lines `tile.jit` can read."""
    file = "example.py"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec", dont_inherit=True), names)


def output(code: str) -> str:
    """What an example prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        executed(code, {"__name__": "example", "np": np, "tile": tile})
    return "".join(line.rstrip() + "\n" for line in printed.getvalue().splitlines())


def used(words: Any, text: str) -> list[str]:
    """The words that occur in a text, in their order."""
    return [word for word in words if re.search(rf"(?<![\w.\"]){word}(?![\w\"]| ?=[^=])", text)]


def in_a_kernel(call: str) -> str:
    """A kernel that makes a wrong call."""
    made = [f"    {word} = {STANDING[word][1]}" for word in used(STANDING, call) if STANDING[word][1]]
    return "\n".join(["@tile.jit(num_warps=8)", "def kernel(A, I, n):", *made, textwrap.indent(call, "    ")]) + "\n"


def error_of(wrong: str) -> tuple[str, str, str]:
    """The call, the class and the message of the error that it raises."""
    kind, _, call = wrong.partition(": ") if re.match(r"(host|sim|sm_\w+): ", wrong) else ("sm_90a", "", wrong)
    names: dict[str, Any] = {"__name__": "example", "np": np, "tile": tile, **{w: x for w, (_, x) in HOST.items()}}
    arrays = (np.zeros((64, 64), np.float32), np.zeros(64, np.int32))
    try:
        executed(call + "\n" if kind == "host" else in_a_kernel(call), names)
        if kind == "sim":
            names["kernel"].simulate(1, *arrays, 3).raise_first()
        elif kind != "host":
            names["kernel"].compile(*arrays, 3, target=kind)
    except Exception as error:
        lines = str(getattr(error, "message", error)).splitlines()
        whole = lines[0].endswith(":") or isinstance(error, tile.DispatchError)  # what it is comes on the next line
        return call, type(error).__name__, " ".join(line.strip() for line in lines[:2 if whole else 1])
    raise LookupError(f"raises nothing: {wrong}")


# -- text of the pages -------------------------------------------------------------------------------------------------


def escaped(message: str) -> str:
    """A message as plain Markdown in a table."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", message)


@cache
def example_of(page: str, name: str) -> str:
    """The example of a name and its output, and the errors of wrong calls, for the reference."""
    entry = entries(page).get(name)
    if entry is None:
        return ""
    parts = [f"```python\n{entry.code}```\n"] if entry.code else []
    printed = output(entry.code) if entry.runs else ""
    if printed:
        parts.append(f"```text\n{printed}```\n")
    if entry.wrong:
        rows = [error_of(wrong) for wrong in entry.wrong]
        lines = [f"| `{call.replace('|', chr(92) + '|')}` | {kind}: {escaped(said)} |" for call, kind, said in rows]
        parts.append("\n".join(["| wrong | raises |", "| --- | --- |", *lines]) + "\n")
    return "\n".join(parts)


def standing_words(page: str) -> str:
    """What the words in the wrong calls of a page are."""
    calls = [wrong for entry in entries(page).values() for wrong in entry.wrong]
    inside = "\n".join(call for call in calls if not call.startswith("host: "))
    said = [f"`{word}` is {STANDING[word][0]}" for word in used(STANDING, inside)]
    said += [f"`{word}` is {HOST[word][0]}" for word in used(HOST, "\n".join(set(calls) - set(inside.splitlines())))]
    return f"In the tables of errors, {'; '.join(said)}.\n" if said else ""
