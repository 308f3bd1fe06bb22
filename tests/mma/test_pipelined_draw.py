"""Random pipelined loops of any types, majors, tiles and stages, compared with float64."""

import ast
import re

import numpy as np
import pytest
import tilejit as tile

from tests.chosen_cases import part
from tests.gpu import in_child, needs_gpu, some
from tests.mma.drawn_pipelines import TYPES, Draw, drawn

KERNELS = 24  # compiled by one process


@pytest.mark.parametrize("number", part(range(KERNELS)))
def test_random_pipelined_products_are_right_on_the_simulator(number):
    """Two sets of extents for each kernel, on Hopper and on another target; without findings."""
    draw, targets = Draw.of(number), ("sm_90a", ("sm_80", "sm_100a", "sm_120a")[number % 3])
    for case, (m, n, k) in enumerate(draw.extents(2)):
        draw.check(m, n, k, lambda grid, *arrays, **options: drawn.simulate((grid,), *arrays, target=targets[case], **options).raise_first())


def test_the_random_kernels_cover_all_types_stages_warps_roles_and_majors():
    """So that none is omitted on the GPU."""
    draws = [Draw.of(number) for number in range(KERNELS)]
    assert {d.types for d in draws} == set(TYPES) and {d.warps for d in draws} == {1, 2, 4, 8}
    for name, values in dict(STAGES={2, 3, 4, 5}, ROLES={False, True}, TA={False, True}, TB={False, True}, TURN={False, True}, STAGED={False, True}).items():
        assert {d.constants[name] for d in draws} == values


SQUARE = dict(BM=128, BN=128, BK=64, STAGES=4, ROLES=True, TA=False, TB=True, SUMS=tile.float32, PRECISION=None, TURN=True, STAGED=True,
              GROUP=8, DEPENDENT=True,
              pdl=True, num_warps=8)


@pytest.mark.parametrize("wait", ["tile.griddepcontrol_wait()", "tile.ptx.griddepcontrol.wait()"])
def test_the_producer_also_waits_for_the_previous_grids(wait):
    """Its copies may read what they write; the next grid is released only once."""
    shape = tile.ArraySpec((512, 512), "float16")
    source = ast.unparse(drawn.source.tree).removeprefix("@tile.jit\n").replace("tile.griddepcontrol_wait()", wait)
    made = tile.jit(source=source).compile(shape, shape, shape, **SQUARE, target="sm_90a")
    producer, consumers = made.graph.split("  warpgroup ")[1:]
    for role in producer, consumers:
        assert re.search(r"griddepcontrol[._]wait", role[:role.index("for %i")])
    assert made.graph.count("launch_dependents") == 1 and not made.warnings


@needs_gpu("sm_90a", "sm_100a", "sm_103a", "sm_120a")
@in_child(timeout=120)
def test_chained_products_with_early_launches_are_right_on_the_gpu():
    """Each launch multiplies what the previous one writes, and starts before it has ended."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((1024, 1024)))[0].astype(np.float16)
    x = rng.standard_normal((1024, 1024)).astype(np.float16)
    chains = []
    for options in (SQUARE, SQUARE | dict(DEPENDENT=False, pdl=False)):
        right, *places = (tile.to_device(v) for v in (turn, x, np.zeros_like(x)))
        for step in range(50):
            drawn[(64,)](places[step % 2], right, places[1 - step % 2], **options)
        chains.append(places[0].numpy())
    assert np.isfinite(chains[0]).all() and np.abs(chains[0]).max() > 0.5
    np.testing.assert_array_equal(chains[0], chains[1])


@needs_gpu()
@in_child(timeout=300)
def test_random_pipelined_products_are_right_on_the_gpu():
    """0, 1, stages - 1, stages and stages + 1 iterations, also ragged ones, of every kernel."""
    for number in some(range(KERNELS)):
        draw = Draw.of(number)
        for m, n, k in draw.extents(10):
            draw.check(m, n, k, lambda grid, *arrays, **options: drawn[(grid,)](*arrays, backend="cuda", **options))
