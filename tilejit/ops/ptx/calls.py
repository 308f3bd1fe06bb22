"""``tile.ptx.<form>(...)``: one PTX instruction, executed by every thread of the scope that reaches it.

The form's row in the table gives the operands, the types of the results, the targets and the effect on memory. Like
`asm`, instructions that access memory or order threads are not moved with respect to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...dtypes import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ...errors import SimulationError
from ...ir.builder import (
    Builder,
    describe,
    element_type,
    extents_of,
    number_type,
    source_text,
    type_as,
    type_of,
)
from ...ir.graph import Call, Const, Operand, Value
from ...ir.machine_protocol import Wait
from ...ir.op import Op, op
from ...ir.op_traits import Traits, Writes
from ...lazy import Lazy
from ...types import BarrierRef, Buffer, Region, Scalar, TensorMap, Tile, Uniformity
from ..language.promotion import broadcast_shape, fit_constant, number, spread
from ..memory.regions import index, whole_region
from ..sync.proxies import ANYWHERE
from ..tiles.elementwise import result_type
from .meanings import meaning

ptx = Lazy("tilejit.ptx")  # the instruction table; only kernels that name a form load it

_WORDS = {8: (uint8, int8, float8_e4m3fn, float8_e5m2), 16: (uint16, int16), 32: (uint32, int32), 64: (uint64, int64)}
_BITS = {16: (*_WORDS[16], float16, bfloat16), 32: (*_WORDS[32], float32), 64: (*_WORDS[64], float64)}

# The dtypes accepted for an operand of a PTX type; results have the first one. A packed pair is passed as the word that
# holds it, and 128 bits as a pair (low, high) of 64-bit values.
DTYPES: dict[str, tuple[DType, ...]] = {
    "b8": _WORDS[8], "u8": (uint8, int8), "s8": (int8, uint8), "b16": _BITS[16], "b32": _BITS[32], "b64": _BITS[64],
    "b128": _BITS[64], "u16": (uint16, int16), "s16": (int16, uint16), "u32": (uint32, int32), "s32": (int32, uint32),
    "u64": (uint64, int64), "s64": (int64, uint64), "f16": (float16, *_WORDS[16]), "bf16": (bfloat16, *_WORDS[16]),
    "f32": (float32,), "f64": (float64,),
    "f16x2": _WORDS[32], "bf16x2": _WORDS[32], "f32x2": _WORDS[64], "tf32": _BITS[32], "pred": (bool_,),
}

#: In words, what is accepted for an address of each space.
PLACES = {
    "shared": "an element of the CTA's own shared memory, or a barrier",
    "cluster": "an element of shared memory or a barrier, the CTA's own or a peer's",
    "global": "an element of an array", "generic": "an element of an array or of shared memory",
    "tmem": "a tensor-memory address", "map": "a tensor map, or the place of one in global memory",
}

_ATTRS = ("form", "slots", "imm", "simulate")


def _declare(name: str, effect: str, doc: str) -> Op:
    """Declare the op for the forms with one kind of effect. Its `slots` are pairs (operand's name, number of
    arguments it takes)."""
    def declaration(*operands: Writes, form, slots, imm, simulate): ...
    declaration.__name__, declaration.__doc__ = name, doc
    declared = op(effect, attrs=_ATTRS, traits=Traits(instruction=True))(declaration)
    declared.infer(_infer)
    declared.simulate(_simulate)
    declared.emit(_emit)
    declared.rules.written = _written_places
    declared.rules.stores_by_map = _stores_by_map
    declared.rules.by_threads = _by_threads
    declared.rules.by_engines = _by_engines
    return declared


def _form(name: str):
    return ptx.form(name)


# -- the call ----------------------------------------------------------------------------------------------------------

def call(g: Builder, name, args: tuple, kwargs: dict):
    """Call the instruction `name`, such as ``tile.ptx.mapa.u64``. Operands are given in the row's order, or by name.

    A register operand is a number or a scalar, a vector a tuple of them, an address an element of memory or an
    integer, and an immediate a constant. The simulator calls ``simulate=``, a function of NumPy arrays, in place of
    the instruction. A result is a scalar, or for a vector a tuple of scalars; several results are a tuple.
    """
    form = name.form
    simulate = kwargs.pop("simulate", None)
    if not form.exists_on(g.target):
        raise g.error(f"{form.name} exists on {', '.join(form.targets)}, not on {g.target}")
    if simulate is not None and not callable(simulate):
        raise g.error(f"simulate is a function of arrays, not {describe(simulate)}")
    given = _bound(g, form, args, kwargs)
    _check_scope(g, form)
    _check_barrier(g, form, given.get("id"))
    operands, slots, imm = [], [], []
    for operand in form.inputs:
        if operand.kind == "imm":
            imm.append((operand.name, _immediate(g, form, operand, given[operand.name])))
            continue
        values = _values(g, form, operand, given[operand.name])
        slots.append((operand.name, len(values)))
        operands += values
    tiles = [x for x in operands if isinstance(type_of(x), Tile)]
    if tiles:
        if (form.effect != "pure" or form.is_convergent or any(o.kind == "address" for o in form.operands)
            or len(form.results) != 1):
            raise g.error(f"{form.name} takes scalars, one in each thread: "
                          "of tiles only what computes element by element can be taken")
        shape = broadcast_shape(g, *(number_type(x) for x in operands))
        operands = [spread(g, x, shape) for x in operands]
    declared = OPS[form.effect]
    results = g.call(declared, *operands, form=form.name, slots=tuple(slots), imm=tuple(imm), simulate=simulate,
                     name=form.mnemonic.split(".")[0])
    return _structure_results(form, results)


def _bound(g: Builder, form, args: tuple, kwargs: dict) -> dict:
    """The operands by name. An error for missing, superfluous and unknown operands."""
    names = [o.name for o in form.inputs]
    takes = f"it takes {', '.join(names) or 'no operands'}"
    if len(args) > len(names):
        raise g.error(f"{form.name} was given {len(args)} operands; {takes}")
    given = dict(zip(names, args))
    for name, value in kwargs.items():
        if name not in names:
            raise g.error(f"{form.name} has no operand {name!r}; {takes}")
        if name in given:
            raise g.error(f"{form.name} was given {name} twice")
        given[name] = value
    for operand in form.inputs:
        if operand.name not in given:
            raise g.error(f"{form.name}: operand {operand.name} is missing, {_needs(operand)}; {takes}")
    return given


HARDWARE_BARRIERS = 16  # of a CTA (PTX ISA, "barrier"); a number beyond is a fault at run time


def _check_barrier(g: Builder, form, number) -> None:
    """CompilationError if a constant `number` is not that of one of the CTA's barriers."""
    number = number.value if isinstance(number, Const) else number
    if (form.name.startswith(("bar.", "barrier.")) and isinstance(number, int)
        and number not in range(HARDWARE_BARRIERS)):
        raise g.error(f"{form.name}: a CTA has the barriers 0 to {HARDWARE_BARRIERS - 1}, not {number}")


def _check_scope(g: Builder, form) -> None:
    """CompilationError if a form that a whole warp or warpgroup must execute together is called by only
    some of its threads. A barrier of the CTA counts warps: those of them that a condition picks may meet there."""
    head = form.mnemonic.split(".")[0]
    masked = any(o.name == "membermask" for o in form.inputs)  # which lanes take part; the simulator checks it
    together = "aligned" in form.mnemonic.split(".") or head == "bar" and not masked
    threads = 128 if head == "wgmma" or head == "setmaxnreg" else 32
    partial = g.scope.partial
    if partial is not None and head == "bar" and type_as(partial, Scalar).uniform >= Uniformity.WARP:
        partial = None
    if together and (partial is not None or g.scope.threads < threads):
        few = f"this scope has {g.scope.threads}"
        if partial is not None:
            few = f"the condition {source_text(partial)} differs between those of this scope"
        raise g.error(f"{form.name} is executed by all {threads} threads of a "
                      f"{'warpgroup' if threads == 128 else 'warp'} together, and {few}")


def _needs(operand) -> str:
    """In words, what is accepted for an operand."""
    if operand.kind == "imm":
        return f"an immediate: {operand.values}"
    one = PLACES[operand.space] if operand.kind == "address" else f"a .{operand.type} value"
    one += f" ({', '.join(d.name for d in _dtypes(operand))})"
    return one if operand.count is None else f"{operand.count} values, each {one}"


def _dtypes(operand) -> tuple[DType, ...]:
    if operand.kind == "address":
        return _WORDS[32 if operand.register.llvm == "i32" else 64]
    return DTYPES[operand.type]


def _immediate(g: Builder, form, operand, value):
    several = value if isinstance(value, tuple) else (value,)
    several = tuple(v.value if isinstance(v, Const) else v for v in several)
    if (len(several) != (operand.count or 1)
        or any(isinstance(v, bool) or not isinstance(v, int) or v not in operand.values for v in several)):
        shown = describe(value) if isinstance(value, Value) else repr(value)
        raise g.error(f"{form.name}: operand {operand.name} needs {_needs(operand)}, not {shown}")
    return several if operand.count is not None else several[0]


def _values(g: Builder, form, operand, given) -> list[Operand]:
    """The operands of the graph for one operand of the form."""
    def operand_error(x):
        return g.error(f"{form.name}: operand {operand.name} needs {_needs(operand)}, not {describe(x)}")
    if operand.kind == "address":
        return [_address(g, form, operand, given, operand_error)]
    parts = given if operand.count is not None else (given,)
    if not isinstance(parts, Sequence) or isinstance(parts, str) or len(parts) != (operand.count or 1):
        raise g.error(f"{form.name}: operand {operand.name} needs {_needs(operand)}, not "
                      f"{len(parts) if isinstance(parts, tuple) else describe(given)}"
                      + (" values" if isinstance(parts, tuple) else ""))
    if operand.type != "b128":
        return [_register(g, operand, x, operand_error) for x in parts]
    words = []
    for x in parts:
        if not isinstance(x, tuple) or len(x) != 2:
            raise g.error(f"{form.name}: operand {operand.name} is 128 bits: a pair (low, high) of 64-bit values, "
                          f"not {describe(x)}")
        words += [_register(g, operand, half, operand_error) for half in x]
    return words


def _register(g: Builder, operand, x, wrong) -> Operand:
    dtypes = DTYPES[operand.type]
    if isinstance(x, (bool, int, float)):
        return Const(_constant(g, x, dtypes[0], wrong), dtypes[0])
    t = type_of(x)
    if not isinstance(t, (Scalar, Tile)) or number(g, x).dtype not in dtypes:
        raise wrong(x)
    return x


def _constant(g: Builder, x, dtype: DType, wrong):
    """A Python number as a constant. For unsigned dtypes, a negative number is converted to its two's complement."""
    if isinstance(x, float) and not dtype.is_float or isinstance(x, bool) != (dtype == bool_):
        raise wrong(x)
    if dtype.kind == "uint" and -(1 << dtype.bits - 1) <= x < 0:
        return x + (1 << dtype.bits)
    return fit_constant(g, x, dtype)


def _address(g: Builder, form, operand, x, wrong) -> Operand:
    t = type_of(x)
    if isinstance(t, Scalar) and isinstance(x, (Value, Const)) and t.dtype in _dtypes(operand):
        return x
    if isinstance(x, int) and not isinstance(x, bool):
        dtype = _dtypes(operand)[0]
        return Const(fit_constant(g, x, dtype), dtype)
    if isinstance(t, TensorMap):
        return _place_of_map(g, form, operand, x, wrong)
    if isinstance(t, Buffer):
        x = whole_region(g, x) if t.scope != "global" else _first_element(g, x)
        t = x.type
    if isinstance(t, Region) and t.buffer.map is not None:
        raise wrong(x)
    peer, scope = False, None
    if isinstance(t, Region):
        peer, scope = t.buffer.peer, t.scope
    elif isinstance(t, BarrierRef):
        peer, scope = t.peer, "shared"
    if operand.space == "map" and scope == "shared":
        raise g.error("a copy reads its tensor map from global, constant or parameter memory, and faults at one in "
                      "shared memory: tensormap.cp_fenceproxy (m.publish) brings it to global memory")
    fits = {"shared": scope == "shared" and not peer, "cluster": scope == "shared", "global": scope == "global",
            "map": scope == "global",
            "generic": scope == "global" or (isinstance(t, Region) and scope == "shared" and not peer)}
    if not fits.get(operand.space, False):
        raise wrong(x)
    return x


def _place_of_map(g: Builder, form, operand, x, wrong) -> Operand:
    """A tensor map as the address of its 128 bytes. Instructions that edit it require the address space where
    the kernel edits it."""
    slot = x.type.slot
    if not form.mnemonic.startswith("tensormap."):
        if operand.space == "map" or form.mnemonic.startswith("fence.proxy.tensormap"):
            return x
        raise wrong(x)
    if slot is None:
        raise g.error(f"{form.name} edits a map that the kernel makes: this one is a parameter, "
                      "which the launch encodes and nothing may write; give tile.tensor_map a slot=")
    if operand.space == "shared" and slot != "shared":
        raise g.error(f'{form.name} edits a map in shared memory, and this one is edited in global memory: '
                      'give tile.tensor_map edit="shared"')
    return x


def _first_element(g: Builder, x: Value) -> Value:
    return index(g, x, (0,) * len(extents_of(x)))


def _written_places(call: Call, _mapped: bool) -> tuple[Value, ...]:
    """The places that an instruction may write: those whose address it takes, unless its row says that it only reads
    there, and for a tensor store the map."""
    if _form(call.attrs["form"]).effect not in ("writes", "syncs"):
        return ()
    return tuple(x for operand, x in _addresses(call) if operand.access != "r" and _may_write(call, operand, x))


def _may_write(call: Call, operand, x: Operand) -> bool:
    """Whether an instruction may write through an address: that of memory, or of the map of a tensor store."""
    if operand.space == "map":
        return isinstance(type_of(x), TensorMap) and _stores_by_map(call)
    return isinstance(type_of(x), Region)


def _addresses(call: Call) -> Iterator[tuple]:
    """(operand of the form, what is given for it) for each address that an instruction takes."""
    row, args = _form(call.attrs["form"]), iter(call.args)
    for name, count in call.attrs["slots"]:
        parts = [next(args) for _ in range(count)]
        if row.operand(name).kind == "address":
            yield row.operand(name), parts[0]


# Forms that access shared memory through the async proxy; and others that do, but only at barriers or in other CTAs,
# which need no fence.
_BULK = ("cp.async.bulk", "cp.reduce.async.bulk")
_NOT_BY_THREADS = (*_BULK, "wgmma", "tcgen05", "mbarrier", "st.async", "red.async")


def _by_threads(call: Call) -> tuple:
    """The places in shared memory that the threads access by an instruction."""
    if call.op.effect == "pure" or call.attrs["form"].startswith(_NOT_BY_THREADS):
        return ()
    return tuple(map(_in_shared, _addresses(call)))


def _by_engines(call: Call) -> tuple:
    """The places in shared memory that an instruction writes, and that it reads, through the async proxy. Matrices
    are named by descriptors."""
    if call.attrs["form"].startswith(("wgmma.mma", "tcgen05.mma", "tcgen05.cp")):
        return (), (ANYWHERE,)
    if not call.attrs["form"].startswith(_BULK):
        return (), ()
    places = [(o.access, _in_shared((o, x))) for o, x in _addresses(call)]
    return tuple(x for access, x in places if access == "w"), tuple(x for access, x in places if access == "r")


def _in_shared(address: tuple) -> Operand:
    """A place in shared memory that an operand names; `ANYWHERE` for an address given as a number;
    something else for other memory."""
    operand, x = address
    return ANYWHERE if operand.space in ("shared", "cluster") and isinstance(type_of(x), Scalar) else x


def _stores_by_map(call: Call) -> bool:
    """Whether a call is a tensor store, which writes the array that its map describes."""
    return (call.attrs["form"].startswith("cp.") and ".tensor." in call.attrs["form"]
            and ".global.shared::cta" in call.attrs["form"])


def _structure_results(form, results):
    """The flat results in the structure of the row: a vector becomes a tuple, and so do several results."""
    if not form.results:
        return None
    flat = iter(results if isinstance(results, tuple) else (results,))
    found = []
    for operand in form.results:
        one = (lambda: (next(flat), next(flat))) if operand.type == "b128" else (lambda: next(flat))
        found.append(one() if operand.count is None else tuple(one() for _ in range(operand.count)))
    return found[0] if len(found) == 1 else tuple(found)


# -- types -------------------------------------------------------------------------------------------------------------

# Prefixes of the special registers that are the same for all threads of a CTA, or of the grid.
_OF_CTA = ("ctaid.", "clusterid.", "cluster_ctaid.", "cluster_ctarank")
_OF_GRID = ("ntid.", "nctaid.", "nclusterid.", "cluster_nctaid.", "cluster_nctarank", "nwarpid", "nsmid",
            "total_smem_size", "dynamic_smem_size", "aggr_smem_size", "gridid", "is_explicit_cluster")


def _infer(g: Builder, *operands, form, slots, imm, simulate):
    row = _form(form)
    dtypes = [d for o in row.results for d in [DTYPES[o.type][0]] * (o.registers * (2 if o.type == "b128" else 1))]
    if not dtypes:
        return None
    if any(isinstance(type_of(x), Tile) for x in operands):
        if len(dtypes) > 1:
            return tuple(result_type(g, d, *operands) for d in dtypes)
        return result_type(g, dtypes[0], *operands)
    uniform = _uniformity(row, operands)
    types = tuple(Scalar(d, uniform) for d in dtypes)
    return types if len(types) > 1 else types[0]


def _uniformity(row, operands) -> Uniformity:
    """The uniformity of results. Pure results are as uniform as the operands; what depends on memory, lanes or clocks
    differs by thread."""
    register = row.name.rpartition("mov.")[2].partition(".")[2] if row.template.count("%") else ""
    if register:
        if register.startswith(_OF_CTA):
            return Uniformity.CTA
        return Uniformity.GRID if register.startswith(_OF_GRID) else Uniformity.THREAD
    if row.effect != "pure" or row.is_convergent or any(not isinstance(type_of(x), Scalar) for x in operands):
        return Uniformity.THREAD
    return min((type_of(x).uniform for x in operands), default=Uniformity.THREAD)


# -- simulation --------------------------------------------------------------------------------------------------------

def _simulate(m, call: Call, *values):
    row, given, left = _form(call.attrs["form"]), dict(call.attrs["imm"]), iter(values)
    for name, count in call.attrs["slots"]:
        operand = row.operand(name)
        parts = [_view_as_operand(operand, next(left)) for _ in range(count)]
        if operand.type == "b128":
            parts = [tuple(parts[i:i + 2]) for i in range(0, count, 2)]
        given[name] = tuple(parts) if operand.count is not None else parts[0]
    if call.attrs["simulate"] is not None:
        results = call.attrs["simulate"](*(_operand_for_simulation(m, given[o.name]) for o in row.inputs))
    else:
        function = meaning(row)
        if function is None:
            raise SimulationError(f"the simulator has no meaning for {row.name}: give simulate=, "
                                  "a function of its operands as arrays which returns its results", call.loc)
        results = function(m, row, given)
    if isinstance(results, Wait) or not call.results:
        return results if isinstance(results, Wait) else None
    flat = _flatten_results(results)
    if len(flat) != len(call.results):
        raise SimulationError(f"{row.name} has {len(call.results)} results, and simulate= returned {len(flat)}",
                              call.loc)
    typed = tuple(_as_dtype(x, element_type(r)) for x, r in zip(flat, call.results))
    return typed if len(typed) > 1 else typed[0]


def _view_as_operand(operand, x):
    """A register's value, viewed as the operand's own dtype. Places in memory are returned as they are."""
    if not isinstance(x, np.ndarray) or operand.kind == "address":
        return x
    own = DTYPES[operand.type][0].np
    return np.ascontiguousarray(x).view(own) if x.dtype != own and x.dtype.itemsize == own.itemsize else x


def _operand_for_simulation(m, x):
    """An operand as it is passed to simulate=: for a place in memory, the element there."""
    if isinstance(x, tuple):
        return tuple(_operand_for_simulation(m, part) for part in x)
    if not hasattr(x, "buffer"):
        return x
    return m.read(x.buffer, tuple(x.starts), atomic=True)


def _flatten_results(results) -> list:
    if isinstance(results, (tuple, list)):
        return [x for part in results for x in _flatten_results(part)]
    return [results]


def _as_dtype(x, dtype: DType) -> np.ndarray:
    x = np.asarray(x)
    return x.reshape(1, 1).astype(dtype.np) if x.ndim == 0 else x.astype(dtype.np, copy=False)


# -- emission ----------------------------------------------------------------------------------------------------------

def _emit(e, call: Call, *args):
    if any(isinstance(a, list) for a in args):
        return [_emit_one(e, call, values)[0] for values in zip(*args)]
    results = _emit_one(e, call, args)
    return results[0] if len(results) == 1 else tuple(results)


def _emit_one(e, call: Call, args) -> list:
    """Emit one inline asm call, with text and constraints from the row."""
    row, imm, values = _form(call.attrs["form"]), dict(call.attrs["imm"]), iter(args)
    registers, offsets = {}, {}
    for name, count in call.attrs["slots"]:
        operand, parts = row.operand(name), [next(values) for _ in range(count)]
        if operand.kind == "address":
            address, offset = e.ptx.address(operand, parts[0])
            registers[name], offsets[name] = [address], offset
        else:
            parts = [e.ptx.widen(*parts[i:i + 2]) for i in range(0, count, 2)] if operand.type == "b128" else parts
            registers[name] = [e.ptx.register(operand, x) for x in parts]
    dtypes = [e.ptx.dtype(o) for o in row.results for _ in range(o.registers)]
    tied = [o for o in row.results if o.role == "inout"]
    first = {o.name: n for o, n in zip(row.results, np.cumsum([0, *(o.registers for o in row.results)]))}
    ties = {int(first[o.name]) + i: v for o in tied for i, v in enumerate(registers[o.name])}
    inputs = [v for o in row.inputs if o.role == "in" and o.kind != "imm" for v in registers[o.name]]
    text = row.asm_text(imm, offsets)
    outs = iter(e.asm(text, dtypes, inputs, ties, pure=row.effect == "pure", convergent=row.is_convergent))
    results = []
    for operand in row.results:
        for _ in range(operand.registers):
            results += e.ptx.result(operand, next(outs), DTYPES[operand.type][0])
    return results


OPS = {
    "pure": _declare("ptx_pure", "pure", "An instruction whose results depend only on its operands."),
    "reads": _declare("ptx_reads", "reads", "An instruction that reads memory."),
    "writes": _declare("ptx_writes", "writes", "An instruction that writes memory, or starts an asynchronous write."),
    "volatile": _declare("ptx_volatile", "syncs",
                         "An instruction that reads or changes machine state, such as a clock or a special register."),
    "warp": _declare("ptx_warp", "syncs", "An instruction that exchanges values among the lanes of a warp."),
    "syncs": _declare("ptx_syncs", "syncs", "An instruction that orders threads or memory accesses."),
}

__all__ = ["DTYPES", "call"]
