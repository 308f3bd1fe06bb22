"""``mma_async``: asynchronous matrix products on the tensor cores.

``mma_commit`` closes a group of them, ``mma_wait`` waits for groups.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from ...dispatch import Variant
from ...dtypes import DType, dtype_of, float16, float32, int32
from ...errors import CompilationError
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.graph import Operand, Value
from ...ir.op import op
from ...ir.op_traits import Reads, Registers, Traits
from ...types import Buffer, Region, Scalar, Tile
from ..language.expect_variant import asked_variant
from ..language.promotion import as_condition, collective
from ..memory.packed import refuse_packed
from ..memory.regions import whole_region
from . import tcgen05, wgmma
from .site import MmaSite, checked_options, product_shape

VARIANTS: tuple[Variant, ...] = (wgmma.VARIANT,)
NAMES = (*(v.name for v in VARIANTS), tcgen05.VARIANT.name)
GROUPS = 7  # the most groups that may stay pending (PTX ISA, wgmma.wait_group; as in the instruction table)


@op("reads", attrs=("trans_a", "trans_b", "dtype", "precision", "options"), variants=VARIANTS, collective=True,
    traits=Traits(product=True, asynchronous=True, anchor=True))
def mma_async_(acc: Registers, a: Reads, b: Reads, accumulate: Registers = None, *, trans_a, trans_b, dtype,
               precision, options):
    """Start ``acc + a @ b``, or ``a @ b`` without `acc` or if `accumulate` is false. The result may be read after the
    ``mma_wait`` for its group."""


@mma_async_.infer
def _(g, acc, a, b, accumulate=None, *, trans_a, trans_b, dtype, precision, options):
    return Tile(dtype, product_shape(g, acc, a, b, trans_a, trans_b)[:2])


def _layout(assigner, call, types):
    """The layouts of wgmma: that of the accumulator, and that of A if it is a register tile."""
    acc, a, b, *condition = call.args
    result, threads = call.result.type, assigner.scope.threads
    made = wgmma.accumulator(result.dtype, result.shape, threads) or assigner.default(result.shape, result.dtype)
    left = None
    if isinstance(type_of(a), Tile):
        t = a.type
        left = wgmma.a_registers(t.dtype, t.shape, result, threads) or assigner.default(t.shape, t.dtype)
    return (made if acc is not None else None, left, None, *(None for _ in condition)), (made,)


mma_async_.rules.layout = _layout
mma_async_.rules.by_threads = lambda call: ()
mma_async_.rules.by_engines = lambda call: ((), call.args[1:3])


@mma_async_.site
def _(g, call):
    return MmaSite.of_call(g, call)


@mma_async_.simulate
def _(m, call, acc, a, b, accumulate=None):
    return call.choice.lowering.simulate(m, call.choice.plan, call, acc, a, b, accumulate)


@mma_async_.emit
def _(e, call, acc, a, b, accumulate=None):
    return call.choice.lowering.emit(e, call.choice.plan, call, acc, a, b, accumulate)


@builtin
def mma_async(g: Builder, acc, a, b, trans_a=False, trans_b=False, dtype=None, precision=None, variant=None,
              negate=False, accumulate=True, kind=None, scale_a=None, scale_b=None, block=None):
    """Start a matrix product on the tensor cores and return the new accumulator, ``acc + a @ b``.

    `a` is [m, k], in shared memory or a register tile; `b` is [k, n], in shared memory. With ``trans_a=True``, `a` is
    given as [k, m]; with ``trans_b=True``, `b` is given as [n, k]. `acc` is a tile [m, n]; None starts the sums at
    zero, in `dtype` (by default float32, or int32 for integers), and so does ``tile.zeros``, at no cost. If
    `accumulate`, a constant or a condition that is uniform over the scope, is false, the sums start at zero too.
    Until an ``mma_wait`` for the group that ``mma_commit`` closes, the result is pending: only another mma_async may
    use it. float32 operands require ``precision="tf32"``; others do not take it. ``negate=True`` subtracts a product
    of floats: ``acc - a @ b``. `variant` names the path.

    If `acc` is in tensor memory (sm_100a, sm_103a), one thread starts the product, which is complete when a later
    ``tcgen05_commit`` arrives; the call returns `acc`, and `a` may be in tensor memory too. `kind` is the kind of the
    instruction, by default that of the dtypes: packed float4_e2m1fn requires scale factors, and ``tile.padded``
    elements of 4 and 6 bits are multiplied like those of 8 bits. `scale_a` and `scale_b` are scale factors in tensor
    memory, float8_e8m0fnu or float8_e4m3fn in the layout of ``tile.scale_layout``: one for each `block` of 32 or 16
    elements along k.
    """
    if getattr(type_of(acc), "scope", None) == "tmem":
        return tcgen05.product(g, acc, a, b, tcgen05.Keywords(trans_a, trans_b, dtype, precision, accumulate, kind,
                                                              scale_a, scale_b, block, _options(g, variant, negate)))
    if any(o is not None for o in (kind, scale_a, scale_b, block)):
        raise g.error("kind=, scale_a=, scale_b= and block= are for products into tensor memory")
    collective(g, "mma_async")
    if g.scope.threads == 1:
        raise g.error("a product into registers must be started by whole warpgroups: "
                      "leave out tile.elect() or tile.thread(..); one thread starts those into tensor memory, "
                      "whose accumulator is a buffer of tile.alloc(.., scope=\"tmem\")")
    condition: tuple[Operand, ...] = ()
    if accumulate is False:
        acc = None
    elif accumulate is not True:
        condition = (_condition(g, acc, accumulate),)
    a, b = _operand(g, a, "a", registers=True), _operand(g, b, "b", registers=False)
    dtype = _dtype(g, acc, a.type.dtype, dtype)
    checked_options(g, acc, a, b, dtype, precision, trans_a, trans_b)
    options = _options(g, variant, negate)
    return g.call(mma_async_, acc, a, b, *condition, trans_a=trans_a, trans_b=trans_b, dtype=dtype, precision=precision,
                  options=options)


def _condition(g: Builder, acc, accumulate) -> Operand:
    """`accumulate` as a bool. CompilationError unless it is an integer condition, uniform over the scope, and there
    is an accumulator."""
    if not isinstance(type_of(accumulate), Scalar) or type_of(accumulate).dtype.is_float:
        raise g.error(f"accumulate is a condition, as k > 0, not {describe(accumulate)}")
    if acc is None:
        raise g.error("without an accumulator the product begins at zero: there is nothing to accumulate in")
    if type_of(accumulate).uniform < g.scope.uniformity:
        raise g.error(f"the threads of the {g.scope.kind} share this mma_async, "
                      "so accumulate must be the same for all of them")
    return as_condition(g, accumulate)


def _options(g: Builder, variant, negate) -> dict:
    if not isinstance(negate, bool):
        raise g.error(f"negate is True or False, known at compile time, not {describe(negate)}")
    return {"variant": asked_variant(g, variant, NAMES)} | ({"negate": True} if negate else {})


def _operand(g: Builder, x, name: str, registers: bool) -> Value:
    t = type_of(x)
    if isinstance(t, (Buffer, Region)) and t.scope == "shared":
        x = whole_region(g, x)
        refuse_packed(g, "mma_async into registers", x.type.dtype)
    elif not (registers and isinstance(t, Tile)):
        raise g.error(f"{name} is a matrix in shared memory{' or a register tile' if registers else ''}, "
                      f"not {describe(x)}")
    if len(x.type.shape) != 2:
        raise g.error(f"{name} is a matrix of two dimensions, not of shape {list(x.type.shape)}; index the others")
    if isinstance(x.type, Region):
        g.require_uniform("this mma_async", *g.definitions[x].args[1:])
    return x


def _dtype(g: Builder, acc, operand: DType, asked) -> DType:
    if asked is None:
        if isinstance(type_of(acc), Tile):
            return acc.type.dtype
        return int32 if operand.is_int else float32
    asked = dtype_of(asked)
    if asked not in (float32, float16, int32):
        raise g.error(f"an accumulator is float32, float16 or int32, not {asked}")
    return asked


# -- groups ------------------------------------------------------------------------------------------------------------

@op("syncs", collective=True)
def mma_commit():
    """Close the group of all products that the scope has started since its last group (``wgmma.commit_group``)."""


@op("syncs", attrs=("n",), collective=True, traits=Traits(waits=True))
def mma_wait(n=0):
    """Wait until at most the last `n` groups of products are pending (``wgmma.wait_group``). The results of the
    others may then be read, and their operands overwritten."""


def _of_warpgroups(g, call) -> None:
    """CompilationError if the target or the scope has no wgmma groups. Checked late,
    so that errors of the products come first."""
    if g.target != "sm_90a":
        raise CompilationError(f"{call.op.name} belongs to wgmma, which needs sm_90a, and the target is {g.target}: "
                               "tile.dot multiplies on every target, and "
                               "tile.tcgen05_commit(bar) signals the end of products into tensor memory")
    if g.scope.kind not in ("cta", "warpgroup") or g.scope.threads % 128:
        scope = f"a {g.scope.kind} of {g.scope.threads} threads" if g.scope.threads > 1 else "one thread"
        raise CompilationError(f"{call.op.name} needs whole warpgroups, as mma_async does, not {scope}")


mma_commit.rules.check = mma_wait.rules.check = _of_warpgroups


@op("syncs", collective=True)
def basic_block_end():
    """The end of a basic block for ptxas, which moves no arithmetic across it."""


@op("pure")
def renewed(x):
    """An accumulator tile copied to new registers by ordinary instructions, so that ptxas sees one writer before a
    loop of products."""


@renewed.infer
def _(g, x):
    return x.type


@renewed.simulate
def _(m, call, x):
    return x


@renewed.emit
def _(e, call, x):
    return e.mma.renew(call)


@mma_commit.infer
def _(g):
    collective(g, "mma_commit")


@mma_wait.infer
def _(g, n):
    collective(g, "mma_wait")
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= GROUPS:
        raise g.error(f"the number of groups that may stay pending is a constant from 0 to {GROUPS}, not {describe(n)}"
                      + g.declared_constant(n))


@basic_block_end.infer
def _(g):
    pass


@basic_block_end.simulate
def _(m, call):
    pass


# a loop that never runs, which ptxas cannot prove: it would drop an empty one, and turn a branch into predicates
NEVER = ("{ .reg .pred p; .reg .b32 n; mov.u32 n, %nctaid.x; setp.ne.u32 p, n, 0; "
         "L: @p bra E; nanosleep.u32 20; bra L; E: }")


@basic_block_end.emit
def _(e, call):
    e.asm(NEVER, convergent=True)


@mma_commit.simulate
def _(m, call):
    m.engines.commit("wgmma")


@mma_wait.simulate
def _(m, call):
    m.engines.wait_groups("wgmma", call.attrs["n"])


@mma_commit.emit
def _(e, call):
    e.asm("wgmma.commit_group.sync.aligned;", convergent=True)


@mma_wait.emit
def _(e, call):
    e.asm(f"wgmma.wait_group.sync.aligned {call.attrs['n']};", convergent=True)
