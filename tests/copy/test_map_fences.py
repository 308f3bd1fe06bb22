"""The distance between the thread that edits a tensor map and those that copy with it, and the fence scope that it needs.

On a GPU the fences of all scopes are the same instruction, so only the simulator can find one that is too narrow.
"""

import numpy as np
import pytest
import tilejit as tile
from named_map_kernels import across_the_grid, aligned, in_a_cluster, made, rebound, rows_by, used

SCOPES = ("cta", "cluster", "gpu", "sys")


@tile.jit(num_warps=1)
def alone(template, A, slots, out, RELEASE: tile.constexpr, ACQUIRE: tile.constexpr, EDIT: tile.constexpr):
    """A CTA edits its map and copies with it."""
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(template[0:8, 0:64], slot=slots[0, 0:128], edit=EDIT)
    rebound(m, A, RELEASE, EDIT)
    tile.store(out[0:8, 0:64], rows_by(m, s, bar, 0, ACQUIRE))


def arrays():
    template, a = aligned((8, 64), np.float32), aligned((32, 64), np.float32)
    a[:] = np.random.default_rng(3).random((32, 64))
    return template, a


def check_scopes(report, out, want, needed: str, release: str, acquire: str) -> None:
    """Check that sufficient scopes have no findings and the right bytes, and that findings for others name the needed scope."""
    narrow = [(word, scope) for word, scope in (("released", release), ("acquired", acquire)) if SCOPES.index(scope) < SCOPES.index(needed)]
    if not narrow:
        assert not report.findings and (out == want).all(), report
        return
    (finding,) = report.findings
    word, scope = narrow[0]
    assert finding.kind == "missing-proxy-fence" and f"was {word} for {scope!r} only: scope {needed!r} is needed" in finding.message


EVERY = pytest.mark.parametrize("release, acquire",
                                [(s, s) for s in SCOPES] + [("sys", "cta"), ("cta", "sys"), ("gpu", "cluster"), ("cluster", "gpu")])
BOTH = pytest.mark.parametrize("edit", ["global", "shared"])


@BOTH
@EVERY
def test_within_a_cta_every_scope_suffices(release, acquire, edit):
    template, a = arrays()
    out = np.zeros((8, 64), np.float32)
    report = alone.simulate((1,), template, a, aligned((1, 128)), out, RELEASE=release, ACQUIRE=acquire, EDIT=edit)
    check_scopes(report, out, a[:8], "cta", release, acquire)


@BOTH
@EVERY
def test_another_cta_of_the_cluster_needs_cluster_scope_or_wider(release, acquire, edit):
    template, a = arrays()
    out = np.zeros((1, 32, 64), np.float32)
    report = in_a_cluster.simulate((4,), template, a, aligned((1, 128)), out, RELEASE=release, ACQUIRE=acquire, EDIT=edit)
    check_scopes(report, out[0], a, "cluster", release, acquire)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_cta_of_another_cluster_needs_gpu_scope_or_wider(scope):
    template, a = arrays()
    out = np.zeros((32, 64), np.float32)
    report = across_the_grid.simulate((4,), template, a, aligned((1, 128)), np.zeros(1, np.int32), out, SCOPE=scope)
    check_scopes(report, out, a, "gpu", scope, scope)


@BOTH
@EVERY
def test_the_next_kernel_needs_gpu_scope_or_wider(release, acquire, edit):
    """The map outlives its launch, and so does the scope of its release."""
    template, a = arrays()
    slots, out = aligned((1, 128)), np.zeros((32, 64), np.float32)
    assert not made.simulate((1,), template, a, slots, RELEASE=release, EDIT=edit).findings
    report = used.simulate((4,), template, a, slots, out, ACQUIRE=acquire)
    check_scopes(report, out, a, "gpu", release, acquire)
    if report.findings:
        assert "of an earlier launch in a CTA of that launch" in report.findings[0].message


def test_the_next_kernel_must_acquire_too():
    """The end of a kernel releases nothing to the tensormap proxy, and an acquire counts only for its own launch."""
    template, a = arrays()
    slots, out = aligned((1, 128)), np.zeros((32, 64), np.float32)
    made.simulate((1,), template, a, slots, RELEASE="gpu", EDIT="global").raise_first()
    used.simulate((4,), template, a, slots, out, ACQUIRE="gpu").raise_first()
    (finding,) = used.simulate((4,), template, a, slots, out, ACQUIRE=None).findings
    assert finding.kind == "missing-proxy-fence" and "without .fence_acquire(scope) after its edit at line" in finding.message
    assert "of an earlier launch" in finding.message


def test_a_map_overwritten_between_two_kernels_is_invalid():
    template, a = arrays()
    slots, out = aligned((1, 128)), np.zeros((32, 64), np.float32)
    made.simulate((1,), template, a, slots, RELEASE="gpu", EDIT="global").raise_first()
    slots[:] = 0
    finding = used.simulate((4,), template, a, slots, out, ACQUIRE="gpu").findings[0]
    assert finding.kind == "descriptor" and "that nothing has written" in finding.message


def test_a_map_that_points_to_no_argument_of_its_launch_is_a_finding():
    """The array to which an earlier kernel bound it is not an argument of this one."""
    template, a = arrays()
    slots, out = aligned((1, 128)), np.zeros((32, 64), np.float32)
    made.simulate((1,), template, a, slots, RELEASE="gpu", EDIT="global").raise_first()
    report = used.simulate((4,), template, a.copy(), slots, out, ACQUIRE="gpu")
    assert any(f.kind == "descriptor" and "which is in no array of the launch" in f.message for f in report.findings), report


def test_two_ctas_that_edit_one_slot_race():
    template, a = arrays()
    report = alone.simulate((2,), template, a, aligned((1, 128)), np.zeros((8, 64), np.float32), RELEASE="gpu", ACQUIRE="gpu", EDIT="global")
    assert "race" in {f.kind for f in report.findings}
