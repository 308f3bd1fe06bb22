"""What the executed calls of a simulation moved and computed, counted by their types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from ..dtypes import DType
from ..ir.graph import Call, Node, Value, written_values
from ..roofline import TENSOR, Counts
from ..types import MEMORY_TYPES, Buffer, Tile


def count(nodes: Iterable[Node], executed: Mapping[int, int], nbytes: Mapping[str, int], sizes: Mapping[int, int],
          ctas: int) -> Counts:
    """The counts of a simulation: `executed` says how often a call, by its id, has run, over all CTAs; `nbytes` are
    the bytes by path, and `sizes` those of each array argument."""
    calls = [n for n in nodes if isinstance(n, Call) and executed.get(id(n))]
    flops: Counter[str] = Counter()
    for call in calls:
        times = executed[id(call)]
        for unit, operations in operations_of(call):
            flops[unit] += times * operations
    return Counts(dict(nbytes), bytes_once(calls, sizes), dict(flops), ctas)


def operations_of(call: Call) -> list[tuple[str, int]]:
    """(unit, operations) of one run of a call by its scope."""
    if call.op.traits.product:
        return _product(call)
    types: list[Any] = [x.type for x in call.args if isinstance(x, Value)]
    tiles = [t for t in types if isinstance(t, Tile)]
    results = [r.type for r in call.results]
    if "combine" in call.attrs and tiles and _is_float(tiles[0].dtype):
        return [(str(tiles[0].dtype), tiles[0].size)]
    if not call.op.traits.elementwise or len(results) != 1 or call.op.traits.conversion or not types:
        return []
    result: Any = results[0]
    dtypes = [getattr(t, "dtype", None) for t in types]
    if not (isinstance(result, Tile) and all(d is not None and _is_float(d) for d in (result.dtype, *dtypes))):
        return []
    return [(str(result.dtype), result.size * max(1, len(call.args) - 1))]


def _product(call: Call) -> list[tuple[str, int]]:
    """A product: of the accumulator's elements, over the columns of the first operand."""
    options = call.attrs.get("options") or {}
    a: Any = call.args[1].type if isinstance(call.args[1], Value) else None
    made: Any = call.args[0].type if isinstance(call.args[0], Value) else call.results[0].type
    k = a.shape[-2] if call.attrs.get("trans_a") else a.shape[-1]
    operations = 2 * prod(made.shape) * k * options.get("cta_group", 1)
    dtype = str(a.dtype if hasattr(a, "dtype") else a.buffer.dtype)
    return [(dtype if call.op.traits.multiply_adds else TENSOR + dtype, operations)]


def _is_float(dtype: DType) -> bool:
    return dtype.kind == "float"


def _buffer(operand: Any) -> Buffer | None:
    kind: Any = operand.type if isinstance(operand, Value) else None
    found = kind if isinstance(kind, Buffer) else getattr(kind, "buffer", None)
    return found if isinstance(found, Buffer) else None


def bytes_once(calls: list[Call], sizes: Mapping[int, int]) -> int | None:
    """The bytes of the arrays that calls read, and of those that they write; None if one is made from an address."""
    total = 0
    effective = [c for c in calls if c.op.effect != "pure"]
    written = set(written_values(effective))
    read = {a for c in effective for a in c.args if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES)
            and a not in set(written_values([c]))}
    for values in (read, written):
        buffers = [b for b in map(_buffer, values) if b is not None and b.scope == "global"]
        if any(not isinstance(b.arg, int) for b in buffers):
            return None
        total += sum(sizes.get(arg, 0) for arg in {b.arg for b in buffers if isinstance(b.arg, int)})
    return total
