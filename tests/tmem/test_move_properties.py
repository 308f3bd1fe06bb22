"""Random moves between tensor memory and registers: elements, layouts, regions, shapes, scopes; both directions, on the simulator."""

from collections import Counter

import numpy as np
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.dtypes import dtype_of
from tilejit.layout import TileLayout, tmem_datapath

DTYPES = ("uint8", "int8", "float8_e5m2", "uint16", "float16", "bfloat16", "int32", "uint32", "float32")
SHAPES = (None, "32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
WORDS = 96  # words per lane
ROWS = {"A": 128, "B": 64, "C": 64, "D": 128, "E": 64, "F": 64, "G": 32}


@tile.jit
def moved(x, y, first, FIRST: tile.constexpr, DTYPE: tile.constexpr, SHAPE: tile.constexpr, LAYOUT: tile.constexpr, ROW: tile.constexpr,
          PART: tile.constexpr, UNIT: tile.constexpr,
          WARP: tile.constexpr, FORM: tile.constexpr, PACK: tile.constexpr, STORE: tile.constexpr):
    """All of tensor memory is loaded from `x`, a region of a view is moved to or from `y`, and all of it is stored back to `x`."""
    board = tile.alloc((128, WORDS), x.dtype, scope="tmem")
    tile.store(board, tile.load(x[0:128, 0:WORDS]))
    meet()
    view = board.view(DTYPE, SHAPE, LAYOUT)
    column = UNIT * (first if FIRST is None else FIRST)
    if WARP is None:
        move(view, y, ROW, column, PART, FORM, PACK, STORE)
    else:
        with tile.warp(WARP):
            move(view, y, ROW, column, PART, FORM, PACK, STORE)
    meet()
    tile.store(x[0:128, 0:WORDS], tile.load(board))


@tile.jit
def meet():
    tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    tile.tcgen05_fence("after_thread_sync")


@tile.jit
def move(view, y, row, column, PART, FORM, PACK, STORE):
    if STORE:
        tile.tcgen05_st(view[row:row + PART[0], column:column + PART[1]], tile.load(y[0:PART[0], 0:PART[1]]), shape=FORM, pack=PACK)
    else:
        tile.store(y[0:PART[0], 0:PART[1]], tile.tcgen05_ld(view[row:row + PART[0], column:column + PART[1]], shape=FORM, pack=PACK))


def lanes_and_columns(letter: str, half: int, columns: int):
    """The lane and column at which the tensor cores place each element of an accumulator (PTX ISA, "Data path layout organization")."""
    r, c = np.indices((ROWS[letter], columns))
    if letter in "AD":
        return r, c
    if letter in "CF":
        return r // 16 * 32 + r % 16 + 16 * half, c
    parts = 2 if letter in "BE" else 4
    return r + ROWS[letter] * (c // (columns // parts)), c % (columns // parts)


def spread(layout: TileLayout, step: int) -> TileLayout:
    """The same with a stride of `step` elements between columns."""
    return TileLayout([(n, s * step if along == "TCol" else s, along) for n, s, along in layout.shards],
                      offset={"TLane": layout.offset.get("TLane", 0)})


def test_a_region_of_any_layout_moves_according_to_the_data_path_layouts():
    """Packed elements or one per column, with every instruction shape, by one to three warpgroups or one warp, from any column, also
    a runtime one: exactly the region's elements are moved, and a store leaves the other words unchanged."""
    seen = Counter()

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=True))
    def holds(rng):
        dtype, letter, half, store = rng.choice(DTYPES), rng.choice("AABCDDEFFG"), rng.randrange(2), rng.random() < .5
        nbytes = dtype_of(dtype).nbytes
        per = 4 // nbytes
        step = per if rng.random() < .3 else 1              # stride in elements between columns
        room = WORDS * per // step * {64: 2 if letter in "BE" else 1, 32: 4}.get(ROWS[letter], 1)
        columns = rng.choice([n for n in (8, 16, 32, 48, 64, 96, 128, 192, 256) if n <= room])
        layout = spread(tmem_datapath(letter, columns, half) if letter in "CF" else tmem_datapath(letter, columns), step)
        warps, one = rng.choice((4, 4, 4, 8, 12)), letter in "AD" and rng.random() < .25
        warp = rng.randrange(warps) if one else None
        rows, row = (32, 32 * (warp % 4)) if one else (ROWS[letter], 0)
        unit = per if step == 1 else 1
        whole, folded = rng.random() < .4, letter in "BEG"
        wide = columns if whole else rng.choice([n for n in (unit, 2 * unit, 4 * unit, 8 * unit, 16 * unit, 24 * unit, 32 * unit) if n <= columns])
        first = 0 if whole else rng.randint(0, (columns - wide) // unit)
        options = dict(FIRST=first if folded or rng.random() < .5 else None, DTYPE=dtype, SHAPE=(ROWS[letter], columns), LAYOUT=layout,
                       ROW=row, PART=(rows, wide), UNIT=unit, WARP=warp,
                       FORM=rng.choice(SHAPES), PACK=rng.choice((None, True, False)) if (nbytes, step) == (2, 2) else None, STORE=store,
                       num_warps=warps, target="sm_100a")
        noise = np.random.default_rng(rng.randrange(1 << 30))
        x, kind = noise.integers(0, 1 << 32, (128, WORDS), np.uint32), dtype_of(dtype).np
        y = noise.integers(0, 256, (rows, wide * nbytes)).astype(np.uint8).view(kind)
        lane, column = (part[row:row + rows, first * unit:first * unit + wide] for part in lanes_and_columns(letter, half, columns))
        want, own = x.copy().view(kind), y.copy()
        if store:
            want[lane, column * step] = y
        else:
            own = want[lane, column * step]
        try:
            moved.simulate(1, x, y, first, **options).raise_first()
        except tile.DispatchError:
            seen["declined"] += 1
            return
        got, compared = x.view(kind), np.ones((128, WORDS * per), bool)
        if store and step > 1:                              # a store of a narrow element writes a whole word
            compared.reshape(128, WORDS, per)[lane, column, 1:] = False
        assert y.tobytes() == own.tobytes(), options
        assert (got.view(f"u{nbytes}") == want.view(f"u{nbytes}"))[compared].all(), options
        seen.update((letter, "store" if store else "load", options["FORM"] or "any", f"{warps} warps" if warp is None else "one warp",
                     "apart" if step > 1 else "dense"))

    holds()
    wanted = (*ROWS, "store", "load", *SHAPES[1:], "any", "4 warps", "8 warps", "12 warps", "one warp", "apart", "dense")
    assert min(seen[k] for k in wanted) > 1 and seen["declined"] < 200, seen
