"""The graph as stable text without locations: what golden files contain and what the cache key hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .graph import Block, Call, Carry, Const, For, Graph, If, Node, Operand, Scope, Value, While


class _Names:
    """Short, stable names: values are numbered in the order in which they appear in the text."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.taken: dict[str, int] = {}

    def __call__(self, operand: Operand) -> str:
        if operand is None:
            return "none"
        if isinstance(operand, Const):
            return repr(operand.value)
        if operand not in self.names:
            count = self.taken.get(operand.name, 0)
            self.taken[operand.name] = count + 1
            self.names[operand] = f"%{operand.name}" if count == 0 else f"%{operand.name}.{count}"
        return self.names[operand]


def attribute(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {attribute(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(attribute(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    name: str | None = getattr(value, "name", None) or getattr(value, "__name__", None)
    return name or repr(value)


def text(graph: Graph) -> str:
    """The text of a whole graph. Equal texts mean equal code."""
    name = _Names()
    launch = [f"num_warps={graph.launch.num_warps}"]
    for option in ("cluster", "min_ctas", "max_registers", "jitter"):
        if getattr(graph.launch, option) is not None:
            launch.append(f"{option}={getattr(graph.launch, option)}")
    launch += [o for o in ("fast_math", "pdl", "profile") if getattr(graph.launch, o)]
    launch += ["persistent"] if graph.persistent else []
    params = ", ".join(f"{name(p)}: {p.type}" for p in graph.params)
    lines = [f"kernel {graph.name}({params}) {{{', '.join(launch)}, {graph.target}}}"]
    _block(graph.body, name, lines, "  ")
    for value, offset in graph.shared.items():
        moved = "".join(f" + {name(place)} * {nbytes}" for place, nbytes in graph.scratch_strides.get(value, ()))
        lines.append(f"shared {name(value)} at {offset}{moved}{', unused' if value in graph.scratch_unused else ''}")
    if graph.scratch_limit:
        lines.append(f"scratch in parts of {graph.scratch_limit} bytes")
    for value, place in graph.tensor_memory.items():
        owner = f"{place.columns} columns" if place.leader is value else f"those of {name(place.leader)}"
        lines.append(f"tmem {name(value)} at {place.column} of {owner}{', freed' if place.freed else ''}")
    if graph.shared_bytes:
        lines.append(f"shared {graph.shared_bytes} bytes")
    return "\n".join(lines) + "\n"


def function_text(params: tuple[Value, ...], body: Block) -> str:
    """The text, on one line, of a function of scalars that is an attribute of a call,
    such as a reduction's combine function."""
    name = _Names()
    head = ", ".join(f"{name(p)}: {p.type}" for p in params)
    lines: list[str] = []
    _block(body, name, lines, "")
    return f"({head}) {{ {'; '.join(line.strip() for line in lines)} }}"


def _block(block: Block, name: _Names, lines: list[str], indent: str) -> None:
    for node in block.nodes:
        _node(node, name, lines, indent)
    if block.yields:
        lines.append(f"{indent}yield {', '.join(map(name, block.yields))}")


def _format_carried(carried: Sequence[Carry], name: _Names) -> str:
    if not carried:
        return ""
    return " carry " + ", ".join(f"{name(c.inner)}: {c.inner.type} = {name(c.init)}" for c in carried)


def _append_results(carried: Sequence[Carry], name: _Names, lines: list[str], indent: str) -> None:
    if carried:
        lines.append(f"{indent}-> {', '.join(name(c.result) for c in carried)}")


def _node(node: Node, name: _Names, lines: list[str], indent: str) -> None:
    inner = indent + "  "
    match node:
        case Call():
            attrs = [f"{k}={attribute(v)}" for k, v in node.attrs.items() if v is not None]
            call = f"{node.op.name}({', '.join([*map(name, node.args), *attrs])})"
            if node.reported_choice is not None:
                call += f" by {node.reported_choice.variant}"
            if node.results:
                types = ", ".join(str(r.type) for r in node.results)
                call = f"{', '.join(map(name, node.results))} = {call} : {types}"
            lines.append(indent + call)
        case For():
            head = f"{name(node.start)}, {name(node.stop)}, {name(node.step)}"
            unroll = "" if node.unroll == 1 else f" unroll {node.unroll}"
            ahead = ""
            if node.pipeline is not None:
                ahead = f" in {node.pipeline.stages} stages{' by roles' * node.pipeline.warp_specialize}"
            lines.append(
                f"{indent}for {name(node.index)} in range({head}){unroll}{ahead}{_format_carried(node.carried, name)}")
            _block(node.body, name, lines, inner)
            _append_results(node.carried, name, lines, indent)
        case If():
            lines.append(f"{indent}if {name(node.test)}")
            _block(node.then, name, lines, inner)
            if node.orelse.nodes or node.orelse.yields:
                lines.append(f"{indent}else")
                _block(node.orelse, name, lines, inner)
            if node.results:
                lines.append(f"{indent}-> {', '.join(f'{name(r)}: {r.type}' for r in node.results)}")
        case While():
            lines.append(f"{indent}while{_format_carried(node.carried, name)}")
            _block(node.test, name, lines, inner)
            lines.append(f"{indent}do")
            _block(node.body, name, lines, inner)
            _append_results(node.carried, name, lines, indent)
        case Scope():
            count = f" x {node.count}" if node.count != 1 else ""
            regs = f" regs {node.regs}" if node.regs is not None else ""
            first = "" if node.kind == "elect" else f" {name(node.first)}"
            lines.append(f"{indent}{node.kind}{first}{count}{regs}")
            _block(node.body, name, lines, inner)


