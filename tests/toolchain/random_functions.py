"""Random functions of LLVM's instructions, without memory accesses between their loads and stores, for `test_llvm_folds.py`:

    python -m tests.toolchain.random_functions 1000 500     compares 500, from seed 1000 on

LLVM's passes optimize each for a GPU. The host then runs it before and after, on numbers in which limits, infinities and NaN occur.
Numbers often become wider, are computed with, and become narrow again: what such chains may be shortened to is easily judged wrongly.
"""

from __future__ import annotations

import ctypes
import random
import re
import struct
import sys

import llvmlite.binding as binding
import numpy as np
from tilejit.toolchain import llvm

INTEGERS, FLOATS = ("i8", "i16", "i32", "i64"), ("half", "bfloat", "float", "double")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "bfloat": 16, "float": 32, "double": 64}
SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
LARGEST = {"half": 0x7C00, "bfloat": 0x7F80, "float": 0x7F800000, "double": 0x7FF0000000000000}  # the bits of infinity
PLACES = [(name, 16 * n + 8 * k) for n, name in enumerate(INTEGERS + FLOATS) for k in (0, 1)]    # of the numbers that are given
LAST = 4                                                     # so many of the last numbers of a type are stored;
STORED = [name for name in INTEGERS + FLOATS for _ in range(LAST)]
INPUTS = 200


class Function:
    """The text of a random function, which stores numbers of each type."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.values: dict[str, list[str]] = {name: [] for name in BITS}
        self.declared: set[str] = set()
        for name, at in PLACES:
            self.lines.append(f"  %p{at} = getelementptr i8, ptr %in, i64 {at}\n  %i{at} = load {name}, ptr %p{at}")
            self.values[name].append(f"%i{at}")
        for name in INTEGERS + FLOATS:  # each has enough to store
            self.values[name] *= LAST // 2
        for _ in range(self.rng.randint(4, 14)):
            self.rng.choices((self.floats, self.integers, self.conversions, self.chain_of_floats, self.chain_of_integers), (3, 4, 4, 4, 2))[0]()
        for n, name in enumerate(STORED):
            stored = self.values[name][-1 - n % LAST]
            self.lines.append(f"  %q{n} = getelementptr i8, ptr %out, i64 {8 * n}\n  store {name} {stored}, ptr %q{n}")

    def text(self) -> str:
        body = "\n".join(self.lines)
        return "\n".join(sorted(self.declared)) + f"\ndefine void @f(ptr noalias %in, ptr noalias %out) {{\n{body}\n  ret void\n}}\n"

    def add(self, kind: str, instruction: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        self.values[kind].append(name)
        return name

    def call(self, kind: str, function: str, *operands: str) -> str:
        self.declared.add(f"declare {kind} @llvm.{function}({', '.join(x.split()[0] for x in operands)})")
        return self.add(kind, f"call {kind} @llvm.{function}({', '.join(operands)})")

    def any(self, kind: str, constants: float = 0.25) -> str:
        """A value of a type, often one of the last, or a constant."""
        rng, made = self.rng, self.values[kind]
        if made and rng.random() > constants:
            return rng.choice(made[-8:] if rng.random() < 0.7 else made)
        if kind in FLOATS:
            value = np.float64(rng.choice([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 0.25, 3.0, 10.0, -0.75, 100.0, 1024.0, 65504.0]))
            narrow = {"half": ("0xH", np.float16), "bfloat": ("0xR", np.float32)}.get(kind)
            if not narrow:
                return f"0x{value.view(np.uint64):016X}"
            bits = int(value.astype(narrow[1]).view(np.uint16 if kind == "half" else np.uint32)) >> (16 if kind == "bfloat" else 0)
            return f"{narrow[0]}{bits:04X}"
        if kind == "i1":
            return rng.choice(["true", "false"])
        n = BITS[kind]
        bits = rng.choice([0, 1, 2, 3, 5, 7, 8, 127, 255, -1, (1 << n - 1) - 1, 1 << n - 1, rng.getrandbits(n)]) & (1 << n) - 1
        return str(bits - (bits >> n - 1 << n))

    # -- single instructions -------------------------------------------------------------------------------------------

    def integers(self) -> None:
        rng, kind = self.rng, self.rng.choice(INTEGERS)
        x, y, n = self.any(kind), self.any(kind), BITS[kind]
        name = rng.choice(("add sub mul and or xor shl lshr ashr udiv urem select icmp smax smin umax umin abs ctpop ctlz cttz bitreverse fshl fshr "
                           "uadd.sat usub.sat sadd.sat ssub.sat").split())
        if name in ("shl", "lshr", "ashr"):
            y = self.add(kind, f"and {kind} {y}, {n - 1}")
        if name in ("udiv", "urem"):
            y = self.add(kind, f"or {kind} {y}, 1")
        if name == "icmp":
            self.add("i1", f"icmp {rng.choice('eq ne ult ule ugt uge slt sle sgt sge'.split())} {kind} {x}, {y}")
        elif name == "select":
            self.add(kind, f"select i1 {self.any('i1')}, {kind} {x}, {kind} {y}")
        elif name in ("ctpop", "bitreverse"):
            self.call(kind, f"{name}.{kind}", f"{kind} {x}")
        elif name in ("ctlz", "cttz", "abs"):
            self.call(kind, f"{name}.{kind}", f"{kind} {x}", "i1 false")
        elif name in ("fshl", "fshr"):
            self.call(kind, f"{name}.{kind}", f"{kind} {x}", f"{kind} {y}", f"{kind} {self.any(kind)}")
        elif name[-3:] in ("max", "min", "sat"):
            self.call(kind, f"{name}.{kind}", f"{kind} {x}", f"{kind} {y}")
        else:
            self.add(kind, f"{name} {kind} {x}, {y}")

    def floats(self) -> None:
        kind = self.rng.choice(FLOATS)
        self.combine(kind, [self.any(kind) for _ in range(3)])

    def combine(self, kind: str, given: list[str]) -> str:
        """A float of one, two or three floats."""
        rng, suffix = self.rng, SUFFIX[kind]
        x, y, z = (rng.choice(given) for _ in range(3))
        name = rng.choice("fadd fsub fmul fmul fadd fdiv fneg fabs select minimum maximum fma floor ceil trunc rint sqrt".split())
        if name == "fma" and kind in ("float", "double"):
            return self.call(kind, f"fma.{suffix}", f"{kind} {x}", f"{kind} {y}", f"{kind} {z}")
        if name == "select":
            holds = self.add("i1", f"fcmp {rng.choice('oeq une olt oge ult uge uno ord'.split())} {kind} {x}, {y}")
            return self.add(kind, f"select i1 {holds}, {kind} {x}, {kind} {z}")
        if name in ("minimum", "maximum"):
            return self.call(kind, f"{name}.{suffix}", f"{kind} {x}", f"{kind} {y}")
        if name in ("fabs", "floor", "ceil", "trunc", "rint", "sqrt"):
            return self.call(kind, f"{name}.{suffix}", f"{kind} {x}")
        if name == "fneg":
            return self.add(kind, f"fneg {kind} {x}")
        return self.add(kind, f"{'fadd' if name == 'fma' else name} {kind} {x}, {y}")

    def conversions(self) -> None:
        rng = self.rng
        way = rng.choice(["float", "int", "from int", "to int", "truth value", "bits"])
        if way == "float":
            source, target = rng.sample(FLOATS, 2)
            if BITS[source] != BITS[target]:
                self.add(target, f"{'fpext' if BITS[source] < BITS[target] else 'fptrunc'} {source} {self.any(source, 0.05)} to {target}")
        elif way == "int":
            source, target = rng.sample(INTEGERS, 2)
            name = rng.choice(["zext", "sext"]) if BITS[source] < BITS[target] else "trunc"
            self.add(target, f"{name} {source} {self.any(source, 0.05)} to {target}")
        elif way == "from int":
            source = rng.choice((*INTEGERS, "i1"))
            self.to_float(source, self.any(source, 0.05), rng.choice(FLOATS))
        elif way == "to int":
            source, target = rng.choice(FLOATS), rng.choice(INTEGERS)
            self.to_integer(source, self.any(source, 0.05), target)
        elif way == "truth value":
            kind = rng.choice(INTEGERS)
            self.add(kind, f"{rng.choice(['zext', 'sext'])} i1 {self.any('i1', 0.02)} to {kind}")
        else:
            kind, number = rng.choice([("i16", "half"), ("i16", "bfloat"), ("i32", "float"), ("i64", "double")])
            self.add(number, f"bitcast {kind} {self.any(kind, 0.05)} to {number}")

    def to_float(self, source: str, x: str, target: str) -> str:
        return self.add(target, f"{self.rng.choice(['sitofp', 'uitofp'])} {source} {x} to {target}")

    def to_integer(self, source: str, x: str, target: str) -> str:
        return self.call(target, f"fpto{self.rng.choice('su')}i.sat.{target}.{SUFFIX[source]}", f"{source} {x}")

    # -- chains --------------------------------------------------------------------------------------------------------

    def chain_of_floats(self) -> None:
        """Narrow numbers become wider, are computed with, and become narrow again."""
        rng = self.rng
        wide = rng.choice(["float", "float", "double"])
        narrow = ["half", "bfloat", *(["float"] if wide == "double" else [])]
        given = []
        for kind in (rng.choice([*narrow, "int"]) for _ in range(3)):
            if kind == "int":
                source = rng.choice((*INTEGERS, "i1"))
                given.append(self.to_float(source, self.any(source, 0.1), wide))
            else:
                given.append(self.add(wide, f"fpext {kind} {self.any(kind, 0.1)} to {wide}"))
        for _ in range(rng.randint(1, 3)):
            given.append(self.combine(wide, given))
            if rng.random() < 0.2:
                kind = rng.choice(narrow)
                given.append(self.add(wide, f"fpext {kind} {self.add(kind, f'fptrunc {wide} {given[-1]} to {kind}')} to {wide}"))
        kind = rng.choice(narrow)
        self.add(kind, f"fptrunc {wide} {given[-1]} to {kind}")
        if rng.random() < 0.3:
            self.to_integer(wide, given[-1], rng.choice(INTEGERS))

    def chain_of_integers(self) -> None:
        rng, wide = self.rng, self.rng.choice(INTEGERS[1:])
        narrow, n = [kind for kind in ("i1", *INTEGERS) if BITS[kind] < BITS[wide]], BITS[wide]
        given = [self.add(wide, f"{rng.choice(['zext', 'sext'])} {kind} {self.any(kind, 0.1)} to {wide}") for kind in rng.choices(narrow, k=3)]
        for _ in range(rng.randint(1, 4)):
            name, x, y = rng.choice("add sub mul and or xor shl shl shl lshr ashr sdiv srem".split()), rng.choice(given), rng.choice(given)
            if name in ("shl", "lshr", "ashr"):
                y = rng.choice([str(rng.randrange(n)), self.add(wide, f"and {wide} {y}, {n - 1}")])
            if name in ("sdiv", "srem"):
                y = str(rng.choice([2, 3, 5, 7, 8, 10, 16]))
            given.append(self.add(wide, f"{name} {wide} {x}, {y}"))
        kind = rng.choice(narrow[1:])
        self.add(kind, f"trunc {wide} {given[-1]} to {kind}")
        kind, wider = rng.choice([("half", "float"), ("half", "double"), ("bfloat", "float"), ("float", "double")])
        x = self.to_float(wide, given[-1], kind)
        if rng.random() < 0.5:
            x = self.combine(kind, [x, x, self.any(kind)])
        self.add(wider, f"fpext {kind} {x} to {wider}")


# -- on the host -----------------------------------------------------------------------------------------------------------

def to_bfloat(x: float) -> float:
    """A float whose lower half has the bits of the bfloat16 nearest to x, as LLVM passes it."""
    word = struct.unpack("I", struct.pack("f", x))[0]
    bits = word >> 16 | 0x40 if word & 0x7FFFFFFF > 0x7F800000 else word + 0x7FFF + (word >> 16 & 1) >> 16
    return struct.unpack("f", struct.pack("I", bits & 0xFFFF))[0]


def double_to_bfloat(x: float) -> float:
    """By a float32 that is rounded to odd, so that only one rounding counts."""
    near = np.float32(x)
    if np.isfinite(near) and float(near) != x:
        near = np.uint32((int(near.view(np.uint32)) - (abs(float(near)) > abs(x))) | 1).view(np.float32)
    return to_bfloat(float(near))


def double_to_half(x: float) -> float:
    """A float whose lower half has the bits of the float16 nearest to x."""
    with np.errstate(over="ignore"):
        return struct.unpack("f", struct.pack("I", int(np.float64(x).astype(np.float16).view(np.uint16))))[0]


# the functions that LLVM calls for want of instructions
CALLED = {"__truncsfbf2": (to_bfloat, ctypes.c_float), "__truncdfbf2": (double_to_bfloat, ctypes.c_double), "__truncdfhf2": (double_to_half, ctypes.c_double)}
KEPT = {name: ctypes.CFUNCTYPE(ctypes.c_float, given)(function) for name, (function, given) in CALLED.items()}


def host_machine():
    """A machine that does not use the host's instructions for bfloat16, which flush subnormal numbers, and for float16: LLVM makes the
    least i16 of NaN by them."""
    features = binding.get_host_cpu_features().flatten() + ",-avx512bf16,-avx512fp16"
    return binding.Target.from_default_triple().create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=0, jit=True,
                                                                      codemodel="jitdefault")


def run_on_host(text: str, given: np.ndarray) -> np.ndarray:
    """The numbers that a function stores for each row of those given to it."""
    module, machine = binding.parse_assembly(text), host_machine()
    module.triple, module.data_layout = binding.get_default_triple(), str(machine.target_data)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("f"))
    stored = np.zeros((len(given), len(STORED)), np.uint64)
    for row, results in zip(given, stored):
        function(row.ctypes.data, results.ctypes.data)
    return stored


def optimized(text: str, target: str = "sm_90a") -> str:
    """The text after LLVM's passes for a GPU, for the host."""
    machine, layout = llvm._machine(target)
    hidden = llvm.hide_rounded_halves(llvm.hide_bfloats(text))
    module = binding.parse_assembly(f'target triple = "nvptx64-nvidia-cuda"\ntarget datalayout = "{layout}"\n{hidden}', binding.create_context())
    llvm._optimize(module, machine, "light", False)
    found = re.sub(r"^target .*$", "", str(module), flags=re.MULTILINE)
    return re.sub(r"^\s*(%\S+) = (?:tail )?call (float|double) asm .*\(i16 (\S+?)\).*$",  # the instruction that hides a float16
                  r"\1.half = bitcast i16 \3 to half\n\1 = fpext half \1.half to \2", found, flags=re.MULTILINE)


def numbers(seed: int) -> np.ndarray:
    """Bits for each place: any, and of small integers, limits, floats of all sizes, zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 64, (INPUTS, len(PLACES)), dtype=np.uint64)
    for place, (kind, _) in enumerate(PLACES):
        column, chance = bits[:, place], rng.random(INPUTS)
        if kind in INTEGERS:
            column[chance < 0.4] = rng.integers(0, 20, (chance < 0.4).sum()).astype(np.uint64)
            column[chance < 0.15] = (1 << 64) - 1
            column[chance < 0.1] = 1 << BITS[kind] - 1
            continue
        values = rng.standard_normal(INPUTS) * rng.choice([1e-30, 1e-8, 1e-3, 1, 10, 1e3, 1e5, 1e20], INPUTS)
        values[chance < 0.3] = np.round(values[chance < 0.3])
        for below, special in ((0.06, 0.0), (0.04, -0.0), (0.03, np.inf), (0.015, np.nan)):
            values[chance < below] = special
        with np.errstate(all="ignore"):
            narrow = {"half": values.astype(np.float16).view(np.uint16), "bfloat": values.astype(np.float32).view(np.uint32) >> 16,
                      "float": values.astype(np.float32).view(np.uint32), "double": values.view(np.uint64)}
        column[:] = narrow[kind]
    return bits


def difference(seed: int) -> str:
    """What a function stores otherwise after the passes; empty if it stores the same bits, or a NaN for a NaN."""
    text = Function(seed).text()
    given = numbers(seed)
    before, after = run_on_host(text, given), run_on_host(optimized(text), given)
    for n, kind in enumerate(STORED):
        other = before[:, n] != after[:, n]
        if kind in FLOATS:
            magnitude, infinity = np.uint64((1 << BITS[kind] - 1) - 1), np.uint64(LARGEST[kind])
            other &= ~((before[:, n] & magnitude > infinity) & (after[:, n] & magnitude > infinity))
        if other.any():
            row = np.flatnonzero(other)[0]
            return f"seed {seed}, numbers {row}: a {kind} of bits {before[row, n]:#x} becomes {after[row, n]:#x}"
    return ""


def prepare() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for name, function in KEPT.items():
        binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)


def main(first: int, count: int) -> None:
    """Print each seed, and what differs."""
    prepare()
    for seed in range(first, first + count):
        print(seed, flush=True)
        if found := difference(seed):
            print(found, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
