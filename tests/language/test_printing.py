"""Printing from kernels: scalars by thread or once, tiles whole."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import needs_gpu, run_child

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit(num_warps=1)
def printing(x):
    if tile.thread_id() < 2:
        tile.device_print("element", tile.thread_id(), tile.load(x[tile.thread_id()]))


@tile.jit
def in_scopes(n):
    tile.device_print("here")
    tile.device_print("n is", n, tile.program_id(0))
    with tile.warp(1):
        tile.device_print("warp", tile.uint32(n))
    with tile.elect():
        tile.device_print("100%", n)


@tile.jit(num_warps=2)
def with_a_tile(x, n):
    v = tile.load(x[0:3, 0:9])
    if tile.program_id(0) == 1:
        tile.device_print("v", v, n, v > 12)


def lines_of(capfd) -> list[str]:
    return capfd.readouterr().out.splitlines()


def texts_of(compiled) -> list[str]:
    """The formats that the compiled kernel prints by."""
    return re.findall(r'c"(.*)\\0A\\00"', compiled.llvm_ir)


def test_scalars_that_differ_are_printed_by_each_active_thread(capfd):
    printing[(1,)](np.array([3.5, 4.5, 5.5], np.float32))
    assert lines_of(capfd) == ["cta 0 thread 0: element 0 3.5", "cta 0 thread 1: element 1 4.5"]


def test_uniform_scalars_are_printed_once_for_the_scope(capfd):
    in_scopes[2,](7)
    assert lines_of(capfd) == [
        "cta 0: here", "cta 1: here", "cta 0: n is 7 0", "cta 1: n is 7 1", "cta 0 thread 32: warp 7", "cta 1 thread 32: warp 7",
        "cta 0 thread 0: 100% 7", "cta 1 thread 0: 100% 7"]


def test_a_tile_is_printed_whole_after_the_scalars_by_the_ctas_that_come_there(capfd):
    x = np.arange(60, dtype=np.int16).reshape(6, 10)
    with_a_tile[2,](x, 7)
    v = x[:3, :9]
    assert capfd.readouterr().out == f"cta 1: v 7\ncta 1: v\n{v}\ncta 1: v\n{v > 12}\n"


def test_no_element_of_a_large_tile_is_left_out(capfd):
    @tile.jit
    def large(x):
        tile.device_print("x", tile.load(x[0:2048]))
    large[1,](np.arange(2048, dtype=np.int32))
    assert [int(word) for word in re.findall(r"\d+", capfd.readouterr().out)] == [0, *range(2048)]


@pytest.mark.parametrize("dtype", ["bool", "uint32", "uint64", "bfloat16", "float8_e4m3fn", "float64"])
def test_tiles_of_any_dtype_compile_to_lines_with_indices(dtype):
    @tile.jit(num_warps=1)
    def kernel(x):
        tile.device_print("x", tile.load(x[0:2, 0:9]))
    code = {"bool": "%d", "uint32": "%u", "uint64": "%llu"}.get(dtype, "%g")
    assert texts_of(kernel.compile(tile.ArraySpec((2, 9), dtype), target="sm_90a")) == [
        "cta %d: x[%d, %d:%d]" + 8 * f" {code}", f"cta %d: x[%d, 8:9] {code}"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_printing_assembles(target):
    assert texts_of(printing.compile(tile.ArraySpec((3,), "float32"), target=target)) == ["cta %d thread %d: element %d %g"]
    assert texts_of(in_scopes.compile(7, target=target)) == [
        "cta %d: here", "cta %d: n is %d %d", "cta %d thread %d: warp %u", "cta %d thread %d: 100%% %d"]


def test_tiles_of_any_rank_are_printed_in_any_scope(capfd):
    @tile.jit(num_warps=2)
    def kernel(x):
        with tile.warp(1):
            tile.device_print("cube", tile.load(x[0:2, 0:2, 0:3]))
        with tile.elect():
            tile.device_print("row", tile.load(x[1, 1, 0:3]))
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    kernel[1,](x)
    cube, row = f"cta 0 thread 32: cube\n{x}\n", "cta 0 thread 0: row\n[ 9. 10. 11.]\n"
    assert capfd.readouterr().out in (cube + row, row + cube)
    assert texts_of(kernel.compile(x, target="sm_90a")) == [
        "cta %d thread %d: cube[%d, %d, 0:3] %g %g %g", "cta %d thread %d: row[0:3] %g %g %g"]


def test_a_tile_is_not_printed_where_threads_have_diverged():
    @tile.jit
    def kernel(x):
        v = tile.load(x[0:32])
        if tile.thread_id() < 2:
            tile.device_print("v", v)
    with pytest.raises(tile.CompilationError, match="device_print of a tile needs all threads of the cta"):
        kernel.compile(tile.ArraySpec((32,), "float32"))


def print_on_the_gpu():
    in_scopes[2,](7, backend="cuda")
    x = tile.to_device(np.arange(60, dtype=np.int16).reshape(6, 10))
    with_a_tile[2,](x, 7)
    x.numpy()


@needs_gpu()
def test_the_gpu_prints_the_same_lines_and_tiles_in_order():
    lines = run_child(print_on_the_gpu).splitlines()
    assert sorted(lines[:8]) == sorted([
        "cta 0: here", "cta 1: here", "cta 0: n is 7 0", "cta 1: n is 7 1", "cta 0 thread 32: warp 7",
        "cta 1 thread 32: warp 7", "cta 0 thread 0: 100% 7", "cta 1 thread 0: 100% 7"])
    shown = [f"cta 1: v[{r}, {c}:{min(c + 8, 9)}] " + " ".join(str(10 * r + k) for k in range(c, min(c + 8, 9)))
             for r in range(3) for c in (0, 8)]
    assert lines[8:15] == ["cta 1: v 7", *shown]
