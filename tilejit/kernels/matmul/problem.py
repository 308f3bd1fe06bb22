"""What a call of `matmul` multiplies: the request, and the checked product made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import tilejit as tile

from ...errors import LaunchError
from ...runtime.arrays import ArrayView, row_major
from ..operands import (
    BLACKWELL,
    EITHER_MAJOR,
    HOPPER,
    axes_of,
    check_out,
    dtype_of_sums,
    extents_of,
    in_byte,
    result_dtype,
    stored_by_tma,
)
from ..pack import alignment, copied_bytes
from .ahead import tiles_ahead
from .config_rules import EITHER
from .constants import Epilogue
from .model import Problem
from .scales import Scale, block_of, by_rows, of_blocks


@dataclass(frozen=True)
class Request:
    """The operands `x` and `y`, the result if one is given, and the options of a call; `arguments` is their number."""

    x: ArrayView
    y: ArrayView
    out: ArrayView | None
    precision: str | None
    scaled: tuple[Scale | None, ...]
    fast_accum: bool
    epilogue: tile.Kernel | None
    arguments: int
    tiles: tuple[ArrayView, ...]


class BlockScales(NamedTuple):
    """Whether there are factors for blocks along k (`given`). On Hopper, for each operand whether it has one for each
    row; on Blackwell, the elements along k that one counts for."""

    given: bool
    by_row: tuple[bool, ...] = ()
    along: int = 0


@dataclass(frozen=True)
class Product:
    """A checked product ``z = x @ y`` of `shape`: `m`, `n`, `k` of each of its `matrices`, the dtype of the sums, the
    bytes of an operand's element (half a byte of float4), and what happens to the sums. `promoted`: None if the
    tensor cores make all sums, else, as threads add up those of each slot, for each operand whether it has block
    scales by row, or () without any. `axes` are those of the epilogue's tiles. `stacked`: the rows of all matrices of
    `x` together, where they share one `y`, else None."""

    request: Request
    target: str
    x: ArrayView
    y: ArrayView
    z: ArrayView
    shape: tuple[int, ...]
    m: int
    n: int
    k: int
    itemsize: float
    sums: tile.dtypes.DType
    scales: BlockScales
    promoted: tuple[bool, ...] | None
    axes: tuple[str, ...]
    stacked: int | None = None

    @property
    def on_hopper(self) -> bool:
        return self.target in HOPPER

    @property
    def matrices(self) -> int:
        return self.z.shape[0] if len(self.z.shape) == 3 else 1

    @property
    def majors(self) -> tuple[tuple[int, ...], ...]:
        """The element sizes of A and of B that need not be contiguous along k."""
        return EITHER_MAJOR.get(self.target, ((1, 2), (1, 2)))

    def epilogue(self, swapped: bool) -> Epilogue:
        request = self.request
        arrays = () if self.scales.given else tuple(s is not None for s in request.scaled)
        return Epilogue(arrays, request.epilogue, len(self.z.shape) == 3, swapped, self.axes,
                        request.arguments + len(request.tiles))

    def problem(self, narrow: bool) -> Problem:
        """The product as the performance model knows it. `narrow`: the epilogue's sums can wait in 16 bits."""
        request, x, y, either = self.request, self.x, self.y, self.majors
        loaded = any(tiles_ahead(request.tiles, self.axes, self.z, 16))
        alone = bool(request.epilogue) and not (request.arguments or request.tiles) and stored_by_tma(self.z, 16)
        across = (x.strides[-1] != 1, y.strides[-2] != 1) if x.nbytes_per_element in either[1] else (False, False)
        return Problem(self.m, self.n, self.k, self.matrices, self.itemsize, self.z.nbytes_per_element,
                       request.epilogue is not None, loaded or alone, self.promoted, self.scales.along, across,
                       (copied_bytes(x, y.transpose, either), copied_bytes(y.transpose, x, either)),
                       (alignment(x, either[0]), alignment(y.transpose, either[1])), narrow)


def check_product(request: Request, target: str) -> Product:
    """The product that is asked for. LaunchError says what does not fit."""
    x, y = request.x, request.y
    if not EITHER.holds(request.fast_accum):
        raise LaunchError(f"fast_accum is {EITHER.words}, not {request.fast_accum!r}")
    per = in_byte(x, y, target)
    batch, m, n, k = extents_of(x, y)
    sums = dtype_of_sums(x, y, request.precision) if per == 1 else tile.float32
    scales = _block_scales(request, k * per, target)
    if per == 2 and not scales.given:
        raise LaunchError("the tensor cores multiply float4 only with a scale factor for each block along k: "
                          "give scale_a and scale_b")
    shape = (*batch, m, n)
    z = request.out
    if z is None:
        z = ArrayView(0, shape, row_major(shape), result_dtype(x.dtype, request.scaled), x.device)
    check_out(z, shape, tile.float32 if request.scaled else sums, request.epilogue is not None)
    return Product(request, target, x, y, z, shape, m, n, k * per, x.nbytes_per_element if per == 1 else 1 / per, sums,
                   scales, _promotion(request, scales, target), axes_of(list(request.tiles), z))


def _block_scales(request: Request, k: int, target: str) -> BlockScales:
    x, y, scaled = request.x, request.y, request.scaled
    given = of_blocks(scaled, x.device)
    return BlockScales(given, by_rows(x, y, scaled) if given and target in HOPPER else (),
                       block_of(x, y, scaled, k) if given and target in BLACKWELL else 0)


def _promotion(request: Request, scales: BlockScales, target: str) -> tuple[bool, ...] | None:
    """`Product.promoted`: in sums of float8, Hopper's tensor cores keep only 13 bits below the largest term."""
    if scales.by_row:
        return scales.by_row
    by_threads = request.x.dtype.startswith("float8") and target in HOPPER and not request.fast_accum
    return () if by_threads else None


def stack_rows(p: Product) -> Product:
    """The product with the rows of all matrices of A stacked, if they share one B and lie one after the other."""
    if (len(p.x.shape) != 3 or len(p.y.shape) != 2 or p.request.epilogue is not None or not p.x.is_contiguous
        or not p.z.is_contiguous):
        return p
    rows = p.m * p.x.shape[0]
    x, z = (ArrayView(v.pointer, (rows, v.shape[-1]), (v.shape[-1], 1), v.dtype, v.device) for v in (p.x, p.z))
    return replace(p, x=x, z=z, m=rows, stacked=rows)


__all__ = ["BlockScales", "Product", "Request", "check_product", "stack_rows"]
