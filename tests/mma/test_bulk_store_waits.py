"""Waits for the reads of a bulk store are placed where the next iteration needs them."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.mma.pipelined_product import product

pytestmark = pytest.mark.usefixtures("assembled_later")


def test_a_tile_is_stored_while_the_next_one_is_multiplied():
    """The wait for the reads of the staging buffer comes after the next tile's products, and after the loop over tiles."""
    shape = tile.ArraySpec((4096, 4096), "bfloat16")
    consumers = product.compile(shape, shape, shape).graph.split("  warpgroup ")[2]
    names = re.findall(r"^ *(?:%\S+ = )?(mma_wait|bulk_wait|sync|store|fence_proxy_async|copy_async|bulk_commit|yield %pipeline)\b",
                       consumers, re.MULTILINE)
    tile_of = names[names.index("bulk_wait"):]
    assert names.index("mma_wait") < names.index("bulk_wait")
    assert tile_of == ["bulk_wait", "sync", "store", "fence_proxy_async", "sync", "copy_async", "bulk_commit", "yield %pipeline", "bulk_wait", "sync"]


@tile.jit(num_warps=8)
def looked_ahead(A, B, C, PEEK: tile.constexpr):
    ring = tile.ring(4, A=((64, 64), A.dtype), B=((64, 64), B.dtype))
    stage = tile.alloc((64, 64), C.dtype, layout=tile.auto)
    tiles, steps = A.shape[0] // 64, A.shape[1] // 64
    with tile.warpgroup(0):
        with tile.elect():
            for t in range(tiles):
                for k in range(steps):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, A[t * 64:t * 64 + 64, k * 64:k * 64 + 64], mbar=slot.full)
                        tile.copy_async(slot.B, B[0:64, k * 64:k * 64 + 64], mbar=slot.full)
    with tile.warpgroup(1):
        for t in range(tiles):
            acc = tile.zeros((64, 64))
            for _ in range(steps):
                with ring.consume() as slot:
                    acc = tile.mma_async(acc, slot.A, slot.B, trans_b=True)
                    tile.mma_commit()
                    if PEEK:
                        ring.peek()
                    tile.mma_wait(0)
            tile.store(stage, tile.cast(acc, C.dtype))
            tile.sync()
            tile.copy_async(C[t * 64:t * 64 + 64, 0:64], stage).wait(read=True)


@pytest.mark.parametrize("peek", [False, True])
def test_a_look_at_the_next_slot_does_not_keep_the_wait_in_its_place(peek):
    specs = tile.ArraySpec((512, 512), "bfloat16"), tile.ArraySpec((64, 512), "bfloat16"), tile.ArraySpec((512, 64), "bfloat16")
    text = looked_ahead.compile(*specs, PEEK=peek).graph.split("  warpgroup ")[2]
    assert re.findall(r"(?:mma_wait|bulk_wait|mbarrier_peek|store)(?=\()", text) == ["mbarrier_peek"] * peek + ["mma_wait", "bulk_wait", "store", "bulk_wait"]


@tile.jit(num_warps=4)
def turned_over(A, C, n, VIEWED: tile.constexpr):
    """Threads write what the next iteration's products read, perhaps through another view: the wait at the iteration's end is the
    barrier between them, and stays there."""
    s, sC = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128)), tile.alloc((64, 64), C.dtype, layout=tile.auto)
    read = s.permute((1, 0)) if VIEWED else s
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.sync()
    for i in range(n):
        acc = tile.zeros((64, 64))
        for _ in range(2):
            acc = tile.dot(read, read, acc, trans_b=True)
        tile.sync()
        tile.store(sC, acc * (1 / 128))
        tile.store(s, (acc * (1 / 128)).to(A.dtype))
        tile.sync()
        tile.copy_async(C[i * 64:i * 64 + 64, 0:64], sC).wait(read=True)


@pytest.mark.parametrize("viewed", [False, True])
def test_a_wait_that_orders_writes_of_threads_stays_at_the_end_of_the_iteration(viewed):
    """The products of the next iteration read them."""
    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    c, x = np.zeros((192, 64), np.float32), a.astype(np.float64)
    turned_over.simulate(1, a, c, 3, VIEWED=viewed).raise_first()
    for i in range(3):
        x = x.T if viewed else x
        np.testing.assert_allclose(c[i * 64:i * 64 + 64], 2 * x @ x.T / 128, rtol=1e-5, atol=1e-5)
        x = c[i * 64:i * 64 + 64].astype(np.float16).astype(np.float64)
    text = turned_over.compile(a, c, 3, VIEWED=viewed).graph
    assert re.search(r"bulk_commit\(\)\s+bulk_wait\(n=0, read=True\)\s+sync\(\)", text) and text.count("bulk_wait") == 1


@tile.jit(num_warps=4)
def from_rows_by_instructions(A, C):
    sA, sC = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), C.dtype, layout=tile.auto)
    for t in range(tile.program_id(0), C.shape[0] // 64, tile.num_programs(0)):
        other = tile.ptx.lop3.b32(t, 1, 0, 0x3C)  # t ^ 1
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(0, A.shape[1], 64), stages=2, warp_specialize=True):
            row = tile.ptx.shf.l.wrap.b32(0, other, 6)
            tile.copy_async(sA, A[row:row + 64, k:k + 64])
            acc = tile.dot(sA, sA, acc, trans_b=True)
        tile.store(sC, acc)
        tile.sync()
        tile.copy_async(C[t * 64:t * 64 + 64, 0:64], sC).wait(read=True)


def test_a_pure_ptx_instruction_does_not_block_moving_a_wait_and_may_compute_copy_positions():
    """According to the table's effects it is like the language's operators, also when copied to prefetched iterations."""
    a = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float16)
    c = np.zeros((256, 64), np.float32)
    from_rows_by_instructions.simulate(2, a, c).raise_first()
    for t in range(4):
        x = a[(t ^ 1) * 64:(t ^ 1) * 64 + 64].astype(np.float64)
        np.testing.assert_allclose(c[t * 64:t * 64 + 64], x @ x.T, rtol=1e-5, atol=1e-3)
    text = from_rows_by_instructions.compile(a, c, target="sm_90a").graph
    assert "ptx_pure" in text and not re.search(r"bulk_commit\(\)\s+bulk_wait", text) and text.count("bulk_wait") == 2
