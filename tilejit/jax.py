"""Kernels inside ``jax.jit``: ``tilejit.jax.call``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from .config import checked_target, config
from .dtypes import dtype_of
from .errors import LaunchError
from .frames import hide_own_frames
from .interop.results import checked_out, constants_of
from .lazy import Lazy
from .runtime.arguments import ArraySpec
from .runtime.element_types import numpy_dtype
from .runtime.options import checked_grid

if TYPE_CHECKING:
    import tilejit as tile

jax = Lazy("jax")
xla = Lazy("tilejit.interop.xla")

_numbers = count()
_targets: dict[Any, str] = {}  # a call with its numbers and constants -> the name of XLA's target


@hide_own_frames
def call(kernel: tile.Kernel[..., Any], grid: Any, *, out: dict[str, Any], vmap_method: str | None = "sequential",
         **constants: Any) -> Callable[..., Any]:
    """Return a function of JAX's arrays, also inside ``jax.jit``, that runs a kernel and returns its results.

    `out` is a dict of the arrays that the kernel writes, which are the results: ``{"y": "x"}`` makes y like x,
    ``{"y": lambda given: ...}`` like what a function of the dict of arguments returns, which has a `shape` and a
    `dtype`, as ``jax.ShapeDtypeStruct``. The function takes the kernel's other arguments in their order: arrays, Python
    numbers, which are compiled in, and None. `grid` is a grid as of a launch; constexprs and options are `constants`,
    where a plain function is called with the dict of arguments.

    It is a call of XLA's foreign function interface: on a GPU it launches on XLA's stream, on the CPU it runs on the
    simulator, whose findings are errors. `vmap_method` is that of ``jax.ffi.ffi_call``; it has no derivative, for which
    there is ``jax.custom_vjp``. Raises LaunchError and CompilationError.
    """
    results = checked_out(kernel, out, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    return _function(kernel, grid, results, vmap_method, constants)


def _function(kernel: Any, grid: Any, results: dict[str, Any], vmap_method: str | None,
              constants: dict[str, Any]) -> Callable[..., Any]:
    """What `call` returns."""
    if not results:
        raise LaunchError(f"JAX's arrays do not change: name those that {kernel.name} writes, as in out={{'y': 'x'}}")
    fixed = {p.name for p in kernel.parameters if p.constexpr}
    names = [name for name in kernel.names if name not in fixed and name not in results]

    def run(*args: Any) -> Any:
        given = _arguments_by_name(kernel, names, args)
        made = {name: _shape_of(make(given)) for name, make in results.items()}
        arrays = {name: x for name, x in given.items() if hasattr(x, "shape")}
        everything = {**given, **made}
        settled = constants_of(constants, everything)
        place = _check(kernel, everything, tuple(results), settled, grid)
        numbers = {name: value for name, value in given.items() if name not in arrays}
        target = _target(kernel, place, tuple(arrays), tuple(results), {**numbers, **settled})
        found = jax.ffi.ffi_call(target, tuple(made.values()), vmap_method=vmap_method)(*arrays.values())
        return found[0] if len(found) == 1 else tuple(found)

    return run


def _arguments_by_name(kernel: Any, names: list[str], args: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments by name; defaults stand for those at the end."""
    if len(args) > len(names):
        raise LaunchError(f"{kernel.name} is called here with {', '.join(names)}, and {len(args)} arguments are given")
    given = dict(zip(names, args))
    for name in names[len(args):]:
        if name not in kernel.defaults:
            raise LaunchError(f"{kernel.name} needs the argument {name!r}")
        given[name] = kernel.defaults[name]
    return {name: x if x is None or isinstance(x, (bool, int, float)) else jax.numpy.asarray(x)
            for name, x in given.items()}


def _shape_of(made: Any) -> Any:
    """What a function of `out` returned, as JAX's description of an array."""
    if not hasattr(made, "shape") or not hasattr(made, "dtype"):
        raise LaunchError(f"a function of out= returns what has a shape and a dtype, not {type(made).__name__}")
    return jax.ShapeDtypeStruct(tuple(made.shape), numpy_dtype(str(dtype_of(made.dtype))))


def _check(kernel: Any, arguments: dict[str, Any], results: tuple[str, ...], constants: dict[str, Any],
           grid: Any) -> tuple[int, int, int]:
    """The grid of a call, which is lowered here, so that JAX shows what is wrong where the call stands."""
    specs = {name: ArraySpec(tuple(x.shape), x.dtype) if hasattr(x, "shape") else x for name, x in arguments.items()}
    bound, options = kernel.bind_alone("stream, device and backend are XLA's", (), {**specs, **constants})
    lowered = kernel.version(bound, options, checked_target(config().target or "sm_90a")).require_lowered()
    for n in sorted(lowered.written):
        if bound.names[n] not in results:
            raise LaunchError(f"{kernel.name} writes {bound.names[n]}, and JAX's arrays do not change: "
                              f"make it a result by out={{{bound.names[n]!r}: ...}}")
    for name in results:
        if bound.names.index(name) not in lowered.written:
            raise LaunchError(f"{kernel.name} does not write {name}, and out= has its results")
    return checked_grid(grid, bound)


def _target(kernel: Any, grid: tuple[int, int, int], arrays: tuple[str, ...], results: tuple[str, ...],
            others: dict[str, Any]) -> str:
    """The name of the target of XLA that launches the kernel. Equal calls share one."""
    key: Any = (kernel, grid, arrays, results, *((name, type(x), x) for name, x in others.items()))
    try:
        if key in _targets:
            return _targets[key]
    except TypeError:  # a constant without a hash
        key = object()

    def launch(arguments: list[Any], made: list[Any], stream: int | None) -> None:
        where = {"backend": "sim"} if stream is None else {"stream": stream}
        kernel[grid](**dict(zip(arrays, arguments)), **dict(zip(results, made)), **others, **where)

    name = _targets[key] = f"tilejit_{kernel.name}_{next(_numbers)}"
    xla.register(name, launch)
    return name


__all__ = ["call"]
