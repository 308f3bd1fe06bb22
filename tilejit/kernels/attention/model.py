"""Chooses the configuration of an attention kernel."""

from __future__ import annotations

from dataclasses import replace

from .config import BARRIERS, PARTS, SHARED, Config
from .constants import Peeks
from .problem import Attention

L2 = 16 << 20        # bytes of L2 that the K and V of heads whose tiles are taken together may fill
LINES = 64           # of a tile of `sequences` with rows of several heads
SCRATCH = 24 << 10   # bytes that are kept free for probabilities and results of rows of over 256 columns
FEW = 32             # rows of packed sequences, on the average, below which `sequences` is for them
SPLITS = 64          # CTAs that may share the keys of a tile
BESIDE = 7 << 10     # bytes of shared memory that a CTA of 16 lines needs beside Q and the slots
PATTERN = 8          # rows of a block that a swizzle exchanges parts of
SHORT = 1024         # rows up to which, with a bound on the right, two consumers and smaller blocks are faster
TOGETHER = 4         # heads whose tiles are taken together, at least, with a bound on the right
# columns up to which: (columns of a block with two consumers, whether Q is in registers, staging columns)
ROLES = ((64, 128, True, 64), (96, 128, True, 96), (128, 128, True, 128), (192, 96, False, 64), (256, 64, False, 0))

# the same for float8, whose blocks have multiples of 32 columns
ROLES_OF_FLOAT8 = ((64, 128, True, 64), (96, 128, True, 96), (128, 192, True, 128), (192, 128, False, 64),
                   (256, 96, False, 0))

# columns up to which: (rows, columns of a block, warps), for products from registers by `mma_sync`, and for those of
# whole warpgroups
BY_WARPS = ((64, 128, 64, 8), (128, 64, 64, 4), (192, 64, 32, 4), (256, 64, 32, 4))
BY_WARPGROUPS = ((128, 128, 64, 8), (256, 128, 64, 8))


def choose(problem: Attention, target: str, by_tma: bool, stored: bool, processors: int) -> Config:
    """The configuration that is expected to take the least time. `by_tma`: TMA can load Q, K and V; `stored`: it can
    store the result."""
    if target == "sm_90a" and by_tma and not (problem.itemsize == 1 and problem.d % 32):
        return _with_roles(problem, stored, processors)
    table = BY_WARPGROUPS if target in ("sm_90a", "sm_100a", "sm_103a") else BY_WARPS
    d = max(problem.d, problem.dv)
    bm, bn, warps = next(row[1:] for row in table if d <= row[0])
    if problem.rows <= 64 and bm > 64:
        bm, warps = 64, 4
    if problem.itemsize == 1 and target in ("sm_80", "sm_86") and d > 64:  # whose conversions need registers
        bm, bn = (64, 32) if d <= 128 else (32, 32)
    config = Config(roles=False, bm=bm, bn=bn, warps=warps)
    while config.nbytes(problem.d, problem.dv) > SHARED[target] - BARRIERS and bn > 16:
        bn //= 2
        config = Config(roles=False, bm=bm, bn=bn, warps=warps)
    return config


def _with_roles(problem: Attention, stored: bool, processors: int) -> Config:
    """The configuration of the kernel for Hopper.

    Measured on an H200, 16k tokens: blocks of 128 rows and columns are the best up to 128 columns. At 64 columns three
    consumers are 5 to 18 % faster, since two do not fill the tensor cores beside the exponentials; Q then does not fit
    in the registers. With them a tile's results under the next one's product gain 2 %, with two consumers they lose 1
    to 6 %; a third slot gains 6 % with 1024 rows, 2 % with 4096, nothing with 16384. At 256 columns, blocks of 64 are 1
    to 4 % faster than of 80 with 1024 and 4096 rows. Turns gain up to 3 % without guesses."""
    d = max(problem.d, problem.dv)
    table = ROLES_OF_FLOAT8 if problem.itemsize == 1 else ROLES
    bn, held, width = next(row[1:] for row in table if d <= row[0])
    held = held and not (problem.scores.scaled or problem.scores.mask)  # which need registers
    if problem.itemsize == 1 and (problem.scores.score is not None or bn == 192 and few_with_bound(problem)):
        bn = {192: 128, 96: 64}.get(bn, bn)
    if problem.dv % 32:
        stored = False
    elif problem.dv % max(width, 1) or width > problem.dv:
        width = problem.dv
    width = width if stored else 0
    rows, tiles = problem.rows_of_each, problem.batches * problem.heads * -(-problem.rows // 128)
    if rows <= 64 or tiles * 2 <= processors:
        return Config(bm=64, bn=bn, held=held, turns=False, width=width)
    if d <= 64 and three_pay(problem):
        return Config(bm=192, bn=bn, stages=3 if problem.itemsize == 2 else 2, held=False,
                      ahead=problem.scores.mask is None, width=width)
    if d <= 128 and guesses_pay(problem):
        return Config(bm=128, bn=bn, held=d <= 64, guesses=True, turns=False, width=width)
    if bn == 192 and problem.scores.right:
        return Config(bm=128, bn=bn, stages=3, held=held, turns=not held, width=width)
    return Config(bm=128, bn=bn, held=held, turns=not held or problem.scores.right or d <= 64, width=width)


def three_pay(problem: Attention) -> bool:
    """Whether three consumers are the fastest at 64 columns. Their loops do not fit in their registers with a list of
    blocks, or a function that changes scores."""
    return not (few_with_bound(problem) or problem.scores.listed or problem.scores.score is not None)


def few_with_bound(problem: Attention) -> bool:
    """Whether a bound on the right leaves few blocks to a tile."""
    return problem.scores.right and problem.rows_of_each <= SHORT


def guesses_pay(problem: Attention) -> bool:
    """Whether powers that are taken before the maxima are known gain with two consumers of up to 128 columns: where
    registers hold the powers of two blocks, beside what a mask, a bound on the left or a table needs.

    Measured on an H200: 2 to 8 % faster at 128 columns, with Q in shared memory; 4 % at 64 columns with 1024 rows and a
    bound on the right. Turns then lose 1 to 3 %."""
    scores = problem.scores
    return problem.itemsize == 2 and scores.mask is None and not (scores.softcap or scores.left or scores.listed)


def peeks_of(problem: Attention, config: Config) -> Peeks:
    """Where the consumers of the configuration look at their next slots.

    Measured on an H200, against no look, with 4096 and 16384 rows: 0.8 to 2.1 % faster at 128 columns with guesses, 4 %
    at 96 with a bound on the right, and 0.6 to 1.9 % at 64 with three consumers; 3 to 4 % at 192; of float8 at 128, 7 %
    with a bound on the right and 1 % without. At 64 columns with guesses it is 1 % slower, at 256 it changes nothing.
    Other columns of float8 were not measured.
    At other places of the trip, ptxas moves accumulators, and it loses up to 15 %."""
    d = max(problem.d, problem.dv)
    if config.consumers == 3 or config.consumers == 2 and 128 < d <= 192 and problem.itemsize == 2:
        return Peeks(behind_scores="k", behind_values="v")
    if config.guesses and d > 64:
        return Peeks(before_values="v", behind_values="k")
    if config.consumers == 2 and 96 < d <= 128 and problem.itemsize == 1:
        return Peeks(behind_values="kv")
    return Peeks()


def skips_blocks(problem: Attention, config: Config) -> bool:
    """Whether consumers leave out the last blocks of a tile that a bound on the right hides from all of their rows.
    Blocks with as many columns as a tile has rows are hidden from none, if there are as many rows as keys."""
    scores = problem.scores
    return config.consumers > 1 and config.bn < config.bm and scores.right and not scores.listed


def chains_sums(problem: Attention) -> bool:
    """Whether the powers of a block are added to the sums one after the other. Measured on an H200: 2 to 6 % faster at
    64 columns, 2 % at 128 without a bound on the right, 2 % slower with one, 5 to 12 % slower at 256. Of float8, the
    loop at 128 columns has 17 instructions more."""
    return problem.itemsize == 2 and (problem.d == 64 or problem.d == 128 and not problem.scores.right)


def choose_sequences(problem: Attention, target: str, by_tma: bool, processors: int) -> Config:
    """The configuration of the kernel for sequences with lengths, pages, or few rows. `by_tma`: whether TMA can load K
    and V."""
    request = problem.request
    shared = heads_in_tile(problem)
    d, lines = max(problem.d, problem.dv), problem.rows * shared
    bm = next(n for n in (16, 32, 64) if lines <= n or n == 64)
    bn, warps = (64 if d <= 128 else 32), 4
    if problem.is_wide:
        warps, bm = 8, bm if target == "sm_90a" else min(bm, 32)  # others spill with 64 rows
    if lines > 64 and target not in ("sm_80", "sm_86", "sm_89", "sm_120a") and d <= 128:
        bm, warps = 128, 8
    config = Config(roles=False, bm=bm, bn=bn, warps=warps, stages=3 if lines <= 64 else 2)
    most = SHARED[target] - (SCRATCH if problem.is_wide else BARRIERS)
    while config.nbytes(problem.d, 0 if problem.is_inner else problem.dv) > most and config.stages * bn > 16:
        if config.stages > 2 or bn == 16:
            config = replace(config, stages=config.stages - 1)
        else:
            bn //= 2
            config = replace(config, bn=bn)
    if request.packed or lines > 64:
        return config
    tiles = problem.batches * (problem.heads // shared) * -(-lines // bm)
    splits = min(2 * processors // max(tiles, 1), -(-problem.keys // (4 * bn)), SPLITS, PARTS // problem.dv)
    splits = 1 << max(splits, 1).bit_length() - 1  # few values: each is a kernel of its own
    config = replace(config, splits=splits)
    boxed = box_rows(problem.page, bn) > 0 if problem.page else request.key_lengths is None
    if target == "sm_90a" and by_tma and boxed and bm == 16 and 64 < d <= 128:
        return replace(config, warps=2, stages=slots_for_two_warps(problem, config, tiles, processors))
    return config


def slots_for_two_warps(problem: Attention, config: Config, tiles: int, processors: int) -> int:
    """How many slots for blocks of K and V CTAs of two warps have, with 16 lines of up to 128 columns, if blocks come
    by TMA: two, or three.

    Measured on an H200, 8 lines, 128 columns, batches of 1 to 128, 1k to 32k keys: two warps are faster than four, by 2
    to 16 % with 17 and 34 MB of keys and values, by 0 to 5 % with 268 MB and 2 GB. CTAs that share keys are all there
    at once; then two slots are up to 3 % faster, except with pages of 16 rows. Others take turns, in which three of 128
    columns run on a processor with two slots, and two with three."""
    if config.splits > 1:
        return 2 if problem.page % config.bn == 0 else 3
    dv = 0 if problem.is_inner else problem.dv

    def time(slots: int) -> int:
        nbytes = replace(config, stages=slots).nbytes(problem.d, dv, problem.itemsize) + BESIDE
        return time_in_turns(tiles, SHARED["sm_90a"] // nbytes * processors, processors)
    return min((2, 3), key=time)


def time_in_turns(ctas: int, at_once: int, processors: int) -> int:
    """The time of CTAs that do the same and are limited by the memory, as a number of CTAs: so many run at once. As
    many as there are processors are fast enough for the memory; fewer take as long as these."""
    turns, rest = divmod(ctas, at_once)
    return turns * at_once + (max(rest, processors) if rest else 0)


def box_rows(page: int, bn: int) -> int:
    """The rows of a page that are copied at once to a block of `bn` rows or a part of it. 0: there are no pages, or
    rows are gathered, where neither of a page and a block divides the other, or a box would have fewer rows than a
    swizzle's pattern."""
    rows = min(page, bn)
    return rows if rows >= PATTERN and page % rows == 0 and bn % rows == 0 else 0


def heads_in_tile(problem: Attention) -> int:
    """How many heads, which share one of K and V, have their rows in one tile of `sequences`: all if they fit, or at
    least four."""
    fitting = 1 if problem.request.packed else LINES // max(problem.rows, 1)
    found = max((n for n in range(1, min(fitting, problem.group) + 1) if problem.group % n == 0), default=1)
    return found if found == problem.group or found >= 4 else 1


def few_rows(problem: Attention) -> bool:
    """Whether the rows of the heads that share one of K and V are so few that `sequences` is for them."""
    if problem.request.packed:
        return problem.rows_of_each < FEW
    shared = heads_in_tile(problem)
    return problem.rows * shared <= LINES and (shared > 1 or problem.group == 1)


def heads_at_once(problem: Attention) -> int:
    """How many heads of Q have tiles that are taken together. Of packed sequences, the longest are taken to have twice
    the mean of keys. Without a bound on the right all tiles of a head are as long, and the heads that share keys are
    taken alone. With one, the last tiles taken are short, and there are more of those if heads are taken together: of
    a head of 16384 rows alone, which has about as many tiles as there are processors, these idle for 1.2 % of the time
    by a simulation of the order. Measured on an H200: four such heads together are 1 % faster at 256 columns."""
    shared = problem.heads // max(problem.kv_heads, 1)
    if not problem.scores.right and not problem.request.packed and not problem.scores.listed:
        return shared
    keys = max(problem.keys_of_each * (1 + problem.request.packed) * (problem.d + problem.dv) * problem.itemsize, 1)
    return max(min(max(L2 // keys, TOGETHER), problem.batches * problem.kv_heads), 1) * shared


__all__ = ["box_rows", "chains_sums", "choose", "choose_sequences", "few_rows", "heads_at_once", "heads_in_tile",
           "peeks_of", "skips_blocks"]
