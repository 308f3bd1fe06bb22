"""Places buffers in shared memory.

User buffers lie side by side. The compiler's scratch overlaps where its uses cannot be live at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...config import architecture
from ...errors import Loc, SharedMemoryError
from ...ir.graph import UNIT, Block, Call, For, Graph, If, Node, Scope, Value, While, blocks, walk
from ...ops.memory.shared import alloc_shared, sync
from ...types import Barrier, Buffer

# Bytes of shared memory a CTA may have (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_LIMIT = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 103: 232448, 120: 101376}


def place_shared(graph: Graph) -> Graph:
    """The graph with a byte offset for every allocation, barrier and scratch.

    SharedMemoryError, at the line of the largest and with a table of all, where they exceed the target's limit or the
    kernel's own `max_shared`.
    """
    offsets: dict[Value, int] = {}
    rows: list[tuple[str, int, Loc | None]] = []
    top = 0
    for align, nbytes, value, name, loc in sorted(_allocations(graph), key=_placement_order):
        offsets[value] = top = -(-top // align) * align
        rows.append((name, nbytes, loc))
        top += nbytes
    base = -(-top // 128) * 128
    limit = SHARED_LIMIT[architecture(graph.target)]
    own = graph.launch.max_shared
    allowed = min(limit, limit if own is None else own)
    for small, most in ((SMALL_SCRATCH, 0), (0, 0), *((0, most) for most in PARTS)):
        places = _ScratchPlaces({}, {}, set(), most)
        size = _place_scratch(graph.body, None, base, graph.launch.threads, small, places)
        total = max(top, size)
        if total <= allowed:
            break
    if size > base:
        rows.append(("scratch of the compiler", size - base, graph.loc))
    if total > limit or (own is not None and total > own):
        what = f"{graph.target} allows {limit}" if total > limit else f"max_shared allows {own}"
        table = "\n".join(f"  {n:>8} bytes  {name}" + (f"  (line {loc.line})" if loc else "") for name, n, loc in rows)
        largest = max(rows, key=lambda row: row[1])
        raise SharedMemoryError(f"the kernel needs {total} bytes of shared memory, and {what}:\n{table}",
                                largest[2] or graph.loc)
    return replace(graph, shared=offsets | places.offsets, shared_bytes=total, scratch_strides=places.strides,
                   scratch_unused=frozenset(places.unused), scratch_limit=most)


def _allocations(graph: Graph) -> Iterator[tuple[int, int, Value, str, Loc | None]]:
    """(alignment, bytes, value, text, line) of each allocation, barrier, and slot for an address in tensor memory."""
    for node in walk(graph.body):
        if not isinstance(node, Call):
            continue
        for value in node.results:
            if value in graph.tensor_memory and graph.tensor_memory[value].leader is value:
                yield 4, 4, value, f"the address of {value.name}", node.loc
            if isinstance(value.type, Barrier) or (isinstance(value.type, Buffer) and node.op is alloc_shared):
                nbytes = 8 * value.type.n if isinstance(value.type, Barrier) else value.type.nbytes
                yield node.attrs.get("align") or 8, nbytes, value, f"{value.name}: {value.type}", node.loc


def _placement_order(named: tuple[Any, ...]) -> tuple[int, int]:
    """The sort key that leaves few holes: largest alignment first,
    and among equals first those that end at a multiple of it."""
    align, nbytes = named[:2]
    return -align, nbytes % align


PARTS = 65536, 32768, 16384, 8192  # bytes of scratch, at the most, where all of a tile is too much
SMALL_SCRATCH = 1024  # the most bytes of scratch for which a call has a place that the next one leaves alone


@dataclass
class _ScratchPlaces:
    """Where scratch is, by the first result of the call that uses it.

    `strides` are added to the offset for each place that a scope may have; `unused` are calls whose scratch nobody
    still reads when they begin, so that they need no barrier first. Tiles that can move in parts have `most` bytes, if
    that is not 0.
    """

    offsets: dict[Value, int]
    strides: dict[Value, tuple[tuple[Value, int], ...]]
    unused: set[Value]
    most: int


def _place_scratch(body: Block, trip: list[Any] | None, base: int, threads: int, small: int,
                   places: _ScratchPlaces) -> int:
    """Place the scratch of the calls of one scope from `base` on. Returns the end of the highest.

    Calls that need more than `small` bytes share their scratch: each begins with a barrier of the scope. The others
    have their own, or that of a call from which other barriers part them, and need that barrier only where they may
    run again with no other barrier in between. Scopes inside have scratch of their own, since they may run beside
    each other, and beside threads that still read from before. A scope whose place is known at run time only has
    scratch for each place it may take.
    """
    calls: list[tuple[Call, int, bool]] = []
    scopes: list[tuple[Scope, list[Any] | None]] = []
    owners: dict[Call, Call] = {}
    _collect_scratch_uses(body, trip, calls, scopes, owners)
    calls = [(call, _limit_bytes(call, nbytes, places.most), again) for call, nbytes, again in calls]
    owned: dict[Call, int] = {}
    for call, nbytes, _ in calls:
        if nbytes <= small:
            owner = owners.get(call, call)
            owned[owner] = max(owned.get(owner, 0), nbytes)
    for owner, nbytes in owned.items():
        places.offsets[owner.results[0]] = base
        base += -(-nbytes // 16) * 16
    for call, nbytes, again in calls:
        if nbytes <= small:
            places.offsets[call.results[0]] = places.offsets[owners.get(call, call).results[0]]
            if not again:
                places.unused.add(call.results[0])
    top = base = -(-base // 128) * 128
    for call, nbytes, _ in calls:
        if nbytes > small:
            places.offsets[call.results[0]] = base
            top = max(top, base + -(-nbytes // 128) * 128)
    for scope, trip in scopes:
        inner = _ScratchPlaces({}, {}, places.unused, places.most)
        span = _place_scratch(scope.body, trip, top, threads, small, inner) - top
        slots = 1
        if isinstance(scope.first, Value) and span:
            slots = threads // UNIT[scope.kind]
            inner.strides = {v: ((scope.first, span), *inner.strides.get(v, ())) for v in inner.offsets}
        places.offsets.update(inner.offsets)
        places.strides.update(inner.strides)
        top += span * slots
    return top


def _scratch_bytes(node: Node) -> int:
    """The scratch that a node needs. A call with scratch has a barrier in its middle."""
    if isinstance(node, Call) and node.op.rules.scratch is not None:
        return int(node.op.rules.scratch(node))
    return 0


def _limit_bytes(call: Call, nbytes: int, most: int) -> int:
    return min(nbytes, most) if most and call.op.traits.in_parts else nbytes


def _owners(block: Block, looped: bool) -> dict[Call, Call]:
    """{call: the earlier call of the block whose small scratch it takes over}.

    Between the two a third call, or a barrier, has seen all threads behind their reads of the first. In a loop
    another one must stand behind the later call or ahead of the earlier one, since that writes again in the next
    trip.
    """
    barriers = [n for n in block.nodes if isinstance(n, Call) and (n.op is sync or _scratch_bytes(n))]
    idle: list[int] = []
    read: list[int] = []
    found: dict[Call, Call] = {}
    for n, call in enumerate(barriers):
        owner, small = n, 0 < _scratch_bytes(call) <= SMALL_SCRATCH
        if small and (free := [o for o in idle if not looped or o > 0 or n + 1 < len(barriers)]):
            owner = free[0]
            idle.remove(owner)
            found[call] = barriers[owner]
        idle, read = idle + read, [owner] if small else []
    return found


def _collect_scratch_uses(block: Block, trip: list[Any] | None, calls: list[tuple[Call, int, bool]],
                          scopes: list[tuple[Scope, list[Any] | None]], owners: dict[Call, Call]) -> None:
    """Collect (call, bytes, whether it may run again before any other barrier) for the scratch of one scope, the
    scopes in it, and `_owners`.

    `trip` has the nodes that each trip of the innermost loop around passes, None outside of loops.
    """
    owners |= _owners(block, trip is not None)
    for node in block.nodes:
        match node:
            case Scope(body=body):
                scopes.append((node, None if trip is None else [*body.nodes, *trip]))
            case Call():
                if nbytes := _scratch_bytes(node):
                    others = (n for n in trip or () if n is not node and isinstance(n, Call))
                    calls.append((node, nbytes,
                                  trip is not None and not any(n.op is sync or _scratch_bytes(n) for n in others)))
            case For() | While():
                nodes = [n for inner in blocks(node) for n in inner.nodes]
                for inner in blocks(node):
                    _collect_scratch_uses(inner, nodes, calls, scopes, owners)
            case If():
                for inner in blocks(node):
                    _collect_scratch_uses(inner, trip, calls, scopes, owners)
