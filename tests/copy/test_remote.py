"""Asynchronous stores and reductions to a peer's shared memory: on the simulator, as PTX, and their errors."""

from itertools import cycle

import numpy as np
import pytest
import tilejit as tile
from reduced import combined
from remote_kernels import STORED, TAKEN, gather_sums, one_number_each, pass_on, row_of_next
from tilejit.dtypes import dtype_of

pytestmark = pytest.mark.usefixtures("assembled_later")

RNG = np.random.default_rng(5)


def values(dtype: str, shape) -> np.ndarray:
    return RNG.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype_of(dtype).np)


@pytest.mark.parametrize("ranks, swizzle", list(zip(range(2, 9), cycle((0, 64, 128)))))
def test_every_cta_of_a_cluster_stores_registers_to_the_next(ranks, swizzle):
    a = values("float16", (2 * ranks, 16, 64))
    for seed in range(3):
        b = np.zeros_like(a)
        report = pass_on(ranks, swizzle).simulate((2 * ranks,), a, b, ROWS=16, COLUMNS=64, seed=seed)
        assert not report.findings, report
        assert (b == row_of_next(a, ranks)).all()


@pytest.mark.parametrize("dtype", STORED)
def test_every_dtype_is_stored_in_words_that_the_hardware_supports(dtype):
    a = values(dtype, (2, 8, 48))
    b = np.zeros_like(a)
    kernel = pass_on(2)
    kernel[2,](a, b, ROWS=8, COLUMNS=48)
    assert (b.view("u1") == row_of_next(a, 2).view("u1")).all()
    text = kernel.compile(a, b, ROWS=8, COLUMNS=48).ptx
    assert "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes." in text


@pytest.mark.parametrize("shape, words", [((8, 64), ".v4.b32"), ((32, 12), ".v2.b32"), ((3, 6), ".b32"), ((7, 3), ".b32")])
def test_stores_are_as_wide_as_a_thread_s_contiguous_elements(shape, words):
    a = values("float32", (2, *shape))
    b = np.zeros_like(a)
    kernel = pass_on(2)
    report = kernel.simulate((2,), a, b, ROWS=shape[0], COLUMNS=shape[1])
    assert not report.findings and (b == row_of_next(a, 2)).all()
    assert report.stats["bytes"]["registers -> shared of a peer"] == a.nbytes
    for target in ("sm_90a", "sm_100a", "sm_120a"):
        compiled = kernel.compile(a, b, ROWS=shape[0], COLUMNS=shape[1], target=target)
        assert "st.async" in compiled.ptx
    assert f"complete_tx::bytes{words} [" in compiled.ptx


@pytest.mark.parametrize("kind, dtype", [(kind, dtype) for kind in TAKEN for dtype in TAKEN[kind]])
def test_reductions_combine_element_by_element(kind, dtype):
    a, start = values(dtype, (6, 100)), values(dtype, 100)
    if kind in ("inc", "dec"):
        a[:] = 50
    kernel = gather_sums(3)
    for seed in range(2):
        c = np.zeros((2, 100), a.dtype)
        report = kernel.simulate((6,), a, start, c, KIND=kind, N=100, seed=seed)
        assert not report.findings, report
        for cluster in range(2):
            assert (c[cluster] == combined(kind, a[3 * cluster:3 * cluster + 3], start)).all()
    compiled = kernel.compile(a, start, c, KIND=kind, N=100)
    assert f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{kind}." in compiled.ptx


def test_scalars_are_stored_once_per_scope_or_by_each_thread():
    a = values("float32", (8, 33))
    b = np.zeros((8, 4, 33), np.float32)
    report = one_number_each.simulate((8,), a, b)
    assert not report.findings, report
    assert (b == a.reshape(2, 1, 4, 33).repeat(4, axis=1).reshape(8, 4, 33)).all()
    one_number_each.compile(a, b)


# Findings of the simulator.

@tile.jit(cluster=(2, 1, 1), num_warps=1)
def faulty(A, B, WAITS: tile.constexpr, BYTES: tile.constexpr):
    got = tile.alloc((32,), tile.float32)
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    if rank == 0:
        bar.arrive_expect_tx(BYTES)
    if rank == 1:
        tile.store_async(got.peer(0), tile.load(A[0:32]), mbar=bar)
    else:
        if WAITS:
            bar.wait(phase=0)
        tile.store(B[0:32], tile.load(got))


def test_reading_values_without_waiting_is_a_finding():
    a, b = np.ones(32, np.float32), np.zeros(32, np.float32)
    assert not faulty.simulate((2,), a, b, WAITS=True, BYTES=128).findings
    assert {f.kind for f in faulty.simulate((2,), a, b, WAITS=False, BYTES=128, seed=3).findings} & {"missing-wait", "race", "uninitialized-read"}


@pytest.mark.parametrize("nbytes, kind", [(64, "transaction-count"), (256, "deadlock")])
def test_a_wrong_announcement_is_a_finding(nbytes, kind):
    a, b = np.ones(32, np.float32), np.zeros(32, np.float32)
    kinds = [f.kind for f in faulty.simulate((2,), a, b, WAITS=True, BYTES=nbytes).findings]
    assert kinds and kinds[0] in (kind, "transaction-count")


@tile.jit(cluster=(2, 1, 1), num_warps=2)
def overwritten(A, B):
    got = tile.alloc((64,), tile.float32)
    bar = tile.mbarrier()
    bar.arrive_expect_tx(got.nbytes)
    tile.store(got, 1.0)                          # not ordered with the peer's store
    tile.store_async(got.peer(1 - tile.cta_rank()), tile.load(A[0:64]), mbar=bar)
    bar.wait(phase=0)
    tile.store(B[0:64], tile.load(got))


def test_an_own_store_concurrent_with_the_peer_s_is_a_race():
    report = overwritten.simulate((2,), np.ones(64, np.float32), np.zeros(64, np.float32))
    assert "race" in {f.kind for f in report.findings} | {f.kind for f in report.findings if f.kind == "missing-wait"}


# Announced bytes.

@tile.jit(cluster=(4, 1, 1), num_warps=1)
def announced(A, RANK: tile.constexpr, BYTES: tile.constexpr, DSMEM: tile.constexpr = False):
    got = tile.alloc((32,), tile.float32)
    mine = tile.alloc((32,), tile.float32)
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    to = (rank + 3) % 4 if RANK == "next" else rank ^ 2 if RANK == "xor" else rank // 2
    with tile.warp(0):
        bar.arrive_expect_tx(BYTES)
        if DSMEM:
            tile.copy_async(got.peer(to), mine, mbar=bar)
        else:
            tile.store_async(got.peer(to), tile.load(A[0:32]), mbar=bar)
    bar.wait(phase=0)


@pytest.mark.parametrize("dsmem", [False, True])
@pytest.mark.parametrize("rank", ["next", "xor"])
def test_bytes_that_every_cta_sends_to_another_one_must_be_those_announced(rank, dsmem):
    a = tile.ArraySpec((32,), "float32")
    announced.compile(a, RANK=rank, BYTES=128, DSMEM=dsmem)
    with pytest.raises(tile.CompilationError, match="64 bytes are announced, and the copies on this barrier transfer 128"):
        announced.compile(a, RANK=rank, BYTES=64, DSMEM=dsmem)


def test_bytes_that_several_ctas_send_to_one_are_checked_only_by_the_simulator():
    announced.compile(tile.ArraySpec((32,), "float32"), RANK="half", BYTES=256)


# Errors.

def compiled(line, target="sm_90a", cluster=(2, 1, 1)):
    text = f"def k(x, h):\n    s = tile.alloc((64, 8), x.dtype)\n    q = tile.alloc((64,), h.dtype)\n    bar = tile.mbarrier()\n    {line}\n"
    specs = tile.ArraySpec((64, 8), "float32"), tile.ArraySpec((64,), "float16")
    return tile.jit(source=text, num_warps=1).compile(*specs, target=target, cluster=cluster)


@pytest.mark.parametrize("line, words", [
    ("tile.store_async(s, 1.0, mbar=bar)",                              "writes to a region of a peer's shared memory, as "
                                                                        "buf.peer(rank)[i, 0:N] names it"),
    ("tile.store_async(x[0, 0:8], 1.0, mbar=bar)",                      "writes to a region of a peer's shared memory"),
    ("tile.store_async(s.peer(1), 1.0, mbar=3)",                        "mbar is one barrier"),
    ("tile.store_async(s.peer(1), 1.0, mbar=bar.peer(1))",              "mbar must be the CTA's own barrier"),
    ("tile.store_async(q.peer(1)[3], 1.0, mbar=bar)",                   "stores 4, 8 or 16 bytes a thread, and here a thread has 1 "
                                                                        "neighbouring element of float16"),
    ("tile.store_async(q.peer(1)[1:33], tile.zeros(32, tile.float16), mbar=bar)", "here a thread has 1 neighbouring element"),
    ("tile.store_async(s.peer(1)[tile.program_id(0), 0:8], 1.0, mbar=bar)", "the region must provably be inside the buffer: along dimension 0"),
    ("tile.reduce_async(s.peer(1), 1.0, 'add', mbar=bar)",              "reduce_async 'add' takes int32, uint32, int64, uint64, not float32"),
    ("tile.reduce_async(s.peer(1), 1.0, 'mul', mbar=bar)",              "kind is one of add, min"),
    ("if tile.thread_id() < 3:\n        tile.store_async(s.peer(1), 1.0, mbar=bar)", "store_async of a tile"),
])
def test_operations_that_the_hardware_lacks_are_refused_with_the_reason(line, words):
    with pytest.raises(tile.CompilationError) as error:
        compiled(line)
    assert words in str(error.value)


def test_a_target_without_clusters_is_refused():
    with pytest.raises(tile.CompilationError, match="needs sm_90|cluster"):
        compiled("tile.store_async(s.peer(0), 1.0, mbar=bar)", target="sm_80", cluster=None)
