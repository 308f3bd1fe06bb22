"""The kernels of the GPU tests assemble, so that GPU tests only have to test launching."""

import pytest

from tests.runtime.device_kernels import NOTHING, RANKS, SLOW, TILE, TWICE, cubin


@pytest.mark.parametrize("text, target", [
    (TWICE, "sm_80"), (TWICE, "sm_90a"), (TILE, "sm_90a"), (TILE, "sm_100a"), (TILE, "sm_120a"), (RANKS.replace("CLUSTER", ""), "sm_90a"),
    (RANKS.replace("CLUSTER", '"nvvm.cluster_dim"="2,1,1"'), "sm_90a"), (SLOW, "sm_90a"), (NOTHING, "sm_90a")])
def test_the_kernel_assembles(text, target):
    assert cubin(text, target)[:4] == b"\x7fELF"
