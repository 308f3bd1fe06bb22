"""The typed kernel graph: a closed set of frozen structural nodes, and calls of an open set of ops.

Blocks are ordered, because the order of issue, commit and wait is their meaning. A value is defined once, with one
type; a pass that changes a type defines a new value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..dtypes import DType, integer_range
from ..errors import Loc
from ..types import MEMORY_TYPES, Addressed, ArrayId, Points, Region, Selected, Type

if TYPE_CHECKING:
    from ..dispatch import Choice
    from .op import Op


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An SSA value."""

    name: str
    type: Type
    loc: Loc | None = None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(frozen=True, slots=True)
class Const:
    """A number known at compile time, used as an operand."""

    value: bool | int | float
    dtype: DType


Operand = Value | Const | None


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """One application of `op`. `choice` is its lowering, once variants have been chosen.

    `origin` is the choice of the `dot` that a pass has written out, on the products and moves that it became.
    """

    op: Op
    args: tuple[Operand, ...]
    attrs: Mapping[str, Any]
    results: tuple[Value, ...]
    loc: Loc | None
    choice: Choice | None = None
    origin: Choice | None = None

    @property
    def reported_choice(self) -> Choice | None:
        """The choice that graphs and records report: that of the author's own call."""
        return self.origin or self.choice

    @property
    def result(self) -> Value:
        (value,) = self.results
        return value


def _stores_by_map(call: Call) -> bool:
    """Whether a call stores to global memory through a tensor map."""
    if call.op.rules.stores_by_map is not None:
        return call.op.rules.stores_by_map(call)
    return call.op.writes and any(isinstance(place, Value) and isinstance(place.type, Region)
                                  and place.type.buffer.map is not None
                                  for place in call.op.roles.written_operands(call.args))


def written_values(calls: Iterable[Call]) -> Iterator[Value]:
    """The memory operands that calls may write.

    These are the operands that the op's signature says it writes, or what its rule `written` says. That rule is told
    whether some call stores through a tensor map that the kernel names.
    """
    calls = list(calls)
    mapped = any(map(_stores_by_map, calls))
    for call in calls:
        if call.op.rules.written is not None:
            yield from call.op.rules.written(call, mapped)
        elif call.op.writes:
            yield from (a for a in call.op.roles.written_operands(call.args)
                        if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES))


def is_writer(call: Call) -> bool:
    """Whether a call itself writes operands, rather than orders or waits for what others write there."""
    return call.op.writes and call.op.effect != "syncs" or call.op.rules.written is not None


def written_arrays(calls: Iterable[Call]) -> frozenset[ArrayId]:
    """The arrays that calls may write: numbers of arguments, and arrays that the kernel makes from addresses."""
    types = (place.type for place in written_values(calls) if isinstance(place.type, (Region, Points, Selected)))
    return frozenset(t.buffer.arg for t in types if t.buffer.arg is not None)


def may_overlap(array: ArrayId | None, others: Collection[ArrayId]) -> bool:
    """Whether an array is one of `others`, or may lie over one of them, as one that the kernel makes from an address
    may."""
    unknown = isinstance(array, Addressed) or any(isinstance(other, Addressed) for other in others)
    return array in others or array is not None and unknown and bool(others)


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Nodes in order, and the values that the block yields to the node that contains it."""

    nodes: tuple[Node, ...] = ()
    yields: tuple[Operand, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Carry:
    """A loop-carried value: its initial value, its name inside the body, and its name after the loop."""

    init: Operand
    inner: Value
    result: Value


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a loop's copies run ahead: over how many stages, and whether warps of their own issue them. `regs` are the
    registers of a producer's and of a consumer's thread (None: as the launch gives)."""

    stages: int
    warp_specialize: bool = False
    regs: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, eq=False, slots=True)
class For:
    """``for index in range(start, stop, step)``; the body yields the next value of each carry. A step that is not
    constant is positive.

    `unroll` is the number of copies of the body that the emitter writes for one trip (0: the loop is unrolled
    completely). `pipeline` is set until passes/pipelining/pipeline.py has written the pipeline out.
    """

    index: Value
    start: Operand
    stop: Operand
    step: Operand
    carried: tuple[Carry, ...]
    body: Block
    loc: Loc | None
    unroll: int = 1
    pipeline: Pipeline | None = None


@dataclass(frozen=True, eq=False, slots=True)
class If:
    """Both blocks yield one operand for each result."""

    test: Operand
    then: Block
    orelse: Block
    results: tuple[Value, ...]
    loc: Loc | None


@dataclass(frozen=True, eq=False, slots=True)
class While:
    """`test` yields only the condition; `body` yields the next value of each carry."""

    test: Block
    carried: tuple[Carry, ...]
    body: Block
    loc: Loc | None


UNIT = {"thread": 1, "warp": 32, "warpgroup": 128, "elect": 1}  # threads in one instance of a kind of scope


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
    """A narrower execution scope. Nothing synchronises at its ends.

    `kind` is 'warpgroup', 'warp', 'thread' or 'elect'; the scope is the `count` instances of `kind` from number
    `first` on in the CTA, acting as one.
    """

    kind: str
    first: Operand
    count: int
    body: Block
    loc: Loc | None
    regs: int | None = None

    @property
    def threads(self) -> int:
        return UNIT[self.kind] * self.count


Node = Call | For | If | While | Scope


@dataclass(frozen=True, slots=True)
class Launch:
    """Options of a launch that are part of the kernel."""

    num_warps: int = 4
    cluster: tuple[int, int, int] | None = None
    min_ctas: int | None = None
    max_registers: int | None = None
    spills: int | None = None
    max_shared: int | None = None
    fast_math: bool = False
    pdl: bool = False
    jitter: int | None = None
    profile: bool = False
    persistent: bool = True

    @property
    def threads(self) -> int:
        return 32 * self.num_warps

    @property
    def registers(self) -> int:
        """The registers that each thread of a CTA starts with: an equal share, rounded down to a multiple of 8, at most
        256 (of which a thread can use 255) and at most `max_registers`. Each of a multiprocessor's four schedulers has
        16384 registers (CUDA C++ Programming Guide, "Compute Capabilities") and runs every fourth warp."""
        share = min(16384 // 32 // -(-self.num_warps * (self.min_ctas or 1) // 4) // 8 * 8, 256)
        return min(share, self.max_registers or share)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a buffer is in tensor memory: from `column` on in an allocation of `columns` columns.

    `leader` is the buffer whose slot in shared memory receives the allocation's address; the simulator puts the
    allocation at column `first`. `freed`: the kernel deallocates it itself.
    """

    leader: Value
    column: int
    columns: int
    first: int
    cta_group: int
    freed: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """A kernel: parameters (global buffers and scalars, in the order of the launch's arguments), a body, options.

    `shared` has the byte offset of every allocation, and `shared_bytes` their total size,
    once shared memory has been placed.
    """

    name: str
    params: tuple[Value, ...]
    body: Block
    launch: Launch
    target: str
    loc: Loc | None
    shared: Mapping[Value, int] = field(default_factory=dict)
    shared_bytes: int = 0
    # For scratch in scopes whose place is known only at run time: (place, bytes) pairs. Each product is added to the
    # offset.
    scratch_strides: Mapping[Value, tuple[tuple[Value, int], ...]] = field(default_factory=dict)
    scratch_limit: int = 0  # the most bytes that a call has whose tile moves through scratch in parts; 0: no limit
    scratch_unused: frozenset[Value] = frozenset()  # calls that need no barrier before they write their scratch
    tensor_memory: Mapping[Value, TensorPlace] = field(default_factory=dict)
    layouts: tuple[Any, ...] = ()  # records of the layouts that the compiler has chosen for shared buffers
    loads: tuple[Any, ...] = ()  # records of loads in pipelined loops
    masks: tuple[Any, ...] = ()  # records of masks that iterations of pipelined loops skip
    rotations: tuple[Any, ...] = ()  # records of pipelined loops whose products could overlap with threads' work
    persistence: tuple[Any, ...] = ()  # a record of whether CTAs run several programs, of a kernel that asks for roles
    # whether they do: the launch starts as many as fit on the GPU, and `num_programs` is a parameter
    persistent: bool = False
    warnings: tuple[Any, ...] = ()  # of passes, for the kernel's author

    def __str__(self) -> str:
        from .printer import text  # the printer knows the kinds of nodes, which are here
        return text(self)


def number(operand: Operand) -> int:
    """The value of an operand that must be a constant integer."""
    assert isinstance(operand, Const) and isinstance(operand.value, int), f"{operand!r} is no constant integer"
    return operand.value


def choice_of(call: Call) -> Choice:
    """The choice of a call's lowering, which must have been made."""
    assert call.choice is not None, f"no lowering has been chosen for {call.op}"
    return call.choice


def pipeline_of(loop: For) -> Pipeline:
    """How the copies of a pipelined loop run ahead."""
    assert loop.pipeline is not None, "the loop is not pipelined"
    return loop.pipeline


def rises(loop: For) -> bool:
    """Whether a loop counts up."""
    return not isinstance(loop.step, Const) or loop.step.value > 0


def leaves_its_range(stop: Operand, step: int, dtype: DType) -> bool:
    """Whether a loop index that grows by `step` up to `stop` may overflow its dtype after the last trip."""
    least, most = integer_range(dtype)
    furthest, unit = (most, 1) if step > 0 else (least, -1)
    end = stop.value if isinstance(stop, Const) else furthest
    return not least <= end + step - unit <= most


def blocks(node: Node) -> tuple[Block, ...]:
    """The blocks inside a node, in the order in which they run."""
    match node:
        case Call():
            return ()
        case For(body=body) | Scope(body=body):
            return (body,)
        case If(then=then, orelse=orelse):
            return (then, orelse)
        case While(test=test, body=body):
            return (test, body)


def with_blocks(node: Node, change: Callable[[Block], Block]) -> Node:
    """The node with each of its blocks replaced by ``change(block)``."""
    match node:
        case For(body=body) | Scope(body=body):
            return replace(node, body=change(body))
        case If(then=then, orelse=orelse):
            return replace(node, then=change(then), orelse=change(orelse))
        case While(test=test, body=body):
            return replace(node, test=change(test), body=change(body))
    return node


def walk(block: Block) -> Iterator[Node]:
    """Every node in `block`, nested ones included, in order; an outer node comes before those inside it."""
    begun = [iter(block.nodes)]
    while begun:
        for node in begun[-1]:
            yield node
            if type(node) is not Call:  # most nodes are calls, which have no blocks
                begun.append(chain.from_iterable(inner.nodes for inner in blocks(node)))
                break
        else:
            begun.pop()


def results(node: Node) -> tuple[Value, ...]:
    """The values that a node defines for the nodes after it."""
    match node:
        case Call(results=values) | If(results=values):
            return values
        case For(carried=carried) | While(carried=carried):
            return tuple(c.result for c in carried)
        case Scope():
            return ()


def operands(node: Node) -> tuple[Operand, ...]:
    """The operands that a node itself reads, without those of the nodes inside it."""
    match node:
        case Call(args=args):
            return args
        case For(start=start, stop=stop, step=step, carried=carried):
            return (start, stop, step, *(c.init for c in carried))
        case If(test=test):
            return (test,)
        case While(carried=carried):
            return tuple(c.init for c in carried)
        case Scope(first=first):
            return (first,)


class Rewriter:
    """Substitutes values while a pass rebuilds a graph: a mapping from old values to new operands."""

    def __init__(self) -> None:
        self.values: dict[Value, Operand] = {}

    def __call__(self, operand: Operand) -> Operand:
        return self.values.get(operand, operand) if isinstance(operand, Value) else operand

    def all(self, args: Iterable[Operand]) -> tuple[Operand, ...]:
        return tuple(self(a) for a in args)

    def retype(self, value: Value, type_: Type) -> Value:
        """A value of another type that replaces `value` from here on."""
        new = value if type_ == value.type else replace(value, type=type_)
        self.values[value] = new
        return new


def range_names(graph: Graph) -> list[str]:
    """The names of the ranges that the kernel marks, in the order of the code: see ``tile.named_range``."""
    marks = (n.attrs.get("range_name") for n in walk(graph.body) if isinstance(n, Call))
    return list(dict.fromkeys(name for name in marks if name is not None))
