"""Warns where the integer result of an instruction that moves a float's bits is taken for the number.

`shfl` and `mov` of ``.b32`` and ``.b64`` take any dtype, and their result is a uint32 or uint64. Converted to a float,
as by an operator with a float or a store to an array of floats, it is a number of about 10**9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...ir.builder import Warning_, element_type
from ...ir.graph import Call, Graph, Operand, walk
from ...ops.tiles.casts import cast
from ..analysis.uses import uses

#: Forms that return their operand `a` as it is -> the function of the language that keeps its dtype.
MOVES = {
    r"shfl\.sync\.idx\..*":  "tile.shuffle(x, lane)",
    r"shfl\.sync\.bfly\..*": "tile.shuffle_xor(x, mask)",
    r"shfl\.sync\.up\..*":   "tile.shuffle_up(x, delta)",
    r"shfl\.sync\.down\..*": "tile.shuffle_down(x, delta)",
    r"mov\.b(32|64)":        "x itself",
}


def untyped_bits_warnings(graph: Graph) -> list[Warning_]:
    """A warning for each conversion to a float of the bits of a float."""
    moves = [(node, instead) for node in walk(graph.body) if isinstance(node, Call) and node.op.traits.instruction
             for form, instead in MOVES.items() if re.fullmatch(form, node.attrs["form"]) and _is_float(node.args[0])]
    used = uses(graph.body) if moves else {}
    return list(dict.fromkeys(warning for move, instead in moves for warning in _conversions(move, instead, used)))


def _conversions(move: Call, instead: str, used: Mapping[Operand, Any]) -> Iterator[Warning_]:
    """A warning for each conversion of the result of `move` to a float, also where loops and branches hand it on."""
    bits, dtype = move.results[0], element_type(move.args[0])
    waiting, seen = [bits], {bits}
    while waiting:
        for node, aliases in used.get(waiting.pop(), ()):
            if isinstance(node, Call) and node.op is cast and node.attrs["dtype"].is_float:
                yield Warning_(f"{move.attrs['form']} returns the bits of a {dtype} as a {element_type(bits)}, which "
                               f"is converted to {node.attrs['dtype']} as an integer here: {instead} keeps the dtype, "
                               f"and tile.bitcast(bits, tile.{dtype}) restores it", node.loc)
            waiting += [alias for alias in aliases if alias not in seen]
            seen.update(aliases)


def _is_float(x: Operand) -> bool:
    return element_type(x).is_float
