"""What a newcomer meets in the first hour: mistakes, and the messages that say what to write instead."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tilejit as tile

x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


@tile.jit
def copied(x, y, BLOCK: tile.constexpr):
    tile.store(y[0:BLOCK], tile.load(x[0:BLOCK]))


def message(call, kind=tile.TileError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def written(code: str, *args, **options):
    """A call of a kernel of this text with the arguments x, y and more."""
    kernel = tile.jit(source=f"def kernel({', '.join(('x, y', *'nmk'[:len(args)]))}):\n    {code}\n")
    kernel.source.globals.update(globals())
    return lambda: kernel[1](x, y, *args, **options)


# {code: the message, whole, without the place of the kernel}
FORGOTTEN = {
    "tile.store(y[0:n], tile.load(x[0:n]))": (
        "the extent of a slice (stop - start) must be a constant; n is a number of the launch: declare the parameter as n: tile.constexpr\n"
        "  <source>:2:16, in kernel\n    tile.store(y[0:n], tile.load(x[0:n]))\n               ^^^^^^"),
    "tile.store(y[0:64], tile.zeros((n,), tile.float32))": (
        "the extents of a shape are constants: declare them as tile.constexpr parameters; n is a number of the launch: declare the parameter as n: "
        "tile.constexpr\n  <source>:2:25, in kernel\n    tile.store(y[0:64], tile.zeros((n,), tile.float32))\n"
        "                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"),
    "for i in tile.static_range(n): pass": (
        "static_range is unrolled while compiling, and a scalar int32 is known at run time only; use range; n is a number of the launch: declare the "
        "parameter as n: tile.constexpr\n  <source>:2:14, in kernel\n    for i in tile.static_range(n): pass\n             ^^^^^^^^^^^^^^^^^^^^"),
    "for i in tile.pipelined(range(4), stages=n): pass": (
        "stages is a constant from 1 to 64, not a scalar int32; n is a number of the launch: declare the parameter as n: tile.constexpr\n"
        "  <source>:2:14, in kernel\n    for i in tile.pipelined(range(4), stages=n): pass\n             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"),
    "tile.store(y[0], tile.sum(tile.load(x[0:64]), axis=n))": (
        "an axis is a constant integer, not a scalar int32; n is a number of the launch: declare the parameter as n: tile.constexpr\n"
        "  <source>:2:22, in kernel\n    tile.store(y[0], tile.sum(tile.load(x[0:64]), axis=n))\n                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"),
}


@pytest.mark.parametrize("code", FORGOTTEN)
def test_a_forgotten_constexpr_names_the_parameter(code):
    assert message(written(code, 2)) == FORGOTTEN[code]


def test_a_kernel_is_no_method():
    kernel = tile.jit
    with pytest.raises(tile.CompilationError) as caught:
        class Model:
            @kernel
            def forward(self, x):
                tile.store(x[0], 1.0)
    assert str(caught.value).partition(": ")[2] == (
        "forward is a method of Model, and a kernel is a plain function: write it outside the class, let a method launch it, "
        "and pass what it needs of self as arguments")

    class Namespace:
        @tile.jit
        def fine(x, y):
            tile.store(y[0], tile.load(x[3]))

    Namespace.fine[1](x, y)
    assert y[0] == 3


def test_a_dtype_and_a_complex_number_are_no_run_time_arguments():
    assert message(lambda: copied[1](x, tile.float16, BLOCK=4)) == (
        "copied: y is the dtype float16, which is known while compiling: declare the parameter as y: tile.constexpr")
    assert message(lambda: copied[1](x, 2j, BLOCK=4)) == (
        "copied: y is a complex number, and kernels have none: pass its real and its imaginary part")


def test_a_grid_function_with_a_wrong_name_is_told_the_right_one():
    assert message(lambda: copied[lambda a: (64 // a["BLOK"],)](x, y, BLOCK=4)) == (
        "the grid function raised KeyError: 'BLOK' (did you mean 'BLOCK'?); it is called with the launch's arguments by name: x, y, BLOCK")
    assert message(lambda: copied[lambda a: (64 // a.BLOCK,)](x, y, BLOCK=4)) == (
        "the grid function raised AttributeError: 'dict' object has no attribute 'BLOCK'; write ['BLOCK']; it is called with the launch's "
        "arguments by name: x, y, BLOCK")
    assert message(lambda: copied[lambda a: 64 / a["BLOCK"]](x, y, BLOCK=4)) == (
        "a grid is made of integers, not 16.0; // and tile.cdiv divide integers")
    copied[lambda a: (a["BLOCK"] // 4,)](x, y, BLOCK=4)
    assert (y[:4] == x[:4]).all()


def test_a_launch_inside_a_kernel_is_an_error():
    assert message(written("copied[(1,)](x, y, 4)")) == (
        "copied[...] launches copied, and a kernel cannot launch another one; copied(...) runs it here, as a part of this kernel\n"
        "  <source>:2:5, in kernel\n    copied[(1,)](x, y, 4)\n    ^^^^^^")


def test_kernels_on_one_line_compile():
    source = "def one(x, y): v = tile.load(x[0:8]); tile.store(y[0:8], v * 2)"
    tile.jit(source=source)[1](x, y)
    assert np.array_equal(y[:8], x[:8] * 2)

    @tile.jit
    def other(x, y): tile.store(y[0:8], tile.load(x[0:8]) + 1)  # noqa: E704

    other[1](x, y)
    assert np.array_equal(y[:8], x[:8] + 1)
    with pytest.raises(tile.CompilationError, match="a lambda cannot be a kernel; write a def"):
        tile.jit(lambda x, y: tile.store(y[0:8], tile.load(x[0:8])))


@pytest.mark.parametrize("name, meant", [
    ("lod", "load"), ("zeross", "zeros"), ("arrange", "arange"), ("program", "program_id"), ("sofmax", None), ("softmax", None), ("qqq", None),
    ("matmul", None), ("strore", "store"), ("maxx", "max"), ("BLOCK", None),
])
def test_only_names_that_are_near_are_suggested(name, meant):
    text = message(written(f"tile.{name}(x)"))
    assert (f"(did you mean {meant!r}?)" in text) if meant else ("did you mean" not in text)


def test_a_mask_of_integers_and_a_load_that_nothing_reads_are_warned_of():
    spec = np.zeros(64, np.float32)

    def warned(code):
        kernel = tile.jit(source=f"def kernel(x, y):\n    i = tile.arange(64)\n    {code}\n")
        kernel.source.globals.update(globals())
        return kernel.compile(spec, spec).warnings

    text, = warned("tile.store(y[0:64], tile.load(x[0:64]), mask=i)")
    assert "the mask is a tile of int32, of which every element but 0 counts as true; write a comparison, as in i < n" in text
    assert not warned("tile.store(y[0:64], tile.load(x[0:64]), mask=i < 3)")
    assert not warned("tile.store(y[0:64], tile.load(x[0:64]), mask=(i < 3).to(tile.uint8))")
    text, = warned("v = tile.load(x[0:64])\n    tile.store(y[0:64], 1.0)")
    assert "the value of this load is never used" in text and ":3" in text
    assert not warned("v, w = tile.load(x[0:64]), tile.load(y[0:64])\n    tile.store(y[0:64], v)")
    assert not warned("tile.static_print(tile.load(x[0:64]))")
    assert len(warned("tile.load(x[0:64])")) == 1
    assert not warned("v = tile.load(x[0:64])\n    for k in range(3):\n        v = v * 2\n    tile.store(y[0:64], v)")


@pytest.mark.parametrize("sem", ["relaxed", "release"])
@pytest.mark.parametrize("place", ["y[0]", "y[0:4]", "y[tile.arange(4)]"])
def test_ctas_that_store_one_value_by_ordered_stores_do_not_race(sem, place):
    kernel = tile.jit(source=f"def kernel(y):\n    tile.store({place}, 1.0, sem={sem!r})\n")
    plain = tile.jit(source=f"def kernel(y):\n    tile.store({place}, 1.0)\n")
    for made in (kernel, plain):
        made.source.globals.update(globals())
    for seed in range(3):
        out = np.zeros(64, np.float32)
        assert not kernel.simulate((5,), out, seed=seed).findings and out[0] == 1
        assert [f.kind for f in plain.simulate((5,), out, seed=seed).findings] == ["race"]


def test_ordered_stores_race_with_plain_stores_of_other_ctas():
    kernel = tile.jit(source="def kernel(y):\n    if tile.program_id(0) == 0:\n        tile.store(y[0], 1.0)\n"
                             "    else:\n        tile.store(y[0], 1.0, sem='relaxed')\n")
    kernel.source.globals.update(globals())
    for seed in range(3):
        found = kernel.simulate((3,), np.zeros(4, np.float32), seed=seed).findings
        assert [f.kind for f in found] == ["race"]


def test_integer_division_by_zero_is_defined():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = np.zeros(4, np.int32)
        kernel = tile.jit(source="def kernel(out, n):\n    tile.store(out[0], 7 // n)\n    tile.store(out[1], 7 % n)\n"
                                 "    tile.store(out[2:4], tile.arange(2) // n)\n")
        kernel.source.globals.update(globals())
        kernel[1](out, 0)
    assert list(out) == [0, 7, 0, 0]
    assert "ZeroDivisionError" in message(written("tile.store(y[0], 5 // 0)"))


@pytest.mark.parametrize("place, dim, index", [("y[10000:10032]", 0, 10000), ("y[tile.arange(32) + 5000]", 0, 5000), ("m[n * 3, 0:32]", 0, 300),
                                               ("y[n * 1000 + tile.program_id(0) * 32:n * 1000 + tile.program_id(0) * 32 + 32]", 0, 100000)])
def test_a_store_far_out_of_bounds_in_every_cta_is_warned_of(place, dim, index):
    source = "def kernel(y, m, n):\n    tile.store(y[0:64], 1.0)\n    tile.store(PLACE, 2.0)\n"
    kernel = tile.jit(source=source.replace("PLACE", place))
    kernel.source.globals.update(globals())
    m = np.zeros((8, 32), np.float32)
    for seed in range(3):
        report = kernel.simulate((1,), y, m, 100, seed=seed)
        found, = report.warnings
        assert not report.findings
        name = f"{'m[8, 32]' if place.startswith('m') else 'y[64]'}"
        assert (found.kind, found.line) == ("dropped-store", 3)
        assert found.message == (f"all that is stored here is out of the bounds of {name}, from index {index} of dimension {dim} on; "
                                 "writes out of bounds are dropped")
    with pytest.warns(tile.TileWarning, match="dropped-store at line 3"):
        kernel[1](y, m, 100)


@pytest.mark.parametrize("code", [
    "tile.store(y[i * 32:i * 32 + 32], 2.0)",                            # some CTAs reach it
    "tile.store(y[64:96], 2.0)", "tile.store(y[i - i - 32:i - i], 2.0)",  # near: what is left over
    "tile.store(y[i * 5000 + tile.arange(32)], 2.0)",                    # the first CTA reaches it
    "tile.store(y[10000 + tile.arange(32)], 2.0, mask=tile.arange(32) > 99)",
    "tile.store(empty[10000:10032], 2.0)",
    "if i > 1000:\n        tile.store(y[10000:10032], 2.0)",
])
def test_stores_that_reach_their_array_or_end_near_it_are_not_warned_of(code):
    kernel = tile.jit(source=f"def kernel(y, empty):\n    i = tile.program_id(0)\n    {code}\n")
    kernel.source.globals.update(globals())
    for seed in range(2):
        report = kernel.simulate((70,), np.zeros(64, np.float32), np.zeros(0, np.float32), seed=seed)
        assert not report.findings and not report.warnings
