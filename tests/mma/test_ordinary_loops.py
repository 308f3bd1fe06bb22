"""For an ordinary loop, a compiled kernel reports whether the loads of its products could be prefetched by a pipelined one."""

import warnings

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.mma.products import BF16, E4M3
from tests.mma.test_staged_operands import TARGETS

LOOP = "for ... in tile.pipelined(range(...), stages="


def spec(*shape, dtype="float16", strides=None):
    return tile.ArraySpec(shape, dtype, strides)


def compiled(body, loop="range(0, A.shape[1], 32)", target="sm_90a", before="", specs=None, parameters="A, B, C, n"):
    """A product of tiles of 64 by 64; `loop` is the loop header over k, and `body` loads a and b."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    kernel = tile.jit(source=f"""
def kernel({parameters}):
    acc, at, s = tile.zeros((64, 64)), 0, tile.alloc((64, 32), A.dtype)
    {before}
    for k in {loop}:
{lines}        acc = tile.dot(a, b, acc)
    tile.store(C[0:64, 0:64], acc)
""")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tile.TileWarning)
        return kernel.compile(*(specs or (spec(64, 4096), spec(4096, 64), spec(64, 64, dtype="float32"))), 5, target=target)


A, B = "a = tile.load(A[0:64, k:k + 32])", "b = tile.load(B[k:k + 32, 0:64])"
BOTH = f"{A}\n{B}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.usefixtures("assembled_later")
def test_a_loop_whose_loads_could_be_prefetched_is_reported_with_their_lines(target):
    made = compiled(BOTH, target=target)
    loop, = made.loops
    assert loop.source == "for k in range(0, A.shape[1], 32):" and loop.loads == (loop.line + 1, loop.line + 2) and loop.stages == 3
    words = f"are loaded at lines {loop.line + 1}, {loop.line + 2} in the iteration that uses them"
    assert words in made.explain() and f"{LOOP}3)" in made.explain() and not made.warnings
    ahead = compiled(BOTH, "tile.pipelined(range(0, A.shape[1], 32), stages=3)", target=target)
    assert ahead.loops == () and LOOP not in ahead.explain() and {c.line for c in ahead.copies} == set(loop.loads) and not ahead.warnings


@pytest.mark.parametrize("body", [f"a = tile.load(A[0:64, k:k + 32], mask=(k + tile.arange(32))[None, :] < n)\n{B}",
                                  f"a = tile.load(A[0:64, k:k + 32], other=1)\n{B}",
                                  f"if n > 3:\n    {A}\nelse:\n    a = tile.zeros((64, 32), A.dtype)\n{B}"])
@pytest.mark.usefixtures("assembled_later")
def test_a_loop_whose_loads_have_masks_or_other_values_or_stand_in_branches_is_reported_too(body):
    assert len(compiled(body).loops) == 1


SILENT = {
    "a cache operator": (f"a = tile.load(A[0:64, k:k + 32], cache='cs')\n{B}", {}),
    "what the kernel writes": (BOTH, dict(parameters="A, B, C, n", before="tile.store(A[0:64, 0:32], 0)")),
    "a place that the loop changes": (f"a = tile.load(A[0:64, at:at + 32])\nat += 32 + n\n{B}", {}),
    "a branch that the loop changes": (f"if at > 3:\n    {A}\nelse:\n    a = tile.zeros((64, 32), A.dtype)\nat += n\n{B}", {}),
    "what others may write": (f"if tile.load(C[0, 0], sem='acquire') > 0:\n    at += 1\n{BOTH}", {}),
    "copies that slow down": (BOTH, dict(specs=(spec(64, 4096, strides=(8193, 2)), spec(4096, 64), spec(64, 64, dtype="float32")))),
    "an unrolled loop": (BOTH, dict(loop="tile.range(0, A.shape[1], 32, unroll=2)")),
    "a loop that is left": (f"if tile.load(B[k, 0]) > 3:\n    break\n{BOTH}", {}),
    "no load": ("a = tile.zeros((64, 32), A.dtype) + k\nb = tile.zeros((32, 64), A.dtype)", {}),
    "a loop of trips written out": (BOTH, dict(loop="tile.static_range(0, 128, 32)")),
    "more shared memory than there is": (BOTH, dict(before="room = tile.alloc((208 * 1024,), tile.uint8)\n    tile.store(room[0:32], 0)")),
}


@pytest.mark.parametrize("why", SILENT)
@pytest.mark.usefixtures("assembled_later")
def test_nothing_is_reported_if_the_loads_could_not_be_prefetched(why):
    body, options = SILENT[why]
    assert compiled(body, **options).loops == ()


@pytest.mark.usefixtures("assembled_later")
def test_the_suggested_number_of_stages_fits_in_memory():
    room = "room = tile.alloc(({} * 1024,), tile.uint8)\n    tile.store(room[0:32], 0)"
    assert [[x.stages for x in compiled(BOTH, before=room.format(kilobytes)).loops] for kilobytes in (160, 188, 198)] == [[3], [2], []]


@pytest.mark.usefixtures("assembled_later")
def test_of_nested_loops_the_innermost_is_reported():
    @tile.jit
    def kernel(A, B, C, PIPELINED: tile.constexpr):
        for m in tile.pipelined(range(0, A.shape[0], 64), stages=2) if PIPELINED else range(0, A.shape[0], 64):
            first = tile.load(A[m:m + 64, 0:32])
            acc = tile.dot(first, first, trans_b=True)
            for k in range(0, A.shape[1], 32):
                acc = tile.dot(tile.load(A[m:m + 64, k:k + 32]), tile.load(B[k:k + 32, 0:64]), acc)
            tile.store(C[m:m + 64, 0:64], acc)

    specs = spec(256, 4096), spec(4096, 64), spec(256, 64, dtype="float32")
    assert [loop.source for loop in kernel.compile(*specs, PIPELINED=False).loops] == ["for k in range(0, A.shape[1], 32):"]
    assert kernel.compile(*specs, PIPELINED=True).loops == ()


@tile.jit
def product(A, B, C, TA: tile.constexpr, STAGES: tile.constexpr, OTHER: tile.constexpr):
    acc = tile.zeros((64, 64), tile.float32 if A.dtype.is_float else tile.int32)
    for k in tile.pipelined(range(0, B.shape[0], 64), stages=STAGES) if STAGES else range(0, B.shape[0], 64):
        a = tile.load(A[k:k + 64, 0:64]).T if TA else tile.load(A[0:64, k:k + 64])
        b = tile.load(B[k:k + 64, 0:64], other=OTHER)
        acc = tile.dot(a, b, acc)
    tile.store(C[0:64, 0:64], acc)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(TARGETS)), st.sampled_from([np.float16, BF16, E4M3, np.int8, np.float32]), st.sampled_from([128, 127, 124]),
       st.sampled_from([64, 63, 60]), st.booleans(), st.booleans(), st.sampled_from([0, 1]))
def test_the_report_agrees_with_the_pipelined_loop(target, dtype, k, n, ta, turned, other):
    """Three stages are suggested exactly if a pipelined loop with three would prefetch all loads of its products without a warning."""
    if dtype == E4M3 and target == "sm_80":
        return
    a, b = np.zeros((k, 64) if ta else (64, k), dtype), np.zeros((n, k), dtype).T if turned else np.zeros((k, n), dtype)
    arrays = a, b, np.zeros((64, n), np.int32 if dtype == np.int8 else np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tile.TileWarning)
        versions = [lowered(product, *arrays, TA=ta, STAGES=stages, OTHER=other, target=target) for stages in (0, 3)]
    ordinary, ahead = versions
    assert ([loop.stages for loop in ordinary.loops] == [3]) == (not any("does not run ahead" in str(w) for w in ahead.warnings))
    assert not ahead.loops


def lowered(kernel, *args, target, **constants):
    bound, options, _ = kernel.bind(args, constants)
    return kernel.version(bound, options, target).lowered


@pytest.mark.usefixtures("assembled_later")
def test_facts_queried_for_the_report_are_no_guards():
    product.versions.clear()
    assert product.compile(spec(64, 128), spec(128, 64), spec(64, 64, dtype="float32"), TA=False, STAGES=0, OTHER=0, target="sm_90a").loops
    (version,), = product.versions.values()
    assert not any(fact[0] == "no_overlap" for fact in version.facts)


def test_a_cached_kernel_has_the_report_of_the_compiled_one(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    cold, warm = (compiled(BOTH) for _ in range(2))
    assert list(warm.compile_time) == ["cache"] and warm.loops == cold.loops != ()
    assert warm.explain().splitlines()[:-1] == cold.explain().splitlines()[:-1]
