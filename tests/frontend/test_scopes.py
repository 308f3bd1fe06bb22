"""Execution scopes: which may be opened where, and when a condition on an id is one."""

import tilejit as tile
from graphs import body, built, error, expect, marked


def test_with_opens_a_scope_and_a_condition_on_an_id_means_the_same():
    def by_with(y):
        with tile.warp(1):
            tile.store(y[0], 1.0)

    def by_condition(y):
        if tile.warp_id() == 1:
            tile.store(y[0], 1.0)

    expect(by_with, """
        warp 1
          %region = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
          store(%region, 1.0, none, each_thread=False)
        """)
    assert body(by_condition).splitlines()[2:] == body(by_with).splitlines()


def test_a_condition_on_an_id_held_in_a_variable_opens_a_scope_too():
    def kernel(y, n):
        which = n % 4
        mine = which == tile.warp_id()
        if mine:
            tile.store(y[0], 1.0)

    assert "  warp %mod\n" in body(kernel)


def test_an_if_elif_chain_of_conditions_on_an_id_opens_sibling_scopes():
    def kernel(y):
        if tile.warp_id() == 1:
            tile.sync()
        elif tile.warp_id() == 3:
            tile.store(y[0], 1.0)

    assert [line for line in body(kernel).splitlines() if not line.startswith("    ") and "=" not in line] == ["  warp 1", "  warp 3"]


def test_a_chain_that_tests_something_else_is_a_branch():
    def kernel(y, n):
        if tile.warp_id() == 1:
            tile.store(y[1], 1.0)
        elif n == 3:
            tile.store(y[0], 1.0)

    assert "  if %eq\n" in body(kernel)


def test_a_condition_with_an_else_branch_is_a_branch():
    def kernel(y):
        if tile.warp_id() == 1:
            tile.store(y[0], 1.0)
        else:
            tile.store(y[1], 1.0)

    assert "  if %eq\n" in body(kernel)


def test_a_condition_on_an_id_that_a_cast_has_changed_is_a_branch():
    def bits(y):
        if tile.cast(tile.thread_id(), tile.uint8) == 5:
            tile.store(y[0], 1.0)

    def truth(y):
        if tile.cast(tile.warp_id(), tile.bool_) == 1:
            tile.store(y[0], 1.0)

    def fraction(y):
        if tile.thread_id() == 1.5:
            tile.store(y[0], 1.0)

    def wide(y):
        if tile.cast(tile.thread_id(), tile.int64) == 5:
            tile.store(y[0], 1.0)

    for kernel in (bits, truth, fraction):
        assert "  if %eq\n" in body(kernel)
    assert "if %eq" not in body(wide)


def test_a_condition_on_an_id_that_does_not_exist_warns():
    def kernel(y):
        if tile.thread_id() == 500:
            tile.store(y[0], 1.0)

    result = built(kernel)
    assert "store" not in str(result.graph)
    assert result.warnings[0].message == ("this condition never holds: thread 500 does not exist: "
                                          "with num_warps=4 the CTA has threads 0 to 127")


def test_a_range_of_warpgroups_is_one_scope():
    def kernel(y):
        with tile.warpgroup(range(1, 3), regs=240):
            tile.store(y[0], 1.0)

    assert body(kernel, num_warps=12).startswith("  warpgroup 1 x 2 regs 240\n")


def test_a_loop_over_ids_is_not_a_scope():
    """Over tiles, pipelined, unrolled, or with a runtime step, even if its bounds look like those of warps."""
    def tiles(y):
        with tile.warp(tile.tile_order(1, 2, first=0, stride=1)):
            pass

    def pipelined(y):
        with tile.each_warpgroup(tile.pipelined(range(0, 1))):
            pass

    def unrolled(y):
        with tile.thread(tile.range(0, 2, unroll=2)):
            pass

    def stepped(y, n):
        with tile.warp(range(0, 2, n)):
            pass

    for kernel, kind in ((tiles, "warp"), (pipelined, "warpgroup"), (unrolled, "thread"), (stepped, "warp")):
        assert error(kernel).startswith(f"{kind}(range(first, stop)) names {kind}s by a plain range with constant bounds, and this is a loop")


def test_a_scope_cannot_be_iterated_over():
    def warps(y):
        for i in tile.warp(range(0, 2)):
            pass

    def warpgroups(y):
        for i in tile.each_warpgroup(range(0, 1)):
            pass

    assert error(warps).startswith("this opens a scope, which is not a loop; write `with tile.warp(range(0, 2)):`, and a loop around or inside it")
    assert marked(error(warpgroups)) == "tile.each_warpgroup(range(0, 1))"


def test_scopes_nest():
    def kernel(y):
        with tile.warpgroup(1), tile.warp(5):
            with tile.elect():
                tile.store(y[0], 1.0)

    assert body(kernel, num_warps=8).splitlines()[:3] == ["  warpgroup 1", "    warp 5", "      elect"]


def test_a_scope_of_threads_that_do_not_exist_is_an_error():
    def warpgroup(y):
        with tile.warpgroup(1):
            pass

    def warp(y):
        with tile.warp(range(2, 6)):
            pass

    def thread(y):
        with tile.thread(-1):
            pass

    assert error(warpgroup).startswith("warpgroup 1 does not exist: with num_warps=4 the CTA has warpgroup 0 only")
    assert error(warp).startswith("warp 5 does not exist: with num_warps=4 the CTA has warps 0 to 3")
    assert error(thread).startswith("thread -1 does not exist")
    assert error(warpgroup, num_warps=2).startswith("a warpgroup has 4 warps, and the kernel runs with num_warps=2")


def test_ids_of_a_nested_scope_are_absolute():
    def kernel(y):
        with tile.warpgroup(1):
            with tile.warp(0):
                pass

    assert error(kernel, num_warps=8).startswith(
        "warp(0) is outside the scope of warpgroup 1: ids are absolute in the CTA, and that scope holds warps 4 to 7")


def test_a_nested_scope_must_be_narrower():
    def wider(y):
        with tile.warp(0):
            with tile.warpgroup(0):
                pass

    def equal(y):
        with tile.warp(0):
            with tile.warp(0):
                pass

    assert error(wider).startswith("warpgroup(0) is not narrower than the scope of warp 0 that it stands in")
    assert error(equal).startswith("warp(0) is not narrower than the scope of warp 0")


def test_elect_needs_a_scope_of_several_threads():
    def kernel(y):
        with tile.elect():
            with tile.elect():
                pass

    text = error(kernel)
    assert text.startswith("elect() chooses one of several threads, and only one thread runs here")
    assert marked(text) == "tile.elect()"


def test_a_collective_scope_cannot_be_opened_in_divergent_code():
    def kernel(y):
        if tile.lane_id() < 3:
            with tile.warp(0):
                pass

    assert error(kernel).startswith("warp(0) needs all threads of the CTA, and the condition `tile.lane_id() < 3` differs between them")


def test_the_index_of_a_warp_must_be_uniform():
    def uniform(y):
        with tile.warp(tile.program_id(0) % 4):
            tile.store(y[0], 1.0)

    def divergent(y):
        with tile.warp(tile.lane_id()):
            pass

    assert "  warp %mod\n" in body(uniform)
    def computed(y):
        with tile.warp(tile.thread_id() // 32):
            pass

    assert error(divergent).startswith("warp(lane_id): which warp it is must be the same for all threads of the cta")
    assert "for all threads of the cta, and `tile.thread_id() // 32` differs between them" in error(computed)


def test_regs_must_be_a_legal_register_count():
    def kernel(y):
        with tile.warpgroup(0, regs=100):
            pass

    assert error(kernel).startswith("regs is a multiple of 8 from 24 to 256, not 100")


def test_a_scope_has_no_value():
    def kernel(y):
        with tile.warp(0) as w:
            pass

    assert error(kernel).startswith("an execution scope has no value; leave out the `as`")


def test_with_accepts_only_scopes_and_constructs():
    def kernel(y):
        with y:
            pass

    assert error(kernel).startswith("`with` takes an execution scope (tile.elect(), tile.thread(i), tile.warp(i), tile.warpgroup(i))")


def test_expect_variant_can_be_used_in_with():
    def kernel(y):
        with tile.expect_variant("lines"):
            tile.prefetch(y[0:64])

    built(kernel)


def test_expect_variant_around_no_call_with_variants_is_an_error():
    """Whatever else the block or its nested blocks contain; the error is reported at its line."""
    def stores(y):
        with tile.expect_variant("tma"):
            tile.store(y[0], 1.0)

    def of_another_operation(y):
        for i in range(3):
            with tile.expect_variant("wgmma"):
                tile.prefetch(y[0:64])

    def inside_another(y):
        with tile.expect_variant("tma"):
            with tile.expect_variant("lines"):
                tile.prefetch(y[0:64])

    for kernel, name in ((stores, "tma"), (of_another_operation, "wgmma"), (inside_another, "tma")):
        found = error(kernel)
        assert f"expect_variant('{name}') has no effect: its block has no call that can be lowered as '{name}'" in found
        assert f'with tile.expect_variant("{name}"):' in found


def test_expect_variant_applies_to_calls_in_helpers_and_branches():
    @tile.jit
    def ahead(y, i):
        tile.prefetch(y[i:i + 64])

    def kernel(y):
        with tile.expect_variant("lines"):
            for i in range(4):
                if tile.program_id(0) > 0:
                    ahead(y, i)

    built(kernel)


def test_a_scope_of_two_warpgroups_is_split_by_a_condition_on_the_warpgroup():
    def kernel(y):
        with tile.warpgroup(range(0, 2)):
            if tile.warpgroup_id() > 0:
                tile.sync()

    assert "sync() is reached by only some threads" in error(kernel, num_warps=12)
