"""Explicit tensor maps: encoded at launch; and made, rebound, published and fenced by the kernel."""

import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st
from named_map_kernels import (
    EVERY,
    across_the_grid,
    aligned,
    by_token,
    group,
    grouped,
    in_a_cluster,
    of_addresses,
    of_arrays,
    of_boxes,
    of_rank,
    rounded,
    rounded_case,
    through,
    through_case,
    to_both,
)
from tilejit.dtypes import dtype_of
from values import same

RNG = np.random.default_rng(7)
SHAPES = [(5, 64), (33, 128), (64, 72), (1, 8), (100, 200), (32, 64)]
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def lines(compiled, word: str) -> list[str]:
    return [line.strip() for line in compiled.ptx.splitlines() if word in line]


def clean(kernel, grid, *args, **options):
    report = kernel.simulate(grid, *args, **options)
    assert not report.findings, report
    return report


# -- maps encoded at launch ------------------------------------------------------------------------------------------------

@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("dtype, swizzle", EVERY)
def test_copies_with_an_explicit_map_support_every_dtype_and_swizzle(dtype, swizzle):
    a, b, width = through_case(dtype)
    clean(through, (3, 3), a, b, BM=16, BN=width, SWIZZLE=swizzle)
    assert same(a, b)
    compiled = through.compile(a, b, BM=16, BN=width, SWIZZLE=swizzle)
    assert [c.variant for c in compiled.copies] == ["tma", "tma"]
    elements, per = dtype_of(dtype).packing
    tile_row = width * dtype_of(dtype).nbytes * per // elements
    row = min(swizzle or tile_row, tile_row)
    assert [m.box for m in compiled.tensor_maps] == [(row // dtype_of(dtype).nbytes, 16)] * 2
    assert compiled.copies[0].instructions == tile_row // row
    assert [m.origin for m in compiled.tensor_maps] == ["host", "host"]


def test_an_explicit_map_fills_out_of_bounds_elements_as_requested():
    kernel = tile.jit(source="def k(A, B):\n    s = tile.alloc((8, 64), A.dtype)\n    bar = tile.mbarrier()\n    m = "
                             "tile.tensor_map(A[0:8, 0:64], fill='nan')\n    with tile.elect():\n        "
                             "bar.arrive_expect_tx(s.nbytes)\n        tile.copy_async(s, m[-2:6, 32:96], mbar=bar)\n    "
                             "bar.wait(phase=0)\n    tile.store(B[0:8, 0:64], tile.load(s))\n", num_warps=1)
    a, b = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    clean(kernel, (1,), a, b)
    assert np.isnan(b[:2]).all() and np.isnan(b[:, 32:]).all() and (b[2:, :32] == 1).all()


@pytest.mark.parametrize("edit", [None, "global", "shared"])
def test_an_explicit_map_rounds_to_tf32_to_nearest_even(edit):
    a, nearest, out = rounded_case()
    clean(rounded, 1, a, aligned((1, 128)), out, EDIT=edit)
    assert same(out[:12], nearest) and not out[12:].any()
    compiled = rounded.compile(a, aligned((1, 128)), out, EDIT=edit)
    assert {m.dtype for m in compiled.tensor_maps} == {"tfloat32"} and compiled.cubin


def test_a_box_extent_above_256_is_split():
    a = RNG.random((600, 64)).astype(np.float32)
    b = np.zeros_like(a)
    clean(through, (2, 1), a, b, BM=512, BN=32, SWIZZLE=0)
    compiled = through.compile(a, b, BM=512, BN=32, SWIZZLE=0)
    assert compiled.tensor_maps[0].box == (32, 256) and compiled.copies[0].instructions == 2
    assert (b[:, :32] == a[:, :32]).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_region_is_copied_by_the_boxes_of_its_map_exactly_once(data):
    """Random ranks, boxes, regions, starts, swizzles and dtypes: exactly the elements of the region are loaded and stored."""
    dtype = data.draw(st.sampled_from(["uint8", "float16", "float32", "int64"]))
    itemsize, rank = np.dtype(dtype).itemsize, data.draw(st.integers(1, 5))
    swizzle = data.draw(st.sampled_from([0, 32, 64, 128])) if rank == 2 else 0
    row = swizzle // itemsize if swizzle else data.draw(st.sampled_from([16, 32, 48]))
    box = tuple(data.draw(st.sampled_from([1, 2, 3])) for _ in range(rank - 2)) + ((8,) if rank > 1 else ()) + (row,)
    # Boxes repeat along the outermost dimension, or along rows of the swizzle's width, where their shared memory is contiguous.
    times = [1] * rank
    times[data.draw(st.sampled_from([0, rank - 1])) if swizzle else 0] = data.draw(st.integers(1, 3))
    extents = tuple(n * k for n, k in zip(box, times))
    assume(np.prod(extents) * itemsize <= 200 << 10)  # shared memory
    shape = tuple(n + data.draw(st.integers(0, 3)) for n in extents[:-1]) + (extents[-1] + 16 * data.draw(st.integers(0, 2)),)
    starts = tuple(data.draw(st.integers(0, 4)) for _ in range(rank - 1)) + (16 * data.draw(st.integers(0, 2)),)
    a = RNG.integers(1, 100, shape).astype(dtype)
    b = np.zeros_like(a)
    kernel = of_boxes(rank, box, extents, swizzle)
    if max(times) > 1 and np.prod(box) * itemsize % 128:
        with pytest.raises(tile.DispatchError, match="boxes that begin at multiples of 128 bytes in shared memory"):
            kernel.simulate((1,), a, b, *starts)
        return
    clean(kernel, (1,), a, b, *starts)
    want, at = np.zeros_like(a), tuple(slice(i, i + n) for i, n in zip(starts, extents))
    want[at] = a[at]
    assert (b == want).all()


def test_an_explicit_map_can_be_used_for_multicasts_and_reductions():
    a, b = RNG.integers(0, 9, (8, 128)).astype(np.float32), np.ones((8, 64), np.float32)
    clean(to_both, (2,), a, b)
    assert (b == 1 + 2 * a[:, 64:]).all()
    text = to_both.compile(a, b).ptx
    assert "complete_tx::bytes.multicast::cluster.L2::cache_hint" in text and "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile" in text


# -- maps made by the kernel -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_one_kernel_loads_many_arrays_of_different_shapes(dtype, edit):
    shapes = [(r, -(-c // 16) * 16) for r, c in SHAPES]
    storage, table, parts = group(dtype, shapes)
    template, slots, out = aligned((64, 64), dtype), aligned((len(shapes), 128)), np.zeros((len(shapes), 128, 256), dtype)
    row = 128 // np.dtype(dtype).itemsize
    for seed in range(2):
        clean(grouped, (len(shapes),), template, storage, table, slots, out, BM=32, BN=row, EDIT=edit, seed=seed)
        for k, part in enumerate(parts):
            assert (out[k, :part.shape[0], :part.shape[1]] == part).all()
            rows, columns = -(-part.shape[0] // 32) * 32, -(-part.shape[1] // row) * row
            assert not out[k, part.shape[0]:rows].any() and not out[k, :, part.shape[1]:columns].any()  # zeros, not the neighbouring array


@pytest.mark.parametrize("edit", ["global", "shared"])
def test_one_kernel_stores_to_many_arrays_of_different_shapes(edit):
    storage, table, parts = group("float16", SHAPES)
    storage[:] = 0
    full = np.zeros((len(SHAPES), 128, 256), np.float16)
    for k, part in enumerate(parts):
        full[k, :part.shape[0], :part.shape[1]] = part
        full[k, part.shape[0]:] = -1                # elements outside the array are dropped
    clean(grouped, (len(SHAPES),), aligned((64, 64), np.float16), storage, table, aligned((len(SHAPES), 128)), full, BM=32, BN=64,
          EDIT=edit, STORE=True)
    for (start, rows, columns), part in zip(table, parts):
        assert (storage[start:start + rows * columns].reshape(rows, columns) == part).all()


def test_a_map_can_be_bound_to_one_argument_after_the_other():
    arrays = [RNG.random(shape).astype(np.float32) for shape in ((8, 32), (20, 64), (3, 16))]
    arrays[1] = arrays[1][:, :40]                   # rows with a gap between them
    out = np.zeros((3, 8, 32), np.float32)
    clean(of_arrays, (1,), *arrays, aligned((1, 128)), out, BM=8, BN=32)
    for k, a in enumerate(arrays):
        want = np.zeros((8, 32), np.float32)
        want[:min(8, a.shape[0]), :min(32, a.shape[1])] = a[:8, :32]
        assert (out[k] == want).all()


def test_a_map_can_be_bound_to_an_address():
    first, second = aligned((10, 32), np.float32), aligned((4, 64), np.float32)
    first[:], second[:] = RNG.random((10, 32)), RNG.random((4, 64))
    addresses = np.array([first.ctypes.data, second[:, 16:].ctypes.data], np.uint64)
    shapes = np.array([(10, 32, 32), (4, 48, 64)], np.int32)
    out = np.zeros((2, 8, 32), np.float32)
    clean(of_addresses, (2,), aligned((8, 32), np.float32), addresses, shapes, aligned((2, 128)), out, first, second, N=32)
    assert (out[0] == first[:8]).all() and (out[1, :4] == second[:, 16:48]).all() and not out[1, 4:].any()


def test_a_map_bound_to_an_address_refers_to_the_argument_that_contains_all_its_elements():
    """Not to a view of that array with shorter rows, which is an earlier argument."""
    whole = aligned((4, 32), np.float32)
    whole[:] = RNG.random((4, 32))
    addresses, shapes, out = np.array([whole.ctypes.data], np.uint64), np.array([(4, 32, 32)], np.int32), np.zeros((1, 8, 32), np.float32)
    clean(of_addresses, (1,), aligned((8, 32), np.float32), addresses, shapes, aligned((1, 128)), out, whole[:, :28], whole, N=32)
    assert (out[0, :4] == whole).all() and not out[0, 4:].any()


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_a_rebind_edits_the_address_then_every_dimension_then_the_strides(rank, edit):
    small, large = aligned((1,) * max(rank - 2, 0) + (4, 32)[-rank:], np.float32), aligned((3,) * max(rank - 2, 0) + (6, 96)[-rank:], np.float32)
    large[:] = RNG.random(large.shape)
    out = np.zeros((4, 32), np.float32)
    kernel = of_rank(rank, edit)
    clean(kernel, (1,), small, large, aligned((1, 128)), out)
    want = large[(1,) * (rank - 2)][:4, 32:64] if rank > 1 else large[None, 32:64]
    assert (out[:len(want)] == want).all()
    for target in TARGETS:
        compiled = kernel.compile(small, large, aligned((1, 128)), out, target=target)
        fields = [re.match(r"tensormap\.replace\.tile\.(\w+)\.(\S+)\.b1024\.b\d\d \[.*?\],? ?(\d)?", line)
                  for line in lines(compiled, "tensormap.replace")]
        assert len(fields) == 2 * rank
        space = "global" if edit == "global" else "shared::cta"
        assert [(f[1], f[2], f[3]) for f in fields] == [("global_address", space, None), *(("global_dim", space, str(d)) for d in range(rank)),
                                                       *(("global_stride", space, str(d)) for d in range(rank - 1))]
    assert [m.origin for m in compiled.tensor_maps] == ["device", "host"]
    assert len(lines(compiled, "tensormap.cp_fenceproxy")) == (edit == "shared")
    assert len(lines(compiled, "fence.proxy.tensormap::generic.acquire.cta")) == 1
    assert len(lines(compiled, "st.global.v4.b32" if edit == "global" else "st.shared::cta.v4.b32")) >= 8  # all 128 bytes


def test_a_token_waits_for_a_copy_with_a_map_made_by_the_kernel():
    a, out = aligned((24, 64), np.float32), np.zeros((24, 64), np.float32)
    a[:] = RNG.random((24, 64))
    for seed in range(3):
        clean(by_token, (1,), a, aligned((1, 128)), out, seed=seed)
        assert (out == a).all()
    assert by_token.compile(a, aligned((1, 128)), out).cubin


@pytest.mark.parametrize("edit", ["global", "shared"])
def test_all_ctas_of_a_cluster_copy_with_the_map_that_one_has_edited(edit):
    template, a = aligned((8, 64), np.float32), aligned((32, 64), np.float32)
    a[:] = RNG.random((32, 64))
    out = np.zeros((3, 32, 64), np.float32)
    for seed in range(3):
        clean(in_a_cluster, (12,), template, a, aligned((3, 128)), out, RELEASE="cluster", ACQUIRE="cluster", EDIT=edit, seed=seed)
        assert (out == a).all()


def test_a_flag_publishes_a_map_to_the_grid():
    template, a = aligned((8, 64), np.float32), aligned((32, 64), np.float32)
    a[:] = RNG.random((32, 64))
    out = np.zeros((32, 64), np.float32)
    clean(across_the_grid, (4,), template, a, aligned((1, 128)), np.zeros(1, np.int32), out, SCOPE="gpu")
    assert (out == a).all()


# -- findings of the simulator ---------------------------------------------------------------------------------------------

def faulty(body: str, **options):
    """The kinds and messages of the findings of a kernel with a slot `m`, arrays A, B and a buffer `s`."""
    head = ("def k(A, B, slots, out, z):\n    s = tile.alloc((8, 64), A.dtype)\n    bar = tile.mbarrier()\n"
            f"    m = tile.tensor_map(A[0:8, 0:64], slot=slots[0, 0:128]{options.pop('more', '')})\n")
    copy = "bar.arrive_expect_tx(s.nbytes); tile.copy_async(s, m[0:8, 0:64], mbar=bar); bar.wait(phase=0)"
    text = head + "\n".join("    " + line for line in body.replace("COPY", copy).splitlines()) + "\n"
    kernel = tile.jit(source=text, num_warps=options.pop("num_warps", 2))
    a, b = aligned((8, 64), np.float32), aligned((8, 64), np.float32)
    report = kernel.simulate((1,), a, b, aligned((1, 128)), np.zeros((8, 64), np.float32), 0, **options)
    return [(f.kind, f.message) for f in report.findings]


GOOD = "m.seed(); m.rebind(B); m.fence_release('cta'); m.fence_acquire('cta'); COPY"


def test_a_correctly_fenced_use_has_no_findings():
    assert faulty(f"with tile.elect():\n    {GOOD}") == []


@pytest.mark.parametrize("body, kind, words", [
    ("with tile.elect():\n    m.seed(); m.rebind(B); m.fence_release('cta'); COPY",             "missing-proxy-fence",
     "without .fence_acquire(scope) after its edit at line 6"),
    ("with tile.elect():\n    m.seed(); m.rebind(B); m.fence_acquire('cta'); COPY",             "missing-proxy-fence",
     "has not released it: it must call .fence_release(scope)"),
    ("with tile.elect():\n    m.seed(); m.fence_release('cta'); m.fence_acquire('cta'); m.rebind(B); m.fence_release('cta'); COPY",
     "missing-proxy-fence", "without .fence_acquire(scope)"),
    ("with tile.elect():\n    m.fence_acquire('cta'); COPY",                                    "descriptor", "that nothing has written"),
    ("with tile.elect():\n    m.rebind(B); m.fence_release('cta'); m.fence_acquire('cta'); COPY", "descriptor", "a tensor map that was never seeded is rebound"),
    ("with tile.thread(0):\n    m.seed(); m.rebind(B); m.fence_release('cta')\ntile.sync()\nwith tile.thread(32):\n    "
     "m.fence_acquire('cta')\nwith tile.thread(0):\n    COPY",
     "missing-proxy-fence", "that only other threads have acquired, and nothing orders it after them"),
    ("with tile.thread(0):\n    m.seed(); m.rebind(B)\ntile.sync()\nwith tile.thread(32):\n    m.fence_release('cta'); m.fence_acquire('cta'); COPY",
     "missing-proxy-fence", "has not released it: it must call .fence_release(scope)"),
    ("with tile.thread(0):\n    m.seed(); m.fence_release('cta')\nwith tile.thread(32):\n    m.seed(); m.fence_release('cta')",  "race", "slots"),
    ("if tile.thread_id() < 2:\n    m.seed()",                                                  "race",
     "2 threads of one CTA edit one tensor map at the same time"),
    ("with tile.elect():\n    m.seed(); m.rebind(B[0, 0], shape=(8 + z, 128 + z)); m.fence_release('cta')", "out-of-bounds", "that reach byte"),
    ("with tile.elect():\n    m.seed(); m.rebind(B[0, 0], shape=(z, 64)); m.fence_release('cta')", "descriptor", "0 elements along its dimension 1"),
    ("with tile.elect():\n    m.seed(); m.rebind(B[0, 0], shape=(2, 2), strides=(z + 3, 1)); m.fence_release('cta')", "descriptor",
     "a stride of 12 bytes"),
    ("with tile.elect():\n    m.seed(); m.rebind(B[0, z + 1], shape=(2, 16)); m.fence_release('cta')", "misaligned", "is no multiple of 16 bytes"),
    ("with tile.elect():\n    m.seed(); m.rebind(tile.int64(z) + 4096, shape=(2, 16)); m.fence_release('cta')", "descriptor",
     "the address 0x1000, which is in no array"),
    ("with tile.elect():\n    m.seed(); m.fence_release('cta'); m.fence_acquire('cta')\n    bar.arrive_expect_tx(s.nbytes)\n    "
     "tile.copy_async(s, m[0:8, 0:64], mbar=bar)\n    m.rebind(B)\n    bar.wait(phase=0)",
     "missing-wait", "edited while the tensor load at line 8, which reads it, has not been waited for"),
])
def test_an_unfenced_or_wrong_use_is_a_finding(body, kind, words):
    found = faulty(body)
    assert any(k == kind and words in message for k, message in found), found


def test_after_the_acquire_and_a_barrier_other_threads_may_copy():
    assert faulty("with tile.thread(0):\n    m.seed(); m.rebind(B); m.fence_release('cta'); m.fence_acquire('cta')\ntile.sync()\nwith "
                  "tile.thread(32):\n    COPY") == []


@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("release, acquire, word", [("cta", "cluster", "released"), ("cluster", "cta", "acquired"), ("cta", "cta", "released")])
def test_a_fence_scope_too_narrow_for_the_cluster_is_a_finding(release, acquire, word, edit):
    template, a = aligned((8, 64), np.float32), aligned((32, 64), np.float32)
    report = in_a_cluster.simulate((4,), template, a, aligned((1, 128)), np.zeros((1, 32, 64), np.float32), RELEASE=release,
                                   ACQUIRE=acquire, EDIT=edit)
    assert {f.kind for f in report.findings} == {"missing-proxy-fence"}
    assert f"was {word} for 'cta' only: scope 'cluster' is needed" in report.findings[0].message


def test_a_fence_scope_too_narrow_for_the_grid_is_a_finding():
    template, a = aligned((8, 64), np.float32), aligned((32, 64), np.float32)
    report = across_the_grid.simulate((4,), template, a, aligned((1, 128)), np.zeros(1, np.int32), np.zeros((32, 64), np.float32), SCOPE="cluster")
    assert any(f.kind == "missing-proxy-fence" and "scope 'gpu' is needed" in f.message for f in report.findings)


# -- errors ----------------------------------------------------------------------------------------------------------------

def compiled(body: str, target="sm_90a", slots=None, **options):
    text = "def k(A, B, H, slots, x):\n    s = tile.alloc((8, 64), A.dtype)\n    bar = tile.mbarrier()\n" + "".join(f"    {line}\n" for line in body.splitlines())
    f = lambda shape, dtype="float32", **more: tile.ArraySpec(shape, dtype, **more)
    specs = f((16, 64)), f((4, 16, 64)), f((16, 64), "float16"), slots or f((4, 128), "uint8"), f((64,))
    return tile.jit(source=text, num_warps=options.pop("num_warps", 2)).compile(*specs, target=target, **options)


MAP = "m = tile.tensor_map(A[0:8, 0:64], slot=slots[1, 0:128])\n"


@pytest.mark.parametrize("body, words", [
    (MAP + "m.seed()\nn = tile.load(x[0:1])\nm.rebind(A[0, 0], shape=(8, tile.cta_rank() + 3))\ntile.bulk_commit()\nwith tile.elect():\n "
           "   tile.copy_async(m[0:8, 0:64], s)",
     "copies store by this map, and a store clips rows in steps of 16 bytes: its last dimension must be known to be a multiple of 4 elements"),
    ("m = tile.tensor_map(A)",                                      "is made from a region of an array that begins at 0"),
    ("m = tile.tensor_map(s[0:8, 0:64])",                           "is made from a region of an array"),
    ("m = tile.tensor_map(A[1:9, 0:64])",                           "its region gives the box, and must begin at 0"),
    ("m = tile.tensor_map(A[0:8, 0:3])",                            "rows of a tensor map's box are a multiple of 16 bytes, and 3 "
                                                                    "elements of float32 are not"),
    ("m = tile.tensor_map(A[0:8, 0:64], swizzle=16)",               "swizzle is 0, 32, 64 or 128 bytes, not 16"),
    ("m = tile.tensor_map(A[0:8, 0:64], fill=3)",                   'fill is 0, or "nan"'),
    ("m = tile.tensor_map(A[0:8, 0:64], l2_promotion=1)",           "l2_promotion is 0, 64, 128 or 256 bytes"),
    ("m = tile.tensor_map(A[0:8, 0:64], precision='bf16')",         'precision is "tf32", of a map of float32, or None, not \'bf16\' for float32'),
    ("m = tile.tensor_map(H[0:8, 0:64], precision='tf32')",         "not 'tf32' for float16"),
    ("m = tile.tensor_map(A[0:8, 0:64], precision='tf32')\ntile.copy_async(m[0:8, 0:64], s)", "a map that rounds to TF32 on loads only"),
    ("m = tile.tensor_map(A[0:8, 0:64], edit='shared')",            "is published to global memory, where copies read it: give slot="),
    ("m = tile.tensor_map(A[0:8, 0:64], slot=s[0, 0:32])",          "a slot is 128 bytes of global memory, as in slots[i, 0:128] of uint8"),
    ("m = tile.tensor_map(A[0:8, 0:64], slot=slots[0, 0:64])",      "this region has 64 bytes"),
    ("m = tile.tensor_map(A[0:8, 0:64], slot=slots[0, 32:160])",    "is aligned to 128 bytes, and dimension 1 of this one is not known "
                                                                    "to step in multiples of them"),
    ("m = tile.tensor_map(A[0:8, 0:64])\nm.rebind(A)",              "this one is a parameter, which the launch encodes and nothing may "
                                                                    "write; give tile.tensor_map a slot="),
    (MAP + "m.rebind(B)",                                           "this map has 2 dimensions"),
    (MAP + "m.rebind(H)",                                           "this map moves float32, and the array holds float16; its dtype stays, since"),
    (MAP + "m.rebind(s)",                                           "is of an array in global memory"),
    (MAP + "m.rebind(A, box=(4, 4))",                               "whose bytes are announced. "
                                                                    "tile.ptx.tensormap.replace.tile.box_dim.global_.b1024.b32(m, index, "
                                                                    "value) writes that field"),
    (MAP + "m.rebind(A, swizzle=128)",                              "tile.ptx.tensormap.replace.tile.swizzle_mode.global_.b1024.b32"),
    (MAP + "m.rebind(A, dtype=tile.float16)",                       "tile.ptx.tensormap.replace.tile.elemtype.global_.b1024.b32"),
    (MAP + "m.rebind(A, fill='nan')",                               "tile.ptx.tensormap.replace.tile.fill_mode.global_.b1024.b32"),
    (MAP + "m.rebind(A, interleave=1)",                             "tile.ptx.tensormap.replace.tile.interleave_layout.global_.b1024.b32"),
    (MAP + "m.rebind(A, shpae=(1, 2))",                             "rebind has no option 'shpae'"),
    (MAP + "m.rebind(A[0, 0])",                                     "shape has 2 entries, as the map has dimensions, not none"),
    (MAP + "m.rebind(A[0, 0], shape=(1, 2, 3))",                    "not 3; its rank stays, since"),
    (MAP + "m.rebind(A[0, 0], shape=(1, 16), strides=(16, 2))",     "the last stride of a tensor map's array is 1"),
    (MAP + "m.rebind(A[0, 0], shape=(1, 16), strides=(3, 1))",
     "strides of a tensor map are multiples of 16 bytes (4 elements of float32) below 2^40, and one of these is 3 elements"),
    (MAP + "m.rebind(A[0, 0], shape=(2, 16), strides=(1 << 38, 1))", "and one of these is 274877906944 elements"),
    ("m = tile.tensor_map(A[0:8, 0:64], l2_promotion=False)",       "l2_promotion is 0, 64, 128 or 256 bytes, not False"),
    (MAP + "m.rebind(A[0, 0], shape=(0, 16))",                      "its shape has a 0"),
    (MAP + "m.rebind(3, shape=(1, 16))",                            "rebind takes an array, a place in one as storage[start], or a 64-bit address"),
    (MAP + "m.rebind(x[tile.thread_id()], shape=(1, 16))",          "the threads of the cta share this rebind, and `tile.thread_id()` differs"),
    (MAP + "m.publish()",                                           'made with edit="shared"; one in global memory is released by '
                                                                    '.fence_release(scope)'),
    (MAP.replace("128])", "128], edit='shared')") + "m.fence_release()", "is released by .publish(scope)"),
    (MAP.replace("128])", "128], edit='shared')") + "with tile.elect():\n    m.publish()",
     "publish copies 4 bytes by each of the 32 threads of a warp, and this scope has 1"),
    (MAP.replace("128])", "128], edit='shared')") + "if tile.thread_id() < 16:\n    m.publish()",
     "publish copies 4 bytes by each of the 32 threads of a warp, and the condition"),
    (MAP + "m.fence_acquire('warp')",                               "a fence's scope is one of cta, cluster, gpu, sys"),
    (MAP + "v = tile.load(m[0:8, 0:64])",                           "load cannot use a tensor map"),
    (MAP + "tile.copy(s, m[0:8, 0:64])",                            "copy cannot use a tensor map"),
    (MAP + "tile.copy_async(s, m, mbar=bar)",                       "moves regions of memory"),
    (MAP + "tile.copy_async(s, m[0], mbar=bar)",                    "indexed in each of its 2 dimensions"),
    (MAP + "tile.copy_async(s, m[0:8, 2:66], mbar=bar)",            "a start along the innermost dimension at a multiple of 16 bytes"),
    (MAP + "tile.copy_async(s[0:4, 0:64], m[0:4, 0:64], mbar=bar)", "are no whole boxes of 8"),
    (MAP + "tile.copy_async(s, m[0:8, 0:64], mbar=bar, fill='nan')", "the map's own fill, if fill= is given: fill='nan' by a map that fills with zeros"),
    ("m = tile.tensor_map(A[0:8, 0:64], swizzle=0)\nq = tile.alloc((8, 32), A.dtype, layout=tile.swizzled(A.dtype, (8, 32), "
     "128))\ntile.copy_async(q, m[0:8, 0:32], mbar=bar)",
     "the buffer's swizzle of 128 and the map's of 0 bytes"),
])
def test_unsupported_uses_of_a_map_are_refused_with_the_reason(body, words):
    with pytest.raises(tile.CompilationError) as error:
        compiled(body)
    assert words in str(error.value)


def test_a_map_for_a_cta_pair_must_be_encoded_at_launch():
    with pytest.raises(tile.CompilationError, match="a map that the kernel makes: that of a pair of CTAs is the launch.s"):
        compiled(MAP + "with tile.elect():\n    tile.copy_async(s, m[0:8, 0:64], mbar=bar, cta_group=2)", target="sm_100a", cluster=(2, 1, 1))


def test_a_target_without_tensormap_replace_is_refused():
    for target, words in (("sm_80", "a tensor map needs sm_90"),):
        with pytest.raises(tile.CompilationError, match=words):
            compiled(MAP, target=target)


@pytest.mark.parametrize("edit", ["global", "shared"])
def test_a_map_is_initialised_from_constant_memory(edit):
    """With all loads before the stores; otherwise each load would wait for the previous store."""
    code = compiled(f"m = tile.tensor_map(A[0:8, 0:64], slot=slots[1, 0:128], edit={edit!r})\nwith tile.elect():\n    m.seed()").sass()
    assert "LDC" in code and len(re.findall(r"\bSTS?G?(?:\.E)?\.128\b", code)) == 8 and not re.search(r"\bLDG?\.E", code)


def test_a_raw_replace_accepts_the_slot_and_a_raw_fence_the_map():
    text = compiled(MAP + "with tile.elect():\n    m.seed()\n    tile.ptx.tensormap.replace.tile.box_dim.global_.b1024.b32(slots[1, 0], 1, 4)\n"
                          "    tile.ptx.fence.proxy.tensormap_generic.acquire.cta(m, 128)").ptx
    assert "tensormap.replace.tile.box_dim.global.b1024.b32" in text and "fence.proxy.tensormap::generic.acquire.cta" in text
