"""Mutants of a lowered kernel: its graph with one wait, fence, arrival, byte count, phase, barrier or trip count
removed or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilejit.ir.builder import type_of
from tilejit.ir.graph import Block, Call, Const, For, Graph, Scope, Value, walk
from tilejit.ops.tiles.elementwise import bit_xor, sub

BYTES = "mbarrier_arrive_expect_tx", "mbarrier_expect_tx"
ARRIVALS = "mbarrier_arrive", "mbarrier_arrive_expect_tx", "ring_release", "arrive_on_copies_"
KEPT = "mbarrier_init", "print", "print_tile", "host_print", "breakpoint", "assert", "assumed", "first_turn"  # no fault, or another kernel without them


@dataclass(frozen=True)
class Mutant:
    """A changed graph. `name` says what was changed, with a number among changes of that kind; `line` is that of the
    kernel's source."""

    name: str
    line: int
    graph: Graph


def mutants(graph: Graph) -> Iterator[Mutant]:
    """Every mutant of a lowered graph, in the order of its nodes."""
    numbers: Counter = Counter()
    for name, line, body in changed_blocks(graph.body, graph.launch.threads):
        numbers[name] += 1
        yield Mutant(f"{name} #{numbers[name]}", line, replace(graph, body=body))


def changed_blocks(block: Block, threads: int) -> Iterator[tuple[str, int, Block]]:
    """Every change of one node in a block or in the blocks inside it: its name, its line and the changed block.
    `threads` is the number of threads of the CTA, or 0 in a scope that leaves some of them to other roles."""
    for i, node in enumerate(block.nodes):
        before, after = block.nodes[:i], block.nodes[i + 1:]
        for name, nodes in changes(node, threads == 0):
            yield name, node.loc.line, replace(block, nodes=(*before, *nodes, *after))
        if isinstance(node, Call) and after and swappable(node, after[0]):
            swapped = replace(block, nodes=(*before, after[0], node, *after[1:]))
            yield f"swap {node.op.name} and {after[0].op.name}", node.loc.line, swapped
        for field in ("body", "then", "orelse", "test"):
            inner = getattr(node, field, None)
            if isinstance(inner, Block):
                for name, line, body in changed_blocks(inner, threads_inside(node, threads)):
                    yield name, line, replace(block, nodes=(*before, replace(node, **{field: body}), *after))


def threads_inside(node, threads: int) -> int:
    """As `threads` of `changed_blocks`, in the blocks of a node. Where each of several warpgroups takes a trip of a
    loop, it is their share of the threads."""
    if isinstance(node, Scope):
        return 0 if node.threads < threads else threads
    each = isinstance(node, For) and any(isinstance(n, Scope) and n.first is node.index for n in node.body.nodes)
    return threads // len(range(*(x.value for x in (node.start, node.stop, node.step)))) if each else threads


def changes(node, in_role: bool) -> Iterator[tuple[str, tuple]]:
    """Every change of a node: its name, and the nodes in its place. A loop has fewer trips only in a role, which then
    disagrees with the others; elsewhere the kernel would be one for a smaller problem."""
    if in_role and isinstance(node, For) and any(map(synchronises, walk(node.body))):
        yield "one trip less", fewer_trips(node)
    if not isinstance(node, Call):
        return
    name = node.op.name
    if synchronises(node) and not node.results and name not in KEPT:
        yield f"remove {name}", ()
    if name in ARRIVALS:
        yield f"repeat {name}", (node, node)
    if name in BYTES and isinstance(node.args[1], Const):
        barrier, count = node.args[:2]
        for word, changed in (("half", count.value // 2), ("16 more", count.value + 16)):
            other = replace(node, args=(barrier, replace(count, value=changed), *node.args[2:]))
            yield f"{word} of the bytes of {name}", (other,)
    if name in ("mbarrier_wait", "mbarrier_peek"):
        yield f"other phase of {name}", other_phase(node)
    if name == "mbarrier_init":
        right = node.attrs["count"]
        for count in filter(None, (right + 1, right - 1)):
            yield f"{count} arrivals for mbarrier_init of {right}", (with_attrs(node, count=count),)
    if name == "mbarrier_at" and isinstance(node.args[1], Const) and type_of(node.args[0]).n > 1:
        other = replace(node.args[1], value=(node.args[1].value + 1) % type_of(node.args[0]).n)
        yield "another barrier", (replace(node, args=(node.args[0], other, *node.args[2:])),)
    if name.endswith("wait") and isinstance(node.attrs.get("n"), int):
        yield f"{name} leaves one more group", (with_attrs(node, n=node.attrs["n"] + 1),)
    if isinstance(node.attrs.get("read"), bool) and not node.attrs["read"]:
        yield f"{name} waits for the reads only", (with_attrs(node, read=True),)


def synchronises(node) -> bool:
    return isinstance(node, Call) and node.op.effect == "syncs"


def with_attrs(call: Call, **changed) -> Call:
    return replace(call, attrs={**call.attrs, **changed})


def fewer_trips(loop: For) -> tuple:
    """The loop with one trip less at its end."""
    if isinstance(loop.stop, Const) and isinstance(loop.step, Const):
        return (replace(loop, stop=replace(loop.stop, value=loop.stop.value - loop.step.value)),)
    stop = Value("fewer", type_of(loop.index if isinstance(loop.stop, Const) else loop.stop), loop.loc)
    return Call(sub, (loop.stop, loop.step), {}, (stop,), loop.loc), replace(loop, stop=stop)


def other_phase(wait: Call) -> tuple:
    """A wait or test for the other parity."""
    barrier, phase, *seen = wait.args
    if isinstance(phase, Const):
        return (replace(wait, args=(barrier, replace(phase, value=1 - phase.value % 2), *seen)),)
    other = Value("other", type_of(phase), wait.loc)
    flip = Call(bit_xor, (phase, Const(1, phase.type.dtype)), {}, (other,), wait.loc)
    return flip, replace(wait, args=(barrier, other, *seen))


def swappable(first: Call, second) -> bool:
    """Whether two neighbours have effects, one of them synchronises, and the second uses no result of the first."""
    if not isinstance(second, Call) or {first.op.name, second.op.name} & set(KEPT):
        return False
    effects = first.op.effect, second.op.effect
    used = set(first.results) & {a for a in second.args if isinstance(a, Value)}
    return "syncs" in effects and "pure" not in effects and not used


__all__ = ["Mutant", "mutants"]
