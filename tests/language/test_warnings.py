"""Warnings: issued once, listed in the compiled kernel, and filtered like Python's."""

import warnings

import pytest
import tilejit as tile

SPILLS = """
def wide(x, y, n):
    v = tile.load(x[0:4096], other=0.0)
    w = tile.load(x[1:4097], other=0.0)
    for i in range(n):
        v, w = v * w, w + 1.0
    tile.store(y[0:4096], v + w)
"""
SPECS = tile.ArraySpec((4097,), "float32"), tile.ArraySpec((4096,), "float32"), 3


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))


def spilling(**options):
    return tile.jit(source=SPILLS, num_warps=1, **options)


def test_a_kernel_that_spills_warns_once_with_the_bytes_and_how_to_accept_them():
    kernel = spilling()
    with pytest.warns(tile.TileWarning) as told:
        compiled = kernel.compile(*SPECS)
        kernel.compile(*SPECS)
    (warning,) = told
    assert compiled.spills > 0 and warning.filename == __file__
    assert str(warning.message).startswith(f"wide: registers spill: {compiled.spills} bytes")
    assert f"spills={compiled.spills} accepts it" in str(warning.message) and compiled.warnings[-1] in str(warning.message)


def test_a_kernel_that_spills_warns_also_when_loaded_from_the_cache():
    for cached in (False, True):
        with pytest.warns(tile.TileWarning, match="registers spill"):
            compiled = spilling().compile(*SPECS)
        assert (list(compiled.compile_time) == ["cache"]) == cached


def test_a_kernel_with_spills_set_does_not_warn_about_them():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = spilling(spills=4096).compile(*SPECS)
    assert 0 < compiled.spills <= 4096 and compiled.warnings == ()


@pytest.mark.parametrize("allowed", [0, 4])
def test_a_kernel_that_exceeds_its_spills_does_not_compile(allowed):
    for _ in range(2):  # nothing of the first attempt is taken for a kernel
        with pytest.raises(tile.CompilationError, match=f"the kernel spills .* bytes of registers, and spills={allowed} allows no more") as caught:
            spilling(spills=allowed).compile(*SPECS)
        assert "def wide" in str(caught.value)


def test_a_kernel_that_spills_warns_after_it_ran_on_the_simulator():
    import numpy as np
    kernel, x, y = spilling(), np.ones(4097, np.float32), np.ones(4096, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[1](x, y, 3)
    with pytest.warns(tile.TileWarning, match="registers spill"):
        kernel.compile(x, y, 3)


def test_warnings_can_be_made_errors_and_silenced():
    kernel = spilling()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tile.TileWarning)
        with pytest.raises(tile.TileWarning, match="registers spill"):
            kernel.compile(*SPECS)
        warnings.simplefilter("ignore", tile.TileWarning)
        assert kernel.compile(*SPECS).spills > 0
