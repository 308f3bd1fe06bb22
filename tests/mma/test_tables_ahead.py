"""Rows and tiles whose places a table names that the same trip loads: they run ahead with the table, which is loaded earlier for them."""

import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")
RNG = np.random.default_rng(0)
A = RNG.integers(-2, 3, (16, 128)).astype(np.float16)
SOURCE = RNG.integers(-2, 3, (7, 32)).astype(np.float16)
TABLE, FIRST = RNG.integers(0, 7, 128).astype(np.int32), RNG.integers(0, 128, 128).astype(np.int32)
CACHE = RNG.integers(-2, 3, (5, 32, 32)).astype(np.float16)
PAGES = np.array([[3, 0, 4, 1]], np.int32)
LEFT = "tile.load(A[0:16, i:i + 32])"

# name: the body of the loop over i = 0, 32, 64, 96, and what multiplies the columns of A
BODIES = {
    "rows by a table": (["g = tile.load(G[i:i + 32])", f"acc = tile.dot({LEFT}, tile.load(S[g, 0:32]), acc)"], lambda: SOURCE[TABLE]),
    "rows by a table of a table": (["f = tile.load(F[i:i + 32])", "g = tile.load(G[f])", f"acc = tile.dot({LEFT}, tile.load(S[g, 0:32]), acc)"],
                                   lambda: SOURCE[TABLE[FIRST]]),
    "rows by a computed table": (["g = (tile.load(G[i:i + 32]) + 3) % 7", f"acc = tile.dot({LEFT}, tile.load(S[g, 0:32]), acc)"],
                                 lambda: SOURCE[(TABLE + 3) % 7]),
    "a table that is also added": (["g = tile.load(G[i:i + 32])", "rows = tile.load(S[g, 0:32])", f"acc = tile.dot({LEFT}, rows, acc)",
                                    f"acc = tile.dot({LEFT}, tile.broadcast_to(g[:, None], (32, 32)).to(tile.float16), acc)"],
                                   lambda: SOURCE[TABLE] + TABLE[:, None]),
    "a copy of rows by a table": (["g = tile.load(G[i:i + 32])", "tile.copy_async(s, S.take(g)[:, 0:32])", f"acc = tile.dot({LEFT}, s, acc)"],
                                lambda: SOURCE[TABLE]),
    "pages of a cache": (["page = tile.load(P[0, i // 32])", f"acc = tile.dot({LEFT}, tile.load(K[page, 0:32, 0:32]), acc)"],
                         lambda: CACHE[PAGES[0]].reshape(128, 32)),
    "pages in a branch": (["page = 0", "if i > 0:", "    page = tile.load(P[0, i // 32])",
                           f"acc = tile.dot({LEFT}, tile.load(K[page, 0:32, 0:32]), acc)"],
                          lambda: CACHE[[0, *PAGES[0, 1:]]].reshape(128, 32)),
}


def kernel(name: str, stages: int, roles: bool):
    body = "".join(f"        {line}\n" for line in BODIES[name][0])
    return tile.jit(source=f"""def kernel(A, S, G, F, P, K, C):
    acc, s = tile.zeros((16, 32)), tile.alloc((32, 32), A.dtype, layout=tile.auto)
    for i in tile.pipelined(range(0, A.shape[1], 32), stages={stages}, warp_specialize={roles}):
{body}    tile.store(C[0:16, 0:32], acc)
""")


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_what_a_table_of_the_same_trip_names_is_right_at_every_number_of_stages(name, roles, monkeypatch):
    want = A.astype(int) @ BODIES[name][1]().astype(int)
    for stages in (1, 2, 3, 4, 5):
        monkeypatch.setenv("TILEJIT_TARGET", ("sm_90a", "sm_80", "sm_100a", "sm_120a")[(stages + list(BODIES).index(name)) % 4])
        c = np.zeros((16, 32), np.float32)
        kernel(name, stages, roles).simulate(1, A, SOURCE, TABLE, FIRST, PAGES, CACHE, c, seed=stages).raise_first()
        np.testing.assert_array_equal(c, want)


def test_the_rows_run_ahead_and_their_table_is_loaded_with_them():
    """The table itself has no slots and no copy."""
    made = kernel("rows by a table", 3, False).compile(A, SOURCE, TABLE, FIRST, PAGES, CACHE, np.zeros((16, 32), np.float32), target="sm_90a")
    copied = {c.source for c in made.copies if c.op == "copy_async"}
    assert copied and not any("G[" in text for text in copied) and not any("does not run ahead" in w for w in made.warnings)
