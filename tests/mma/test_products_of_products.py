"""Products whose operands are themselves products: as they are, transposed, in part, computed from, in loops and in branches."""

import numpy as np
import pytest
import tilejit as tile

from tests.mma.products import BF16

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")

# name: (lines before, the last product)
FORMS = {
    "as they are": ("s = tile.dot(a, b)", "tile.dot(a, s.to(D)) + tile.dot(s.to(D), a)"),
    "transposed": ("s = tile.dot(a, b)", "tile.dot(s.T.to(D), b) - tile.dot(a, s.T.to(D))"),
    "both of one": ("s = tile.dot(a, b)", "tile.dot(s.T.to(D), s.to(D))"),
    "by a flag": ("s = tile.dot(a, b)", "tile.dot(s.to(D), a, trans_a=True) + tile.dot(a, s.to(D), trans_b=True)"),
    "computed": ("s = tile.dot(a, b)", "tile.dot((s * 2 - 1).T.to(D), b)"),
    "columns of it": ("s = tile.dot(a, b)", "tile.dot(s[:, 0:N // 3].T.to(D), s.to(D))"),
    "rows and columns": ("s = tile.dot(a, b)", "tile.dot(s[0:N // 3].to(D), s[:, N // 2:N].to(D))"),
    "carried by a loop": ("s = tile.zeros((N, N), S)\nfor i in range(n):\n    s = tile.dot(a, s.T.to(D), s) + 1", "tile.dot(s.T.to(D), a)"),
    "into a loop": ("s = tile.dot(a, b)\nt = tile.zeros((N, N), S)\n"
                    "for i in range(n):\n    t = tile.dot(s.T.to(D), b, t)\n    t = tile.dot(a, s.to(D), t)", "t"),
    "out of a branch": ("s = tile.dot(a, b)\nif n > 1:\n    s = tile.dot(s.T.to(D), a)", "tile.dot(s.T.to(D), b)"),
    "one after the other": ("s = tile.dot(a, b)\nu = tile.dot(s.to(D), a)\nv = tile.dot(u.T.to(D), s.to(D))", "tile.dot(v.T.to(D), u.T.to(D))"),
}
SUMS = {"int8": "int32", "int32": "int32", "float64": "float64"}


class Array(np.ndarray):
    """An integer matrix with the methods of a tile."""

    def to(self, dtype):
        return self.astype(dtype).astype(np.int64).view(Array) if dtype == "int8" else self


class Meaning:
    """The language's names with their meaning on integer matrices."""

    zeros = staticmethod(lambda shape, dtype: np.zeros(shape, np.int64).view(Array))

    @staticmethod
    def dot(a, b, acc=0, trans_a=False, trans_b=False):
        return acc + (a.T if trans_a else a) @ (b.T if trans_b else b)


def checked(form, dtype, n, warps, target, monkeypatch):
    """The simulator's result is exact and without findings."""
    monkeypatch.setenv("TILEJIT_TARGET", target)
    lines, last = FORMS[form]
    sums, rng = SUMS.get(dtype, "float32"), np.random.default_rng(n)
    body = "".join(f"    {line}\n" for line in [*lines.split("\n"), f"r = {last}", "tile.store(E[0:r.shape[0], 0:r.shape[1]], r)"])
    kernel = tile.jit(source="def kernel(A, B, E, n, N: tile.constexpr, D: tile.constexpr, S: tile.constexpr):\n"
                             f"    a, b = tile.load(A[0:N, 0:N]), tile.load(B[0:N, 0:N])\n{body}", num_warps=warps)
    few = lambda: (rng.integers(-1, 2, (n, n)) * (rng.random((n, n)) < 3 / n)).astype(BF16 if dtype == "bfloat16" else dtype)  # sums stay exact
    a, b = few(), few()
    names = {"tile": Meaning, "a": a.astype(np.int64).view(Array), "b": b.astype(np.int64).view(Array), "n": 2, "N": n, "D": dtype, "S": sums}
    exec(f"{lines}\nr = {last}", names)
    e = np.zeros(names["r"].shape, sums)
    constants = dict(N=n, D=getattr(tile, dtype), S=getattr(tile, sums))
    kernel.simulate(1, a, b, e, 2, **constants).raise_first()
    np.testing.assert_array_equal(e, names["r"])


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_products_of_products_are_right(form, dtype, monkeypatch):
    """Extents that instructions divide and odd ones, on every target in turn; threads multiply float32 and int32."""
    turn = list(FORMS).index(form)
    n, warps = ((24, 1), (33, 4), (7, 2))[turn % 3]
    checked(form, dtype, n, warps, ("sm_90a", "sm_80", "sm_100a", "sm_120a")[turn % 4], monkeypatch)
    if dtype in ("float16", "int8"):
        checked(form, dtype, 64, 4, "sm_90a", monkeypatch)


def test_a_large_transposed_product_is_multiplied_by_threads(monkeypatch):
    checked("transposed", "float32", 128, 8, "sm_90a", monkeypatch)
    checked("computed", "int32", 96, 8, "sm_80", monkeypatch)
