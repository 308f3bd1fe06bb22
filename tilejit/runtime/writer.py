"""Generates the Python function that launches by a recipe: checks, packing and the driver call, without loops.

All that the recipe fixes is in the text as numbers, so a launch costs little more than reading the arguments."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

from ..errors import LaunchError
from . import streams, tensormap
from .arrays import DESCRIBERS, MAY_BE_NEGATED, ArrayView, describe
from .device_array import DeviceArray
from .element_types import ELEMENT_TYPES, FLOAT32_LIMIT, fits_float32, integer_limits, scalar_bytes
from .facts import ArrayKind
from .launch_expressions import Expression, Leaf, python_text
from .recipe import (
    CONFIG,
    PROGRAMS_LIMIT,
    GridParameter,
    MapParameter,
    MapRecipe,
    Parameter,
    Recipe,
    normal_grid,
)

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
_SCALARS = (int, float, bool, type(None), str)


def view_of(value) -> ArrayView | None:
    """The view of an array; None for anything else."""
    describer = DESCRIBERS.get(value.__class__)
    if describer is not None:
        return describer(value)
    if isinstance(value, _SCALARS) or not hasattr(value, "shape") and not hasattr(value, "__dlpack__"):
        return None
    try:
        return describe(value)
    except LaunchError:
        return None


def is_scalar(value, dtype: str) -> bool:
    """Whether a scalar argument can be passed as `dtype`: a Python number of its kind that fits (this includes
    enumeration members and NumPy's float64), or a NumPy scalar of this very dtype."""
    if isinstance(value, bool):
        return dtype == "bool"
    if isinstance(value, int):
        limits = integer_limits(dtype)
        return limits is not None and limits[0] <= value <= limits[1]
    if isinstance(value, float):
        return "float" in dtype and (dtype != "float32" or fits_float32(value))
    return getattr(getattr(value, "dtype", None), "name", None) == dtype and getattr(value, "shape", None) == ()


# -- the function generated for a recipe -----------------------------------------------------------------------------

def write(launcher):
    """The text of the launch function for a launcher's recipe, and the function."""
    recipe = launcher.recipe
    frames = _Frames(recipe)
    attributes = ctypes.addressof(launcher.attributes) if launcher.attribute_count else 0
    source = "\n".join([*_read(recipe, "torch" in sys.modules), *_pick_stream(len(recipe.arrays)),
                        *_fill(recipe, attributes, launcher.attribute_count, launcher.link.multiprocessors), ""])
    names = _names(launcher, frames)
    exec(compile(source, f"<launch {recipe.name}>", "exec"), names)
    return source, names["launch"]


def _read(recipe: Recipe, torch: bool) -> list[str]:
    """Code that reads the arguments and the grid, and returns False for a call that this kernel was
    not compiled for."""
    count = len(recipe.arguments)
    text = ["def launch(grid, stream, args):",
            f"    if len(args) != {count}: return False",
            "    others = []; own = 0"]
    if count:
        text.append(f"    {', '.join(f'x{i}' for i in range(count))}, = args")
    strides = _strides_used(recipe)
    for i, kind in enumerate(recipe.arguments):
        if isinstance(kind, ArrayKind):
            text += _read_array(i, kind.dtype, i in strides, torch, i in recipe.written)
        else:
            text += _read_scalar(i, kind.dtype)
    return [*text, *_check(recipe, strides), *_read_grid(recipe)]


def _pick_stream(arrays: int) -> list[str]:
    if not arrays:
        return ["    stream = 0 if stream is None else stream if stream.__class__ is int else stream_handle(stream)"]
    return ["    if stream is None:",
            f"        if others or own: stream = pick_stream(others, own, {arrays}) if own != {arrays} else 0",
            "        else: stream = raw_stream(DEVICE)",
            "    elif stream.__class__ is not int: stream = stream_handle(stream)"]


def _fill(recipe: Recipe, attributes: int, attribute_count: int, multiprocessors: int) -> list[str]:
    """Code that fills a frame with the configuration, the parameters and the tensor maps, and calls the driver."""
    grid = (f"min(gx * gy * gz, {multiprocessors})", 1, 1) if recipe.persistent else ("gx", "gy", "gz")
    values = [*recipe.config(grid, "stream", attributes, attribute_count),
              *(_value(param) for param in recipe.params if not isinstance(param, MapParameter))]
    text = ["    try: frame = pool.pop()",
            "    except IndexError: frame = make_frame()",
            "    raw, start, config, params, maps = frame",
            "    try:",
            f"        pack(raw, start, {', '.join(map(str, values))})"]
    for slot, map_ in enumerate(recipe.map_params):
        text += _encode(map_, slot)
    return [*text,
            "        code = call(config, FUNCTION, params, None)",
            "        if code: again(code, config, params, (gx, gy, gz))",
            "    except PackError as error: misfit(error, grid)",
            "    finally: pool.append(frame)",
            "    return True"]


def _names(launcher, frames: _Frames) -> dict:
    """What the function's text calls by name."""
    recipe, link = launcher.recipe, launcher.link
    maps = recipe.map_params
    names = {"view_of": view_of, "is_scalar": is_scalar, "normal_grid": normal_grid, "check_grid": recipe.check_grid,
             "pick_stream": launcher.pick_stream, "stream_handle": streams.stream_handle, "scalar_bytes": scalar_bytes,
             "pool": [], "make_frame": frames.make, "pack": frames.layout.pack_into, "encode": launcher.encode,
             "MAPS": maps, "fit": [None],
             "again": launcher.retry, "call": LAUNCH(link.points.launch), "FUNCTION": launcher.function,
             "tiled": tensormap.TILED(link.points.encode_tiled), "pack_extents": frames.extents,
             "BOX": [_words(map_.fixed.box or ()) for map_ in maps],
             "STEPS": [_words(map_.fixed.element_strides) for map_ in maps],
             "DEVICE": link.device, "PackError": struct.error, "misfit": _misfit(recipe), "Own": DeviceArray,
             "raw_stream": _default_stream}
    dtypes = {i: recipe.arguments[i].dtype for i in recipe.arrays}
    names.update({f"N{i}": _dtype_in_use(dtype) for i, dtype in dtypes.items()})
    torch = sys.modules.get("torch")
    if torch is not None:
        names.update({f"D{i}": _torch_dtype(torch, dtype) for i, dtype in dtypes.items()},
                     Tensor=torch.Tensor, Parameter=torch.nn.Parameter,
                     raw_stream=getattr(torch._C, "_cuda_getCurrentRawStream", _default_stream))
    return names


def _read_array(i: int, dtype: str, strides: bool, torch: bool, written: bool) -> list[str]:
    """Code that reads the pointer `p`, shape `s` and strides `t` of an array: of a torch tensor, a DeviceArray, or
    through a view."""
    lines = []
    if torch:
        lines += [f"    if x{i}.__class__ is Tensor or x{i}.__class__ is Parameter:",
                  f"        if x{i}.dtype is not D{i} or x{i}.get_device() != DEVICE: return False",
                  f"        p{i} = x{i}.data_ptr(); s{i} = x{i}.shape" + (f"; t{i} = x{i}.stride()" if strides else "")]
        if dtype in MAY_BE_NEGATED:
            lines.append(f"        if p{i} & {ELEMENT_TYPES[dtype].nbytes} and x{i}.is_neg(): return False")
    return lines + [f"    {'elif' if torch else 'if'} x{i}.__class__ is Own and x{i}.dtype is N{i} and "
                    f"x{i}.device == DEVICE:",
                    f"        p{i} = x{i}.pointer; s{i} = x{i}.shape; t{i} = x{i}.strides; own += 1",
                    "    else:",
                    f"        v = view_of(x{i})",
                    f"        if v is None or v.dtype != {dtype!r} or v.device != "
                    f"DEVICE{' or v.readonly' if written else ''}: return False",
                    f"        p{i} = v.pointer; s{i} = v.shape; t{i} = v.strides; others.append(v)"]


def _check(recipe: Recipe, strides: set[int]) -> list[str]:
    """Code for the guards. Those that depend on shapes and strides only are skipped if these are the same as in the
    last call that passed them."""
    arrays = {i: kind.rank for i, kind in enumerate(recipe.arguments) if isinstance(kind, ArrayKind)}
    ranks = [f"if len(s{i}) != {rank}: return False" for i, rank in arrays.items()]
    unpack = [f"{', '.join(f'{letter}{i}_{d}' for d in range(rank))}, = {of}{i}" for i, rank in arrays.items() if rank
              for letter, of, used in (("n", "s", True), ("m", "t", i in strides)) if used]
    always: list[str] = []
    once: list[str] = []
    needed = (bool(recipe.map_params)
              or any(param.value.axis is not None for param in recipe.params if isinstance(param, Parameter)))
    for guard in recipe.guards:
        line = f"if {'not ' if guard.held else ''}{python_of(guard.condition)}: return False"
        kinds = {leaf.kind for leaf in guard.leaves}
        (once if kinds <= {"size", "stride"} else always).append(line)
        needed |= not kinds.isdisjoint({"size", "stride"}) and line in always
    key = ", ".join([f"s{i}" for i in arrays] + [f"t{i}" for i in sorted(strides)])
    before, inside = ([*ranks, *unpack], once) if needed else ([], [*ranks, *unpack, *once])
    if inside:
        before += [f"form = ({key},)", "if fit[0] != form:", *("    " + line for line in inside), "    fit[0] = form"]
    return ["    " + line for line in before + always]


def _read_scalar(i: int, dtype: str) -> list[str]:
    limits = integer_limits(dtype)
    if limits is not None:
        quick = f"x{i}.__class__ is int and {limits[0]} <= x{i} <= {limits[1]}"
    elif dtype == "float32":
        quick = f"x{i}.__class__ is float and {-FLOAT32_LIMIT} < x{i} < {FLOAT32_LIMIT}"
    elif dtype == "float64":
        quick = f"x{i}.__class__ is float"
    else:
        quick = "False"
    return [f"    if not ({quick}) and not is_scalar(x{i}, {dtype!r}): return False"]


def _read_grid(recipe: Recipe) -> list[str]:
    axes = list(zip(("gx", "gy", "gz"), recipe.grid_limits))
    fits = [*(f"0 < {g} < {limit + 1}" for g, (limit, _) in axes),
            *(f"{g} % {multiple} == 0" for g, (_, multiple) in axes if multiple > 1),
            *([f"gx * gy * gz <= {PROGRAMS_LIMIT}"] if recipe.persistent else [])]
    return ["    gx, gy, gz = grid if grid.__class__ is tuple and len(grid) == 3 else normal_grid(grid)",
            f"    if not ({' and '.join(fits)}) and not check_grid(gx, gy, gz): return True"]


def python_of(x: Expression) -> str:
    """An expression as Python text over p0 (argument 0's pointer), n0_1 and m0_1 (extent and stride of its dimension
    1) and x0 (a scalar)."""
    return python_text(x, _name)


def _name(leaf: Leaf) -> str:
    letter = {"ptr": "p", "size": "n", "stride": "m", "scalar": "x"}[leaf.kind]
    return f"{letter}{leaf.argument}" + ("" if leaf.axis is None else f"_{leaf.axis}")


def _value(param: Parameter | GridParameter) -> str:
    if isinstance(param, GridParameter):
        return ("gx", "gy", "gz")[param.axis]
    text = python_of(param.value)
    return f"scalar_bytes({text}, {param.dtype!r})" if param.is_raw else text


def _torch_dtype(torch, name: str):
    """torch's dtype of an element type, None if it has none. Its float4 dtype counts a byte of two as one element."""
    return getattr(torch, name, None) or getattr(torch, f"{name}_x2", None)


def _encode(map_: MapRecipe, slot: int) -> list[str]:
    """Code that encodes a map by calling the driver directly; if that fails, the checked encoder raises the error."""
    dims, strides = (", ".join(map(python_of, parts)) for parts in (map_.dims, map_.strides))
    address = None if map_.address is None else python_of(map_.address)
    checked = f"encode(MAPS[{slot}], maps[{slot}][0], {address}, [{dims}], [{strides}])"
    if not map_.is_direct:
        return ["        " + checked]
    fixed, extents = map_.fixed, ", ".join(filter(None, (dims, strides)))
    return [f"        into, dims, strides = maps[{slot}]",
            f"        pack_extents[{slot}](raw, dims - config + start, {extents})",
            f"        if tiled(into, {fixed.code}, {fixed.rank}, {address}, dims, strides, BOX[{slot}], STEPS[{slot}], "
            f"{', '.join(map(str, map_.modes))}):",
            f"            {checked}"]


def _strides_used(recipe: Recipe) -> set[int]:
    """The arrays whose strides the function reads."""
    return {leaf.argument for leaf in recipe.leaves() if leaf.kind == "stride"}


def _dtype_in_use(name: str):
    """NumPy's dtype of this name; None if NumPy, or the module that adds the dtype, is not loaded, so that no array can
    have it."""
    numpy = sys.modules.get("numpy")
    try:
        return numpy and numpy.dtype(name)
    except TypeError:
        return None


def _default_stream(_device: int) -> int:
    return 0  # torch built without CUDA


def _misfit(recipe: Recipe):
    def misfit(error, grid):
        normal_grid(grid)  # raises for a grid of floats, which is not noticed before
        raise LaunchError(f"{recipe.name}: a size, stride or scalar does not fit in its parameter: {error}") from None
    return misfit


def _words(values):
    """A C array of 32-bit words; whoever takes its address has to keep it alive."""
    return (ctypes.c_uint32 * max(len(values), 1))(*values)


class _Frames:
    """Lays out the memory of one launch: configuration, parameter values, tensor maps with their extents, and
    pointers to the parameters."""

    def __init__(self, recipe: Recipe):
        self.places: list[Any] = []  # offsets; of maps (number, rank)
        form, offset = CONFIG.format, CONFIG.size
        self.extents, maps = [], 0
        for param in recipe.params:
            if isinstance(param, MapParameter):
                rank = recipe.maps[param.index].fixed.rank
                self.extents.append(struct.Struct(f"<{2 * rank - 1}Q").pack_into)
                self.places.append((maps, rank))
                maps += 1
                continue
            size = struct.calcsize("<" + param.form)
            padding = -offset % min(size & -size, 8)
            form += (f"{padding}x" if padding else "") + param.form
            self.places.append(offset + padding)
            offset += padding + size
        self.layout = struct.Struct(form)
        self.maps_at = -(-offset // 64) * 64       # 128 bytes for each map, then 80 for the dims and strides of each
        self.extents_at = self.maps_at + 128 * maps
        self.pointers_at = self.extents_at + 80 * maps

    def make(self) -> tuple:
        """(buffer, offset of the configuration in it, address of the configuration, address of the pointers to the
        parameters, and for each map the addresses of the map, its dims and its strides)."""
        raw = ctypes.create_string_buffer(self.pointers_at + 8 * len(self.places) + 64)
        start = -ctypes.addressof(raw) % 64
        base = ctypes.addressof(raw) + start
        addresses, maps = [], []
        for place in self.places:
            if isinstance(place, int):
                addresses.append(base + place)
                continue
            slot, rank = place
            extents = base + self.extents_at + 80 * slot
            maps.append((base + self.maps_at + 128 * slot, extents, extents + 8 * rank))
            addresses.append(maps[-1][0])
        struct.pack_into(f"<{len(addresses)}Q", raw, start + self.pointers_at, *addresses)
        return raw, start, base, base + self.pointers_at, maps
