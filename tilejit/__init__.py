"""tilejit: GPU kernels for Ampere, Hopper and Blackwell in Python, compiled per call site and testable without a GPU."""

import typing as _typing

from .errors import (CacheError, CompilationError, DispatchError, LaunchError, SimulationError, TileError,
                     TileWarning, ToolchainError, VerificationError)
from .dtypes import (DType, bfloat16, bool_, float4_e2m1fn, float6_e2m3fn, float6_e3m2fn, float8_e4m3fn, float8_e5m2,
                     float8_e8m0fnu, float16, float32, float64, int8, int16, int32, int64, padded, uint8, uint16,
                     uint32, uint64)
from .frontend import constexpr
from .jit import Kernel, jit
from .layout import R, S, Swizzle, TileLayout, auto, axis, tmem_datapath
from .runtime.arguments import ArraySpec
from .runtime.device_array import DeviceArray, empty, to_device
from .runtime.packed import Packed, pack

if _typing.TYPE_CHECKING:
    from .api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str):
    """Load the language's names, and the instruction table `tile.ptx`, at their first use."""
    from importlib import import_module
    if name == "ptx":
        return import_module(".ptx", __name__)
    if not name.startswith("__"):
        names = vars(import_module(".api", __name__))
        if name in names and not name.startswith("_"):
            globals().update({n: v for n, v in names.items() if not n.startswith("_")})
            return names[name]
    from .names import suggested
    hint = "" if name.startswith("_") else suggested(name, [n for n in __dir__() if not n.startswith("_")])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__():
    from . import api
    return sorted({*globals(), *vars(api)})
