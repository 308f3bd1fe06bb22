"""Narrow floats on the GPU: casts of every code and number, packed elements, and other libraries' arrays of them."""

import numpy as np
import tilejit as tile

from tests.gpu import in_child, needs_gpu, needs_module


def _cases():
    import sys
    from importlib import import_module
    from pathlib import Path
    for folder in ("ops", "copy"):
        sys.path.insert(0, str(Path(__file__).parent.parent / folder))
    return import_module("test_narrow_casts"), import_module("test_packed_copies")


@needs_gpu()
@in_child(timeout=120)
def test_casts_on_the_gpu_agree_with_the_simulator():
    """Every code, and floats with every upper 16 bits."""
    casts, _ = _cases()
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    x = np.concatenate([upper, upper | 1, upper - 1]).astype(np.uint32).view(np.float32).reshape(-1, 64)
    for name in casts.NARROW:
        y, z = (casts.array(np.zeros(x.shape, np.uint8).view(casts.TYPES[name])) for _ in range(2))
        casts.to_narrow[len(x),](x, y, N=64, backend="cuda")
        casts.to_narrow[len(x),](x, z, N=64, backend="sim")
        np.testing.assert_array_equal(casts.plain(y).view(np.uint8), casts.plain(z).view(np.uint8), err_msg=name)
        codes = np.resize(casts.every_code(name), (2, 256))
        for target in ("float32", "bfloat16", *(("float16",) if name != "float8_e8m0fnu" else ())):
            wide = np.zeros(codes.shape, casts.DTYPES[target].np)
            casts.from_narrow[2,](casts.array(codes), wide, N=256, backend="cuda")
            np.testing.assert_array_equal(wide.astype(np.float32), codes.astype(np.float32), err_msg=name)
    for dtype in ("int32", "uint32", "int64", "uint64"):  # except the midpoints of two powers of two, which float32 does not distinguish
        middles = np.array([3 << e for e in range(1, np.iinfo(dtype).bits - 2)], dtype)
        x = np.resize(np.concatenate([middles - 1, middles, middles + 1]), (4, 64)).astype(dtype)
        y, z = (casts.array(np.zeros(x.shape, np.uint8).view(casts.TYPES["float8_e8m0fnu"])) for _ in range(2))
        casts.to_narrow[len(x),](x, y, N=64, backend="cuda")
        casts.to_narrow[len(x),](x, z, N=64, backend="sim")
        np.testing.assert_array_equal(casts.plain(y).view(np.uint8), casts.plain(z).view(np.uint8), err_msg=dtype)


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=120)
def test_packed_elements_are_copied_exactly_on_the_gpu():
    """By ldgsts, TMA, ordinary loads, bulk copies and between CTAs."""
    import warnings
    warnings.simplefilter("ignore")
    _, copies = _cases()
    for name in copies.PACKED:
        for variant in ("ldgsts", "tma", "vector"):
            step = 128 if variant == "tma" else 32
            x, y = tile.pack(copies.codes(name, (40, 3 * step))), tile.pack(copies.codes(name, (16, 256), 1))
            copies.staged[1,](x, y, 30, 1, ROWS=16, COLUMNS=256, STEP=step, VARIANT=variant, backend="cuda")
            wanted = np.zeros((16, 256), np.uint8)
            there = x.unpack().view(np.uint8)[30:46, step:step + 256]
            wanted[:there.shape[0], :there.shape[1]] = there
            np.testing.assert_array_equal(y.unpack().view(np.uint8), wanted, err_msg=f"{name} {variant}")
        x, y = tile.pack(copies.codes(name, (4, 256))), tile.pack(copies.codes(name, (4, 256), 1))
        copies.by_bulk[1,](x, y, 0, backend="cuda")
        assert copies.same(x, y), name
        x, y = tile.pack(copies.codes(name, (16, 128))), tile.pack(copies.codes(name, (16, 128), 1))
        copies.to_a_peer[2,](x, y, backend="cuda")
        np.testing.assert_array_equal(y.unpack().view(np.uint8), np.roll(x.unpack().view(np.uint8), 8, axis=0))


@needs_gpu()
@in_child(timeout=120)
def test_threads_store_and_load_padded_elements():
    """The bytes in a swizzled buffer, and the elements that come back."""
    _, copies = _cases()
    for name in copies.PACKED:
        values, raw, y = copies.codes(name, (16, 128)), np.zeros((16, 128), np.uint8), tile.pack(copies.codes(name, (16, 32), 1))
        layouts = dict(LAYOUT=tile.swizzled(tile.padded(name), (16, 128), 128), BYTES=tile.swizzled("uint8", (16, 128), 128))
        copies.through_padded[1,](tile.pack(values), raw, y, 3, DTYPE=tile.padded(name), **layouts, backend="cuda")
        wanted = copies.as_padded(values)
        np.testing.assert_array_equal(raw, np.where(wanted < 0, 255, wanted), err_msg=name)
        np.testing.assert_array_equal(y.unpack().view(np.uint8), values.view(np.uint8)[:, 48:80], err_msg=name)


@needs_gpu("sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=120)
def test_tma_pads_packed_elements_as_the_simulator_does():
    """The bytes of the elements, and the bytes counted by the barrier."""
    _, copies = _cases()
    for name in copies.PACKED:
        dtype, values, y = tile.padded(name), copies.codes(name, (20, 512)), np.zeros((16, 256), np.uint8)
        options = dict(ROWS=16, COLUMNS=256, DTYPE=dtype, LAYOUT=tile.swizzled(dtype, (16, 256), 128), BYTES=tile.swizzled("uint8", (16, 256), 128))
        copies.padded_box[1,](tile.pack(values), y, 8, 1, **options, backend="cuda")
        inside = np.zeros((16, 256), np.uint8).view(values.dtype)
        inside[:12] = values[8:20, 128:384]
        wanted = copies.as_padded(inside)
        np.testing.assert_array_equal(np.where(wanted < 0, wanted, y), wanted, err_msg=name)


@tile.jit
def _copied(x, y):
    tile.store(y[0, 0:16], tile.load(x[0, 0:16]))


def test_every_code_of_a_packed_type_is_loaded_and_stored_unchanged():
    import ml_dtypes
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).reshape(1, 16)
    made = tile.pack(np.zeros_like(values))
    _copied[1,](tile.pack(values), made)
    assert (made.unpack().view(np.uint8) == values.view(np.uint8)).all()


@needs_gpu()
@needs_module("torch")
@in_child(timeout=120)
def test_tensors_of_torch_s_narrow_types_are_accepted_as_arguments():
    """float8_e8m0fnu, and pairs of float4 in a byte; bytes of any library by tile.Packed."""
    import torch
    casts, _ = _cases()
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").reshape(1, 256)
    y = torch.zeros((1, 256), device="cuda")
    casts.from_narrow[1,](codes.view(torch.float8_e8m0fnu), y, N=256)
    np.testing.assert_array_equal(y.cpu().numpy()[0], casts.every_code("float8_e8m0fnu").astype(np.float32))
    wanted = np.stack([codes.cpu().numpy()[0] & 15, codes.cpu().numpy()[0] >> 4], axis=1).reshape(1, 512).astype(np.uint8)
    wanted = wanted.view(casts.TYPES["float4_e2m1fn"]).astype(np.float32)
    y = torch.zeros((1, 512), device="cuda")
    casts.from_narrow[1,](tile.Packed(codes, "float4_e2m1fn"), y, N=512)
    np.testing.assert_array_equal(y.cpu().numpy(), wanted)
    values = casts.every_code("float4_e2m1fn").reshape(1, 16)
    made, copied = tile.empty((1, 16), "float4_e2m1fn"), tile.to_device(tile.pack(values))
    _copied[1,](copied, made)
    assert (made.unpack().view(np.uint8) == values.view(np.uint8)).all()
    if hasattr(torch, "float4_e2m1fn_x2"):
        y = torch.zeros((1, 512), device="cuda")
        for _ in range(3):
            casts.from_narrow[1,](codes.view(torch.float4_e2m1fn_x2), y, N=512)
        np.testing.assert_array_equal(y.cpu().numpy(), wanted)
