"""tilejit: write GPU kernels for Ampere, Hopper and Blackwell in Python.

Kernels are compiled for each kind of call, and run on a simulator where there is no GPU.
"""

import builtins as _builtins
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import Any as _Any

from .errors import (CacheError, CompilationError, DispatchError, LaunchError, SimulationError, TileError,
                     TileWarning, ToolchainError, VerificationError)
from .dtypes import (DType, bfloat16, bool_, float4_e2m1fn, float6_e2m3fn, float6_e3m2fn, float8_e4m3fn, float8_e5m2,
                     float8_e8m0fnu, float16, float32, float64, int8, int16, int32, int64, padded, uint8, uint16,
                     uint32, uint64)
from .frames import hide_frames as _hide_frames
from .frontend import Array, constexpr
from .jit import Kernel, jit
from .layout import R, S, Swizzle, TileLayout, auto, axis, tmem_datapath
from .names import suggest_name as _suggested
from .runtime.addresses import address_of, address_table
from .runtime.arguments import ArraySpec
from .runtime.device_array import DeviceArray, empty, to_device
from .runtime.packed import Packed, pack

__version__ = "0.1.0"

_LATER = ("LoadedKernel", "load_kernel")  # of export.loaded_kernel, which most programs do not need
_MODULES = ("jax", "kernels", "ptx", "roofline", "testing", "timeline", "timing", "tuning")


def __getattr__(name: str) -> _Any:
    """Load the language's names, those in `_LATER`, and the modules `_MODULES`, at their first use.

    ``__all__`` lacks the modules of tools, and Python's own names (`range`, `max`, ...), which host code needs.
    """
    if name in _MODULES:
        return _import_module(f".{name}", __name__)
    if name in _LATER:
        globals().update({n: getattr(_import_module(".export.loaded_kernel", __name__), n) for n in _LATER})
        return globals()[name]
    if name == "__all__":
        return [n for n in _public() if not hasattr(_builtins, n) and (n == "ptx" or n not in _MODULES)]
    if not name.startswith("__"):
        names = vars(_import_module(".api", __name__))
        if name in names and not name.startswith("_"):
            globals().update({n: v for n, v in names.items() if not n.startswith("_")})
            return names[name]
    hint = "" if name.startswith("_") else _suggested(name, _public())
    try:
        # with a name, but no object: else Python suggests once more
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    except AttributeError as error:
        _hide_frames(error)
        raise


def __dir__() -> list[str]:
    return ["__version__", *_public()]


def _public() -> list[str]:
    """The public names: those imported above, the language's, and the modules of tools."""
    language = vars(_import_module(".api", __name__))
    own = {n for n, x in {**language, **globals()}.items() if not n.startswith("_") and not isinstance(x, _ModuleType)}
    return sorted(own.union(_MODULES, _LATER))
