"""``tune``: finds the fastest configuration of a `matmul` by timing those that the performance model ranks first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import tilejit as tile

from ...config import config as settings
from ...errors import CompilationError, LaunchError, TileError, ToolchainError
from ...frames import hide_own_frames
from ...frontend.captures import Unrecorded, identity
from ...lazy import Lazy
from ...manifest import package
from ...runtime import driver, streams
from ...runtime.arrays import ArrayView, describe
from ...runtime.store import open_store
from ...timing import time_launches
from ...toolchain.installed import tools
from ...tuning.kept import Kept
from ..operands import (
    HOPPER,
    TILES,
    check_epilogue,
    check_listed,
    check_parameters,
    describe_operand,
    extents_of,
    places_of,
    result_dtype,
    span,
)
from ..views import fold_batches, new_array
from .blackwell.config import BlackwellConfig, rank_configs as ranked_blackwell
from .call import folded_tiles, matmul
from .choice import rank_configs
from .config import Config
from .narrow_epilogues import bind_dtype_taken
from .planning import plan_launch
from .problem import Request
from .scales import scale

futures = Lazy("concurrent.futures")


@hide_own_frames
def tune(a: Any, b: Any, out: Any = None, epilogue: tile.Kernel[..., Any] | None = None,
         arguments: Sequence[Any] = (), *, tiles: Sequence[Any] = (), scale_a: Any = None, scale_b: Any = None,
         fast_accum: bool = False, precision: str | None = None, most: int = 8) -> Config | BlackwellConfig | None:
    """The configuration with which ``matmul`` of these arrays takes the least time, to be given as its `config`.

    By itself `matmul` uses the first choice of a performance model. This function compiles the model's first `most`
    configurations in parallel, times them on the arrays in interleaved bursts (the median of five bursts of at least
    a millisecond each), and returns the fastest. The result is kept on disk, so a later process on a GPU of the same
    name finds it there. A given `out` gets its contents back at the end. Configurations that do not compile are
    skipped. For NumPy arrays the model's first choice is returned, since the simulator has no clock; for a product
    without elements, None. The other parameters and the errors are those of `matmul`."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise LaunchError(f"most is how many configurations are timed, a number of at least 1, not {most!r}")
    check_listed(arguments=arguments, tiles=tiles)
    check_epilogue(epilogue, arguments, tiles)
    x, y = describe_operand("a", a), describe_operand("b", b)
    if epilogue is not None:
        check_parameters(epilogue, places_of(x, y), len(arguments) + len(tiles))
    if max(len(x.shape), len(y.shape)) > 3:
        batch, m, n, _ = extents_of(x, y)
        tiles = folded_tiles(tiles, ArrayView(0, (*batch, m, n), (0,) * (len(batch) + 2), x.dtype, x.device))
        a, b, out = (fold_batches(a, "a"), fold_batches(b, "b"),
                     None if out is None else fold_batches(out, "out", writable=True))
        x, y = describe(a), describe(b)
    scaled = () if scale_a is scale_b is None else (scale("scale_a", scale_a), scale("scale_b", scale_b))
    host = x.device in ("host", -1)
    target = settings().target or "sm_90a" if host else driver.target(x.device)
    batch, m, n, _ = extents_of(x, y)
    made = new_array(a, (*batch, m, n), result_dtype(x.dtype, scaled)) if out is None else out
    beside = tuple(map(describe_operand, TILES, tiles))
    request = Request(x, y, describe_operand("out", made), precision, scaled, fast_accum, epilogue, len(arguments),
                      beside)
    plan = partial(plan_launch, request, target=target,
                   taken=None if arguments else bind_dtype_taken(epilogue, tiles, target))
    configs: list[Config | BlackwellConfig] = []

    def choice(problem, processors: int, columns_first: bool | None):
        configs.extend((rank_configs if target in HOPPER else ranked_blackwell)(problem, processors,
                                                                                columns_first)[:most])
        return configs[0]

    plan(None, choice=choice)
    if host or not configs:
        return configs[0] if configs else None
    options = dict(tiles=tiles, scale_a=scale_a, scale_b=scale_b, fast_accum=fast_accum, precision=precision)
    views = x, y, describe(made), *map(describe, tiles)
    store, place = open_store(), _place(views, scaled, (fast_accum, precision, len(arguments)), epilogue, configs)
    known = None if store is None or place is None else store.get_json("tuned", place)
    if not isinstance(known, int) or known not in range(len(configs)):
        compiled = _compile_launches({i: plan(c) for i, c in enumerate(configs)},
                                     (a, b, made, scale_a, scale_b, (*arguments, *tiles)), target)
        launches = {i: partial(matmul, a, b, made, epilogue, arguments, config=configs[i], **options) for i in compiled}
        known = _find_fastest(launches, describe(a), describe(made))
        if store is not None and place is not None:
            store.put("tuned", place, json.dumps(known).encode())
    return configs[known]


def _compile_launches(launches: dict, given: tuple, target: str) -> list[int]:
    """The launches that compile; they are compiled in parallel. If none does, the first error is raised."""
    def attempt(item) -> TileError | None:
        try:
            item[1].kernel.compile(*item[1].arguments(*given), target=target, **item[1].constants)
        except (CompilationError, ToolchainError) as error:
            return error
        return None

    with futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        errors = list(pool.map(attempt, launches.items()))
    compiled = [i for i, error in zip(launches, errors) if error is None]
    if not compiled:
        raise next(error for error in errors if error is not None)
    return compiled


def _find_fastest(launches: dict, a, made) -> int:
    """The number of the launch that takes the least time, on the stream of the arrays. The contents of `made` are
    restored afterwards."""
    device, (low, high) = made.device, span(made)
    with Kept([(made.pointer + low, high - low)], device):
        times, failed = time_launches(launches, streams.current_stream(a), device)
    if not times:
        raise next(iter(failed.values()))
    return min(times, key=lambda i: times[i])


def _place(views: tuple, scaled: tuple, options: tuple, epilogue, configs: list) -> str | None:
    """The cache key of a choice; None if an epilogue depends on more than its text."""
    try:
        function = "" if epilogue is None else identity(epilogue.source)
    except Unrecorded:
        return None
    forms = [(v.shape, v.strides, v.dtype, v.pointer % 16) for v in views]
    parts = (package(), tools(), repr(forms), repr(scaled), repr(options), function, repr(configs),
             driver.name(views[0].device))
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


__all__ = ["tune"]
