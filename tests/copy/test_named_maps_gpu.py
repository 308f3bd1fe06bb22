"""Explicit tensor maps, also those that the kernel makes and rebinds, on the GPU, compared with NumPy."""

import numpy as np
import pytest

from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


def _kernels():
    import sys
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    import named_map_kernels
    return named_map_kernels


def _many(n: int, step: int) -> list[tuple[int, int]]:
    """Varied shapes: ragged rows, rows of 16 bytes, a single row."""
    rng = np.random.default_rng(n)
    return [(int(rng.integers(1, 128)), step * int(rng.integers(1, 256 // step + 1))) for _ in range(n)]


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_copies_with_an_explicit_map_support_every_dtype_and_swizzle_on_the_gpu():
    cases = _kernels()
    for dtype, swizzle in cases.EVERY:
        a, b, width = cases.through_case(dtype)
        cases.through[3, 3](a, b, BM=16, BN=width, SWIZZLE=swizzle, backend="cuda")
        assert cases.same(a, b), (dtype, swizzle)


@needs_gpu(*HOPPER)
@in_child(timeout=60)
@pytest.mark.parametrize("edit", [None, "global", "shared"])
def test_an_explicit_map_rounds_to_tf32_to_nearest_even_on_the_gpu(edit):
    cases = _kernels()
    a, nearest, out = cases.rounded_case()
    cases.rounded[1,](a, cases.aligned((1, 128)), out, EDIT=edit, backend="cuda")
    assert cases.same(out[:12], nearest) and not out[12:].any()


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_one_kernel_loads_many_arrays_of_different_shapes_on_the_gpu(dtype, edit):
    cases = _kernels()
    shapes = _many(300, 16)
    storage, table, parts = cases.group(dtype, shapes)
    row, slots = 128 // np.dtype(dtype).itemsize, cases.aligned((len(shapes), 128))
    out = np.full((len(shapes), 128, 256), 99, dtype)
    for _ in range(3):  # the slots hold the maps of the previous launch
        out[:] = 99
        cases.grouped[len(shapes),](cases.aligned((64, 64), dtype), storage, table, slots, out, BM=32, BN=row, EDIT=edit, backend="cuda")
        for k, part in enumerate(parts):
            assert (out[k, :part.shape[0], :part.shape[1]] == part).all(), k
            rows, columns = -(-part.shape[0] // 32) * 32, -(-part.shape[1] // row) * row
            assert not out[k, part.shape[0]:rows, :columns].any() and not out[k, :rows, part.shape[1]:columns].any(), k


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("edit", ["global", "shared"])
def test_one_kernel_stores_to_many_arrays_of_different_shapes_on_the_gpu(edit):
    cases = _kernels()
    shapes = _many(300, 16)
    storage, table, parts = cases.group("float16", shapes)
    storage[:] = 0
    full = np.full((len(shapes), 128, 256), -1, np.float16)
    for k, part in enumerate(parts):
        full[k, :part.shape[0], :part.shape[1]] = part
    cases.grouped[len(shapes),](cases.aligned((64, 64), np.float16), storage, table, cases.aligned((len(shapes), 128)), full, BM=32, BN=64,
                                EDIT=edit, STORE=True, backend="cuda")
    for (start, rows, columns), part in zip(table, parts):
        assert (storage[start:start + rows * columns].reshape(rows, columns) == part).all()


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_a_map_can_be_bound_to_one_argument_after_the_other_on_the_gpu():
    cases, rng = _kernels(), np.random.default_rng(2)
    arrays = [rng.random(shape).astype(np.float32) for shape in ((8, 32), (20, 40), (3, 16))]
    out = np.zeros((3, 8, 32), np.float32)
    cases.of_arrays[1,](*arrays, cases.aligned((1, 128)), out, BM=8, BN=32, backend="cuda")
    for k, a in enumerate(arrays):
        want = np.zeros((8, 32), np.float32)
        want[:min(8, a.shape[0]), :min(32, a.shape[1])] = a[:8, :32]
        assert (out[k] == want).all(), k


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_a_map_can_be_bound_to_addresses_of_separate_allocations_on_the_gpu():
    import tilejit as tile
    cases, rng = _kernels(), np.random.default_rng(3)
    host = [rng.random(shape).astype(np.float32) for shape in ((10, 32), (4, 64))]
    parts = [tile.to_device(x) for x in host]
    pointer = lambda x: x.__cuda_array_interface__["data"][0]
    addresses = tile.to_device(np.array([pointer(parts[0]), pointer(parts[1]) + 64], np.uint64))
    shapes = tile.to_device(np.array([(10, 32, 32), (4, 48, 64)], np.int32))
    out = tile.to_device(np.zeros((2, 8, 32), np.float32))
    cases.of_addresses[2,](tile.to_device(np.zeros((8, 32), np.float32)), addresses, shapes, tile.to_device(np.zeros((2, 128), np.uint8)), out,
                           *parts, N=32)
    found = out.numpy()
    assert (found[0] == host[0][:8]).all() and (found[1, :4] == host[1][:, 16:48]).all() and not found[1, 4:].any()


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_maps_of_every_rank_can_be_rebound_on_the_gpu(rank, edit):
    cases, rng = _kernels(), np.random.default_rng(rank)
    small = np.zeros((1,) * max(rank - 2, 0) + (4, 32)[-rank:], np.float32)
    large = rng.random((3,) * max(rank - 2, 0) + (6, 96)[-rank:]).astype(np.float32)
    out = np.zeros((4, 32), np.float32)
    cases.of_rank(rank, edit)[1,](small, large, cases.aligned((1, 128)), out, backend="cuda")
    want = large[(1,) * (rank - 2)][:4, 32:64] if rank > 1 else large[None, 32:64]
    assert (out[:len(want)] == want).all()


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("scope", ["cluster", "gpu", "sys"])
def test_all_ctas_of_a_cluster_copy_with_the_map_that_one_has_edited_on_the_gpu(scope, edit):
    cases, rng = _kernels(), np.random.default_rng(5)
    a, out = rng.random((32, 64)).astype(np.float32), np.zeros((30, 32, 64), np.float32)
    cases.in_a_cluster[120,](np.zeros((8, 64), np.float32), a, cases.aligned((30, 128)), out, RELEASE=scope, ACQUIRE=scope, EDIT=edit, backend="cuda")
    assert (out == a).all()


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_a_flag_publishes_a_map_to_the_grid_on_the_gpu(scope):
    cases, rng = _kernels(), np.random.default_rng(6)
    a = rng.random((64 * 8, 64)).astype(np.float32)
    out = np.zeros_like(a)
    cases.across_the_grid[64,](np.zeros((8, 64), np.float32), a, cases.aligned((1, 128)), np.zeros(1, np.int32), out, SCOPE=scope, backend="cuda")
    assert (out == a).all()


@needs_gpu(*HOPPER)
@in_child(timeout=120)
def test_an_explicit_map_can_be_used_for_multicasts_reductions_and_tokens_on_the_gpu():
    cases, rng = _kernels(), np.random.default_rng(7)
    a, b = rng.integers(0, 9, (8, 128)).astype(np.float32), np.ones((8, 64), np.float32)
    cases.to_both[2,](a, b, backend="cuda")
    assert (b == 1 + 2 * a[:, 64:]).all()
    c, out = rng.random((24, 64)).astype(np.float32), np.zeros((24, 64), np.float32)
    cases.by_token[1,](c, cases.aligned((1, 128)), out, backend="cuda")
    assert (out == c).all()


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_the_next_kernel_copies_with_the_map_that_one_has_made_on_the_gpu(scope, edit):
    """Twice through one slot, bound to another array each time: the second kernel must not see the first map."""
    import tilejit as tile
    cases, rng = _kernels(), np.random.default_rng(8)
    slots, template = tile.to_device(np.zeros((1, 128), np.uint8)), tile.to_device(np.zeros((8, 64), np.float32))
    for _ in range(2):
        a = rng.random((32, 64)).astype(np.float32)
        there, out = tile.to_device(a), tile.to_device(np.zeros((32, 64), np.float32))
        cases.made[1,](template, there, slots, RELEASE=scope, EDIT=edit)
        cases.used[4,](template, there, slots, out, ACQUIRE=scope)
        assert (out.numpy() == a).all()


@needs_gpu(*HOPPER)
@in_child(timeout=120)
@pytest.mark.parametrize("edit", ["global", "shared"])
def test_raw_instructions_edit_fence_and_use_a_map_on_the_gpu(edit):
    cases, rng = _kernels(), np.random.default_rng(9)
    a, out = rng.random((16, 64)).astype(np.float32), np.zeros((8, 16), np.float32)
    cases.by_instructions[1,](a, cases.aligned((1, 128)), out, EDIT=edit, backend="cuda")
    np.testing.assert_array_equal(out, cases.expected_of_instructions(a))
