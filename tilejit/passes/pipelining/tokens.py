"""Lowers completion tokens: `done.wait()` becomes a wait for a group or an mbarrier.

Each copy gets the commit or the barrier by which its path completes, and each wait becomes the wait for that.

``cp.async`` copies are committed as a group each, and a wait counts how many groups came later; bulk stores likewise.
Copies that complete by bytes get a slot in a block of mbarriers, selected by the copy's number: the issuing thread
waits until the slot's last phase is over, announces the bytes and issues; the wait is for the parity that follows
from the number. Copies to tensor memory get such a slot as well, on which a commit arrives, and a fence after the
wait.

Where a path waits in the issuing threads only, a barrier of the waiting scope makes the bytes visible to all of it,
with a proxy fence before it if products or copy engines read the buffer. Where more warps wait than issue, and slots
are reused, the warps meet after the wait (at the kernel's own barrier, if one follows): a warp that lags behind would
otherwise see the phase of a later copy.

A multicast is issued by all CTAs of the cluster together: they meet at the cluster's barrier before it, and each
announces the bytes that all of them bring it. PTX ISA, "Asynchronous copy completion mechanisms".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ...dtypes import int32
from ...errors import CompilationError, Loc, line_of
from ...ir.builder import Facts, as_value, type_as, type_of
from ...ir.graph import (
    UNIT,
    Block,
    Call,
    Const,
    For,
    Graph,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    choice_of,
    may_overlap,
    number,
    walk,
    with_blocks,
)
from ...ir.op import Op
from ...ops.language.ids import cta_rank
from ...ops.memory.shared import sync
from ...ops.moves.copy_async import copy_async_
from ...ops.moves.copy_async.tokens import CHOSEN, token_wait
from ...ops.sync import barriers as bars
from ...ops.sync.proxies import ON_BARRIERS, ON_ENGINES
from ...ops.tiles import elementwise as ew
from ...ops.tmem.order import tcgen05_commit_, tcgen05_fence
from ...types import ArrayId, Barrier, BarrierRef, Scalar, Uniformity
from ..analysis.clusters import cluster_uniform_blocks, is_cluster_uniform, value_at_rank
from ..analysis.context import Context
from ..analysis.difference_bounds import DifferenceBounds
from ..analysis.staging import copied_bytes
from ..checks.transaction_counts import check_transaction_counts

MANUAL = {bars.cp_async_commit: "group", bars.cp_async_wait: "group", bars.bulk_commit: "bulk", bars.bulk_wait: "bulk"}
MAX_SLOTS = 32
BY_THREADS = {"group", "issue"}      # completions of copies whose threads write shared memory themselves
MAX_PENDING = (1 << 20) - 1          # the most bytes that a phase of an mbarrier counts (PTX ISA, tx-count)


@dataclass
class TokenPool:
    """The copies of one scope that give tokens, and the waits for them.

    `block` is their block of barriers, with `slots` slots. Where several warpgroups run one text, `warpgroup_loop` is
    the loop over them, and each has slots of its own.
    """

    copies: list[Call] = field(default_factory=list)
    waits: list[Call] = field(default_factory=list)
    block: Value | None = None
    slots: int = 1
    warpgroup_loop: For | None = None
    fenced: bool = False  # whether the async proxy reads what threads have written
    # waits by more warps than issue; a warp that lags may miss a phase
    lagging_waits: set[Call] = field(default_factory=set)

    @property
    def kinds(self) -> set[str]:
        """The ways in which the copies complete."""
        return {choice_of(c).plan.completion for c in self.copies}


def complete_tokens(graph: Graph, facts: Facts) -> Graph:
    """The graph with the waits of its tokens written out. Also checks the transaction counts of
    barriers armed by hand."""
    graph = check_transaction_counts(graph)
    pools: dict[str, TokenPool] = {}
    for node in walk(graph.body):
        if isinstance(node, Call) and _token(node):
            pools.setdefault(node.attrs["options"]["token"], TokenPool()).copies.append(node)
        elif isinstance(node, Call) and node.op is token_wait:
            pools.setdefault(node.attrs["pool"], TokenPool()).waits.append(node)
    if not pools:
        return graph
    _refuse_manual_groups(graph.body)
    context = Context(graph, facts)
    read = _read_by_engines(context)
    differences, made, multicasts = DifferenceBounds(graph), [], Multicasts.of(graph)
    for name, pool in pools.items():
        pool.fenced = any(choice_of(c).plan.completion in BY_THREADS and context.bytes_of(c.args[0])[0] in read
                          for c in pool.copies)
        if not pool.kinds & ON_BARRIERS:
            continue
        if CHOSEN in name:
            pool.warpgroup_loop = _warpgroup_loop(graph, pool) if name.count(CHOSEN) == 1 else None
        if CHOSEN in name and pool.warpgroup_loop is None:
            raise CompilationError("which threads issue this copy is known at run time only, and its token needs a "
                                   "separate barrier for each of them: make these barriers yourself, "
                                   "one for each warpgroup w as in bars = tile.mbarrier(n=2), "
                                   "arm it by bars[w].arrive_expect_tx(..), give mbar=bars[w], and wait for its phase",
                                   pool.copies[0].loc)
        pool.slots = _slots(pool, differences)
        loop = pool.warpgroup_loop
        n = pool.slots * (1 if loop is None else number(loop.stop) - number(loop.start))
        pool.block = Value("tokens", Barrier(n, 1), pool.copies[0].loc)
        made.append(Call(bars.mbarrier_init, (), {"count": 1, "n": n}, (pool.block,), pool.copies[0].loc))
        pool.lagging_waits = _lagging_waits(graph, pool)
    body = _rewrite_block(graph.body, pools, differences, multicasts, context.stored_arrays)
    return replace(graph, body=replace(body, nodes=(*made, *body.nodes)))


def _token(call: Call) -> bool:
    """Whether a call is a copy that gives a token."""
    return call.op is copy_async_ and bool(call.attrs["options"].get("token"))


def _read_by_engines(context: Context) -> set[Operand]:
    """The shared buffers that products and copies read through the async proxy.
    Copies with tokens have a fence of their own."""
    readers = (c for c in context.calls if c.op.traits.product and c.op.traits.asynchronous
               or c.op is copy_async_ and not _token(c) and choice_of(c).plan.completion in ON_ENGINES)
    return {context.bytes_of(a)[0] for c in readers
            for a in c.args[1:] if getattr(type_of(a), "scope", None) == "shared"}


def _warpgroup_loop(graph: Graph, pool: TokenPool) -> For | None:
    """The loop over scopes, one for each warpgroup, that contains all of a pool's copies and waits, if there is one.

    It carries nothing, so the warpgroup of each trip counts its copies from the same number.
    """
    for node in walk(graph.body):
        if (isinstance(node, For) and not node.carried
            and any(isinstance(n, Scope) and n.first is node.index for n in node.body.nodes)):
            inside = set(walk(node.body))
            if inside.issuperset((*pool.copies, *pool.waits)):
                return node
    return None


def _refuse_manual_groups(body: Block) -> None:
    """Raise CompilationError for a commit or wait by hand in a scope whose copies of the same kind give tokens."""
    calls = list(_with_scopes(body, ()))
    scopes = {(where, choice_of(call).plan.completion): call for call, where in calls if _token(call)}
    for call, where in calls:
        copy = scopes.get((where, MANUAL.get(call.op)))
        if copy is not None and call.choice is None:
            raise CompilationError(f"{call.op.name} counts groups by hand, in a scope whose copies give tokens (line "
                                   f"{line_of(copy.loc)}): wait for the tokens, or leave the results of copy_async "
                                   "unused", call.loc)


def _with_scopes(block: Block, where: tuple[Any, ...]) -> Iterator[tuple[Call, tuple[Any, ...]]]:
    """The calls in a block, each with the scopes around it."""
    for node in block.nodes:
        if isinstance(node, Call):
            yield node, where
        inside = (*where, (node.kind, node.first, node.count)) if isinstance(node, Scope) else where
        for inner in blocks(node):
            yield from _with_scopes(inner, inside)


def _slots(pool: TokenPool, differences: DifferenceBounds) -> int:
    """How many slots a pool needs: the most copies that may be issued from one until its wait,
    rounded up to a power of two."""
    wanted = 1
    for wait in pool.waits:
        apart = differences(wait.args[1], wait.args[0])
        if apart is None or apart[1] > MAX_SLOTS:
            raise CompilationError("the number of copies issued between this token's copy and its wait is "
                                   f"not known to be at most {MAX_SLOTS}: "
                                   "wait for it in the loop that issues them, or give mbar=", wait.loc)
        wanted = max(wanted, apart[1])
    return 1 << (wanted - 1).bit_length()


def _lagging_waits(graph: Graph, pool: TokenPool) -> set[Call]:
    """The waits by several warps, on slots that are reused by copies of a narrower scope."""
    repeated = {n for loop in walk(graph.body) if isinstance(loop, (For, While)) for block in blocks(loop)
                for n in walk(block)}
    again = len(pool.copies) > pool.slots or not repeated.isdisjoint(pool.copies)
    where = dict(_with_scopes(graph.body, ()))
    narrowest = max(len(where[c]) for c in pool.copies)
    return {w for w in pool.waits if again and len(where[w]) < narrowest and _threads(graph, where[w]) > 32}


def _threads(graph: Graph, where: tuple[Any, ...]) -> int:
    kind, _, count = where[-1] if where else ("warp", None, graph.launch.num_warps)
    return UNIT.get(kind, 1) * count


# -- rewriting ---------------------------------------------------------------------------------------------------------

@dataclass
class Multicasts:
    """What is known about multicasts: the cluster's size (`ranks`), the cluster-uniform blocks (`alike`), and the
    definitions of values."""

    ranks: int
    alike: set[Block]
    definitions: dict[Operand, Call]

    @staticmethod
    def of(graph: Graph) -> Multicasts:
        calls: dict[Operand, Call] = {r: node for node in walk(graph.body) if isinstance(node, Call)
                                      for r in node.results}
        return Multicasts(prod(graph.launch.cluster or (1,)), cluster_uniform_blocks(graph.body), calls)

    def received_bytes(self, copy: Call, block: Block, nodes: list[Call]) -> Operand:
        """The bytes that the copies of all CTAs bring to the one at hand."""
        mask, loc, nbytes = copy.args[3], copy.loc, copied_bytes(copy.args[1])
        if self.ranks > 1 and block not in self.alike:
            raise CompilationError("a multicast whose token is waited for must be made by every CTA of the cluster, "
                                   "and a condition or a loop bound around this one may differ between CTAs: "
                                   "give mbar=, which each receiving CTA arms itself", loc)
        if self.ranks * nbytes > MAX_PENDING:
            raise CompilationError(f"{self.ranks} CTAs that send {nbytes} bytes each exceed the {MAX_PENDING} bytes "
                                   "that a barrier counts: give mbar=", loc)
        known = [value_at_rank(mask, self.definitions, own, self.ranks) for own in range(self.ranks)]
        if None not in known:
            masks = [m for m in known if m is not None]
            senders = {sum(m >> r & 1 for m in masks) for r in range(self.ranks)}
            if len(senders) == 1:
                return Const(senders.pop() * nbytes, int32)
        if not is_cluster_uniform(mask):
            raise CompilationError("how many CTAs send bytes to each one is not known, since this mask differs between "
                                   "CTAs: compute it from the rank and constants, so that all receive equally often, "
                                   "or give mbar=, which each receiving CTA arms itself", loc)
        rank = Value("cta_rank", Scalar(int32, Uniformity.CTA), loc)
        nodes.append(Call(cta_rank, (), {}, (rank,), loc))
        return _int32(ew.mul, _int32(ew.bit_and, _int32(ew.shr, mask, rank, nodes, loc), 1, nodes, loc),
                      self.ranks * nbytes, nodes, loc)


def _add_global_fence(nodes: list[Call], stored: frozenset[ArrayId]) -> list[Call]:
    """The nodes of a copy, with a proxy fence of global memory where threads of the kernel may have stored what a
    copy engine accesses. It stands in the CTA of the copy, after the barrier: there it also covers what other CTAs
    have stored."""
    copy = next(n for n in nodes if n.op is copy_async_)
    arrays = (getattr(getattr(type_of(a), "buffer", None), "arg", None) for a in copy.args[:2])
    if choice_of(copy).plan.completion not in ON_ENGINES or not any(may_overlap(array, stored) for array in arrays):
        return nodes
    at = nodes.index(copy)
    return [*nodes[:at], Call(bars.fence_proxy_async, (), {"space": "global"}, (), copy.loc), *nodes[at:]]


def _rewrite_block(block: Block, pools: dict[str, TokenPool], differences: DifferenceBounds, multicasts: Multicasts,
                   stored: frozenset[ArrayId]) -> Block:
    nodes: list[Node] = []
    for n, node in enumerate(block.nodes):
        match node:
            case Call() if _token(node):
                issued = _issue_copy(node, pools[node.attrs["options"]["token"]], multicasts, block, nodes)
                nodes += _add_global_fence(issued, stored)
            case Call() if node.op is token_wait:
                pool = pools[node.attrs["pool"]]
                nodes += _wait_for_copy(node, pool, differences,
                                        node in pool.lagging_waits and not _sync_follows(block.nodes[n + 1:], pool))
            case _:
                nodes.append(with_blocks(node,
                                         lambda inner: _rewrite_block(inner, pools, differences, multicasts, stored)))
    return replace(block, nodes=tuple(nodes))


def _issue_copy(copy: Call, pool: TokenPool, multicasts: Multicasts, block: Block, before: list[Any]) -> list[Call]:
    """A copy, with what arms its barrier or closes its group. `before` are the nodes before it in its block."""
    dst, src, _, *mask, count = copy.args
    kind, loc = choice_of(copy).plan.completion, copy.loc
    plain = replace(copy, args=(dst, src, None))
    nodes: list[Call] = []
    if kind in ON_ENGINES and not mask:  # order the copy after the scope's own accesses
        last = next((n for n in reversed(range(len(before)))
                     if not (isinstance(before[n], Call) and before[n].op.effect == "pure")), None)
        if last is not None and isinstance(before[last], Call) and before[last].op is sync:
            before.insert(last, _effect(bars.fence_proxy_async, loc))
        else:
            nodes += [_effect(bars.fence_proxy_async, loc), _effect(sync, loc)]
    if pool.block is not None:
        ref, round_ = _slot(pool, count, nodes, loc)
        if not isinstance(round_, Const) or round_.value:  # the first use of a slot has nothing to wait for
            parity = _int32(ew.bit_and, _int32(ew.add, round_, 1, nodes, loc), 1, nodes, loc)
            nodes.append(_effect(bars.mbarrier_wait, loc, ref, parity))
    if mask:  # order the copy after all CTAs' accesses and waits for their slots
        nodes += [_effect(bars.fence_proxy_async, loc), _effect(bars.cluster_arrive, loc),
                  _effect(bars.cluster_wait, loc)]
    if kind == "bytes":
        nbytes = multicasts.received_bytes(copy, block, nodes) if mask else Const(copied_bytes(src), int32)
        nodes += [_effect(bars.arrive_expect_tx_op, loc, ref, nbytes), replace(copy, args=(dst, src, ref, *mask))]
        return nodes
    nodes.append(plain)
    if kind in ("group", "bulk"):
        nodes.append(_effect(bars.cp_async_commit if kind == "group" else bars.bulk_commit, loc))
    if kind == "commit":
        nodes.append(Call(tcgen05_commit_, (ref,), {"cta_group": choice_of(copy).plan.cta_group}, (), loc))
    elif pool.block is not None:
        nodes.append(_effect(bars.arrive_op, loc, ref, Const(1, int32)))
    return nodes


def _sync_follows(following: tuple[Any, ...], pool: TokenPool) -> bool:
    """Whether all threads meet at a barrier among these nodes, before the pool's next copy."""
    for node in following:
        if isinstance(node, Call) and node.op is sync:
            return True
        if not set(pool.copies).isdisjoint(walk(Block((node,)))):
            break
    return False


def _wait_for_copy(wait: Call, pool: TokenPool, differences: DifferenceBounds, meet: bool) -> list[Call]:
    """What waits for a copy, whichever path the pool's copies take. With `meet` the waiting threads then meet, so
    that none is left behind by the slot's next phase."""
    count, now = wait.args
    nodes: list[Call] = []
    loc, kinds = wait.loc, pool.kinds
    apart = differences(now, count)
    later = max(apart[0] - 1, 0) if apart is not None and len(kinds) == 1 else 0
    if pool.block is not None:
        ref, round_ = _slot(pool, count, nodes, loc)
        nodes.append(_effect(bars.mbarrier_wait, loc, ref, _int32(ew.bit_and, round_, 1, nodes, loc)))
    if "group" in kinds:
        nodes.append(Call(bars.cp_async_wait, (), {"n": later}, (), loc))
    if "bulk" in kinds:
        nodes.append(Call(bars.bulk_wait, (), {"n": later, "read": wait.attrs["read"]}, (), loc))
    if "commit" in kinds:
        nodes.append(Call(tcgen05_fence, (), {"side": "after_thread_sync"}, (), loc))
    if pool.fenced:
        nodes.append(_effect(bars.fence_proxy_async, loc))
    if meet or kinds - ON_BARRIERS:
        nodes.append(_effect(sync, loc))
    return nodes


def _slot(pool: TokenPool, count: Operand, nodes: list[Call], loc: Loc | None) -> tuple[Value, Operand]:
    """The barrier of the copy with number `count`, and how many times its slot was used before."""
    slot, loop = _int32(ew.bit_and, count, pool.slots - 1, nodes, loc), pool.warpgroup_loop
    if loop is not None:
        first = _int32(ew.mul,
                       _int32(ew.sub, loop.index, number(loop.start), nodes, loc),
                       pool.slots, nodes, loc)
        slot = _int32(ew.add, first, int(slot.value) if isinstance(slot, Const) else as_value(slot), nodes, loc)
    ref = Value("mbarrier", BarrierRef(type_as(pool.block, Barrier)), loc)
    nodes.append(Call(bars.mbarrier_at, (pool.block, slot), {"peer": False}, (ref,), loc))
    return ref, _int32(ew.shr, count, pool.slots.bit_length() - 1, nodes, loc)


_FOLD: dict[Op, Callable[[int, int], int]] = {ew.add: int.__add__, ew.bit_and: int.__and__, ew.shr: int.__rshift__}


def _int32(op: Op, x: Operand, n: int | Value, nodes: list[Call], loc: Loc | None) -> Operand:
    """``op(x, n)`` as int32, folded where both are constants."""
    if isinstance(x, Const) and isinstance(n, int):
        return Const(_FOLD[op](int(x.value), n), int32)
    parts = x, Const(n, int32) if isinstance(n, int) else n
    uniform = min([type_as(p, Scalar).uniform for p in parts if isinstance(p, Value)])
    result = Value(op.name, Scalar(int32, uniform), loc)
    nodes.append(Call(op, parts, {}, (result,), loc))
    return result


def _effect(op: Op, loc: Loc | None, *args: Operand) -> Call:
    return Call(op, args, {}, (), loc)
