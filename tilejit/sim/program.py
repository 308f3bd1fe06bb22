"""What the interpreter knows about a graph before it runs it.

When values die, what scopes read, and how threads are grouped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from ..concurrency import cached_property
from ..ir.builder import type_as, type_of
from ..ir.graph import (
    UNIT,
    Block,
    Call,
    For,
    Graph,
    Node,
    Scope,
    Value,
    While,
    blocks,
    operands,
    results,
    walk,
    written_values,
)
from ..ops.language.addressed import array_
from ..ops.memory.access_ops import load_, store_
from ..ops.memory.atomics import atomic_
from ..ops.memory.ordered import ordered_load
from ..ops.moves.copy_async import copy_async_
from ..ops.moves.copy_async.tma.map_edits import map_rebind
from ..ops.sync.barriers import fence_proxy_async
from ..types import MEMORY_TYPES, Barrier, Buffer, Scalar, TensorMap, Tile
from .atoms import Atoms, fences_threads, orders
from .dependences import Dependences
from .places import Places
from .spins import spins


class Code:
    """A block prepared for execution: its nodes, and for each node the values whose last use it is."""

    __slots__ = ("nodes", "yields", "dead")

    def __init__(self, block: Block, inputs: tuple[Value, ...]):
        self.nodes = block.nodes
        self.yields = block.yields
        last: dict[Value, int] = dict.fromkeys(inputs, -1)
        for i, node in enumerate(block.nodes):
            for value in results(node):
                last[value] = i
            for value in reads(node):
                if value in last:
                    last[value] = i
        for operand in block.yields:
            if isinstance(operand, Value):
                last.pop(operand, None)
        self.dead: list[list[Value]] = [[] for _ in block.nodes]
        for value, i in last.items():
            if i >= 0:
                self.dead[i].append(value)


def reads(node: Node) -> set[Value]:
    """The outer values that a node reads, itself or in its blocks."""
    found = {o for o in operands(node) if isinstance(o, Value)}
    for block in blocks(node):
        inner: set[Value] = set()
        defined: set[Value] = set(_inputs(node))
        for n in block.nodes:
            inner |= reads(n)
            defined |= set(results(n))
        inner |= {o for o in block.yields if isinstance(o, Value)}
        found |= inner - defined
    return found


def _inputs(node: Node) -> tuple[Value, ...]:
    """The values that a node defines for its own blocks: induction variables and carried values."""
    match node:
        case For(index=index, carried=carried):
            return (index, *(c.inner for c in carried))
        case While(carried=carried):
            return tuple(c.inner for c in carried)
    return ()


class Program:
    """A graph with what is needed to run it: code per block, values read per scope, and the atoms of its threads."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.threads = graph.launch.threads
        self._code: dict[int, Code] = {}
        self._reads: dict[int, tuple[Value, ...]] = {}
        self.nodes = tuple(walk(graph.body))
        self.atoms = Atoms(graph)
        self.bounds = self.atoms.bounds
        self.atomics = any(isinstance(n, Call) and (
            n.op.traits.atomic or n.attrs.get("form", "").startswith(("atom.", "red.", "ld.", "st.")))
                           for n in self.nodes)
        self.narrow = any(map(_is_narrow, self.nodes))
        self.fences_global = any(map(_fences_global, self.nodes))
        self.fences_threads = any(map(fences_threads, self.nodes))
        # whether threads may synchronise through global memory
        self.meets = any(map(orders, self.nodes)) or self.atomics and self.fences_threads
        self.overwrites_global = any(map(_overwrites_global, self.nodes))
        self.written = _maybe_written(self.nodes)
        self.polled, self.ordered = (_accessed_by(self.nodes, test) for test in (_polls, orders))
        self.touched = _count_accesses(graph.body)
        self.for_one_thread = _for_one_thread(self.nodes)
        values = [v for n in self.nodes for v in results(n)]
        self.made_barriers = sum(v.type.n for v in values if isinstance(v.type, Barrier))
        self.barriers = self.made_barriers + _places_of_barriers(self.nodes)
        self.relaxed = any(".arrive" in f and ".relaxed." in f + "."
                           for f in (n.attrs.get("form", "") for n in self.nodes if isinstance(n, Call)))
        self.granule = _granule(values)
        self.addressed = [n.result for n in self.nodes if isinstance(n, Call) and n.op is array_]
        self.binds_maps = any(map(_binds_map, self.nodes))
        self.finest = min((type_as(v, Buffer).dtype.nbytes for v in self.addressed), default=16)
        self.places = Places(graph)
        self.spins = spins(self.nodes)
        self.owners: dict = {}  # Tile -> the thread of each element
        self.holders: dict = {}  # see Chunk.holders
        self.largest_tile = max((v.type.size for v in values if isinstance(v.type, Tile)), default=1)
        self.code(graph.body)

    @property
    def by_address(self) -> bool:
        """Whether the kernel accesses memory by addresses that it is given as numbers."""
        return bool(self.addressed) or self.binds_maps

    @cached_property
    def dependences(self) -> Dependences:
        return Dependences(self.graph)

    @cached_property
    def _read(self) -> set[Value]:
        """The values that anything reads."""
        found = {o for node in self.nodes for o in operands(node) if isinstance(o, Value)}
        inner = [block for node in self.nodes for block in blocks(node)]
        return found.union(y for block in (self.graph.body, *inner) for y in block.yields if isinstance(y, Value))

    def is_read(self, node: Node) -> bool:
        """Whether anything reads a result of a node."""
        return not self._read.isdisjoint(results(node))

    def code(self, block: Block, node: Node | None = None) -> Code:
        """The code of a block of `node` (None for the kernel's body)."""
        key = id(block)
        if key not in self._code:
            # Carried values stay alive: threads that have left a loop keep theirs while others iterate.
            self._code[key] = Code(block, (node.index,) if isinstance(node, For) else ())
        return self._code[key]

    def scope_reads(self, scope: Scope) -> tuple[Value, ...]:
        """The outer values that the body of a scope reads."""
        key = id(scope)
        if key not in self._reads:
            self._reads[key] = tuple(reads(scope))
        return self._reads[key]


def scope_threads(scope: Scope, first: int, low: int) -> tuple[int, int]:
    """The threads [low, high) of a scope nested in one whose first thread is `low`; `first` counts units of the
    scope's kind. The elected thread is the first one."""
    if scope.kind == "elect":
        return low, low + 1
    unit = UNIT[scope.kind]
    return first * unit, (first + scope.count) * unit


def _fences_global(node: Node) -> bool:
    """Whether a node is a proxy fence of global memory."""
    return isinstance(node, Call) and (node.attrs.get("form", "") in ("fence.proxy.async", "fence.proxy.async.global")
                                       or node.op is fence_proxy_async and node.attrs.get("space") in ("global", "all"))


def _is_narrow(node: Node) -> bool:
    """Whether a node is an atomic or ordered access that other CTAs, or clusters, are not within the scope of."""
    return isinstance(node, Call) and node.op.traits.atomic and node.attrs.get("scope") in ("cta", "cluster") or (
        isinstance(node, Call)
        and re.match(r"(ld|st|atom|red)\.\w+\.(cta|cluster)\.global", node.attrs.get("form", "")) is not None)


def _binds_map(node: Node) -> bool:
    """Whether a node gives a tensor map an address that is a number."""
    if not isinstance(node, Call):
        return False
    bound = node.op is map_rebind and isinstance(type_of(node.args[1]), Scalar)
    return bound or node.attrs.get("form", "").startswith("tensormap.replace")


def _overwrites_global(node: Node) -> bool:
    """Whether a node is a copy that writes global memory through the async proxy."""
    if not isinstance(node, Call):
        return False
    copies = node.op is copy_async_ and node.choice is not None and node.choice.plan.completion == "bulk"
    return copies or re.match(r"cp\.(reduce\.)?async\.bulk.*\.global\.shared", node.attrs.get("form", "")) is not None


def _maybe_written(nodes: tuple[Node, ...]) -> set[Value]:
    """The buffers that some call may write: every memory operand of a call that does more than read, except the
    operands that the call declares as its sources."""
    root = _roots(nodes)
    return {root.get(place, place) for place in written_values([node for node in nodes if isinstance(node, Call)])}


def _roots(nodes: tuple[Node, ...]) -> dict[Value, Value]:
    """The buffer that each view of one belongs to."""
    root: dict[Value, Value] = {}
    for call in nodes:
        if isinstance(call, Call):
            sources = [a for a in call.args if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES)]
            root.update((r, root.get(sources[0], sources[0])) for r in call.results
                        if sources and isinstance(r.type, MEMORY_TYPES))
    return root


def _accessed_by(nodes: tuple[Node, ...], test: Callable[[Node], bool]) -> set[Value]:
    """The buffers that the calls access for which `test` holds."""
    root = _roots(nodes)
    return {root.get(a, a) for node in nodes if isinstance(node, Call) and test(node)
            for a in node.args if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES)}


def _polls(node: Node) -> bool:
    """Whether a node reads what others may have written by atomics and ordered stores."""
    if not isinstance(node, Call):
        return False
    if node.op is atomic_:
        return node.choice is None or node.choice.plan.returns
    return node.op is ordered_load or re.match(r"(ld|atom)\.", node.attrs.get("form", "")) is not None


def _places_of_barriers(nodes: tuple[Node, ...]) -> int:
    """How many mbarriers the kernel may have in its buffers in shared memory: 8 bytes each, of those that an
    instruction takes as a barrier."""
    root: dict[Value, Value] = {}
    found: set[Value] = set()
    for call in nodes:
        if not isinstance(call, Call):
            continue
        sources = [a for a in call.args if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES)]
        root.update((r, root.get(sources[0], sources[0])) for r in call.results if sources
                    and isinstance(r.type, MEMORY_TYPES))
        slots = [name for name, count in call.attrs["slots"] for _ in range(count)] if "form" in call.attrs else ()
        found |= {root.get(a, a) for a, name in zip(call.args, slots) if name == "bar" and isinstance(a, Value)
                  and isinstance(a.type, MEMORY_TYPES)}
    return sum(-(-v.type.nbytes // 8) for v in found if isinstance(v.type, Buffer) and v.type.scope == "shared")


def _count_accesses(body: Block, times: int = 1, root: dict[Value, Value] | None = None) -> Counter:
    """How often the calls of a kernel may access each buffer. A call counts once, or twice if it may access the
    buffer any number of times, as in a loop."""
    root = {} if root is None else root
    found: Counter = Counter()
    for node in body.nodes:
        for block in blocks(node):
            found += _count_accesses(block, 2 if isinstance(node, (For, While)) else times, root)
        if not isinstance(node, Call):
            continue
        sources = [root.get(a, a) for a in node.args if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES)]
        names = [r for r in node.results if isinstance(r.type, MEMORY_TYPES)]
        root.update((r, sources[0]) for r in names if sources)
        if not names or any(isinstance(r.type, TensorMap) for r in names):
            times_here = max(times, node.op.traits.accesses)
            found.update({s: times_here * sources.count(s) for s in sources})
    return found


def _for_one_thread(nodes: tuple[Node, ...]) -> set[Node]:
    """Loads of scalars that are only used to compute scalars that one thread stores.
    What the other threads read is never used."""
    users: dict[Value, list[Node | None]] = {}
    for node in nodes:
        for value in operands(node):
            if isinstance(value, Value):
                users.setdefault(value, []).append(node)
        for block in blocks(node):
            for value in block.yields:
                if isinstance(value, Value):
                    users.setdefault(value, []).append(None)

    def is_only_stored(value: Value) -> bool:
        return all(isinstance(n, Call)
                   and (n.op is store_ and n.args[1] == value != n.args[0] and not n.attrs["each_thread"]
                        or n.op.effect == "pure"
                        and all(isinstance(r.type, Scalar) and is_only_stored(r) for r in n.results))
                   for n in users.get(value, ()))

    return {n for n in nodes
            if isinstance(n, Call) and n.op is load_ and isinstance(n.result.type, Scalar) and is_only_stored(n.result)}


def _granule(values: list[Value]) -> int:
    """Bytes of shared memory per shadow cell: the size of the smallest element that the kernel keeps there,
    at most 4."""
    sizes = [v.type.dtype.nbytes for v in values if isinstance(v.type, Buffer) and v.type.scope == "shared"]
    return min([4, *sizes])
