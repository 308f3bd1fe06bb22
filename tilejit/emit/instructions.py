"""Single instructions: inline PTX, special functions, casts, vector loads and stores.
Mnemonics are spelled as in the PTX ISA."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..dtypes import DType, bool_, float32, float64, int8, int16, int32, int64
from .narrow import NarrowFloats
from .value import Part, V, Word, widening_op, word_of

CONSTRAINT = {"i1": "b", "i8": "h", "i16": "h", "half": "h", "bfloat": "h", "i32": "r", "i64": "l", "i128": "q",
              "float": "f", "double": "d"}

_LOAD_CACHE = {None: "", "ca": ".ca", "cg": ".cg", "cs": ".cs", "evict_first": ".L1::evict_first",
               "evict_last": ".L1::evict_last", "no_allocate": ".L1::no_allocate"}
_STORE_CACHE = _LOAD_CACHE | {"ca": ""}
_FORMATS = {"int32": "%d", "uint32": "%u", "int64": "%lld", "uint64": "%llu", "float64": "%g"}  # of vprintf


def _result_type(types: Sequence[str]) -> str:
    """The LLVM type of an asm call with outputs of these types."""
    if len(types) > 1:
        return "{" + ", ".join(types) + "}"
    return types[0] if types else "void"


class InstructionMixin(NarrowFloats):
    """The part of the emitter that writes single instructions."""

    # -- inline asm ----------------------------------------------------------------------------------------------------

    def asm(self, text: str, outputs: Sequence[DType] = (), inputs: Sequence[V] = (), ties: dict[int, V] | None = None,
            *, pure: bool = False, convergent: bool = False) -> list[V]:
        """One inline asm call: ``$0, $1, ...`` number the outputs, then the inputs.
        `ties` maps an output to its initial value.

        Unless `pure`, the asm has side effects and clobbers memory,
        so LLVM neither removes it nor reorders it with other effects.
        """
        ties = ties or {}
        constraints = ([f"={CONSTRAINT[o.llvm]}" for o in outputs] + [CONSTRAINT[i.dtype.llvm] for i in inputs]
                       + [str(n) for n in ties])
        arguments = [i.typed_text for i in inputs] + [v.typed_text for v in ties.values()]
        result = _result_type([o.llvm for o in outputs])
        if not pure:
            constraints.append("~{memory}")
        effect = "" if pure else "sideeffect "
        attributes = " #2" if convergent else " #1"
        call = f'call {result} asm {effect}"{text}", "{",".join(constraints)}"({", ".join(arguments)}){attributes}'
        if not outputs:
            self.stmt(call)
            return []
        if len(outputs) == 1:
            return [self.ins(call, outputs[0])]
        packed = self.ins(call, outputs[0])
        return [self.ins(f"extractvalue {result} {packed.text}, {n}", o) for n, o in enumerate(outputs)]

    # -- special functions ---------------------------------------------------------------------------------------------

    def approx(self, function: str, x: V) -> V:
        """A function of float32 on the special function unit: ex2, lg2, sin, cos, tanh, rsqrt, sqrt or rcp (which get
        ``.approx``), or a full form such as "ex2.approx.ftz"."""
        name = function if "." in function else f"{function}.approx"
        return self.asm(f"{name}.f32 $0, $1;", [float32], [x], pure=True)[0]

    def fma(self, a: V, b: V, c: V) -> V:
        return self.ins(f"call float @llvm.fma.f32(float {a.text}, float {b.text}, float {c.text})", float32)

    def libdevice(self, function: str, dtype: DType, *values: V) -> V:
        self.uses_libdevice = True
        self.declare(f"declare {dtype.llvm} @{function}({', '.join(v.dtype.llvm for v in values)})")
        return self.ins(f"call {dtype.llvm} @{function}({', '.join(v.typed_text for v in values)})", dtype)

    def vprintf(self, parts: Sequence[str | int | V]) -> None:
        """Print a line of texts, numbers and values by ``vprintf(format, values)`` (CUDA C++ Programming Guide,
        "Formatted Output")."""
        values = [part for part in parts if isinstance(part, V)]
        shown = [_FORMATS[part.dtype.name] if isinstance(part, V) else str(part).replace("%", "%%") for part in parts]
        data = ("".join(shown) + "\n\0").encode(errors="backslashreplace")
        name = f"@text{len(self.globals)}"
        quoted = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
        self.globals.append(f'{name} = private unnamed_addr addrspace(1) constant [{len(data)} x i8] '
                            f'c"{quoted}", align 1')
        self.declare("declare i32 @vprintf(ptr, ptr)")
        kind = "{ " + ", ".join(v.dtype.llvm for v in values) + " }"
        room = "null"
        if values:
            room = self.entry(("room", kind), lambda: self.ins(f"alloca {kind}, align 8", int64)).text
            for i, v in enumerate(values):
                place = self.ins(f"getelementptr {kind}, ptr {room}, i32 0, i32 {i}", int64)
                self.stmt(f"store {v.typed_text}, ptr {place.text}")
        self.stmt(f"call i32 @vprintf(ptr addrspacecast (ptr addrspace(1) {name} to ptr), ptr {room})")

    # -- casts ---------------------------------------------------------------------------------------------------------

    def f32(self, x: V) -> V:
        return self.cast(x, float32)

    def cast(self, x: V, target: DType) -> V:
        """`x` converted to `target`; the op `cast` documents rounding and saturation."""
        source = x.dtype
        if source == target:
            return x
        if target.kind == "bool":
            compare = "fcmp une" if source.is_float else "icmp ne"
            if source.is_float and source.bits == 8:
                x, source = self.f32(x), float32
            return self.ins(f"{compare} {source.llvm} {x.text}, {'0.0' if source.is_float else '0'}", bool_)
        if source.kind == "bool":
            if target.is_float:
                return self.cast(self.ins(f"zext i1 {x.text} to i32", int32), target)
            return self.ins(f"zext i1 {x.text} to {target.llvm}", target)
        if source.is_float and target.is_float:
            return self._float_to_float(x, target)
        if source.is_float:
            return self._float_to_int(x, target)
        if target.is_float:
            return self._int_to_float(x, target)
        if source.bits == target.bits:
            return V(self, x.text, target)
        if source.bits > target.bits:
            return self.ins(f"trunc {source.llvm} {x.text} to {target.llvm}", target)
        return self.ins(f"{widening_op(source)} {source.llvm} {x.text} to {target.llvm}", target)

    def cast_many(self, values: list[V], target: DType) -> list[V]:
        """Cast all registers of a tile: two or four at a time where the hardware converts several
        (``cvt.rn.bf16x2.f32``, ``cvt.pack.sat``) or byte permutes do it, the rest one by one."""
        source = values[0].dtype if values else target
        ways: list[tuple[int, Callable[..., list[V]], object]]
        ways = [(4, self._to_bytes, target.bits == 8 and target.kind in ("int", "uint") and source.is_float),
                (4, self._from_bytes,
                 source.bits == 8 and source.kind in ("int", "uint") and target.is_float and target.bits in (16, 32)),
                (4, self._from_narrow_fours, target.is_float and target.bits in (16, 32) and self._in_fours(source)),
                (2, self._pair, source == float32 and target.is_float
                 and (target.bits == 16 or target.bits == 8 and self._pairs(target)))]
        one: tuple[int, Callable[..., list[V]], object] = (1, lambda v, target: [self.cast(v, target)], True)
        count, way, _ = next((w for w in ways if w[2]), one)
        result = [made for n in range(0, len(values) - count + 1, count) for made in way(*values[n:n + count], target)]
        return result + [self.cast(v, target) for v in values[len(result):]]

    def _pair(self, low: V, high: V, target: DType) -> list[V]:
        if target.bits == 8:
            return self._narrow_pair(low, high, target)
        kind = "bf16x2" if target.name == "bfloat16" else "f16x2"
        both = self.asm(f"cvt.rn.{kind}.f32 $0, $1, $2;", [int32], [high, low], pure=True)[0]
        return self.unpack_word(both, target.llvm, 2, target)

    def _to_bytes(self, a: V, b: V, c: V, d: V, target: DType) -> list[V]:
        """Four floats to 8-bit integers: each to s32, then two ``cvt.pack.sat`` pack them into one register."""
        pack = f"cvt.pack.sat.{'s' if target.kind == 'int' else 'u'}8.s32.b32 $0, $1, $2, $3;"
        a, b, c, d = (self.cast(v, int32) for v in (a, b, c, d))
        upper = self.asm(pack, [int32], [d, c, self.const(0, int32)], pure=True)[0]
        return self.unpack_word(self.asm(pack, [int32], [b, a, upper], pure=True)[0], "i8", 4, target)

    def _from_bytes(self, a: V, b: V, c: V, d: V, target: DType) -> list[V]:
        """Four 8-bit integers to floats. ``prmt`` puts a byte into the lowest mantissa bits of a power of two (2**23,
        or 1024 for float16), which gives the power plus the byte; then the power is subtracted. Both instructions run
        at full rate, a conversion at a quarter of it (CUDA C++ Programming Guide, "Arithmetic Instructions")."""
        word, off = self.pack_word([a, b, c, d], "i8", int32), 0
        if a.dtype.kind == "int":  # flipping the sign bit adds 128, which makes the byte unsigned
            word, off = word ^ -0x7F7F7F80, 128
        if target.name == "float16":
            power = self.const(0x64006400 + off * 0x10001, int32)
            pairs = [self.asm("sub.f16x2 $0, $1, $2;", [int32], [self.prmt(word, 0x64646464, selected), power],
                              pure=True)[0]
                     for selected in (0x4140, 0x4342)]
            return [v for pair in pairs for v in self.unpack_word(pair, "half", 2, target)]
        power = self.const(2.0 ** 23 + off, float32)
        sums = [self.ins(f"bitcast {self.prmt(word, 0x4B000000, 0x7540 + n).typed_text} to float", float32)
                for n in range(4)]
        return self.cast_many([self.ins(f"fsub float {v.text}, {power.text}", float32) for v in sums], target)

    def prmt(self, a: V, b: int, selected: int) -> V:
        """Four of the eight bytes of `a` (0 to 3) and `b` (4 to 7); each hexadecimal digit of `selected`, the lowest
        first, selects one (PTX ISA, ``prmt``)."""
        return self.ins(f"call i32 @llvm.nvvm.prmt(i32 {a.text}, i32 {b}, i32 {selected})", int32)

    def _float_to_float(self, x: V, target: DType) -> V:
        source = x.dtype
        if source.bits == 8:
            return self.cast(self._from_narrow(x), target)
        if target.bits == 8 and source.bits == 64:
            return self._to_narrow(self._narrow_odd(x), target)
        if target.bits == 8:
            return self._to_narrow(self.f32(x) if source.bits == 16 else x, target)
        if source.bits == 16 and target.bits == 16:
            return self.cast(self.f32(x), target)
        if source.bits == 64 and target.name == "bfloat16":
            return self.cast(self._narrow_odd(x), target)
        # LLVM would shift the half down and up again
        if source.name == "bfloat16" and target == float32 and x.half_of is not None:
            return self.ins(f"bitcast i32 {(x.half_of & -65536).text} to float", float32)
        word = "fptrunc" if source.bits > target.bits else "fpext"
        return self.ins(f"{word} {source.llvm} {x.text} to {target.llvm}", target)

    def hide(self, x: V) -> V:
        """The integer `x`, about whose value the assembler cannot know anything.

        ptxas 13.0 takes registers of which it knows that they hold 0 or 1 (``selp 1, 0`` and what is computed from
        it) for these numbers also where an instruction reads them as the bits of a float: it makes
        ``cvt.rzi.s32.f16`` of them 0 or 1, ``cvt.f32.f16``, ``cvt.rn.f16.f32`` and ``cvt.rni.f32.f32`` 0.0 or 1.0,
        ``neg.f32`` 0 or -1; f32, bf16 and, behind ``neg``, f64 alike. It does so on every target, with the value in a
        loop or computed of several such. It does not know that the highest bit of ``%lanemask_lt`` is 0.

        ptxas 13.0 and 13.5 make ``selp d, 1 << n % 64, 0`` of ``selp s, 1, 0; shl.b64 d, s, n`` with a constant `n`
        of 64 and more, and the same of any two constants. They fold ``shl.b32``, ``shl.b16`` and all ``shr``
        correctly.

        Its shift is an arithmetic one, so that ptxas knows no bit of the zero: of a zero of which 31 bits are known,
        ``1 | zero`` would be a known 1 again.
        """
        zero = self.entry("a zero that ptxas does not know",
                          lambda: self.asm("{ .reg .b32 t; mov.u32 t, %lanemask_lt; shr.s32 $0, t, 31; }", [int32], [],
                                           pure=True)[0])
        return self.ins(f"xor {x.typed_text}, {self.cast(zero, x.dtype).text}", x.dtype)

    def _narrow_odd(self, x: V) -> V:
        """float64 to float32, rounded to odd, so that rounding the result to a narrower type is the same as rounding
        `x` once. A number beyond float32 becomes its largest one."""
        near = self.ins(f"fptrunc double {x.text} to float", float32)
        back = self.ins(f"fpext float {near.text} to double", x.dtype)
        inexact = self.ins(f"fcmp one double {back.text}, {x.text}", bool_)
        def magnitude(v):
            return self.ins(f"call double @llvm.fabs.f64(double {v.text})", x.dtype)
        larger = self.ins(f"fcmp ogt double {magnitude(back).text}, {magnitude(x).text}", bool_)
        bits = self.ins(f"bitcast float {near.text} to i32", int32)
        toward_zero = self.select(larger, self.ins(f"sub i32 {bits.text}, 1", int32), bits)
        odd = self.ins(f"or i32 {toward_zero.text}, 1", int32)
        return self.ins(f"bitcast i32 {self.select(inexact, odd, bits).text} to float", float32)

    def _float_to_int(self, x: V, target: DType) -> V:
        """``cvt.rzi``, which truncates and saturates. NaN becomes 0; from float64 or to 64 bits the instruction gives
        the sign bit alone instead (PTX ISA, "cvt"), so a select is added there."""
        if x.dtype.bits == 8 or x.dtype.name == "bfloat16" and (self.architecture < 90 or target.bits == 8):
            x = self.f32(x)
        names = {"float16": "f16", "bfloat16": "bf16"}
        to = f"{'s' if target.kind == 'int' else 'u'}{target.bits}"
        text = f"cvt.rzi.{to}.{names.get(x.dtype.name, f'f{x.dtype.bits}')} $0, $1;"
        nan = None
        if x.dtype.bits == 64 or target.bits == 64:
            nan = self.ins(f"fcmp uno {x.dtype.llvm} {x.text}, {x.text}", bool_)
        if nan is not None and x.dtype.bits < 64:
            # selecting on the operand is cheaper: it is narrower than the result
            x, nan = self.select(nan, self.const(0.0, x.dtype), x), None
        bits = self.ins(f"bitcast {x.typed_text} to i16", int16) if x.dtype.bits == 16 else x
        register = {8: int16, 16: int16, 32: int32, 64: int64}[target.bits]
        value = self.asm(text, [register], [bits], pure=True)[0]
        if nan is not None:
            value = self.select(nan, self.const(0, register), value)
        if target.bits == 8:
            return self.ins(f"trunc i16 {value.text} to i8", target)
        return V(self, value.text, target)

    def _int_to_float(self, x: V, target: DType) -> V:
        word = "sitofp" if x.dtype.kind == "int" else "uitofp"
        far = target.name in ("bfloat16", "float8_e8m0fnu")
        # Round once, through float64: it represents all 32-bit integers exactly, and 64-bit integers that it does not
        # are out of float16's range.
        if x.dtype.bits >= 32 and (target.bits == 16 or far):
            x = self._keep_sticky_bit(x) if x.dtype.bits == 64 and far else x
            return self.cast(self.ins(f"{word} {x.typed_text} to double", float64), target)
        if target.bits == 8:
            return self._to_narrow(self.ins(f"{word} {x.typed_text} to float", float32), target)
        return self.ins(f"{word} {x.typed_text} to {target.llvm}", target)

    def _keep_sticky_bit(self, x: V) -> V:
        """A 64-bit integer that float64 represents exactly and that rounds to bfloat16 and to powers of two as `x`
        does: in large numbers, the last 12 bits are replaced by a sticky bit above them."""
        shifted = self.ins(f"add i64 {x.text}, {1 << 32}", x.dtype) if x.dtype.kind == "int" else x
        large = self.ins(f"icmp ugt i64 {shifted.text}, {1 << 33}", bool_)
        low = self.ins(f"and i64 {x.text}, 4095", x.dtype)
        rest = self.ins(f"zext i1 {self.ins(f'icmp ne i64 {low.text}, 0', bool_).text} to i64", x.dtype)
        kept = self.ins(f"sub i64 {x.text}, {low.text}", x.dtype)
        return self.select(large, self.ins(f"or i64 {kept.text}, {self.ins(f'shl i64 {rest.text}, 12', x.dtype).text}",
                                           x.dtype), x)

    # -- memory --------------------------------------------------------------------------------------------------------

    def units(self, dtype: DType, n: int) -> tuple[int, DType, str]:
        """How a vector instruction moves `n` elements: (number of registers, their dtype, PTX type)."""
        if dtype.bits == 64:
            return n, int64, "b64"
        if dtype == float32:  # the PTX type need not match: registers are untyped for b32
            return n, float32, "b32"
        if dtype.bits * n >= 32:
            return dtype.bits * n // 32, int32, "b32"
        return (1, int16, "b16") if dtype.bits * n == 16 else (1, int16, "b8")

    def to_units(self, values: list[V], dtype: DType) -> list[V]:
        """Elements packed into the registers of a vector instruction (`_units`)."""
        count, unit, name = self.units(dtype, len(values))
        if dtype.kind == "bool":
            values = [self.ins(f"zext i1 {v.text} to i8", int8) for v in values]
        storage = "i8" if dtype.kind == "bool" else dtype.llvm
        if name == "b8":
            return [self.ins(f"zext i8 {values[0].text} to i16", int16)]
        per = len(values) // count
        return [self.pack_word(values[i * per:(i + 1) * per], storage, unit) for i in range(count)]

    def pack_word(self, values: list[V], storage: str, unit: DType) -> V:
        if len(values) == 1:
            value = values[0]
            return value if storage == unit.llvm else self.ins(f"bitcast {storage} {value.text} to {unit.llvm}", unit)
        word = word_of(values, unit)
        if word is not None:
            return word
        vector = "undef"
        for i, v in enumerate(values):
            vector = self.ins(f"insertelement <{len(values)} x {storage}> {vector}, {storage} {v.text}, i32 {i}",
                              unit).text
        return self.ins(f"bitcast <{len(values)} x {storage}> {vector} to {unit.llvm}", unit)

    def word_of(self, values: list[V], dtype: DType) -> V | int | None:
        """The 32-bit word that consists of these 8- or 16-bit elements, if it exists without packing: an int if all
        are constants, a value if they are the parts of one word, in order. Otherwise None."""
        if (len(values) * dtype.bits == 32
            and all(v.text.lstrip("-").isdigit() for v in values if not isinstance(v, Part))):
            if not any(isinstance(v, Part) for v in values):
                word = sum((int(v.text) & (1 << dtype.bits) - 1) << n * dtype.bits for n, v in enumerate(values))
                return word - (1 << 32) if word >> 31 else word
            return word_of(values, int32)
        return None

    def from_units(self, units: list[V], dtype: DType, n: int) -> list[V]:
        count, unit, name = self.units(dtype, n)
        storage = "i8" if dtype.kind == "bool" else dtype.llvm
        if name == "b8":
            values = [self.ins(f"trunc i16 {units[0].text} to i8", int8)]
        else:
            per = n // count
            values = [v for u in units for v in self.unpack_word(u, storage, per, dtype)]
        if dtype.kind == "bool":
            return [self.ins(f"icmp ne i8 {v.text}, 0", bool_) for v in values]
        return [v.with_dtype(dtype) for v in values]

    def unpack_word(self, unit: V, storage: str, per: int, dtype: DType) -> list[V]:
        if per == 1:
            return [unit if storage == unit.dtype.llvm else self.ins(f"bitcast {unit.typed_text} to {storage}", dtype)]
        return Word(unit, storage, per).parts(dtype)

    def vector_load(self, space: str, address: V, offset: int, dtype: DType, other: list[V], predicate: V | None, cache,
                    order: str = "") -> list[V]:
        """Load ``len(other)`` consecutive elements by one instruction; where `predicate` is false, the result is
        `other`. `order` is the memory semantics, such as ".acquire.gpu"."""
        n = len(other)
        count, unit, name = self.units(dtype, n)
        vector = f".v{count}" if count > 1 else ""
        registers = "{" + ", ".join(f"${i}" for i in range(count)) + "}" if count > 1 else "$0"
        place = f"[${count} + {offset}]" if offset else f"[${count}]"
        cache = _LOAD_CACHE[cache] if space == "global" else ""
        text = f"ld{order}.{space}{cache}{vector}.{name} {registers}, {place};"
        if predicate is None:
            units = self.asm(text, [unit] * count, [address])
        else:
            text = f"@${count + 1} {text}"
            ties = dict(enumerate(self.to_units(other, dtype)))
            units = self.asm(text, [unit] * count, [address, predicate], ties)
        return self.from_units(units, dtype, n)

    def vector_store(self, space: str, address: V, offset: int, dtype: DType, values: list[V], predicate: V | None,
                     cache, order: str = "") -> None:
        """Store consecutive elements by one instruction, where `predicate` is true."""
        units = self.to_units(values, dtype)
        count, _, name = self.units(dtype, len(values))
        vector = f".v{count}" if count > 1 else ""
        registers = "{" + ", ".join(f"${i}" for i in range(count)) + "}" if count > 1 else "$0"
        place = f"[${count} + {offset}]" if offset else f"[${count}]"
        cache = _STORE_CACHE[cache] if space == "global" else ""
        text = f"st{order}.{space}{cache}{vector}.{name} {place}, {registers};"
        if predicate is None:
            self.asm(text, [], [*units, address])
        else:
            self.asm(f"@${count + 1} {text}", [], [*units, address, predicate])

    def cp_async(self, address: V, offset: int, pointer: V, nbytes: int, cache: str, inside: V | None, active: V | None,
                 *, prefetch: int | None = None, policy=None) -> None:
        """``cp.async`` of `nbytes` by the thread: zero-filled where `inside` is false,
        not issued where `active` is false.

        `prefetch` is the L2 prefetch size in bytes (``.L2::128B``), `policy` an L2 cache policy.
        """
        inputs, levels = [address, pointer], ".L2::cache_hint" if policy is not None else ""
        levels += f".L2::{prefetch}B" if prefetch else ""
        place = f"[$0 + {offset}]" if offset else "[$0]"
        text = f"cp.async.{cache}.shared.global{levels} {place}, [$1], {nbytes}"
        if inside is not None:
            inputs.append(self.select(inside, self.const(nbytes, int32), self.const(0, int32)))
            text += ", $2"
        if policy is not None:
            inputs.append(self.bulk.policy(policy))
            text += f", ${len(inputs) - 1}"
        if active is not None:
            inputs.append(active)
            text = f"@${len(inputs) - 1} {text}"
        self.asm(text + ";", [], inputs)
