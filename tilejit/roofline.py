"""What a launch moves and computes, and the time that a GPU's peaks allow for it: the roofline.

The peaks are those of NVIDIA's data sheets, for dense operands and the SXM form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import LaunchError
from .frames import hide_own_frames
from .names import suggest_nearest

TENSOR = "tensor cores, "  # a unit's name is this and a dtype, or the dtype of the other arithmetic


@dataclass(frozen=True)
class Gpu:
    """A GPU's peaks: bytes per second of its memory, and operations per second by unit (see `Counts.flops`)."""

    name: str
    multiprocessors: int
    bandwidth: float
    flops: Mapping[str, float]


def _units(f16: float, f8: float, tf32: float, f64: float, f32: float, f64_tensor: float, f4: float = 0.0,
           ) -> dict[str, float]:
    """Peaks by unit, from TFLOP/s."""
    peaks = {TENSOR + "float16": f16, TENSOR + "bfloat16": f16, TENSOR + "int8": f8, TENSOR + "uint8": f8,
             TENSOR + "float8_e4m3fn": f8, TENSOR + "float8_e5m2": f8, TENSOR + "float32": tf32,
             TENSOR + "float64": f64_tensor, TENSOR + "float4_e2m1fn": f4, "float32": f32, "float16": f32,
             "bfloat16": f32, "float64": f64}
    return {unit: 1e12 * peak for unit, peak in peaks.items() if peak}


# NVIDIA H100, H200 Tensor Core GPU data sheets (SXM), and DGX B200 data sheet (an eighth of the system), each without
# sparsity. 16-bit arithmetic outside of the tensor cores is counted at the rate of float32.
GPUS = {
    "H100": Gpu("H100", 132, 3.35e12, _units(989.4, 1978.9, 494.7, 33.5, 66.9, 66.9)),
    "H200": Gpu("H200", 132, 4.8e12, _units(989.4, 1978.9, 494.7, 33.5, 66.9, 66.9)),
    "B200": Gpu("B200", 148, 8.0e12, _units(2250, 4500, 1125, 37, 75, 37, 9000)),
}


@dataclass(frozen=True)
class Counts:
    """What a simulated launch did. `bytes` are those moved, by path (such as "global -> shared (tma)"); `once` is the
    size of the arrays that it reads and of those that it writes, each counted once, or None if that is unknown.
    `flops` are floating-point operations by unit: 2 m n k for each product of tiles, padding included, under
    "tensor cores, float16" for the dtype of its operands; one for each element of other arithmetic (two for a fused
    multiply-add), under the dtype alone. `ctas` is the size of the grid."""

    bytes: Mapping[str, int]
    once: int | None
    flops: Mapping[str, int]
    ctas: int

    def by_space(self) -> dict[str, int]:
        """The bytes that went to or came from each memory: global, shared, tensor memory."""
        total: dict[str, int] = {}
        for path, nbytes in self.bytes.items():
            for space, word in (("global", "global"), ("shared", "shared"), ("tensor memory", "tmem")):
                if word in path:
                    total[space] = total.get(space, 0) + nbytes
        return total

    @hide_own_frames
    def roofline(self, gpu: str | Gpu) -> Roofline:
        """The time that the peaks of a GPU allow, by name ("H100", "H200", "B200") or as a `Gpu` of your own. Raises
        LaunchError for an unknown name."""
        found = gpu if isinstance(gpu, Gpu) else GPUS.get(gpu)
        if found is None:
            raise LaunchError(f"no peaks are known of {gpu!r}{suggest_nearest(str(gpu), GPUS)}; known are "
                              f"{', '.join(GPUS)}, and roofline(tilejit.roofline.Gpu(...)) takes others")
        return Roofline(self, found)


@dataclass(frozen=True)
class Roofline:
    """The least time of a launch on a GPU: its bytes and operations divided by the peaks."""

    counts: Counts
    gpu: Gpu

    @property
    def share(self) -> float:
        """The part of the multiprocessors that the grid can keep busy."""
        return min(1.0, self.counts.ctas / self.gpu.multiprocessors)

    @property
    def times(self) -> dict[str, float]:
        """Seconds by resource: "memory", and each unit. Units are those of the multiprocessors that have a CTA."""
        found = {}
        nbytes = self.counts.once if self.counts.once is not None else self.counts.by_space().get("global", 0)
        if nbytes:
            found["memory"] = nbytes / self.gpu.bandwidth
        for unit, flops in self.counts.flops.items():
            if unit in self.gpu.flops and self.share:
                found[unit] = flops / (self.gpu.flops[unit] * self.share)
        return found

    @property
    def bound(self) -> str:
        """The resource that takes longest; "nothing" for a launch that neither moves nor computes."""
        times = self.times
        return max(times, key=times.__getitem__) if times else "nothing"

    @property
    def seconds(self) -> float:
        """The least time of the launch."""
        return max(self.times.values(), default=0.0)

    @property
    def intensity(self) -> float | None:
        """Operations per byte of global memory; None without either."""
        nbytes, flops = self.counts.once or self.counts.by_space().get("global", 0), sum(self.counts.flops.values())
        return flops / nbytes if nbytes and flops else None

    def __str__(self) -> str:
        counts, times = self.counts, self.times
        lines = [f"at least {_time(self.seconds)} on {self.gpu.name}, bound by {self.bound}"]
        issued = counts.by_space().get("global", 0)
        if counts.once is not None:
            lines.append(f"  global memory: {counts.once} bytes if each array is moved once, {issued} as issued; "
                         f"{_time(times.get('memory', 0))} at {self.gpu.bandwidth / 1e12:g} TB/s")
        elif issued:
            lines.append(f"  global memory: {issued} bytes as issued; {_time(times['memory'])} at "
                         f"{self.gpu.bandwidth / 1e12:g} TB/s")
        lines += [f"  {space}: {nbytes} bytes" for space, nbytes in counts.by_space().items() if space != "global"]
        for unit, flops in counts.flops.items():
            peak = self.gpu.flops.get(unit)
            rate = f"{_time(times[unit])} at {peak * self.share / 1e12:.4g} TFLOP/s" if peak else "no peak is known"
            lines.append(f"  {unit}: {flops} operations; {rate}")
        if self.intensity is not None:
            lines.append(f"  {self.intensity:.3g} operations a byte")
        if self.share < 1:
            lines.append(f"  {counts.ctas} CTAs occupy at most {counts.ctas} of {self.gpu.multiprocessors} "
                         "multiprocessors")
        return "\n".join(lines)

    __repr__ = __str__


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
