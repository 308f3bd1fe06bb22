"""A kernel requests only facts that its code depends on; others would cause useless recompilation."""

import numpy as np
import tilejit as tile


@tile.jit(num_warps=4)
def moved(A, B):
    i = tile.program_id(0)
    s = tile.alloc((16, 64), A.dtype)
    tile.copy(s, A[i * 16:(i + 1) * 16, 1:65])
    tile.sync()
    tile.copy(B[i * 16:(i + 1) * 16, 0:64], s, variant="scalar")


def test_regions_that_are_only_copied_request_no_facts_for_tile_layouts():
    A, B = np.zeros((16, 65), np.float16), np.zeros((16, 64), np.float16)
    moved.compile(A, B)
    (version,) = next(iter(moved.versions.values()))
    assert not [fact for fact in version.facts if fact[0] in ("aligned", "stride_multiple", "size_multiple") and fact[1] == 1]
