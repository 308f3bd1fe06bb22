"""Launches with expected results, to run on the simulator and on the GPU.

    CASES = [Case("a name", kernel, (4,), (a, b), {1: want}, dict(N=64))]

    def test_..._(): on_simulator(CASES)

    @needs_gpu()
    @in_child()
    def test_..._on_the_gpu(): on_gpu(CASES)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod

import numpy as np
import tilejit as tile
from tilejit.runtime.recipe import PORTABLE_CLUSTER

from tests.gpu import some


@dataclass(frozen=True)
class Case:
    """A launch and its expected results: `wants` maps the index of an argument to the array that it becomes, compared byte by byte.

    For an argument in `views`, the kernel gets only the part that an index or a function of the array selects, but the whole array is
    compared: the rest must not change.
    """

    name: str
    kernel: object
    grid: tuple[int, ...]
    args: tuple
    wants: dict[int, object]
    options: dict = field(default_factory=dict)
    views: dict[int, object] = field(default_factory=dict)

    def copies(self, made) -> tuple[list, list]:
        """The arguments with arrays copied by `made`, and the arguments that the kernel gets (parts for `views`)."""
        whole = [made(x) if isinstance(x, (np.ndarray, tile.Packed)) else x for x in self.args]
        return whole, [part_of(x, self.views[i]) if i in self.views else x for i, x in enumerate(whole)]

    def problems(self, whole) -> list[str]:
        """In words, the differences of the arguments `whole` from the expected arrays."""
        found = []
        for i, want in self.wants.items():
            got, want = _plain(whole[i]), _plain(want)
            wrong = np.flatnonzero((_bytes(got) != _bytes(want)).any(axis=-1))
            if len(wrong):
                at = np.unravel_index(wrong[0], got.shape)
                one, other = (f"{x[at]} ({x[at].tobytes()[::-1].hex()})" for x in (got, want))
                found.append(f"{self.name}: {len(wrong)} elements of argument {i} differ; at {tuple(map(int, at))} it is {one}, not {other}")
        return found


def part_of(x, view):
    """The part of an array that an index or a function selects."""
    return view(x) if callable(view) else x[view]


def _plain(x) -> np.ndarray:
    x = x.data if isinstance(x, tile.Packed) else x
    return x if isinstance(x, np.ndarray) else x.numpy()


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)


def _twin(x):
    """A copy that is aligned like device memory, to 256 bytes."""
    if isinstance(x, tile.Packed):
        return tile.Packed(_twin(x.data), x.dtype)
    raw = np.empty(x.nbytes + 256, np.uint8)
    made = raw[-raw.ctypes.data % 256:][:x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def on_simulator(cases, target: str = "sm_90a") -> None:
    """Run the cases on the simulator; assert that there are no findings and the results are as expected."""
    found = []
    for case in cases:
        whole, given = case.copies(_twin)
        report = case.kernel.simulate(case.grid, *given, **case.options, target=target)
        found += [f"{case.name}: {report}"] if report.findings else case.problems(whole)
    assert not found, "\n".join(found)


def compiled(case, target: str = "sm_90a"):
    """The case's kernel, compiled for its arguments as host arrays."""
    return case.kernel.compile(*case.copies(_twin)[1], **case.options, target=target)


def on_gpu(cases) -> None:
    """Compile the cases in parallel, launch them one after the other, and compare the results."""
    made, found = [(case, *case.copies(tile.to_device)) for case in some(cases)], []
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda m: m[0].kernel.compile(*m[2], **m[0].options), made))
    for (case, whole, given), kernel in zip(made, kernels):
        if prod(kernel.recipe["cluster"] or ()) > PORTABLE_CLUSTER and not kernel.active_clusters():
            print(case.name, "has a cluster that no part of this GPU holds")
            continue
        print(case.name, flush=True)  # the last name printed is that of a case that kills the process
        case.kernel[case.grid](*given, **case.options)
        found += case.problems(whole)
    assert made and not found, "\n".join(found)


def box_of(x: np.ndarray, starts, extents, fill=None) -> np.ndarray:
    """The box of an array at `starts`, which may be out of bounds; elements outside the array are `fill` (by default zero bits)."""
    fill = np.zeros(x.itemsize, np.uint8).view(x.dtype)[0] if fill is None else fill
    found = np.empty(extents, x.dtype)
    found[...] = fill
    inside = tuple(slice(max(-s, 0), max(min(n, m - s), max(-s, 0))) for s, n, m in zip(starts, extents, x.shape))
    found[inside] = x[tuple(slice(s + i.start, s + i.stop) for s, i in zip(starts, inside))]
    return found


def with_corner(y: np.ndarray, box: np.ndarray) -> np.ndarray:
    """A copy of the array with `box`, cut to the array's extents, at its first corner."""
    found = y.copy()
    edge = tuple(slice(0, min(n, m)) for n, m in zip(box.shape, y.shape))
    found[edge] = box[edge]
    return found
