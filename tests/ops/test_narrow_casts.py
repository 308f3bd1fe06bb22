"""Casts to and from floats of at most 8 bits: rounding, saturation, every code; the emitted arithmetic agrees with the simulator's."""

import ctypes
import struct
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from llvmlite import binding
from tilejit.dtypes import DTYPES, float32, int16
from tilejit.emit.narrow import NarrowFloats
from tilejit.emit.value import V
from tilejit.ops.tiles.casts import cast_array

from tests.emitted_code import Warp

SMALL = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
NARROW = (*SMALL, "float8_e8m0fnu")
ALL = (*NARROW, "float8_e4m3fn", "float8_e5m2")  # before sm_89, casts to these are emitted as arithmetic too
TYPES = {name: getattr(ml_dtypes, name) for name in ALL}
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 2.0**-127, 1.5 * 2.0**-127,
                    np.nextafter(np.float32(1.5 * 2.0**-127), np.float32(1)),
                    2.0**-126, 2.0**127, 1.5 * 2.0**127, 3.4e38, -1.0, 1.5, 3.0, 0.75], np.float32)


def every_code(name: str) -> np.ndarray:
    return np.arange(DTYPES[name].codes, dtype=np.uint8).view(TYPES[name])


def edges(name: str) -> np.ndarray:
    """The midpoints of adjacent numbers, and the floats next to them on either side."""
    values = np.unique(every_code(name).astype(np.float64)[np.isfinite(every_code(name).astype(np.float64))])
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    return np.concatenate([values.astype(np.float32), middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))])


def expected(x: np.ndarray, name: str) -> np.ndarray:
    """The result by the documentation, by a search among the numbers of the type."""
    codes = every_code(name)
    values = codes.astype(np.float64)
    result = np.zeros(x.shape, np.uint8)
    for i, v in enumerate(x.astype(np.float64)):
        if name == "float8_e8m0fnu":
            if np.isnan(v) or v < 0:
                result[i] = 255
            else:
                finite = values[:255]
                at = np.abs(finite - min(v, finite[-1]))
                result[i] = np.flatnonzero(at == at.min())[-1]  # of two equally near, the larger
            continue
        half = len(codes) // 2
        magnitude = min(abs(v), values[half - 1]) if not np.isnan(v) else values[half - 1]
        at = np.abs(values[:half] - magnitude)
        best = np.flatnonzero(at == at.min())
        code = best[0] if len(best) == 1 or best[0] % 2 == 0 else best[1]  # of two equally near, the even one
        result[i] = code + (half if np.signbit(v) and not np.isnan(v) else 0)
    return result


@pytest.mark.parametrize("name", NARROW)
def test_a_cast_rounds_to_the_nearest_number_and_saturates(name):
    """All numbers of the type, the midpoints, their neighbours, and NaN and infinities."""
    x = np.concatenate([SPECIAL, edges(name)])
    np.testing.assert_array_equal(cast_array(x, float32, DTYPES[name]).view(np.uint8), expected(x, name))


# -- what is emitted, run on the host ---------------------------------------------------------------------------------------------

class Host(NarrowFloats):
    """Prints the cast emitted for a target without conversion instructions, as a function of the host."""

    def __init__(self):
        self.lines, self.architecture, self.target, self.loc = [], 80, "sm_80", None

    def ins(self, text: str, dtype) -> V:
        self.lines.append(f"  %v{len(self.lines)} = {text}")
        return V(self, f"%v{len(self.lines) - 1}", dtype)

    def const(self, value, dtype) -> V:
        if dtype.is_float:
            return V(self, f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}", dtype)
        return V(self, str(int(value)), dtype)

    def select(self, test, a, b):
        return self.ins(f"select i1 {test.text}, {a.typed_text}, {b.typed_text}", a.dtype)


_ENGINES = []


@lru_cache
def on_host(name: str, to: bool):
    """The emitted cast from float32 (`to`) or to it, as a host function over arrays."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    host, dtype = Host(), DTYPES[name]
    source, target = ("float", "i8") if to else ("i8", "float")
    result = host._to_narrow(V(host, "%x", float32), dtype) if to else host._from_narrow(V(host, "%x", dtype))
    body = "\n".join(host.lines)
    module = binding.parse_assembly(f"""
declare float @llvm.fabs.f32(float)
declare float @llvm.minnum.f32(float, float)
declare i32 @llvm.umin.i32(i32, i32)
define void @many(ptr %in, ptr %out, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr {source}, ptr %in, i64 %i
  %x = load {source}, ptr %p
{body}
  %q = getelementptr {target}, ptr %out, i64 %i
  store {target} {result.text}, ptr %q
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %end, label %loop
end:
  ret void
}}""")
    engine = binding.create_mcjit_compiler(module,
                                          binding.Target.from_default_triple().create_target_machine(cpu=binding.get_host_cpu_name(), features="+f16c"))
    engine.finalize_object()
    _ENGINES.append(engine)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("many"))

    def run(x: np.ndarray) -> np.ndarray:
        x, out = np.ascontiguousarray(x), np.zeros(x.shape, np.uint8 if to else np.float32)
        call(x.ctypes.data, out.ctypes.data, x.size)
        return out
    return run


class PairOnHost(Host):
    """Emits the cast of a pair for a target whose instruction converts it, with a given result of the instruction, and
    evaluates what follows."""

    def __init__(self, result: np.ndarray):
        super().__init__()
        self.architecture, self.target, self.result = 100, "sm_100a", result
        self.warp = Warp({}, [], None, 0, len(result))

    def asm(self, text: str, dtypes, operands, pure=False):
        assert text.count("cvt.rn.satfinite") == 1
        self.warp.values["%both"] = self.result
        return [V(self, "%both", int16)]

    def ins(self, text: str, dtype) -> V:
        made = super().ins(text, dtype)
        self.warp.values[made.text] = self.warp.compute(text)
        return made

    def unpack_word(self, unit: V, storage: str, per: int, dtype) -> list[V]:
        made = [V(self, f"{unit.text}.{i}", dtype) for i in range(per)]
        self.warp.values.update({v.text: self.result >> 8 * i & 255 for i, v in enumerate(made)})
        return made


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"])
def test_the_codes_of_a_pair_are_the_halves_of_what_the_instruction_returns(name):
    """Four bits each of a byte for e2m1, else the bytes; the first element is the lower one."""
    bits = 4 if name == "float4_e2m1fn" else 8
    low, high = np.arange(32) % DTYPES[name].codes, (7 * np.arange(32) + 3) % DTYPES[name].codes
    host = PairOnHost((high << bits | low).astype(np.uint16))
    made = host._narrow_pair(V(host, "%x", float32), V(host, "%y", float32), DTYPES[name])
    np.testing.assert_array_equal([host.warp.values[v.text] for v in made], [low, high])


def one_nan(codes: np.ndarray, name: str) -> np.ndarray:
    """The codes, with a single one for all NaNs: float8 has several, and which of them results is unspecified."""
    return np.where(np.isnan(codes.view(TYPES[name]).astype(np.float32)), 255, codes)


@pytest.mark.parametrize("name", ALL)
def test_the_emitted_arithmetic_agrees_with_the_simulator_for_every_upper_half_of_a_float32(name):
    """65536 numbers, all exponents and signs, each with its last bit set or clear, and the midpoints of the type."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    x = np.concatenate([upper, upper | 1, upper - 1]).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, SPECIAL, edges(name)])
    np.testing.assert_array_equal(one_nan(on_host(name, True)(x), name), one_nan(cast_array(x, float32, DTYPES[name]).view(np.uint8), name))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ALL), st.lists(st.floats(width=32), min_size=1, max_size=64))
def test_the_emitted_arithmetic_agrees_with_the_simulator_for_any_float(name, values):
    x = np.array(values, np.float32)
    np.testing.assert_array_equal(one_nan(on_host(name, True)(x), name), one_nan(cast_array(x, float32, DTYPES[name]).view(np.uint8), name))


@pytest.mark.parametrize("name", ALL)
def test_every_code_is_cast_to_its_number_in_float32(name):
    """All codes, including NaN."""
    codes = every_code(name)
    np.testing.assert_array_equal(on_host(name, False)(codes.view(np.uint8)), codes.astype(np.float32))


# -- kernels ------------------------------------------------------------------------------------------------------------------------

@tile.jit
def to_narrow(x, y, N: tile.constexpr):
    i = tile.program_id(0)
    tile.store(y[i, 0:N], tile.cast(tile.load(x[i, 0:N]), y.dtype))


@tile.jit
def from_narrow(x, y, N: tile.constexpr):
    i = tile.program_id(0)
    tile.store(y[i, 0:N], tile.cast(tile.load(x[i, 0:N]), y.dtype))


def array(values: np.ndarray):
    return tile.pack(values) if values.dtype.name in SMALL else values


def plain(x) -> np.ndarray:
    return x.unpack() if isinstance(x, tile.Packed) else x


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "float64", "int32"])
def test_a_kernel_casts_to_narrow_floats_from_every_kind_of_dtype(name, source):
    """With a single rounding, from the original number."""
    x = np.concatenate([SPECIAL, edges(name)])
    x = np.resize(x, (4, -(-len(x) // 16) * 4 * 4)) if source != "int32" else np.random.default_rng(0).integers(-40, 40, (4, 64)).astype(np.int32)
    with np.errstate(over="ignore"):
        x = x.astype(DTYPES[source].np)
    y = array(np.zeros(x.shape, np.uint8).view(TYPES[name]))
    to_narrow.simulate(4, x, y, N=x.shape[1]).raise_first()
    np.testing.assert_array_equal(plain(y).view(np.uint8).reshape(-1), expected(x.astype(np.float64).reshape(-1), name))


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16", "float64"])
def test_a_kernel_casts_from_every_code(name, target):
    """All numbers of the type; e8m0 exceeds the range of float16 at both ends."""
    x = np.resize(every_code(name), (2, 256))
    y = np.zeros(x.shape, DTYPES[target].np)
    from_narrow.simulate(2, array(x), y, N=256).raise_first()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y.astype(np.float64), x.astype(np.float32).astype(y.dtype).astype(np.float64))


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_elements_of_a_byte_are_packed_by_pairs(name):
    """16 elements a thread: 8 conversions, and 4 words of two of their results each; no element is taken out."""
    ir = to_narrow.compile(tile.ArraySpec((1, 2048), "float32"), tile.ArraySpec((1, 2048), name), N=2048, num_warps=4, target="sm_90a").llvm_ir
    assert (ir.count("cvt.rn.satfinite"), ir.count("mov.b32 $0, {$1, $2};")) == (8, 4) and "element <" not in ir


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"])
@pytest.mark.parametrize("name", NARROW)
def test_targets_with_conversion_instructions_use_them_and_others_assemble_arithmetic(name, target):
    """``cvt`` of pairs from sm_100a on; powers of two are constructed from bits."""
    pair = {"float4_e2m1fn": "e2m1x2", "float6_e2m3fn": "e2m3x2", "float6_e3m2fn": "e3m2x2"}.get(name)
    down = to_narrow.compile(tile.ArraySpec((4, 64), "float32"), tile.ArraySpec((4, 64), name), N=64, target=target)
    up = from_narrow.compile(tile.ArraySpec((4, 64), name), tile.ArraySpec((4, 64), "float32"), N=64, target=target)
    there = pair is not None and target not in ("sm_80", "sm_90a")
    assert (f"cvt.rn.satfinite.{pair}.f32" in down.ptx, f"cvt.rn.f16x2.{pair}" in up.ptx) == (there, there)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SMALL), st.integers(1, 5), st.integers(1, 12), st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(0, 99))
def test_loads_and_stores_of_packed_elements_work_for_any_shape_and_position(name, rows, blocks, row, column, warps, seed):
    """Ragged on both sides: zeros are read outside, and nothing is written there."""
    source = (f"def kernel(x, y, row, column):\n    v = tile.load(x[row:row + {rows}, 4 * column:4 * column + {4 * blocks}])\n"
              f"    tile.store(y[row:row + {rows}, 4 * column:4 * column + {4 * blocks}], v)")
    rng = np.random.default_rng(seed)
    x, before = (rng.integers(0, DTYPES[name].codes, (7, 32)).astype(np.uint8) for _ in range(2))
    y = tile.pack(before.view(TYPES[name]))
    tile.jit(source=source).simulate(1, tile.pack(x.view(TYPES[name])), y, row, column, num_warps=warps).raise_first()
    before[row:row + rows, 4 * column:4 * column + 4 * blocks] = x[row:row + rows, 4 * column:4 * column + 4 * blocks]
    np.testing.assert_array_equal(y.unpack().view(np.uint8), before)


@pytest.mark.parametrize("name,dtype", [(n, n) for n in SMALL])
def test_reads_outside_a_packed_array_give_other(name, dtype):
    """`other` is cast to the type, and placed in every element of a byte."""
    source = "def kernel(x, y):\n    tile.store(y[0:4, 0:64], tile.cast(tile.load(x[0:4, 0:64], other={}), tile.float32))"
    x, y = tile.pack(np.ones((3, 40), TYPES[name])), np.zeros((4, 64), np.float32)
    for other in (0, 1.5) if name == "float4_e2m1fn" else (0,):
        tile.jit(source=source.format(other)).simulate(1, x, y).raise_first()
        assert (y[:3, :40] == 1).all() and (y[3:] == other).all() and (y[:, 40:] == other).all()
    if name != "float4_e2m1fn":
        with pytest.raises(tile.CompilationError, match="its elements span bytes"):
            tile.jit(source=source.format(1.5)).compile(x, y)


def test_narrow_tiles_compute_in_float32_and_their_products_use_float16():
    """Arithmetic, comparisons, reductions and dot behave as for 8-bit floats."""
    source = ("def kernel(x, y):\n    a = tile.load(x[0:32, 0:32])\n    tile.store(y[0, 0:32, 0:32], tile.dot(a, a, trans_b=True))\n    "
              "tile.store(y[1, 0:32, 0:32], tile.where(a > 1, a + a, -a))\n    tile.store(y[2, 0:32, 0:32], tile.sum(a, axis=1, "
              "keepdims=True) + tile.zeros((32, 32)))")
    for name in NARROW:
        codes = np.random.default_rng(1).integers(0, DTYPES[name].codes, (32, 32)).astype(np.uint8)
        x = (codes if name in SMALL else codes % 8 + 124).astype(np.uint8).view(TYPES[name])
        f, y = x.astype(np.float32), np.zeros((3, 32, 32), np.float32)
        kernel = tile.jit(source=source)
        kernel.simulate(1, array(x), y).raise_first()
        np.testing.assert_allclose(y[0], f @ f.T, rtol=1e-6)
        np.testing.assert_array_equal(y[1], np.where(f > 1, f + f, -f))
        # a sum of narrow floats has their dtype, like one of float8
        np.testing.assert_array_equal(y[2][:, 0], cast_array(f.sum(axis=1), float32, DTYPES[name]).astype(np.float32))
        assert kernel.compile(array(x), y, target="sm_120a").cubin


def test_functions_of_narrow_tiles_compute_in_float32():
    """As for 8-bit floats the result is float32; isnan is false for types without NaN."""
    source = ("def kernel(x, y, z):\n    v = tile.load(x[0:32])\n    for f in (tile.sqrt(v), tile.exp(v, fast=True), tile.floor(v)):\n        "
              "tile.static_assert(f.dtype == tile.float32)\n    tile.store(y[0:32], tile.sqrt(v))\n    "
              "tile.store(z[0:32], tile.isnan(v) | tile.isinf(v) | ~tile.isfinite(v))")
    for name in NARROW:
        x = (np.arange(32) % DTYPES[name].codes // 2 + (112 if name == "float8_e8m0fnu" else 0)).astype(np.uint8).view(TYPES[name])
        y, z, kernel = np.zeros(32, np.float32), np.ones(32, bool), tile.jit(source=source)
        kernel.simulate(1, array(x), y, z).raise_first()
        np.testing.assert_array_equal(y, np.sqrt(x.astype(np.float32)))
        assert not z.any()
        for target in ("sm_80", "sm_100a"):
            assert kernel.compile(array(x), y, z, target=target).cubin
