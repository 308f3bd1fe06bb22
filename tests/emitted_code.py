"""Runs the LLVM IR of a compiled kernel, without a GPU: to compare emitted code with the simulator.

Warps run one after the other from barrier to barrier, in an order that `seed` draws, so that a missing barrier shows. The lanes
of a warp run together; where they disagree on a branch, either way may only compute. Only the instructions are known that the tests
need: arithmetic and comparisons, shuffles, votes, and loads, stores and atomic additions in global and shared memory.
"""

from __future__ import annotations

import re
import struct

import ml_dtypes
import numpy as np
from tilejit.ops.order.sort_keys import ORDER_64

LANES, SHARED = 32, 256 * 1024
TYPES = {"i1": np.bool_, "i8": np.uint8, "i16": np.uint16, "i32": np.uint32, "i64": np.uint64, "float": np.float32,
         "double": np.float64, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
          "shl": np.left_shift, "lshr": np.right_shift, "udiv": np.floor_divide, "urem": np.remainder, "fadd": np.add,
          "fmul": np.multiply, "fsub": np.subtract, "fdiv": np.true_divide}
SIGNED = {"ashr": np.right_shift, "srem": np.fmod, "sdiv": lambda a, b: abs(a) // abs(b) * np.sign(a) * np.sign(b)}
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
TYPED = r"(\{[^}]*\}|\w+) (\S+)"


def run_emitted(compiled, arrays: list[np.ndarray], threads: int = 128, seed: int = 0, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Run one CTA of `compiled` on C-contiguous arrays, one for each parameter of the kernel that is no constant; it reads the extents
    of a `grid`."""
    memory = Memory(arrays, grid)
    parameters = [_parameter(recipe, arrays, memory) for recipe in compiled.recipe["params"]]
    blocks = _blocks(compiled.llvm_ir)
    warps = [Warp(blocks, parameters, memory, n, threads).run() for n in range(-(-threads // LANES))]
    rng, ready, waiting = np.random.default_rng(seed), list(warps), {}
    while ready:
        warp = ready.pop(rng.integers(len(ready)))
        barrier = next(warp, None)
        if barrier is None:
            continue
        name, count = barrier
        waiting.setdefault(name, []).append(warp)
        if LANES * len(waiting[name]) == (count or threads):
            ready += waiting.pop(name)
    assert not waiting, f"warps wait at barriers {sorted(waiting)}"


def _parameter(recipe, arrays, memory):
    kind, n, *rest = recipe
    if kind == "ptr":
        return memory.bases[n]
    assert kind in ("size", "stride"), recipe
    array = arrays[n]
    return array.shape[rest[0]] if kind == "size" else array.strides[rest[0]] // array.itemsize


def _blocks(text: str) -> dict[str, list[str]]:
    body = text.split("define ptx_kernel", 1)[1].split("\n}\n", 1)[0].splitlines()[1:]
    blocks: dict[str, list[str]] = {}
    for line in body:
        line = re.sub(r"(, !dbg !\d+| #\d+)+(?=$|, !)", "", re.sub(r", !llvm.loop !\d+", "", line)).strip()
        line = re.sub(r"(, !dbg !\d+|\s#\d+)+$", "", line)
        if line.endswith(":"):
            current = blocks.setdefault(line[:-1], [])
        elif line:
            current.append(line)
    return blocks


class Memory:
    """Global arrays at distinct 64-bit addresses, and shared memory, filled with a pattern; the extents of the grid."""

    def __init__(self, arrays, grid):
        self.grid = grid
        self.views = [a.reshape(-1).view(np.uint8) for a in arrays]
        self.bases = [(n + 1) << 40 for n in range(len(arrays))]
        self.shared = np.full(SHARED, 0xA5, np.uint8)
        self.votes: dict[tuple, list] = {}

    def conditions(self, barrier: str, thread: int) -> list:
        """The list of a barrier's next vote of this thread, to which each warp adds its conditions."""
        number = self.votes[barrier, thread] = self.votes.get((barrier, thread), 0) + 1
        return self.votes.setdefault((barrier, "vote", number), [])

    def bytes_at(self, space: str, address: int, count: int) -> np.ndarray:
        view, at = (self.shared, address) if space == "shared" else (self.views[(address >> 40) - 1], address & (1 << 40) - 1)
        assert 0 <= at and at + count <= view.size and at % count == 0, f"{space} address {at} of {count} bytes in {view.size}"
        return view[at:at + count]


class Warp:
    """One warp: `values` has an array of 32 for each name."""

    def __init__(self, blocks, parameters, memory, number, threads):
        self.blocks, self.memory = blocks, memory
        self.thread = np.arange(number * LANES, min(threads, (number + 1) * LANES), dtype=np.uint32)
        self.values = {f"%p{n}": p for n, p in enumerate(parameters)}

    def run(self):
        label, before = "entry", ""
        while label:
            instructions = self.blocks[label]
            phis = [i for i in instructions if " = phi " in i]
            self.values |= dict(self.phi(line, before) for line in phis)
            following = None
            for line in instructions[len(phis):]:
                if barrier := re.search(r'"bar(?:rier)?\.sync (\d+)(?:, (\d+))?;"', line):
                    yield int(barrier[1]), int(barrier[2] or 0)
                elif vote := re.search(r'(%\S+) = .*"bar(?:rier)?\.red\.(and|or)\.pred \$0, (\d+), (\d+), \$1;".*\(i1 (\S+)\)', line):
                    name, word, barrier, count, condition = vote.groups()
                    conditions = self.memory.conditions(barrier, self.thread[0])
                    conditions.append(self.value("i1", condition))
                    yield int(barrier), int(count)
                    values = np.concatenate(conditions)
                    self.values[name] = np.full(len(self.thread), values.all() if word == "and" else values.any())
                elif line.startswith("br "):
                    label, following = self.branch(label, line)
                elif line != "ret void":
                    self.execute(line)
            label, before = following, label

    def phi(self, line: str, before: str | tuple) -> tuple[str, np.ndarray]:
        """The name and the value of a phi; `before` is the block before, or two of them and which lanes were in the first."""
        name, kind, rest = re.match(r"(\S+) = phi (\S+) (.*)", line).groups()
        values = {block: value for value, block in re.findall(r"\[ (\S+), %(\S+) \]", rest)}
        if isinstance(before, str):
            return name, self.value(kind, values[before])
        lanes, *two = before
        return name, np.where(lanes, *(self.value(kind, values[block]) for block in two))

    def branch(self, label: str, line: str) -> tuple[str | tuple, str]:
        """The block before the next one, and the next one. Where lanes go two ways that only compute and meet again, all lanes compute
        both, and the phis choose."""
        if line.startswith("br label"):
            return label, line.split("%")[1]
        test, *two = re.match(r"br i1 (\S+), label %(\S+), label %(\S+)", line).groups()
        taken = self.value("i1", test)
        if taken.all() or not taken.any():
            return label, two[0] if taken.all() else two[1]
        ends = set()
        for block in two:
            *instructions, end = self.blocks[block]
            assert end.startswith("br label") and all(re.match(r"%\S+ = (?!phi|call)|%\S+ = call \w+ @llvm.fma", i) for i in instructions), (
                f"lanes disagree at {line}")
            for instruction in instructions:
                self.execute(instruction)
            ends.add(end.split("%")[1])
        assert len(ends) == 1, f"lanes disagree at {line}"
        return (taken, *two), ends.pop()

    def value(self, kind: str, text: str) -> np.ndarray:
        text = text.rstrip(",)")
        if text in self.values and not isinstance(self.values[text], int):
            return self.values[text]
        count = len(self.thread)
        if text in self.values:
            return np.full(count, self.values[text], TYPES[kind])
        if text in ("true", "false"):
            return np.full(count, text == "true")
        if kind in ("float", "double"):
            return np.full(count, struct.unpack(">d", bytes.fromhex(text[2:]))[0], TYPES[kind])
        if kind in ("half", "bfloat"):
            return np.full(count, int(text[3:], 16), np.uint16).view(TYPES[kind])
        width = np.dtype(TYPES[kind]).itemsize * 8
        return np.full(count, int(text) % (1 << width), TYPES[kind])

    def execute(self, line: str) -> None:
        name, _, text = line.partition(" = ") if line.startswith("%") else ("", "", line)
        with np.errstate(all="ignore"):
            result = self.compute(text)
        if name:
            self.values[name] = result

    def compute(self, text: str):
        word = text.split()[0]
        if word == "call":
            return self.call(text)
        if word in ("icmp", "fcmp"):
            how, kind, a, b = re.match(r"[if]cmp (\w+) (\w+) (\S+), (\S+)", text).groups()
            return self.compare(word, how, self.value(kind, a), self.value(kind, b))
        if "<" in text and word in ("bitcast", "extractelement", "insertelement"):
            return self.vector(word, text)
        if word == "select":
            test, kind, a, b = re.match(r"select i1 (\S+), (\w+) (\S+), \w+ (\S+)", text).groups()
            return np.where(self.value("i1", test), self.value(kind, a), self.value(kind, b))
        if word == "fneg":
            return -self.value(*text.split()[1:])
        if word in ("zext", "sext", "trunc", "bitcast", "ptrtoint", "fpext", "fptrunc", "sitofp"):
            return self.convert(word, text)
        if word == "extractvalue":
            name, n = re.match(r"extractvalue \{[^}]*\} (\S+), (\d+)", text).groups()
            return self.values[name][int(n)]
        flags = r"(?: (?:contract|exact|nsw|nuw|disjoint))*"
        word, kind, a, b = re.match(rf"(\w+){flags} (\w+) (\S+), (\S+)", text).groups()
        if word in SIGNED:
            signed = f"i{np.dtype(TYPES[kind]).itemsize}"
            return SIGNED[word](self.value(kind, a).view(signed), self.value(kind, b).view(signed)).view(TYPES[kind])
        return BINARY[word](self.value(kind, a), self.value(kind, b)).astype(TYPES[kind], copy=False)

    def vector(self, word: str, text: str):
        """Vectors of elements are arrays (lanes, elements)."""
        if word == "extractelement":
            name, n = re.match(r"extractelement <.*?> (\S+), i32 (\d+)", text).groups()
            return self.values[name][:, int(n)]
        if word == "insertelement":
            count, kind, name, x, n = re.match(r"insertelement <(\d+) x (\w+)> (\S+), \w+ (\S+), i32 (\d+)", text).groups()
            made = np.zeros((len(self.thread), int(count)), TYPES[kind]) if name in ("undef", "poison") else self.values[name].copy()
            made[:, int(n)] = self.value(kind, x)
            return made
        kind, name, target = re.match(r"bitcast (<.*?>|\w+) (\S+) to (<.*?>|\w+)", text).groups()
        x = self.values[name] if kind[0] == "<" else self.value(kind, name)
        made = np.ascontiguousarray(x).reshape(len(x), -1).view(TYPES[target.strip("<>").split()[-1]])
        return made if target[0] == "<" else made[:, 0]

    @staticmethod
    def compare(word: str, how: str, a, b):
        if word == "fcmp":
            if how == "uno":
                return np.isnan(a) | np.isnan(b)
            return COMPARE[how[1:]](a, b)  # NaN: as NumPy, also une
        if how[0] == "s" and len(how) == 3:
            a, b = (x.view(f"i{x.dtype.itemsize}") for x in (a, b))
        return COMPARE[how[-2:]](a, b)

    def convert(self, word: str, text: str):
        if word == "ptrtoint":
            return np.zeros(len(self.thread), np.uint32)
        kind, a, target = re.match(r"\w+ (\w+) (\S+) to (\w+)", text).groups()
        x = self.value(kind, a)
        if word == "bitcast":
            return x.view(TYPES[target])
        if word == "sitofp":
            return x.view(f"i{x.dtype.itemsize}").astype(TYPES[target])
        if word == "sext":
            signed = x.astype(np.int8) * np.int8(-1) if kind == "i1" else x.view(f"i{x.dtype.itemsize}")
            return signed.astype(f"i{np.dtype(TYPES[target]).itemsize}").view(TYPES[target])
        return x & 1 != 0 if target == "i1" else x.astype(TYPES[target])

    def call(self, text: str):
        if " asm " in text:
            return self.assembly(text)
        name, arguments = re.match(r"call .*?@([\w.]+)\((.*)\)", text).groups()
        values = [self.value(*a.split()[-2:]) for a in arguments.split(", ")] if arguments else []
        if name.endswith(".tid.x"):
            return self.thread
        if ".nctaid." in name:
            return np.full(len(self.thread), self.memory.grid["xyz".index(name[-1])], np.uint32)
        if name.endswith(".ctaid.x"):
            return np.zeros(len(self.thread), np.uint32)
        if name == "llvm.assume":
            assert values[0].all(), "the kernel assumes what does not hold"
            return None
        if ".shfl.sync." in name:
            return self.shuffle(name.split(".")[4], *values[1:4])
        if ".vote." in name:
            kind, votes = name.split(".")[3], values[1]
            if kind == "ballot":
                return np.full(len(votes), sum(1 << n for n, v in enumerate(votes) if v), np.uint32)
            return np.full(len(votes), votes.any() if kind == "any" else votes.all())
        if name == "llvm.fma.f32":  # exact before it is rounded but for one case in 2**40
            a, b, c = (v.astype(np.longdouble) for v in values)
            return (a * b + c).astype(np.float32)
        if name == "llvm.maximum.f32":
            return np.maximum(*values)
        found = re.match(r"llvm\.([su])(min|max)\.", name)
        assert found, name
        a, b = values if found[1] == "u" else (v.view(f"i{v.dtype.itemsize}") for v in values)
        return (np.minimum if found[2] == "min" else np.maximum)(a, b).view(values[0].dtype)

    def shuffle(self, kind: str, x, operand, clamp):
        """PTX ISA, shfl.sync: a lane whose source is beyond `clamp` keeps its own value. `clamp` is the last lane of the
        warp's segments, for "up" the first."""
        lane = np.arange(len(x))
        operand, clamp = operand.astype(np.int64) & 31, clamp.astype(np.int64)
        assert (clamp < LANES).all(), "segments of a warp"
        at = {"bfly": lane ^ operand, "idx": operand, "up": lane - operand, "down": lane + operand}[kind]
        within = at >= clamp if kind == "up" else at <= clamp
        return x[np.where(within & (at >= 0) & (at < len(x)), at, lane)]

    def assembly(self, text: str):
        kind, code, constraints, arguments = re.match(r'call (.*?) ?asm (?:sideeffect )?"(.*?)", "(.*?)"\((.*)\)', text).groups()
        values = [self.value(*a.split()) for a in arguments.split(", ")] if arguments else []
        if "lanemask_lt" in code:  # 0 in every lane: 31 where no lane is below bit 31
            return np.zeros(len(self.thread), np.uint32)
        if found := re.fullmatch(r"(min|max)\.u\d+ \$0, \$1, \$2;", code):
            return (np.minimum if found[1] == "min" else np.maximum)(*values)
        if found := re.fullmatch(r"cvt\.rn\.(b?)f16x2\.f32 \$0, \$1, \$2;", code):  # $1 is the upper half
            upper, lower = (v.astype(TYPES["bfloat" if found[1] else "half"]).view(np.uint16).astype(np.uint32) for v in values)
            return upper << 16 | lower
        if found := re.fullmatch(r"cvt\.rn\.f32\.s(\d+) \$0, \$1;", code):
            return values[0].view(f"i{int(found[1]) // 8}").astype(np.float32)
        if code == ORDER_64:
            return [np.minimum(*values), np.maximum(*values)]
        if code.startswith("ex2.approx.ftz.f32"):  # exact for whole numbers, as the instruction is
            return np.exp2(values[0])
        if code.startswith("bar.warp.sync"):
            return None
        if "mov.u32 $0, %laneid" in code:
            return self.thread % LANES
        if code.startswith("shfl.sync.idx.b32 $0, $1, 0,"):
            return values[0][np.zeros(len(self.thread), int)]
        return self.access(kind, code, constraints.count("="), values)

    def access(self, kind: str, code: str, outputs: int, values: list):
        """A load, store or addition of the form ``@$p ld.global.v4.b32 {$0, ...}, [$n + 16];``."""
        found = re.match(r"(?:@(!?)\$(\d+) )?(ld|st|red|atom)\.([\w:.]*?)(?:\.v(\d))?\.([busf])(\d+) (.*);$", code)
        assert found, code
        negated, predicate, way, modifiers, count, _, bits, operands = found.groups()
        space = "shared" if "shared" in modifiers else "global"
        address, offset = re.search(r"\[\$(\d+)(?: \+ (\d+))?\]", operands).groups()
        registers = [int(n) for n in re.findall(r"\$(\d+)", operands) if n != address]
        count, nbytes = int(count or 1), int(bits) // 8
        active = values[int(predicate) - outputs] if predicate else np.ones(len(self.thread), bool)
        places = values[int(address) - outputs].astype(np.int64) + int(offset or 0)
        if way == "ld":
            kinds = kind.strip("{}").split(", ")
            first = len(values) - outputs if predicate else 0  # tied operands give what an inactive lane has
            loaded = [values[first + n].copy() if predicate else np.zeros(len(places), TYPES[k]) for n, k in enumerate(kinds)]
            for lane in np.flatnonzero(active):
                for n in range(count):
                    raw = self.memory.bytes_at(space, int(places[lane]) + n * nbytes, nbytes)
                    loaded[n][lane] = raw.view(loaded[n].dtype if loaded[n].dtype.itemsize == nbytes else f"u{nbytes}")[0]
            return loaded[0] if not kind.startswith("{") else loaded
        for lane in np.flatnonzero(active):
            for n in range(count):
                view = self.memory.bytes_at(space, int(places[lane]) + n * nbytes, nbytes).view(f"u{nbytes}")
                x = values[registers[n] - outputs][lane:lane + 1]
                x = x.view(f"u{x.dtype.itemsize}").astype(f"u{nbytes}")
                view[:] = view + x if way in ("red", "atom") else x
        return None
