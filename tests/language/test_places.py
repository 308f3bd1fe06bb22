"""Constant indices outside a buffer are compile-time errors at their line; masked and clipped elements are not."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError

pytestmark = pytest.mark.usefixtures("assembled_later")
A = np.ones((64, 64), np.float16)
STORE = "    s = tile.alloc((6, 10), x.dtype)\n    tile.store(s[r:r + R, c:c + C], 1.0)\n"
BY_LAUNCH = tile.jit(source=f"def k(x, r, c, R: tile.constexpr, C: tile.constexpr):\n{STORE}")
BY_CONSTANT = tile.jit(source=f"def k(x, r: tile.constexpr, c: tile.constexpr, R: tile.constexpr, C: tile.constexpr):\n{STORE}")


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 6), st.integers(1, 10))
@settings(max_examples=30, deadline=None)
def test_constant_indices_are_refused_where_the_simulator_would_find_runtime_ones(r, c, rows, columns):
    found = [f.kind for f in BY_LAUNCH.simulate((1,), A, r, c, R=rows, C=columns).findings]
    try:
        BY_CONSTANT.simulate((1,), A, r=r, c=c, R=rows, C=columns).raise_first()
        refused = False
    except CompilationError as error:
        refused = "and accesses to it are not clipped" in str(error) and "s[r:r + R, c:c + C]" in str(error)
    assert found == ["out-of-bounds"] * refused


def compiled(text: str, target: str = "sm_90a"):
    body = text.strip().replace("\n", "\n    ")
    kernel = tile.jit(source="def k(x, n):\n    s, own = tile.alloc((8, 64), x.dtype), tile.alloc((64, 64), x.dtype, layout=tile.auto)\n"
                             f"    bar = tile.mbarrier()\n    {body}\n")
    return kernel.compile(A, 3, target=target)


@pytest.mark.parametrize("text, words", [
    ("tile.store(x[0:8, 0:8], tile.load(s[0:8, 64:72]))", "elements 64 to 71 of dimension 1, in which the shared buffer has 64"),
    ("tile.store(s[4:12, 0:8], 1.0)", "elements 4 to 11 of dimension 0, in which the shared buffer has 8"),
    ("tile.store(s[n, -65], 1.0)", "element -1 of dimension 1, in which the shared buffer has 64"),  # the other index is not known
    ("tile.store(s[8, tile.arange(64)], 1.0)", "element 8 of dimension 0"),
    ("tile.store(s[2:6, 0:64][6, 0], 1.0)", "element 8 of dimension 0"),
    ("tile.atomic_add(s.view(tile.int32)[0, 32], 1)", "element 32 of dimension 1, in which the shared buffer has 32"),
    ("tile.copy(s[0:8, 60:68], x[0:8, 0:8])", "elements 60 to 67 of dimension 1"),
    ("tile.copy_async(own[64:72, :], x[0:8, 0:64]).wait()", "elements 64 to 71 of dimension 0"),
    ("with tile.elect():\n    tile.copy_async(s[8], x[0, 0:64], mbar=bar)", "element 8 of dimension 0"),
    ("tile.store(x[0:64, 0:64], tile.dot(own[16:80, :], own))", "elements 16 to 79 of dimension 0"),
    ("tile.store(x[0:64, 0:64], tile.mma_async(None, own, own[1:65, :]))", "elements 1 to 64 of dimension 0"),
    ("for i in tile.static_range(3):\n    tile.store(s[i * 4:i * 4 + 4, 0:64], 1.0)", "elements 8 to 11 of dimension 0"),
    ("r = tile.ring(2, T=((8, 64), x.dtype), filled='stores')\nwith r.produce() as slot:\n    tile.store(slot.T[0:8, 1:65], 1.0)",
     "elements 1 to 64 of dimension 2"),
    ("half = tile.alloc((8, 64), tile.float4_e2m1fn)\ntile.store(half[0:8, 32:96], 0.0)", "elements 32 to 95 of dimension 1, in which the shared buffer has 64"),
])
def test_every_kind_of_access_refuses_constant_indices_outside_its_buffer(text, words):
    with pytest.raises(CompilationError) as refusal:
        compiled(text)
    assert words in str(refusal.value) and "^^^" in str(refusal.value)


@pytest.mark.parametrize("text", ["tile.load(t[:, 32:96])", "tile.store(t[:, 32:96], tile.zeros((128, 64)))"])
def test_a_slice_of_tensor_memory_at_constants_outside_it_is_refused(text):
    with pytest.raises(CompilationError, match="elements 32 to 95 of dimension 1, in which the tmem buffer has 64"):
        compiled(f"t = tile.alloc((128, 64), tile.float32, scope='tmem')\n{text}", "sm_100a")


@pytest.mark.parametrize("text", [
    "tile.store(s[0:16, 0:64], 1.0, mask=tile.arange(16)[:, None] < n)",  # what is outside is masked,
    "tile.store(x[0, 0:64], tile.load(s[9, 0:64], mask=n > 100))",
    "tile.store(x[0:8, 64:128], tile.load(x[1000:1008, 0:64]))",  # or clipped: an array's extents are known at launch only,
    "tile.store(tile.window(x, (0, 0), (8, 8))[8:16, 0:8], 1.0)",
    "s[0:16, 0:64][0:8, 0:64]",  # or not accessed
    "tile.store(s[0:16, 0:64][4:8, 0:64], 1.0)",
])
def test_code_that_accesses_nothing_outside_is_accepted(text):
    compiled(text)
