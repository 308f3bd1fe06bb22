"""LLVM's passes for a GPU keep the bits that functions compute. LLVM 22 drops roundings to float16 where the range counts, and computes with
bfloat16 in float16; `toolchain.llvm` hides both (`hide_rounded_halves`, `hide_bfloats`)."""

import os
import platform
import re
import subprocess
import sys

import llvmlite.binding as binding
import numpy as np
import pytest
import tilejit as tile
from tilejit.toolchain import llvm

from tests.chosen_cases import all_cases
from tests.gpu import ROOT, in_child, needs_gpu
from tests.toolchain import random_functions

needs_halves = pytest.mark.skipif(platform.machine() != "x86_64" or not binding.get_host_cpu_features().get("f16c"), reason="the host's LLVM code needs F16C")


@needs_halves
def test_passes_for_a_gpu_keep_what_random_functions_compute():
    """In processes of their own: LLVM's code generator for the host aborts on one function in some thousands."""
    count, at, aborted = 3000 if all_cases() else 250, 0, 0
    while at < count:
        command = [sys.executable, "-W", "ignore", "-m", "tests.toolchain.random_functions", str(at), str(count - at)]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600)
        lines = done.stdout.split("\n")
        assert not (found := [line for line in lines if line.startswith("seed ")]), "\n".join(found)
        if done.returncode:
            assert "LLVM" in done.stderr or "SelectionDAG" in done.stderr, done.stderr
            aborted += 1
        at = int(lines[-2]) + 1
    assert aborted <= 1 + count // 500


@needs_halves
@pytest.mark.skipif(binding.llvm_version_info[0] != 22, reason="these are folds of LLVM 22; if a later version has none of them, it needs no hiding")
@pytest.mark.parametrize("hiding, seed", [("hide_bfloats", 117), ("hide_rounded_halves", 12)])
def test_a_fold_that_is_not_hidden_is_found(monkeypatch, hiding, seed):
    monkeypatch.setattr(llvm, hiding, lambda text: text)
    random_functions.prepare()
    assert random_functions.difference(seed).startswith(f"seed {seed}, numbers ")


@tile.jit(num_warps=1)
def rounded(x, o):
    """Integers whose known zeros leave them 8 bits, beyond the range of float16."""
    v = tile.cast(tile.load(x[0:32]), tile.int32)
    low, wide = v & 255, tile.cast(v & 255, tile.int64)
    tile.store(o[0, 0:32], tile.cast(tile.cast(low << 15, tile.float16), tile.float32))
    tile.store(o[1, 0:32], tile.cast(tile.cast(-low * 65536, tile.float16), tile.float32) + 1.0)
    tile.store(o[2, 0:32], tile.cast(tile.cast(tile.cast(low << 20, tile.float32), tile.float16), tile.float32))
    tile.store(o[3, 0:32], tile.cast(tile.cast(tile.cast(wide << 13, tile.float16), tile.float64), tile.float32))
    tile.store(o[4, 0:32], tile.cast(tile.where(v > 20, tile.cast(low << 15, tile.float16), tile.cast(low, tile.float16)), tile.float32))


def rounded_expected(x: np.ndarray) -> np.ndarray:
    low, wide = x.astype(np.int32) & 255, x.astype(np.int64) & 255
    with np.errstate(over="ignore"):
        halves = [(low << 15).astype(np.float16), (-low * 65536).astype(np.float16), (low << 20).astype(np.float16), (wide << 13).astype(np.float16),
                  np.where(x > 20, (low << 15).astype(np.float16), low.astype(np.float16))]
    found = np.stack(halves).astype(np.float32)
    found[1] += 1
    return found


def test_integers_beyond_float16_become_infinite_before_they_are_widened():
    x, o = np.arange(32, dtype=np.int32), np.zeros((5, 32), np.float32)
    rounded[1,](x, o)
    np.testing.assert_array_equal(o, rounded_expected(x))
    for target in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
        ptx = rounded.compile(x, o, target=target).ptx
        assert len(re.findall(r"cvt\.f(?:32|64)\.f16\b", ptx)) == 5


@tile.jit(num_warps=1)
def passed_on(x, o):
    """As in `rounded`, through operations that LLVM drops since the integers are not negative."""
    h = tile.cast((tile.load(x[0:32]) & 255) << 15, tile.float16)
    one, none = tile.cast(1.0, tile.float16), tile.cast(0.0, tile.float16)
    tile.store(o[0, 0:32], tile.cast(tile.abs(h), tile.float32))
    tile.store(o[1, 0:32], tile.cast(h * 1.0, tile.float32))
    tile.store(o[2, 0:32], tile.cast(h + 0.0, tile.float32))
    tile.store(o[3, 0:32], tile.cast(tile.maximum(h, h), tile.float32))
    tile.store(o[4, 0:32], tile.cast(tile.bitcast(tile.bitcast(h, tile.int16) & 0x7fff, tile.float16), tile.float32))
    tile.store(o[5, 0:32], tile.cast(tile.fma(h, one, none), tile.float32))
    tile.store(o[6, 0:32], tile.cast(tile.copysign(h, one), tile.float32))


def test_rounded_integers_that_operations_pass_on_are_not_widened_from_the_integers():
    x, o = np.arange(32, dtype=np.int32), np.zeros((7, 32), np.float32)
    passed_on[1,](x, o)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(o, np.broadcast_to((x << 15).astype(np.float16).astype(np.float32), o.shape))
    ptx = passed_on.compile(x, o, target="sm_90a").ptx
    assert "cvt.f32.f16" in ptx and not re.search(r"cvt\.rn\.f32\.[su](32|64)", ptx)


def test_what_is_computed_of_loaded_numbers_is_not_hidden():
    text = "  %a = load half, ptr %p\n  %b = fadd half %a, %a\n  %i = sitofp i32 %j to float\n  %f = fpext half %b to float\n"
    assert llvm.hide_rounded_halves(text) == text


def test_only_numbers_that_were_rounded_are_hidden():
    text = "  %a = load half, ptr %p\n  %f = fpext half %a to float, !dbg !1\n  %h = fptrunc float %f to half\n  %g = fpext half %h to float, !dbg !2\n"
    assert llvm.hide_rounded_halves(text) == text
    converting = text + "  %i = sitofp i32 %j to float\n"
    assert llvm.hide_rounded_halves(converting) == converting.replace(
        "  %g = fpext half %h to float, !dbg !2\n",
        '  %of.g = bitcast half %h to i16, !dbg !2\n  %g = call float asm "cvt.f32.f16 $0, $1;", "=f,h"(i16 %of.g), !dbg !2\n')


@needs_gpu()
@in_child()
def test_integers_beyond_float16_become_infinite_on_the_gpu():
    x, o = np.arange(32, dtype=np.int32), tile.to_device(np.zeros((5, 32), np.float32))
    rounded[1,](tile.to_device(x), o)
    np.testing.assert_array_equal(o.numpy(), rounded_expected(x))
