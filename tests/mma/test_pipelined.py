"""``tile.pipelined``: any number of iterations and stages, with and without roles, by barriers and by groups."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu, needs_module
from tests.mma.pipelined_product import product

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@tile.jit
def tile_of_product(A, B, C, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr,
                    TB: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    sA = tile.alloc((BM, BK), A.dtype, layout=tile.auto)
    sB = tile.alloc((BN, BK) if TB else (BK, BN), B.dtype, layout=tile.auto)
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, K, BK), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(sA, A[m:m + BM, k:k + BK])
        if TB:
            tile.copy_async(sB, B[n:n + BN, k:k + BK])
        else:
            tile.copy_async(sB, B[k:k + BK, n:n + BN])
        acc = tile.dot(sA, sB, acc, trans_b=TB)
    tile.store(C[m:m + BM, n:n + BN], acc)


def checked(m, n, k, stages, roles, target="sm_90a", tb=True, dtype=np.float16, bm=64, bn=32, bk=32, warps=4):
    """Check a product on the simulator, within the roundings of its accumulation and without findings."""
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, max(k, 1)), (n, max(k, 1)) if tb else (max(k, 1), n)))
    c = np.full((m, n), np.nan, np.float32)
    tile_of_product.simulate((-(-m // bm), -(-n // bn)), a, b, c, k, BM=bm, BN=bn, BK=bk, STAGES=stages, ROLES=roles, TB=tb, num_warps=warps,
                             target=target).raise_first()
    close(c, a[:, :k], b.T[:k] if tb else b[:k])


def close(c, a, b):
    x, y = a.astype(np.float64), b.astype(np.float64)
    half_a_place = {np.dtype(np.float32): 0.0, np.dtype(np.float16): 2.0 ** -11}.get(c.dtype, 2.0 ** -8)
    bound = np.abs(x @ y) * half_a_place + np.abs(x) @ np.abs(y) * 2 * max(a.shape[1], 1) * 2.0 ** -23 + 2.0 ** -25
    assert (np.abs(c.astype(np.float64) - x @ y) <= bound).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_trip_counts_around_the_number_of_stages_are_right(stages, roles, target):
    """0, 1, stages - 1, stages and stages + 1 iterations, and a ragged last one."""
    for trips in sorted({0, 1, stages - 1, stages, stages + 1}):
        checked(64, 32, 32 * trips, stages, roles, target)
    checked(64, 32, 32 * stages + 8, stages, roles, target)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 90), st.integers(1, 12), st.integers(0, 20), st.integers(1, 5), st.booleans(), st.sampled_from(TARGETS), st.booleans(),
       st.sampled_from([np.float16, ml_dtypes.bfloat16]), st.sampled_from([16, 32, 64]), st.sampled_from([1, 4, 8]))
def test_ragged_products_of_any_extents_are_right(m, n, k, stages, roles, target, tb, dtype, bk, warps):
    """Rows that TMA can address (multiples of 16 bytes), edges that are not multiples of the tile."""
    stages = min(stages, 3) if warps == 8 else stages  # what sm_120a has room for
    checked(m, 8 * n, 8 * k, stages, roles, target, tb, dtype, bk=bk, warps=warps, bm=128 if warps == 8 else 64)


@pytest.mark.parametrize("k,n", [(33, 17), (21, 32)])
@pytest.mark.parametrize("roles", [False, True])
def test_rows_that_tma_cannot_address_are_staged_by_other_copies(k, n, roles):
    """Strides that are not multiples of 16 bytes: without roles, and with the same results."""
    for target in ("sm_80", "sm_90a"):
        checked(40, n, k, 3, roles, target, tb=False)


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_the_ring_continues_from_tile_to_tile(target, roles):
    """A persistent kernel: trip counts that are not multiples of the stages, tiles that are not multiples of the CTAs."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((200, 136), (100, 136)))
    c = np.full((200, 100), np.nan, np.float16)
    product.simulate((3,), a, b, c, BM=64, BN=32, BK=32, ROLES=roles, num_warps=4, target=target).raise_first()
    close(c, a, b.T)


@tile.jit
def two_loops(A, out, n, ROLES: tile.constexpr):
    one, other = tile.alloc((64,), A.dtype), tile.alloc((2, 64), A.dtype)
    total = tile.zeros((64,))
    for i in tile.pipelined(range(n - 1, -1, -1), stages=3, warp_specialize=ROLES):
        tile.copy_async(one, A[i, 0:64])
        total = total * 0.5 + tile.load(one)
    for i in tile.pipelined(range(0, n, 2), stages=2, warp_specialize=ROLES):
        tile.copy_async(other, A[i:i + 2, 0:64])
        total += tile.load(other[0]) - tile.load(other[1])
    tile.store(out[0:64], total)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("n", [0, 2, 8])
def test_loops_may_run_backwards_or_in_steps_and_read_slots_without_products(n, roles, target):
    """Two pipelined loops in one kernel, each with its own ring; the slots are read by ordinary loads."""
    a = np.random.default_rng(n).standard_normal((max(n, 1), 64)).astype(np.float32)
    out = np.zeros(64, np.float32)
    two_loops.simulate(1, a, out, n, ROLES=roles, target=target).raise_first()
    total = np.zeros(64, np.float32)
    for i in reversed(range(n)):
        total = total * np.float32(0.5) + a[i]
    for i in range(0, n, 2):
        total += a[i] - a[i + 1]
    np.testing.assert_allclose(out, total, rtol=1e-6, atol=1e-6)


@tile.jit(num_warps=4)
def attention(Q, K, V, O, scale, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr):
    row = tile.program_id(0) * BM
    sQ = tile.alloc((BM, D), Q.dtype, layout=tile.auto)
    sK, sV = tile.alloc((BN, D), K.dtype, layout=tile.auto), tile.alloc((BN, D), V.dtype, layout=tile.auto)
    tile.copy_async(sQ, Q[row:row + BM, 0:D]).wait()
    top, total, out = tile.full((BM,), -1e30), tile.zeros((BM,)), tile.zeros((BM, D))
    for j in tile.pipelined(range(0, K.shape[0], BN), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(sK, K[j:j + BN, 0:D])
        tile.copy_async(sV, V[j:j + BN, 0:D])
        s = tile.where((tile.arange(BN) + j < K.shape[0])[None, :], tile.dot(sQ, sK, trans_b=True) * scale, -float("inf"))
        higher = tile.maximum(top, tile.max(s, axis=1))
        p, less = tile.exp(s - higher[:, None]), tile.exp(top - higher)
        total = total * less + tile.sum(p, axis=1)
        out = tile.dot(p.to(V.dtype), sV, out * less[:, None])
        top = higher
    tile.store(O[row:row + BM, 0:D], out / total[:, None])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
def test_attention_keeps_its_row_state_in_fragments(target, roles):
    """Row maxima and sums over accumulators, a product's result as the next one's operand: no layout is converted."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (100, 200, 200))
    out = np.zeros((100, 64), np.float32)
    constants = dict(BM=64, BN=64, D=64, STAGES=2, ROLES=roles, target=target)
    attention.simulate((2,), q, k, v, out, 0.125, **constants).raise_first()
    s = q.astype(np.float64) @ k.T.astype(np.float64) * 0.125
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    assert (np.abs(out - p @ v.astype(np.float64)) <= p @ np.abs(v.astype(np.float64)) * 2.0 ** -10).all()
    made = attention.compile(q, k, v, out, 0.125, **constants)
    assert "convert_layout" not in made.graph and made.spills == 0
    assert {p.variant for p in made.products} == {{"sm_90a": "wgmma", "sm_100a": "tcgen05"}.get(target, "mma_sync")}


def compiled(target, stages=4, roles=True, **options):
    specs = [tile.ArraySpec((4096, 4096), "bfloat16"), tile.ArraySpec((4096, 4096), "bfloat16"), tile.ArraySpec((4096, 4096), "float32")]
    return tile_of_product.compile(*specs, 4096, STAGES=stages, ROLES=roles, TB=True, target=target,
                                   **{**dict(BM=128, BN=128, BK=64, num_warps=8), **options})


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("target,variant,path,stages",
                         [("sm_80", "mma_sync", "ldgsts", 3), ("sm_90a", "wgmma", "tma", 4), ("sm_100a", "tcgen05", "tma", 4),
                                                        ("sm_120a", "mma_sync", "tma", 3)])
def test_every_target_assembles_with_its_own_copies_and_products(target, variant, path, stages, roles):
    """One source: cp.async and mma.sync on Ampere, TMA and wgmma on Hopper, TMA and tensor memory or mma.sync on Blackwell."""
    made = compiled(target, stages, roles)
    assert {c.variant for c in made.copies} == {path} and [p.variant for p in made.products] == [variant]
    assert made.spills == 0
    assert made.recipe["threads"] == (384 if roles and target != "sm_80" else 256)


def test_a_branch_that_only_concerns_the_copies_leaves_the_product_in_flight():
    """Every second tile goes backwards along k; the consumers have neither the branch nor a wait for their last product."""
    shape = tile.ArraySpec((4096, 4096), "bfloat16")
    made = product.compile(shape, shape, shape)
    producer, consumers = made.graph.split("  warpgroup ")[1:]
    assert "%chosen" in producer and "%chosen" not in consumers and made.spills == 0


def test_on_hopper_a_consumer_keeps_a_product_in_flight():
    """With roles the loop waits for the previous product, releases its slot, and drains at the end."""
    made = compiled("sm_90a", BN=256)
    waits = [line.strip() for line in made.graph.splitlines() if "mma_wait" in line]
    assert waits == ["mma_wait(n=1)", "mma_wait(n=0)"]
    assert "setmaxnreg.inc.sync.aligned.u32 232" in made.ptx and "setmaxnreg.dec.sync.aligned.u32 40" in made.ptx
    assert made.spills == 0 and made.registers == 168


@tile.jit(num_warps=4)
def from_registers(Q, B, C, HOW: tile.constexpr, ROLES: tile.constexpr = True):
    q, sB = tile.load(Q[0:64, 0:32]), tile.alloc((64, 32), B.dtype, layout=tile.auto)
    acc = tile.zeros((64, 64))
    for i in tile.pipelined(range(0, B.shape[0], 64), stages=2, warp_specialize=ROLES):
        tile.copy_async(sB, B[i:i + 64, 0:32])
        a = q if HOW == "kept" else q * 2 if HOW == "scaled" else q * (i // 64 + 1)
        acc = tile.dot(a, sB, acc, trans_b=True)
    tile.store(C[0:64, 0:64], acc)


def registers_case(how):
    """Operands, and the expected product with A in registers."""
    rng = np.random.default_rng(0)
    q, b = rng.integers(-4, 5, (64, 32)).astype(np.float16), rng.integers(-4, 5, (256, 32)).astype(np.float16)
    factors = {"kept": [1] * 4, "scaled": [2] * 4, "by trip": [1, 2, 3, 4]}[how]
    return q, b, sum(f * (q.astype(float) @ b[64 * i:64 * i + 64].astype(float).T) for i, f in enumerate(factors))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("how", ["kept", "scaled", "by trip"])
def test_a_register_operand_computed_in_each_iteration_is_written_after_the_previous_product(how, target):
    """One that does not change leaves that product in flight until the next is issued."""
    (q, b, want), c = registers_case(how), np.empty((64, 64), np.float32)
    from_registers.simulate(1, q, b, c, HOW=how, target=target).raise_first()
    np.testing.assert_array_equal(c, want)
    loop = from_registers.compile(q, b, c, HOW=how, target=target).graph.split("for %i")[-1]
    steps = re.findall(r"mma_wait\(n=\d\)|\b(?:sync|store|mma_async)\(", loop)
    if target != "sm_90a":
        assert not any("wait" in step for step in steps)
    elif how == "kept":
        assert steps[:3] == ["mma_async(", "mma_wait(n=1)", "mma_wait(n=0)"]
    else:
        assert steps[:6] == ["mma_wait(n=0)", "sync(", "store(", "sync(", "mma_async(", "mma_wait(n=0)"]


@needs_module("torch")
@needs_gpu("sm_90a")
@in_child(timeout=120)
def test_products_with_register_operands_are_right_on_the_gpu_with_and_without_roles():
    import torch
    for how in ("kept", "scaled", "by trip"):
        q, b, want = registers_case(how)
        for roles in (False, True):
            c = torch.zeros(64, 64, device="cuda")
            from_registers[1](torch.from_numpy(q).cuda(), torch.from_numpy(b).cuda(), c, HOW=how, ROLES=roles)
            np.testing.assert_array_equal(c.cpu().numpy(), want, err_msg=f"{how} {roles}")


@tile.jit
def part(A, B, n, BK: tile.constexpr, ROLES: tile.constexpr):
    sA, sB = tile.alloc((64, BK), A.dtype, layout=tile.auto), tile.alloc((BK, 64), B.dtype, layout=tile.auto)
    acc = tile.zeros((64, 64))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=3, warp_specialize=ROLES):
        tile.copy_async(sA, A[0:64, k:k + BK])
        tile.copy_async(sB, B[k:k + BK, n:n + 64])
        acc = tile.dot(sA, sB, acc)
    return acc


@tile.jit(num_warps=4)
def in_parts(A, B, C, rounds, more, BK: tile.constexpr, ROLES: tile.constexpr):
    """A helper with a loop: called once per iteration of a loop, after it, on the same line, and in a branch."""
    total = tile.zeros((64, 64))
    for i in range(rounds):
        total = total + part(A, B, i * 64, BK, ROLES)
    total = total + part(A, B, 64, BK, ROLES) - part(A, B, 128, BK, ROLES)
    if more:
        total = total + part(A, B, 0, BK, ROLES)
    tile.store(C[0:64, 0:64], total)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("k,rounds,more", [(32, 1, 0), (104, 2, 1), (72, 3, 1)])
def test_a_helper_s_loop_has_its_own_ring_per_call_which_continues_across_iterations_around_it(k, rounds, more, roles, target):
    """With trip counts that are not multiples of the stages; each inlined call has its own barriers, in their first phase."""
    rng = np.random.default_rng(k)
    a, b = rng.integers(-3, 4, (64, k)).astype(np.float16), rng.integers(-3, 4, (k, 192)).astype(np.float16)
    c = np.full((64, 64), np.nan, np.float32)
    in_parts.simulate(1, a, b, c, rounds, more, BK=16, ROLES=roles, target=target).raise_first()
    parts = [a.astype(np.float32) @ b[:, n:n + 64].astype(np.float32) for n in (0, 64, 128)]
    np.testing.assert_array_equal(c, sum(parts[:rounds]) + parts[1] - parts[2] + more * parts[0])


# -- wrong use -----------------------------------------------------------------------------------------------------------

def refused(body, words, line, head="s = tile.alloc((64,), A.dtype)", target="sm_90a", **options):
    lines = "\n".join("    " + text for text in [head, "total = tile.zeros((64,))", *body, "tile.store(out[0:64], total)"])
    kernel = tile.jit(source=f"def wrong(A, out, n):\n{lines}\n")
    with pytest.raises(CompilationError, match=words) as caught:
        kernel.compile(tile.ArraySpec((64, 64), "float32"), tile.ArraySpec((64,), "float32"), 8, target=target, **options)
    assert caught.value.loc.line == line


LOOP = "for i in tile.pipelined(range(n), stages=2):"
COPY = "    tile.copy_async(s, A[i, 0:64])"


@pytest.mark.parametrize("body,words,line", [
    (["for i in tile.pipelined(n, stages=2):", COPY], "pipelined takes a range", 4),
    (["for i in tile.pipelined(tile.static_range(4), stages=2):", COPY], "pipelined takes a range", 4),
    (["for i in tile.pipelined(tile.pipelined(range(n)), stages=2):", COPY], "not a pipelined loop", 4),
    (["for i in tile.pipelined(range(n), stages=0):", COPY], "stages is a constant from 1 to 64", 4),
    (["for i in tile.pipelined(tile.range(n, unroll=2)):", COPY], "a pipelined loop cannot be unrolled", 4),
    (["for i in tile.pipelined(range(n), producer_regs=24):", COPY], "with warp_specialize=True", 4),
    ([LOOP, COPY, "    if i == 3:", "        break"], "cannot be left early, since its copies run ahead", 4),
    (["at = 0", LOOP, "    tile.copy_async(s, A[at, 0:64])", "    at = at * 2 + 1", "    total += tile.load(s)"],
     "depend on at, which the loop changes", 6),
    ([LOOP, COPY, "    total += tile.load(s)", "total += tile.load(s)"], "outside that loop it holds no data", 7),
    ([LOOP, COPY, "    tile.store(s, total)"], "only the copies directly in the loop's body may write it", 6),
    ([LOOP, COPY, "    total += tile.load(s)", f"    {LOOP}", f"    {COPY}", "        total += tile.load(s)"], "filled by two pipelined loops", 8),
    ([LOOP, "    tile.copy_async(s.reshape((2, 32))[0], A[i, 0:32])", "    total += tile.load(s)"], "this copy fills a view of a buffer", 5),
    (["t = s.view(A.dtype)", LOOP, "    tile.copy_async(t, A[i, 0:64])", "    total += tile.load(t)"], "copy to the buffer that tile.alloc returned", 6),
    ([LOOP, "    tile.copy_async(s, A[tile.load(out[i]).to(tile.int32), 0:64])", "    total += tile.load(s)"], "their places depend on this load", 5),
    ([LOOP, "    tile.copy_async(s, A[tile.load(out[i]).to(tile.int32), 0:64])", "    total += tile.load(s)"], "the kernel writes the memory that it reads", 5),
    ([LOOP, "    tile.copy_async(s, A[tile.load(A[0, i], sem='acquire').to(tile.int32), 0:64])", "    total += tile.load(s)"],
     "their places depend on this ordered_load, but only a plain load of an array argument that the kernel does not write may", 5),
    ([LOOP, "    row = i if tile.load(out[i]) > 0 else 0", COPY.replace("[i,", "[row,"), "    total += tile.load(s)"], "their places depend on this load", 5),
    ([LOOP, "    row = i", "    if i > 2:", "        row = tile.atomic_add(out[0], 1.0).to(tile.int32)", COPY.replace("[i,", "[row,"),
      "    total += tile.load(s)"],
     "their places depend on this atomic", 7),
    (["at = 0", LOOP, "    row = at if i > 2 else 0", COPY.replace("[i,", "[row,"), "    at = at * 2 + 1", "    total += tile.load(s)"],
     "depend on at, which the loop changes", 7),
])
def test_loops_that_cannot_be_pipelined_are_errors_at_their_line(body, words, line):
    """With the reason, before anything is simulated or assembled."""
    refused(body, words, line)


def test_impossible_roles_are_errors():
    """Loops that wait for other warps' results, narrower scopes, unsupported numbers of warps."""
    roles = "for i in tile.pipelined(range(n), stages=2, warp_specialize=True):"
    refused([roles, COPY, "    total += tile.load(s)"], "1, 2 or a multiple of 4 warps", 4, num_warps=3)
    refused([roles, COPY, "    total += tile.load(s)"], "at most 32", 4, num_warps=32)
    refused(["count = tile.atomic_add(out[0], 1.0).to(tile.int32)", roles.replace("range(n)", "range(count)"), COPY, "    total += tile.load(s)"],
            "the producer runs ahead", 4)
    refused(["count = tile.load(out[0]).to(tile.int32)", roles.replace("range(n)", "range(count)"), COPY, "    total += tile.load(s)"],
            "the producer, which runs ahead of the other warps, depends on this load", 4)
    multiplied = "count = tile.max(tile.dot(tile.load(A[0:64, 0:64]), tile.load(A[0:64, 0:64]))).to(tile.int32)"
    refused([multiplied, roles.replace("range(n)", "range(count)"), COPY, "    total += tile.load(s)"], "cannot wait for it", 4)
    refused(["count = n", "if n > 2:", "    count = tile.atomic_add(out[0], 1.0).to(tile.int32)", roles.replace("range(n)", "range(count)"), COPY,
             "    total += tile.load(s)"], "cannot wait for it", 6)
    spin = ["while tile.load(out[1], sem='acquire') == 0:", "    pass"]
    refused([*spin, roles, COPY, "    total += tile.load(s)"], "the producer, which runs ahead of the other warps, would not wait", 4)
    refused(["for j in range(n):", f"    {roles}", f"    {COPY}", "        total += tile.load(s)", *(f"    {line}" for line in spin)],
            "would not wait", 8)
    kernel = tile.jit(source=f"def wrong(A, out, n):\n    s = tile.alloc((64,), A.dtype)\n    with tile.warp(0):\n        {roles}\n        {COPY}\n"
                             "            tile.store(out[0:64], tile.load(s))\n")
    with pytest.raises(CompilationError, match="narrower scope"):
        kernel.compile(tile.ArraySpec((64, 64), "float32"), tile.ArraySpec((64,), "float32"), 8)


def test_loads_that_synchronise_the_rest_of_a_kernel_may_follow_its_loops_with_roles():
    """After the last loop, or if a narrower scope waits."""
    @tile.jit
    def signalled(A, out, flags):
        s = tile.alloc((64,), A.dtype)
        total = tile.zeros((64,))
        for i in tile.pipelined(range(A.shape[0]), stages=2, warp_specialize=True):
            tile.copy_async(s, A[i, 0:64])
            total += tile.load(s)
        while tile.load(flags[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], total)

    a, out = np.random.default_rng(0).standard_normal((7, 64)).astype(np.float32), np.zeros(64, np.float32)
    signalled.simulate(1, a, out, np.ones(1, np.int32)).raise_first()
    np.testing.assert_allclose(out, a.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_copy_groups_of_the_kernel_are_refused_inside_a_loop_that_uses_groups():
    """They would be counted with the loop's own; before and after the loop they are allowed."""
    refused([LOOP, COPY, "    tile.copy_async(t, A[0, 0:64]).wait()", "    total += tile.load(s)"], "counts the groups of its cp.async copies", 6,
            head="s, t = tile.alloc((64,), A.dtype), tile.alloc((64,), A.dtype)", target="sm_80")


@pytest.mark.parametrize("target", TARGETS)
def test_a_pipelined_loop_may_be_in_a_narrower_scope(target):
    """Two warps of four, with one loop each."""
    @tile.jit
    def halves(A, out, n):
        first, second = tile.alloc((32,), A.dtype), tile.alloc((32,), A.dtype)
        with tile.warp(1):
            total = tile.zeros((32,))
            for i in tile.pipelined(range(n), stages=3):
                tile.copy_async(first, A[i, 0:32])
                total += tile.load(first)
            tile.store(out[0:32], total)
        with tile.warp(3):
            total = tile.zeros((32,))
            for i in tile.pipelined(range(n), stages=2):
                tile.copy_async(second, A[i, 32:64])
                total += tile.load(second)
            tile.store(out[32:64], total)

    a, out = np.random.default_rng(0).standard_normal((7, 64)).astype(np.float32), np.zeros(64, np.float32)
    halves.simulate(1, a, out, 7, target=target).raise_first()
    np.testing.assert_allclose(out, a.sum(axis=0), rtol=1e-5, atol=1e-5)


# -- clusters ----------------------------------------------------------------------------------------------------------------

@tile.jit(cluster=(2, 1, 1), num_warps=4)
def split_k(A, B, C, BK: tile.constexpr, ROLES: tile.constexpr):
    """A cluster's CTAs sum half of k each, and add the other's sums of their columns."""
    n, rank = tile.program_id(0) // 2 * 64, tile.cta_rank()
    steps = tile.cdiv(A.shape[1], BK)
    first, stop = rank * steps // 2, (rank + 1) * steps // 2
    sA, sB = tile.alloc((64, BK), A.dtype, layout=tile.auto), tile.alloc((64, BK), B.dtype, layout=tile.auto)
    sums, theirs = tile.alloc((2, 64, 32), tile.float32), tile.alloc((64, 32), tile.float32)
    arrived = tile.mbarrier(count=1)
    acc = tile.zeros((64, 64))
    for i in tile.pipelined(range(first, stop), stages=2, warp_specialize=ROLES):
        tile.copy_async(sA, A[0:64, i * BK:i * BK + BK])
        tile.copy_async(sB, B[n:n + 64, i * BK:i * BK + BK])
        acc = tile.dot(sA, sB, acc, trans_b=True)
    for half in tile.static_range(2):
        tile.store(sums[half], acc[:, half * 32:half * 32 + 32])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        arrived.arrive_expect_tx(theirs.nbytes)
        tile.copy_async(theirs.peer(1 - rank), sums[1 - rank], mbar=arrived)
    arrived.wait(phase=0)
    tile.store(C[0:64, n + rank * 32:n + rank * 32 + 32], tile.load(sums[rank]) + tile.load(theirs))


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("k", [0, 40, 64, 200, 640])
def test_a_loop_with_roles_may_be_in_a_kernel_with_clusters(roles, k):
    """Each CTA's producer fills its own slots; the consumers access their peer as they would without roles."""
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal((rows, max(k, 1))).astype(np.float16) for rows in (64, 128))
    a, b = a[:, :k], b[:, :k]
    for seed in range(3):
        c = np.full((64, 128), np.nan, np.float32)
        split_k.simulate(4, a, b, c, BK=64, ROLES=roles, seed=seed).raise_first()
        close(c, a, b.T)
    for target in ("sm_90a", "sm_100a", "sm_120a"):
        compiled = split_k.compile(a, b, c, BK=64, ROLES=roles, target=target)
        assert compiled.recipe["threads"] == (256 if roles else 128) and compiled.cubin


def test_cluster_wide_synchronisation_refuses_roles_and_multicasts_refuse_every_pipelined_loop():
    """The producer would not reach the cluster barrier; slots belong to their own CTA."""
    roles = "for i in tile.pipelined(range(n), stages=2, warp_specialize=True):"
    refused([roles, COPY, "    total += tile.load(s)", "tile.cluster_sync()"], "all threads of the cluster synchronise here", 7, cluster=(2, 1, 1))
    for head in (LOOP, roles):
        refused([head, COPY.replace("0:64]", "0:64], multicast=3"), "    total += tile.load(s)"], "fills the slots of its own CTA", 5,
                cluster=(2, 1, 1))


@tile.jit
def one_by_hand(A, B, C):
    sA, sB = tile.alloc((64, 32), A.dtype, layout=tile.auto), tile.alloc((32, 64), B.dtype, layout=tile.auto)
    acc = tile.zeros((64, 64))
    for k in tile.pipelined(range(0, 96, 32), stages=2):
        here = tile.copy_async(sA, A[0:64, k:k + 32])
        tile.copy_async(sB, B[k:k + 32, 0:64])
        here.wait()
        acc = tile.dot(sA, sB, acc)
        tile.sync()
    tile.store(C[0:64, 0:64], acc)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_copy_that_the_body_waits_for_is_fenced_before_its_product(target, seed):
    """It is not prefetched: its bytes come by cp.async, and the tensor cores read them through another proxy."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((64, 96)).astype(np.float16), rng.standard_normal((96, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    one_by_hand.simulate(1, a, b, c, target=target, seed=seed).raise_first()
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-3)


@tile.jit
def handed_over(x, flag, part, out, STAGES: tile.constexpr):
    """The second CTA waits for the first in loops that do nothing else."""
    s = tile.alloc((64,), x.dtype)
    bar = tile.mbarrier()
    total = tile.zeros((64,))
    for i in tile.pipelined(range(x.shape[0]), stages=STAGES, warp_specialize=True):
        tile.copy_async(s, x[i, 0:64])
        total += tile.load(s)
    bar.arrive()
    while not bar.test(phase=0):
        pass
    if tile.program_id(0) == 0:
        tile.store(part[0:64], total)
        tile.store(flag[0], 1, sem="release")
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], total + tile.load(part[0:64]))


def test_a_loop_that_only_waits_is_kept_when_roles_are_split():
    x = np.random.default_rng(0).integers(-9, 9, (5, 64)).astype(np.float32)
    flag, part, out = np.zeros(1, np.int32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    assert not handed_over.simulate(2, x, flag, part, out, STAGES=2).findings
    np.testing.assert_array_equal(out, 2 * x.sum(axis=0))
    ptx = handed_over.compile(x, flag, part, out, STAGES=2, target="sm_90a").ptx
    assert "ld.acquire.gpu" in ptx and "mbarrier.test_wait" in ptx
