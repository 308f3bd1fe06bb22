"""Casts to and from floats of at most 8 bits.

They use the target's instructions or, where it has none, arithmetic on the bits of float32.
"""

from __future__ import annotations

from ..dtypes import DType, bool_, float16, float32, int8, int16, int32
from .parts import EmitterParts
from .value import V

# The PTX type of a pair (of ``cvt``), and the first architecture that converts it.
PAIRS = {"float8_e4m3fn": ("e4m3x2", 89), "float8_e5m2": ("e5m2x2", 89), "float6_e2m3fn": ("e2m3x2", 100),
         "float6_e3m2fn": ("e3m2x2", 100), "float4_e2m1fn": ("e2m1x2", 100)}
# Mantissa bits, exponent of the smallest normal number, largest finite number,
# and a code of NaN (None if the type has none).
SHAPES = {"float8_e4m3fn": (3, -6, 448.0, 127), "float8_e5m2": (2, -14, 57344.0, 127),
          "float6_e2m3fn": (3, 0, 7.5, None), "float6_e3m2fn": (2, -2, 28.0, None), "float4_e2m1fn": (1, 0, 6.0, None)}


class NarrowFloats(EmitterParts):
    """The part of the emitter that converts narrow floats. The op `cast` documents how they round and saturate."""

    def _pairs(self, dtype: DType) -> str | None:
        """The PTX type of a pair of `dtype`; None if the target does not convert it."""
        name, since = PAIRS.get(dtype.name, (None, 0))
        return name if name is not None and self.architecture >= since else None

    def _narrow_pair(self, low: V, high: V, target: DType) -> list[V]:
        """Two float32 to narrow floats by one instruction, whose result is a byte for 4-bit types and two
        bytes for the others."""
        kind = self._pairs(target)
        text = f"cvt.rn.satfinite.{kind}.f32 $0, $1, $2;"
        if kind == "e2m1x2":
            text = "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $1, $2; mov.b16 $0, {t, 0}; }"
        both = self.asm(text, [int16], [high, low], pure=True)[0]
        if kind == "e5m2x2":  # the instruction makes infinities the largest number, whose code is one less
            for x, one in ((low, 1), (high, 256)):
                step = self.select(self._is_infinite(x), self.const(one, int16), self.const(0, int16))
                both = self.ins(f"add i16 {both.text}, {step.text}", int16)
        if kind != "e2m1x2":
            return self.unpack_word(both, "i8", 2, target)
        codes = self.ins(f"and i16 {both.text}, 15", int16), self.ins(f"lshr i16 {both.text}, 4", int16)
        return [self._code(v, target) for v in codes]

    def _is_infinite(self, x: V) -> V:
        magnitude = self.ins(f"call float @llvm.fabs.f32(float {x.text})", float32)
        return self.ins(f"fcmp oeq float {magnitude.text}, {self.const(float('inf'), float32).text}", bool_)

    def _code(self, bits: V, target: DType) -> V:
        """The low byte of an integer as an element of `target`."""
        return V(self, self.ins(f"trunc {bits.typed_text} to i8", int8).text, target)

    def _to_narrow(self, x: V, target: DType) -> V:
        """float32 to a float of at most 8 bits."""
        if target.name == "float8_e8m0fnu":
            return self._to_power(x, target)
        if self._pairs(target):
            return self._narrow_pair(x, self.const(0.0, float32), target)[0]
        return self._through_bits(x, target)

    def _from_narrow(self, x: V) -> V:
        """A float of at most 8 bits to float32, exactly."""
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
        # Exponent and mantissa, moved to their places in a float16,
        # represent the value divided by a power of two (`scale`).
        sign, mantissa, scale = {"float8_e4m3fn": (128, 3, 256.0), "float6_e2m3fn": (32, 3, 16384.0),
                                 "float6_e3m2fn": (32, 2, 4096.0), "float4_e2m1fn": (8, 1, 16384.0)}[name]
        magnitude = self.ins(f"and i16 {wide.text}, {sign - 1}", int16)
        half = self._half_to_f32(self.ins(f"shl i16 {magnitude.text}, {10 - mantissa}", int16))
        value = self.ins(f"fmul float {half.text}, {scale}", float32)
        if name == "float8_e4m3fn":
            value = self.select(self.ins(f"icmp eq i16 {magnitude.text}, 127", bool_),
                                self.const(float("nan"), float32), value)
        negative = self.ins(f"icmp ugt i16 {wide.text}, {sign - 1}", bool_)
        return self.select(negative, self.ins(f"fneg float {value.text}", float32), value)

    def _in_fours(self, dtype: DType) -> bool:
        """Whether converting four elements together takes fewer instructions than one by one."""
        return dtype.name == "float8_e5m2" or self._pairs(dtype) is not None

    def _from_narrow_fours(self, a: V, b: V, c: V, d: V, target: DType) -> list[V]:
        """Four floats of at most 8 bits, in pairs, through float16, which represents them exactly."""
        word, kind = self.pack_word([a, b, c, d], "i8", int32), a.dtype.name
        if kind == "float8_e5m2":  # the upper halves of float16
            pairs = [self.prmt(word, 0, selected) for selected in (0x1404, 0x3424)]
        elif kind == "float4_e2m1fn":  # pairs lie in a byte
            text = ("{ .reg .b8 a, b, t, u; mov.b32 {a, t, b, u}, $2; cvt.rn.f16x2.e2m1x2 $0, a; "
                    "cvt.rn.f16x2.e2m1x2 $1, b; }")
            pairs = self.asm(text, [int32, int32], [word | word >> 4], pure=True)
        else:
            cvt = f"cvt.rn.f16x2.{self._pairs(a.dtype)}"
            pairs = self.asm(f"{{ .reg .b16 a, b; mov.b32 {{a, b}}, $2; {cvt} $0, a; {cvt} $1, b; }}", [int32, int32],
                             [word], pure=True)
        halves = [v for pair in pairs for v in self.unpack_word(pair, "half", 2, float16)]
        return self.cast_many(halves, target)

    def _lower_half(self, text: str, wide: V) -> V:
        both = self.asm(text, [int32], [wide], pure=True)[0]
        return self._half_to_f32(self.ins(f"trunc i32 {both.text} to i16", int16))

    def _half_to_f32(self, bits: V) -> V:
        half = self.ins(f"bitcast i16 {bits.text} to half", float16)
        return self.ins(f"fpext half {half.text} to float", float32)

    # -- through the bits ----------------------------------------------------------------------------------------------

    def _through_bits(self, x: V, target: DType) -> V:
        """float32 to a narrow float: round to nearest even, saturate to the largest finite number. NaN and infinities
        stay such, or become the largest number of a type without them."""
        mantissa, low, largest, nan = SHAPES[target.name]
        def i32(text):
            return self.ins(text, int32)
        magnitude = self.ins(f"call float @llvm.fabs.f32(float {x.text})", float32)
        clipped = self.ins(f"call float @llvm.minnum.f32(float {magnitude.text}, "
                           f"float {self.const(largest, float32).text})", float32)
        bits = i32(f"bitcast float {clipped.text} to i32")
        # Normal numbers: add just under half a unit in the last place, plus the parity of the kept bits (ties to
        # even), and truncate.
        drop = 23 - mantissa
        odd = i32(f"and i32 {i32(f'lshr i32 {bits.text}, {drop}').text}, 1")
        rounded = i32(f"add i32 {i32(f'add i32 {bits.text}, {(1 << drop - 1) - 1}').text}, {odd.text}")
        normal = i32(f"sub i32 {i32(f'lshr i32 {rounded.text}, {drop}').text}, {(126 + low) << mantissa}")
        # Subnormal numbers are multiples of `step`; adding 2**23 steps rounds to them.
        step = 2.0 ** (low - mantissa)
        shift = self.const(step * 2.0 ** 23, float32)
        small = i32(f"bitcast float {self.ins(f'fadd float {clipped.text}, {shift.text}', float32).text} to i32")
        small = i32(f"and i32 {small.text}, {(1 << mantissa + 1) - 1}")
        below = self.ins(f"fcmp olt float {clipped.text}, {self.const(2.0 ** low, float32).text}", bool_)
        code = self.select(below, small, normal)
        if target.name == "float8_e5m2":
            code = self.select(self._is_infinite(x), self.const(124, int32), code)
        signed = i32(f"lshr i32 {i32(f'bitcast float {x.text} to i32').text}, 31")
        ordered = self.ins(f"fcmp ord float {x.text}, {x.text}", bool_)
        sign = self.select(ordered, i32(f"shl i32 {signed.text}, {target.codes.bit_length() - 2}"),
                           self.const(0, int32))
        code = code if nan is None else self.select(ordered, code, self.const(nan, int32))
        return self._code(i32(f"or i32 {code.text}, {sign.text}"), target)

    def _to_power(self, x: V, target: DType) -> V:
        """float32 to the nearest power of two (float8_e8m0fnu), ties to the larger one;
        NaN for negative numbers and NaN."""
        def i32(text):
            return self.ins(text, int32)
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
