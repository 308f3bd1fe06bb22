"""Completion tokens: the result of ``done = tile.copy_async(...)``, and ``done.wait()``.

The copies of a scope whose tokens are used are numbered in the order of issue, by a counter that loops and branches
carry like a variable. A token is the number of its copy. passes/pipelining/tokens.py lowers the waits, once the
variants of the copies are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....dtypes import int32
from ....ir.builder import Builder, ExecScope, flag
from ....ir.builtin import MEMBERS
from ....ir.graph import Value, results
from ....ir.op import op
from ....ir.op_traits import Registers, Traits
from ...language.operators import binary


@dataclass(frozen=True)
class Token:
    """Copy number `count` of the scope `pool`. Loops and branches carry the number."""

    count: Any
    pool: str

    tile_record = True  # the frontend merges its fields one by one where control flow joins


class NoToken:
    """The result of a copy with ``mbar=``, which completes on that barrier; waiting for it is an error."""


@op("syncs", attrs=("pool", "read"), traits=Traits(waits=True))
def token_wait(count: Registers, now: Registers, pool, read):
    """Wait for copy number `count` of the `now` copies that the scope `pool` has issued so far."""


@token_wait.infer
def _(g, count, now, pool, read):
    return None


def next_token(g: Builder) -> Token:
    """Create the token of the copy about to be issued, and advance the scope's counter."""
    if g.scope.partial is not None:
        raise g.error(f"a token belongs to all threads of the {g.scope.kind}, "
                      f"and the condition on {g.scope.partial.name} differs between them; "
                      "leave the result of copy_async unused and wait by hand")
    token = Token(g.cells.setdefault(_cell(pool_of(g)), 0), pool_of(g))
    if isinstance(token.count, Value):
        with g.reopen(_outermost_block(g, token.count)):
            following = binary(g, "+", token.count, 1)
    else:
        following = token.count + 1
    g.cells[_cell(token.pool)] = following
    return token


CHOSEN = "%"  # prefix for the number of a run-time value that selects the threads of a scope


def pool_of(g: Builder) -> str:
    """A name of the current scope that is equal wherever a scope of the same threads is written."""
    words, chosen = [], g.state.setdefault("scopes of run-time ids", {})
    scope: ExecScope | None = g.scope
    while scope is not None and scope.kind != "cta":
        if isinstance(scope.first, Value):
            first = f"{CHOSEN}{chosen.setdefault(scope.first, len(chosen))}"
        else:
            first = str(scope.first)
        words.append("elect" if scope.elected else f"{scope.kind}({first}:{scope.threads})")
        scope = scope.parent
    return "/".join(["cta", *reversed(words)])


def _cell(pool: str) -> tuple:
    return "copy tokens", pool


def _outermost_block(g: Builder, count: Value) -> list:
    """The outermost block around the scopes that directly enclose this point, without a loop or branch between, in
    which `count` is known.

    The counter is advanced there, so that threads outside these scopes, which only wait, know its value too. After a
    loop of the scope that issues copies, only the scope's threads know the counter.
    """
    scope: ExecScope | None = g.scope
    level = len(g.blocks)
    while scope is not None and scope.depth == level and scope.kind != "cta" and not _makes(g.blocks[level - 1], count):
        level -= scope.around
        scope = scope.parent
    return g.blocks[level - 1]


def _makes(block: list, value: Value) -> bool:
    """Whether a node of this block, not of one inside it, has a value as a result."""
    return any(r is value for node in reversed(block) for r in results(node))


def wait(g: Builder, token: Token, read: bool = False):
    """Wait until the copy has completed and its data is visible to every thread of the current scope.

    With `read`, wait for a store only until its source may be overwritten.
    """
    if g.scope.partial is not None:
        raise g.error(f"a token must be waited for by all threads of the {g.scope.kind}, "
                      f"and the condition on {g.scope.partial.name} differs between them")
    if not pool_of(g).startswith("cta") or not (token.pool + "/").startswith(pool_of(g) + "/"):
        raise g.error("a token must be waited for in the scope that issued its copy, or in a wider one around that")
    now = g.cells[_cell(token.pool)]
    g.call(token_wait, g.operand(token.count, int32), g.operand(now, int32), pool=token.pool,
           read=flag(g, "read", read))


def _nothing_to_wait_for(g: Builder, token: NoToken, read: bool = False):
    """Raise the error for a wait for a copy with mbar=."""
    raise g.error("a copy with mbar= completes on that barrier: wait there, as in bar.wait(phase=0), "
                  "or leave out mbar= and wait for the token")


MEMBERS[Token, "wait"] = (wait, True)
MEMBERS[NoToken, "wait"] = (_nothing_to_wait_for, True)
