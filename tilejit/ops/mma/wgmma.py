"""wgmma: asynchronous matrix products of warpgroups (sm_90a).

B, and A unless it is in registers, are read from shared memory by descriptors.

Each warpgroup of the scope multiplies its own rows and columns (`division`). One instruction multiplies 64 rows by 32
bytes along k. PTX ISA, "wgmma.mma_async".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ...dispatch import Miss, Need, Variant
from ...dtypes import DType
from ...errors import CompilationError
from ...layout.fragments import wgmma_a_registers, wgmma_accumulator
from ...lazy import Lazy
from ...types import Region, Tile
from .descriptor import K_BYTES, Derived, as_derived
from .shared_matrix import contiguous_dimension, miss_of_order, miss_of_parts, report_miss, shared_matrix
from .site import MmaSite, bare

ptx = Lazy("tilejit.ptx")  # the instruction table; only kernels that name a form load it

ROWS, WARPGROUP = 64, 128  # rows per instruction; threads of a warpgroup
# Registers that ptxas 13.0 needs beside a wgmma's accumulators and an A operand in registers; with no more than that
# left, it serialises the products (notes C7511, C7512).
OTHER_REGISTERS, MOST_REGISTERS = 24, 255
# Descriptors, of two registers each, that may be computed ahead: if the 63 uniform registers do not hold them, ptxas
# keeps all values of the loop in ordinary ones, and moves each descriptor to uniform ones at its instruction (R2UR).
UNIFORM = 24
PTX_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
             "int8": "s8", "uint8": "u8"}
ACCUMULATORS = {"float32": "f32", "float16": "f16", "int32": "s32"}


@dataclass(frozen=True)
class Plan:
    """Each warpgroup multiplies `tiles` blocks of 64 rows by `n` columns, in `steps` instructions along k.

    `a` is None if A comes from registers. `a_rows` is the distance in bytes from the rows of one warpgroup to those
    of the next that has other rows. `b` has a block of n rows for each of the warpgroups that divide the columns.
    `sign` is -1 if the products are subtracted.
    """

    instruction: str
    tiles: int
    steps: int
    n: int
    a: Derived | None
    b: Derived
    a_rows: int
    registers: bool
    sign: int = 1

    @property
    def instructions(self) -> int:
        return self.tiles * self.steps

    @property
    def across(self) -> int:
        """How many warpgroups divide the columns."""
        return len(self.b.rows)


@lru_cache(maxsize=1024)
def division(dtype: DType, shape: tuple[int, int], threads: int) -> tuple[int, int] | None:
    """How many warpgroups divide the rows, and how many the columns, of a product of this shape with sums of `dtype`;
    None if no division gives each of them blocks that instructions have.

    Whatever the division, every block of 64 rows is multiplied by all columns of B, and warpgroups that share rows each
    read these rows of A. So the best one is that with the fewest parts along the columns. Columns are not divided where
    the sums of one thread would take more registers than it can have.
    """
    warpgroups, (m, n) = threads // WARPGROUP, shape
    fits = sum_registers(dtype, shape, threads) + OTHER_REGISTERS <= MOST_REGISTERS
    for across in range(1, warpgroups + 1):
        whole = warpgroups % across == 0 and m % (ROWS * (warpgroups // across)) == 0 and n % across == 0
        if whole and _has_columns(n // across, dtype) and (fits or across == 1):
            return warpgroups // across, across
    return None if m % (ROWS * warpgroups) else (warpgroups, 1)


def sum_registers(dtype: DType, shape: tuple[int, int], threads: int) -> int:
    """The registers of a thread that hold sums of `dtype`."""
    return shape[0] * shape[1] * dtype.bits // (32 * threads)


def _has_columns(n: int, dtype: DType) -> bool:
    """Whether instructions with sums of `dtype` have `n` columns. PTX ISA, "wgmma.mma_async": those of integers have
    multiples of 16 above 32."""
    return n % (16 if dtype.is_int and n > 32 else 8) == 0 and 8 <= n <= 256


def accumulator(dtype: DType, shape: tuple, threads: int) -> Tile | None:
    """The type of an accumulator with the layout of wgmma; None if the shape and the number of threads have none."""
    try:
        grid = division(dtype, shape, threads) if threads % WARPGROUP == 0 else None
        rows, columns = shape
        return Tile(dtype, shape, *wgmma_accumulator(rows, columns, prod(grid), grid[1])) if grid else None
    except CompilationError:
        return None


def a_registers(dtype: DType, shape: tuple, sums: Tile, threads: int) -> Tile | None:
    """The type of A in registers with the layout of wgmma, for a product with these `sums`; None if the shape and the
    number of threads have none."""
    try:
        grid = division(sums.dtype, sums.shape, threads) if threads % WARPGROUP == 0 else None
        rows, k = shape
        layout = grid and wgmma_a_registers(rows, k, dtype.bits, prod(grid), grid[1])
        return Tile(dtype, shape, *layout) if layout else None
    except CompilationError:
        return None


# -- what the needs and the plan share ---------------------------------------------------------------------------------

def matrix(s: MmaSite, name: str) -> Derived | Miss:
    """The matrix descriptor of operand `name` in shared memory, or the reason why there is none."""
    if name == "a":
        t, starts, k_first, mn, align = s.a, s.a_starts, s.trans_a, ROWS, s.a_align
    else:
        t, starts, k_first, mn, align = s.b, s.b_starts, not s.trans_b, columns(s), s.b_align
    assert isinstance(t, Region)
    found: Derived | Miss = s.memoize(name, lambda: shared_matrix(t, starts, k_first, mn, align, s.g.divisor))
    if isinstance(found, Miss) and name == "b" and mn < s.n:
        whole = s.memoize("undivided b", lambda: shared_matrix(t, starts, k_first, s.n, align, s.g.divisor))
        return miss_of_parts(t, mn, s.n) if isinstance(whole, Derived) else found
    return found


def grid_of(s: MmaSite) -> tuple[int, int]:
    """How many warpgroups divide the rows and the columns; the rows alone where no division is possible."""
    return division(s.dtype, (s.m, s.n), s.threads) or (s.warpgroups, 1)


def columns(s: MmaSite) -> int:
    """The columns of one instruction."""
    return s.n // grid_of(s)[1]


def instruction(s: MmaSite) -> str:
    """The name of the instruction for these types and this n, as in the instruction table."""
    a, b = PTX_TYPES[s.a.dtype.name], PTX_TYPES[s.b.dtype.name]
    kind, sums = f"m64n{columns(s)}k{K_BYTES // s.a.dtype.nbytes}", ACCUMULATORS[s.dtype.name]
    return f"wgmma.mma_async.sync.aligned.{kind}.{sums}.{a}.{b}" + (".a_regs" if isinstance(s.a, Tile) else "")


def _exists(s: MmaSite) -> bool | str:
    return (ptx.lookup.find_form(instruction(s)) is not None
            or f"there is no m64n{columns(s)}k{K_BYTES // s.a.dtype.nbytes} of {s.a.dtype} by {s.b.dtype} to {s.dtype}")


def _is_divisible(s: MmaSite) -> bool | str:
    if division(s.dtype, (s.m, s.n), s.threads) is not None:
        return True
    return f"{s.m} rows by {s.n} columns and {s.warpgroups} warpgroup{'s' if s.warpgroups > 1 else ''}"


def _fits_registers(s: MmaSite) -> bool | str:
    words = sum_registers(s.dtype, (s.m, s.n), s.threads)
    return grid_of(s)[1] == 1 or words + OTHER_REGISTERS <= s.registers or f"{words} of a thread's {s.registers}"


def _types(s: MmaSite) -> bool | str:
    for t in (s.a.dtype, s.b.dtype):
        if t.name not in PTX_TYPES:
            return str(t)
    if s.a.dtype.nbytes != s.b.dtype.nbytes:
        return f"{s.a.dtype} by {s.b.dtype}"
    return s.dtype.name in ACCUMULATORS or str(s.dtype)


def _operand(name: str):
    def test(s: MmaSite) -> bool | Miss:
        t = getattr(s, name)
        found = None if isinstance(t, Tile) else matrix(s, name)
        return report_miss(name, t, found, s.n) if isinstance(found, Miss) else True
    return test


def _is_k_major(s: MmaSite) -> bool | Miss:
    for name, t, row in (("a", s.a, 1 if s.trans_a else 0), ("b", s.b, 0 if s.trans_b else 1)):
        if not isinstance(t, Tile) and t.dtype.nbytes != 2 and contiguous_dimension(t) == row:
            return miss_of_order(name, t, s.n)
    return True


def plan(s: MmaSite) -> Plan:
    down, _ = grid_of(s)
    a = None if isinstance(s.a, Tile) else as_derived(matrix(s, "a"))
    tiles = s.m // (ROWS * down)
    a_rows = a.rows[tiles] if a is not None and down > 1 else 0
    return Plan(instruction(s), tiles, s.k * s.a.dtype.nbytes // K_BYTES, columns(s), a, as_derived(matrix(s, "b")),
                a_rows, a is None, -1 if s.negate else 1)


def _blocks_in_line(s: MmaSite) -> bool | str:
    """Whether the parts of A, and those of B, of consecutive warpgroups are equally spaced and have the same offsets
    within them."""
    down, across = grid_of(s)
    columns = as_derived(matrix(s, "b")).rows
    if any(columns[j] != j * columns[1] for j in range(2, across)):
        return "they do not"
    if isinstance(s.a, Tile) or down == 1:
        return True
    rows, tiles = as_derived(matrix(s, "a")).rows, s.m // (ROWS * down)
    step = rows[tiles]
    return (all(rows[w * tiles + t] == rows[t] + w * step for w in range(down) for t in range(tiles))
            or "they do not")


# -- emission ----------------------------------------------------------------------------------------------------------

def emit(e, plan: Plan, call, acc, a, b, accumulate=None):
    """Emit the fence and all instructions; the accumulator stays in its pinned registers.

    The descriptors of all instructions are computed inside the asm statement, before the first instruction, or if they
    are many, before their own. LLVM would turn the additions into `or`, for which ptxas reuses the same uniform
    registers again and again.
    """
    pins, zero = e.mma.accumulate(call)
    inputs: list = []
    advanced: dict[tuple[str, int], str] = {}

    def operand(v) -> str:
        inputs.append(v)
        return f"${len(inputs) - 1}"

    def advance(matrix: str, nbytes: int) -> str:
        return advanced.setdefault((matrix, nbytes), f"{matrix}{len(advanced)}")

    words: list = [] if plan.a is not None else e.mma.packed_words(a)
    starts = {}
    if plan.a is not None:
        origin = e.mma.matrix_address(a)
        if plan.a_rows:
            origin = origin + (e.scope_warp() >> 2) // plan.across * plan.a_rows
        starts["x"] = operand(e.mma.descriptor(origin, plan.a.descriptor.bits))
    origin = e.mma.matrix_address(b)
    if plan.across > 1:
        origin = origin + (e.scope_warp() >> 2) % plan.across * plan.b.rows[1]
    starts["y"] = operand(e.mma.descriptor(origin, plan.b.descriptor.bits))
    if zero:
        scale = "z"
    else:
        scale = "o" if accumulate is None else operand(accumulate)
    form, products = ptx.form(plan.instruction), []
    per = len(words) // plan.instructions if words else 0
    for tile in range(plan.tiles):
        d = pins.part(tile, plan.tiles)
        for step in range(plan.steps):
            at = tile * plan.steps + step
            if plan.a is None:
                left: list[str] | str = [operand(w) for w in words[at * per:at * per + per]]
            else:
                left = advance("x", plan.a.rows[tile] + plan.a.ks[step])
            bound = {"d": d, "a": left, "b": advance("y", plan.b.ks[step]), "scale_d": scale if step == 0 else "o"}
            products.append(bare(form, bound | _constants(form, plan)))
    registers = "".join(f" .reg .b64 {name};" for name in advanced.values())
    adds = [f"add.s64 {name}, {starts[matrix]}, {nbytes >> 4};" for (matrix, nbytes), name in advanced.items()]
    flags = ".reg .pred o, z; setp.ne.b32 o, 1, 0; setp.ne.b32 z, 0, 0;"
    if len(adds) > UNIFORM:
        products, adds = _with_adds(products, advanced.values(), adds), []
    e.asm(f"{{ {flags}{registers} {' '.join(adds)} wgmma.fence.sync.aligned; {' '.join(products)} }}", [], inputs,
          convergent=True)
    return pins


def _with_adds(products: list[str], names: Iterable[str], adds: list[str]) -> list[str]:
    """The instructions, each behind the additions of the descriptors that it is the first to read."""
    behind = list(products)
    for name, add in zip(names, adds):
        first = next(i for i, text in enumerate(products) if f" {name}," in text)
        behind[first] = f"{add} {behind[first]}"
    return behind


def _constants(form, plan: Plan) -> dict:
    names = {o.name for o in form.operands}
    majors = {"trans_a": int(plan.a is not None and plan.a.descriptor.major == "mn"),
              "trans_b": int(plan.b.descriptor.major == "mn")}
    return {k: v for k, v in ({"scale_a": plan.sign, "scale_b": 1} | majors).items() if k in names}


# -- simulation --------------------------------------------------------------------------------------------------------

def simulate(m, plan: Plan, call, acc, a, b, accumulate=None):
    """Simulate the product of the bytes that the descriptors address. They are read at once; for the detection of
    races, until the wait."""
    m.sync.collective("mma_async")
    if accumulate is not None:
        acc = np.where(accumulate[:, :1, None], acc, 0).astype(acc.dtype)
    return m.tensor_cores.wgmma(plan, call, acc, a, b)


NEEDS = (
    Need("the target sm_90a", lambda s: s.target == "sm_90a" or s.target, gate=True),
    Need("b in shared memory", lambda s: isinstance(s.b, Region) or "in registers", gate=True),
    Need("whole warpgroups as the scope", lambda s: s.warpgroup_scope or f"a {s.scope} of {s.threads} threads",
         gate=True),
    Need("operands of float16, bfloat16, float32, float8 or 8-bit integers, and an accumulator of float32, "
         "float16 or int32", _types, gate=True),
    Need("precision='tf32' for float32 operands",
         lambda s: s.a.dtype.name != "float32" or s.precision == "tf32" or "they would be rounded to 10 bits"),
    Need("floats where the product is subtracted (negate=True)",
         lambda s: not s.negate or s.a.dtype.is_float or str(s.a.dtype), gate=True),
    Need("64 rows, or a multiple of that, for each warpgroup, or for those that divide the columns among them",
         _is_divisible, gate=True),
    Need("a multiple of 32 bytes along k",
         lambda s: (s.k > 0 and s.k * s.a.dtype.nbytes % K_BYTES == 0) or f"{s.k} elements of {s.a.dtype}", gate=True),
    Need("types and columns that an instruction has (8 to 256 in steps of 8; of 16 above 32 for integers)", _exists,
         gate=True),
    Need("registers for the sums of columns that warpgroups divide", _fits_registers),
    Need("A from registers as [m, k]", lambda s: not (isinstance(s.a, Tile) and s.trans_a)),
    Need("elements contiguous along k, for types of other than 16 bits", _is_k_major, gate=True),
    Need("an A in registers, or in a layout that a matrix descriptor names", _operand("a"), gate=True),
    Need("a B in a layout that a matrix descriptor names", _operand("b"), gate=True),
    Need("rows of A, and columns of B, at equal steps from one warpgroup to the next", _blocks_in_line),
)

VARIANT = Variant("wgmma", plan=plan, emit=emit, simulate=simulate, needs=NEEDS, doc=__doc__)
DOT = Variant("wgmma", needs=NEEDS, doc=__doc__)
