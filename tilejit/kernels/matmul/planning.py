"""Plans a launch of `matmul`.

It checks the product, chooses a configuration, and makes the constants of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tilejit as tile

from ...errors import LaunchError
from ...runtime import driver
from ...runtime.arrays import ArrayView
from ..operands import NOTHING, check_target, span, stored_by_tma
from ..pack import is_readable
from .ahead import tiles_ahead
from .blackwell import mainloop as blackwell, persistent as blackwell_persistent, split as blackwell_split
from .blackwell.config import BlackwellConfig, choose as choose_blackwell
from .choice import PART, choose, count_ctas
from .config import SHARED, Config
from .config_rules import (
    HIGH,
    check_alone,
    check_blackwell,
    check_hopper,
    check_pair,
    check_registers,
    check_shared,
    check_shared_on_blackwell,
    check_shares,
    widths,
)
from .constants import (
    BlackwellPersistentConstants,
    BlackwellSplitConstants,
    Epilogue,
    PersistentConstants,
    SplitConstants,
)
from .hopper import persistent, split
from .hopper.mainloop import BLOCK
from .hopper.overlap import most_late
from .hopper.stream import Shares, shares, stream, whole_groups
from .launch import Launch
from .model import LARGE, Problem, shared_rest
from .narrow_epilogues import Taken
from .problem import Product, Request, check_product, stack_rows
from .workspace import CTAS

# bytes that a kernel with an epilogue may spill without the compiler's warning: `fit_registers` gives its own
ANY = 1 << 20

AnyConfig = Config | BlackwellConfig
Choice = Callable[[Problem, int, bool | None], AnyConfig]
TakesNarrow = Callable[[Epilogue, tile.dtypes.DType, int], Taken | None]


def plan_launch(request: Request, config: AnyConfig | None, target: str, choice: Choice | None = None,
                taken: TakesNarrow | None = None) -> Launch:
    """The launch for a request, with `config`; without one, with what ``choice(problem, processors, columns_first)``
    returns, or the model's choice. ``taken(epilogue, sums, width)`` returns the 16-bit dtype to which the epilogue
    casts its sums first, or None (see `narrow_epilogues.asked`). LaunchError says what does not fit."""
    check_target(target, request.x, config)
    product = check_product(request, target)
    if 0 in product.shape:
        return Launch(product.shape, product.z.dtype)
    spans = tuple(map(span, (product.x, product.y, *request.tiles, product.z)))
    product = stack_rows(product)
    processors = 4 if product.x.device == "host" else driver.multiprocessors(product.x.ordinal)
    waiting = _narrow_sums(product, config, processors, taken)
    if config is None:
        by_columns = True if product.z.strides[-1] != 1 and product.z.strides[-2] == 1 else None
        config = (choice or (choose if product.on_hopper else choose_blackwell))(product.problem(waiting is not None),
                                                                                 processors, by_columns)
    job = _job(product, config, processors, waiting)
    _check_config(job)
    kernel, grid, plan, options, own_shares, room = _kernel(job)
    if request.epilogue is not None:
        options |= {"spills": ANY}
    watched = waiting.watched if waiting is not None and getattr(plan, "waiting", None) is not None else ()
    return Launch(product.shape, job.z.dtype, kernel, grid, {"PLAN": plan, **options}, config.swapped, job.transposes,
                  job.copied, product.majors,
                  product.stacked, own_shares, room, spans, watched)


def _narrow_sums(p: Product, config: AnyConfig | None, processors: int, taken: TakesNarrow | None) -> Taken | None:
    """The 16-bit dtype in which the sums can wait for the epilogue; None if they cannot,
    or if no columns are deferred."""
    if taken is None or not p.on_hopper or p.z.nbytes_per_element != 2 or p.request.scaled:
        return None
    several = -(-p.m // LARGE[0]) * -(-p.n // LARGE[1]) * p.matrices > processors
    if not (several if config is None else isinstance(config, Config) and config.late):
        return None
    width = PART // p.z.nbytes_per_element if config is None else config.width
    return taken(Epilogue((), p.request.epilogue, len(p.z.shape) == 3, False, p.axes), p.sums, width)


# -- the operands as the kernel takes them -----------------------------------------------------------------------------

@dataclass(frozen=True)
class Job:
    """A product with its configuration. Its operands have changed places if the configuration says so: `a` is [..,
    rows, k], `b` [.., columns, k], `z` the result of these. `copied`: which of A and B are copied first, to [..,
    rows, k]; `a_km`, `b_kn`: whether the kernel reads them as [k, rows]. `waiting`: the dtype in which deferred sums
    can wait."""

    product: Product
    config: Any
    a: ArrayView
    b: ArrayView
    z: ArrayView
    copied: tuple[bool, bool]
    a_km: bool
    b_kn: bool
    processors: int
    waiting: Taken | None

    @property
    def from_registers(self) -> bool:
        """Whether threads load A to registers."""
        return self.a_km and self.a.dtype == "float32"

    @property
    def steps(self) -> int:
        """The slots of k of a tile."""
        return max(-(-self.product.k // self.config.bk), 1)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of A, or a column of B, in a slot."""
        return self.config.bk * self.a.nbytes_per_element

    @property
    def tiles(self) -> int:
        return self.config.tiles(*self.z.shape[-2:]) * self.product.matrices

    @property
    def transposes(self) -> tuple[bool, bool, bool]:
        """Which of A, B and C are passed transposed: they come as [.., M, K] and [.., K, N],
        or exchanged if swapped."""
        swapped, (copied_a, copied_b) = self.config.swapped, self.copied
        return self.a_km if copied_a else self.a_km != swapped, self.b_kn if copied_b else self.b_kn == swapped, swapped


def _job(p: Product, config: AnyConfig, processors: int, waiting: Taken | None) -> Job:
    a, b = (p.y.transpose, p.x) if config.swapped else (p.x, p.y.transpose)
    z = p.z.transpose if config.swapped else p.z
    copied = not is_readable(a, p.majors[0]), not is_readable(b, p.majors[1])
    if p.itemsize < 1 and any(copied):
        raise LaunchError("rows of float4 must begin at multiples of 16 bytes, a multiple of 32 elements apart: "
                          "pass a copy whose rows do")
    a_km, b_kn = (not c and v.strides[-1] != 1 for c, v in zip(copied, (a, b)))
    job = Job(p, config, a, b, z, copied, a_km, b_kn, processors, waiting)
    if isinstance(config, Config) and (p.k == 0 or p.request.epilogue is not None or z.nbytes_per_element > 2
                                       or job.from_registers):
        # there are no slots to send results under, or no registers to keep them in
        job = replace(job, config=replace(config, kept=False))
    return job


# -- whether the configuration fits ------------------------------------------------------------------------------------

def _check_config(job: Job) -> None:
    """LaunchError if the configuration is none for this product."""
    p, config = job.product, job.config
    staged = job.z.nbytes_per_element if config.splits == 1 and _by_tma(job.z, config) else None
    integers = p.sums == tile.int32
    if not p.on_hopper:
        check_blackwell(config, p.itemsize, integers, job.b_kn, staged)
        return
    check_registers(config, config.bn if p.promoted is None else min(config.bn, BLOCK), job.from_registers)
    check_alone(config, p.promoted is not None, job.from_registers)
    check_shares(config)
    if config.pair:
        check_pair(config)
    if config.bm == HIGH and job.from_registers:
        raise LaunchError("column-major float32 is multiplied from registers, 64 rows per consumer: "
                          f"config.bm must be at most 192, not {HIGH}")
    check_hopper(config, p.itemsize, integers, job.b_kn, staged)
    if p.promoted is not None:
        _check_promoted(job)


def _check_promoted(job: Job) -> None:
    """LaunchError if threads cannot add up the sums of each slot with this configuration."""
    config, blocks = job.config, _blocks(job)
    if config.stream:
        raise LaunchError("CTAs can share only sums that the tensor cores add up alone: "
                          "config.stream cannot be combined with block scales or fast_accum=False")
    if config.bk != BLOCK:
        raise LaunchError("where threads add up the sums of each slot, "
                          f"the configuration's bk must be {BLOCK}, not {config.bk}")
    if config.bn > BLOCK and config.bn % BLOCK:
        raise LaunchError("where threads add up the sums of each slot, "
                          f"the configuration's bn must be at most {BLOCK} or a multiple of it, not {config.bn}")
    if blocks and not blocks[1] and BLOCK % config.bn and config.bn < BLOCK < job.z.shape[-1]:
        raise LaunchError(f"a tile's columns must share the scale of one block of {BLOCK}: "
                          f"the configuration's bn must be a divisor of it, not {config.bn}")
    if config.bm == HIGH:
        raise LaunchError("where threads add up the sums of each slot, a consumer has 64 rows: "
                          f"the configuration's bm must be at most 192, not {HIGH}")


def _blocks(job: Job) -> tuple[bool, ...]:
    """For each operand in its place, whether it has block scales by row; () without block scales."""
    blocks = job.product.promoted or ()
    return blocks[::-1] if job.config.swapped else blocks


# -- the kernel and its constants --------------------------------------------------------------------------------------

class KernelPlan(NamedTuple):
    """A kernel, its grid, the record of its constants, launch options, how CTAs share tiles, and shape and dtype of
    the room for their sums."""

    kernel: tile.Kernel
    grid: tuple[int, ...]
    plan: Any
    options: dict[str, Any]
    shares: tuple[int, ...] = ()
    room: tuple[Any, ...] | None = None


def _kernel(job: Job) -> KernelPlan:
    if job.product.on_hopper:
        if job.config.stream:
            return _plan_stream(job)
        return _split(job) if job.config.splits > 1 else _persistent(job)
    return _split_on_blackwell(job) if job.config.splits > 1 else _persistent_on_blackwell(job)


def _products(job: Job) -> dict[str, Any]:
    """The constants that all kernels have."""
    config, p = job.config, job.product
    return dict(bn=config.bn, bk=config.bk, stages=config.stages, a_km=job.a_km, b_kn=job.b_kn, sums=p.sums,
                epilogue=p.epilogue(config.swapped))


def _hopper_products(job: Job) -> dict[str, Any]:
    """The constants that all kernels on Hopper have."""
    config = job.config
    return _products(job) | dict(bm=config.bm, behind=config.behind, regs=config.regs)


def _persistent(job: Job) -> KernelPlan:
    """The kernel whose CTAs compute several tiles in turn."""
    config, p = job.config, job.product
    promoted = p.promoted is not None
    if promoted and config.width > BLOCK:
        raise LaunchError(f"threads add up {BLOCK} columns of a tile at a time, and these are stored together: "
                          f"config.width must be at most {BLOCK}, not {config.width}")
    plan = PersistentConstants(**_hopper_products(job), **_results(job, 0 if promoted else job.steps),
                               promoted=promoted, blocks=_blocks(job), pair=config.pair, order=config.order,
                               dependent=config.dependent, passing=config.passing, alone=config.alone)
    options = dict(num_warps=config.num_warps, pdl=config.dependent, cluster=2 if config.pair else None)
    return KernelPlan(persistent.persistent, persistent_grid(config, job.tiles, job.processors), plan, options)


def persistent_grid(config: Config, tiles: int, processors: int) -> tuple[int]:
    """The CTAs that compute so many tiles: as few as need no more rounds than all."""
    group = 2 if config.pair else 1
    return (group * count_ctas(tiles // group, max(processors // group, 1)),)


def _split(job: Job) -> KernelPlan:
    """The kernel in which CTAs share each tile's k, and the room for sums that go through global memory."""
    config, p = job.config, job.product
    check_shared(config, job.row_bytes, 0)
    cluster = 2 if config.pair else None
    plan = SplitConstants(**_hopper_products(job), promoted=p.promoted is not None, blocks=_blocks(job),
                          pair=config.pair, splits=config.splits, shares=config.shares, clustered=config.clustered,
                          patience=split.PATIENCE, dependent=config.dependent)
    options = dict(num_warps=config.num_warps, pdl=config.dependent,
                   cluster=config.splits if config.clustered else cluster)
    grid = config.tiles(*job.z.shape[-2:]) * config.splits, p.matrices
    if config.clustered:
        if config.bn % (8 * config.splits):
            raise LaunchError(f"each of {config.splits} CTAs stores a multiple of 8 columns of a tile: "
                              f"the configuration's bn must be a multiple of {8 * config.splits}, not {config.bn}")
        return KernelPlan(split.split, grid, plan, options, NOTHING[:2])
    if job.tiles > CTAS:
        raise LaunchError(f"without clusters, CTAs can share the k of at most {CTAS} tiles, and there are {job.tiles}: "
                          "use larger tiles, or clusters")
    room = (job.tiles, config.splits, config.bm // 64, 64 * config.bn), p.sums.name
    return KernelPlan(split.split, grid, plan, options, (), room)


def _plan_stream(job: Job) -> KernelPlan:
    """The stream-K kernel, how its CTAs share tiles, and the room for their sums."""
    config, steps, tiles = job.config, job.steps, job.tiles
    ctas = min(tiles * steps, job.processors)
    if tiles % ctas:
        rest, helpers, parts = shared_rest(tiles % ctas, steps, ctas, config.bm, config.bn)[:3]
    else:
        rest, helpers, parts = 0, 0, 0
    least = min(steps - rest, rest // parts) if rest else steps
    order = (whole_groups, config.order[1]) if config.order[0] == "grouped" else config.order
    plan = PersistentConstants(**_hopper_products(job), **_results(job, least), order=order)
    how: Shares = shares(tiles, ctas, rest, helpers, parts)
    room = (ctas, config.bm // 64, 64 * config.bn), job.product.sums.name
    return KernelPlan(stream, (ctas,), plan, dict(num_warps=config.num_warps), how, room)


def _results(job: Job, slots: int) -> dict[str, Any]:
    """The constants that say how results are stored, which of the epilogue's tiles TMA loads, and how many columns
    are deferred to the next tile, of which a CTA has at least `slots` slots."""
    config, z, request = job.config, job.z, job.product.request
    if not 0 <= config.late <= config.bn:
        raise LaunchError(f"the configuration's late must be at least 0 and at most its bn of {config.bn} columns, "
                          f"not {config.late}")
    width, across = _staging_of(z, config)
    check_shared(config, job.row_bytes, z.nbytes_per_element if width else 0)
    ahead: tuple[bool, ...] = ()
    late, waiting = 0, None
    if width and not config.swapped and width * config.buffers == config.bn:
        left = (SHARED - config.stages * (config.bm + config.bn) * job.row_bytes
                - config.bm * config.bn * z.nbytes_per_element)
        ahead = tiles_ahead(request.tiles, job.product.axes, z, width, config.bn, left // config.consumers)
        late = most_late(slots, width, config.late) if not config.behind else 0
    if job.waiting is not None and late and width == job.waiting.width:
        waiting = job.waiting.dtype
    return dict(width=width, buffers=config.buffers, across=across, ahead=ahead, late=late, waiting=waiting,
                kept=config.kept and width > 0 and slots > 0)


def _persistent_on_blackwell(job: Job) -> KernelPlan:
    """The kernel for Blackwell whose CTAs, or pairs of them, compute several tiles in turn."""
    config, block = job.config, job.product.scales.along
    by_tma = _check_memory_on_blackwell(job)
    group = 2 if config.pair else 1
    grid = group * min(job.tiles, max(job.processors // group, 1))
    plan = BlackwellPersistentConstants(
        **_products(job), block=block, pair=config.pair, order=config.order, places=config.places(block),
        width=config.width, by_tma=by_tma,
        buffers=2 if config.bn >= 2 * config.width else 1, dependent=config.dependent)
    options = dict(num_warps=blackwell.NUM_WARPS, pdl=config.dependent, cluster=2 if config.pair else None)
    return KernelPlan(blackwell_persistent.persistent, (grid,), plan, options)


def _split_on_blackwell(job: Job) -> KernelPlan:
    """The kernel for Blackwell in which the CTAs of a cluster share each tile's k."""
    config, p = job.config, job.product
    _check_memory_on_blackwell(job)
    plan = BlackwellSplitConstants(**_products(job), block=p.scales.along, splits=config.splits)
    options = dict(num_warps=blackwell.NUM_WARPS, pdl=True, cluster=config.splits)
    return KernelPlan(blackwell_split.split, (config.tiles(*job.z.shape[-2:]) * config.splits, p.matrices), plan,
                      options)


def _check_memory_on_blackwell(job: Job) -> bool:
    """Whether TMA stores the result. LaunchError if the units of factors, or shared memory,
    do not fit the configuration."""
    config, block = job.config, job.product.scales.along
    if block and (config.bn % blackwell.ROWS or config.bk % (4 * block)):
        raise LaunchError(f"scale factors come in units of {blackwell.ROWS} columns and 4 blocks of {block} along k: "
                          f"the configuration's bn and bk must be multiples of {blackwell.ROWS} and {4 * block}, "
                          f"not {config.bn} and {config.bk}")
    by_tma = _by_tma(job.z, config)
    slot = config.slot(job.product.itemsize, block)
    check_shared_on_blackwell(config, blackwell.ROWS, slot, job.z.nbytes_per_element if by_tma else 0)
    return by_tma


def _by_tma(z: ArrayView, config: AnyConfig) -> bool:
    """Whether TMA stores the result's columns: not if no divisor of a tile's columns has a number of
    bytes that it takes."""
    return stored_by_tma(z, config.width) and bool(widths(config.bn, z.nbytes_per_element))


def _staging_of(z: ArrayView, config: Config) -> tuple[int, bool]:
    """On Hopper, (columns that TMA stores at once, 0 if it cannot; whether the staging buffers are column-major).
    Elements of 16 bits get to column-major buffers by stmatrix."""
    across = z.nbytes_per_element > 1 and z.strides[-1] != 1 and z.shape[-1] > 1
    by_tma = stored_by_tma(z.transpose, 64) if across else _by_tma(z, config)
    return config.width if by_tma else 0, across


__all__ = ["Job", "persistent_grid", "plan_launch"]
