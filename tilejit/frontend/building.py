"""Builds a kernel's typed graph from its source and the specs of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CompilationError, Loc, print_text
from ..ir.builder import Builder, Facts, Warning_
from ..ir.graph import Block, Call, Graph, Launch, Value, walk
from ..ops.memory.access_ops import load_
from ..ops.moves.copy_async.tma.selections import SPARE
from ..ops.reduce.ragged_warnings import Tail
from ..types import Buffer, Scalar, Uniformity
from . import (  # noqa: F401 - each registers what its syntax does
    branches,
    containers,
    expressions,
    loops,
    matching,
    scoping,
    statements,
)
from .calls import call, run
from .captures import Capture, attached_captures
from .joins import assemble, leaves
from .names import Frame
from .prune import needed_values, prune
from .source import MISSING, Source
from .static import PRINTED
from .walker import Home, Walker


@dataclass(frozen=True)
class Built:
    """A kernel's graph with the warnings, the captured values, the lines of `static_print`, the values that are
    removed if nothing reads them (`spare`), and the scans over loads that may be out of bounds, for a warning after
    the passes (`tails`)."""

    graph: Graph
    warnings: tuple[Warning_, ...]
    captured: tuple[Capture, ...]
    printed: tuple[str, ...] = ()
    spare: frozenset[Value] = frozenset()
    tails: tuple[Tail, ...] = ()


# ("buffer", Buffer), ("scalar", DType, weak), ("constexpr", value), or for an argument that groups others ("group",
# class, its fields or () for a tuple or list, the parts as pairs (name, spec))
ParamSpec = tuple[Any, ...]


def too_deep(loc: Loc | None) -> CompilationError:
    """The error for code that exceeds Python's recursion limit in the compiler."""
    return CompilationError("the code nests too deeply to be compiled; split it, or write a loop", loc)


def build(source: Source, arguments: Mapping[str, ParamSpec], *, target: str, launch: Launch, facts: Facts) -> Built:
    """The typed graph of a kernel. `arguments` has a `ParamSpec` for each parameter; parameters left out take their
    defaults."""
    g = Builder(target, launch, facts)
    home = Home()
    w = Walker(g, Frame(source, {}, home), home)
    g.invoke = lambda function, args, kwargs: call(w, function, args, kwargs)
    g.loc = source.loc(source.tree)
    if launch.cluster is not None:
        g.need("a cluster of CTAs (barrier.cluster)", 90)
    if launch.pdl:
        g.need("a programmatic dependent launch (pdl=True)", 90)
    params = _parameters(w, source, arguments)
    try:
        with attached_captures(lambda: _captures_of(w)):
            run(w)
            for ring in g.state.get("rings", ()):
                ring.check()
    except RecursionError:
        raise too_deep(w.g.loc) from None
    finally:
        for line in g.state.get(PRINTED, ()):
            print_text(line)
    body = prune(Block(tuple(g.blocks[0])))
    _warn_of_unused_loads(g, body, source)
    graph = Graph(source.name, params, body, launch, target, source.loc(source.tree))
    return Built(graph, tuple(g.warnings), _captures_of(w), tuple(g.state.get(PRINTED, ())),
                 frozenset(g.state.get(SPARE, ())), tuple(g.state.get("tails", ())))


def _captures_of(w: Walker) -> tuple[Capture, ...]:
    return tuple(capture for capture, _ in w.captured.values())


def _warn_of_unused_loads(g: Builder, body: Block, source: Source) -> None:
    """Warn of loads of the kernel itself whose values are given to no name, or to one that the kernel never reads. A
    value that only this version of the kernel does not need is none of them."""
    read = needed_values(body)
    for node in walk(body):
        if (isinstance(node, Call) and node.op is load_ and node.result is not None and node.result not in read
            and any(source.loc(value) == node.loc for value in _never_read(source.tree))):
            g.warnings.append(Warning_("the value of this load is never used", node.loc))


def _never_read(tree: ast.FunctionDef) -> Iterator[ast.expr]:
    """The values of a function's statements that are given to no name, or to one that it never reads."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=value):
                yield value
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in names:
                yield value


def _parameters(w: Walker, source: Source, arguments: Mapping[str, ParamSpec]) -> tuple[Value, ...]:
    """Bind the parameters to their arguments; returns the values that are parameters of the graph."""
    unknown = [n for n in arguments if n not in {p.name for p in source.params}]
    if unknown:
        raise CompilationError(f"{source.name} has no parameter {unknown[0]!r}", w.g.loc)
    params: list[Value] = []
    for param in source.params:
        if param.name not in arguments:
            if param.default is MISSING:
                raise CompilationError(f"{source.name} needs an argument for {param.name!r}", w.g.loc)
            w.put(param.name, param.default)
            continue
        value = _argument(param.name, arguments[param.name], w)
        for leaf in leaves(value):
            if isinstance(leaf, Value):
                if isinstance(leaf.type, Scalar):
                    w.g.arguments[leaf] = len(params)
                params.append(leaf)
        w.put(param.name, value)
    return tuple(params)


def _argument(name: str, spec: ParamSpec, w: Walker) -> Any:
    match spec:
        case ("buffer", Buffer() as t):
            return Value(name, t, w.g.loc)
        case ("scalar", dtype):
            return Value(name, Scalar(dtype, Uniformity.GRID, True), w.g.loc)
        case ("scalar", dtype, weak):
            return Value(name, Scalar(dtype, Uniformity.GRID, bool(weak)), w.g.loc)
        case ("constexpr", value):
            return value
        case ("group", kind, fields, parts):
            return assemble(kind, fields, tuple(_argument(part, of_part, w) for part, of_part in parts))
    raise ValueError(f"{name}: not a parameter's spec: {spec!r}")
