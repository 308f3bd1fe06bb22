"""``tile.clock`` and ``tile.globaltimer`` advance, and stay where they are written."""

import re

import numpy as np
import tilejit as tile

from tests.gpu import in_child, needs_gpu


@tile.jit
def timed(x, y, times, N: tile.constexpr):
    begin, at = tile.clock(), tile.globaltimer()
    v = tile.load(x[0:N])
    for _ in range(8):
        v = tile.sqrt(v + 1)
    tile.store(y[0:N], v)
    end, until = tile.clock(), tile.globaltimer()
    tile.static_assert(begin.dtype == tile.uint64 and at.dtype == tile.uint64)
    with tile.thread(0):
        for i in tile.static_range(4):
            tile.store(times[i], (begin, end, at, until)[i])


def test_clocks_advance_on_the_simulator():
    x, y, times = np.ones(256, np.float32), np.zeros(256, np.float32), np.zeros(4, np.uint64)
    timed.simulate(1, x, y, times, N=256).raise_first()
    begin, end, at, until = times.tolist()
    assert begin < end and 0 < at <= until


def test_clocks_are_read_before_and_after_the_accesses_between_them():
    arrays = tile.ArraySpec((256,), "float32"), tile.ArraySpec((256,), "float32"), tile.ArraySpec((4,), "uint64")
    for target in ("sm_80", "sm_90a", "sm_100a"):
        ptx = timed.compile(*arrays, N=256, target=target).ptx
        found = re.findall(r"%clock64|%globaltimer|ld\.global|st\.global", ptx)
        found = [name for n, name in enumerate(found) if n == 0 or found[n - 1] != name]
        assert found == ["%clock64", "%globaltimer", "ld.global", "st.global", "%clock64", "%globaltimer", "st.global"]


def test_two_readings_are_not_merged():
    @tile.jit
    def twice(out):
        tile.store(out[tile.thread_id()], tile.clock() - tile.clock())

    assert twice.compile(tile.ArraySpec((128,), "uint64"), target="sm_90a").ptx.count("%clock64") == 2


@needs_gpu()
@in_child(timeout=60)
def test_clocks_advance_on_the_gpu():
    x, y, times = np.ones(256, np.float32), np.zeros(256, np.float32), np.zeros(4, np.uint64)
    timed[1](x, y, times, N=256, backend="cuda")
    begin, end, at, until = times.tolist()
    assert 0 < end - begin < 10**7 and 0 < at <= until
