"""``ring.peek()`` tests early whether a scope's next slot is full, so that the wait of its next ``consume()`` is over sooner."""


import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu, needs_module


@tile.jit(num_warps=8)
def sums(X, out, counts, STAGES: tile.constexpr, PLACE: tile.constexpr):
    """Each CTA adds up rows of X, which come by TMA, twice over. The consumer peeks at the next one in one of several places."""
    ring = tile.ring(STAGES, A=((64,), tile.float32))
    N = tile.load(counts[tile.program_id(0)])
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(2 * N):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, X[tile.program_id(0), i % N, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        total = tile.zeros((64,), tile.float32)
        for n in range(2):
            for i in range(N):
                with ring.consume() as slot:
                    total += tile.load(slot.A)
                    if PLACE == "inside":
                        slot.release()
                        ring.peek()
                if PLACE == "behind":
                    ring.peek()
                if PLACE == "twice":
                    ring.peek()
                    ring.peek()
                if PLACE == "sometimes" and i % 3 == 1:
                    ring.peek()
            if PLACE == "outside":
                ring.peek()
        tile.store(out[tile.program_id(0), 0:64], total)


PLACES = ("nowhere", "inside", "behind", "twice", "sometimes", "outside")


def arrays(ctas, most, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most + 1, ctas).astype(np.int32)
    X = rng.integers(-1000, 1000, (ctas, most, 64)).astype(np.float32)
    right = 2 * np.stack([x[:n].sum(0) for x, n in zip(X, counts)])
    return X, counts, right


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rows_are_added_once_wherever_the_scope_peeks(stages, place):
    X, counts, right = arrays(5, 7, stages)
    for seed in range(4):
        out = np.zeros_like(right)
        assert not sums.simulate((5,), X, out, counts, STAGES=stages, PLACE=place, seed=seed).findings
        np.testing.assert_array_equal(out, right)


def compiled(stages, place, target="sm_90a"):
    specs = tile.ArraySpec((5, 7, 64), "float32"), tile.ArraySpec((5, 64), "float32"), tile.ArraySpec((5,), "int32")
    return sums.compile(*specs, STAGES=stages, PLACE=place, target=target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_the_lanes_vote_on_what_they_see_and_a_warp_that_saw_the_slot_full_does_not_wait(target):
    text = compiled(2, "behind", target).ptx
    assert len(re.findall(r"mbarrier\.test_wait\.parity\.[^;]*; vote\.sync\.all\.pred p, p, -1; mov\.pred", text)) == 1
    found = re.findall(r"(@\S+ bra D; )?W: mbarrier\.try_wait\.[^;]*;( vote\.sync\.all\.pred p, p, -1;)? @!p bra W; (D: )?\}", text)
    assert [bool(vote and end) for skip, vote, end in found if skip] == [True] and len(found) == 2
    assert "test_wait" not in compiled(2, "nowhere", target).ptx


@tile.jit(num_warps=8)
def handed(out, N, WHO: tile.constexpr):
    """Rows that a warpgroup stores in slots, for consumers of several widths."""
    ring = tile.ring(2, A=((32,), tile.int32), filled="stores", consumers=2 if WHO == "each" else 1)
    with tile.warpgroup(0):
        for i in range(N):
            with ring.produce() as slot:
                tile.store(slot.A, tile.arange(32) + i)
    if WHO == "elected":
        with tile.warp(4):
            with tile.elect():
                for i in range(N):
                    with ring.consume() as slot:
                        tile.store(out[i % 2, 0], tile.load(slot.A[3]))
                    ring.peek()
    elif WHO == "lanes":
        with tile.thread(range(128, 144)):
            for i in range(N):
                with ring.consume() as slot:
                    tile.store(out[i % 2, 0:32], tile.load(slot.A))
                    ring.peek()
    elif WHO == "each":
        with tile.each_warp(range(4, 6)) as w:
            for i in range(N):
                with ring.consume() as slot:
                    ring.peek()
                    tile.store(out[w - 4, 0:32], tile.load(slot.A))
    else:
        with tile.warpgroup(1):
            with ring.consume() as slot:
                tile.store(out[0, 0:32], tile.load(slot.A))
                ring.peek()
            for i in range(N // 2 - 1):
                with ring.consume() as first:
                    ring.peek()
                    with ring.consume() as second:
                        tile.store(out[0, 0:32], tile.load(first.A) + tile.load(second.A))
                        second.release()
                        ring.peek()
                if i > N:
                    break
                ring.peek()
            with ring.consume() as slot:
                tile.store(out[1, 0:32], tile.load(slot.A))


@pytest.mark.parametrize("who, masks", [("elected", []), ("lanes", ["65535"] * 2), ("each", ["-1"] * 2), ("nested", ["-1"] * 7)])
def test_scopes_of_all_widths_can_look_ahead(who, masks):
    n = 8
    first, last = {"elected": (3 + 6, 3 + 7), "nested": (11 + 2 * np.arange(32), 7 + np.arange(32))}.get(
        who, (np.arange(32) + (7 if who == "each" else 6), np.arange(32) + 7))
    for seed in range(4):
        out = np.zeros((2, 32), np.int32)
        assert not handed.simulate((1,), out, n, WHO=who, seed=seed).findings
        np.testing.assert_array_equal(out[:, 0] if who == "elected" else out, [first, last])
    for target in ("sm_80", "sm_90a", "sm_100a"):
        text = handed.compile(out, n, WHO=who, target=target).ptx.split("test_wait" if target == "sm_80" else "try_wait", 1)[1]
        looked = re.findall(r"test_wait[^;]*;(?: vote\.sync\.all\.pred p, p, (\S+);)? mov\.pred", text)
        assert looked and set(looked) == {masks[0] if masks else ""}


def test_a_scope_that_holds_all_slots_sees_nothing():
    @tile.jit(num_warps=8)
    def holds_all(out):
        ring = tile.ring(2, A=((32,), tile.int32), filled="stores")
        with tile.warpgroup(0):
            for i in range(2):
                with ring.produce() as slot:
                    tile.store(slot.A, tile.arange(32))
        with tile.warpgroup(1):
            with ring.consume() as first:
                ring.peek()
                with ring.consume() as second:
                    ring.peek()
                    tile.store(out[0:32], tile.load(first.A) + tile.load(second.A))
    out = np.zeros(32, np.int32)
    assert not holds_all.simulate((1,), out).findings and (out == 2 * np.arange(32)).all()
    assert holds_all.compile(out, target="sm_90a").ptx.count("test_wait") == 1


@pytest.mark.parametrize("where, line", [("producer", 5), ("around", 8)])
def test_a_scope_that_consumes_nothing_has_nothing_to_look_at(where, line):
    kernel = tile.jit(source=f"""
def kernel(out):
    ring = tile.ring(2, A=((32,), tile.int32), filled="stores")
    with tile.warpgroup(0):
        {"ring.peek()" if where == "producer" else "pass"}
        with ring.produce() as slot: tile.store(slot.A, tile.arange(32))
    with tile.warpgroup(1):
        {"ring.peek()" if where == "around" else "pass"}
        with tile.warp(4):
            with ring.consume() as slot: tile.store(out[0:32], tile.load(slot.A))
""", num_warps=8)
    with pytest.raises(tile.CompilationError, match="this scope consumes none of the ring: call it where consume.. is called") as caught:
        kernel.compile(tile.ArraySpec((32,), "int32"), target="sm_90a")
    assert caught.value.loc.line == line


@tile.jit(num_warps=16)
def delayed(X, out, TRIPS: tile.constexpr, PEEK: tile.constexpr):
    """A consumer takes every other row of a ring with one slot. Only a delay keeps it behind the one that takes the row before."""
    ring, side = tile.ring(1, A=((64,), tile.float32)), tile.ring(1, B=((64,), tile.float32))
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(2):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, X[i, 0:64], mbar=slot.full)
    with tile.warpgroup(3):
        with tile.elect():
            for _ in range(TRIPS):
                with side.produce() as slot:
                    tile.copy_async(slot.B, X[0, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        with ring.consume() as slot:
            tile.store(out[0, 0:64], tile.load(slot.A))
    with tile.warpgroup(2):
        ring.skip(1)
        for _ in range(TRIPS):
            with side.consume() as slot:
                tile.store(out[1, 0:64], tile.load(slot.B))
        if PEEK:
            ring.peek()
        with ring.consume() as slot:
            tile.store(out[1, 0:64], tile.load(slot.A))


@pytest.mark.parametrize("peek", [False, True])
@pytest.mark.parametrize("trips", [1, 4, 40])
def test_a_look_at_a_slot_that_only_time_keeps_back_is_found_like_a_wait(trips, peek):
    X = np.arange(128, dtype=np.float32).reshape(2, 64)
    for seed in range(8):
        assert delayed.simulate((1,), X, np.zeros((2, 64), np.float32), TRIPS=trips, PEEK=peek, seed=seed).findings


def in_turns(PEEK):
    @tile.jit(num_warps=12)
    def kernel(X, out):
        """Two consumers take rows in turn; the second one may look at its row before the first one has seen its own."""
        ring, baton = tile.ring(1, A=((64,), tile.float32)), tile.turns(2)
        with tile.warpgroup(0):
            with tile.elect():
                for i in range(6):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, X[i, 0:64], mbar=slot.full)
        with tile.each_warpgroup(range(1, 3)) as warpgroup:
            w = warpgroup - 1
            total = tile.zeros((64,), tile.float32)
            ring.skip(w)
            for i in range(3):
                if PEEK == "too early":
                    ring.peek()
                baton.take(w)
                if PEEK == "in turn":
                    ring.peek()
                with ring.consume() as slot:
                    total += tile.load(slot.A)
                ring.skip(1)
                baton.pass_on(w)
            tile.store(out[w, 0:64], total)
    return kernel


@pytest.mark.parametrize("peek", ["never", "in turn", "too early"])
def test_a_slot_is_looked_at_once_other_scopes_have_seen_those_that_it_skipped(peek):
    """Else the test is for a later phase of the same parity; the simulator says so."""
    X = np.arange(6 * 64, dtype=np.float32).reshape(6, 64)
    for seed in range(6):
        out = np.zeros((2, 64), np.float32)
        assert bool(in_turns(peek).simulate((1,), X, out, seed=seed).findings) == (peek == "too early")
        if peek != "too early":
            np.testing.assert_array_equal(out, X.reshape(3, 2, 64).sum(0))


def test_threads_of_a_scope_look_together():
    kernel = tile.jit(source="""
def kernel(out):
    ring = tile.ring(2, A=((32,), tile.int32), filled="stores")
    with tile.warpgroup(0):
        with ring.produce() as slot:
            tile.store(slot.A, tile.arange(32))
    with tile.warpgroup(1):
        if tile.thread_id() < 140: ring.peek()
        with ring.consume() as slot:
            tile.store(out[0:32], tile.load(slot.A))
""", num_warps=8)
    with pytest.raises(tile.CompilationError, match=re.escape("peek() of a ring needs all threads of the warpgroup")):
        kernel.compile(tile.ArraySpec((32,), "int32"), target="sm_90a")


@needs_gpu("sm_90a")
@needs_module("torch")
@in_child(timeout=240)
def test_rows_are_added_once_on_the_gpu():
    import torch
    X, counts, right = arrays(1000, 40)
    given = [torch.from_numpy(x).cuda() for x in (X, counts, right)]
    for stages in (1, 2, 3):
        for place in PLACES:
            out = torch.zeros_like(given[2])
            for _ in range(5):
                sums[1000,](given[0], out, given[1], STAGES=stages, PLACE=place)
                assert torch.equal(out, given[2]), (stages, place)
