"""``setmaxnreg`` called by the instruction's name: requests for more registers than the CTA has."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

X = np.arange(384, dtype=np.int32)
Y = np.zeros_like(X)


@tile.jit(num_warps=12)
def divided(X, Y, LESS: tile.constexpr, MORE: tile.constexpr):
    with tile.warpgroup(0):
        tile.ptx.setmaxnreg.dec.sync.aligned.u32(LESS)
        tile.store(Y[0:128], tile.load(X[0:128]))
    with tile.warpgroup(range(1, 3)):
        tile.ptx.setmaxnreg.inc.sync.aligned.u32(MORE)
        tile.store(Y[128:384], tile.load(X[128:384]))


@tile.jit(num_warps=4)
def more_for_all(X, Y):
    tile.ptx.setmaxnreg.inc.sync.aligned.u32(256)
    tile.store(Y[0:128], tile.load(X[0:128]))


@tile.jit(num_warps=12)
def both_ask(X, Y):
    with tile.warpgroup(0, regs=40):
        tile.store(Y[0:128], tile.load(X[0:128]))
    with tile.warpgroup(range(1, 3)):
        tile.ptx.setmaxnreg.inc.sync.aligned.u32(240)
        tile.store(Y[128:384], tile.load(X[128:384]))


def test_warpgroups_that_ask_for_more_registers_than_the_cta_has_are_refused():
    with pytest.raises(tile.CompilationError, match=r"the warpgroups ask for 40 \+ 240 \+ 240 = 520 reg") as error:
        divided.compile(X, Y, LESS=40, MORE=240)
    assert "setmaxnreg.inc" in error.value.loc.source_line
    with pytest.raises(tile.CompilationError, match=r"40 \+ 240 \+ 240 = 520"):
        both_ask.compile(X, Y)


def test_warpgroups_that_share_the_registers_of_the_cta_run():
    check(divided, (1,), X, Y, LESS=40, MORE=232, result=1, expected=X)
    check(more_for_all, (1,), X, Y, result=1, expected=np.where(X < 128, X, 0))
    assert "setmaxnreg.inc.sync.aligned.u32 232" in divided.compile(X, Y, LESS=40, MORE=232).ptx


@tile.jit(num_warps=12)
def never_given_back(X, Y, some):
    with tile.warpgroup(0):
        if some > 1:
            tile.ptx.setmaxnreg.dec.sync.aligned.u32(40)
    with tile.warpgroup(range(1, 3)):
        tile.ptx.setmaxnreg.dec.sync.aligned.u32(160)
        tile.ptx.setmaxnreg.inc.sync.aligned.u32(232)  # finds: deadlock
        tile.store(Y[128:384], tile.load(X[128:384]))


@tile.jit(num_warps=12)
def given_back_later(X, Y, some):
    with tile.warpgroup(0):
        for k in range(some):
            tile.store(Y[k], k)
        if some > 1:
            tile.ptx.setmaxnreg.dec.sync.aligned.u32(40)
    with tile.warpgroup(range(1, 3)):
        tile.ptx.setmaxnreg.dec.sync.aligned.u32(160)
        tile.ptx.setmaxnreg.inc.sync.aligned.u32(232)
        tile.store(Y[128:384], tile.load(X[128:384]))


def test_a_request_that_depends_on_another_warpgroup_waits_for_it_or_is_a_deadlock():
    (finding,) = check(never_given_back, (2,), X, Y, 1).findings
    assert "would have 168 + 232 + 232 = 632 per thread, and the CTA begins with 3 times 168" in finding.message
    check(given_back_later, (1,), X, Y, 50, result=1, expected=np.where((X < 50) | (X >= 128), X, 0))
