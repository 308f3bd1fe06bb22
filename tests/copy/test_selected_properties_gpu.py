"""Random im2col copies on the GPU, compared byte by byte. (Gathers of rows by TMA exist on Blackwell only.)"""

import random

import pytest

from tests.gpu import in_child, needs_gpu

HOPPER = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")


@needs_gpu(*HOPPER)
@in_child(timeout=240)
@pytest.mark.parametrize("store", [False, True])
def test_im2col_copies_move_exactly_their_bytes_on_the_gpu(store):
    import sys
    from pathlib import Path

    import tilejit as tile
    sys.path.insert(0, str(Path(__file__).parent))
    import selected_cases as cases
    import selected_kernels as kernels

    moved = 0
    for seed in range(40):
        case = (cases.store_case if store else cases.load_case)(random.Random(seed))
        memory, values = (cases.written(case.room, case.at, case.y), case.y.copy()) if store else (case.room.copy(), cases.elements(case.room, case.at))
        try:
            (kernels.store_patch if store else kernels.load_patch)[1,](*case.arguments, **case.options, backend="cuda")
        except tile.DispatchError:
            continue
        assert case.room.tobytes() == memory.tobytes() and case.y.tobytes() == values.tobytes(), seed
        moved += 1
    assert moved > 20
