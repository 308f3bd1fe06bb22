"""Raw copy instructions without a tensor map or with an im2col map: their effects, and what is found or refused."""

import numpy as np
import pytest
import tilejit as tile
from patch_kernels import reference_patches

from tests.cases import Case, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


@tile.jit(num_warps=2)
def by_threads(x, y, n):
    """Each of the first `n` threads copies 16 bytes to its own row of a swizzled tile with as many rows; arrivals on a barrier
    wait for them."""
    s = tile.alloc((64, 32), x.dtype, layout=tile.swizzled(x.dtype, (64, 32), 32))
    bar = tile.mbarrier(count=64)
    i = tile.thread_id()
    tile.store(s, tile.full((64, 32), 255, x.dtype))
    tile.sync()
    if i < n:
        tile.ptx.cp_async.ca.shared.global_.L2_128B._16.zfill(s[i, 16], x[i, 0], i % 17)
    tile.ptx.cp_async.mbarrier.arrive.noinc.shared_cta.b64(bar)
    bar.wait(phase=0)
    tile.copy(y[0:64, 0:32], s)


@tile.jit(num_warps=1)
def to_an_element(x, y):
    """A bulk copy to a position inside a swizzle goes to the address of that element."""
    s = tile.alloc((8, 32), x.dtype, layout=tile.swizzled(x.dtype, (8, 32), 128))
    bar = tile.mbarrier()
    tile.store(s, tile.zeros((8, 32), x.dtype))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(128)
        for r in tile.static_range(8):
            tile.ptx.cp_async.bulk.shared_cta.global_.mbarrier_complete_tx_bytes(s[r, 4 * r], x[r, 0], 16, bar)
    bar.wait(phase=0)
    tile.copy(y[0:8, 0:32], s)


@tile.jit(num_warps=1)
def as_signed(x, y):
    """A reduction uses the instruction's type, whatever the array's is."""
    s = tile.alloc((32,), x.dtype)
    tile.copy(s, x[0:32])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.ptx.cp_reduce.async_.bulk.global_.shared_cta.bulk_group.min.s32(y[0], s, 128)
        tile.ptx.cp_async.bulk.commit_group()
        tile.ptx.cp_async.bulk.wait_group(0)


@tile.jit(num_warps=1)
def counted(x, y):
    """A reduction into a peer's memory also uses the instruction's type."""
    s = tile.alloc((32,), x.dtype)
    bar = tile.mbarrier()
    me, i = tile.cta_rank(), tile.thread_id()
    tile.copy(s, x[0:32])
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
    tile.cluster_sync()
    tile.ptx.red.async_.relaxed.cluster.shared_cluster.mbarrier_complete_tx_bytes.inc.u32(s.peer(1 - me)[i], 7, bar.peer(1 - me))
    bar.wait(phase=0)
    tile.copy(y[me, 0:32], s)
    tile.cluster_sync()


@tile.jit(num_warps=1)
def patches_to_both(X, Y):
    """An im2col multicast with a map encoded at launch and a raw instruction, from the second CTA of a cluster."""
    x = tile.im2col(X, (3, 3), padding=1)
    m = tile.tensor_map(x[0:24, 0, 0, 0:32], swizzle=64)
    s = tile.alloc((24, 32), X.dtype, layout=tile.swizzled(X.dtype, (24, 32), 64))
    bar = tile.mbarrier()
    with tile.elect():
        m.prefetch()
        bar.arrive_expect_tx(s.nbytes)
    tile.cluster_sync()
    if tile.cta_rank() == 1:
        with tile.elect():
            tile.ptx.cp_async.bulk.tensor._4d.shared_cluster.global_.im2col.mbarrier_complete_tx_bytes.multicast_cluster(s, m, (0, -1, 0, 0), bar, (2, 1), 3)
    bar.wait(phase=0)
    tile.copy(Y[tile.program_id(0), 0:24, 0:32], s)


def cases():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 255, (64, 16)).astype(np.uint8)
    for n in (64, 40, 0):
        want = np.full((64, 32), 255, np.uint8)
        want[:n, 16:] = np.where(np.arange(16) < (np.arange(64) % 17)[:, None], x, 0)[:n]
        yield Case(f"by {n} threads", by_threads, (1,), (x, np.zeros_like(want), n), {1: want})
    x, want = rng.random((8, 4)).astype(np.float32), np.zeros((8, 32), np.float32)
    for r in range(8):
        want[r, 4 * r:4 * r + 4] = x[r]
    yield Case("to an element", to_an_element, (1,), (x, np.ones_like(want)), {1: want})
    x, y = (rng.integers(0, 1 << 32, 32).astype(np.uint32) for _ in range(2))
    yield Case("as signed", as_signed, (1,), (x, y), {1: np.minimum(x.view(np.int32), y.view(np.int32)).view(np.uint32)})
    x = np.arange(-16, 16).astype(np.int32)
    want = np.stack([np.where(x.view(np.uint32) >= 7, 0, x + 1)] * 2).astype(np.int32)
    yield Case("counted as unsigned", counted, (2,), (x, np.ones_like(want)), {1: want}, dict(cluster=(2, 1, 1)))
    x = rng.random((2, 4, 6, 32)).astype(np.float16)
    want = np.stack([reference_patches(x, (3, 3), 1, 1, 1)[5, 6:30]] * 2)
    yield Case("patches to both", patches_to_both, (2,), (x, np.zeros_like(want)), {1: want}, dict(cluster=(2, 1, 1)))


def test_raw_copies_use_the_addresses_of_elements_and_the_instruction_s_types():
    on_simulator(cases())


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_raw_copies_use_the_addresses_of_elements_and_the_instruction_s_types_on_the_gpu():
    on_gpu(cases())


@tile.jit(num_warps=1)
def some_bytes(x, y, mask):
    """Of each 16 bytes those of a byte mask; the second CTA copies the others."""
    s = tile.alloc((64,), x.dtype)
    me = tile.program_id(0)
    tile.copy(s, x[me, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.ptx.cp_async.bulk.global_.shared_cta.bulk_group.cp_mask(y[0, 0], s, 64, tile.uint16(tile.where(me == 0, mask, 65535 - mask)))
        tile.ptx.cp_async.bulk.commit_group()
        tile.ptx.cp_async.bulk.wait_group(0)


def test_a_bulk_copy_with_a_byte_mask_leaves_the_other_bytes():
    """Two CTAs share a run. Only Blackwell has the instruction."""
    x, y = np.random.default_rng(4).integers(0, 256, (2, 64)).astype(np.uint8), np.zeros((1, 64), np.uint8)
    some_bytes.simulate((2,), x, y, 0x5a3c, target="sm_100a").raise_first()
    first = (0x5a3c >> np.arange(64) % 16 & 1).astype(bool)
    assert (y[0] == np.where(first, x[0], x[1])).all() and some_bytes.compile(x, y, 1, target="sm_100a").cubin


# -- findings ----------------------------------------------------------------------------------------------------------------

def found(body: str) -> list[tuple[str, str]]:
    """The simulator's findings for a kernel with a byte array `x`, a 512-byte buffer `s`, and images `z`."""
    head = ["def k(x, y, z):", "s = tile.alloc((512,), tile.uint8)", "bar = tile.mbarrier()", "i = tile.thread_id()"]
    x, z = np.zeros(1024, np.uint8), np.zeros((2, 4, 6, 32), np.float16)
    report = tile.jit(source="\n    ".join(head + body.splitlines()) + "\n", num_warps=1).simulate((1,), x, np.zeros(512, np.uint8), z)
    return [(f.kind, f.message) for f in report.findings]


BRING = "tile.ptx.cp_async.ca.shared.global_._16"
PATCH = "tile.ptx.cp_async.bulk.tensor._4d.shared_cta.global_"


@pytest.mark.parametrize("body, kind, words", [
    (f"{BRING}(s[16 * i], x[16 * i])\ntile.store(y[i], tile.load(s[16 * i]))", "missing-wait", "cp.async"),
    ("tile.store(y[i], tile.ptx.ld.global_.v4.b8(x[4 * i + 1])[0])", "misaligned", "ld.global.v4.b8 is given an address that is no multiple of 4"),
    (f"{BRING}(s[16 * i - i // 31 * 4], x[16 * i])", "misaligned", "writes shared memory at an address that is no multiple of 16"),
    (f"{BRING}(s[16 * i], x[16 * i + 4])", "misaligned", "reads global memory at an address that is no multiple of 16"),
    (f"{BRING}(s[32 * i], x[16 * i])", "out-of-bounds", "leaves the buffer of 512 bytes that it writes to"),
    (f"{BRING}(s[16 * i], x[64 * i])", "out-of-bounds", "cp.async reads outside of x"),
    (f"{BRING}.zfill(s[16 * i], x[16 * i], i)", "out-of-bounds", "cp.async of 16 bytes is given a larger source size, 31"),
    (f"m = tile.tensor_map(tile.im2col(z, (1, 1))[0:16, 0, 0, 0:32])\nwith tile.elect():\n    {PATCH}.tile.mbarrier_complete_tx_bytes(s, "
     "m, (0, 0, 0, 0), bar)",
     "descriptor", "a copy of a tile takes a map of boxes"),
    ("m = tile.tensor_map(tile.im2col(z, (1, 1))[0:16, 0, 0, 0:32])\nwith tile.elect():\n    "
     f"{PATCH}.im2col.mbarrier_complete_tx_bytes(s, m, (0, 0, 0, 0), bar, (0, 0))",
     "out-of-bounds", "a tensor copy of 1024 bytes leaves the buffer of 512 bytes in shared memory"),
    (f"m = tile.tensor_map(z[0:1, 0:1, 0:4, 0:32])\nwith tile.elect():\n    {PATCH}.im2col.mbarrier_complete_tx_bytes(s, m, (0, 0, 0, "
     "0), bar, (0, 0))",
     "descriptor", "an im2col copy takes a map that was encoded for it"),
    ("m = tile.tensor_map(tile.im2col(z, (3, 3), padding=1)[0:8, 0, 0, 0:32])\nwith tile.elect():\n    "
     "tile.ptx.cp_async.bulk.tensor._4d.global_.shared_cta.im2col_no_offs.bulk_group(m, (0, 0, 0, 0), s)", "descriptor",
     "an im2col store's pixels must be inside the images"),
    ("m = tile.tensor_map(tile.im2col(z, (1, 1))[0:8, 0, 0, 0:32])\nwith tile.elect():\n    "
     "tile.ptx.cp_async.bulk.prefetch.tensor._4d.L2.global_.im2col(m, (4, 0, 0, 0), (0, 0))", "misaligned", "the innermost coordinate"),
])
def test_a_wrong_raw_copy_is_a_finding(body, kind, words):
    findings = found(body)
    assert any(k == kind and words in message for k, message in findings), findings


TOLD = "mbarrier_complete_tx_bytes"


@pytest.mark.parametrize("body, nbytes", [(f"tile.ptx.st.async_.weak.shared_cluster.{TOLD}.v2.b32(s.peer(1 - me)[4], (7, 8), {{bar}})", 8),
                                          (f"tile.ptx.red.async_.relaxed.cluster.shared_cluster.{TOLD}.add.u32(s.peer(1 - me)[4], 7, {{bar}})", 4),
                                          (f"tile.ptx.cp_async.bulk.shared_cluster.shared_cta.{TOLD}(s.peer(1 - me)[0], s[32], 16, {{bar}})", 16)])
def test_a_raw_copy_to_a_peer_must_complete_on_the_peer_s_barrier(body, nbytes):
    """Any other barrier would count bytes that its CTA never receives."""
    head = ["def k(x, y):", "s = tile.alloc((64,), x.dtype)", "bar = tile.mbarrier()", "me = tile.cta_rank()", "tile.copy(s, x[0:64])",
            "tile.fence_proxy_async()",
            "with tile.elect():", f"    bar.arrive_expect_tx({nbytes})", "tile.cluster_sync()", "with tile.elect():"]
    tail = ["bar.wait(phase=0)", "tile.copy(y[me, 0:64], s)", "tile.cluster_sync()"]
    x = np.arange(64).astype(np.uint32)
    for bar, wrong in (("bar.peer(1 - me)", False), ("bar", True), ("bar.peer(me)", True)):
        k = tile.jit(source="\n    ".join([*head, f"    {body.format(bar=bar)}", *tail]) + "\n", num_warps=1, cluster=(2, 1, 1))
        findings = [(f.kind, f.message) for f in k.simulate((2,), x, np.zeros((2, 64), np.uint32)).findings]
        assert any(kind == "transaction-count" and "give that CTA's barrier" in message for kind, message in findings) == wrong == bool(findings), findings


def test_a_vector_operand_of_an_instruction_must_be_contiguous():
    @tile.jit(num_warps=1)
    def every_second(x, y):
        tile.store(y[tile.thread_id()], tile.ptx.ld.global_.v2.b32(x[2 * tile.thread_id()])[1])

    x, y = np.arange(128).astype(np.uint32), np.zeros(32, np.uint32)
    every_second.simulate(1, x[:64], y).raise_first()
    assert (y == x[1:64:2]).all()
    with pytest.raises(tile.SimulationError, match="on contiguous elements, and these are not"):
        every_second.simulate(1, x[::2], y)


# -- errors ------------------------------------------------------------------------------------------------------------------

def refused(region: str, options: str = "", after: str = "", target: str = "sm_90a", dtype: str = "float16") -> str:
    lines = ["def k(X):", "s = tile.alloc((64, 32), X.dtype)", "bar = tile.mbarrier()", f"m = tile.tensor_map({region}{options})", after]
    with pytest.raises(tile.CompilationError) as error:
        tile.jit(source="\n    ".join(lines) + "\n", num_warps=1).compile(tile.ArraySpec((2, 30, 40, 64), dtype), target=target)
    return str(error.value)


@pytest.mark.parametrize("region, options, words", [
    ("tile.im2col(X, (3, 3))", "", "index the matrix, as in x[0:64, 0, 0, 0:32]"),
    ("tile.im2col(X, (3, 3))[8:72, 0, 0, 0:32]", "", "begin at pixel 0, place 0 of the filter and channel 0"),
    ("tile.im2col(X, (3, 3))[0:64, 0, 1, 0:32]", "", "begin at pixel 0, place 0 of the filter and channel 0"),
    ("tile.im2col(X, (3, 3))[0:64, 0, 0, 32:64]", "", "begin at pixel 0, place 0 of the filter and channel 0"),
    ("tile.im2col(X, (3, 3))[0:2000, 0, 0, 0:32]", "", "an im2col copy has 1 to 1024 pixels, along w128 it has 128, and these are 2000"),
    ("tile.im2col(X, (3, 3))[0:64, 0, 0, 0:32]", ", swizzle=32", "a multiple of 16 bytes, at most 32 here, and 32 of float16 are 64"),
    ("tile.im2col(X, (3, 3))[0:64, 0, 0, 0:12]", "", "a multiple of 16 bytes, at most 512 here, and 12 of float16 are 24"),
    ("tile.im2col(X, (3, 3), stride=9)[0:64, 0, 0, 0:32]", "", "a tensor map does not hold this filter: a step of 9"),
    ("tile.im2col(X, (3, 3), padding=200)[0:64, 0, 0, 0:32]", "", "a tensor map does not hold this filter: a corner 200 elements before "
                                                                  "the first element"),
    ("tile.im2col(X, (3, 3), along='w')[0:64, 0, 0, 0, 0:32]", ", swizzle=64", "a walk along w needs sm_100a or sm_103a, and this is sm_90a"),
    ("tile.im2col(X, (3, 3))[0:64, 0, 0, 0:32]", ", fill='none'", "fill is 0, or"),
    ("tile.im2col(X, (3, 3))[0:64, 0, 0, 0:32]", ", edit='shared'", "give slot="),
])
def test_an_invalid_explicit_im2col_map_is_refused_with_the_reason(region, options, words):
    assert words in refused(region, options)


@pytest.mark.parametrize("after, words", [
    ("tile.copy_async(s, m[0:64, 0:32], mbar=bar)", "index the matrix of the images in copy_async"),
    ("m.seed()", "seed is for a map that the kernel makes"),
    ("tile.ptx.tensormap.replace.tile.box_dim.global_.b1024.b32(m, 0, 16)", "this one is a parameter")])
def test_unsupported_uses_of_an_explicit_im2col_map_are_refused_with_the_reason(after, words):
    assert words in refused("tile.im2col(X, (3, 3))[0:64, 0, 0, 0:32]", "", after)


def test_an_im2col_map_in_w_mode_needs_a_swizzle_and_in_w128_mode_128_pixels():
    assert "a tensor map for a walk along w has a swizzle" in refused("tile.im2col(X, (3, 3), along='w')[0:64, 0, 0, 0, 0:32]", target="sm_100a")
    assert "along w128 it has 128, and these are 64" in refused("tile.im2col(X, (3, 3), along='w128')[0:64, 0, 0, 0, 0:32]", ", swizzle=64",
                                                                target="sm_100a")
