"""tcgen05: matrix products into tensor memory, each started by one thread (sm_100a and sm_103a).

A is read from tensor memory, or from shared memory by a matrix descriptor; B from shared memory. Block-scaled kinds
multiply each block of 32 or 16 elements along k, of a row of A or a column of B, by a scale factor in tensor memory.
With ``cta_group=2``, one thread starts the product of a pair of CTAs: each has its own rows of A and of the
accumulator, and half of the columns of B. PTX ISA, "tcgen05.mma".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...dispatch import Miss, Need, Variant
from ...dtypes import bool_
from ...ir.builder import Builder, describe, element_type, extents_of, type_of
from ...ir.graph import Const, Operand, Value
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits, Writes
from ...types import Buffer, Region, Scalar
from ..language.promotion import as_condition
from ..memory.packed import shape_of
from ..memory.regions import whole_region
from ..tmem.descriptor import SharedDescriptor
from ..tmem.targets import TENSOR_MEMORY
from .descriptor import Derived, as_derived
from .shared_matrix import report_miss, shared_matrix
from .site import checked_precision
from .tcgen05_kinds import (
    K_BYTES,
    KINDS,
    SCALES,
    TYPES,
    Instruction,
    Kind,
    accumulator_lanes,
    columns_allowed,
    default_kind,
)
from .tcgen05_operands import a_layout, accumulator_layout, first_lane, lies_as, scale_layout
from .tcgen05_site import TensorSite


@dataclass(frozen=True)
class Plan:
    """`steps` instructions along k.

    `a` and `b` are descriptors with the byte offset of each step. `a` is None if A is in tensor memory, where a step
    is `a_step` columns. For each step, `ids` are the byte selectors of the scale factors of (A, B) in the instruction
    descriptor, and `scale_columns` the columns from the start of these factors.
    """

    kind: str
    qualifier: str
    cta_group: int
    steps: int
    instruction: Instruction
    ids: tuple[tuple[int, int], ...]
    a: Derived | None
    b: Derived
    a_step: int
    scale_columns: tuple[tuple[int, int], ...] = ()

    completion = "commit"

    @property
    def instructions(self) -> int:
        return self.steps

    def idesc(self, step: int) -> int:
        """The 32-bit instruction descriptor of a step."""
        return replace(self.instruction, scale_ids=self.ids[step]).bits if self.ids else self.instruction.bits

    @staticmethod
    def descriptor(matrix: Derived) -> SharedDescriptor:
        d = matrix.descriptor
        return SharedDescriptor(d.span, d.leading, d.stride)


# -- what the needs and the plan share ---------------------------------------------------------------------------------

def matrix(s: TensorSite, name: str) -> Derived | Miss:
    """The matrix descriptor of operand `name` in shared memory, or the reason why there is none."""
    k_first, mn = (s.trans_a, s.m) if name == "a" else (not s.trans_b, s.n)
    return s.memoize(name,
                     lambda: shared_matrix(getattr(s, name), s.starts[name], k_first, mn, s.aligned[name], s.g.divisor))


def _kind(s: TensorSite) -> Kind:
    return KINDS[_kind_name(s)]


def _kind_name(s: TensorSite) -> str:
    assert s.kind is not None  # as the call has been checked
    return s.kind


def _types(s: TensorSite) -> bool | str:
    kind = _kind(s)
    packs = [n for n, x in (("a", s.a), ("b", s.b)) if (x.dtype.packed and not x.dtype.padded) != (kind.k == 64)]
    if packs:
        t = getattr(s, packs[0]).dtype
        packed = "elements of 4 bits as tile.padded makes them" if t.packed else "others"
        return f"{t} in kind::{s.kind}, which takes {'float4_e2m1fn, packed' if kind.k == 64 else packed}"
    wrong = [t for t in s.types if t not in kind.types]
    if wrong:
        return f"{wrong[0]} in kind::{s.kind}"
    if kind.name == "f16" and s.types[0] != s.types[1]:
        return " by ".join(s.types)
    return s.acc.dtype.name in kind.accumulators or f"{s.acc.dtype} from kind::{s.kind}"


def _half(s: TensorSite) -> bool | str:
    """Whether the sums are float32 if an operand is bfloat16; float16 sums exist for float16 and narrower floats."""
    return s.acc.dtype.name != "float16" or "bf16" not in s.types or "float16 from bf16"


def _rows(s: TensorSite) -> bool | str:
    allowed = (128,) if _kind(s).scales else (64, 128)
    return s.m in allowed or f"{s.m} rows"


def _columns(s: TensorSite) -> bool | str:
    transposed = s.b.dtype.nbytes == 1 and matrix_major(s, "b") == "mn"
    return columns_allowed(_kind_name(s), s.cta_group, s.columns, transposed)


def matrix_major(s: TensorSite, name: str) -> str:
    found = matrix(s, name)
    return "k" if isinstance(found, Miss) else found.descriptor.major


def _in_shared(name: str):
    def test(s: TensorSite) -> bool | Miss:
        t = getattr(s, name)
        found = None if t.scope == "tmem" else matrix(s, name)
        return report_miss(name, t, found, s.columns) if isinstance(found, Miss) else True
    return test


def _is_k_major(s: TensorSite) -> bool | str:
    for name, kind in (("a", s.types[0]), ("b", s.types[1])):
        along_mn = getattr(s, name).scope == "shared" and matrix_major(s, name) == "mn"
        if along_mn and (not _kind(s).transposes or kind in ("e2m3", "e3m2", "e2m1")):
            return f"{name} of {kind} is not contiguous along k"
    return True


def _accumulator(s: TensorSite) -> bool | str:
    datapath, _ = accumulator_lanes(s.rows, s.cta_group)
    layout = accumulator_layout(datapath, s.columns, s.acc.dtype)
    return lies_as(s.acc, s.starts["acc"], s.g.divisor, layout, f"the datapath {datapath!r}")


def _a_in_tensor_memory(s: TensorSite) -> bool | str:
    if s.a.scope != "tmem":
        return True
    datapath, _ = accumulator_lanes(s.rows, s.cta_group)
    if datapath == "B":
        return "a product of 64 rows in each CTA of a pair"
    if s.trans_a:
        return "trans_a=True"
    found = lies_as(s.a, s.starts["a"], s.g.divisor, a_layout(datapath, s.a.shape[1]), "A")
    if found is not True or _accumulator(s) is not True:
        return found
    mine, sums = (first_lane(t, s.starts[name], s.g.divisor) for name, t in (("a", s.a), ("acc", s.acc)))
    return mine == sums or f"it begins in lane {mine}, and the accumulator in lane {sums}"


def _scales(s: TensorSite) -> bool | str:
    kind = _kind(s)
    if kind.scales is None:
        return s.scales == (None, None) or f"scale_a= and scale_b= in kind::{s.kind}"
    scale_a, scale_b = s.scales
    if scale_a is None or scale_b is None:
        return f"no scale_a= and scale_b= in kind::{s.kind}"
    if s.block is None or s.block not in kind.scales:
        return f"block={s.block} in kind::{s.kind}"
    if scale_type(s) not in kind.scales[s.block][2]:
        return f"factors of {scale_type(s)} for blocks of {s.block} in kind::{s.kind}"
    if scale_a.dtype != scale_b.dtype:
        return f"{scale_a.dtype} and {scale_b.dtype}"
    for n, (t, rows) in enumerate(zip((scale_a, scale_b), (s.m, -(-s.columns // 32) * 32))):
        name, chunks = ("scale_a", "scale_b")[n], s.k // s.block
        if t.shape != (rows, chunks):
            return f"{name} is {list(t.shape)}, and [{rows}, {chunks}] are needed"
        if chunks > 4 and chunks % 4:
            return f"{chunks} blocks along k: at most 4, or a multiple of 4"
        found = lies_as(t, s.starts[f"scale{n}"], s.g.divisor, scale_layout(rows, chunks), "scale factors")
        if found is not True:
            return f"{name}: {found}"
    return True


def scale_type(s: TensorSite) -> str:
    scale, _ = s.scales
    assert scale is not None  # of a product with scale factors
    return SCALES[scale.dtype.name]


ONE_THREAD = Need("one thread", lambda s: s.threads == 1 or f"{s.threads} threads of a {s.scope}: use tile.elect()",
                  gate=True)
TARGET = Need("a target that has the kind", lambda s: s.target in _kind(s).targets or f"kind::{s.kind} on {s.target}")
ELEMENT_TYPES = Need("element types of the kind, and an accumulator that it has", _types, gate=True)
SUMS = Need("float32 sums of bfloat16", _half)
NEGATION = Need("a kind that negates, where the product is subtracted (negate=True)",
                lambda s: not s.negate or _kind(s).negates or f"kind::{s.kind}")
ROWS = Need("64 or 128 rows in each CTA (128 with scale factors)", _rows, gate=True)
WHOLE_STEPS = Need("a multiple of 32 bytes along k",
                   lambda s: (s.k_bytes > 0 and s.k_bytes % K_BYTES == 0) or f"{s.k_bytes} bytes", gate=True)
A_PLACE = Need("an A in tensor memory in the accumulator's lanes, or in a layout that a matrix descriptor names",
               _in_shared("a"), gate=True)
B_LAYOUT = Need("a B in a layout that a matrix descriptor names", _in_shared("b"), gate=True)
COLUMNS = Need("columns that an instruction has", _columns)
MAJOR = Need("elements contiguous along k, for types that are not transposed", _is_k_major)
ACCUMULATOR = Need("an accumulator in the layout that the tensor cores write", _accumulator)
A_LANES = Need("an A in tensor memory that lies in the accumulator's lanes", _a_in_tensor_memory)
SCALE_FACTORS = Need("scale factors for block-scaled kinds, as tile.scale_layout puts them", _scales)


def plan(s: TensorSite) -> Plan:
    kind, steps = _kind(s), s.k_bytes // K_BYTES
    a = None if s.a.scope == "tmem" else as_derived(matrix(s, "a"))
    b = as_derived(matrix(s, "b"))
    ids: tuple[tuple[int, int], ...] = ()
    columns: tuple[tuple[int, int], ...] = ()
    qualifier = ""
    if kind.scales:
        assert s.block is not None  # the size of the blocks that have a factor
        per, qualifier, _ = kind.scales[s.block]
        down, across = s.m // 32, -(-s.columns // 32)
        ids = tuple((step * per % 4, step * per % 4) for step in range(steps))
        columns = tuple((step * per // 4 * down, step * per // 4 * across) for step in range(steps))
    instruction = Instruction(kind.name, s.rows, s.columns, *s.types, s.acc.dtype.name,
                              a is not None and a.descriptor.major == "mn",
                              b.descriptor.major == "mn", scale_type(s) if kind.scales else None, negated=s.negate)
    return Plan(kind.name, qualifier, s.cta_group, steps, instruction, ids, a, b, K_BYTES // 4, columns)


# -- emission ----------------------------------------------------------------------------------------------------------

def emit(e, plan: Plan, call, acc, a, b, accumulate, scale_a=None, scale_b=None):
    """Emit all instructions in one asm statement. The first adds to the accumulator if `accumulate`,
    the others always do."""
    inputs: list = []

    def operand(v) -> str:
        inputs.append(v)
        return f"${len(inputs) - 1}"

    d, y = operand(e.tmem.address(acc)), operand(e.mma.descriptor(e.mma.matrix_address(b),
                                                                  Plan.descriptor(plan.b).bits))
    if plan.a is None:
        x = operand(e.tmem.address(a))
    else:
        x = operand(e.mma.descriptor(e.mma.matrix_address(a), Plan.descriptor(plan.a).bits))
    scales = [operand(e.tmem.address(s)) for s in (scale_a, scale_b) if s is not None]
    if not isinstance(call.args[3], Const):
        first = operand(accumulate)
    else:
        first = "one" if call.args[3].value else "zero"
    lines = [".reg .pred one, zero; setp.ne.b32 one, 1, 0; setp.ne.b32 zero, 0, 0; .reg .b64 x, y; .reg .b32 t, u, v;"]
    head = (f"tcgen05.mma.cta_group::{plan.cta_group}.kind::{plan.kind}"
            + (f".block_scale.{plan.qualifier}" if plan.qualifier else ""))
    for step in range(plan.steps):
        flag = first if step == 0 else "one"
        left = "[t]" if plan.a is None else "x"
        if plan.a is None:
            lines.append(f"add.u32 t, {x}, {step * plan.a_step};")
        else:
            lines.append(f"add.s64 x, {x}, {plan.a.ks[step] >> 4};")
        lines.append(f"add.s64 y, {y}, {plan.b.ks[step] >> 4};")
        factors = ""
        if scales:
            lines += [f"add.u32 {r}, {s}, {c};" for r, s, c in zip("uv", scales, plan.scale_columns[step])]
            factors = ", [u], [v]"
        lines.append(f"{head} [{d}], {left}, y, {plan.idesc(step)}{factors}, {flag};")
    e.asm(f"{{ {' '.join(lines)} }}", [], inputs)


def simulate(m, plan: Plan, call, acc, a, b, accumulate, *scales):
    m.tensor_products.issue(plan, acc, a, b, accumulate, *scales)


VARIANT = Variant("tcgen05", plan=plan, emit=emit, simulate=simulate, doc=__doc__, needs=(
    TENSOR_MEMORY,
    ONE_THREAD,
    TARGET,
    ELEMENT_TYPES,
    SUMS,
    NEGATION,
    ROWS,
    WHOLE_STEPS,
    A_PLACE,
    B_LAYOUT,
    COLUMNS,
    MAJOR,
    ACCUMULATOR,
    A_LANES,
    SCALE_FACTORS,
))


# -- the operation -----------------------------------------------------------------------------------------------------

@op("writes", attrs=("trans_a", "trans_b", "kind", "types", "block", "options"), variants=(VARIANT,),
    traits=Traits(product=True, asynchronous=True, shown="mma_async"))
def tensor_mma(acc: Writes, a: Reads, b: Reads, accumulate: Registers, scale_a: Reads = None, scale_b: Reads = None,
               *, trans_a, trans_b, kind, types, block, options):
    """Start ``acc + a @ b``, or ``a @ b`` if `accumulate` is false, into the accumulator `acc` in tensor memory."""


@tensor_mma.infer
def _(g, *operands, **attrs):
    return None


tensor_mma.rules.by_threads = lambda call: ()
tensor_mma.rules.by_engines = lambda call: ((), call.args[1:3])

tensor_mma.site(TensorSite.of_call)
tensor_mma.simulate(lambda m, call, *args: call.choice.lowering.simulate(m, call.choice.plan, call, *args))
tensor_mma.emit(lambda e, call, *args: call.choice.lowering.emit(e, call.choice.plan, call, *args))


@dataclass(frozen=True)
class Keywords:
    """The keywords of ``tile.mma_async``, as the kernel gives them; `options` are those that choose a variant."""

    trans_a: Any
    trans_b: Any
    dtype: Any
    precision: Any
    accumulate: Any
    kind: str | None
    scale_a: Any
    scale_b: Any
    block: int | None
    options: dict[str, Any]


def product(g: Builder, acc, a, b, given: Keywords):
    """Implement ``tile.mma_async`` for an accumulator in tensor memory; returns `acc`."""
    options, trans_a, trans_b, block = given.options, given.trans_a, given.trans_b, given.block
    if options["variant"] not in (None, "tcgen05"):
        raise g.error(f"a product into tensor memory is the variant tcgen05, not {options['variant']!r}")
    for name, flag in (("trans_a", trans_a), ("trans_b", trans_b)):
        if not isinstance(flag, bool):
            raise g.error(f"{name} is True or False, known at compile time, not {describe(flag)}")
    made, x, y = (_operand(g, acc, "the accumulator", ("tmem",)), _operand(g, a, "a", ("shared", "tmem")),
                  _operand(g, b, "b", ("shared",)))
    scales = _factors(g, given.scale_a, given.scale_b, block)
    if given.dtype is not None and str(given.dtype) != str(element_type(made)):
        raise g.error(f"dtype={given.dtype} with an accumulator of {element_type(made)}: leave it out")
    checked_precision(g, given.precision, x, y)
    types = _element_types(g, x, y)
    kind = _kind_of(g, given.kind, types, (x, y), scales, block)
    if kind == "tf32" and given.precision != "tf32":
        raise g.error("the tensor cores round float32 operands to TF32 (10 bits of mantissa); "
                      "pass precision='tf32' to accept that")
    _extents(g, made, x, y, trans_a, trans_b)
    by_block = KINDS[kind].scales
    if by_block and block is None:
        block = min(by_block) if kind == "mxf4nvf4" else 32
    g.call(tensor_mma, made, x, y, _condition(g, given.accumulate), *scales, trans_a=trans_a, trans_b=trans_b,
           kind=kind, types=types, block=block, options={name: option for name, option in options.items() if option})
    return acc


def _factors(g: Builder, scale_a, scale_b, block: int | None) -> list[Value]:
    """The scale factors of A and B, or an empty list. CompilationError if only one is given or their dtype is wrong."""
    scales = [_operand(g, s, n, ("tmem",)) for s, n in ((scale_a, "scale_a"), (scale_b, "scale_b")) if s is not None]
    if len(scales) == 1:
        raise g.error("scale_a= and scale_b= go together")
    if block is not None and not scales:
        raise g.error("block= is the number of elements along k that a scale factor applies to: "
                      "give scale_a= and scale_b= too, or leave it out")
    for s in scales:
        if element_type(s).name not in SCALES:
            raise g.error(f"scale factors are {' or '.join(SCALES)}, not {element_type(s)}")
    return scales


def _kind_of(g: Builder, kind: str | None, types: tuple[str, str], operands: tuple[Value, Value], scales: list[Value],
             block: int | None) -> str:
    """The instruction's kind: `kind`, or by default the one that follows from the element types and
    the scale factors."""
    packed = all(element_type(v).name == "float4_e2m1fn" for v in operands)
    by_16 = block == 16 or bool(scales) and element_type(scales[0]).name == "float8_e4m3fn"
    kind = kind or default_kind(*types, bool(scales), packed, by_16)
    if kind in KINDS:
        return kind
    if packed and not scales:
        raise g.error("packed float4_e2m1fn is multiplied with scale factors (scale_a=, scale_b=); "
                      "without them the tensor cores read tile.padded(...)")
    raise g.error(f"there is no kind for {types[0]} by {types[1]}{' with scale factors' if scales else ''}: "
                  f"the kinds are {', '.join(KINDS)}, given as kind=")


def _condition(g: Builder, accumulate) -> Operand:
    """`accumulate` as a bool operand, constant or not. CompilationError for anything but a condition."""
    if isinstance(accumulate, bool):
        return Const(accumulate, bool_)
    if not isinstance(type_of(accumulate), Scalar) or type_of(accumulate).dtype.is_float:
        raise g.error(f"accumulate is a condition, as k > 0, not {describe(accumulate)}")
    return as_condition(g, accumulate)


def _operand(g: Builder, x, name: str, scopes: tuple[str, ...]) -> Value:
    t = type_of(x)
    if not isinstance(t, (Buffer, Region)) or t.scope not in scopes:
        places = " or ".join({"shared": "shared", "tmem": "tensor"}[s] for s in scopes)
        raise g.error(f"{name} is a matrix in {places} memory, not {describe(x)}")
    x = whole_region(g, x)
    if x.type.buffer.peer:
        raise g.error(f"{name} must be in the CTA's own shared memory: "
                      "with cta_group=2 the other CTA of the pair has its own part at the same place")
    if len(x.type.shape) != 2:
        raise g.error(f"{name} is a matrix of two dimensions, not of shape {list(x.type.shape)}; index the others")
    return x


def _element_types(g: Builder, a: Value, b: Value) -> tuple[str, str]:
    """The PTX names of the operands' element types. CompilationError for a dtype that the tensor
    cores do not multiply."""
    one, other = (TYPES.get(element_type(x).name) for x in (a, b))
    if one is None or other is None:
        dtype = element_type(a if one is None else b)
        raise g.error(f"tensor cores do not multiply {dtype}"
                      + (": they read it as tile.padded makes it" if dtype.packed else ""))
    return one, other


def _extents(g: Builder, acc: Value, a: Value, b: Value, trans_a: bool, trans_b: bool) -> None:
    for x, name, across in ((a, "a", trans_a), (b, "b", not trans_b)):
        if element_type(x).packed and across:
            raise g.error(f"{name} of {element_type(x)} has its k along the rows: "
                          f"{'leave trans_a out' if x is a else 'give b as [n, k] and trans_b=True'}")
    one, other = (shape_of(element_type(x), extents_of(x)) for x in (a, b))
    m, k = one[::-1] if trans_a else one
    k2, n = other[::-1] if trans_b else other
    if k != k2:
        raise g.error(f"a is [{m}, {k}] and b is [{k2}, {n}]: their k differ (trans_a=True takes a as [k, m], "
                      "trans_b=True takes b as [n, k])")
    group = g.state.get("cta_group", 1)
    if extents_of(acc) != (m, n * group):
        pair = ", with half of the columns of B in each CTA of the pair" if group == 2 else ""
        raise g.error(f"a is [{m}, {k}] and b is [{k}, {n}]{pair}, so the accumulator is [{m}, {n * group}], "
                      f"not {list(extents_of(acc))}")


__all__ = ["Plan", "TensorSite", "VARIANT", "product", "tensor_mma"]
