"""Hints of copy_async: they neither choose a path nor refuse one, and the record of the copy says which of them it does not use."""

import numpy as np
import pytest
import tilejit as tile

HINTS = ", prefetch=128, l2_promotion=256, prefetch_map=True"
SPEC = tile.ArraySpec((64, 64), "float32")
RAGGED = tile.ArraySpec((64, 33), "float16")

# path: (target, its options in @tile.jit, the kernel's lines, the hints that it does not use)
ALL = (("prefetch", "ldgsts"), ("l2_promotion", "tma"), ("prefetch_map", "tma"))
CASES = {
    "ldgsts": ("sm_90a", {}, "tile.copy_async(s, A[0:16, 0:64]{}).wait()", ALL[1:]),
    "tma": ("sm_90a", {}, "tile.copy_async(s, A[0:16, 0:64], variant='tma'{}).wait()", ALL[:1]),
    "bulk": ("sm_90a", {}, "tile.copy_async(s, A[0:16, 0:64], variant='bulk'{}).wait()", ALL),
    "vector": ("sm_90a", {}, "q = tile.alloc((16, 32), 'float16')\ntile.copy_async(q, H[0:16, 0:32]{}).wait()", ALL),
    "dsmem": ("sm_90a", {"cluster": (2, 1, 1)}, "with tile.elect():\n    tile.copy_async(t.peer(0), s, mbar=bar{})", ALL),
    "tcgen05_cp": ("sm_100a", {}, "q = tile.alloc((128, 32), A.dtype, layout=tile.swizzled(A.dtype, (128, 32), 128))\n"
                                  "d = tile.alloc((128, 32), A.dtype, scope='tmem')\nwith tile.elect():\n    tile.copy_async(d, q{})\n    tile.tcgen05_commit(bar)", ALL),
    "tcgen05_ldst": ("sm_100a", {}, "d = tile.alloc((128, 32), A.dtype, scope='tmem')\n"
                                    "tile.copy_async(d, tile.zeros((128, 32), A.dtype){})\ntile.tcgen05_wait('st')", ALL),
    "tma, by the launch's map": ("sm_90a", {}, "m = tile.tensor_map(A[0:16, 0:64])\ntile.copy_async(s, m[0:16, 0:64], mbar=bar{})",
                                 (ALL[0], ("l2_promotion", "tile.tensor_map"))),
    "tma, by a map that agrees": ("sm_90a", {}, "m = tile.tensor_map(A[0:16, 0:64], l2_promotion=256)\ntile.copy_async(s, m[0:16, 0:64], mbar=bar{})",
                                  ALL[:1]),
    "tma, by the kernel's map": ("sm_90a", {}, "m = tile.tensor_map(A[0:16, 0:64], slot=slots[0, 0:128])\ntile.copy_async(s, m[0:16, 0:64], mbar=bar{})",
                                 (ALL[0], ("l2_promotion", "tile.tensor_map"), ("prefetch_map", "a map of the launch"))),
}


@pytest.mark.parametrize("path", CASES)
def test_hints_leave_the_choice_as_it_is_and_those_that_have_no_use_are_told(path):
    target, options, lines, unused = CASES[path]
    records = []
    for hints in ("", HINTS):
        text = "def k(A, H, slots):\n    s = tile.alloc((16, 64), A.dtype)\n    t = tile.alloc((16, 64), A.dtype)\n    bar = tile.mbarrier()\n"
        text += "".join(f"    {line}\n" for line in lines.format(hints).splitlines())
        made = tile.jit(source=text, **options).compile(SPEC, RAGGED, tile.ArraySpec((1, 128), "uint8"), target=target)
        records.append(made.copies[-1])
    assert made.cubin and [r.variant for r in records] == [path.split(",")[0]] * 2
    assert (records[0].instructions, records[0].bytes, records[0].unused) == (records[1].instructions, records[1].bytes, ())
    assert records[1].unused == unused
    assert [line.strip() for line in made.explain().splitlines() if "which only" in line] == [f"without {h}=, which only {p} takes" for h, p in unused]
    assert ("prefetch.tensormap" in made.ptx) == (target == "sm_90a" and path.startswith("tma") and "kernel's" not in path)


@pytest.mark.parametrize("lines", [CASES["tcgen05_ldst"][2], CASES["tcgen05_cp"][2]])
def test_a_hint_of_no_such_value_is_refused_on_every_path(lines):
    text = "def k(A):\n    bar = tile.mbarrier()\n" + "".join(f"    {line}\n" for line in lines.format(", prefetch=100").splitlines())
    with pytest.raises(tile.CompilationError, match="prefetch is 64, 128 or 256 bytes of L2, not 100"):
        tile.jit(source=text).compile(SPEC, target="sm_100a")


def test_other_options_of_a_tile_to_tensor_memory_are_refused_besides_hints():
    text = "def k(A):\n    d = tile.alloc((128, 32), A.dtype, scope='tmem')\n    tile.copy_async(d, tile.zeros((128, 32), A.dtype), prefetch=64, cache='cg')\n"
    with pytest.raises(tile.CompilationError, match="the variant tcgen05_ldst, and has no other options than hints"):
        tile.jit(source=text).compile(SPEC, target="sm_100a")


def test_a_plan_asked_without_a_kernel_takes_hints_too():
    tensor, registers = (tile.BufferSpec((128, 32), "float32", scope) for scope in ("tmem", "local"))
    shared = tile.BufferSpec((128, 32), "float32", "shared", layout=tile.swizzled("float32", (128, 32), 128))
    hints = dict(prefetch=128, l2_promotion=0, prefetch_map=True)
    for sides, options in (((tensor, shared), {}), ((tensor, registers), dict(scope="warpgroup")), ((registers, tensor), dict(scope="warpgroup"))):
        given = tile.plan_copy(*sides, target="sm_100a", **options, **hints)
        assert given.plan == tile.plan_copy(*sides, target="sm_100a", **options).plan
    with pytest.raises(tile.CompilationError, match="l2_promotion is 0, 64, 128 or 256 bytes, not 1"):
        tile.plan_copy(tensor, registers, target="sm_100a", scope="warpgroup", l2_promotion=1)


BY_NAME = """
def by_name(A, B, slots):
    s = tile.alloc((8, 64), A.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(A[0:8, 0:64]{options})
    with tile.elect():
        {edits}
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[8:16, 0:64], mbar=bar, prefetch=64, l2_promotion=64, prefetch_map=True{given})
    bar.wait(phase=0)
    tile.store(B[0:8, 0:64], tile.load(s))
"""
EDITS = "m.seed()\n        m.rebind(A)\n        m.fence_release('cta')\n        m.fence_acquire('cta')"


def by_name(given="", edits="pass", **options):
    shown = "".join(f", {name}={value!r}" for name, value in options.items()) + (", slot=slots[0, 0:128]" if edits != "pass" else "")
    return tile.jit(source=BY_NAME.format(options=shown, edits=edits, given=given))


@pytest.mark.parametrize("edits", ["pass", EDITS])
def test_a_copy_by_a_named_map_with_hints_copies(edits):
    a, b = np.random.default_rng(0).random((12, 64), np.float32), np.ones((8, 64), np.float32)
    raw = np.zeros(256, np.uint8)
    by_name(edits=edits)[1,](a, b, raw[-raw.ctypes.data % 128:][:128].reshape(1, 128))
    assert (b[:4] == a[8:]).all() and not b[4:].any()


@pytest.mark.parametrize("given, words", [
    (", fill='nan'", "the map's own fill, if fill= is given: fill='nan' by a map that fills with zeros: give it to tile.tensor_map"),
    (", precision='tf32'", "for precision=: precision='tf32' by a map that does not round: give it to tile.tensor_map"),
])
def test_a_fill_or_a_rounding_is_the_map_s_and_may_be_repeated_by_the_copy(given, words):
    """Either would change the bytes that arrive, so one that the map does not have is refused."""
    specs = SPEC, SPEC, tile.ArraySpec((1, 128), "uint8")
    name, value = given[2:].split("=")
    assert by_name(given, **{name: eval(value)}).compile(*specs).copies[0].variant == "tma"
    with pytest.raises(tile.DispatchError) as error:
        by_name(given).compile(*specs)
    assert words in str(error.value)
