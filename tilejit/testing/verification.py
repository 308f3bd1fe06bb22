"""``tile.verify``: compares a kernel's results on the simulator, and on the GPU if there is one, with a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import checked_target, chosen_seed, config
from ..dtypes import dtype_of, float8_e8m0fnu
from ..errors import LaunchError, VerificationError
from ..frames import hide_own_frames
from ..jit import Kernel
from ..lazy import Lazy
from ..runtime import driver
from ..runtime.arguments import ArraySpec
from ..runtime.arrays import describe
from ..runtime.groups import rebuild
from ..runtime.options import checked_grid
from ..runtime.packed import Packed

if TYPE_CHECKING:
    import tilejit as tile

    from ..runtime.arguments import Bound
    from ..runtime.arrays import ArrayView
    from ..sim.report import Finding, Report

ml_dtypes = Lazy("ml_dtypes")
sim = Lazy("tilejit.sim")

ULPS = 8  # the default tolerance, in units of the dtype's epsilon


@dataclass(frozen=True)
class Difference:
    """The first element of an array in which a backend ("simulator" or "gpu") differs from the reference.

    `count` of `size` elements differ. `writer` is the last write of the element on the simulator (`.loc`, `.cta`,
    `.thread`); None if nothing or only atomics wrote it.
    """

    backend: str
    argument: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    count: int
    size: int
    writer: Any = None

    def __str__(self) -> str:
        text = (f"{self.argument}{list(self.index)} is {self.got} on the {self.backend}, "
                f"and {self.expected} by the reference ({self.count} of {self.size} elements differ)")
        if self.writer is None:
            return f"{text}; no store wrote it, only atomics if anything"
        return f"{text}; written by {self.writer}"


@dataclass
class Verification:
    """The result of `verify`: the backends that ran, the simulator's findings,
    and the first difference of each array and backend."""

    backends: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.findings and not self.differences

    @hide_own_frames
    def raise_first(self) -> None:
        """Raise VerificationError for the first finding or difference, if there is any."""
        everything: list[Any] = [*self.findings, *self.differences]
        for found in everything:
            place = found.writer if isinstance(found, Difference) else found
            loc = None if place is None else place.loc
            raise VerificationError(str(found).split("\n")[0], loc, found)

    def __str__(self) -> str:
        ran = " and ".join(self.backends)
        if self.passed:
            return f"{ran}: as the reference"
        return "\n".join([ran, *map(str, self.findings), *map(str, self.differences)])

    __repr__ = __str__


def _check_reference(reference: Any, rtol: float | None, atol: float | None) -> None:
    if not callable(reference):
        raise LaunchError(f"reference is a function of the arguments, not {type(reference).__name__}")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or not value >= 0):
            raise LaunchError(f"{name} is a number of at least 0, not {value!r}")


@hide_own_frames
def verify(kernel: tile.Kernel[..., Any], grid: Any, /, *args: Any, reference: Callable[..., Any],
           rtol: float | None = None, atol: float | None = None, seed: int | None = None, target: str | None = None,
           **kwargs: Any) -> Verification:
    """Run a kernel on copies of host arrays, on the simulator and on the GPU if there is one,
    and compare with `reference`.

    `reference` is called with copies of `args`. It either modifies them as the kernel should, or returns the array
    (or a tuple of the arrays) that the kernel writes, in the order of its parameters. Integers and bools must be
    equal. Floats may differ by ``rtol * |expected| + atol``. By default, `rtol` is eight times the dtype's epsilon,
    and `atol` that times the largest element; for floats of at most eight bits, they are the epsilon and the smallest
    subnormal number, and float8_e8m0fnu must be equal. The reference gets ``tile.Packed`` arguments as such; their
    elements are compared. The arrays in `args` are not changed.
    """
    if not isinstance(kernel, Kernel):
        of_tuned = ""
        if hasattr(kernel, "configs"):
            of_tuned = "; of a tuned one pass .kernel, with one of .configs as keywords"
        raise LaunchError(f"verify takes a kernel under @tile.jit, not {type(kernel).__name__}{of_tuned}")
    _check_reference(reference, rtol, atol)
    bound, options = kernel.bind_alone("verify chooses where a kernel runs", args, kwargs)
    for name in kwargs:
        if any(isinstance(bound.values.get(part), ArraySpec) for part in bound.parts((name,))):
            raise LaunchError(f"verify copies the arrays that are given by position, and {name} is given by keyword")
    arrays = {n: v.view.numpy() for n, v in bound.values.items() if isinstance(v, ArraySpec) and v.view is not None}
    version = kernel.version(bound, options, checked_target(target or config().target or "sm_90a"))
    lowered = version.require_lowered()
    if lowered.by_address:
        raise LaunchError(f"verify runs a kernel on copies of its arrays, and {kernel.name} makes arrays from "
                          "addresses, which name the arrays themselves: compare the results of two launches")
    bound.check_writable(lowered.written)
    written = [bound.names[n] for n in sorted(lowered.written)]
    want = _expected_outputs(reference, kernel.names, args, bound, written)

    def run(bound: Bound, **how: Any) -> Report:
        report: Report = sim.simulate(lowered.graph, checked_grid(grid, bound), bound.host_arguments(),
                                      seed=chosen_seed(seed), **how)
        return report

    copy, _ = _copy_call(kernel, args, kwargs)
    report = run(copy)
    result = Verification(("simulator",), report.faults())
    got = {"simulator": {n: _elements(copy.values[n].view) for n in written}}
    if driver.available():
        copy, given = _copy_call(kernel, args, kwargs)
        kernel[grid](*given, **{**kwargs, "backend": "cuda"})
        got["gpu"] = {n: _elements(copy.values[n].view) for n in written}
    result.backends = tuple(got)
    for backend, results in got.items():
        for name in written:
            found = _first_difference(results[name], want[name], rtol, atol)
            if found is not None:
                index, count = found
                again, _ = _copy_call(kernel, args, kwargs)
                writer = None
                if arrays[name].size:
                    writer = run(again, watch=(bound.names.index(name), _place(bound.values[name].view, index))).writer
                result.differences.append(Difference(backend, name, index, results[name][index], want[name][index],
                                                     count, results[name].size, writer))
    return result


def _copy_call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A call with copies of its arrays, of the same strides: the bound arguments, and the positional arguments."""
    copies: dict[int, Any] = {}
    bound = kernel.bind(args, kwargs)[0]

    def copy(name: str, x: Any) -> Any:
        value = bound.values[name]
        if not isinstance(value, ArraySpec) or value.view is None:
            return x
        if id(x) not in copies:
            twin = _twin(value.view.numpy())
            copies[id(x)] = Packed(twin, x.dtype) if isinstance(x, Packed) else twin
        return copies[id(x)]
    given = _map_parts(copy, kernel.names, args, bound)
    return kernel.bind(given, kwargs)[0], given


def _map_parts(tool: Callable[[str, Any], Any], names: Sequence[str], args: tuple[Any, ...],
               bound: Bound) -> tuple[Any, ...]:
    """The positional arguments with `tool(name, part)` for each argument, and for each part of a group."""
    return tuple(rebuild(bound.groups[name], x, tool) if name in bound.groups else tool(name, x)
                 for name, x in zip(names, args))


def _twin(x: np.ndarray) -> np.ndarray:
    """A copy of a NumPy array that keeps its strides."""
    low = sum(min(s * (n - 1), 0) for n, s in zip(x.shape, x.strides)) if x.size else 0
    high = sum(max(s * (n - 1), 0) for n, s in zip(x.shape, x.strides)) + x.itemsize if x.size else 0
    memory = np.zeros(high - low, np.uint8)
    new: np.ndarray = np.ndarray(x.shape, x.dtype, memory, -low, x.strides)
    if x.size:
        new[...] = x
    return new


def _expected_outputs(reference: Callable[..., Any], names: Sequence[str], args: tuple[Any, ...], bound: Bound,
                      written: list[str]) -> dict[str, Any]:
    parts: dict[str, Any] = {}

    def private_copy(name: str, a: Any) -> Any:
        made: Any
        if isinstance(a, Packed):
            made = Packed(np.array(a.__tilejit_view__().numpy()), a.dtype)
        elif isinstance(a, np.ndarray):
            made = np.array(a)
        else:
            made = deepcopy(a) if isinstance(bound.values[name], ArraySpec) else a
        parts[name] = made
        return made

    given = _map_parts(private_copy, names, args, bound)
    returned = reference(*given)
    if returned is None:
        return {name: as_numpy(a) for name, a in parts.items() if name in written}
    returned = returned if isinstance(returned, tuple) else (returned,)
    if len(returned) != len(written):
        raise LaunchError(f"the kernel writes {', '.join(written) or 'nothing'}, "
                          f"and its reference returns {len(returned)} array{'s' if len(returned) != 1 else ''}")
    want = {}
    for name, array in zip(written, returned):
        shape = _elements(bound.values[name].view).shape
        array = as_numpy(array)
        if array.shape != shape:
            raise LaunchError(f"{name} has the shape {shape}, and its reference {array.shape}")
        want[name] = array
    return want


def as_numpy(array: Any) -> np.ndarray:
    """A host array of any library as a NumPy array."""
    if isinstance(array, Packed):
        return array.unpack()
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return describe(array).numpy()
    return np.asarray(array)


def _elements(view: ArrayView) -> np.ndarray:
    """The elements of a host array; packed ones are unpacked to a byte each."""
    return Packed(view.numpy(), view.dtype).unpack() if dtype_of(view.dtype).packed else view.numpy()


def _place(view: ArrayView, index: tuple[int, ...]) -> tuple[int, ...]:
    """The index in the stored array of an element: for packed elements, that of its byte."""
    dtype = dtype_of(view.dtype)
    elements, per = dtype.packing if dtype.packed else (1, 1)
    return (*index[:-1], index[-1] * per // elements) if index else index


def _default_tolerances(dtype: np.dtype, finite: np.ndarray) -> tuple[float, float]:
    """The default `rtol` and `atol` of floats of this dtype: a few units in the last place, for at most 8 bits one, and
    none for powers of two. `finite` are the magnitudes of the finite elements of the reference."""
    info = ml_dtypes.finfo(dtype)
    if dtype == float8_e8m0fnu.np:
        return 0.0, 0.0
    if info.bits <= 8:
        return float(info.eps), float(info.smallest_subnormal)
    unit = ULPS * float(info.eps)
    return unit, unit * finite.max(initial=0.0)


def _first_difference(got: np.ndarray, want: np.ndarray, rtol: float | None,
                      atol: float | None) -> tuple[tuple[int, ...], int] | None:
    """The index of the first element that differs and the number of elements that do; None if none does."""
    if got.dtype.kind in "biu":
        wrong = got != want
    else:
        x, y = got.astype(np.float64), want.astype(np.float64)
        unit, least = _default_tolerances(got.dtype, np.abs(y[np.isfinite(y)]))
        slack = (unit if rtol is None else rtol) * np.abs(y) + (least if atol is None else atol)
        with np.errstate(invalid="ignore"):
            wrong = ~((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= np.where(np.isfinite(y), slack, 0.0)))
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return tuple(int(i) for i in first), int(wrong.sum())
