"""A launch recipe: what a launch checks, and how a call's arguments become a kernel's parameters.

A `Recipe` is made from data that is stored as JSON. It alone says what a launch means: `writer` makes the Python
function of it that launches, `native_ir` the one in machine code, and `Launcher.parameters` follows it step by step.

    {"name": "matmul", "threads": 384, "cluster": [2, 1, 1] or None, "shared": 213504, "pdl": False,
     "arguments": [["array", "bfloat16", 2], ["scalar", "int32"]],
     "params": [["ptr", 0], ["size", 0, 1, "i32"], ["stride", 0, 0, "i64"], ["scalar", 1, "int32"], ["map", 0]],
     "maps": [{"argument": 0, "base_offset": 0, "dtype": "bfloat16", "rank": 2,
               "dims": [["size", 0, 1], ["size", 0, 0]], "strides": [["mul", ["stride", 0, 0], 2]],
               "box": [64, 128], "element_strides": [1, 1], "interleave": 0, "swizzle": 3, "l2_promotion": 2,
               "oob_fill": 0, "origin": "host"}],
     "guards": [[["aligned", 0, 16], true], [["size_multiple", 0, 1, 64], true]]}

Argument numbers count the call's runtime arguments. `shared`, and a map's strides and base offset, are in bytes; a
map's dims, strides and base offset are expressions of `expressions`. A map with "nowhere" describes placeholder
memory of the launcher, since its argument has no elements. A map with "lower", "upper", "channels" and "pixels"
instead of "box" is im2col, along w if it has "wide".

With "persistent": true, a CTA runs several programs. The launch starts one CTA for each multiprocessor, but no more
than there are programs, in a row; the extents of the grid of programs are parameters, ["grid", axis]."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ..errors import LaunchError
from .element_types import element_type, scalar_bytes
from .facts import ArrayKind, Fact, Kind, ScalarKind, condition
from .launch_expressions import Expression, Leaf, Operation, evaluate, expression, leaves
from .tensormap import TensorMap

# CUlaunchConfig: grid, block, dynamic shared bytes, stream, attributes, number of attributes
CONFIG = struct.Struct("<7I4xQQI4x")
CONFIG_FIELDS = (*(("i32", 4 * n) for n in range(7)), ("i64", 32), ("ptr", 40), ("i64", 48))  # LLVM types and offsets
CLUSTER_ATTRIBUTE, PDL_ATTRIBUTE = 4, 6   # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION
ATTRIBUTE_BYTES = 72                      # CUlaunchAttribute: an id padded to 8 bytes and a value of 64

_FIXED = ("dtype", "rank", "element_strides", "interleave", "swizzle", "l2_promotion", "oob_fill",
          "box", "lower", "upper", "channels", "pixels", "wide")  # fields of a map that are the same in every call

GRID_LIMIT = (2 ** 31 - 1, 65535, 65535)
PROGRAMS_LIMIT = 2 ** 31 - 2 ** 16  # of a persistent kernel: the number of one, and of CTAs more, fits in 31 bits
THREADS_LIMIT, CLUSTER_LIMIT, PORTABLE_CLUSTER = 1024, 16, 8

_INTEGER = {"i32": "i", "i64": "q"}


@dataclass(frozen=True, eq=False, repr=False)
class Parameter:
    """A parameter of the kernel: a number of an argument in a `struct` format; `dtype` is that of a scalar.

    A scalar whose dtype has no such format is written as raw bytes."""

    value: Leaf
    form: str
    dtype: str = ""

    @staticmethod
    def of(data: Sequence[Any]) -> AnyParameter | None:
        """The parameter that JSON data stands for; None if it stands for none."""
        match data:
            case ["map", index]:
                return MapParameter(index)
            case ["grid", axis]:
                return GridParameter(axis)
            case ["ptr", i]:
                return Parameter(Leaf("ptr", i), "Q")
            case ["size" | "stride", i, axis, width] if width in _INTEGER:
                return Parameter(Leaf(data[0], i, axis), _INTEGER[width])
            case ["scalar", i, dtype]:
                element = element_type(dtype)
                return Parameter(Leaf("scalar", i), element.pack or f"{element.nbytes}s", dtype)
        return None

    @property
    def is_raw(self) -> bool:
        """Whether the value is not a number for `struct`, but a scalar to be converted to bytes."""
        return self.form.endswith("s")

    @property
    def narrows(self) -> bool:
        """Whether the value may have more bits than the parameter. A scalar has been checked as an argument."""
        return self.form == "i" and self.value.kind != "scalar"

    def pack(self, arguments: Sequence[Any]) -> bytes:
        """The bytes for a call's arguments."""
        value = evaluate(self.value, arguments)
        return scalar_bytes(value, self.dtype) if self.dtype else struct.pack("<" + self.form, value)


@dataclass(frozen=True, eq=False, repr=False)
class MapParameter:
    """A parameter of the kernel that is the tensor map `index` of the recipe; it is stored separately."""

    index: int
    form = ""


@dataclass(frozen=True, eq=False, repr=False)
class GridParameter:
    """A parameter of a persistent kernel: the extent of the grid of programs along `axis`."""

    axis: int
    form = "I"


AnyParameter = Parameter | MapParameter | GridParameter


@dataclass(frozen=True, eq=False, repr=False)
class MapRecipe:
    """A tensor map. `fixed` has the fields that are the same in every call, and placeholders for the others.

    `address` is None for placeholder memory of the launcher. A map that is made on the device is not `on_host`."""

    fixed: TensorMap
    address: Expression | None
    dims: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    on_host: bool = True

    @staticmethod
    def of(data: dict[str, Any]) -> MapRecipe:
        rank = data["rank"]
        fixed = TensorMap(address=0, dims=[128] * rank, strides=[32] * (rank - 1), blackwell=True,
                          **{key: data[key] for key in _FIXED if key in data})
        address = Operation("add", (Leaf("ptr", data["argument"]), expression(data["base_offset"])))
        return MapRecipe(fixed, None if data.get("nowhere") else address, tuple(map(expression, data["dims"])),
                         tuple(map(expression, data["strides"])), data.get("origin", "host") == "host")

    @property
    def is_direct(self) -> bool:
        """Whether launch functions may call the driver for it without the checks, which repeat a call that fails."""
        return self.fixed.box is not None and self.address is not None

    @property
    def modes(self) -> tuple[int, int, int, int]:
        """The last four operands of `cuTensorMapEncodeTiled`."""
        return self.fixed.interleave, self.fixed.swizzle, self.fixed.l2_promotion, self.fixed.oob_fill

    def values(self, arguments: Sequence[Any]) -> tuple[int | None, list[int], list[int]]:
        """The address, dims and strides for a call's arguments."""
        address = None if self.address is None else evaluate(self.address, arguments)
        return address, [evaluate(x, arguments) for x in self.dims], [evaluate(x, arguments) for x in self.strides]


class Guard(NamedTuple):
    """A fact whose `condition` was found to hold, or not (`held`), when the kernel was compiled."""

    fact: Fact
    condition: Expression
    held: bool
    leaves: set[Leaf]  # of the condition


@dataclass(frozen=True, eq=False, repr=False)
class Recipe:
    """A checked recipe."""

    name: str
    threads: int
    cluster: tuple[int, int, int] | None
    shared: int
    pdl: bool
    arguments: tuple[Kind, ...]
    params: tuple[AnyParameter, ...]
    maps: tuple[MapRecipe, ...]
    guards: tuple[Guard, ...]
    written: frozenset[int] = frozenset()  # the numbers of the arguments that the kernel writes
    persistent: bool = False

    @staticmethod
    def of(data: dict[str, Any]) -> Recipe:
        """The recipe in `data`. LaunchError if it asks for something that no device supports."""
        name, cluster = data["name"], tuple(data["cluster"]) if data.get("cluster") else None
        kinds = tuple(ArrayKind(*rest) if kind == "array" else ScalarKind(*rest) for kind, *rest in data["arguments"])
        recipe = Recipe(name, data["threads"], None if cluster == (1, 1, 1) else cluster, data["shared"],
                        bool(data.get("pdl")), kinds, tuple(_parameter(name, param) for param in data["params"]),
                        tuple(map(MapRecipe.of, data.get("maps") or ())),
                        tuple(_guard(fact, held, kinds) for fact, held in data.get("guards") or ()),
                        frozenset(data.get("written") or ()), bool(data.get("persistent")))
        recipe._check()
        return recipe

    def _check(self) -> None:
        if not 1 <= self.threads <= THREADS_LIMIT:
            raise LaunchError(f"{self.name}: a CTA of {self.threads} threads; it may have 1 to {THREADS_LIMIT}")
        if self.cluster:
            count = prod(self.cluster)
            if len(self.cluster) != 3 or min(self.cluster) < 1 or count > CLUSTER_LIMIT:
                raise LaunchError(f"{self.name}: a cluster of {self.cluster}; it may have 1 to {CLUSTER_LIMIT} CTAs")
        for map_ in self.maps:
            if map_.on_host:
                map_.fixed.check()

    @property
    def arrays(self) -> tuple[int, ...]:
        """The numbers of the arguments that are arrays."""
        return tuple(i for i, kind in enumerate(self.arguments) if isinstance(kind, ArrayKind))

    @property
    def map_params(self) -> tuple[MapRecipe, ...]:
        """The maps that are parameters, in the order of the parameters."""
        return tuple(self.maps[param.index] for param in self.params if isinstance(param, MapParameter))

    @property
    def grid_limits(self) -> tuple[tuple[int, int], ...]:
        """For each axis of a grid its largest extent, and the number of which an extent is a multiple."""
        return tuple(zip(GRID_LIMIT, self.cluster or (1, 1, 1)))

    def leaves(self) -> Iterator[Leaf]:
        """The numbers of arguments that a launch uses; some more than once."""
        for guard in self.guards:
            yield from guard.leaves
        yield from (param.value for param in self.params if isinstance(param, Parameter))
        for map_ in self.map_params:
            for x in (*map_.dims, *map_.strides, 0 if map_.address is None else map_.address):
                yield from leaves(x)

    def config(self, grid: tuple[Any, ...], stream: Any, attributes: Any, count: Any) -> tuple[Any, ...]:
        """The values of the launch configuration, in the order of `CONFIG`: numbers, or texts that stand for them."""
        return (*grid, self.threads, 1, 1, self.shared, stream, attributes, count)

    def attributes(self, cluster_in_code: bool) -> bytes:
        """The launch attributes in the driver's format. A cluster shape that the code itself requires is left out."""
        parts = []
        if self.cluster and not cluster_in_code:
            parts.append(struct.pack("<I4x3I", CLUSTER_ATTRIBUTE, *self.cluster))
        if self.pdl:
            parts.append(struct.pack("<I4xi", PDL_ATTRIBUTE, 1))
        return b"".join(part.ljust(ATTRIBUTE_BYTES, b"\0") for part in parts)

    def check_grid(self, x: int, y: int, z: int) -> bool:
        """Whether there is anything to launch. LaunchError for a grid that no device takes."""
        for axis, extent, (limit, _size) in zip("xyz", (x, y, z), self.grid_limits):
            if extent < 0 or extent > limit:
                raise LaunchError(f"{self.name}: grid.{axis} is {extent}; it may be 0 to {limit}")
        for axis, extent, (_limit, size) in zip("xyz", (x, y, z), self.grid_limits):
            if extent % size:
                raise LaunchError(f"{self.name}: grid.{axis} is {extent}, not a multiple of the cluster's {size}")
        if self.persistent and x * y * z > PROGRAMS_LIMIT:
            raise LaunchError(f"{self.name}: the grid {(x, y, z)} has {x * y * z} programs, and CTAs that run several "
                              f"of them count {PROGRAMS_LIMIT} at most: give persistent=False")
        return x != 0 and y != 0 and z != 0


def _guard(fact: Fact, held: bool, kinds: tuple[Kind, ...]) -> Guard:
    test = condition(fact, kinds)
    return Guard(fact, test, held, leaves(test))


def _parameter(kernel: str, data: Sequence[Any]) -> AnyParameter:
    made = Parameter.of(data)
    if made is None:
        raise LaunchError(f"{kernel}: {data!r} is not a parameter of a recipe")
    return made


def normal_grid(grid: Any) -> tuple[int, int, int]:
    """Three ints from an int or a sequence of 1 to 3. LaunchError for anything else."""
    try:
        parts = (grid.__index__(),) if hasattr(grid, "__index__") else tuple(part.__index__() for part in grid)
    except (TypeError, AttributeError):
        parts = ()
    if not 1 <= len(parts) <= 3:
        raise LaunchError(f"a grid is 1 to 3 integers, not {grid!r}")
    return (parts + (1, 1))[:3]
