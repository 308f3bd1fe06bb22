"""Builds the graphs of test kernels without compiling them further."""

from textwrap import dedent

import pytest
from tilejit.dtypes import float32, int32
from tilejit.errors import CompilationError
from tilejit.frontend import Built, Source, build
from tilejit.ir.builder import Facts
from tilejit.ir.check import check
from tilejit.ir.graph import Launch
from tilejit.types import Buffer

X = ("buffer", Buffer(float32, (64,), "global", None, (1,), 0))
Y = ("buffer", Buffer(float32, (64,), "global", None, (1,), 1))
N = ("scalar", int32, True)
ARGUMENTS = {"x": X, "y": Y, "n": N, "m": N}


def built(kernel, num_warps: int = 4, target: str = "sm_90a", **constants) -> Built:
    """Build a kernel in which x and y are arrays of 64 floats, n and m are integers, and the other parameters are constants."""
    source = kernel if isinstance(kernel, Source) else getattr(kernel, "source", None) or Source.of(kernel)
    arguments = {p.name: ARGUMENTS[p.name] for p in source.params if p.name in ARGUMENTS}
    arguments |= {name: ("constexpr", value) for name, value in constants.items()}
    result = build(source, arguments, target=target, launch=Launch(num_warps), facts=Facts(lambda fact: True))
    check(result.graph)
    return result


def body(kernel, **options) -> str:
    """The text of a kernel's graph, without its first line and the marks of weak numbers."""
    return "\n".join(str(built(kernel, **options).graph).splitlines()[1:]).replace("*@", "@")


def expect(kernel, text: str, **options) -> None:
    """Assert that the graph of a kernel is `text`."""
    assert body(kernel, **options) == "\n".join("  " + line for line in dedent(text).strip("\n").splitlines())


def error(kernel, **options) -> str:
    """The text of the CompilationError raised by building a kernel; it must have a location and a source line."""
    with pytest.raises(CompilationError) as caught:
        built(kernel, **options)
    assert caught.value.loc is not None and "^" in str(caught.value)
    return str(caught.value)


def marked(text: str) -> str:
    """The source text marked by the last carets of an error."""
    *_, line, carets = text.splitlines()
    return line[carets.index("^"):carets.rindex("^") + 1]
