"""Casts to and from floats of at most 8 bits, by the instructions that a target has, else through the bits of float32."""

from __future__ import annotations

from ..dtypes import DType, bool_, float16, float32, int16, int32, int8
from .value import V

# PTX's names of pairs (``cvt``), and the first architecture that converts them.
PAIRS = {"float8_e4m3fn": ("e4m3x2", 89), "float8_e5m2": ("e5m2x2", 89), "float6_e2m3fn": ("e2m3x2", 100), "float6_e3m2fn": ("e3m2x2", 100),
         "float4_e2m1fn": ("e2m1x2", 100)}
# Mantissa bits, the exponent of the least normal number, the largest number, and the code of NaN where there is one.
SHAPES = {"float8_e4m3fn": (3, -6, 448.0, 127), "float8_e5m2": (2, -14, 57344.0, 127), "float6_e2m3fn": (3, 0, 7.5, None),
          "float6_e3m2fn": (2, -2, 28.0, None), "float4_e2m1fn": (1, 0, 6.0, None)}


class NarrowFloats:
    """The part of the emitter that converts narrow floats. The op `cast` says how they round and saturate."""

    def _pairs(self, dtype: DType) -> str | None:
        """PTX's name of a pair of `dtype` where the target converts pairs."""
        name, since = PAIRS.get(dtype.name, (None, 0))
        return name if name is not None and self.architecture >= since else None

    def _narrow_pair(self, low: V, high: V, target: DType) -> list[V]:
        """Two float32 by one instruction. Pairs of 4 bits come in a byte, the others in two."""
        kind = self._pairs(target)
        text = f"cvt.rn.satfinite.{kind}.f32 $0, $1, $2;"
        if kind == "e2m1x2":
            text = "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $1, $2; mov.b16 $0, {t, 0}; }"
        both = self.asm(text, [int16], [high, low], pure=True)[0]
        shift = 4 if kind == "e2m1x2" else 8
        lower = self.ins(f"and i16 {both.text}, 15", int16) if shift == 4 else both
        upper = self.ins(f"lshr i16 {both.text}, {shift}", int16)
        return [self._code(v, target) for v in (lower, upper)]

    def _code(self, bits: V, target: DType) -> V:
        """The low byte of an integer as an element."""
        return V(self, self.ins(f"trunc {bits.typed} to i8", int8).text, target)

    def _to_narrow(self, x: V, target: DType) -> V:
        """float32 to a float of at most 8 bits."""
        if target.name == "float8_e8m0fnu":
            return self._to_power(x, target)
        if self._pairs(target):
            return self._narrow_pair(x, self.const(0.0, float32), target)[0]
        return self._through_bits(x, target)

    def _from_narrow(self, x: V) -> V:
        """A float of at most 8 bits to float32, which holds them all."""
        name = x.dtype.name
        wide = self.ins(f"zext i8 {x.text} to i16", int16)
        if name == "float8_e8m0fnu":
            return self._from_power(x)
        if name == "float8_e5m2":  # the upper half of a float16
            return self._half_to_f32(self.ins(f"shl i16 {wide.text}, 8", int16))
        if name == "float4_e2m1fn" and self._pairs(x.dtype):
            return self._lower_half("{ .reg .b8 t, u; mov.b16 {t, u}, $1; cvt.rn.f16x2.e2m1x2 $0, t; }", wide)
        if self._pairs(x.dtype):
            return self._lower_half(f"cvt.rn.f16x2.{self._pairs(x.dtype)} $0, $1;", wide)
        # Exponent and mantissa moved to float16's places stand for the value times a power of two.
        sign, mantissa, scale = {"float8_e4m3fn": (128, 3, 256.0), "float6_e2m3fn": (32, 3, 16384.0), "float6_e3m2fn": (32, 2, 4096.0),
                                 "float4_e2m1fn": (8, 1, 16384.0)}[name]
        magnitude = self.ins(f"and i16 {wide.text}, {sign - 1}", int16)
        half = self._half_to_f32(self.ins(f"shl i16 {magnitude.text}, {10 - mantissa}", int16))
        value = self.ins(f"fmul float {half.text}, {scale}", float32)
        if name == "float8_e4m3fn":
            value = self.select(self.ins(f"icmp eq i16 {magnitude.text}, 127", bool_), self.const(float("nan"), float32), value)
        negative = self.ins(f"icmp ugt i16 {wide.text}, {sign - 1}", bool_)
        return self.select(negative, self.ins(f"fneg float {value.text}", float32), value)

    def _in_fours(self, dtype: DType) -> bool:
        """Whether four narrow floats become float16 by fewer instructions together."""
        return dtype.name == "float8_e5m2" or self._pairs(dtype) is not None

    def _from_narrow_fours(self, a: V, b: V, c: V, d: V, target: DType) -> list[V]:
        """Four floats of at most 8 bits, which float16 holds, by pairs."""
        word, kind = self._pack([a, b, c, d], "i8", int32), a.dtype.name
        if kind == "float8_e5m2":  # the upper halves of float16
            pairs = [self.prmt(word, 0, selected) for selected in (0x1404, 0x3424)]
        elif kind == "float4_e2m1fn":  # pairs lie in a byte
            text = "{ .reg .b8 a, b, t, u; mov.b32 {a, t, b, u}, $2; cvt.rn.f16x2.e2m1x2 $0, a; cvt.rn.f16x2.e2m1x2 $1, b; }"
            pairs = self.asm(text, [int32, int32], [word | word >> 4], pure=True)
        else:
            cvt = f"cvt.rn.f16x2.{self._pairs(a.dtype)}"
            pairs = self.asm(f"{{ .reg .b16 a, b; mov.b32 {{a, b}}, $2; {cvt} $0, a; {cvt} $1, b; }}", [int32, int32], [word], pure=True)
        halves = [v for pair in pairs for v in self._unpack(pair, "half", 2, float16)]
        return self.cast_many(halves, target)

    def _lower_half(self, text: str, wide: V) -> V:
        both = self.asm(text, [int32], [wide], pure=True)[0]
        return self._half_to_f32(self.ins(f"trunc i32 {both.text} to i16", int16))

    def _half_to_f32(self, bits: V) -> V:
        half = self.ins(f"bitcast i16 {bits.text} to half", float16)
        return self.ins(f"fpext half {half.text} to float", float32)

    # -- through the bits ------------------------------------------------------------------------------------------------

    def _through_bits(self, x: V, target: DType) -> V:
        """To nearest even, to the largest number beyond that. NaN stays NaN, or becomes the largest number of a type that has none."""
        mantissa, low, largest, nan = SHAPES[target.name]
        i32 = lambda text: self.ins(text, int32)
        magnitude = self.ins(f"call float @llvm.fabs.f32(float {x.text})", float32)
        clipped = self.ins(f"call float @llvm.minnum.f32(float {magnitude.text}, float {self.const(largest, float32).text})", float32)
        bits = i32(f"bitcast float {clipped.text} to i32")
        # Normal numbers: half of the last place and the parity of what stays are added, and the rest is cut off.
        drop = 23 - mantissa
        odd = i32(f"and i32 {i32(f'lshr i32 {bits.text}, {drop}').text}, 1")
        rounded = i32(f"add i32 {i32(f'add i32 {bits.text}, {(1 << drop - 1) - 1}').text}, {odd.text}")
        normal = i32(f"sub i32 {i32(f'lshr i32 {rounded.text}, {drop}').text}, {(126 + low) << mantissa}")
        # Smaller ones are multiples of one step, which the addition of 2**23 steps rounds to.
        step = 2.0 ** (low - mantissa)
        shift = self.const(step * 2.0 ** 23, float32)
        small = i32(f"bitcast float {self.ins(f'fadd float {clipped.text}, {shift.text}', float32).text} to i32")
        small = i32(f"and i32 {small.text}, {(1 << mantissa + 1) - 1}")
        below = self.ins(f"fcmp olt float {clipped.text}, {self.const(2.0 ** low, float32).text}", bool_)
        code = self.select(below, small, normal)
        signed = i32(f"lshr i32 {i32(f'bitcast float {x.text} to i32').text}, 31")
        ordered = self.ins(f"fcmp ord float {x.text}, {x.text}", bool_)
        sign = self.select(ordered, i32(f"shl i32 {signed.text}, {target.codes.bit_length() - 2}"), self.const(0, int32))
        code = code if nan is None else self.select(ordered, code, self.const(nan, int32))
        return self._code(i32(f"or i32 {code.text}, {sign.text}"), target)

    def _to_power(self, x: V, target: DType) -> V:
        """To the power of two that is nearest, the larger one of two; NaN for negative numbers and for NaN."""
        i32 = lambda text: self.ins(text, int32)
        bits = i32(f"bitcast float {x.text} to i32")
        code = i32(f"lshr i32 {i32(f'add i32 {bits.text}, {1 << 22}').text}, 23")
        least = i32(f"zext i1 {self.ins(f'icmp uge i32 {bits.text}, {3 << 21}', bool_).text} to i32")
        code = self.select(self.ins(f"icmp ult i32 {bits.text}, {1 << 23}", bool_), least, code)
        code = i32(f"call i32 @llvm.umin.i32(i32 {code.text}, i32 254)")
        zero = self.ins(f"fcmp oeq float {x.text}, 0.0", bool_)
        code = self.select(zero, self.const(0, int32), code)
        held = self.ins(f"fcmp oge float {x.text}, 0.0", bool_)
        return self._code(self.select(held, code, self.const(255, int32)), target)

    def _from_power(self, x: V) -> V:
        """2**(code - 127); NaN for 255."""
        code = self.ins(f"zext i8 {x.text} to i32", int32)
        bits = self.ins(f"shl i32 {code.text}, 23", int32)
        bits = self.select(self.ins(f"icmp eq i32 {code.text}, 0", bool_), self.const(1 << 22, int32), bits)
        bits = self.select(self.ins(f"icmp eq i32 {code.text}, 255", bool_), self.const(0x7FC00000, int32), bits)
        return self.ins(f"bitcast i32 {bits.text} to float", float32)
