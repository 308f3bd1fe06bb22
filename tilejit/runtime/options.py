"""Checks the options of launches and calls, and grids, with error messages that say what does not fit."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import index
from typing import Any

from ..errors import LaunchError, TileError
from ..ir.graph import Launch
from ..names import suggest_nearest
from .arguments import Bound, plain_constant

LAUNCH_OPTIONS = tuple(f.name for f in fields(Launch))
CALL_OPTIONS = ("backend", "stream", "device", "max_steps")


def make_launch(options: dict[str, Any]) -> Launch:
    """Launch options from keyword arguments, checked. LaunchError names the option that does not fit."""
    launch = Launch(**{name: plain_constant(value) for name, value in options.items()})
    warps = launch.num_warps
    if not _is_integer(warps) or not 1 <= warps <= 32:
        raise LaunchError(f"num_warps is 1 to 32 (a CTA has at most 1024 threads), not {warps!r}")
    if launch.cluster is not None:
        launch = replace(launch, cluster=_cluster(launch.cluster))
    for name, least, most in (("min_ctas", 1, 32), ("max_registers", 1, 255), ("spills", 0, None),
                              ("max_shared", 0, None)):
        n = getattr(launch, name)
        if n is not None and not (_is_integer(n) and n >= least and (most is None or n <= most)):
            raise LaunchError(f"{name} is a number of {f'{least} to {most}' if most else 'at least 0'}, not {n!r}")
    seed = launch.jitter
    if seed is not None and not (_is_integer(seed) and seed >= 0):
        raise LaunchError(f"jitter is a seed, an integer of at least 0, or None, not {seed!r}")
    for name in ("fast_math", "pdl", "profile", "persistent"):
        if not isinstance(getattr(launch, name), bool):
            raise LaunchError(f"{name} is True or False, not {getattr(launch, name)!r}")
    return launch


def _is_integer(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool)


def _cluster(given: Any) -> tuple[int, int, int]:
    """The shape of a cluster, from a number of CTAs or a tuple of one to three."""
    shape = given if isinstance(given, tuple) else (given,)
    if not 1 <= len(shape) <= 3 or not all(_is_integer(n) and n >= 1 for n in shape):
        raise LaunchError(f"cluster is a positive number of CTAs, or a tuple of one to three, not {given!r}")
    x, y, z = shape + (1,) * (3 - len(shape))
    if x * y * z > 16:
        raise LaunchError(f"a cluster has at most 16 CTAs (8 unless the device allows more), not {(x, y, z)}")
    return x, y, z


def padded_grid(grid: Any) -> Any:
    """A grid of one to three numbers extended to three; anything else unchanged."""
    if isinstance(grid, tuple) and 0 < len(grid) < 3:
        return grid + (1,) * (3 - len(grid))
    return (grid, 1, 1) if isinstance(grid, int) else grid


def call_grid(grid, arguments: dict[str, Any]):
    """What a grid function returns for a launch's arguments by name. LaunchError, caused by the function's own
    exception, if it raises."""
    try:
        return grid(arguments)
    except TileError:
        raise
    except Exception as error:
        hint = ""
        if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
            hint = suggest_nearest(error.args[0], arguments)
        elif isinstance(error, AttributeError) and error.obj is arguments and error.name in arguments:
            hint = f"; write [{error.name!r}]"
        raise LaunchError(f"the grid function raised {type(error).__name__}: {error}{hint}; "
                          f"it is called with the launch's arguments by name: {', '.join(arguments)}") from error


def checked_grid(grid, bound: Bound) -> tuple[int, int, int]:
    """A grid as three numbers; a callable grid is called with the arguments by name.
    LaunchError says what does not fit."""
    if callable(grid):
        grid = call_grid(grid, bound.meta())
    grid = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(grid) <= 3:
        raise LaunchError(f"a grid has one to three dimensions, not {len(grid)}")
    limits = (2**31 - 1, 65535, 65535)
    for axis, n in enumerate(grid):
        count = _integer(n)
        if count is None:
            raise LaunchError(f"a grid is made of integers, not {n!r}"
                              + ("; // and tile.cdiv divide integers" if isinstance(n, float) else ""))
        if not 0 <= count <= limits[axis]:
            raise LaunchError(f"the grid has {n} CTAs along axis {axis}, and 0 to {limits[axis]} are possible")
    x, y, z = (*map(index, grid), *(1,) * (3 - len(grid)))
    return x, y, z


def _integer(n) -> int | None:
    try:
        return None if isinstance(n, bool) else index(n)
    except TypeError:  # NumPy's arrays have an __index__ too, which raises this
        return None
