"""What the error for a name of NumPy or another library says to write is what that name computes there."""

import re
from math import erf

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError
from tilejit.names import ELSEWHERE

N = 32
SUM_OF_POWERS = lambda x: np.exp(x - x.max()).sum()
VECTORS = {
    "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)), "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / 2 ** 0.5)),
    "log_softmax": lambda x: x - x.max() - np.log(SUM_OF_POWERS(x)), "reciprocal": lambda x: 1 / x, "mod": lambda x: x % (x + 10),
    "logsumexp": lambda x: x.max() + np.log(SUM_OF_POWERS(x)), "var": np.var, "std": np.std, "norm": np.linalg.norm,
    "square": np.square, "rint": np.rint, "sign": np.sign, "outer": lambda x: np.outer(x, x + 10), "eye": lambda x: np.eye(N),
    "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate, "softmax": None,
}
INTEGERS = {
    "bitwise_and": lambda x: x & x + 10, "bitwise_or": lambda x: x | x + 10, "bitwise_xor": lambda x: x ^ x + 10, "bitwise_not": lambda x: ~x,
    "popcount": lambda x: [int(v).bit_count() for v in x.view(np.uint32)], "clz": lambda x: [32 - int(v).bit_length() for v in x.view(np.uint32)],
    "brev": lambda x: np.array([int(f"{v:032b}"[::-1], 2) for v in x.view(np.uint32)], np.uint32).view(np.int32), "mulhi": None,
}
MATRICES = {"tril": np.tril, "triu": np.triu}


def computed(name: str, x: np.ndarray, shape: tuple) -> np.ndarray:
    """What the text for a name gives of a tile `x`, and of ``y = x + 10``."""
    text, _, where = ELSEWHERE[name].partition(", where ")
    lines = [f"x = tile.load(X[{', '.join(f'0:{n}' for n in x.shape)}])", "y = x + 10", "axis, N = 0, 32", where, f"r = {text}",
             f"tile.store(R[{', '.join(f'0:{n}' for n in shape) or '0'}], r)"]
    kernel = tile.jit(source="def k(X, R):\n" + "".join(f"    {line}\n" for line in lines if line))
    result = np.zeros(shape or (1,), x.dtype)
    kernel.simulate(1, x, result).raise_first()
    return result if shape else result[0]


@pytest.mark.parametrize("name", [name for name, reference in [*VECTORS.items(), *INTEGERS.items(), *MATRICES.items()] if reference is not None])
def test_a_counterpart_computes_what_the_name_does(name):
    rng = np.random.default_rng(0)
    if name in INTEGERS:
        x, reference = rng.integers(-2 ** 31, 2 ** 31 - 20, N).astype(np.int32), INTEGERS[name]
    elif name in MATRICES:
        x, reference = rng.standard_normal((N, N)).astype(np.float32), MATRICES[name]
    else:
        x, reference = rng.standard_normal(N).astype(np.float32), VECTORS[name]
    want = np.asarray(reference(x if name in INTEGERS else x.astype(np.float64)))
    np.testing.assert_allclose(computed(name, x, want.shape), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["relu", "take_along_axis", "tril", "popc", "nonzero", "shfl_xor_sync"])
def test_such_a_name_is_told_its_counterpart(name):
    kernel = tile.jit(source=f"def k(x):\n    tile.{name}(tile.load(x[0:32]))\n")
    with pytest.raises(CompilationError, match=re.escape(f"tile has no attribute '{name}'; write {ELSEWHERE[name]}")):
        kernel.compile(tile.ArraySpec((32,), "float32"))
