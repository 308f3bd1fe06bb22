"""What `.explain()` tells about a lowered graph: a record for each copy, memory access and matrix product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from ...errors import Loc
from ...ir.builder import as_value, memory_type, number_type, type_of
from ...ir.graph import Block, Call, Graph, Operand, Scope, Value, blocks, choice_of, walk
from ...layout import axis, register_table
from ...names import allocation_name
from ...ops.language.addressed import array_
from ...ops.memory.access_ops import load_
from ...ops.memory.atomics import atomic_
from ...ops.memory.matrices import Matrices
from ...ops.moves.copy_async.options import unused_hints
from ...records import AccessRecord, CopyRecord, ProductRecord
from ...types import Buffer, Points, Region, Selected, Tile, domain_of, layout_of


def copy_records(graph: Graph) -> tuple[CopyRecord, ...]:
    """A record for each copy call of the kernel, in order, without the copies that a `dot` has introduced."""
    made = {value: n for n in walk(graph.body) if isinstance(n, Call) for value in n.results}
    return tuple(_copy_record(call, scope, made) for call, scope in _chosen_calls(graph.body, "cta")
                 if call.op.traits.copy and call.origin is None)


def _chosen_calls(block: Block, scope: str) -> Iterator[tuple[Call, str]]:
    """The calls with a chosen lowering, each with the kind of scope around it."""
    for node in block.nodes:
        if isinstance(node, Call) and node.choice is not None:
            yield node, scope
        inner = node.kind if isinstance(node, Scope) else scope
        inner = "thread" if inner == "elect" else inner
        for b in blocks(node):
            yield from _chosen_calls(b, inner)


def _copy_record(call: Call, scope: str, made: dict[Value, Call]) -> CopyRecord:
    sides = (*call.results, *call.args[:2], *call.args)[:2]
    dst, src = map(type_of, sides)
    choice, loc = choice_of(call), _written_at(call)
    source, target = (getattr(t, "scope", "local") for t in (src, dst))  # a register tile is each thread's own
    moved = next((t for t in (src, dst) if isinstance(t, (Region, Selected))), None)
    named = next((t.buffer.map for t in (src, dst) if isinstance(t, Region) and t.buffer.map is not None), None)
    return CopyRecord(loc.line, call.op.name, loc.source_line.strip(), source, target, scope, choice.variant,
                      choice.declined, choice.plan.instructions, moved.nbytes if moved is not None else 0, choice.plan,
                      unused_hints(call.attrs.get("options") or {}, choice.variant, named),
                      tuple(filter(None, (_buffer_name(as_value(a), made) for a in sides))))


def _written_at(call: Call) -> Loc:
    """The location of a call of the kernel's source."""
    assert call.loc is not None
    return call.loc


def _buffer_name(side: Value, made: dict[Value, Call]) -> str:
    """The kernel's name for the array or allocation of a copy's side; '' for a tile,
    and where the source has no name for it."""
    if isinstance(side.type, Tile):
        return ""
    while side in made and made[side].args and made[side].op is not array_:
        side = as_value(made[side].args[0])
    named = side not in made or made[side].op is array_
    return side.name if named else allocation_name(side.name, side.loc)




def access_records(graph: Graph) -> tuple[AccessRecord, ...]:
    """A record for each load, store and atomic operation of the kernel, in order,
    without those that load a product's operands.

    Calls that are compiled several times alike (by unrolling or inlining) share a record.
    """
    calls = list(_chosen_calls(graph.body, "cta"))
    made = {value: n for n in walk(graph.body) if isinstance(n, Call) for value in n.results}
    products = {c.loc for c, _ in calls if c.op.traits.product}
    found: dict[tuple[Any, ...], list[AccessRecord]] = {}
    for call, scope in calls:
        if call.op.traits.access and call.loc not in products:
            record = _access_record(call, scope, made)
            found.setdefault((_written_at(call).column, replace(record, instructions=0, bytes=0)), []).append(record)

    def total(records: list[AccessRecord], name: str) -> int:
        return sum(getattr(r, name) for r in records)

    return tuple(replace(alike, instructions=total(records, "instructions"),
                         bytes=total(records, "bytes")) for (_, alike), records in found.items())


def _access_record(call: Call, scope: str, made: dict[Value, Call]) -> AccessRecord:
    place, choice, loc = as_value(call.args[0]), choice_of(call), _written_at(call)
    plan: Any = getattr(choice.plan, "access", choice.plan)
    t = number_type(call.results[0] if call.results else call.args[1])
    name = f"atomic_{call.attrs['kind']}" if call.op is atomic_ else call.op.traits.shown or call.op.name
    shape, registers = (t.shape, len(register_table(layout_of(t), domain_of(t)))) if isinstance(t, Tile) else ((), 1)
    shown = str(list(shape)) if isinstance(t, Tile) else ""
    if isinstance(plan, Matrices):
        variant, vec_bytes, instructions = ({"load": "ldmatrix", "store": "stmatrix"}[name], 4 * plan.groups[0].count,
                                            plan.instructions)
    else:
        variant = "vectorised" if plan.vector > 1 else "scalar"
        vec_bytes, instructions = plan.vector * t.dtype.nbytes, registers // plan.vector
    return AccessRecord(loc.line, name, loc.source_line.strip(), f"{t.dtype}{shown}",
                        _buffer_name(place, made), memory_type(place).scope, scope, variant, choice.declined, vec_bytes,
                        instructions, prod(shape) * t.dtype.nbytes)




def product_records(graph: Graph) -> tuple[ProductRecord, ...]:
    """A record for each matrix product, in order; the instructions that one `dot` became share its record."""
    found: dict[tuple[Any, ...], ProductRecord] = {}
    # An operand that is loaded at the product's own line is one in shared memory that `dot` loads a
    # step of k at a time.
    loaded = {(n.result, n.loc) for n in walk(graph.body) if isinstance(n, Call) and n.op is load_}
    for call, scope in _chosen_calls(graph.body, "cta"):
        if not call.op.traits.product:
            continue
        key, record = (call.loc, id((call.origin or choice_of(call)).declined)), _product_record(call, scope, loaded)
        if key in found:
            found[key] = replace(found[key], instructions=found[key].instructions + record.instructions)
        else:
            found[key] = record
    return tuple(found.values())


def _product_record(call: Call, scope: str, loaded: set[Any]) -> ProductRecord:
    acc, loc = _matrix(call.results[0] if call.results else call.args[0]), _written_at(call)
    shown = call.origin or choice_of(call)

    def describe_matrix(x: Operand) -> str:
        t = _matrix(x)
        return f"{t.dtype}{list(t.shape)} in {_memory(t, (x, call.loc) in loaded)}"

    return ProductRecord(loc.line, call.op.name, loc.source_line.strip(), describe_matrix(call.args[1]),
                         describe_matrix(call.args[2]),
                         f"{acc.dtype}{list(acc.shape)}", scope, shown.variant, shown.declined,
                         choice_of(call).plan.instructions,
                         _warps(acc) if isinstance(acc, Tile) else None)


def _warps(t: Tile) -> tuple[int, ...]:
    """How many warps divide each dimension of a tile."""
    return tuple(prod(n for n, _, along in shards if along == axis.warpid)
                 for shards in layout_of(t).dims(domain_of(t)))


def _matrix(x: Operand) -> Tile | Buffer | Region | Points | Selected:
    """The type of a product's operand: a tile, or a place in memory."""
    t = type_of(x)
    return t if isinstance(t, Tile) else memory_type(x)


def _memory(t: Tile | Buffer | Region | Points | Selected, loaded: bool) -> str:
    if isinstance(t, Region):
        scope = t.scope
    else:
        scope = "shared" if loaded else "registers"
    return {"shared": "shared memory", "tmem": "tensor memory"}.get(scope, scope)
