"""Generates the LLVM IR of a native launcher from its recipe; `native` compiles it."""

from __future__ import annotations

import struct

from ..dtypes import LARGEST, LEAST_NORMAL
from .arrays import MAY_BE_NEGATED
from .element_types import ELEMENT_TYPES, FLOAT32_LIMIT, integer_limits
from .facts import ArrayKind
from .launch_expressions import Expression, Leaf, fold
from .recipe import CONFIG_FIELDS, PROGRAMS_LIMIT, GridParameter, MapParameter, MapRecipe, Parameter, Recipe

# The table's 8-byte words: Python's objects and functions, the array library's functions, the driver's,
# and this launcher's values.
WORDS = ("true", "false", "none", "int_type", "float_type", "tuple_type", "tensor_type", "parameter_type",
          "as_integer", "from_integer", "incref", "decref", "clear_error", "call_method", "is_neg", "save_thread",
          "restore_thread", "borrow", "stream_of", "launch", "encode_tiled", "get_context",
          "context", "function", "attributes", "attribute_count", "device", "multiprocessors")

_TOO_LARGE, _INFINITE = struct.unpack("<2Q", struct.pack("<2d", FLOAT32_LIMIT, float("inf")))
# Offsets in CPython's objects
_HEAD = object.__basicsize__             # end of the reference count and the type
_TYPE = _HEAD - 8                        # pointer to an object's type
_ITEMS = tuple.__basicsize__             # a tuple's items; their number is at _HEAD
_BYTES = bytes.__basicsize__ - 1         # a bytes object's data


def print_ir(recipe: Recipe) -> str:
    """LLVM IR of ``launch(self, args, count)``, a METH_FASTCALL function of (grid, stream, arguments)."""
    code = _Code()
    count = len(recipe.params)
    values, pointers = code.room(max(count, 1) * 8, 8), code.room(max(count, 1) * 8, 8)
    config, code.answer, code.overflow = code.room(56, 8), code.room(8, 8), code.room(8, 8)

    code.need("icmp eq i64 %count, 3")
    grid, stream, arguments = (code.load("ptr", "%args", 8 * i) for i in range(3))
    _read(code, recipe, arguments)
    extents = _fill_grid(code, recipe, grid, config)
    code.need(f"icmp eq i64 {_context(code)}, {code.word('context', 'i64')}")
    handle = code.stream(stream, bool(recipe.arrays))
    for index, param in enumerate(recipe.params):
        place = code.address_at(values, 8 * index)
        if isinstance(param, MapParameter):
            place = code.encode(recipe.maps[param.index])
        elif isinstance(param, GridParameter):
            code.store("i64", extents[param.axis], place)
        else:
            code.put(param, place)
        code.store("ptr", place, pointers, 8 * index)
    filled = recipe.config((), handle, code.word("attributes"), code.word("attribute_count", "i64"))
    for (kind, offset), value in zip(CONFIG_FIELDS[3:], filled):
        code.store(kind, value, config, offset)
    _launch(code, config, pointers)
    lines = ["define ptr @launch(ptr %self, ptr %args, i64 %count) {", "entry:", *code.rooms,
             *code.words.values(), "  br label %start", "start:", *code.lines, "}", ""]
    return "\n".join(lines)


def _read(code: _Code, recipe: Recipe, arguments: str) -> None:
    """Read the arguments, and check the facts for which the kernel was compiled."""
    code.need_tuple(arguments, len(recipe.arguments))
    for i, kind in enumerate(recipe.arguments):
        item = code.load("ptr", arguments, _ITEMS + 8 * i)
        if isinstance(kind, ArrayKind):
            code.read_array(i, item, kind)
        else:
            code.read_scalar(i, item, kind.dtype)
    for guard in recipe.guards:
        code.need(f"icmp eq i1 {code.value(guard.condition)}, {'true' if guard.held else 'false'}")


def _fill_grid(code: _Code, recipe: Recipe, grid: str, config: str) -> list[str]:
    """Put the grid into the launch configuration. Returns its extents. An empty grid counts as launched."""
    code.need_tuple(grid, 3)
    empty, extents = None, []
    for axis, ((limit, multiple), (kind, offset)) in enumerate(zip(recipe.grid_limits, CONFIG_FIELDS)):
        extent = code.integer(code.load("ptr", grid, _ITEMS + 8 * axis))
        code.need(f"icmp ule i64 {extent}, {limit}")
        if multiple > 1:
            code.need(f"icmp eq i64 {code('urem i64', extent, multiple)}, 0")
        code.store(kind, code(f"trunc i64 {extent} to {kind}"), config, offset)
        extents.append(extent)
        zero = code("icmp eq i64", extent, 0)
        empty = zero if empty is None else code("or i1", empty, zero)
    code.line(f"br i1 {empty}, label %launched, label %filled")
    code.label("filled")
    if recipe.persistent:
        programs = code("mul i64", code("mul i64", *extents[:2]), extents[2])  # below 2^63
        code.need(f"icmp ule i64 {programs}, {PROGRAMS_LIMIT}")
        resident = code.word("multiprocessors", "i64")
        started = code(f"select i1 {code('icmp ult i64', programs, resident)}, i64 {programs}, i64 {resident}")
        for (kind, offset), value in zip(CONFIG_FIELDS, (started, 1, 1)):
            code.store(kind, code(f"trunc i64 {value} to {kind}"), config, offset)
    return extents


def _launch(code: _Code, config: str, pointers: str) -> None:
    """Call the driver, and return True, the driver's error, or (label miss) False."""
    thread = code(f"call ptr {code.word('save_thread')}()")
    result = code(f"call i32 {code.word('launch')}(ptr {config}, ptr {code.word('function')}, "
                  f"ptr {pointers}, ptr null)")
    code.line(f"call void {code.word('restore_thread')}(ptr {thread})")
    code.line(f"br i1 {code('icmp eq i32', result, 0)}, label %launched, label %failed")
    code.label("failed")
    error = code(f"call ptr {code.word('from_integer')}(i64 {code(f'zext i32 {result} to i64')})")
    code.line(f"ret ptr {error}")
    for label, word in (("launched", "true"), ("miss", "false")):
        code.label(label)
        found = code.word(word)
        code.line(f"call void {code.word('incref')}(ptr {found})")
        code.line(f"ret ptr {found}")
    code.label("raised")
    code.line(f"call void {code.word('clear_error')}()")
    code.line("br label %miss")


def _context(code: _Code) -> str:
    code.store("i64", 0, code.answer)
    code(f"call i32 {code.word('get_context')}(ptr {code.answer})")
    return code.load("i64", code.answer)


class _Code:
    """Builds the IR text: `code(text)` emits an instruction and returns its new value; a `need` that does not hold
    branches to the label miss."""

    answer: str    # the address of the answer of a call to the driver
    overflow: str  # the address of CPython's flag for integers that do not fit

    def __init__(self):
        self.lines: list[str] = []
        self.rooms: list[str] = []                         # allocas in the entry block
        self.words: dict[str, str] = {}                    # loads of the table's words, once each in the entry block
        self.count = 0
        # argument -> (pointer, address of its extents, address of its strides)
        self.arrays: dict[int, tuple[str, str, str]] = {}
        self.scalars: dict[int, str] = {}                  # argument -> its value: i64, or double for floats

    def __call__(self, text: str, *operands) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text} {', '.join(map(str, operands))}".rstrip())
        return f"%v{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def room(self, nbytes: int, align: int) -> str:
        self.count += 1
        self.rooms.append(f"  %v{self.count} = alloca [{nbytes} x i8], align {align}")
        return f"%v{self.count}"

    def address_at(self, base: str, offset: int) -> str:
        return base if offset == 0 else self(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, kind: str, base: str, offset: int = 0) -> str:
        return self(f"load {kind}, ptr {self.address_at(base, offset)}, align {4 if kind == 'i32' else 8}")

    def store(self, kind: str, value, base: str, offset: int = 0) -> None:
        self.line(f"store {kind} {value}, ptr {self.address_at(base, offset)}, align {4 if kind == 'i32' else 8}")

    def word(self, name: str, kind: str = "ptr") -> str:
        value = f"%{name}_{kind}"
        self.words[value] = (f"  {value}_at = getelementptr i8, ptr %self, i64 {_BYTES + 8 * WORDS.index(name)}\n"
                             f"  {value} = load {kind}, ptr {value}_at, align 8")
        return value

    def need(self, test: str, otherwise: str = "miss") -> None:
        self.count += 1
        here = f"n{self.count}"
        self.line(f"br i1 {self(test)}, label %{here}, label %{otherwise}")
        self.label(here)

    # -- reading arguments -------------------------------------------------------------------------------------------

    def is_a(self, item: str, word: str) -> str:
        return self("icmp eq ptr", self.load("ptr", item, _TYPE), self.word(word))

    def need_tuple(self, item: str, length: int) -> None:
        self.need(f"icmp eq i1 {self.is_a(item, 'tuple_type')}, true")
        self.need(f"icmp eq i64 {self.load('i64', item, _HEAD)}, {length}")

    def integer(self, item: str) -> str:
        """The value of an int object, which has to fit in 64 bits."""
        self.need(f"icmp eq i1 {self.is_a(item, 'int_type')}, true")
        value = self(f"call i64 {self.word('as_integer')}(ptr {item}, ptr {self.overflow})")
        self.need(f"icmp eq i32 {self.load('i32', self.overflow)}, 0")
        return value

    def read_array(self, i: int, item: str, array: ArrayKind) -> None:
        known = self("or i1", self.is_a(item, "tensor_type"), self.is_a(item, "parameter_type"))
        self.need(f"icmp eq i1 {known}, true")
        tensor = self.room(48, 8)
        failed = self(f"call i32 {self.word('borrow')}(ptr {item}, ptr {tensor})")
        self.need(f"icmp eq i32 {failed}, 0", "raised")
        self.need(f"icmp eq i64 {self.load('i64', tensor, 8)}, {self.word('device', 'i64')}")
        self.need(f"icmp eq i32 {self.load('i32', tensor, 16)}, {array.rank}")
        code, bits = ELEMENT_TYPES[array.dtype].dlpack
        lanes = 2 if bits == 4 else 1  # torch's float4 elements are pairs in a byte
        self.need(f"icmp eq i32 {self.load('i32', tensor, 20)}, {code | bits << 8 | lanes << 16}")
        pointer = self("add i64", self.load("i64", tensor), self.load("i64", tensor, 40))
        extents, strides = self.load("ptr", tensor, 24), self.load("ptr", tensor, 32)
        if array.rank:
            self.need(f"icmp ne ptr {extents}, null")
            self.need(f"icmp ne ptr {strides}, null")
        if array.dtype in MAY_BE_NEGATED:
            self.need_plain(item, pointer, ELEMENT_TYPES[array.dtype].nbytes)
        self.arrays[i] = pointer, extents, strides

    def need_plain(self, item: str, pointer: str, nbytes: int) -> None:
        """Check that a tensor is not a lazily negated view. is_neg() is called only if it begins at an odd element (see
        MAY_BE_NEGATED)."""
        self.count += 1
        odd, plain = f"odd{self.count}", f"plain{self.count}"
        test = self("icmp eq i64", self("and i64", pointer, nbytes), 0)
        self.line(f"br i1 {test}, label %{plain}, label %{odd}")
        self.label(odd)
        given = self.room(8, 8)
        self.store("ptr", item, given)
        answer = self(f"call ptr {self.word('call_method')}(ptr {self.word('is_neg')}, ptr {given}, i64 1, ptr null)")
        self.need(f"icmp ne ptr {answer}, null", "raised")
        self.line(f"call void {self.word('decref')}(ptr {answer})")  # True or False, which other references keep alive
        self.need(f"icmp eq ptr {answer}, {self.word('false')}")
        self.line(f"br label %{plain}")
        self.label(plain)

    def read_scalar(self, i: int, item: str, dtype: str) -> None:
        if dtype in ("float32", "float64"):
            self.need(f"icmp eq i1 {self.is_a(item, 'float_type')}, true")
            self.scalars[i] = self.load("double", item, _HEAD)
            # Refuse finite numbers that would round to infinity. The bit patterns of absolute values have the
            # order of the values.
            if dtype == "float32":
                size = self("and i64", self.load("i64", item, _HEAD), 2**63 - 1)
                self.need(f"icmp uge i64 {self('sub i64', size, _TOO_LARGE)}, {_INFINITE - _TOO_LARGE}")
            return
        if dtype == "bool":
            yes = self("icmp eq ptr", item, self.word("true"))
            either = self("or i1", yes, self("icmp eq ptr", item, self.word("false")))
            self.need(f"icmp eq i1 {either}, true")
            self.scalars[i] = self(f"zext i1 {yes} to i64")
            return
        value = self.scalars[i] = self.integer(item)
        limits = integer_limits(dtype)
        assert limits is not None  # it is an integer
        least, most = limits
        if least > -2 ** 63:
            self.need(f"icmp sge i64 {value}, {least}")
        if most < 2 ** 63 - 1:
            self.need(f"icmp slt i64 {value}, {most + 1}")

    def stream(self, item: str, arrays: bool) -> str:
        """The handle of the stream argument: an int, or for None the current stream of the arrays' library."""
        given, current, known = (f"{name}{self.count}" for name in ("given", "current", "known"))
        place = self.room(8, 8)
        none = self("icmp eq ptr", item, self.word("none"))
        self.store("i64", 0, place)
        self.line(f"br i1 {none}, label %{current}, label %{given}")
        self.label(given)
        self.store("i64", self.integer(item), place)
        self.line(f"br label %{known}")
        self.label(current)
        if arrays:
            device = self.word("device", "i64")
            kind, ordinal = self(f"trunc i64 {device} to i32"), self(f"trunc i64 {self('lshr i64', device, 32)} to i32")
            failed = self(f"call i32 {self.word('stream_of')}(i32 {kind}, i32 {ordinal}, ptr {place})")
            self.need(f"icmp eq i32 {failed}, 0", "raised")
        self.line(f"br label %{known}")
        self.label(known)
        return self.load("i64", place)

    # -- expressions -------------------------------------------------------------------------------------------------

    def value(self, x: Expression) -> str:
        """The i64 of an expression; the i1 of a condition."""
        return fold(x, str, self.leaf, self.operation)

    def leaf(self, leaf: Leaf) -> str:
        kind, i, axis = leaf
        if kind == "scalar":
            return self.scalars[i]
        pointer, extents, strides = self.arrays[i]
        if kind == "ptr":
            return pointer
        assert axis is not None  # as sizes and strides have
        return self.load("i64", extents if kind == "size" else strides, 8 * axis)

    def operation(self, name: str, *parts: str) -> str:
        match name:
            case "and" | "or":
                return self(f"{name} i1", *parts)
            case "eq" | "le":
                return self(f"icmp {'eq' if name == 'eq' else 'sle'} i64", *parts)
            case "add" | "sub" | "mul":
                return self(f"{name} i64", *parts)
            case "min" | "max":
                less = self("icmp slt i64", *parts)
                first, second = parts if name == "min" else reversed(parts)
                return self(f"select i1 {less}, i64 {first}, i64 {second}")
            case "abs":
                negative = self("icmp slt i64", parts[0], 0)
                return self(f"select i1 {negative}, i64 {self('sub i64', 0, parts[0])}, i64 {parts[0]}")
            case "floordiv" | "mod":
                return self.divide(name, *parts)
            case "positive":
                # the bit patterns of positive numbers have the order of the numbers; constants of floats are no
                # immediate operands, and the code has no memory for them
                least, largest = struct.unpack("<2q", struct.pack("<2d", LEAST_NORMAL, LARGEST))
                bits = self(f"bitcast double {parts[0]} to i64")
                return self("and i1", self("icmp sge i64", bits, least), self("icmp sle i64", bits, largest))
        raise ValueError(f"no operation {name}")

    def divide(self, name: str, a: str, b: str) -> str:
        """Python's division, which rounds towards minus infinity."""
        if b.startswith("%"):
            self.need(f"icmp ne i64 {b}, 0")
        rest = self("srem i64", a, b)
        differ = self("icmp slt i64", self("xor i64", rest, b), 0)
        adjust = self("and i1", differ, self("icmp ne i64", rest, 0))
        if name == "mod":
            return self("add i64", rest, self(f"select i1 {adjust}, i64 {b}, i64 0"))
        return self("sub i64", self("sdiv i64", a, b), self(f"zext i1 {adjust} to i64"))

    # -- parameters --------------------------------------------------------------------------------------------------

    def put(self, param: Parameter, place: str) -> None:
        """Write one parameter's value at `place`."""
        value = self.value(param.value)
        if param.dtype == "float32":
            single = self(f"fptrunc double {value} to float")
            self.line(f"store float {single}, ptr {place}, align 4")
            return
        if param.dtype == "float64":
            self.line(f"store double {value}, ptr {place}, align 8")
            return
        if param.narrows:
            low = self(f"trunc i64 {value} to i32")
            self.need(f"icmp eq i64 {self(f'sext i32 {low} to i64')}, {value}")
        self.store("i64", value, place)

    def encode(self, map_: MapRecipe) -> str:
        """Encode a tensor map on the stack; returns its address. Values that depend on the call are checked
        by the driver only."""
        fixed, extents, address = map_.fixed, map_.fixed.box, map_.address
        assert extents is not None and address is not None  # a tiled map of an argument
        room, dims, strides = self.room(128, 64), self.room(40, 8), self.room(40, 8)
        box, steps = self.room(20, 4), self.room(20, 4)
        for place, parts in ((dims, map_.dims), (strides, map_.strides)):
            for axis, part in enumerate(parts):
                self.store("i64", self.value(part), place, 8 * axis)
        for axis in range(fixed.rank):
            self.store("i32", extents[axis], box, 4 * axis)
            self.store("i32", fixed.element_strides[axis], steps, 4 * axis)
        tail = ", ".join(f"i32 {mode}" for mode in map_.modes)
        failed = self(f"call i32 {self.word('encode_tiled')}(ptr {room}, i32 {fixed.code}, i32 {fixed.rank}, "
                      f"i64 {self.value(address)}, ptr {dims}, ptr {strides}, ptr {box}, ptr {steps}, {tail})")
        self.need(f"icmp eq i32 {failed}, 0")
        return room
