"""Pipelined loops in which nothing runs ahead are ordinary loops, with a warning; those next to them keep their producer."""

import warnings

import numpy as np
import pytest
import tilejit as tile

RNG = np.random.default_rng(0)
A, B = RNG.integers(-2, 3, (32, 96)).astype(np.float16), RNG.integers(-2, 3, (96, 32)).astype(np.float16)
PLACES = np.array([2, -1, 0, 5, 3], np.int32)
DOT = "acc = tile.dot(tile.load(A[0:32, c * 16:c * 16 + 16]), tile.load(B[c * 16:c * 16 + 16, 0:32]), acc)"

# name: the loop's body, and what it adds to the sums for the places c
BODIES = {
    "loads in a branch that the loop changes": (["if acc[0, 0] == acc[0, 0]:", f"    {DOT.replace('c *', 'j *')}"], [0, 1, 2, 3, 4]),
    "loads in a loop": (["for c in range(2):", f"    {DOT}"], [0, 1] * 5),
    "numbers alone": (["acc = acc + tile.load(I[j]).to(tile.float32)"], None),
    "arithmetic alone": (["acc = acc + 1"], None),
    "a copy with a wait in a branch": (["c = tile.load(I[j])", "if c >= 0:", "    tile.copy_async(s, A[0:32, c * 16:c * 16 + 16]).wait()",
                                        "    acc = tile.dot(s, tile.load(B[c * 16:c * 16 + 16, 0:32], cache='cs'), acc)", "    tile.sync()"], [2, 0, 5, 3]),
}
WHY = {"loads in a branch that the loop changes": "the condition of its branch at line 4 depends on acc, which the loop changes",
       "a copy with a wait in a branch": "cannot apply cache="}
OTHERS = {"numbers alone": 9, "arithmetic alone": 5}


def kernel(name: str, stages: int, roles: bool, beside: bool = False):
    body = "".join(f"        {line}\n" for line in BODIES[name][0])
    options = f"stages={stages}, warp_specialize={roles}"
    more = f"    for i in tile.pipelined(range(0, 96, 32), {options}):\n" \
        "        acc = tile.dot(tile.load(A[0:32, i:i + 32]), tile.load(B[i:i + 32, 0:32]), acc)\n"
    return tile.jit(source=f"""def kernel(A, I, B, C):
    acc, s = tile.zeros((32, 32)), tile.alloc((32, 16), A.dtype, layout=tile.auto)
    for j in tile.pipelined(range(I.shape[0]), {options}):
{body}{more if beside else ""}    tile.store(C[0:32, 0:32], acc)
""")


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_a_pipelined_loop_in_which_nothing_runs_ahead_is_an_ordinary_one(name, roles, monkeypatch):
    """With one line in `.warnings`, at the loop, or one at each load in a branch; also next to one with a producer, and with a single stage."""
    places = BODIES[name][1]
    parts = (slice(16 * c, 16 * c + 16) for c in places or ())
    want = np.full((32, 32), OTHERS[name]) if places is None else sum(A[:, p].astype(int) @ B[p].astype(int) for p in parts)
    for stages, beside, target in ((1, False, "sm_90a"), (3, True, "sm_90a"), (2, True, "sm_100a"), (2, False, "sm_80")):
        monkeypatch.setenv("TILEJIT_TARGET", target)
        made, c = kernel(name, stages, roles, beside), np.zeros((32, 32), np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.simulate(1, A, PLACES, B, c).raise_first()
            compiled = made.compile(A, PLACES, B, c, target=target)
        np.testing.assert_array_equal(c, want + beside * (A.astype(int) @ B.astype(int)))
        told = [w for w in compiled.warnings if "nothing runs ahead of this pipelined loop, so it is an ordinary one" in w]
        assert len(told) == (name not in WHY) and all(":3:" in w for w in told)
        assert name not in WHY or any(WHY[name] in w for w in compiled.warnings)
        assert ("setmaxnreg" in compiled.ptx or "elect.sync" in compiled.ptx) or not (roles and beside and target == "sm_90a")


def test_an_outer_pipelined_loop_of_which_only_an_inner_one_runs_ahead_is_an_ordinary_one():
    @tile.jit
    def nested(A, B, C):
        acc = tile.zeros((32, 32))
        for j in tile.pipelined(range(2), stages=2):
            for i in tile.pipelined(range(0, 96, 32), stages=2):
                acc = tile.dot(tile.load(A[0:32, i:i + 32]), tile.load(B[i:i + 32, 0:32]), acc)
        tile.store(C[0:32, 0:32], acc)

    c = np.zeros((32, 32), np.float32)
    with pytest.warns(tile.TileWarning, match="nothing runs ahead"):
        nested.simulate(1, A, B, c).raise_first()
    np.testing.assert_array_equal(c, 2 * (A.astype(int) @ B.astype(int)))


def test_a_copy_that_such_a_loop_does_not_wait_for_is_told_at_its_line():
    """The loop itself does not wait for it either: the simulator finds the missing wait."""
    @tile.jit
    def unawaited(A, C):
        s, acc = tile.alloc((32, 32), A.dtype), tile.zeros((32, 32))
        for i in tile.pipelined(range(0, 96, 32), stages=2):
            if i > 0:
                tile.copy_async(s, A[0:32, i:i + 32])
                acc += tile.load(s).to(tile.float32)
        tile.store(C[0:32, 0:32], acc)

    with pytest.warns(tile.TileWarning, match="this copy_async is in a branch inside the pipelined loop"):
        report = unawaited.simulate(1, A, np.zeros((32, 32), np.float32))
    assert "missing-wait" in [f.kind for f in report.findings]
