"""Which values may enter an execution scope, and which may leave it."""

import re

import tilejit as tile
from graphs import body, built, error, marked


def test_a_register_tile_cannot_be_used_in_a_narrower_scope():
    def kernel(x, y):
        v = tile.load(x[0:16])
        with tile.warp(0):
            tile.store(y[0:16], v)

    text = error(kernel)
    assert text.startswith("v is a register tile that belongs to the scope outside this one; pass it through shared memory\nmade here:")
    assert marked(text) == "v"


def test_the_shape_and_dtype_of_a_register_tile_are_known_in_every_scope():
    def kernel(x, y):
        v = tile.load(x[0:16])
        t = tile.thread_id()
        with tile.warp(0):
            tile.store(y[0], v.shape[0] + v.size + v.ndim + v.dtype.nbytes + t.dtype.nbytes)
            with tile.elect():
                tile.store(y[v.shape[0]], tile.cast(1, v.dtype))

    built(kernel)

    def summed(x, y):
        v = tile.load(x[0:16])
        with tile.warp(0):
            tile.store(y[0], v.sum())

    assert error(summed).startswith("v is a register tile that belongs to the scope outside this one")


def test_a_tuple_of_register_tiles_tells_its_length_and_what_its_tiles_are_like_in_every_scope():
    def kernel(x, y):
        v = tile.load(x[0:16])
        pair = v, (v, tile.cast(v, tile.float16))
        with tile.warp(0):
            tile.store(y[len(pair) + len(pair[1]) + len(v)], pair[0].shape[0] + pair[1][1].dtype.nbytes)
        tile.store(y[len(*(pair,))], 1.0)

    built(kernel)

    def summed(x, y):
        pair = (tile.load(x[0:16]),)
        with tile.warp(0):
            tile.store(y[0], pair[0].sum())

    assert error(summed).startswith("pair is a register tile that belongs to the scope outside this one")


def test_only_uniform_scalars_can_be_used_in_a_narrower_scope():
    def kernel(y, n):
        row = tile.program_id(0)
        with tile.warp(0):
            tile.store(y[row + n], 1.0)

    def divergent(y):
        t = tile.thread_id()
        with tile.warp(0):
            tile.store(y[t], 1.0)

    built(kernel)
    assert error(divergent).startswith("t differs between the threads of this scope, and was computed outside it; compute it inside")


def test_a_scope_cannot_assign_a_name_defined_outside():
    def kernel(y):
        k = 0
        with tile.warp(0):
            k = 1

    text = error(kernel)
    assert text.startswith("k is assigned outside the scope opened at ") and "\nassigned outside here:" in text
    assert marked(text) == "k = 1"


def test_a_loop_or_branch_in_a_scope_cannot_assign_a_name_defined_outside():
    def kernel(y, n):
        k = 0
        with tile.warp(0):
            for i in range(n):
                if i > 3:
                    k = i

    assert error(kernel).startswith("k is assigned outside the scope opened at ")


def test_the_target_of_a_loop_or_with_in_a_scope_is_a_new_variable():
    def kernel(y, n):
        p, q, w = n, 5, 7
        for p in tile.static_range(2):
            tile.store(y[p], 1.0)
        with tile.elect():
            for p in tile.static_range(2):
                tile.store(y[2 + p], 1.0)
            for q, w in ((4, 5), (6, 7)):
                tile.store(y[q + w], 1.0)
            for q in range(n):
                tile.store(y[q], 1.0)
        with tile.each_warpgroup(range(0, 1)) as w:
            tile.store(y[w], 1.0)

    assert re.findall(r"region\(%y, (\S+),", body(kernel)) == ["0", "1", "2", "3", "9", "13", "%q", "%warpgroup"]


def test_that_variable_is_undefined_outside_the_scope():
    def after(y, n):
        p = n
        with tile.elect():
            for p in tile.static_range(2):
                tile.store(y[p], 1.0)
        tile.store(y[p], 1.0)

    def next_trip(y, n):
        p = 0
        for i in range(n):
            tile.store(y[p], 1.0)
            with tile.elect():
                for p in tile.static_range(2):
                    tile.store(y[p], 1.0)

    for kernel in (after, next_trip):
        text = error(kernel)
        assert text.startswith("p was assigned inside an execution scope, and registers cannot leave it; pass it through a buffer\nassigned here:")
        assert "keeps its type" not in text


def test_sibling_scopes_may_use_the_same_names():
    def kernel(y, n):
        for g in tile.static_range(2):
            with tile.warp(g):
                k = 0
                for i in range(n):
                    k += i
                tile.store(y[k], 1.0)

    assert body(kernel).count("for %i") == 2


def test_a_name_of_a_buffer_made_in_one_scope_can_be_reused_in_the_next_scope():
    def kernel(y):
        for g in tile.static_range(2):
            with tile.warp(g):
                s = tile.alloc((16,), tile.float32)
                tile.store(s[g], 1.0)
        tile.store(s[3], 2.0)

    assert re.findall(r"region\(%(\S+),", body(kernel)) == ["alloc", "alloc.1", "alloc.1"]


def test_buffers_can_be_used_after_their_scope_and_register_tiles_cannot():
    def buffers(y):
        with tile.warp(0):
            s = tile.alloc((16,), tile.float32)
        tile.store(s[0], 1.0)

    def registers(x, y):
        with tile.warp(0):
            v = tile.load(x[0])
        tile.store(y[0], v)

    built(buffers)
    assert error(registers).startswith(
        "v was assigned inside an execution scope, and registers cannot leave it; pass it through a buffer")


def test_a_region_made_in_a_scope_cannot_be_used_after_it():
    def kernel(x, y):
        with tile.warp(0):
            r = x[0:16]
        tile.store(y[0:16], tile.load(r))

    assert error(kernel).startswith("r was assigned inside an execution scope")


def test_break_continue_and_return_cannot_leave_a_scope():
    def by_break(y, n):
        for i in range(n):
            with tile.warp(1):
                if n == i:
                    break

    def by_return(y, n):
        with tile.warp(1):
            return

    text = error(by_break)
    assert text.startswith("`break` would leave the execution scope that it stands in") and marked(text) == "break"
    assert error(by_return).startswith("`return` would leave the execution scope that it stands in")


def test_a_loop_inside_a_scope_may_be_left_early():
    def kernel(y, n):
        with tile.warp(0):
            for i in range(n):
                if i > 2:
                    break

    assert body(kernel).startswith("  warp 0\n    while carry %index")


def test_a_helper_called_in_a_scope_has_its_own_names():
    def kernel(x, y):
        v = 3.0
        with tile.warp(0):
            tile.store(y[0], doubled(v))

    assert "6.0" in body(kernel)


@tile.jit
def doubled(v):
    v = v * 2
    return v
