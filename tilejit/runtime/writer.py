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
from .element_types import ELEMENT_TYPES, FLOAT32_LIMIT, fits_float32, scalar_bytes
from .facts import LEAVES, condition, python
from .recipe import CONFIG, Recipe, normal_grid

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
_SCALARS = (int, float, bool, type(None), str)


def view_of(value) -> ArrayView | None:
    """The view of an array; None for a number and the like."""
    describer = DESCRIBERS.get(value.__class__)
    if describer is not None:
        return describer(value)
    if isinstance(value, _SCALARS) or not hasattr(value, "shape") and not hasattr(value, "__dlpack__"):
        return None
    return describe(value)


def is_scalar(value, dtype: str) -> bool:
    """Whether a scalar argument can be passed as `dtype`: a Python number of its kind that fits (this includes
    enumeration members and NumPy's float64), or a NumPy scalar of this very dtype."""
    if isinstance(value, bool):
        return dtype == "bool"
    if isinstance(value, int):
        bits = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}.get(dtype)
        if bits is None:
            return dtype.startswith("uint") and 0 <= value < 2 ** int(dtype[4:])
        return -2 ** bits <= value < 2 ** bits
    if isinstance(value, float):
        return "float" in dtype and (dtype != "float32" or fits_float32(value))
    return getattr(getattr(value, "dtype", None), "name", None) == dtype and getattr(value, "shape", None) == ()


# -- the function generated for a recipe -----------------------------------------------------------------------------

def write(launcher):
    """The text of the launch function for a launcher's recipe, and the function."""
    recipe, link = launcher.recipe, launcher.link
    torch = sys.modules.get("torch")
    arrays = [i for i, kind in enumerate(recipe.arguments) if kind[0] == "array"]
    strides = _strides_used(recipe)
    text = ["def launch(grid, stream, args):",
            f"    if len(args) != {len(recipe.arguments)}: return False",
            "    others = []; own = 0"]
    if recipe.arguments:
        text.append(f"    {', '.join(f'x{i}' for i in range(len(recipe.arguments)))}, = args")
    for i, (kind, *rest) in enumerate(recipe.arguments):
        text += _read_array(i, rest[0], i in strides, torch is not None, i in recipe.written) if kind == "array" else _read_scalar(i, rest[0])
    text += [*_check(recipe, arrays, strides), *_read_grid(recipe)]
    if arrays:
        text += ["    if stream is None:",
                 f"        if others or own: stream = pick_stream(others, own, {len(arrays)}) if own != {len(arrays)} else 0",
                 "        else: stream = raw_stream(DEVICE)",
                 "    elif stream.__class__ is not int: stream = stream_handle(stream)"]
    else:
        text.append("    stream = 0 if stream is None else stream if stream.__class__ is int else stream_handle(stream)")
    text += ["    try: frame = pool.pop()",
             "    except IndexError: frame = make_frame()",
             "    raw, start, config, params, maps = frame",
             "    try:"]
    values = [_value(param) for param in recipe.params if param[0] != "map"]
    text.append(f"        pack(raw, start, gx, gy, gz, {recipe.threads}, 1, 1, {recipe.shared}, stream, "
                f"{ctypes.addressof(launcher.attributes) if launcher.attribute_count else 0}, {launcher.attribute_count}"
                f"{''.join(', ' + value for value in values)})")
    for slot, index in enumerate(_map_params(recipe)):
        text += _encode(recipe, slot, index)
    text += ["        code = call(config, FUNCTION, params, None)",
             "        if code: again(code, config, params, (gx, gy, gz))",
             "    except PackError as error: misfit(error, grid)",
             "    finally: pool.append(frame)",
             "    return True", ""]
    source = "\n".join(text)
    frames = _Frames(recipe)
    names = {"view_of": view_of, "is_scalar": is_scalar, "normal_grid": normal_grid, "check_grid": recipe.check_grid,
             "pick_stream": launcher.pick_stream, "stream_handle": streams.stream_handle, "scalar_bytes": scalar_bytes,
             "pool": [], "make_frame": frames.make, "pack": frames.layout.pack_into, "encode": launcher.encode,
             "MAPS": recipe.maps, "fit": [None],
             "again": launcher.again, "call": LAUNCH(link.points.launch), "FUNCTION": launcher.function,
             "tiled": tensormap.TILED(link.points.encode_tiled), "pack_extents": frames.extents,
             "BOX": [_words(map_.get("box", ())) for map_ in recipe.maps],
             "STEPS": [_words(map_["element_strides"]) for map_ in recipe.maps],
             "DEVICE": link.device, "PackError": struct.error, "misfit": _misfit(recipe), "View": ArrayView, "Own": DeviceArray,
             "raw_stream": _default_stream}
    names.update({f"N{i}": _dtype_in_use(recipe.arguments[i][1]) for i in arrays})
    if torch is not None:
        names.update({f"D{i}": _torch_dtype(torch, recipe.arguments[i][1]) for i in arrays},
                     Tensor=torch.Tensor, Parameter=torch.nn.Parameter,
                     raw_stream=getattr(torch._C, "_cuda_getCurrentRawStream", _default_stream))
    exec(compile(source, f"<launch {recipe.name}>", "exec"), names)
    return source, names["launch"]


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
    return lines + [f"    {'elif' if torch else 'if'} x{i}.__class__ is Own and x{i}.dtype is N{i} and x{i}.device == DEVICE:",
                    f"        p{i} = x{i}.pointer; s{i} = x{i}.shape; t{i} = x{i}.strides; own += 1",
                    "    else:",
                    f"        v = view_of(x{i})",
                    f"        if v is None or v.dtype != {dtype!r} or v.device != DEVICE{' or v.readonly' if written else ''}: return False",
                    f"        p{i} = v.pointer; s{i} = v.shape; t{i} = v.strides; others.append(v)"]


def _check(recipe: Recipe, arrays: list[int], strides: set[int]) -> list[str]:
    """Code for the guards. Those that depend on shapes and strides only are skipped if these are the same as in the last
    call that passed them."""
    ranks = [f"if len(s{i}) != {recipe.arguments[i][2]}: return False" for i in arrays]
    unpack = [f"{', '.join(f'{letter}{i}_{d}' for d in range(recipe.arguments[i][2]))}, = {of}{i}" for i in arrays if recipe.arguments[i][2]
              for letter, of, used in (("n", "s", True), ("m", "t", i in strides)) if used]
    always: list[str] = []
    once: list[str] = []
    needed = bool(recipe.maps) or any(param[0] in ("size", "stride") for param in recipe.params)
    for fact, answer in recipe.guards:
        expression = condition(fact, recipe.arguments)
        leaves, line = _leaves(expression), f"if {'not ' if answer else ''}{python(expression)}: return False"
        (once if leaves <= {"size", "stride"} else always).append(line)
        needed |= not leaves.isdisjoint({"size", "stride"}) and line in always
    key = ", ".join([f"s{i}" for i in arrays] + [f"t{i}" for i in sorted(strides)])
    before, inside = ([*ranks, *unpack], once) if needed else ([], [*ranks, *unpack, *once])
    if inside:
        before += [f"form = ({key},)", "if fit[0] != form:", *("    " + line for line in inside), "    fit[0] = form"]
    return ["    " + line for line in before + always]


def _leaves(expression) -> set[str]:
    """The kinds of leaves that occur in an expression."""
    if not isinstance(expression, (list, tuple)):
        return set()
    return {expression[0]} if expression[0] in LEAVES else set().union(*map(_leaves, expression[1:]))


def _read_scalar(i: int, dtype: str) -> list[str]:
    if dtype == "int32":
        quick = f"x{i}.__class__ is int and -2147483648 <= x{i} <= 2147483647"
    elif dtype == "int64":
        quick = f"x{i}.__class__ is int and {-2**63} <= x{i} <= {2**63 - 1}"
    elif dtype == "float32":
        quick = f"x{i}.__class__ is float and {-FLOAT32_LIMIT} < x{i} < {FLOAT32_LIMIT}"
    elif dtype == "float64":
        quick = f"x{i}.__class__ is float"
    else:
        quick = "False"
    return [f"    if not ({quick}) and not is_scalar(x{i}, {dtype!r}): return False"]


def _read_grid(recipe: Recipe) -> list[str]:
    fits = "0 < gx < 2147483648 and 0 < gy < 65536 and 0 < gz < 65536"
    if recipe.cluster:
        fits += "".join(f" and {part} % {size} == 0" for part, size in zip(("gx", "gy", "gz"), recipe.cluster) if size > 1)
    return ["    gx, gy, gz = grid if grid.__class__ is tuple and len(grid) == 3 else normal_grid(grid)",
            f"    if not ({fits}) and not check_grid(gx, gy, gz): return True"]


def _value(param) -> str:
    match param:
        case ["ptr", i]:
            return f"p{i}"
        case ["size", i, axis, _]:
            return f"n{i}_{axis}"
        case ["stride", i, axis, _]:
            return f"m{i}_{axis}"
        case ["scalar", i, dtype]:
            return f"x{i}" if ELEMENT_TYPES[dtype].pack else f"scalar_bytes(x{i}, {dtype!r})"
    raise LaunchError(f"{param!r} is not a parameter of a recipe")


def _torch_dtype(torch, name: str):
    """torch's dtype of an element type, None if it has none. Its float4 dtype counts a byte of two as one element."""
    return getattr(torch, name, None) or getattr(torch, f"{name}_x2", None)


def _encode(recipe: Recipe, slot: int, index: int) -> list[str]:
    """Code that encodes a map by calling the driver directly; if that fails, the checked encoder raises the error."""
    map_ = recipe.maps[index]
    checked = f"encode(MAPS[{index}], maps[{slot}][0], [{_views(recipe)}])"
    if "box" not in map_ or map_.get("nowhere"):
        return ["        " + checked]
    extents = ", ".join(python(part) for part in (*map_["dims"], *map_["strides"]))
    address = python(["add", ["ptr", map_["argument"]], map_["base_offset"]])
    code = tensormap.tensor_map_type(map_["dtype"])[0]
    tail = ", ".join(str(map_[key]) for key in ("interleave", "swizzle", "l2_promotion", "oob_fill"))
    return [f"        into, dims, strides = maps[{slot}]",
            f"        pack_extents[{slot}](raw, dims - config + start, {extents})",
            f"        if tiled(into, {code}, {map_['rank']}, {address}, dims, strides, BOX[{index}], STEPS[{index}], {tail}):",
            f"            {checked}"]


def _map_params(recipe: Recipe) -> list[int]:
    return [param[1] for param in recipe.params if param[0] == "map"]


def _views(recipe: Recipe) -> str:
    """Python text of the arguments in the form that `facts.evaluate` reads."""
    return ", ".join(f"View(p{i}, s{i}, t{i}, {kind[1]!r}, DEVICE)" if kind[0] == "array" else f"x{i}"
                     for i, kind in enumerate(recipe.arguments))


def _strides_used(recipe: Recipe) -> set[int]:
    """The arrays whose strides the function reads."""
    if recipe.maps:
        return {i for i, kind in enumerate(recipe.arguments) if kind[0] == "array"}
    found = {param[1] for param in recipe.params if param[0] == "stride"}

    def walk(expression):
        if isinstance(expression, (list, tuple)):
            if expression[0] == "stride":
                found.add(expression[1])
            elif expression[0] not in LEAVES:
                for part in expression[1:]:
                    walk(part)

    for fact, _answer in recipe.guards:
        walk(condition(fact, recipe.arguments))
    return found


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
    """Lays out the memory of one launch: configuration, parameter values, tensor maps with their extents, and pointers to
    the parameters."""

    def __init__(self, recipe: Recipe):
        self.places: list[Any] = []  # offsets; of maps (number, rank)
        form, offset = CONFIG.format, CONFIG.size
        self.extents, maps = [], 0
        for param, piece in zip(recipe.params, recipe.formats):
            if param[0] == "map":
                rank = recipe.maps[param[1]]["rank"]
                self.extents.append(struct.Struct(f"<{2 * rank - 1}Q").pack_into)
                self.places.append((maps, rank))
                maps += 1
                continue
            size = struct.calcsize("<" + piece)
            padding = -offset % min(size & -size, 8)
            form += (f"{padding}x" if padding else "") + piece
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
