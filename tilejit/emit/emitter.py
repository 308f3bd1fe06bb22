"""Emits the lowered graph as LLVM IR text: one function, the code of one thread."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import architecture
from ..dtypes import DType, bool_, float32, int32, int64
from ..ir import emitter_protocol
from ..ir.builder import ExecScope, type_as
from ..ir.graph import Block, Call, Const, For, Graph, If, Operand, Scope, Value, While, walk
from ..ir.op_rules import require_rule
from ..names import entry_name
from ..ops.memory.regions import points, region
from ..ops.mma import mma_async_, renewed
from ..types import Buffer, Scalar, Sym, layout_of, strides_of
from .accumulators import Pins, Products
from .barriers import Barriers
from .buffers import EBuffer, EPoints, ERegion
from .bulk import BulkCopies
from .control import Control
from .debug import DebugInfo
from .instructions import InstructionMixin
from .marks import Ranges
from .named_maps import NamedMaps
from .place import PlaceMixin
from .ptx import PtxOperands
from .structure import Structure
from .synchronisation import Synchronisation
from .tiles import Tiles
from .tma import TensorCopies
from .tmem import TensorMemory
from .value import V
from .warps import Warp


@dataclass
class Emitted:
    """The result of emission: the module's text, the recipes of its parameters in order, whether libdevice must be
    linked, the recipes of the tensor maps, and whether accumulators are pinned to registers."""

    llvm_ir: str
    params: list = field(default_factory=list)
    libdevice: bool = False
    maps: list = field(default_factory=list)
    pinned: bool = False

    @property
    def passes(self) -> str:
        """The LLVM passes to run on the text, by their name in `toolchain.llvm`."""
        return "short" if self.pinned and not self.libdevice else "light"


# Strides from this many elements on may take an offset within a tile, whose extents are below 2^16, out of 32 bits.
FAR = 1 << 15


class Emitter(PlaceMixin, InstructionMixin):
    """Writes the function. The ``emit`` rules of ops append to the current basic block; `memo` holds one table of
    values per nested region of code. Components write what is a subject of its own, such as TMA."""

    def __init__(self, graph: Graph):
        self.graph, self.target = graph, graph.target
        self.architecture = architecture(graph.target)
        self.fast_math = graph.launch.fast_math
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.globals: list[str] = []  # definitions of the module's constants
        self.uses_libdevice = False
        self.count = 0
        self.label_count = 0
        self.current = "entry"
        self.values: dict[Value, Any] = {}
        self.params: dict[tuple, V] = {}
        self.map_recipes: list = []
        self.scope = ExecScope("cta", graph.launch.threads)
        self.partial = False  # whether the code is divergent: perhaps only some of the scope's threads run it
        self.divided = False  # whether perhaps only some lanes of a warp run it
        self.tables: dict = {}
        self.memo: list[dict] = [{}]
        self.barrier_ids: dict = {}   # reserved hardware barriers, by owner: (first id, count)
        # pinned tile -> number of its register set; computed by the first `pins_of`
        self.pinned: Mapping[Operand, int] | None = None
        self.pin_sets: dict[int, Pins] = {}
        self.made_by = {r: n for n in walk(graph.body) if isinstance(n, Call) for r in n.results}
        self.loc = graph.loc
        self.debug = DebugInfo(graph)
        self.tiles, self.warp, self.control, self.structure = Tiles(self), Warp(self), Control(self), Structure(self)
        self.sync, self.barriers, self.ptx = Synchronisation(self), Barriers(self), PtxOperands(self)
        self.tma, self.bulk, self.maps = TensorCopies(self), BulkCopies(self), NamedMaps(self)
        self.mma, self.tmem, self.ranges = Products(self), TensorMemory(self), Ranges(self)

    # -- text --------------------------------------------------------------------------------------------------------

    def ins(self, text: str, dtype: DType) -> V:
        """Append an instruction that has a result."""
        name = self.name()
        self.lines.append(f"  {name} = {text}{self.debug.mark(self.loc)}")
        if "@llvm." in text:
            self._declare_intrinsic(text)
        return V(self, name, dtype)

    def name(self) -> str:
        """A fresh SSA name."""
        self.count += 1
        return f"%v{self.count}"

    def stmt(self, text: str) -> None:
        self.lines.append(f"  {text}{self.debug.mark(self.loc)}")

    def declare(self, text: str) -> None:
        self.declarations.add(text)

    def _declare_intrinsic(self, text: str) -> None:
        """Declare the intrinsic that ``call T @llvm.name(T1 a, T2 b)`` calls."""
        result, rest = text.removeprefix("call ").split(" @", 1)
        name, arguments = rest.split("(", 1)
        types = ", ".join(a.strip().split(" ")[0] for a in arguments.rsplit(")", 1)[0].split(",") if a.strip())
        self.declare(f"declare {result.split(' ')[-1]} @{name}({types})")

    def label(self, hint: str) -> str:
        self.label_count += 1
        return f"{hint}{self.label_count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.current = label

    def branch(self, label: str) -> None:
        self.stmt(f"br label %{label}")

    def branch_if(self, test: V, then: str, orelse: str) -> None:
        self.stmt(f"br i1 {test.text}, label %{then}, label %{orelse}")

    # -- constants and scalars -----------------------------------------------------------------------------------------

    def const(self, value, dtype: DType) -> V:
        """A literal. LLVM writes float16 and bfloat16 as the hexadecimal bits,
        and float32 as those of the equal double."""
        if dtype.kind == "bool":
            return V(self, "true" if value else "false", dtype)
        if not dtype.is_float:
            return V(self, str(int(value)), dtype)
        if dtype.bits >= 32:
            number = float(value)
            if dtype.bits == 32 and math.isfinite(number):
                with np.errstate(over="ignore"):
                    number = float(np.float32(number))
            return V(self, f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", dtype)
        with np.errstate(over="ignore"):
            bits = int(np.asarray(float(value)).astype(dtype.np).view(f"u{dtype.nbytes}"))
        if dtype.bits == 8:
            return V(self, str(bits), dtype)
        return V(self, f"0x{'H' if dtype.name == 'float16' else 'R'}{bits:04X}", dtype)

    def as_value(self, x, dtype: DType) -> V:
        return x if isinstance(x, V) else self.const(x, dtype)

    @property
    def f32_dtype(self) -> DType:
        return float32

    @staticmethod
    def suffix(dtype: DType) -> str:
        return {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}[dtype.llvm]

    def select(self, test: V, a: V, b: V) -> V:
        return self.ins(f"select i1 {test.text}, {a.typed_text}, {b.typed_text}", a.dtype)

    def widen(self, x: V, dtype: DType) -> V:
        if x.dtype.bits == dtype.bits:
            return x
        return self.memoize_for_region(("widen", x.text),
                                       lambda: self.ins(f"sext {x.typed_text} to i{dtype.bits}", dtype))

    def in_bounds(self, index, size) -> V:
        """``0 <= index < size``."""
        if isinstance(index, int):
            if isinstance(size, int):
                return self.const(0 <= index < size, bool_)
            return self.const(False, bool_) if index < 0 else self.ins(f"icmp sgt {size.typed_text}, {index}", bool_)
        return index.is_below(size)

    def inside(self, buffer: EBuffer, d: int, index) -> V:
        """Whether a coordinate along dimension `d` is within the bounds of the buffer, or of its window."""
        low = 0 if buffer.lows is None else buffer.lows[d]
        return self.in_bounds(index if isinstance(low, int) and low == 0 else index - low, buffer.sizes[d])

    def all_of(self, tests: list) -> V | None:
        total = None
        for test in tests:
            if test is None or test.text == "true":
                continue
            total = test if total is None else self.ins(f"and i1 {total.text}, {test.text}", bool_)
        return total

    def mul64(self, a, b):
        """``a * b`` in 64 bits, so that offsets do not wrap; an int if both are ints or one is 0."""
        if isinstance(a, V):
            a = self.widen(a, int64)
        if isinstance(b, V):
            b = self.widen(b, int64)
        return a * b

    def sum64(self, terms):
        total = 0
        for term in terms:
            total = total + (self.widen(term, int64) if isinstance(term, V) else term)
        return total

    def offset_pointer(self, pointer: V, elements, nbytes: int) -> V:
        """`pointer` advanced by `elements` elements of `nbytes` bytes."""
        if isinstance(elements, int) and elements == 0:
            return pointer
        if isinstance(elements, V):
            elements = self.widen(elements, int64)
        return pointer + elements * nbytes

    def exactly_divided(self, a, n: int):
        """``a / n``, where `a` is a multiple of `n` and may be negative (a copy may begin before the array)."""
        if isinstance(a, int):
            return a // n
        return self.ins(f"sdiv exact {a.typed_text}, {n}", a.dtype)

    def word(self, x) -> V:
        """An integer as a 32-bit value."""
        if isinstance(x, int):
            return self.const(x, int32)
        return self.ins(f"trunc i64 {x.text} to i32", int32) if x.dtype.bits == 64 else x

    # -- arguments and memory ------------------------------------------------------------------------------------------

    def param(self, recipe: tuple, dtype: DType) -> V:
        """The kernel parameter that a launch fills by `recipe`; declared at its first use."""
        if recipe not in self.params:
            self.params[recipe] = V(self, f"%p{len(self.params)}", dtype)
        return self.params[recipe]

    def grid_extent(self, axis: int) -> V:
        """The launch's number of programs along an axis: a special register, or a parameter if the launch starts
        fewer CTAs."""
        if self.graph.persistent:
            return self.param(("grid", axis), int32)
        return self.sreg(f"nctaid.{'xyz'[axis]}")

    def counters(self, name: str, words: int) -> V:
        """The address of so many 64-bit words of the module's own, which are 0 when it is loaded."""
        line = f"@{name} = internal addrspace(1) global [{words} x i64] zeroinitializer, align 8"
        if line not in self.globals:
            self.globals.append(line)
        return self.ins(f"ptrtoint ptr addrspace(1) @{name} to i64", int64)

    def resolve(self, sym: int | Sym):
        """A size or stride: a constant, or the parameter that holds it."""
        if isinstance(sym, int):
            return sym
        return self.param((sym.kind, sym.arg, sym.dim, f"i{sym.bits}"), int64 if sym.bits == 64 else int32)

    def make_array(self, type_: Buffer, address: V, numbers) -> EBuffer:
        """The array at an address. `numbers` are its extents, then its strides; those that are constant stay ints, so
        that address arithmetic folds, unless an offset within a tile might then leave 32 bits."""
        rank = len(type_.shape)
        strides = (s if isinstance(s, int) and abs(s) < FAR else n for s, n in zip(strides_of(type_), numbers[rank:]))
        sizes = (s if isinstance(s, int) else n for s, n in zip(type_.shape, numbers))
        return EBuffer(type_, address, tuple(sizes), tuple(strides))

    def make_region(self, type_, buffer: EBuffer, starts) -> ERegion:
        return ERegion(type_, buffer, tuple(starts))

    def make_points(self, type_, buffer: EBuffer, indices) -> EPoints:
        return EPoints(type_, buffer, tuple(indices))

    def shared_base(self) -> V:
        return self.entry("smem", lambda: self.ins("ptrtoint ptr addrspace(3) @smem to i32", int32))

    def shared_buffer(self, value: Value) -> EBuffer:
        t = type_as(value, Buffer)
        return EBuffer(t, sizes=t.shape, offset=self.graph.shared[value])

    def shared_address(self, buffer: EBuffer, coordinates, base: V | None = None) -> tuple[V, int]:
        """(address, constant byte offset) of an element of a shared buffer. `base` is a copy of the base of shared
        memory."""
        layout, nbytes = layout_of(buffer.type), buffer.type.dtype.nbytes
        offset = layout.offset_of(*coordinates, shape=buffer.type.shape) * nbytes
        base = self.shared_base() if base is None else base
        if isinstance(offset, int):
            return base, buffer.offset + offset
        return base + offset, buffer.offset

    def begin_scratch(self, call: Call) -> None:
        """Synchronise the scope before the call's first write to its scratch,
        unless no thread can still be reading there."""
        if call.results[0] not in self.graph.scratch_unused:
            self.sync.scope()

    def scratch_address(self, call: Call, offset) -> tuple[V, int]:
        """(address, constant byte offset) of byte `offset` of the call's scratch."""
        result = call.results[0]
        base, address = self.graph.shared[result], self.shared_base()
        for place, nbytes in self.graph.scratch_strides.get(result, ()):
            address = address + self.operand(place) * nbytes
        return (address, base + offset) if isinstance(offset, int) else (address + offset, base)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def operand(self, operand: Operand):
        """An operand in the form that rules take: a value, a list of values for a tile (one per
        register), a buffer, None."""
        if operand is None:
            return None
        if isinstance(operand, Const):
            return self.const(operand.value, operand.dtype)
        value = self.values[operand]
        if isinstance(value, Pins):
            return self.memoize_for_region(("pinned", operand), lambda: self.mma.read_pins(value))
        return value

    def forget_pinned(self) -> None:
        """Forget what this region has read from pinned registers."""
        for key in [key for key in self.memo[-1] if key[0] == "pinned"]:
            del self.memo[-1][key]

    def _index(self, operand: Operand):
        """An index of a region or of points: constants stay ints, so that address arithmetic folds."""
        return operand.value if isinstance(operand, Const) else self.operand(operand)

    @contextmanager
    def region_of_code(self):
        """A context for code that does not dominate the code after it: values memoised inside it are forgotten at its
        end."""
        self.memo.append({})
        try:
            yield
        finally:
            self.memo.pop()

    def block(self, block: Block) -> None:
        for node in block.nodes:
            self.loc = node.loc
            match node:
                case Call():
                    self._call(node)
                case For():
                    self.structure.emit_for(node)
                case If():
                    self.structure.emit_if(node)
                case While():
                    self.structure.emit_while(node)
                case Scope():
                    self.structure.emit_scope(node)

    def _call(self, call: Call) -> None:
        op = call.op
        if op in (region, points):
            args = tuple(self._index(a) for a in call.args)
        elif op in (mma_async_, renewed):
            args = tuple(None if self.mma.pins_of(a) else self.operand(a) for a in call.args)
        else:
            args = tuple(self.operand(a) for a in call.args)
        result = require_rule(op.rules.emit)(self, call, *args)
        if len(call.results) == 1:
            self.values[call.results[0]] = result
        else:
            for value, emitted in zip(call.results, result or ()):
                self.values[value] = emitted

    # -- the module ----------------------------------------------------------------------------------------------------

    def run(self) -> Emitted:
        """Emit the whole graph."""
        self.entry_lines: list[str] = []
        for n, value in enumerate(self.graph.params):
            t = value.type
            if isinstance(t, Scalar):
                x = self.param(("scalar", n, str(t.dtype)), t.dtype)
                if t.dtype == bool_:
                    self.values[value] = self.entry(x.text, lambda: self.ins(f"icmp ne i8 {x.text}, 0", bool_))
                else:
                    self.values[value] = x
            else:
                assert isinstance(t, Buffer) and t.strides is not None  # an array
                pointer = self.param(("ptr", n), int64)
                self.values[value] = EBuffer(t, pointer, tuple(map(self.resolve, t.shape)),
                                             tuple(map(self.resolve, t.strides)))
        self.barriers.initialise()
        self.ranges.initialise()
        self.tmem.allocate()
        self.block(self.graph.body)
        self.loc = self.graph.loc
        self.tmem.leave()
        # a peer may still access this CTA's shared memory, so no CTA exits before the others finish
        if self.graph.launch.cluster:
            self.sync.cluster_arrive()
            self.sync.cluster_wait()
        self.tmem.free()
        self.stmt("ret void")
        return Emitted(self._module(), [list(p) for p in self._used_params()], self.uses_libdevice, self.map_recipes,
                       bool(self.pin_sets))

    def _used_params(self):
        return list(self.params)

    def _module(self) -> str:
        launch = self.graph.launch
        params = ", ".join(f"{_declare_parameter(recipe, v)} {v.text}" for recipe, v in self.params.items())
        attributes = [f'"nvvm.maxntid"="{launch.threads},1,1"', f'"nvvm.minctasm"="{launch.min_ctas or 1}"']
        if launch.cluster:
            attributes.append(f'"nvvm.cluster_dim"="{",".join(map(str, launch.cluster))}"')
        if launch.max_registers:
            attributes.append(f'"nvvm.maxnreg"="{launch.max_registers}"')
        if launch.fast_math:
            attributes.append('"denormal-fp-math-f32"="preserve-sign,preserve-sign"')
        return "\n".join([
            'target triple = "nvptx64-nvidia-cuda"',
            "@smem = external addrspace(3) global [0 x i8], align 1024",
            *self.globals,
            *sorted(self.declarations),
            f"define ptx_kernel void @{entry_name(self.graph.name)}({params}) #0{self.debug.function()} {{",
            "entry:", *filter(None, self.entry_lines), *filter(None, self.lines), "}",
            f"attributes #0 = {{ nounwind convergent {' '.join(attributes)} }}",
            "attributes #1 = { nounwind }",
            "attributes #2 = { nounwind convergent }",
            self.debug.metadata(libdevice=self.uses_libdevice),
        ]) + "\n"


def _declare_parameter(recipe: tuple, v: V) -> str:
    """The LLVM type and attributes of a kernel parameter.

    A tensor map is 128 bytes by value with ``grid_constant``: without it, LLVM copies them to local memory, where TMA
    cannot read them. ``noundef`` saves compile time: with it LLVM takes 1.4 s for a kernel of 514 copies at computed
    addresses, without it 6.1 s."""
    if recipe[0] == "map":
        return 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
    return f"{'i8' if v.dtype == bool_ else v.dtype.llvm} noundef"


def emit(graph: Graph) -> Emitted:
    """LLVM IR of a graph after all passes (layouts, variants and places in shared memory are chosen)."""
    return Emitter(graph).run()


if TYPE_CHECKING:
    def _has_what_rules_use(e: Emitter) -> emitter_protocol.Emitter:
        return e
