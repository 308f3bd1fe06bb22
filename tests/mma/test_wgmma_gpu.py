"""Products of Hopper's tensor cores on the GPU: slices of any buffers, as on the simulator; integers bit for bit."""

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

from tests.gpu import in_child, needs_gpu, some
from tests.mma.test_wgmma import E5M2, begun_anew_case, by_hand_case, products, views_case


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_a_kernel_may_iterate_over_k_itself_on_the_gpu():
    """With slices that begin inside a row of the swizzle."""
    for span in (0, 32, 64, 128):
        for dtype in (np.float16, E5M2):
            by_hand_case(dtype, span, "cuda")


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_a_runtime_condition_can_make_a_product_start_from_zero_on_the_gpu():
    """The accumulator is NaN before."""
    begun_anew_case("cuda")


@needs_gpu("sm_90a")
@in_child(timeout=240)
def test_slices_of_any_buffers_can_be_multiplied_on_the_gpu():
    """Every type, number of columns, major and swizzle; A in shared memory and in registers; products added and subtracted. The
    same arrays give the same integers as on the simulator."""
    @settings(max_examples=len(some(range(40))), deadline=None, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=[HealthCheck.too_slow])
    @given(products())
    def each(case):
        gpu, simulated = views_case(case, "cuda"), views_case(case)
        if gpu.dtype == np.int32:
            np.testing.assert_array_equal(gpu, simulated)
    each()
