"""The shadow memory's fast check compared with its complete one."""

import numpy as np
from hypothesis import given, settings, strategies as st
from tilejit.sim.shadow import ANYONE, COPIED, MANY, NEVER, PENDING, SETTLED, Access, Shadow
from tilejit.sim.vector_clocks import FENCED, ORDER, Clocks

CELLS, ATOMS, BARRIERS = 4, 2, 2
EPOCH = st.integers(0, 2)
THREAD = st.sampled_from((0, 1, 40, MANY, ANYONE, COPIED))


@settings(max_examples=400, deadline=None)
@given(tensor=st.booleans(), writer=st.sampled_from((NEVER, SETTLED, *range(ATOMS + BARRIERS), PENDING + 1)), epochs=st.lists(EPOCH, min_size=CELLS, max_size=CELLS),
       threads=st.lists(THREAD, min_size=CELLS, max_size=CELLS), known=st.lists(EPOCH, min_size=40, max_size=40), fenced=EPOCH, more=EPOCH, spread=st.booleans(),
       through=st.booleans(), writing=st.booleans(), pipe=st.integers(0, 1))
def test_the_fast_check_agrees_with_checking_each_cell(tensor, writer, epochs, threads, known, fenced, more, spread, through, writing, pipe):
    """By one thread or by several threads of one access, through either proxy, on shared and on tensor memory."""
    clocks = Clocks(1, ATOMS, BARRIERS, tensor)
    clocks.known[...] = np.resize(known, clocks.known.shape)
    clocks.known[:, :, ORDER] += more  # so that a write is often ordered before, but not visible
    clocks.fenced[...] = fenced
    found = []
    for short in (True, False):
        shadow = Shadow(0, CELLS, tensor)
        shadow.writer[:], shadow.epoch[:], shadow.thread[:] = writer, epochs, threads
        if not short:
            shadow._long_known = lambda *access: False
        atoms, who = (np.array([0, 1, 0, 1]), np.array([0, 40, 1, 41], np.int16)) if spread else (np.asarray(0), np.asarray(0, np.int16))
        access = Access(range(CELLS), atoms, who, 1, pipe=pipe if tensor else 0)
        judge = shadow.write if writing else shadow.read
        found.append(judge(clocks, 0, access, FENCED if through and not tensor else ORDER, keep=False))
    assert found[0] == found[1]
