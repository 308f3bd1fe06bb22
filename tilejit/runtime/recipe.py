"""A launch recipe: JSON-able data that says how a call's arguments become a kernel's parameters.

    {"name": "matmul", "threads": 384, "cluster": [2, 1, 1] or None, "shared": 213504, "pdl": False,
     "arguments": [["array", "bfloat16", 2], ["scalar", "int32"]],
     "params": [["ptr", 0], ["size", 0, 1, "i32"], ["stride", 0, 0, "i64"], ["scalar", 1, "int32"], ["map", 0]],
     "maps": [{"argument": 0, "base_offset": 0, "dtype": "bfloat16", "rank": 2, "dims": [["size", 0, 1], ["size", 0, 0]],
               "strides": [["mul", ["stride", 0, 0], 2]], "box": [64, 128], "element_strides": [1, 1], "interleave": 0,
               "swizzle": 3, "l2_promotion": 2, "oob_fill": 0, "origin": "host"}],
     "guards": [[["aligned", 0, 16], true], [["size_multiple", 0, 1, 64], true]]}

Argument numbers count the call's runtime arguments. `shared`, and a map's strides and base offset, are in bytes; a map's
dims, strides and base offset are expressions of `facts`. A map with "nowhere" describes placeholder memory of the
launcher, since its argument has no elements. A map with "lower", "upper", "channels" and "pixels" instead of "box" is
im2col, along w if it has "wide"."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..concurrency import cached_property
from ..errors import LaunchError
from . import tensormap
from .element_types import element_type
from .facts import condition

# CUlaunchConfig: grid, block, dynamic shared bytes, stream, attributes, number of attributes
CONFIG = struct.Struct("<7I4xQQI4x")
CLUSTER_ATTRIBUTE, PDL_ATTRIBUTE = 4, 6   # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION
ATTRIBUTE_BYTES = 72                      # CUlaunchAttribute: an id padded to 8 bytes and a value of 64

MAP_FIELDS = ("dtype", "rank", "element_strides", "interleave", "swizzle", "l2_promotion", "oob_fill")  # the same in every call
IM2COL_FIELDS = ("lower", "upper", "channels", "pixels", "wide")  # instead of a box

GRID_LIMIT = (2 ** 31 - 1, 65535, 65535)
THREADS_LIMIT, CLUSTER_LIMIT, PORTABLE_CLUSTER = 1024, 16, 8

_INTEGER = {"i32": "i", "i64": "q"}


@dataclass(frozen=True)
class Recipe:
    """A checked recipe."""

    name: str
    threads: int
    cluster: tuple[int, int, int] | None
    shared: int
    pdl: bool
    arguments: tuple
    params: tuple
    maps: tuple
    guards: tuple
    written: tuple = ()  # the numbers of the arguments that the kernel writes

    @staticmethod
    def of(data: dict) -> Recipe:
        """The recipe in `data`. LaunchError if it asks for something that no device supports."""
        cluster = tuple(data["cluster"]) if data.get("cluster") else None
        recipe = Recipe(data["name"], data["threads"], None if cluster == (1, 1, 1) else cluster, data["shared"],
                        bool(data.get("pdl")), tuple(data["arguments"]), tuple(data["params"]),
                        tuple(data.get("maps") or ()), tuple(data.get("guards") or ()),
                        tuple(data.get("written") or ()))
        recipe._check()
        return recipe

    def _check(self) -> None:
        if not 1 <= self.threads <= THREADS_LIMIT:
            raise LaunchError(f"{self.name}: a CTA of {self.threads} threads; it may have 1 to {THREADS_LIMIT}")
        if self.cluster:
            count = self.cluster[0] * self.cluster[1] * self.cluster[2]
            if len(self.cluster) != 3 or min(self.cluster) < 1 or count > CLUSTER_LIMIT:
                raise LaunchError(f"{self.name}: a cluster of {self.cluster}; it may have 1 to {CLUSTER_LIMIT} CTAs")
        for map_ in self.maps:
            if map_.get("origin", "host") == "host":
                self._check_map(map_)
        for guard in self.guards:
            condition(guard[0], self.arguments)
        self.formats  # noqa: B018 - raises for a parameter that cannot be packed

    def _check_map(self, map_: dict) -> None:
        """Check the fields that are the same in every call, with placeholders for the others."""
        rank = map_["rank"]
        fields = {key: map_[key] for key in MAP_FIELDS}
        fields.update(address=0, dims=[128] * rank, strides=[32] * (rank - 1), blackwell=True)
        if "box" in map_:
            tensormap.check_tiled(box=map_["box"], **fields)
        else:
            tensormap.check_im2col(**{key: map_[key] for key in IM2COL_FIELDS if key in map_}, **fields)

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """The `struct` format of each parameter; "" for a tensor map, which is stored separately."""
        return tuple(map(self._format, self.params))

    def _format(self, param) -> str:
        match param:
            case ["ptr", _]:
                return "Q"
            case ["size" | "stride", _, _, width] if width in _INTEGER:
                return _INTEGER[width]
            case ["scalar", _, dtype]:
                element = element_type(dtype)
                return element.pack or f"{element.nbytes}s"
            case ["map", _]:
                return ""
        raise LaunchError(f"{self.name}: {param!r} is not a parameter of a recipe")

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
        for axis, extent, limit in zip("xyz", (x, y, z), GRID_LIMIT):
            if extent < 0 or extent > limit:
                raise LaunchError(f"{self.name}: grid.{axis} is {extent}; it may be 0 to {limit}")
        if self.cluster:
            for axis, extent, size in zip("xyz", (x, y, z), self.cluster):
                if extent % size:
                    raise LaunchError(f"{self.name}: grid.{axis} is {extent}, not a multiple of the cluster's {size}")
        return x != 0 and y != 0 and z != 0


def normal_grid(grid) -> tuple[int, int, int]:
    """Three ints from an int or a sequence of 1 to 3. LaunchError for anything else."""
    try:
        parts = (grid.__index__(),) if hasattr(grid, "__index__") else tuple(part.__index__() for part in grid)
    except (TypeError, AttributeError):
        parts = ()
    if not 1 <= len(parts) <= 3:
        raise LaunchError(f"a grid is 1 to 3 integers, not {grid!r}")
    return (parts + (1, 1))[:3]
