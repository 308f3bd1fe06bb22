"""``block_mask``: masks whose hidden and whole blocks are found before a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tilejit as tile

from ...config import config as settings
from ...errors import LaunchError
from ...frames import hide_own_frames
from ...runtime import driver
from ...runtime.arrays import describe
from ..operands import NOTHING, check_arguments, check_listed
from ..views import new_array
from .backward.listed_rows import list_rows
from .backward.model import choose as choose_backward
from .checks import check_number_of, checked_window
from .listed_blocks import HEAD, list_blocks
from .model import choose
from .problem import Attention, Request, check_attention


@dataclass(frozen=True, eq=False)
class BackwardTables:
    """The lists of a mask's blocks for the backward, int32 arrays as `BlockMask.table`.

    - `by_keys`: [batches or 1, heads or 1, blocks of keys, 2 + blocks of rows], the blocks of rows for each of keys
    - `by_rows`: [batches or 1, heads or 1, blocks of rows, 2 + blocks of keys], those of keys for each of rows
    - `block`: the rows and columns of a block"""

    by_keys: Any
    by_rows: Any
    block: tuple[int, int]


@dataclass(frozen=True, eq=False)
class BlockMask:
    """What `block_mask` returns, for `mask=` of `attention`.

    - `mask`, `arguments`, `causal`, `window`: as given, and as a call with this mask has them
    - `table`: an int32 array [batches or 1, heads or 1, blocks of rows, 2 + blocks of columns], on the device of `q`:
      how many blocks are whole, how many have to be masked, and the numbers of the former from the front on, of the
      latter from the end on; None on a target whose kernels take no table
    - `rows`, `keys`, `block`: the extents that it is for, and the rows and columns of a block
    - `backward`: the lists for the backward, a `BackwardTables`; None if there are none"""

    mask: tile.Kernel[..., Any]
    arguments: tuple
    causal: bool
    window: tuple[int | None, int | None]
    table: Any
    rows: int
    keys: int
    block: tuple[int, int]
    backward: BackwardTables | None = None


def taken_apart(given: BlockMask, q: Any, k: Any, causal: Any, window: Any, arguments: Any) -> tuple:
    """The mask, and the call's causal, window and arguments, which are those of the mask. LaunchError for a call that
    it does not fit."""
    shapes = tuple(getattr(q, "shape", ())), tuple(getattr(k, "shape", ()))
    if min(map(len, shapes)) >= 3:  # others are refused later
        _check_extents(given, *shapes)
    if causal and not given.causal or window is not None and checked_window(window) != given.window:
        raise LaunchError("causal and window are those of the block mask: pass them to kernels.block_mask")
    if [*map(id, arguments)] not in ([], [*map(id, given.arguments)]):
        raise LaunchError("the arguments are those of the block mask: pass them to kernels.block_mask")
    return given.mask, given.causal, given.window, given.arguments


Tables = tuple[Any, tuple[int, int] | None, tuple[Any, Any, tuple[int, int]] | None]


def tables_of(given: BlockMask) -> Tables:
    """(The table of the forward, its block, those of the backward by keys and by rows with their block). What there is
    none of is None."""
    held = given.backward
    return (given.table, None if given.table is None else given.block,
            None if held is None else (held.by_keys, held.by_rows, held.block))


def _check_extents(given: BlockMask, q: tuple[int, ...], k: tuple[int, ...]) -> None:
    if (q[-2], k[-2]) != (given.rows, given.keys):
        raise LaunchError(f"the block mask is for {given.rows} rows of q and {given.keys} of k, not for {q[-2]} and "
                          f"{k[-2]}: make one by kernels.block_mask(mask, q, k)")
    table = given.table if given.table is not None or given.backward is None else given.backward.by_keys
    if table is None:
        return
    for name, made, n in (("batches", table.shape[0], q[0] if len(q) == 4 else 1), ("heads", table.shape[1], q[-3])):
        if made not in (1, n):
            raise LaunchError(f"the block mask is for {made} {name}, and q has {n}")


@hide_own_frames
def block_mask(mask: tile.Kernel[..., Any], q: Any, k: Any, *, arguments: Sequence[Any] = (), causal: bool = False,
               window: tuple[int | None, int | None] | None = None, by_batch: bool = True, by_head: bool = True,
               backward: bool = True) -> BlockMask:
    """A mask with a table of the blocks that it hides, which `attention` and its backward then neither read nor
    multiply, and of those that it leaves whole, in which they do not evaluate it.

    Pass it as `mask` to calls with `q` and `k` of these extents; their `arguments`, `causal` and `window` are those
    given here. It may be used by any number of calls: make another one when what `arguments` hold changes. A `mask`
    that is the same for all batches, or heads, says so by `by_batch` or `by_head`: it is then evaluated for the first
    alone. The evaluation is that of all rows and columns, and nothing waits for it. The backward has lists of its own,
    for which the mask is evaluated twice more; `backward=False` leaves them out.

    `mask` and `arguments` are as for `attention`. The forward on other targets than Hopper, calls with few rows, and
    those with `lengths` take the mask as the function that it is. LaunchError says what does not fit."""
    if not isinstance(mask, tile.Kernel):
        raise LaunchError(f"mask is a function under @tile.jit, not {type(mask).__name__}")
    check_listed(arguments=arguments)
    check_number_of(arguments, mask, None)
    bounds = checked_window(window)
    views = describe(q), describe(k)
    request = Request(*views, views[1], None, None, causal=bool(causal), window=bounds, positive=True, softcap=False,
                      mask=mask, score=None, extras=len(arguments), lse=False)
    problem = check_attention(request)
    problem = replace(problem, scores=replace(problem.scores, scaled=False, listed=True))
    on_host = views[0].device == "host"
    target = settings().target or "sm_90a" if on_host else driver.target(views[0].device)
    check_arguments(arguments, views[0].device)
    config = choose(problem, target, True, True, 4 if on_host else driver.multiprocessors(views[0].ordinal))
    made = BlockMask(mask, tuple(arguments), bool(causal), bounds, None, problem.rows, problem.keys,
                     (config.bm, config.bn))
    if 0 in problem.shape or not problem.keys:
        return made
    lead = problem.batches if by_batch else 1, problem.heads if by_head else 1
    if config.roles:
        made = replace(made, table=_new_table(q, problem, made, lead, made.block, by_keys=False))
    if backward and not problem.is_wide:
        chosen = choose_backward(problem, target, True)
        block = chosen.bm, max(chosen.bn, chosen.keys)
        tables = (_new_table(q, problem, made, lead, block, by_keys) for by_keys in (True, False))
        made = replace(made, backward=BackwardTables(*tables, block))
    return made


def _new_table(q: Any, problem: Attention, mask: BlockMask, lead: tuple[int, int], block: tuple[int, int],
               by_keys: bool) -> Any:
    """The lists of blocks of rows `by_keys`, or of keys by rows, for `lead` batches and heads."""
    extents = -(-problem.rows // block[0]), -(-problem.keys // block[1])
    lines, blocks = extents[::-1] if by_keys else extents
    table = new_array(q, (*lead, lines, HEAD + blocks), "int32")
    kernel = list_rows if by_keys else list_blocks
    kernel[lines, lead[1], lead[0]](table, problem.rows, problem.keys, problem.left, problem.right, *mask.arguments,
                                    *NOTHING[len(mask.arguments):], SCORES=problem.scores, BM=block[0], BN=block[1],
                                    num_warps=8)
    return table


__all__ = ["BackwardTables", "BlockMask", "Tables", "block_mask", "tables_of", "taken_apart"]
