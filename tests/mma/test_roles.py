"""Roles: the registers that warpgroups request, relative to those with which the threads of a CTA start."""

import re

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu

X = tile.ArraySpec((16, 128), "float32")


def divided(regs, **options):
    """A kernel in which warpgroup i requests ``regs[i]`` registers, or keeps its own if that is None."""
    lines = [f"    with tile.warpgroup({i}{'' if n is None else f', regs={n}'}):\n        tile.store(x[{i}, 0:128], {i + 1}.0)\n"
             for i, n in enumerate(regs)]
    return tile.jit(source="def divided(x):\n" + "".join(lines), **dict(num_warps=4 * len(regs)) | options)


@pytest.mark.parametrize("warpgroups,options,registers", [
    (1, {}, 256), (2, {}, 256), (3, {}, 168), (4, {}, 128), (5, {}, 96), (8, {}, 64), (2, dict(min_ctas=2), 128), (3, dict(min_ctas=2), 80),
    (2, dict(max_registers=104), 104),
])
def test_a_warpgroup_increases_or_decreases_its_registers_relative_to_those_of_the_launch(warpgroups, options, registers):
    """setmaxnreg.inc above the registers with which a thread starts, setmaxnreg.dec up to them: the other one is undefined."""
    groups, most = warpgroups - 1, registers if registers % 8 == 0 else registers - registers % 8
    least = divided([24] * warpgroups, **options).compile(X)
    assert least.registers == min(registers, 255) and set(re.findall(r"setmaxnreg\.(\w+)", least.ptx)) == {"dec"}
    assert set(re.findall(r"setmaxnreg\.(\w+)", divided([most] * warpgroups, **options).compile(X).ptx)) == {"dec"}
    if groups and registers < 256:
        made = divided([24] * groups + [most + 8], **options).compile(X)
        assert sorted(re.findall(r"setmaxnreg\.(\w+)\S* (\d+)", made.ptx)) == [("dec", "24")] * groups + [("inc", str(most + 8))]


@pytest.mark.parametrize("warps,registers", [(6, 256), (9, 168), (10, 168), (13, 128), (14, 128), (17, 96), (21, 80), (26, 72)])
def test_a_thread_starts_with_its_share_of_the_scheduler_with_the_most_warps(warps, registers):
    """Four schedulers have a quarter of the registers each: a ninth warp costs as much as a twelfth."""
    made = divided([24], num_warps=warps).compile(X)
    assert made.registers == min(registers, 255) and "setmaxnreg.dec" in made.ptx
    if registers < 256:
        more = divided([24, registers + 8], num_warps=warps).compile(X)
        assert sorted(re.findall(r"setmaxnreg\.(\w+)\S* (\d+)", more.ptx)) == [("dec", "24"), ("inc", str(registers + 8))]


@pytest.mark.parametrize("regs,options,line,sum_", [
    ((24, 240, 248), {}, 6, "24 + 240 + 248 = 512"), ((40, 240, 232), {}, 4, "= 512"), ((None, 168, 176), {}, 6, "168 + 168 + 176"),
    ((240, 240, 240), {}, 2, "= 720"),
    ((24, None, None, 240), {}, 8, "24 + 128 + 128 + 240"), ((120, 144), dict(min_ctas=2), 4, "= 264"),
    ((24, 232), dict(max_registers=120), 4, "= 256"), ((24, 240), dict(num_warps=14), 4, "24 + 240 + 128 + 128 = 520"),
])
def test_requesting_more_registers_than_the_cta_has_is_an_error_at_the_largest_request(regs, options, line, sum_):
    """On the GPU it would wait for them for ever."""
    with pytest.raises(CompilationError, match="a warpgroup would wait for the missing ones for ever") as caught:
        divided(regs, **options).compile(X)
    assert caught.value.loc.line == line and sum_ in str(caught.value)


@pytest.mark.parametrize("regs", [(24, 240, 240), (40, 232, 232), (None, 168, None), (24, 160, 160, 160), (32, 160, 160, 160)])
def test_all_the_registers_of_a_cta_may_be_distributed(regs):
    assert divided(regs).compile(X).spills == 0


def test_a_loop_that_skips_warpgroups_does_not_request_registers_for_them():
    kernel = tile.jit(source="""def roles(x):
    for w in range(0, 4, 2):
        with tile.warpgroup(w, regs=40):
            tile.store(x[w, 0:128], 1.0)
    with tile.warpgroup(1, regs=240):
        tile.store(x[1, 0:128], 1.0)
    with tile.warpgroup(3, regs=240):
        tile.store(x[3, 0:128], 1.0)
""", num_warps=16)
    with pytest.raises(CompilationError, match=r"40 \+ 240 \+ 40 \+ 240 = 560"):
        kernel.compile(X)


def test_each_warpgroup_of_a_loop_counts_and_several_requests_count_as_the_smallest():
    @tile.jit(num_warps=12)
    def roles(x, N: tile.constexpr):
        with tile.warpgroup(0, regs=24):
            tile.store(x[0, 0:128], 1.0)
        with tile.each_warpgroup(range(1, 3), regs=N) as w:
            tile.store(x[w, 0:128], 2.0)

    @tile.jit(num_warps=12)
    def in_turns(x):
        for first in tile.static_range(2):
            with tile.warpgroup(first, regs=24):
                tile.store(x[first, 0:128], 1.0)
            with tile.warpgroup(1 - first, regs=240):
                tile.store(x[1 - first, 0:128], 1.0)

    roles.compile(X, N=240)
    in_turns.compile(X)
    with pytest.raises(CompilationError, match=r"24 \+ 248 \+ 248"):
        roles.compile(X, N=248)


@pytest.mark.parametrize("regs,words", [("consumer_regs=240", "240 [+] 240 [+] 168"), ("producer_regs=40, consumer_regs=240", "240 [+] 240 [+] 40")])
def test_a_pipelined_loop_cannot_request_more_than_the_cta_has_either(regs, words):
    kernel = tile.jit(source=f"""def looped(x, out):
    s, total = tile.alloc((128,), x.dtype), tile.zeros((128,))
    for i in tile.pipelined(range(16), stages=2, warp_specialize=True, {regs}):
        tile.copy_async(s, x[i, 0:128])
        total += tile.load(s)
    tile.store(out[0, 0:128], total)
""", num_warps=8)
    with pytest.raises(CompilationError, match=words) as caught:
        kernel.compile(X, X)
    assert caught.value.loc.line == 3


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_registers_are_distributed_on_the_gpu():
    """More, fewer, and all that there are; also with two CTAs on an SM."""
    for regs, options in (((24, 240, 240), {}), ((24, 160, 160, 160), {}), ((None, 24, 240), {}), ((24, 232), dict(min_ctas=2)),
                          ((40, 160), dict(max_registers=104)), ((24, 136), dict(num_warps=14))):
        x = tile.to_device(np.zeros((16, 128), np.float32), 0)
        kernel = divided(regs, **options)
        kernel[600,](x)
        assert (x.numpy()[:len(regs)] == (np.arange(len(regs)) + 1)[:, None]).all()
