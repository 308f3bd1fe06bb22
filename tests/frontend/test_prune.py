"""Loop-carried values and results that nothing reads are removed; calls stay."""

import tilejit as tile
from graphs import body


def test_a_carried_value_that_only_feeds_itself_is_removed():
    def kernel(x, y, n):
        v = tile.load(x[0])
        w = v
        for i in range(n):
            v, w = w, v
            tile.store(y[i], 1.0)

    assert "carry" not in body(kernel)


def test_a_carried_value_that_a_call_reads_is_kept():
    def kernel(x, y, n):
        v = tile.load(x[0])
        w = tile.load(x[1])
        for i in range(n):
            v, w = w, v
            tile.store(y[i], v)

    assert "carry %v: float32@cta = %load, %w: float32@cta = %load.1" in body(kernel)
