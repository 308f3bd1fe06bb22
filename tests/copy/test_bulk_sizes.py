"""Bulk copies with a runtime size, and the bytes of one phase: either correct, or a finding."""

import numpy as np
import pytest
import tilejit as tile
from bulk_size_kernels import COPIES, LIMIT, REST, WORDS, A, counted, loaded, over_ones, stored, to_peer, totals
from tilejit.errors import CompilationError
from tilejit.plan import BufferSpec, plan_copy


@pytest.mark.parametrize("n", [0, 16, 48, 240, 256])
def test_a_runtime_size_moves_exactly_its_bytes_and_none_if_it_is_zero(n):
    """A copy of zero bytes is legal; a phase without announced bytes ends with its arrivals."""
    for kernel, grid, more in ((loaded, 1, (n,)), (to_peer, 2, (n,))):
        b = np.zeros(64, np.float32)
        report = kernel.simulate((grid,), A, b, n, *more)
        assert not report.findings and (b == over_ones(n)).all(), report
    b = np.ones(64, np.float32)
    assert not stored.simulate((1,), A, b, n).findings and (b == over_ones(n)).all()


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_a_runtime_size_is_a_register_operand(target):
    b = np.zeros(64, np.float32)
    for compiled in (loaded.compile(A, b, 16, 16, target=target), stored.compile(A, b, 16, target=target), to_peer.compile(A, b, 16, 16, target=target)):
        (line,) = [line for line in compiled.ptx.splitlines() if "cp.async.bulk." in line and "group;" not in line and "wait_group" not in line]
        assert line.split("], ")[2].startswith("%") and compiled.cubin


def findings(kernel, *arguments) -> list[tuple[str, str]]:
    """(kind, message) of each finding, which must be at the line of the copy or of the announcement."""
    return [(f.kind, f.message) for f in kernel.simulate((2 if kernel is to_peer else 1,), *arguments).findings]


@pytest.mark.parametrize("n, moved", [(8, 0), (24, 16), (255, 240)])
def test_a_size_that_is_not_a_multiple_of_16_is_found_whatever_is_announced(n, moved):
    """The hardware silently rounds it down, and counts the bytes that it moves: if the full size is announced, the phase never ends."""
    b = np.zeros(64, np.float32)
    words = f"a bulk copy must move a multiple of 16 bytes; {n} are silently rounded down"
    for kernel in (loaded, to_peer):
        assert [f[0] for f in findings(kernel, A, b, n, moved)] == ["misaligned"]
        assert (b == over_ones(moved)).all()
        (first, more) = findings(kernel, A, b, n, n)
        assert (first[0], more[0]) == ("misaligned", "transaction-count") and words in first[1] and f"{n} bytes are announced" in more[1]
    assert [f[0] for f in findings(stored, A, b, n)] == ["misaligned"]


@pytest.mark.parametrize("n, announced", [(32, 16), (16, 32), (0, 16), (256, 0), (16, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_transferring_more_or_less_than_announced_is_found(n, announced, seed):
    """With less, the phase never ends; with more, it ends too early. With nothing announced, the phase may end before a peer's copy,
    which then races with the reader."""
    b = np.zeros(64, np.float32)
    for kernel, grid in ((loaded, 1), (to_peer, 2)):
        found = kernel.simulate((grid,), A, b, n, announced, seed=seed).findings
        assert found[0].kind == "transaction-count" or (kernel is to_peer and announced == 0 and found[0].kind == "race"), found


@pytest.mark.parametrize("n", [272, 1024, -16])
def test_a_size_beyond_a_buffer_or_an_array_is_found(n):
    """512 bytes are in the array, 256 in each buffer and in the destination."""
    b = np.zeros(64, np.float32)
    for kernel, more in ((loaded, (n,)), (to_peer, (n,)), (stored, ())):
        kinds = [k for k, _ in findings(kernel, A, b, n, *more)]
        assert "out-of-bounds" in kinds, (kernel, kinds)


# -- the bytes of one phase --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("alone", [0, LIMIT % 16])
def test_copies_of_one_phase_may_transfer_as_many_bytes_as_a_barrier_counts(early, alone):
    """Exactly 2^20 - 1, including those that a thread completes itself, since copies are multiples of 16 bytes; announced
    before or after."""
    assert 4 * (COPIES * WORDS + REST) + LIMIT % 16 == LIMIT and REST
    options = dict(N=COPIES, MORE=REST, ALONE=alone, EARLY=early)
    for seed in range(2):
        b = np.zeros(WORDS, np.uint32)
        report = counted.simulate((2,), b, seed=seed, **options)
        assert not report.findings and (b == totals(COPIES, REST)).all(), report
    assert counted.compile(b, **options).cubin


@pytest.mark.parametrize("early, verb", [(False, "announced"), (True, "sent")])
@pytest.mark.parametrize("n, more, nbytes", [(COPIES, REST + 4, LIMIT + 1), (COPIES + 1, 0, (COPIES + 1) * WORDS * 4),
                                             (3 * COPIES, 0, 3 * COPIES * WORDS * 4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_copies_of_one_phase_that_transfer_more_are_found(early, verb, n, more, nbytes, seed):
    """The hardware faults, if the pending bytes ever exceed the limit; the order of announcements and arrivals is chance."""
    found = counted.simulate((2,), np.zeros(WORDS, np.uint32), N=n, MORE=more, ALONE=0, EARLY=early, seed=seed).findings
    assert found[0].kind == "transaction-count"
    first = min(nbytes, (COPIES + 1) * WORDS * 4)
    assert f"{first} bytes are {verb} in one phase of an mbarrier, and it counts at most {LIMIT}" in found[0].message


@pytest.mark.parametrize("line", ["bar.expect_tx({})", "bar.arrive_expect_tx({})"])
def test_an_announcement_beyond_what_a_barrier_counts_is_an_error(line):
    text = "def k(B):\n    bar = tile.mbarrier(count=2)\n    with tile.elect():\n        " + line
    tile.jit(source=text.format(LIMIT)).compile(A)
    with pytest.raises(CompilationError, match=f"is 0 to {LIMIT} in one phase"):
        tile.jit(source=text.format(LIMIT + 1)).compile(A)


@pytest.mark.parametrize("rows, columns", [(4096, 64), (LIMIT // 1024 + 1, 256)])
def test_a_copy_of_more_bytes_is_declined_by_every_path_that_uses_a_barrier(rows, columns):
    """And a call with mbar= has no other path."""
    of, to = BufferSpec((rows, columns), "float32", "global"), BufferSpec((rows, columns), "float32", "shared")
    for variant, source, options in (("tma", of, {}), ("bulk", of, {}), ("dsmem", to, {"peer": 1})):
        with pytest.raises(CompilationError, match=rf"at most 2\^20 - 1 bytes, as a barrier counts: {rows * columns * 4} bytes"):
            plan_copy(to, source, variant=variant, **options)
