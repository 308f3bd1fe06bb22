"""Tensor maps encoded by the host, and the instructions that use them: forms, operands, the order of modifiers."""

import re

import numpy as np
import pytest
import tilejit as tile
from programs import boxed, boxed_out
from tilejit import ptx
from tilejit.errors import CompilationError

TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
HINT = ".L2::cache_hint"


def registers(form: ptx.Form) -> list[tuple[str, str, int]]:
    """(name, LLVM constraint letter, number of registers) of each operand, in the order of the text."""
    order = map(form.operand, re.findall(r"\{(\w+)\}", form.template))
    return [(o.name, o.register.constraint, o.registers) for o in order]


# -- maps encoded by the host -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kernel", [boxed, boxed_out])
@pytest.mark.parametrize("target", TARGETS)
def test_a_host_map_is_a_by_value_parameter_that_is_never_written(kernel, target):
    """128 bytes in parameter space, aligned to 64, marked as a grid constant; no instruction edits it."""
    x = np.zeros((8, 256), np.float16)
    k = kernel.compile(x, x.copy(), target=target)
    assert len(k.tensor_maps) == 1 and k.tensor_maps[0].origin == "host"
    assert 'byval([128 x i8]) align 64 "nvvm.grid_constant"' in k.llvm_ir
    assert re.search(r"\.param \.align 64 \.b8 \w+\[128\]", k.ptx)
    assert "tensormap." not in k.ptx and ".local" not in k.ptx


def test_equal_maps_are_one_parameter_and_different_ones_are_not():
    """The key consists of the encoder's arguments: two tiles of one array share a map, another box does not."""
    @tile.jit(num_warps=1)
    def three(A):
        s = tile.alloc((3, 8, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        with tile.elect():
            bar.arrive_expect_tx(2 * 8 * 64 * 2 + 4 * 64 * 2)
            tile.copy_async(s[0], A[0:8, 0:64], mbar=bar)
            tile.copy_async(s[1], A[8:16, 64:128], mbar=bar)
            tile.copy_async(s[2, 0:4], A[0:4, 0:64], mbar=bar)
        bar.wait(phase=0)

    k = three.compile(np.zeros((64, 512), np.float16))
    assert [m.box for m in k.tensor_maps] == [(64, 8), (64, 4)]
    assert len(re.findall(r"cp\.async\.bulk\.tensor", k.ptx)) == 3


def test_the_encoder_gets_the_plan_with_the_sizes_of_the_launch():
    """Dimensions and strides innermost first, strides in bytes without the innermost; one compilation for every size."""
    k = boxed.compile(*[np.zeros((24, 512), np.float16)] * 2)
    m = k.tensor_maps[0]
    assert (m.dtype, m.rank, m.global_dim, m.global_strides, m.box) == ("float16", 3, (64, 24, 8), (1024, 128), (64, 8, 4))
    assert (m.element_strides, m.interleave, m.swizzle, m.l2_promotion, m.oob_fill) == ((1, 1, 1), 0, 3, 2, 0)


# -- the forms of cp.async.bulk ------------------------------------------------------------------------------------------------

G2S = "cp.async.bulk.tensor.{}d.shared::cluster.global{}.mbarrier::complete_tx::bytes{}{}"


@pytest.mark.parametrize("hint", ["", HINT])
@pytest.mark.parametrize("multicast", ["", ".multicast::cluster"])
@pytest.mark.parametrize("mode, dim", [*(("", d) for d in range(1, 6)), *((".im2col", d) for d in (3, 4, 5))])
def test_a_tensor_load_takes_its_optional_operands_in_the_order_of_its_modifiers(mode, dim, multicast, hint):
    """Destination, map (a 64-bit address), coordinates, barrier; then im2col offsets, mask and cache policy, if any."""
    form = ptx.form(G2S.format(dim, mode, multicast, hint))
    wanted = [("dst", "r", 1), ("map", "l", 1), ("coords", "r", dim), ("bar", "r", 1)]
    wanted += [("offsets", "h", dim - 2)] * bool(mode) + [("mask", "h", 1)] * bool(multicast) + [("hint", "l", 1)] * bool(hint)
    assert registers(form) == wanted
    assert form.targets == ("sm_90", *TARGETS)


@pytest.mark.parametrize("hint", ["", HINT])
@pytest.mark.parametrize("dim", range(1, 6))
def test_a_tensor_store_has_its_map_first(dim, hint):
    """Map and coordinates, then the source, then the cache policy."""
    form = ptx.form(f"cp.async.bulk.tensor.{dim}d.global.shared::cta.tile.bulk_group{hint}")
    assert registers(form) == [("map", "l", 1), ("coords", "r", dim), ("src", "r", 1)] + [("hint", "l", 1)] * bool(hint)


@pytest.mark.parametrize("hint", ["", HINT])
@pytest.mark.parametrize("dim", [3, 4, 5])
def test_an_im2col_store_has_no_offsets(dim, hint):
    """By the PTX form of im2col stores."""
    form = ptx.form(f"cp.async.bulk.tensor.{dim}d.global.shared::cta.im2col_no_offs.bulk_group{hint}")
    assert registers(form) == [("map", "l", 1), ("coords", "r", dim), ("src", "r", 1)] + [("hint", "l", 1)] * bool(hint)


def test_gather4_and_scatter4_have_two_dimensions_and_five_coordinates_and_exist_on_blackwell_only():
    """One column and four rows."""
    gather = ptx.form("cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes")
    scatter = ptx.form("cp.async.bulk.tensor.2d.tile::scatter4.global.shared::cta.bulk_group")
    assert registers(gather) == [("dst", "r", 1), ("map", "l", 1), ("coords", "r", 5), ("bar", "r", 1)]
    assert registers(scatter) == [("map", "l", 1), ("coords", "r", 5), ("src", "r", 1)]
    assert gather.targets == ("sm_100a", "sm_103a", "sm_120a") and scatter.targets == ("sm_100a", "sm_103a")
    with pytest.raises(CompilationError, match="no PTX instruction form"):
        ptx.form("cp.async.bulk.tensor.3d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes")


@pytest.mark.parametrize("kind", ["add", "min", "max", "inc", "dec", "and", "or", "xor"])
@pytest.mark.parametrize("mode, dims", [("tile", range(1, 6)), ("im2col_no_offs", (3, 4, 5))])
def test_every_reduction_has_tile_and_im2col_forms(kind, mode, dims):
    """Eight operators, for every rank of the mode, with and without a cache policy."""
    for dim in dims:
        for hint in ("", HINT):
            form = ptx.form(f"cp.reduce.async.bulk.tensor.{dim}d.global.shared::cta.{kind}.{mode}.bulk_group{hint}")
            assert registers(form)[:3] == [("map", "l", 1), ("coords", "r", dim), ("src", "r", 1)]


@pytest.mark.parametrize("mode, dims", [("tile", range(1, 6)), ("im2col", (3, 4, 5))])
def test_a_prefetch_into_l2_has_tile_and_im2col_forms(mode, dims):
    """Only map and coordinates, and im2col offsets."""
    for dim in dims:
        form = ptx.form(f"cp.async.bulk.prefetch.tensor.{dim}d.L2.global.{mode}")
        assert registers(form) == [("map", "l", 1), ("coords", "r", dim)] + [("offsets", "h", dim - 2)] * (mode == "im2col")


@pytest.mark.parametrize("name, operands", [
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "dst src size bar"),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster", "dst src size bar mask"),
    ("cp.async.bulk.global.shared::cta.bulk_group", "dst src size"),
    ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "dst src size bar")])
def test_bulk_copies_without_a_map_take_a_byte_count(name, operands):
    """From global, to global, to a peer."""
    assert [o for o, _, _ in registers(ptx.form(name))] == operands.split()


def test_modifiers_have_a_fixed_order():
    """Load mode, completion, multicast, CTA group, cache policy; other orders are not forms."""
    good = "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2.L2::cache_hint"
    assert ptx.form(good).targets == ("sm_100a", "sm_103a")
    for bad in ("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.im2col",
                "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint.multicast::cluster"):
        with pytest.raises(CompilationError, match="no PTX instruction form"):
            ptx.form(bad)


# -- tensormap.replace -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("space, letter", [("global", "l"), ("shared::cta", "r")])
@pytest.mark.parametrize("field, width, lanes", [("global_address", 64, None), ("global_dim", 32, 5), ("global_stride", 64, 4)])
def test_the_address_dimensions_and_strides_of_a_map_can_be_replaced_in_both_memories(field, width, lanes, space, letter):
    """A 64-bit address, five 32-bit dimensions, four 64-bit strides; the index is an immediate, and others are refused."""
    form = ptx.form(f"tensormap.replace.tile.{field}.{space}.b1024.b{width}")
    value = {32: "r", 64: "l"}[width]
    assert form.constraints({"index": 0} if lanes else None) == f"{letter},{value},~{{memory}}" and form.targets == TARGETS
    names = [o.name for o in form.operands]
    assert names == ["map", "index", "value"] if lanes else ["map", "value"]
    if lanes:
        for lane in range(lanes):
            assert f", {lane}, " in form.asm_text({"index": lane})
        with pytest.raises(CompilationError, match="operand index needs an immediate"):
            ptx.check(form, {"map": "i64" if space == "global" else "i32", "index": lanes, "value": f"i{width}"})


def test_seven_other_fields_can_be_replaced_and_one_more_on_blackwell():
    """No other name is a form, including those that the manual suggests, and none for im2col maps."""
    found = {f.name.split(".")[3]: f.targets for f in ptx.forms() if f.name.startswith("tensormap.replace.tile.") and ".global.b1024" in f.name}
    everywhere = {"global_address", "global_dim", "global_stride", "rank", "box_dim", "element_stride", "elemtype", "interleave_layout",
                  "swizzle_mode", "fill_mode"}
    assert {n for n, targets in found.items() if targets == TARGETS} == everywhere
    assert {n: t for n, t in found.items() if n not in everywhere} == {"swizzle_atomicity": ("sm_100a", "sm_103a", "sm_120a")}
    for guess in ("tile.box_size", "tile.swizzle", "tile.interleave", "im2col.global_address"):
        with pytest.raises(CompilationError, match="no PTX instruction form"):
            ptx.form(f"tensormap.replace.{guess}.global.b1024.b32")


@pytest.mark.parametrize("scope", ["cta", "cluster", "gpu", "sys"])
def test_the_proxy_fences_have_every_scope(scope):
    """Release, acquire of 128 bytes at an address, and the fused copy and release, which a whole warp executes."""
    release = ptx.form(f"fence.proxy.tensormap::generic.release.{scope}")
    acquire = ptx.form(f"fence.proxy.tensormap::generic.acquire.{scope}")
    fused = ptx.form(f"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned")
    assert not release.operands and len(acquire.operands) == 2
    assert all(f.attributes.memory and f.attributes.sideeffect for f in (release, acquire, fused)) and fused.attributes.convergent
    assert [o.name for o in fused.operands] == ["dst", "src", "size"] and ", 128;" in fused.asm_text({"size": 128})
    with pytest.raises(CompilationError, match="operand size needs an immediate: 128, not 64"):
        ptx.check(fused, {"dst": "i64", "src": "i32", "size": 64})


# -- maps made by the kernel ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", TARGETS)
def test_a_map_made_by_a_kernel_is_initialised_rebound_released_acquired_and_then_used(target):
    """A copy of the template, 2 * rank edits (address, dimensions, strides), both fences with one address, the tensor copy; one map
    of the launch and one of the kernel are counted."""
    @tile.jit(num_warps=1)
    def rebound(template, A, B, slots):
        s = tile.alloc((8, 64), A.dtype)
        bar = tile.mbarrier(count=1)
        m = tile.tensor_map(template[0:8, 0:64], slot=slots[0, 0:128])
        with tile.elect():
            m.seed()
            m.rebind(A)
            m.fence_release("cta")
            m.fence_acquire("cta")
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, m[0:8, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.copy(B[0:8, 0:64], s)

    f = lambda *shape: tile.ArraySpec(shape, "float32")
    k = rebound.compile(f(8, 64), f(100, 640), f(8, 64), tile.ArraySpec((1, 128), "uint8"), target=target)
    text = [line.strip() for line in k.ptx.splitlines()]
    first = text.index(next(line for line in text if line.startswith("tensormap.replace")))
    words = [line.split(" [")[0].rstrip(";") for line in text[first:] if re.match(r"tensormap|fence\.proxy\.tensormap|cp\.async\.bulk\.tensor", line)]
    edit = "tensormap.replace.tile.{}.global.b1024.b{}".format
    assert words == [edit("global_address", 64), edit("global_dim", 32), edit("global_dim", 32), edit("global_stride", 64),
                     "fence.proxy.tensormap::generic.release.cta", "fence.proxy.tensormap::generic.acquire.cta", G2S.format(2, "", "", "")]
    assert sorted(m.origin for m in k.tensor_maps) == ["device", "host"] and k.cubin
    assert sum(line.startswith("st.global.v4.b32") for line in text[:first]) == 8  # 128 bytes of the slot
