"""Slots that threads read and TMA refills, on the GPU: what is read is never the next content, in whichever construct.

Block i holds the number i + 1, so that the sum over all blocks is known; one that is too large has read a slot's next
content. Layouts with bank conflicts (columns of 16 bytes, 32-byte swizzles) let loads wait longer than TMA needs for
L2: without the fences, nearly every launch was wrong there on an H200, and products by mma.sync also with wider
swizzles.
"""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

BLOCKS = 32
WANT = BLOCKS * (BLOCKS + 1) // 2


@tile.jit
def added(s, total, PRODUCT: tile.constexpr):
    """`total` with the numbers of `s` added: by loads, or by ldmatrix as the operand of a product with a mean of its
    equal rows."""
    if PRODUCT:
        return tile.dot(tile.full((s.shape[0], s.shape[0]), 1.0 / s.shape[0], s.dtype), s, total, variant="mma_sync")
    return total + tile.load(s).to(tile.float32)


@tile.jit
def by_loop(A, out, R: tile.constexpr, MODE: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr,
            PRODUCT: tile.constexpr = False, TWICE: tile.constexpr = False):
    """By a pipelined loop, or with TWICE two that fill the same slots."""
    s = tile.alloc((R, 64), A.dtype, layout=tile.swizzled(A.dtype, (R, 64), MODE))
    total = tile.zeros((R, 64))
    for i in tile.pipelined(range(0, A.shape[0] // R), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(s, A[i * R:i * R + R, 0:64])
        total = added(s, total, PRODUCT)
    if TWICE:
        for i in tile.pipelined(range(0, A.shape[0] // R), stages=STAGES):
            tile.copy_async(s, A[i * R:i * R + R, 0:64])
            total = added(s, total, PRODUCT)
    tile.store(out[tile.program_id(0), 0:R, 0:64], total)


@tile.jit(num_warps=8)
def by_ring(A, out, R: tile.constexpr, MODE: tile.constexpr, STAGES: tile.constexpr, PRODUCT: tile.constexpr = False):
    ring = tile.ring(STAGES, A=((R, 64), A.dtype, tile.swizzled(A.dtype, (R, 64), MODE)))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(A.shape[0] // R):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[i * R:i * R + R, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        total = tile.zeros((R, 64))
        for i in range(A.shape[0] // R):
            with ring.consume() as slot:
                total = added(slot.A, total, PRODUCT)
        tile.store(out[tile.program_id(0), 0:R, 0:64], total)


@tile.jit(num_warps=8, cluster=(2, 1, 1))
def by_ring_of_a_cluster(A, out, R: tile.constexpr, MODE: tile.constexpr, STAGES: tile.constexpr):
    ring = tile.ring(STAGES, A=((R, 64), A.dtype, tile.swizzled(A.dtype, (R, 64), MODE)), multicast=True)
    half = tile.cta_rank() * (R // 2)
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(A.shape[0] // R):
                with ring.produce() as slot:
                    row = i * R + half
                    tile.copy_async(slot.A[half:half + R // 2], A[row:row + R // 2, 0:64], mbar=slot.full, multicast=3)
    with tile.warpgroup(1):
        total = tile.zeros((R, 64))
        for i in range(A.shape[0] // R):
            with ring.consume() as slot:
                total = added(slot.A, total, False)
        tile.store(out[tile.program_id(0), 0:R, 0:64], total)


@tile.jit
def by_token(A, out, R: tile.constexpr, MODE: tile.constexpr):
    s = tile.alloc((R, 64), A.dtype, layout=tile.swizzled(A.dtype, (R, 64), MODE))
    total = tile.zeros((R, 64))
    for i in range(A.shape[0] // R):
        tile.copy_async(s, A[i * R:i * R + R, 0:64], variant="tma").wait()
        total = added(s, total, False)
    tile.store(out[tile.program_id(0), 0:R, 0:64], total)


@tile.jit
def by_hand(A, out, R: tile.constexpr, MODE: tile.constexpr):
    """One buffer and the CTA's barrier, with the fence."""
    s = tile.alloc((R, 64), A.dtype, layout=tile.swizzled(A.dtype, (R, 64), MODE))
    bar = tile.mbarrier(count=1)
    total = tile.zeros((R, 64))
    for i in range(A.shape[0] // R):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[i * R:i * R + R, 0:64], mbar=bar)
        bar.wait(phase=i)
        total = added(s, total, False)
        tile.fence_proxy_async()
        tile.sync()
    tile.store(out[tile.program_id(0), 0:R, 0:64], total)


@tile.jit(cluster=(2, 1, 1))
def from_a_peer(A, out, R: tile.constexpr, MODE: tile.constexpr):
    """Each CTA sends the blocks to the other, which gives the buffer back by a remote arrival, with the fence before
    it."""
    mine = tile.alloc((R, 64), A.dtype, layout=tile.swizzled(A.dtype, (R, 64), MODE))
    s = tile.alloc((R, 64), A.dtype, layout=tile.swizzled(A.dtype, (R, 64), MODE))
    loaded, sent, free = tile.mbarrier(), tile.mbarrier(), tile.mbarrier()
    total = tile.zeros((R, 64))
    for i in range(A.shape[0] // R):
        with tile.elect():
            loaded.arrive_expect_tx(mine.nbytes)
            sent.arrive_expect_tx(s.nbytes)
            free.wait(phase=i + 1)
            tile.copy_async(mine, A[i * R:i * R + R, 0:64], mbar=loaded)
            loaded.wait(phase=i)
            tile.copy_async(s.peer(1 - tile.cta_rank()), mine, mbar=sent)
        sent.wait(phase=i)
        total = added(s, total, False)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            free.peer(1 - tile.cta_rank()).arrive()
    tile.store(out[tile.program_id(0), 0:R, 0:64], total)


FORMS = {
    "a loop with roles": (by_loop, dict(ROLES=True), (1, 2, 3)),
    "a loop without roles": (by_loop, dict(ROLES=False), (1, 2, 3)),
    "two loops": (by_loop, dict(ROLES=False, TWICE=True), (2, 3)),
    "products in a loop with roles": (by_loop, dict(ROLES=True, PRODUCT=True), (2, 3)),
    "products in a loop without roles": (by_loop, dict(ROLES=False, PRODUCT=True), (2, 3)),
    "a ring": (by_ring, {}, (2, 3)),
    "products from a ring": (by_ring, dict(PRODUCT=True), (2, 3)),
    "a ring of a cluster": (by_ring_of_a_cluster, {}, (2, 3)),
    "tokens": (by_token, {}, (None,)),
    "one buffer": (by_hand, {}, (None,)),
    "copies to a peer": (from_a_peer, {}, (None,)),
}


def versions(form: str):
    """(kernel, options, sum of the blocks) of every version."""
    kernel, options, stages = FORMS[form]
    for mode in (0, 32, 64, 128):
        for rows in (16, 64):
            for n in stages:
                chosen = dict(R=rows, MODE=mode, **options) | ({} if n is None else dict(STAGES=n))
                yield kernel, chosen, WANT * (1 + options.get("TWICE", False))


def blocks(rows: int, count: int) -> np.ndarray:
    import ml_dtypes
    return np.repeat(np.arange(1, count + 1), rows * 64).reshape(-1, 64).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("form", FORMS)
def test_the_simulator_finds_nothing_in_them(form):
    for kernel, options, want in versions(form):
        if options["MODE"] in (0, 128) and options["R"] == 16:
            out = np.zeros((2, 16, 64), np.float32)
            kernel.simulate(2, blocks(16, 5), out, **options).raise_first()
            assert (out == want * 15 / WANT).all()


@pytest.mark.parametrize("form", [f for f in FORMS if f not in ("tokens", "one buffer", "copies to a peer")])
def test_without_the_compiler_s_fences_the_simulator_finds_that_they_are_missing(form, monkeypatch):
    from tilejit.passes.pipelining import proxy_fences
    monkeypatch.setattr(proxy_fences._FenceInserter, "is_needed", staticmethod(lambda *_: False))
    kernel, options, _ = FORMS[form]
    version = dict(R=32, MODE=64, STAGES=2, **options)  # that no other test compiles
    report = kernel.simulate(2, blocks(32, 5), np.zeros((2, 32, 64), np.float32), **version)
    assert {f.kind for f in report.findings} == {"missing-proxy-fence"}


@needs_gpu("sm_90a", "sm_100a", "sm_103a")
@in_child(timeout=120)
@pytest.mark.parametrize("form", FORMS)
def test_no_launch_reads_a_slot_s_next_content(form):
    """In 4 launches of 132 CTAs and of 528, so that several share an SM."""
    wrong = []
    for kernel, options, want in versions(form):
        source = tile.to_device(blocks(options["R"], BLOCKS))
        for ctas in (132, 528):
            out = tile.empty((ctas, options["R"], 64), "float32")
            for _ in range(4):
                kernel[ctas,](source, out, **options)
                if (out.numpy() != want).any():
                    wrong.append((options, ctas))
    assert not wrong, wrong
