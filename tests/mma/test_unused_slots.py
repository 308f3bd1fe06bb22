"""Loops with roles whose trips load or multiply what nothing uses: the warps still meet before a slot is released."""

import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")
RNG = np.random.default_rng(0)
A = RNG.integers(-3, 4, (64, 512)).astype(np.float16)
B = RNG.integers(-3, 4, (512, 64)).astype(np.float16)

UNUSED = {
    "loaded": ["a = tile.load(A[0:64, i:i + 64])"],
    "added up": ["a = tile.load(A[0:64, i:i + 64])", "total = total + a.to(tile.float32)"],
    "multiplied": ["a = tile.load(A[0:64, i:i + 64])", "total = tile.dot(a, tile.load(B[i:i + 64, 0:64]), total)"],
    "multiplied anew": ["p = tile.dot(tile.load(A[0:64, i:i + 64]), tile.load(B[i:i + 64, 0:64]))"],
    "multiplied by what has been multiplied": ["p = tile.dot(tile.load(A[0:64, i:i + 64]), tile.load(B[i:i + 64, 0:64]))",
                                               "total = tile.dot(p.to(tile.float16), tile.load(B[i:i + 64, 0:64]), total)"],
    "copied": ["tile.copy_async(slot, A[0:64, i:i + 64])"],
    "copied and read in part": ["tile.copy_async(slot, A[0:64, i:i + 64])", "row = tile.load(slot[3, 0:64])"],
    "copied and read in a branch": ["tile.copy_async(slot, A[0:64, i:i + 64])", "if i > n:", "    total = total + tile.load(slot).to(tile.float32)"],
    "read beside a product that is used": ["b = tile.load(B[i:i + 64, 0:64])", "a = tile.load(A[0:64, i:i + 64])",
                                           "acc = tile.dot(a, b, acc)", "total = total + b.to(tile.float32)"],
}


def kernel(name: str, stages: int, warps: int):
    body = "".join(f"        {line}\n" for line in UNUSED[name])
    slot = "    slot = tile.alloc((64, 64), A.dtype, layout=tile.auto)\n" if "copied" in name else ""
    return tile.jit(source=f"""def kernel(A, B, C, n):
{slot}    acc, total = tile.zeros((64, 64)), tile.zeros((64, 64))
    for i in tile.pipelined(range(0, n, 64), stages={stages}, warp_specialize=True):
{body}    tile.store(C[0:64, 0:64], acc + 1)
""", num_warps=warps)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("name", UNUSED)
def test_no_warp_misses_the_phase_of_a_slot_that_nothing_uses(name, warps, monkeypatch):
    """A warp that has not seen the slot full when it is filled again may wait for its next phase for ever."""
    monkeypatch.setenv("TILEJIT_TARGET", ("sm_90a", "sm_100a")[warps % 4 == 1])
    for stages in (1, 2, 4):
        made = kernel(name, stages, warps)
        for n in (0, 64, 512):
            c = np.zeros((64, 64), np.float32)
            for seed in range(3):
                made.simulate(1, A, B, c, n, seed=seed).raise_first()
            want = A[:, :n].astype(np.float64) @ B[:n] if "beside" in name else np.zeros((64, 64))
            np.testing.assert_array_equal(c, want + 1)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("name", UNUSED)
def test_a_loop_with_roles_that_uses_nothing_assembles(name, target):
    half, single = tile.ArraySpec((64, 512), "float16"), tile.ArraySpec((64, 64), "float32")
    kernel(name, 3, 4).compile(half, tile.ArraySpec((512, 64), "float16"), single, 512, target=target)
