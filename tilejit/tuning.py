"""``tile.autotune``: chooses among a kernel's configurations by timing them, once for each kind of call.

    @tile.autotune([dict(BLOCK=512), dict(BLOCK=2048, num_warps=8)], key=("n",))
    @tile.jit
    def add(x, y, out, n, BLOCK: tile.constexpr): ...

    add[lambda meta: (tile.cdiv(meta["n"], meta["BLOCK"]),)](x, y, out, n)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from .config import checked_target, config
from .errors import CompilationError, LaunchError, TileError, ToolchainError
from .frontend.captures import Unrecorded, identity
from .ir.graph import Launch
from .jit import Kernel
from .lazy import Lazy
from .manifest import package
from .names import suggest_keyword
from .runtime import driver
from .runtime.arguments import ArraySpec, Bound, is_host
from .runtime.groups import parts_of
from .runtime.options import LAUNCH_OPTIONS
from .runtime.store import open_store
from .timing import time_launches
from .toolchain.installed import tools

if TYPE_CHECKING:
    import tilejit as tile

    from .compiled import CompiledKernel
    from .sim.report import Report

futures = Lazy("concurrent.futures")
launching = Lazy("tilejit.runtime.launch")

RECENT = 4096       # size of the table of choices by the signatures of calls (`_looks`)


class Tuned:
    """A kernel with several configurations, launched like a kernel. The first call of each kind times them all.

    By kind of call: `chosen` has the chosen configuration, `timings` the milliseconds of those that ran, `rejected`
    the errors of the others, both by index in `configs`.
    """

    def __init__(self, kernel: Kernel, configs: list[dict[str, Any]], key: tuple[str, ...] | None,
                 prune: Callable[..., Any] | None):
        self.kernel, self.configs, self.key, self.prune = kernel, configs, key, prune
        self.__name__, self.__qualname__, self.__module__, self.__doc__ = (kernel.__name__, kernel.__qualname__,
                                                                           kernel.__module__, kernel.__doc__)
        self.recent: dict[Any, dict[str, Any]] = {}  # choices by `_looks`, which avoids binding arguments
        self.chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.timings: dict[tuple[Any, ...], dict[int, float]] = {}
        self.rejected: dict[tuple[Any, ...], dict[int, str]] = {}

    def __repr__(self) -> str:
        return f"<{self.kernel.name}, tuned over {len(self.configs)} configurations>"

    def __reduce__(self) -> str:
        return self.__qualname__

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.kernel(*args, **kwargs)  # raises an error that says how to launch it

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            looks = _looks(args, kwargs)
            chosen = self.recent.get(looks)
            if chosen is None:
                chosen = self.config(grid, *args, **{k: v for k, v in kwargs.items() if k != "stream"})
                if len(self.recent) >= RECENT:
                    self.recent.clear()
                if looks is not None:
                    self.recent[looks] = chosen
            self.kernel[grid](*args, **kwargs, **chosen)
        return launch

    __iter__ = None  # otherwise Python would iterate by indices, without end: every number is a grid

    def compile(self, *specs: Any, target: str | None = None, **kwargs: Any) -> list[CompiledKernel]:
        """Compile all configurations for `target`, without a launch;
        returns the compiled kernels in the order of `configs`."""
        self._check_free(kwargs)
        return [self.kernel.compile(*specs, **kwargs, **chosen, target=target) for chosen in self.configs]

    def simulate(self, grid: Any, /, *args: Any, seed: int = 0, checks: bool = True, target: str | None = None,
                 **kwargs: Any) -> Report:
        """Run the first configuration that compiles for `target` on the simulator; returns its report."""
        chosen = self._first_config(self._bound(args, kwargs), args, kwargs, target)
        report: Report = self.kernel.simulate(grid, *args, **kwargs, **chosen, seed=seed, checks=checks, target=target)
        return report

    def config(self, grid: Any, /, *args: Any, backend: str | None = None, device: int | None = None,
               **kwargs: Any) -> dict[str, Any]:
        """The configuration for a call: chosen earlier (in this process, or in another one for the same GPU),
        or by timing now.

        On the simulator, which measures no time, it is the first configuration that compiles. Timing restores the
        contents of the arrays that the kernel writes. Raises the first configuration's error if none runs.
        """
        bound = self._bound(args, kwargs)
        if (backend or config().backend or ("sim" if is_host(bound) else "cuda")) == "sim":
            return self._first_config(bound, args, kwargs, None)
        kind = (False, device, *self._kind(bound))
        if kind not in self.chosen:
            self.chosen[kind] = self._fastest_config(kind, bound, grid, args, kwargs, device)
        return self.chosen[kind]

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """Bind a call's arguments, together with the values of the first configuration. LaunchError if the call sets
        one of them itself."""
        self._check_free(kwargs)
        return self.kernel.bind(args, {**kwargs, **self.configs[0]})[0]

    def _check_free(self, kwargs: dict[str, Any]) -> None:
        for name in self.configs[0]:
            if name in kwargs:
                raise LaunchError(f"{self.kernel.name}: {name!r} is given, and the configurations set it")

    def _kind(self, bound: Bound) -> tuple[Any, ...]:
        """The kind of a call, for which one configuration is chosen: the numbers, and dtypes, shapes and strides of
        arrays, in `key`."""
        fixed = set(self.configs[0])
        names = [n for n in bound.values if n not in fixed] if self.key is None else bound.parts(self.key)
        kinds = tuple(_kind_of_argument(bound.values[name]) for name in names)
        return (*kinds, tuple(names)) if bound.groups else kinds

    def _candidates(self, bound: Bound) -> dict[int, dict[str, Any]]:
        configs = dict(enumerate(self.configs))
        if self.prune is None:
            return configs
        kept = self.prune(list(self.configs), bound.meta())
        if not isinstance(kept, Iterable):
            raise LaunchError(f"{self.kernel.name}: prune= returns a list of the configurations worth timing, "
                              f"not {type(kept).__name__}")
        kept = list(kept)
        configs = {i: c for i, c in configs.items() if c in kept}
        if not configs:
            raise LaunchError(f"{self.kernel.name}: prune= keeps none of the {len(self.configs)} "
                              "configurations for this call")
        return configs

    # -- what compiles -------------------------------------------------------------------------------------------------

    def _compile_configs(self, kind: tuple[Any, ...], configs: dict[int, dict[str, Any]], args: tuple[Any, ...],
                         kwargs: dict[str, Any], target: str) -> dict[int, Any]:
        """Compile the configurations in parallel; returns those that compile, and records the errors of the others."""
        def attempt(item: tuple[int, dict[str, Any]]) -> tuple[int, Any]:
            try:
                return item[0], self.kernel.compile(*args, **kwargs, **item[1], target=target)
            except (CompilationError, ToolchainError) as error:
                return item[0], error
        with futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            results = dict(pool.map(attempt, configs.items()))
        self._reject(kind, {i: r for i, r in results.items() if isinstance(r, TileError)})
        return {i: r for i, r in results.items() if not isinstance(r, TileError)}

    def _reject(self, kind: tuple[Any, ...], errors: dict[int, TileError]) -> None:
        self.rejected.setdefault(kind, {}).update({i: str(error) for i, error in errors.items()})

    def _first_config(self, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any],
                      target: str | None) -> dict[str, Any]:
        """The first configuration that compiles for a target, for the simulator."""
        target = checked_target(target or config().target or "sm_90a")
        kind = (True, target, *self._kind(bound))
        if kind in self.chosen:
            return self.chosen[kind]
        first: TileError | None = None
        for i, chosen in self._candidates(bound).items():
            try:
                bound, options, _ = self.kernel.bind(args, {**kwargs, **chosen})
                self.kernel.version(bound, options, target)
                self.chosen[kind] = chosen
                return chosen
            except CompilationError as error:
                first = first or error
                self._reject(kind, {i: error})
        assert first is not None  # there is a configuration
        raise first

    # -- what is fastest -----------------------------------------------------------------------------------------------

    def _fastest_config(self, kind: tuple[Any, ...], bound: Bound, grid: Any, args: tuple[Any, ...],
                        kwargs: dict[str, Any], device: int | None) -> dict[str, Any]:
        configs = self._candidates(bound)
        device = launching.device_of(bound, {} if device is None else {"device": device})
        store, place = open_store(), self._place(kind, driver.name(device))
        known = None if store is None or place is None else store.get_json("tuned", place)
        if isinstance(known, int) and known in configs:
            return configs[known]
        compiled = self._compile_configs(kind, configs, args, kwargs, driver.target(device))
        if not compiled:
            raise LaunchError(f"{self.kernel.name}: none of {len(configs)} configurations compiles; the first: "
                              f"{next(iter(self.rejected[kind].values()))}")
        written = {n for c in compiled.values() for n in c.written}
        with Kept(_spans(bound, written), device):
            times = self._time_configs(kind, {i: configs[i] for i in compiled}, grid, args, kwargs, device)
        if not times:
            raise LaunchError(f"{self.kernel.name}: none of {len(compiled)} configurations can be launched; the first: "
                              f"{next(iter(self.rejected[kind].values()))}")
        self.timings[kind] = times
        best = min(times, key=lambda i: times[i])
        if store is not None and place is not None:
            store.put("tuned", place, json.dumps(best).encode())
        return configs[best]

    def _time_configs(self, kind: tuple[Any, ...], configs: dict[int, dict[str, Any]], grid: Any,
                      args: tuple[Any, ...], kwargs: dict[str, Any], device: int) -> dict[int, float]:
        """The milliseconds per launch of each configuration that can be launched."""
        driver.synchronize(device)
        stream = driver.create_stream(device)
        try:
            launches: dict[int, Callable[[], Any]] = {i: partial(self.kernel[grid], *args, **kwargs, **chosen,
                                                                 stream=stream) for i, chosen in configs.items()}
            times, failed = time_launches(launches, stream, device)
            self._reject(kind, failed)
            return times
        finally:
            driver.synchronize(device)
            driver.destroy_stream(stream, device)

    def _place(self, kind: tuple[Any, ...], device: str) -> str | None:
        """The key of a choice in the on-disk cache; None if the kernel cannot be cached."""
        try:
            what = identity(self.kernel.source)
        except Unrecorded:
            return None
        parts = (package(), tools(), what, repr(self.configs), repr(sorted(self.kernel.options.items())), repr(kind),
                 device)
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _looks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """A cheap signature of a call: the types, values, shapes, dtypes and strides of its arguments. None if an
    argument has none."""
    try:
        looks = tuple(map(_look, args)), tuple((k, _look(v)) for k, v in kwargs.items() if k != "stream")
        hash(looks)
        return looks
    except (AttributeError, TypeError):
        return None


def _kind_of_argument(value: Any) -> Any:
    """An argument in the kind of a call: the dtype, shape and strides of an array, or a number as text."""
    return (str(value.dtype), value.shape, value.strides) if isinstance(value, ArraySpec) else repr(value)


def _look(x: Any) -> tuple[Any, ...]:
    if x is None or isinstance(x, (bool, int, float, str)):
        return type(x), repr(x)
    found = parts_of(x)
    if found is not None:
        return type(x), found[0], tuple(map(_look, found[1]))
    strides = x.stride() if hasattr(x, "stride") else x.strides
    return type(x), tuple(x.shape), x.dtype, strides, getattr(x, "device", None)


def _spans(bound: Bound, written: Iterable[int]) -> list[tuple[int, int]]:
    """(address, bytes) of the device arrays that a kernel writes."""
    spans = []
    for n in sorted(written):
        spec = bound.runtime[n]
        if spec.view is None or spec.view.device == "host" or not spec.view.size:
            continue
        reaches = [stride * (extent - 1) for extent, stride in zip(spec.shape, spec.strides)]
        low, high = sum(min(r, 0) for r in reaches), sum(max(r, 0) for r in reaches)
        size = spec.dtype.nbytes
        spans.append((spec.pointer + low * size, (high - low + 1) * size))
    return spans


class Kept:
    """A context that saves the contents of spans (address, bytes) of device memory and restores them at the end."""

    def __init__(self, spans: list[tuple[int, int]], device: int):
        self.spans, self.device = spans, device
        self.copies: list[Any] = []

    def __enter__(self) -> None:
        driver.synchronize(self.device)
        try:
            for address, nbytes in self.spans:
                self.copies.append(driver.allocate(nbytes, self.device))
                driver.copy_on_device(self.copies[-1], address, nbytes, self.device)
            driver.synchronize(self.device)
        except BaseException:  # for example, out of memory
            self._free()
            raise

    def __exit__(self, *error: object) -> None:
        driver.synchronize(self.device)
        for (address, nbytes), copy in zip(self.spans, self.copies):
            driver.copy_on_device(address, copy, nbytes, self.device)
        driver.synchronize(self.device)
        self._free()

    def _free(self) -> None:
        while self.copies:
            driver.free(self.copies.pop(), self.device)


def autotune(configs: Iterable[dict[str, Any]], key: Iterable[str] | None = None,
             prune: Callable[..., Any] | None = None) -> Callable[[tile.Kernel[..., Any]], Tuned]:
    """Decorate a kernel with configurations: dicts of constexpr arguments and launch options.

    What a configuration does not set, but others do, has its value from the kernel's decorator or the
    parameter's default.

    The first call of each kind compiles all configurations in parallel, times those that compile and fit the device
    in bursts on the call's arguments, and remembers the fastest, on disk too. Budgets such as ``spills=0`` reject a
    configuration. The kind of a call is given by the parameters named in `key`, by default all: their values if they
    are numbers, and shapes, strides and dtypes of arrays. ``prune(configs, arguments)`` returns the configurations
    worth timing for a call. For a kernel that is shorter than its launch (some microseconds), the time measured is
    that of the launch.
    """
    listed = _checked_configs(configs)
    if prune is not None and not callable(prune):
        raise LaunchError(f"prune is a function of the configurations and the arguments, not {type(prune).__name__}")

    def decorate(kernel: Any) -> Tuned:
        if not isinstance(kernel, Kernel):
            raise LaunchError(f"autotune decorates a kernel under @tile.jit, not {type(kernel).__name__}")
        return Tuned(kernel, _complete_configs(listed, kernel), _key_names(key, kernel), prune)

    return decorate


def _checked_configs(configs: Any) -> list[dict[str, Any]]:
    """The configurations as a list of dicts. LaunchError if they are none."""
    listed: list[Any] = list(configs) if isinstance(configs, Iterable) and not isinstance(configs, dict) else [None]
    if not all(isinstance(c, dict) for c in listed):
        raise LaunchError("autotune takes a list of configurations, each a dict, as in [dict(BLOCK=512), "
                          "dict(BLOCK=2048, num_warps=8)]")
    if not listed:
        raise LaunchError("autotune takes at least one configuration")
    return [dict(c) for c in listed]


def _complete_configs(configs: list[dict[str, Any]], kernel: Kernel) -> list[dict[str, Any]]:
    """The configurations, each with all that one of them sets: what it lacks is the kernel's default. LaunchError for
    what a configuration cannot set, or the kernel has no default for."""
    parameters = {p.name: p for p in kernel.parameters}
    defaults = {**kernel.defaults, **{f.name: f.default for f in fields(Launch)}, **kernel.options}
    every = dict.fromkeys(name for c in configs for name in c)
    for name in every:
        if name not in LAUNCH_OPTIONS and (name not in parameters or not parameters[name].constexpr):
            raise LaunchError(f"a configuration sets constexpr parameters and launch options of {kernel.name}, "
                              f"and {name!r} is none{suggest_keyword((name,), (*parameters, *LAUNCH_OPTIONS))}")
        lacking = next((c for c in configs if name not in c and name not in defaults), None)
        if lacking is not None:
            raise LaunchError(f"the configuration {lacking} does not set {name!r}, "
                              f"which others set and {kernel.name} has no default for")
    return [{n: c[n] if n in c else defaults[n] for n in every} for c in configs]


def _key_names(key: Iterable[str] | str | None, kernel: Kernel) -> tuple[str, ...] | None:
    """The parameters that tell kinds of calls apart; None for all. LaunchError for a name that is none."""
    if key is None:
        return None
    names = (key,) if isinstance(key, str) else tuple(key)
    for name in names:
        if all(name != p.name for p in kernel.parameters):
            raise LaunchError(f"key names parameters of {kernel.name}, and {name!r} is none")
    return names
