"""Pipelined loops that run one after the other fill the same slots."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu, needs_module
from tests.mma.test_loads_ahead import COPIES
from tests.mma.test_staged_operands import TARGETS


@tile.jit
def causal(Q, K, V, O, scale, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr, STAGES: tile.constexpr = 2):
    """Attention to keys up to one's own, with a mask only in the loop over the diagonal."""
    for m in range(tile.program_id(0) * BM, Q.shape[0], tile.num_programs(0) * BM):
        q, most, total, acc = tile.load(Q[m:m + BM, 0:D]), tile.full((BM,), -1e30, tile.float32), tile.zeros((BM,)), tile.zeros((BM, D))
        for masked in tile.static_range(2):
            for n in tile.pipelined(range(m, m + BM, BN) if masked else range(0, m, BN), stages=STAGES):
                s = tile.dot(q, tile.load(K[n:n + BN, 0:D]).T) * scale
                if masked:
                    s = tile.where((m + tile.arange(BM))[:, None] >= (n + tile.arange(BN))[None, :], s, -1e30)
                new = tile.maximum(most, tile.max(s, axis=1))
                p, by = tile.exp2(s - new[:, None]), tile.exp2(most - new)
                total, most = total * by + tile.sum(p, axis=1), new
                acc = tile.dot(p.to(Q.dtype), tile.load(V[n:n + BN, 0:D]), acc * by[:, None])
        tile.store(O[m:m + BM, 0:D], (acc / total[:, None]).to(O.dtype))


def attended(q, k, v):
    weights = np.where(np.tri(len(q)) > 0, 2 ** (0.25 * q.astype(np.float64) @ k.astype(np.float64).T), 0)
    return weights / weights.sum(1, keepdims=True) @ v.astype(np.float64)


@pytest.mark.parametrize("target", TARGETS)
def test_attention_in_two_loops_has_the_slots_of_one(target):
    q, k, v = (np.random.default_rng(i).standard_normal((300, 64)).astype(np.float16) for i in range(3))
    o, options = np.zeros_like(q), dict(BM=128, BN=64, D=64, num_warps=8, target=target)
    for seed in (0, 1):
        causal.simulate(2, q, k, v, o, 0.25, **options, seed=seed).raise_first()
        np.testing.assert_allclose(o.astype(np.float64), attended(q, k, v), atol=4e-3)
    made = causal.compile(q, k, v, o, 0.25, **options)
    copies = [c for c in made.copies if c.op == "copy_async"]
    slots = [line for line in str(made.graph).splitlines() if "slots=True" in line]
    assert len({c.line for c in copies}) == 2 and len(slots) == 2 and made.spills == 0
    assert [p.variant for p in made.products] == [TARGETS[target]] * 4


@tile.jit
def in_two_loops(A, B, X, Y, C, n, FIRST: tile.constexpr, SECOND: tile.constexpr, OWN: tile.constexpr = False, VARIANT: tile.constexpr = None):
    """``C = n * (A @ B + X @ Y)``, by buffers of its `OWN` or by loads. The first loop's copies of these buffers go by `VARIANT`."""
    sA, sB = (tile.alloc((64, 32), A.dtype, layout=tile.auto), tile.alloc((32, 64), B.dtype, layout=tile.auto)) if OWN else (None, None)
    acc = tile.zeros((64, 64))
    for _ in range(n):
        for k in tile.pipelined(range(0, A.shape[1], 32), stages=FIRST):
            if OWN:
                tile.copy_async(sA, A[0:64, k:k + 32], variant=VARIANT)
                tile.copy_async(sB, B[k:k + 32, 0:64], variant=VARIANT)
                acc = tile.dot(sA, sB, acc)
            else:
                acc = tile.dot(tile.load(A[0:64, k:k + 32]), tile.load(B[k:k + 32, 0:64]), acc)
        for k in tile.pipelined(range(0, X.shape[1], 32), stages=SECOND):
            if OWN:
                tile.copy_async(sA, X[0:64, k:k + 32])
                tile.copy_async(sB, Y[k:k + 32, 0:64])
                acc = tile.dot(sA, sB, acc)
            else:
                acc = tile.dot(tile.load(X[0:64, k:k + 32]), tile.load(Y[k:k + 32, 0:64]), acc)
    tile.store(C[0:64, 0:64], acc)


def factors():
    a, b, x, y = (np.random.default_rng(i).integers(-3, 4, s).astype(np.float16) for i, s in enumerate(((64, 200), (200, 64), (64, 72), (72, 64))))
    return (a, b, x, y, np.zeros((64, 64), np.float32)), a.astype(np.float64) @ b + x.astype(np.float64) @ y


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("first, second", [(3, 3), (2, 4), (4, 1)])
@pytest.mark.parametrize("own, variant", [(False, None), (True, None), (True, "ldgsts")])
def test_any_two_loops_after_each_other_may_share_slots(target, first, second, own, variant):
    """Each may have its own number of them and complete in its own way, and both may run again."""
    arrays, want = factors()
    options = dict(FIRST=first, SECOND=second, OWN=own, VARIANT=variant, target=target)
    for seed in (0, 1):
        in_two_loops.simulate(1, *arrays, 2, **options, seed=seed).raise_first()
        np.testing.assert_array_equal(arrays[4], 2 * want)
    made = in_two_loops.compile(*arrays, 2, **options)
    assert f"shape=({max(first, second)}, 64, 32)" in str(made.graph) and str(made.graph).count("slots=True") == 2
    assert made.products[0].variant == made.products[1].variant == TARGETS[target]
    assert {c.variant for c in made.copies if c.op == "copy_async"} == {variant or COPIES[target], COPIES[target]}


def test_loads_of_two_loops_run_ahead_where_shared_memory_has_room_for_one_of_them():
    """The second loop's loads stayed in their iterations on sm_90a, and on sm_80 the kernel was refused."""
    rows = tile.ArraySpec((4096, 128), "float16")
    for target in ("sm_80", "sm_90a"):
        made = causal.compile(rows, rows, rows, rows, 0.1, BM=128, BN=128, D=128, num_warps=8, target=target)
        assert not any("run ahead" in str(w) for w in made.warnings) and len({c.line for c in made.copies if c.op == "copy_async"}) == 2


LOOPS = {
    "which may run inside each other": ("""
    for i in tile.pipelined(range(4), stages=2):
        tile.copy_async(s, x[i, 0:64])
        for j in tile.pipelined(range(4), stages=2):
            tile.copy_async(s, x[j, 0:64])
            tile.store(y[i, 0:64], tile.load(s))
""", "do not run one after the other in the same scope"),
    "of two warps": ("""
    with tile.warp(0):
        for i in tile.pipelined(range(4), stages=2):
            tile.copy_async(s, x[i, 0:64])
            tile.store(y[i, 0:64], tile.load(s))
    with tile.warp(1):
        for i in tile.pipelined(range(4, 8), stages=2):
            tile.copy_async(s, x[i, 0:64])
            tile.store(y[i, 0:64], tile.load(s))
""", "do not run one after the other in the same scope"),
    "with a producer": ("""
    for i in tile.pipelined(range(4), stages=2, warp_specialize=True):
        tile.copy_async(s, x[i, 0:64])
        tile.store(y[i, 0:64], tile.load(s))
    for i in tile.pipelined(range(4, 8), stages=2, warp_specialize=True):
        tile.copy_async(s, x[i, 0:64])
        tile.store(y[i, 0:64], tile.load(s))
""", "with warp_specialize the copies of the second begin while the first still runs"),
}


@pytest.mark.parametrize("loops", LOOPS)
def test_loops_that_may_run_at_once_are_refused_the_same_buffer(loops):
    text, words = LOOPS[loops]
    kernel = tile.jit(source=f"def k(x, y):\n    s = tile.alloc((64,), x.dtype)\n{text}")
    spec = tile.ArraySpec((8, 64), "float32")
    with pytest.raises(CompilationError, match=words):
        kernel.compile(spec, spec, target="sm_90a")


def test_with_a_producer_loops_that_load_have_slots_of_their_own():
    @tile.jit
    def k(x, y):
        for part in tile.static_range(2):
            for i in tile.pipelined(range(4), stages=2, warp_specialize=True):
                acc = tile.dot(tile.load(x[64 * i:64 * i + 64, 0:64]), tile.load(x[0:64, 0:64]))
                tile.store(y[64 * i:64 * i + 64, 64 * part:64 * part + 64], acc)

    made = k.compile(tile.ArraySpec((256, 64), "float16"), tile.ArraySpec((256, 128), "float32"), target="sm_90a")
    assert str(made.graph).count("slots=True") == 4


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_loops_that_share_slots_are_right_on_the_gpu():
    import torch
    arrays, want = factors()
    for first, second in ((3, 3), (2, 4), (4, 1)):
        for own, variant in ((False, None), (True, None), (True, "ldgsts")):
            a, b, x, y, c = (torch.from_numpy(v).cuda() for v in arrays)
            in_two_loops[1](a, b, x, y, c, 100, FIRST=first, SECOND=second, OWN=own, VARIANT=variant)
            np.testing.assert_array_equal(c.cpu().numpy(), 100 * want, err_msg=str((first, second, own, variant)))
    q, k, v = (np.random.default_rng(i).standard_normal((1000, 64)).astype(np.float16) for i in range(3))
    tensors = [torch.from_numpy(x).cuda() for x in (q, k, v, np.zeros_like(q))]
    causal[4](*tensors, 0.25, BM=128, BN=64, D=64, num_warps=8)
    np.testing.assert_allclose(tensors[3].cpu().numpy().astype(np.float64), attended(q, k, v), atol=4e-3)
