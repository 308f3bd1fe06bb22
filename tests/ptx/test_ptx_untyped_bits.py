"""Bits of a float that an instruction moves as untyped: converted to a float as if they were the number, they are reported."""

import warnings

import pytest
import tilejit as tile

SPECS = tile.ArraySpec((32,), "float32"), tile.ArraySpec((32,), "float32")


def told(*lines: str, arrays=SPECS) -> list[str]:
    """The warnings of a kernel of the arrays x and y, the lane `i` and its element `v` of x."""
    text = "\n    ".join(["def k(x, y):", "i = tile.lane_id()", "v = tile.load(x[i])", *lines])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tile.jit(source=text + "\n", num_warps=1).compile(*arrays)
    return [str(w.message) for w in caught]


SHUFFLES = {"idx": "tile.shuffle(x, lane)", "bfly": "tile.shuffle_xor(x, mask)", "up": "tile.shuffle_up(x, delta)", "down": "tile.shuffle_down(x, delta)"}


@pytest.mark.parametrize("kind", SHUFFLES)
def test_bits_of_a_float_that_are_added_to_a_float_are_reported_with_what_to_write(kind):
    (text,) = told(f"v += tile.ptx.shfl.sync.{kind}.b32(v, 1, 31, -1)", "tile.store(y[i], v)")
    assert (f"shfl.sync.{kind}.b32 returns the bits of a float32 as a uint32, which is converted to float32 as an integer here: "
            f"{SHUFFLES[kind]} keeps the dtype, and tile.bitcast(bits, tile.float32) restores it") in text
    assert "v += " in text


@pytest.mark.parametrize("lines", [
    ("tile.store(y[i], tile.ptx.shfl.sync.idx.b32(v, 0, 31, -1))",),
    ("b, p = tile.ptx.shfl.sync.up.b32.pred(v, 1, 0, -1)", "if p:", "    v = v * b", "tile.store(y[i], v)"),
    ("b = tile.uint32(0)", "for n in range(4):", "    b = tile.ptx.shfl.sync.idx.b32(v, n, 31, -1)", "tile.store(y[i], b)"),
    ("b = tile.uint32(0)", "if i > 3:", "    b = tile.ptx.mov.b32(v)", "tile.store(y[i], tile.float32(b))")])
def test_also_bits_that_a_store_converts_or_that_go_through_branches_and_loops(lines):
    assert len(told(*lines)) == 1


@pytest.mark.parametrize("lines", [
    ("tile.store(y[i], tile.bitcast(tile.ptx.shfl.sync.idx.b32(v, 0, 31, -1), tile.float32))",),
    ("e = (tile.ptx.shfl.sync.idx.b32(v, 0, 31, -1) >> 23) & 255", "tile.store(y[i], e)"),
    ("tile.store(y[i], tile.shuffle_xor(v, 1))",),
    ("tile.store(y[i], v)", "tile.store(y[i], tile.ptx.shfl.sync.idx.b32(i, 0, 31, -1))"),
    ("b = tile.ptx.shfl.sync.idx.b32(v, 0, 31, -1)", "tile.store(y[i], tile.bitcast(tile.ptx.shfl.sync.idx.b32(b, 1, 31, -1), tile.float32))")])
def test_bits_that_are_taken_for_bits_and_integers_are_not_reported(lines):
    assert told(*lines) == []


def test_bits_of_a_float_that_an_array_of_integers_keeps_are_not_reported():
    arrays = SPECS[0], tile.ArraySpec((32,), "uint32")
    assert told("tile.store(y[i], tile.ptx.shfl.sync.idx.b32(v, 0, 31, -1))", arrays=arrays) == []
