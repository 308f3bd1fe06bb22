"""Scopes of some lanes of a warp: tiles, scalars, barriers and elections there involve only these lanes."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")


def lanes(first: int, stop: int):
    """A kernel in which threads `first` to `stop` execute collective operations, while the others do nothing."""
    return tile.jit(source=f"""def lanes(x, z, out, sums, marks, ids):
    staged = tile.alloc((64,), tile.float32)
    bar = tile.mbarrier()
    with tile.thread(range({first}, {stop})):
        v = tile.load(x[0:8, 0:8])
        tile.store(out[0, 0:8, 0:8], v.T + tile.load(z[0:8, 0:8]))                      # a change of layout
        tile.store(sums[0, 0:8], tile.sum(v, axis=0))
        tile.store(sums[1, 0:8], tile.cumsum(v[3, :]))
        tile.store(sums[2, 0], tile.max(v))
        tile.store(staged, v.reshape((64,)))
        tile.sync()
        tile.store(out[1, 0:8, 0:8], tile.load(staged[63 - tile.arange(64)]).reshape((8, 8)))
        tile.store(marks[0], 7)                                                         # once for the scope
        tile.store(ids[tile.thread_id(scope="scope")], tile.thread_id())
        tile.atomic_add(marks[1], 1)
        with tile.elect():
            tile.store(marks[2], 9)
        bar.arrive()
    bar.wait(phase=0)
""")


PLACES = [(8, 16), (16, 32), (36, 40), (66, 68), (32, 64), (64, 128)]


def check(places, **options):
    rng = np.random.default_rng(0)
    x, z = (rng.integers(-9, 9, (8, 8)).astype(np.float32) for _ in range(2))
    for first, stop in places:
        out, sums, marks, ids = np.zeros((2, 8, 8), np.float32), np.zeros((3, 8), np.float32), np.zeros(3, np.int32), np.zeros(128, np.int32)
        lanes(first, stop)[1](x, z.T, out, sums, marks, ids, **options)
        np.testing.assert_array_equal(out, [x.T + z.T, x[::-1, ::-1]])
        np.testing.assert_array_equal(sums[:2], [x.sum(axis=0), np.cumsum(x[3])])
        assert sums[2, 0] == x.max()
        assert list(marks) == [7, 1, 9]
        np.testing.assert_array_equal(ids, np.resize(np.r_[first:stop, np.zeros(128)], 128))


def test_lanes_of_a_warp_can_be_a_scope():
    check(PLACES)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_barriers_shuffles_and_elections_use_the_mask_of_the_lanes(target):
    arrays = [tile.ArraySpec(s, t) for s, t in (((8, 8), "float32"), ((8, 8), "float32"), ((2, 8, 8), "float32"), ((3, 8), "float32"), ((3,), "int32"), ((128,), "int32"))]
    ptx = lanes(8, 16).compile(*arrays, target=target).ptx
    mask = str(0xFF00)
    assert f"bar.warp.sync {mask};" in ptx and "bar.sync 1" not in ptx
    assert {line.rpartition(",")[2].strip(" ;") for line in ptx.splitlines() if "shfl.sync" in line} == {mask}
    assert ("elect.sync" in ptx) == (target != "sm_80")


@pytest.mark.parametrize("first, stop", PLACES)
def test_an_element_of_a_tile_is_uniform_in_the_scope(first, stop):
    """So it can be combined with tiles, used as a condition around them, and as a trip count of loops with collectives."""
    kernel = tile.jit(source=f"""def kernel(x, out):
    with tile.thread(range({first}, {stop})):
        v = tile.load(x[0:8])
        if v[3] > 2:
            v = v + v[3]
        for i in range(tile.cast(v[0], tile.int32)):
            tile.sync()
            v = v * 2
        tile.store(out[0:8], v)
""")
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel[1](x, out)
    assert (out == (x + 3) * 8).all()


@needs_gpu()
@in_child(timeout=60)
def test_lanes_of_a_warp_can_be_a_scope_on_the_gpu():
    check(PLACES, backend="cuda")


@pytest.mark.parametrize("first,stop", [(0, 48), (16, 48), (31, 33), (30, 64)])
def test_parts_of_several_warps_cannot_be_a_scope(first, stop):
    with pytest.raises(tile.CompilationError, match=f"threads {first} to {stop - 1} are parts of several warps"):
        tile.jit(source=f"def k(x):\n    with tile.thread(range({first}, {stop})):\n        tile.store(x[0], 1)\n").compile(tile.ArraySpec((4,), "float32"))


@pytest.mark.parametrize("first,stop,found", [(4, 12, "8 threads from thread 4 on"), (2, 5, "found 3 threads")])
def test_a_scope_of_lanes_with_tiles_begins_at_a_multiple_of_its_size(first, stop, found):
    """Shuffles exchange bits of the lane index. Scopes without tiles may use any lanes of a warp."""
    source = f"def k(x):\n    with tile.thread(range({first}, {stop})):\n        tile.store(x[0:8], 1.0)\n        tile.sync()\n        tile.store(x[9], tile.{{}})\n"
    x = np.zeros(16, np.float32)
    with pytest.raises(tile.CompilationError, match=found):
        tile.jit(source=source.format("sum(tile.load(x[0:8]))")).compile(x)


def test_the_refusal_of_a_loop_carried_tile_shows_the_loop():
    kernel = tile.jit(source="""def k(x):
    with tile.thread(range(2, 6)):
        total = tile.zeros((8,), tile.float32)
        for i in range(4):
            total = total + tile.load(x[8 * i:8 * i + 8])
        tile.store(x[0:8], total)
""")
    with pytest.raises(tile.CompilationError, match=r"4 threads from thread 2 on\n(.*\n)*.*for i in range\(4\):"):
        kernel.compile(tile.ArraySpec((32,), "float32"))


def test_a_value_uniform_in_a_warp_is_uniform_in_its_lanes():
    """It can be used in a scope of some lanes with their tiles, and as a trip count of loops with collectives."""
    @tile.jit
    def kernel(x, out):
        with tile.warp(1):
            w, total = tile.warp_id(), tile.sum(tile.load(x[0:8]))
            with tile.thread(range(40, 48)):
                v = tile.load(x[0:8]) + total
                for i in range(w + 1):
                    tile.sync()
                    v = v * 2
                if tile.warp_id() > 0:
                    v = v + w
                tile.store(out[8 * w:8 * w + 8], v)

    x, out = np.arange(8, dtype=np.float32), np.zeros(16, np.float32)
    kernel[1](x, out)
    assert (out[8:] == (x + 28) * 4 + 1).all() and not out[:8].any()
