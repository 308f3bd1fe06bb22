"""TMA boxes of every rank, dtype and option: on the simulator, in PTX, and on the GPU."""

import box_kernels as kernels
import numpy as np
import pytest
from tilejit.errors import DispatchError
from values import any_bits

from tests.cases import compiled, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")


def forms(made) -> set[str]:
    """The mnemonics of the tensor instructions in compiled kernels."""
    return {line.strip().split(" [")[0] for k in made for line in k.ptx.splitlines() if ".tensor." in line}


def test_boxes_of_every_rank_dtype_and_swizzle_are_filled_and_clipped_exactly():
    """Starts before the array and past its end; loads fill zeros there, stores end at the edge. Covers every map rank, type and
    swizzle."""
    cases = list(kernels.every_box())
    on_simulator(cases)
    maps = [m for c in cases for m in compiled(c).tensor_maps]
    assert {m.rank for m in maps} == {1, 2, 3, 4, 5} and {m.swizzle for m in maps} == {0, 1, 2, 3}
    assert {m.dtype for m in maps if m.rank == 3} == {"uint8", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
                                                      "float32", "float64"}
    load, store = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes", "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
    assert forms(map(compiled, cases[::4])) == {text.format(r) for text in (load, store) for r in range(1, 6)}


def test_cache_policies_l2_promotion_and_prefetched_maps_do_not_change_the_data():
    cases = list(kernels.every_option())
    on_simulator(cases)
    made = list(map(compiled, cases))
    assert {m.l2_promotion for k in made for m in k.tensor_maps} == {0, 1, 2, 3} and sum("prefetch.tensormap" in k.ptx for k in made) == len(made) // 4
    assert sum(".L2::cache_hint" in k.ptx for k in made) == len(made) * 6 // 7


@pytest.mark.parametrize("rank", kernels.RANKS)
def test_a_tensor_reduction_combines_a_clipped_box_with_the_array(rank):
    """Three CTAs reduce into the same region; nothing outside the array or the box changes."""
    cases = [c for c in kernels.every_reduction() if len(c.options["SHAPE"]) == rank]
    on_simulator(cases)
    assert forms(map(compiled, cases)) == {f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{kind}.tile.bulk_group.L2::cache_hint"
                                           for kind in kernels.REDUCTIONS}


@pytest.mark.parametrize("kind, dtype", [("add", "uint8"), ("min", "float32"), ("inc", "int32"), ("xor", "float32"), ("and", "uint16")])
def test_tensor_reductions_that_fault_in_hardware_are_declined(kind, dtype):
    """The encoder and the assembler accept all of them."""
    a = any_bits(dtype, (3, 1024))
    with pytest.raises(DispatchError, match=f"reduce='{kind}' of {dtype}; through a tensor map it takes"):
        kernels.reduced_box.compile(a, np.zeros((16, 96), a.dtype), KIND=kind)


def test_out_of_bounds_elements_become_zero_or_nan_and_float32_can_be_rounded_to_tf32():
    """To nearest even, by the map's type; the NaN is the hardware's own."""
    cases = list(kernels.every_fill())
    on_simulator(cases)
    assert {(m.dtype, m.oob_fill, m.rank) for c in cases for m in compiled(c).tensor_maps} == \
        {(d, 1, r) for d in kernels.NAN for r in range(1, 6)} | {("tfloat32", f, r) for f in (0, 1) for r in range(1, 6)}
    a = np.zeros((8, 64), np.float16)
    with pytest.raises(DispatchError, match="rounding to TF32 on loads of float32 only: precision='tf32' on float16"):
        kernels.filled_box.compile(a, a.reshape(-1), 0, SHAPE=(8, 64), START=(0, 0), N=512, FILL=0, PRECISION="tf32")
    with pytest.raises(DispatchError, match="NaN for a float type: fill='nan' on int32"):
        kernels.filled_box.compile(any_bits("int32", (8, 64)), np.zeros(512, np.int32), 0, SHAPE=(8, 64), START=(4, 0), N=512, FILL="nan")


def test_boxes_of_every_rank_can_be_prefetched_to_l2():
    """By one instruction each, also out of bounds."""
    cases = list(kernels.every_prefetch())
    on_simulator(cases)
    assert forms(map(compiled, cases)) == {f"cp.async.bulk.prefetch.tensor.{r}d.L2.global.tile{hint}" for r in range(1, 6)
                                           for hint in ("", ".L2::cache_hint")}


def test_a_multicast_of_every_rank_reaches_the_ctas_of_its_mask():
    """A mask of one bit is a multicast too, with or without the sender's own rank."""
    cases = list(kernels.every_multicast())
    on_simulator(cases)
    assert forms(map(compiled, cases)) == {f"cp.async.bulk.tensor.{r}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                                           for r in range(1, 6)}


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_boxes_of_every_rank_dtype_and_swizzle_are_filled_and_clipped_exactly_on_the_gpu():
    on_gpu([*kernels.every_box(), *kernels.every_option()])


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_tensor_reductions_of_every_rank_combine_clipped_boxes_with_the_array_on_the_gpu():
    on_gpu(kernels.every_reduction())


@needs_gpu(*HOPPER)
@in_child(timeout=240)
def test_fills_rounding_and_prefetches_of_every_rank_are_right_on_the_gpu():
    on_gpu([*kernels.every_fill(), *kernels.every_prefetch()])


@needs_gpu(*CLUSTERED)
@in_child(timeout=240)
def test_a_multicast_of_every_rank_reaches_the_ctas_of_its_mask_on_the_gpu():
    on_gpu(kernels.every_multicast())
