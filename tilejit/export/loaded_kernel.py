"""``tile.load_kernel``: kernels from files, launched without a compiler and without their source."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..errors import LaunchError, TileError
from ..frames import hide_frames, hide_own_frames
from ..frontend.source import Param
from ..names import suggest_keyword
from ..runtime import driver
from ..runtime.arguments import Bound, bind_arguments, is_host
from ..runtime.facts import describe_fact, evaluate_fact
from ..runtime.launch import device_of, on_device, run
from ..runtime.options import CALL_OPTIONS, LAUNCH_OPTIONS, call_grid, checked_grid, padded_grid
from ..warm import Warm, form_of
from .archive import RUNS, Archive, ExportedVersion, Fixed, from_json, read_archive, to_json


class LoadedKernel:
    """A kernel that ``kernel.export`` wrote to a file: ``loaded[grid](*args)`` launches the version that accepts the
    arguments. It has no source, so it neither compiles further versions nor runs on the simulator.

    `name`, `path`, `package` (the version of tilejit that exported it), `targets` and `versions` tell what it is; each
    version has its `target`, `signature`, `constants`, `guards`, `registers`, `spills`, `shared_bytes` and `cubin`. A
    constant that all versions share need not be given.
    """

    def __init__(self, path: Path, archive: Archive):
        self.path, self.name, self.package = path, archive.name, archive.package
        self.targets, self.versions = archive.targets, archive.versions
        self.__name__ = archive.name
        self.parameters = tuple(
            Param(name, Parameter.POSITIONAL_OR_KEYWORD, constant, Parameter.empty if data is None else from_json(data))
            for name, constant, data in archive.parameters)
        self.names = [p.name for p in self.parameters]
        self.defaults = {p.name: p.default for p in self.parameters if p.default is not Parameter.empty}
        self.warm = Warm()

    def __repr__(self) -> str:
        return f"<loaded kernel {self.name}({', '.join(self.names)}) for {', '.join(self.targets)}>"

    @hide_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(f"a kernel is launched with a grid, as in {self.name}[(number_of_ctas,)](...)")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return a function that launches the kernel on a grid: one to three numbers of CTAs, or a function of the dict
        of arguments."""
        grid = padded_grid(grid)

        def launch(*args: Any, **kwargs: Any) -> None:
            try:
                for launcher in self.warm.find(form_of(kwargs)):
                    place = grid
                    if callable(grid):
                        place = call_grid(grid, {**self.defaults, **dict(zip(self.names, args)), **kwargs})
                    if launcher(place, None, args):
                        return
                self._launch(grid, args, kwargs)
            except TileError as error:
                hide_frames(error)
                raise

        return launch

    __iter__ = None  # else Python would iterate by index without end, since every number is a grid

    def explain(self) -> str:
        """A readable report: for each version its target, its resources, and what it asks of the arguments."""
        lines = [f"{self.name}, exported by tilejit {self.package} for {', '.join(self.targets)}"]
        for n, v in enumerate(self.versions):
            lines += [f"  version {n} for {v.target}: {v.signature}",
                      f"    {v.registers} registers, {v.shared_bytes} bytes of shared memory"
                      + (f", {v.spills} bytes spilled" if v.spills else ""),
                      *(f"    {guard}" for guard in v.guards)]
        return "\n".join(lines)

    def _launch(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``self[grid](*args, **kwargs)``. LaunchError says which fact keeps each version from accepting the call."""
        bound, call = self._bind(args, kwargs)
        if is_host(bound) and bound.names and call.get("backend") != "cuda" and _has_arrays(bound):
            raise LaunchError(f"{self.name} was loaded from a file, without what the simulator runs: pass device "
                              'arrays, or backend="cuda" to have host arrays copied to the GPU and back')
        grid = checked_grid(grid, bound)
        if 0 in grid:
            return
        if not driver.available():
            raise LaunchError(f"{self.name} was loaded from a file, and runs on a GPU only: "
                              "no CUDA driver or no GPU was found")
        device = device_of(bound, call)
        there, copies = on_device(bound, device)
        version = self._version_for(there, driver.target(device))
        launcher = run(self.name, version, bound, there, copies, device, grid, call)
        if not copies and not call:
            self.warm.remember(self.names, launcher, there, (args, kwargs), ())

    def _version_for(self, bound: Bound, target: str) -> ExportedVersion:
        """The first version that runs on a device of `target` and accepts the arguments."""
        fitting = [v for v in self.versions if v.target in RUNS.get(target, (target,))]
        if not fitting:
            raise LaunchError(f"{self.path} has {self.name} for {', '.join(self.targets)}, and the GPU's target is "
                              f"{target}: export it for that too")
        reasons = []
        for version in fitting:
            reason = difference(version, bound)
            if not reason:
                return version
            number = self.versions.index(version)
            reasons.append(f"  version {number} ({version.target}, {version.signature}): {reason}")
        call = ", ".join(_describe_value(name, value) for name, value in bound.values.items())
        raise LaunchError(f"no version of {self.name} in {self.path} accepts this call:\n" + "\n".join(reasons)
                          + f"\n  the call: {call}")

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, dict[str, Any]]:
        known = [*self.names, *(name for name in CALL_OPTIONS if name != "max_steps")]
        for name in kwargs:
            if name in LAUNCH_OPTIONS:
                raise LaunchError(f"{name} was fixed when {self.name} was exported: it is an option of kernel.export")
            if name not in known:
                raise LaunchError(f"{self.name} has no parameter {name!r}{suggest_keyword((name,), known)}")
        call = {name: value for name, value in kwargs.items() if name not in self.names}
        if call.get("backend", "cuda") != "cuda":
            raise LaunchError(f"a loaded kernel has the backend 'cuda', not {call['backend']!r}")
        given = {name: value for name, value in kwargs.items() if name in self.names}
        return bind_arguments(self.name, self.parameters, args, given), call


def difference(version: ExportedVersion, bound: Bound) -> str:
    """Why a version does not accept a call, in words; "" if it does."""
    for name, value in bound.values.items():
        if name not in bound.constants and name not in version.arguments:
            held = version.constants.get(name)
            return f"{name} is the constant {held[1]!r} there" if held else f"it has no {name}"
        if name in bound.constants and not isinstance(value, Fixed):
            held = version.constants.get(name)
            if held is None:
                return f"{name} is {'an argument at run time' if name in version.arguments else 'not one of its parts'}"
            if held[0] == "object":
                return f"{name} is fixed in the file as {from_json(held)}: leave it out"
            if held != _as_in_json(to_json(value)):
                return f"{name} is {from_json(held)!r} there"
    if tuple(bound.names) != version.arguments:
        return f"its arguments are {', '.join(version.arguments)}"
    for name, kind, (_, dtype, *rank) in zip(bound.names, bound.kinds, version.recipe["arguments"]):
        wanted = f"{dtype}[{', '.join('?' * rank[0])}]" if rank else dtype
        fits = tuple(kind) == (dtype, *rank) or (tuple(kind) == ("int32",) and not rank and dtype == "int64")
        if not fits:
            return f"{name} is {wanted} there"
    for fact, held in version.recipe["guards"]:
        if evaluate_fact(fact, bound.runtime, bound.kinds) != held:
            return "it needs " + ("not: " if not held else "") + describe_fact(fact, bound.names)
    return ""


def _as_in_json(data: Any) -> Any:
    return [_as_in_json(part) for part in data] if isinstance(data, (list, tuple)) else data


def _has_arrays(bound: Bound) -> bool:
    return any(hasattr(value, "strides") for value in bound.runtime)


def _describe_value(name: str, value: Any) -> str:
    """An argument of a call, for a message."""
    if hasattr(value, "strides"):
        return f"{name} is {value.dtype} of shape {value.shape} with strides {value.strides}"
    return f"{name} is {value!r}"


@hide_own_frames
def load_kernel(path: str | PathLike[str]) -> LoadedKernel:
    """Load a kernel that ``kernel.export`` wrote. It launches like the kernel, ``loaded[grid](*args)``, without LLVM,
    an assembler or the source, and on a GPU only.

    Raises LaunchError if the file cannot be read, and at a launch whose arguments no version of the file accepts."""
    place = Path(fspath(path))
    return LoadedKernel(place, read_archive(place))


__all__ = ["LoadedKernel", "load_kernel"]
