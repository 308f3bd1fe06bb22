"""Invalid input is refused with a TileError that explains it, and leaves no damage."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tilejit as tile
from tilejit.runtime.arrays import ArrayView

x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


@tile.jit
def good(x, y, BLOCK: tile.constexpr = 64):
    tile.store(y[0:BLOCK], tile.load(x[0:BLOCK]) + 1)


def kernel(body: str, parameters: str = "x, y"):
    return tile.jit(source=f"def k({parameters}):\n    " + body.replace("\n", "\n    ") + "\n")


@pytest.fixture(autouse=True)
def the_next_valid_call_works():
    """A valid call works after every refusal."""
    yield
    y[:] = 0
    good[1](x, y)
    np.testing.assert_array_equal(y, x + 1)


def refused(call, *texts: str, kind=tile.TileError) -> str:
    """Assert that the call raises `kind` with all `texts` in its message, and the same again when repeated."""
    messages = []
    for _ in range(2):
        with pytest.raises(kind) as caught:
            call()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    for text in texts:
        assert text in messages[0], messages[0]
    return messages[0]


# -- in the kernel's source --------------------------------------------------------------------------------------------

SOURCES = {
    "tile.store(y[0:64], tile.load(z[0:64]))": "the name 'z' is not defined",
    "tile.store(y[0:64], tile.lod(x[0:64]))": "has no attribute 'lod' (did you mean 'load'?)",
    "tile.store(y[0:64], tile.load(x[0:64]).to(tile.int8) + 300)": "300 does not fit in int8 (-128 to 127)",
    "tile.store(y[0:64], tile.full((64,), 2**40, tile.int32))": "1099511627776 does not fit in int32",
    "tile.store(y[0:64], tile.cast(tile.load(x[0:64]), 'float33'))": "'float33' is not an element type",
    "tile.store(y[0:64], tile.zeros((n,)))": "the extents of a shape are constants: declare them as tile.constexpr parameters",
    "tile.store(y[0:64], tile.zeros((x, 3)))": "an extent is an integer, as in the shape (128, 64), not a global buffer float32",
    "tile.ring(2, A=(x.dtype, (64, 64)))": "an extent is an integer, as in the shape (128, 64), not DType",
    "tile.store(y[0:64], tile.zeros((-3,)))": "an extent cannot be negative",
    "tile.store(y[0:n], tile.load(x[0:n]))": "n is a number of the launch: declare the parameter as n: tile.constexpr",
    "tile.store(y[3:n + 4], tile.load(x[0:64]))": "n is a number of the launch: declare the parameter as n: tile.constexpr",
    "tile.store(y[0:64], tile.load(x[:]))": "write a constant one, as in x[0:BLOCK]",
    "tile.store(y[0:64], tile.zeros(8, 8))": "8 is not an element type of tilejit; several extents are a tuple, as in tile.zeros((M, N))",
    "tile.store(y[0], tile.max(tile.load(x[0]), 0.5))": "an axis is a constant integer, not the number 0.5; the larger of two values is "
                                                        "tile.maximum(x, y)",
    "tile.store(y[0], tile.min(tile.load(x[0]), 3))": "not the number 3; the smaller of two values is tile.minimum(x, y)",
    "tile.store(y[0:64], tile.full((64,), x.dtype.itemsize))": "has no attribute 'itemsize'; write x.dtype.nbytes",
    "tile.store(y[0], x.stride(0))": "has no attribute 'stride'; it has dealloc, dtype, nbytes, ndim, peer, permute, reshape, shape, strides, take, "
                                     "tiles, view; write x.strides[axis], in elements",
    "tile.store(y[0:64], np.finfo(np.float32).max)": "finfo is a function of numpy; in a kernel write a number from outside of the kernel",
    "tile.store(y[0:64], tile.arange(n))": "as in start + tile.arange(N); n is a number of the launch: declare the parameter as n: tile.constexpr",
    "tile.store(y[0:x.shape[0]], 1.0)": "the extent of a slice (stop - start) must be a constant",
    "tile.store(y[0:64], np.exp(tile.load(x[0:64])))": "np.exp is a function of numpy; in a kernel write tile.exp",
    "tile.store(y[0], np.sum(tile.load(x[0:64])))": "sum is a function of numpy; in a kernel write tile.sum",
    "tile.store(y[0:64], np.matmul(x, y))": "is a function of numpy; in a kernel write tile.dot(a, b)",
    "tile.store(y[0:64], tile.zeros_like(tile.load(x[0:64])))": "tile has no attribute 'zeros_like'; write tile.zeros(x.shape, x.dtype)",
    "tile.store(y[0:64], tile.empty((64,)))": "tile.empty is called outside of kernels; in a kernel write tile.zeros(shape, dtype), or tile.alloc(",
    "tile.store(y[0:64], tile.load(tile.to_device(x)[0:64]))": "tile.to_device is called outside of kernels\n",
    "tile.store(y[0:64], np.empty((64,)))": "is a function of numpy; in a kernel write tile.zeros(shape, dtype), or tile.alloc(",
    "tile.store(y[0:64], np.abs(tile.load(x[0:64])))": "is a function of numpy; in a kernel write tile.abs(x)",
    "tile.store(y[tile.threadIdx.x], 1.0)": "tile has no attribute 'threadIdx'; write tile.thread_id()",
    "tile.store(y[threadIdx.x], 1.0)": "the name 'threadIdx' is not defined; write tile.thread_id()\n",
    "tile.atomicAdd(y[0], 1.0)": "tile has no attribute 'atomicAdd'; write tile.atomic_add(place, value)",
    "tile.store(y[0], -tile.inf)": "tile has no attribute 'inf'; write float(\"inf\")",
    "tile.store(y[0:64], tile.linspace(0, 1, 64))": "tile has no attribute 'linspace'\n",
    "tile.store(y[0:64], tile.clamp(tile.load(x[0:64]), 0, 1))": "tile has no attribute 'clamp'; write tile.clip(x, low, high)",
    "tile.store(y[0:64], tile.math.exp(tile.load(x[0:64])))": "tile has no attribute 'math'; write the function itself, as in tile.exp(x)",
    "tile.store(y[0:64], tile.load(x[tile.ds(0, 64)]))": "tile has no attribute 'ds'; write x[start:start + BLOCK]",
    "tile.store(y[0:64], tile.load(x[0:64]).exp())": "has no attribute 'exp'; it has T, all, any, argmax, argmin, argsort, astype, cumprod, cumsum, dtype, "
                                                     "max, mean, min, ndim, prod, reshape, shape, size, sort, sum, to, transpose; write tile.exp\n",
    "tile.store(y[0:64], tile.load(x[0:64]).view(tile.float32))": "write tile.bitcast(x, dtype), or tile.reshape(x, shape)",
    "tile.store(y[0:64], tile.load(x[0:64], cache_modifier='.cg'))": "keyword argument 'cache_modifier'; write cache=, as in cache=\"cg\"",
    "for i in tile.range(0, 4, num_stages=3):\n    pass": "keyword argument 'num_stages'; write tile.pipelined(range(...), stages=n)",
    "for i in tile.pipelined(range(4), 2, stages=3):\n    pass": "tile.pipelined(over, stages=2, warp_specialize=False, producer_regs=None, "
                                                               "consumer_regs=None): multiple values for argument 'stages'",
    "a = tile.load(x[0:64]).reshape((8, 8))\ntile.dot(a, a, allow_tf32=True)": "keyword argument 'allow_tf32'; write precision=\"tf32\", or nothing",
    "at = tile.arange(64)\ntile.store(y[0:64], tile.load(x[at], at < n))": "`other` is the value of elements out of bounds, here float32, and not a tile "
                                                                          "bool[64]; pass a mask by its name, as in tile.load(x[...], mask=...)",
    "tile.store(y[0], tile.load(x[0], n < 3))": "pass a mask by its name, as in tile.load(x[...], mask=...)",
    "tile.store(y[0:64], tile.load(x[0:64]), masc=x)": "unexpected keyword argument 'masc' (did you mean 'mask'?)",
    "tile.store(y[0], tile.load(x[0:64]).sum(axes=0))": "unexpected keyword argument 'axes' (did you mean 'axis'?)",
    "tile.store(y[0:64], tile.load(x[0:64]).to('flaot16'))": "'flaot16' is not an element type of tilejit (did you mean 'float16'?)",
    "tile.store(y[0:64], x[0:64] + 1)": "load it first, as in tile.load(x[i, 0:BLOCK])",
    "tile.store(y[0:64], x[0:64].to(tile.int8))": "has no attribute 'to'; it has dtype, nbytes, shape, view; load it first, as in tile.load(",
    "tile.store(y[0:64], tile.load(x + tile.arange(64)))": "load it first, as in tile.load(x[i, 0:BLOCK]); offsets stand in its index, as in x[offsets]",
    "tile.store(y[0], x[0:64].sum())": "load it first, as in tile.load(x[i, 0:BLOCK])",
    "tile.alloc((4, 8), x.dtype)[0:4, 0:4].permute((1, 0))": "the whole buffer has it: write permute before the slice",
    "tile.store(y[0:32], tile.load(x[0:64]))": "do not broadcast",
    "tile.store(y[0:64], tile.load(x[0:64]) + tile.arange(3))": "shapes [64] and [3] do not broadcast: dimension 0 is 64 and 3",
    "tile.store(y[0, 0:64], tile.load(x[0:64]))": "2 indices for a global buffer float32[y.shape[0]], which has 1 dimension",
    "tile.store(y[0], tile.program_id(tile.load(x[0]).to(tile.int32)))": "a grid has axes 0, 1 and 2, not a scalar int32",
    "tile.store(y[0:64], (tile.load(x[0:64]), 1))": "a number or a tile is needed here, not a tuple (a tile float32[64], the number 1)",
    "tile.store(y[0:64], tile.load(x[1.5]))": "a buffer is indexed with integers, slices and integer tiles",
    "tile.store(y[0:64], tile.load(x[0:64])[n:n + 3])": "slices of register tiles are constants",
    "tile.store(y[0:64], tile.load(x[0:64]) & 1)": "& needs integers or bools",
    "tile.store(y[0:64], tile.arange(64) ** tile.arange(64))": "an integer power needs a constant exponent",
    "if tile.load(x[0:64]) > 0:\n    tile.store(y[0:64], 1.0)": "a condition is one scalar",
    "a = [1, 2]\ntile.store(y[0:64], a[n])": "a list is indexed with compile-time numbers",
    "tile.store(y[0:64], tile.erf(tile.load(x[0:64]), fast=True))": "erf has no fast form",
    "tile.store(y[0:64], 1 // 0)": "integer division or modulo by zero",
    "for i in range(0, n, 0):\n    pass": "the step of range is not 0",
    "tile.static_assert(1 == 2, 'one is two')": "static assertion failed: one is two",
    "tile.store(y[0:64], tile.sum(tile.load(x[0:64]), axis=1))": "axis 1 is out of range",
    "tile.store(y[0:64], tile.load(x[0:64], cache='fast'))": "cache is one of",
    "tile.store(y[0:64], tile.broadcast_to(1.0, (n,)))": "the extents of a shape are constants",
    "tile.store(y[0:64], tile.full((64,), (1.0,), tile.float32))": "a number or a tile is needed here",
    "tile.store(y[0:64], tile.full((64,), tile.arange(3)))": "shapes [3] and [64] do not broadcast",
    "tile.store(y[0:64], tile.transpose(tile.load(x[0:64]), 0))": "axes is a tuple, as in (1, 0)",
    "tile.store(y[0:0], tile.load(x[0:0]))": "a register tile has extents of at least 1, found shape (0,)",
    "for i, a in enumerate((1, 2), n):\n    pass": "cannot be interpreted as an integer",
    "tile.static_print(n, sep=3)": "sep is a string",
    "if (n > 3) is True:\n    pass": "`is` compares compile-time objects; write == for values",
    "s = tile.alloc((64,), x.dtype, align=n)": "an alignment is a power of two of at least the element's 4 bytes, not a scalar int32",
    "v = tile.load(x[0:64])\nfor i in range(n):\n    v = tile.load(x[0:32])\ntile.store(y[0:64], v)": "v",
}


@pytest.mark.parametrize("body, what", [
    ("tile.store(y[0:64], 1.0)", "store of a tile"), ("v = tile.load(x[0:64])", "load of a tile"), ("tile.sync()", "sync()"),
    ("tile.store(y[0], tile.sum(w))", "a reduction"), ("tile.store(y[0], w[3])", "slice of a tile"), ("v = w.reshape((8, 8)).T", "reshape of a tile"),
    ("v = w + w", "add of a tile"), ("tile.device_assert(w == w)", "eq of a tile"), ("v = tile.zeros((64,))", "splat of a tile")])
def test_a_collective_operation_in_divergent_code_is_an_error_that_quotes_the_condition(body, what):
    text = f"w = tile.load(x[0:64])\nif tile.thread_id() + 1 < 5:\n    {body}"
    refused(lambda: kernel(text)[1](x, y), what, "the condition", "`tile.thread_id() + 1 < 5`", kind=tile.CompilationError)


@pytest.mark.parametrize("loop", ["for i in range(tile.thread_id()):", "while n < tile.thread_id():\n    n += 1"])
def test_a_tile_cannot_change_in_a_loop_that_threads_leave_at_different_times(loop):
    text = f"n = 0\nw = tile.load(x[0:64])\n{loop}\n    w = -w\ntile.store(y[0:64], w)"
    refused(lambda: kernel(text)[1](x, y), "neg of a tile needs all threads of the cta", kind=tile.CompilationError)


@pytest.mark.parametrize("body, what, value", [
    ("tile.store(y[0:64], tile.load(x[0:64]) + i)", "a tile", "tile.warp_id()"),
    ("tile.store(y[0:64], tile.where(i == 0, tile.load(x[0:64]), 1))", "a tile", "i == 0"),
    ("tile.store(y[0:64], 1.0, mask=i > 2)", "a tile", "i > 2"),
    ("v = tile.full((64,), i)", "a tile", "tile.warp_id()"),
    ("v = tile.load(x[i:i + 8])", "this load", "tile.warp_id()"),
    ("tile.store(y[i * 2:i * 2 + 8], 1.0)", "this store", "i * 2"),
    ("v = tile.load(x[i:i + 8][tile.arange(4)])", "a tile", "tile.warp_id()"),
    ("tile.atomic_add(y[i:i + 8], 1.0)", "this atomic_add", "tile.warp_id()"),
    ("tile.prefetch(x[i:i + 8])", "this prefetch", "tile.warp_id()")])
def test_a_value_that_differs_between_threads_cannot_determine_what_they_share(body, what, value):
    text = f"i = tile.warp_id()\n{body}"
    refused(lambda: kernel(text)[1](x, y), f"the threads of the cta share {what}, and `{value}` differs between them", kind=tile.CompilationError)
    for scope in ("with tile.warp(1):", "with tile.thread(range(40, 48)):"):  # there it is uniform
        kernel(f"{scope}\n    i = tile.warp_id()\n    {body}")[1](x, y)
    kernel(text)[1](x, y, num_warps=1)


def test_a_kernel_is_not_iterable():
    """Indexing it with a grid always succeeds, so iteration would never end."""
    tuned = tile.autotune([{"num_warps": 4}])(good)
    for launched in (good, tuned):
        for walk in (list, lambda k: 3 in k, lambda k: [*zip(k, "ab")]):
            with pytest.raises(TypeError, match="not iterable"):
                walk(launched)
    for text in ("tile.static_assert(3 in helper)", "t = tuple(helper)", "a, b = helper", "for i in helper:\n    pass"):
        one = kernel(text)
        one.source.globals["helper"] = good
        refused(lambda: one[1](x, y), "helper", kind=tile.CompilationError)


def test_a_complex_array_is_refused_with_an_alternative():
    text = refused(lambda: good[1](x.astype(np.complex64), y), "x.view(numpy.float32)", kind=tile.LaunchError)
    assert "float8_e3m4" not in text and "float8_e4m3fn" in text


def test_a_launch_with_an_empty_grid_does_nothing_whatever_its_arrays_contain():
    k = kernel("""s = tile.alloc((16, 64), x.dtype, layout=tile.swizzled(x.dtype, (16, 64), 128))
bar = tile.mbarrier(count=1)
with tile.elect():
    bar.arrive_expect_tx(s.nbytes)
    tile.copy_async(s, x[0:16, 0:64], mbar=bar)
bar.wait(phase=0)
tile.copy(y[0:16, 0:64], s)""")
    for shape in ((0, 64), (16, 0), (0, 0)):
        empty = np.zeros(shape, np.float16)
        k[lambda meta: (meta["x"].size,)](empty, empty)
        k[0, 3](empty, empty)


RUN_TIME = {
    "tile.store(y[0:1], tile.sum(tile.load(x[0:64]), axis=0, keepdims=n))": "keepdims is True or False, known at compile time, not a scalar int32",
    "tile.store(y[0:1], tile.reduce(tile.load(x[0:64]), 0, tile.maximum, keepdims=n > 0))": "keepdims is True or False",
    "tile.store(y[0:64], tile.cumsum(tile.load(x[0:64]), reverse=n > 3))": "reverse is True or False, known at compile time, not a scalar bool",
    "tile.store(y[0:64], tile.scan(tile.load(x[0:64]), 0, tile.maximum, reverse=n))": "reverse is True or False",
    "tile.store(y[0:64], tile.exp(tile.load(x[0:64]), fast=n))": "fast is True or False",
    "tile.copy_async(tile.alloc((64,), x.dtype), x[0:64]).wait(read=n)": "read is True or False",
    "tile.bulk_wait(0, read=n)": "read is True or False",
    "tile.asm('mov.b32 $0, $1;', tile.int32, n, simulate=n)": "simulate is a function of NumPy arrays, not a scalar int32",
    "tile.alloc((8, 8), x.dtype).permute((n, 0))": "a tuple (a scalar int32, the number 0) is no order of 2 dimensions",
    "tile.store(y[0], tile.S[(8, 8):(8, 1)].offset_of(n, 0))": "tile.TileLayout.offset_of is computed while compiling, and a scalar int32 is known",
    "tile.alloc((8, 8), x.dtype, layout=tile.swizzled(x.dtype, (8, 8), n))": "tile.swizzled is computed while compiling, and a scalar int32 is known",
    "tile.store(y[0], (1, n).index(4))": "tuple.index is computed while compiling, and a tuple (the number 1, a scalar int32) is known at run time only",
    "tile.window(x, None, 4)": "an offset of a window is an integer, not NoneType",
}


@pytest.mark.parametrize("body", RUN_TIME)
def test_a_runtime_number_is_refused_where_a_constant_is_needed(body):
    message = refused(lambda: kernel(body, "x, y, n").compile(x, y, 0), RUN_TIME[body], kind=tile.CompilationError)
    assert "<source>:" in message and "^" in message


@pytest.mark.parametrize("body", SOURCES)
def test_an_error_in_the_source_is_shown_at_its_line(body):
    message = refused(lambda: kernel(body, "x, y, n")[1](x, y, 4), SOURCES[body], kind=tile.CompilationError)
    assert "<source>:" in message and "^" in message and "in k" in message


def test_a_slice_with_fewer_dimensions_than_the_array_is_an_error_that_says_so():
    matrix = np.zeros((8, 8), np.float32)
    refused(lambda: kernel("tile.store(y[0:8], tile.load(x[0:8]))")[1](matrix, y), "as in x[i, 0:BLOCK]: x has 2 dimensions, and this is number 1")


# -- excessive sizes -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("body, texts", [
    ("tile.store(y[0:65536], tile.load(x[0:65536]))", ("the tile float32[65536] takes 512 registers of each thread", "a thread has 255", ":2:")),
    ("tile.store(y[0:64], tile.sum(tile.load(x[0:1000000000], other=0)))", ("the tile float32[1000000000] takes 7812500 registers",)),
    ("tile.store(y[0:1099511627776], 1.0)", ("the tile float32[1099511627776] has 8589934592 elements per thread, and code is generated for at most",)),
    ("a = tile.zeros((1024, 64))\nfor i in range(n):\n    a = a + tile.load(x[i])\ntile.store(y[0:64], tile.sum(a, axis=0))",
     ("the tile a, float32[1024, 64] takes 512 registers", "for i in range(n):")),
    ("a = tile.zeros((1024, 64))\nif n > 1:\n    a = a + n\ntile.store(y[0:64], tile.sum(a, axis=0))", ("the tile a, float32[1024, 64]",)),
])
def test_a_tile_that_fits_in_no_thread_s_registers_is_named(body, texts):
    """On the simulator as well, which would otherwise run out of memory."""
    refused(lambda: kernel(body, "x, y, n")[1](x, y, 4), *texts, "use a smaller tile, more warps (num_warps is 4)", kind=tile.CompilationError)
    refused(lambda: kernel(body, "x, y, n").compile(x, y, 4), *texts, kind=tile.CompilationError)


@pytest.mark.parametrize("scope, threads", [("tile.elect()", "1 thread"), ("tile.warp(1)", "32 threads"), ("tile.thread(range(0, 64))", "64 threads")])
def test_a_tile_too_large_for_a_scope_is_an_error_that_says_how_many_threads_it_has(scope, threads):
    body = f"with {scope}:\n    tile.store(y[0:32768], tile.load(x[0:32768]))"
    refused(lambda: kernel(body)[1](x, y), f"a wider scope (this one has {threads} of the CTA's 128)", kind=tile.CompilationError)


def test_a_large_tile_that_is_never_held_in_registers_is_accepted():
    k = kernel("tile.store(y[0:64], tile.max(tile.where(tile.arange(32768) % 3 == 0, 1, tile.arange(32768))))")
    k[1](x, y)
    assert (y == 32767).all()


@pytest.mark.parametrize("body, text", [
    ("tile.store(y[0:64 / 2], 0)", "the bounds of a slice are integers, not the number 32.0; // divides integers"),
    ("tile.store(y[x.shape[0] / 2:x.shape[0] / 2 + 4], 0)", "the bounds of a slice are integers, not a scalar float32; // divides integers"),
    ("tile.store(y['a':4], 0)", "the bounds of a slice are integers, not str 'a'"),
    ("tile.store(y.tiles((64 / 2,))[0], 0)", "an extent is an integer, not 32.0; // divides integers"),
    ("tile.store(y[0:32], tile.arange(64 / 2))", "a bound of arange is an integer, not 32.0; // divides integers"),
    ("tile.store(y[0:32], tile.zeros((64 / 2,)))", "an extent is an integer, not 32.0; // divides integers"),
    ("tile.load(x[0:64]).reshape(2, 64 / 2)", "an extent is an integer, not 32.0; // divides integers"),
    ("tile.bitcast(x[0:4], tile.int32)", "is a region of memory, not a value"),
    ("tile.bitcast(tile.load(x[0:4]), tile.int64)", "bitcast keeps the bits: float32 and int64 do not have the same number of bits, in whole bytes"),
    ("tile.bitcast(tile.load(x[0:4]) > 0, tile.int8)", "bitcast keeps the bits: bool and int8"),
    ("tile.load(x[0:8], mask=tile.arange(5) > 2)", "shapes [5] and [8] do not broadcast: dimension 0 is 5 and 8"),
    ("tile.store(y[0:8], 0, mask=tile.zeros((4, 8)) == 0)", "does not broadcast to [8]"),
    ("tile.store(y[0], 0, mask=tile.arange(8) > 2)", "a single element takes a scalar mask, not a tile"),
    ("with tile.expect_variant('tmaa'):\n        tile.load(x[0:4])", "nothing is lowered as 'tmaa' (did you mean 'tma'?); the variants are"),
    ("tile.mbarrier().arrive(0)", "a scope arrives 1 to 1048575 times, not 0"),
    ("tile.mbarrier(n=2).arrive()", "mbarrier[2] of 1 has no attribute 'arrive'; index one of them first, as in full[i]"),
    ("tile.alloc((0, 4), x.dtype)", "an allocation has at least one element, not shape [0, 4]"),
])
def test_an_operand_that_does_not_fit_is_named(body, text):
    refused(lambda: kernel(body)[1](x, y), text)


def test_too_much_shared_memory_is_an_error_with_the_table_of_buffers():
    k = kernel("s = tile.alloc((300, 1024), tile.float32)\nt = tile.alloc((4, 4), tile.int8)\ntile.store(s[0:1, 0:64], tile.zeros((1, 64)))\n"
               "tile.store(t[0:4, 0:4], tile.zeros((4, 4)))")
    refused(lambda: k[1](x, y), "sm_90a allows 232448", "1228800 bytes", "float32[300, 1024]", "16 bytes", "int8[4, 4]", "line 2", kind=tile.CompilationError)


def test_compile_time_limits_are_enforced():
    refused(lambda: good.compile(x, y, max_registers=8), "max_registers=8", kind=tile.CompilationError)
    refused(lambda: kernel("tile.store(y[0:64], tile.load(x[0:64]))\ns = tile.alloc((512,), tile.float32)\ntile.store(s[0:512], 1.0)").compile(x, y, max_shared=1024),
            "max_shared allows 1024", kind=tile.CompilationError)


# -- in the call ---------------------------------------------------------------------------------------------------------

read_only = np.zeros(64, np.float32)
read_only.flags.writeable = False


@pytest.mark.parametrize("call, text", [
    (lambda: good(x, y), "a kernel is launched with a grid, as in good[(number_of_ctas,)](...)"),
    (lambda: good[1](x, y, 64, 3), "good takes 3 arguments, and 4 are given"),
    (lambda: good[1](x), "good needs the argument 'y'"),
    (lambda: good[1](x, y, x=x), "'x' is given twice"),
    (lambda: good[1](x, y, num_warp=4), "no parameter 'num_warp' (did you mean 'num_warps'?)"),
    (lambda: good[1](x, y, BLOK=4), "did you mean 'BLOCK'?"),
    (lambda: good[1](x, y, num_warps=33), "num_warps is 1 to 32"),
    (lambda: good[1](x, y, num_warps=2.0), "num_warps is 1 to 32"),
    (lambda: good[1](x, y, min_ctas=0), "min_ctas is a number of 1 to 32, not 0"),
    (lambda: good[1](x, y, max_registers=256), "max_registers is a number of 1 to 255, not 256"),
    (lambda: good[1](x, y, spills=-1), "spills is a number of at least 0, not -1"),
    (lambda: good[1](x, y, max_shared="1k"), "max_shared is a number of at least 0, not '1k'"),
    (lambda: good[2](x, y, cluster=[2]), "cluster is a positive number of CTAs, or a tuple of one to three, not [2]"),
    (lambda: good[1](x, y, pdl="no"), "pdl is True or False, not 'no'"),
    (lambda: good[1](x, y, fast_math=2), "fast_math is True or False, not 2"),
    (lambda: good[1](x, y, jitter=-1), "jitter is a seed, an integer of at least 0, or None, not -1"),
    (lambda: good[1](x, y, jitter=True), "jitter is a seed, an integer of at least 0, or None, not True"),
    (lambda: good[1](x, y, jitter="a"), "jitter is a seed, an integer of at least 0, or None, not 'a'"),
    (lambda: good.simulate(1, x, y, seed="a"), "a seed is an integer of at least 0, not 'a'"),
    (lambda: good.simulate(1, x, y, seed=-1), "a seed is an integer of at least 0, not -1"),
    (lambda: good[1](x, y, backend="gpu"), "backend is 'sim' or 'cuda', not 'gpu'"),
    (lambda: good[1.5](x, y), "a grid is made of integers, not 1.5"),
    (lambda: good[np.array([1, 2])](x, y), "a grid is made of integers, not array([1, 2])"),
    (lambda: good[None](x, y), "a grid is made of integers, not None"),
    (lambda: good[-1](x, y), "the grid has -1 CTAs along axis 0"),
    (lambda: good[1, 2, 3, 4](x, y), "a grid has one to three dimensions, not 4"),
    (lambda: good[()](x, y), "a grid has one to three dimensions, not 0"),
    (lambda: good[1, 70000](x, y), "70000 CTAs along axis 1"),
    (lambda: good[3](x, y, cluster=2), "no multiple of the cluster"),
    (lambda: good[1](x, read_only), "the kernel writes y, and that array is read-only"),
    (lambda: good[1](x.astype(np.complex64), y), "good: x: the array's dtype complex64"),
    (lambda: good[1](x.astype(">f4"), y), "the other byte order"),
    (lambda: good[1](np.zeros(64, [("a", "f4"), ("b", "i1")])["a"], y), "not a multiple of the 4 bytes"),
    (lambda: good[1]({1.0}, y), "x is a set, and an array or a number is needed"),
    (lambda: good[1](None, y), "x is None in this call"),
    (lambda: good[1](1j, y), "x is a complex number, and kernels have none"),
    (lambda: good[1](x, y, BLOCK=[64]), "the constexpr 'BLOCK' is a number, string, dtype, layout, kernel, enum member, or a tuple or frozen dataclass of those, not list"),
    (lambda: good[1](x, y, BLOCK=x), "the constexpr 'BLOCK'"),
    (lambda: good[1](np.ma.array(x, mask=x > 0), y), "the MaskedArray is masked; kernels take plain arrays"),
    (lambda: tile.ArraySpec((-1, 4), "float32"), "a shape is made of integers of at least 0, not (-1, 4)"),
    (lambda: tile.ArraySpec((1.5,), "float32"), "a shape is made of integers of at least 0, not (1.5,)"),
    (lambda: tile.ArraySpec((4,), "float32", (1.5,)), "strides are integers, one for each dimension, not (1.5,)"),
    (lambda: tile.ArraySpec((4,), "float32", 1), "strides are integers, one for each dimension, not 1"),
    (lambda: tile.jit(source=3), "the source of a kernel is its text, not int"),
    (lambda: tile.jit(source="async def k(x):\n    tile.store(x[0], 1)"), "a kernel cannot be `async def`; write def"),
    (lambda: tile.jit(source="def k(x, x):\n    tile.store(x[0], 1)"), "the text is not Python: duplicate argument 'x'"),
    (lambda: tile.autotune(4), "autotune takes a list of configurations, each a dict"),
    (lambda: tile.autotune("BLOCK"), "autotune takes a list of configurations, each a dict"),
    (lambda: good[1](tile.ArraySpec((64,), "float32"), y), "x is a spec without data"),
    (lambda: tile.jit(source="def k(x, y, n):\n    tile.store(y[0:64], tile.load(x[0:64]).to(tile.int8) + (n + 1))")[1](x, y, 127),
     "n + 1 does not fit in int8 (-128 to 127), to which it is converted here: n = 127; to keep its low bits write tile.cast(n + 1, tile.int8)"),
    (lambda: good.compile(x, y, target="sm_80", pdl=True), "a programmatic dependent launch (pdl=True)"),
    (lambda: good.compile(x, y, target="sm_80", cluster=2), "a cluster of CTAs (barrier.cluster)"),
    (lambda: good.compile(x, y, target="sm_75"), "'sm_75' is not a target; the targets are sm_80"),
    (lambda: kernel("tile.store(y[0:64], n)", "x, y, n")[1](x, y, 2**70), "does not fit in 64 bits"),
    (lambda: tile.jit(source="def k(x):\n    pass", num_wraps=3), "jit has no option 'num_wraps' (did you mean 'num_warps'?)"),
    (lambda: tile.jit(source="def k(x, num_warps):\n    pass"), "'num_warps' is a launch option and cannot name a parameter"),
    (lambda: tile.jit(source="def k(x:\n"), "the text is not Python"),
    (lambda: good.assert_variant("x", None), "nothing is lowered as None; the variants are"),
    (lambda: good.assert_variant("x", "ldgst"), "nothing is lowered as 'ldgst' (did you mean 'ldgsts'?)"),
    (lambda: tile.jit(3), "compiles a Python function, not int"),
    (lambda: good.compile(x, y, stream=0), "compile launches nothing: 'stream' is not for it"),
    (lambda: good.simulate(1, x, y, backend="cuda"), "simulate runs on the simulator: 'backend' is not for it"),
])
def test_an_invalid_call_is_refused(call, text):
    refused(call, text)


class OnDevice:
    """An array that claims to be on a GPU."""

    def __init__(self, device: int = 0):
        self.device = device

    def __tilejit_view__(self) -> ArrayView:
        return ArrayView(0x7F0000000000, (64,), (1,), "float32", self.device, False, self)


def test_host_and_device_arrays_cannot_be_mixed():
    refused(lambda: good[1](OnDevice(), y), "the arrays of a launch must be in one place, and x is on device 0, y is on the host", kind=tile.LaunchError)
    refused(lambda: good[1](OnDevice(0), OnDevice(1)), "x is on device 0, y is on device 1", kind=tile.LaunchError)
    refused(lambda: good[1](OnDevice(), OnDevice(), backend="sim"), "the simulator needs host arrays, and x is on a device", kind=tile.LaunchError)


def test_without_a_driver_the_gpu_is_refused_and_the_error_suggests_the_simulator():
    """In a process that finds no driver, wherever the tests run."""
    program = ("import numpy as np, tilejit as tile\nfrom tilejit.runtime import driver\ndriver.available = lambda: False\n"
               "k = tile.jit(source='def k(x):\\n    tile.store(x[0], 1.0)\\n')\n"
               "x = np.zeros(1, np.float32)\n"
               "try:\n    k[1](x, backend='cuda')\nexcept tile.LaunchError as error:\n    print(error)\n"
               "k[1](x); print(x)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    assert "no CUDA driver or no GPU was found: pass host arrays (NumPy) to run on the simulator" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("[1.]\n")


def test_launch_options_may_be_numpy_numbers():
    for options in (dict(num_warps=np.int64(2)), dict(cluster=(np.int32(1),), spills=np.uint8(0), pdl=np.False_)):
        good[1](x, y, **options)
        np.testing.assert_array_equal(y, x + 1)


def test_numpy_scalars_count_as_numbers():
    k = kernel("tile.store(y[0:64], tile.load(x[0:64]) * n + m)", "x, y, n, m")
    for n, m in ((np.int64(3), np.float32(0.5)), (np.float64(3), np.float16(0.5)), (np.uint8(3), 0.5)):
        k[1](x, y, n, m)
        np.testing.assert_array_equal(y, x * 3 + 0.5)


# -- the cache -------------------------------------------------------------------------------------------------------------

def registers_of_new_kernel(addend: int) -> int:
    """Compile a new kernel; returns its register count."""
    return kernel(f"tile.store(y[0:64], tile.load(x[0:64]) + {addend})").compile(x, y).registers


def test_an_unusable_cache_folder_causes_one_warning(monkeypatch, tmp_path):
    """A missing folder that cannot be created, and a file in place of the folder."""
    (tmp_path / "file").write_text("x")
    for place in ("/proc/nowhere", str(tmp_path / "file")):
        monkeypatch.setenv("TILEJIT_CACHE_DIR", place)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert registers_of_new_kernel(11) > 0 and registers_of_new_kernel(12) > 0
        assert [w for w in caught if place in str(w.message)] and len(caught) == 1, [str(w.message) for w in caught]


def test_damaged_cache_entries_are_compiled_again(monkeypatch, tmp_path):
    """Whatever they contain."""
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    first = registers_of_new_kernel(13)
    for damage in (b"", b"garbage", b"\0" * 5000):
        for file in tmp_path.rglob("*"):
            if file.is_file():
                file.write_bytes(damage)
        assert registers_of_new_kernel(13) == first


def test_a_failing_assembler_is_named(monkeypatch):
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    monkeypatch.setenv("TILEJIT_PTXAS", "/nonexistent")
    refused(lambda: registers_of_new_kernel(14), "TILEJIT_PTXAS=/nonexistent is not a program that can be run", kind=tile.ToolchainError)
    monkeypatch.setenv("TILEJIT_PTXAS", "/bin/false")
    refused(lambda: registers_of_new_kernel(14), "the assembler (/bin/false) refused the PTX", kind=tile.ToolchainError)
    monkeypatch.delenv("TILEJIT_PTXAS")
    assert registers_of_new_kernel(14) > 0


@pytest.mark.parametrize("name, words", [
    ("bf16", "; write tile.bfloat16"), ("Config", "; write a dict of constants and launch options"), ("autotun", " (did you mean 'autotune'?)"),
    ("next_power_of_2", "; write any extent: it need not be a power of two"), ("_private", ""), ("linspace_of_numpy", "")])
def test_an_unknown_name_of_the_package_suggests_a_similar_one_also_outside_kernels(name, words):
    assert not hasattr(tile, name)
    with pytest.raises(AttributeError) as caught:
        getattr(tile, name)
    assert str(caught.value) == f"module 'tilejit' has no attribute {name!r}{words}" or words and words in str(caught.value)


@pytest.mark.parametrize("name, words", [("num_stages", "write tile.pipelined(range(...), stages=n)"), ("num_warp", "did you mean 'num_warps'?"),
                                         ("BLOC", "did you mean 'BLOCK'?")])
def test_an_unknown_option_of_a_launch_kernel_or_configuration_suggests_a_similar_one(name, words):
    refused(lambda: good[1](x, y, **{name: 3}), words, kind=tile.LaunchError)
    refused(lambda: tile.autotune([{name: 3}])(good), words, kind=tile.LaunchError)
