"""Tensor maps that the kernel edits: how they are seeded, rebound and published.

The fences before the copies that use them are here too.

A map with a slot starts as a copy of the map that the launch encodes, and is then rebound to another array. Threads
write it through the generic proxy, and copies read it through the tensormap proxy. So the writing threads must
release it, and the threads that issue copies acquire it. PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy",
"fence.proxy.tensormap" and "Memory Consistency Model: Proxies".
"""

from __future__ import annotations

from .....dtypes import int32, int64
from .....errors import CompilationError
from .....ir.builder import Builder, buffer_type, describe, element_type, source_text, type_as, type_of
from .....ir.builtin import builtin, method
from .....ir.graph import Call, Const, Value
from .....ir.op import op
from .....ir.op_traits import Reads, Registers, Traits, Writes
from .....lazy import Lazy
from .....types import Addressed, Buffer, Region, Scalar, Sym, TensorMap, Tile, strides_of
from ....language.operators import binary
from ....language.promotion import convert, uniform_scalar
from ....language.sizes import array_call, extent_value, size_of
from ....memory.regions import index
from ....sync.barriers import FENCE_SCOPES
from .tensor_map import host_born, in_steps

ptx = Lazy("tilejit.ptx")  # the instruction table; only kernels that name a form load it

# Properties of a map that rebind does not change: the field of ``tensormap.replace`` that would (None: there is
# none), and the reason.
_KEPT = {
    "dtype": ("elemtype", "coordinates, sizes and the byte counts of barriers are based on it"),
    "box": ("box_dim", "every copy by the map is planned in whole boxes of it, whose bytes are announced"),
    "swizzle": ("swizzle_mode", "the shared buffers of its copies are laid out by it"),
    "swizzle_atomicity": ("swizzle_atomicity", "the shared buffers of its copies are laid out in units of 16 bytes"),
    "fill": ("fill_mode", "its copies are planned to read it out of bounds"),
    "interleave": ("interleave_layout", "its copies are planned for arrays without one"),
    "element_strides": ("element_stride", "its boxes are planned without gaps"),
    "rank": ("rank", "its copies give as many coordinates"),
    "l2_promotion": (None, "the launch has encoded it"),
}


# -- edits -------------------------------------------------------------------------------------------------------------

def _type_of_own_map(g: Builder, m: Value, what: str) -> TensorMap:
    """The type of a map that the kernel edits. An error for a map that is a kernel parameter, which is read-only."""
    t = type_as(m, TensorMap)
    if t.slot is None:
        raise g.error(f"{what} is for a map that the kernel makes: this one is a parameter, "
                      "which the launch encodes and nothing may write; give tile.tensor_map a slot=")
    return t


@op("writes")
def map_seed(map: Reads):
    """Copy the 128 bytes of the map that the launch encodes to the slot of `map`."""


@op("writes", attrs=("rank",), traits=Traits(accesses=2))
def map_rebind(map: Reads, place: Writes, *numbers: Registers, rank):
    """Bind a map to another array. `numbers` are its `rank` dimensions and ``rank - 1`` strides in bytes,
    innermost first."""


@op("syncs", attrs=("scope",))
def map_release(map: Reads, scope):
    """Order the thread's edits of a map before copies by threads that acquire it."""


@op("syncs", attrs=("scope",))
def map_acquire(map: Reads, scope):
    """Make the released edits of a map visible to the copies that follow."""


@op("syncs", attrs=("scope",))
def map_publish(map: Reads, scope):
    """Copy the 128 bytes of a map from shared memory to its slot, by one warp, and release it."""


@op("pure")
def map_prefetch(map):
    """Prefetch a map into the cache from which copies read it."""


def _call_methods(declared, machine, emitter) -> None:
    """Register the rules of an op that is one method of the simulator and one of the emitter."""
    @declared.infer
    def _(g, *operands, **attrs):
        return None

    @declared.simulate
    def _(m, call, *args):
        return machine(m)(*args, **{k: v for k, v in call.attrs.items() if k != "rank"})

    @declared.emit
    def _(e, call, *args):
        emitter(e)(*args, **{k: v for k, v in call.attrs.items() if k != "rank"})


_call_methods(map_seed, lambda m: m.maps.seed, lambda e: e.maps.seed)
_call_methods(map_rebind, lambda m: m.maps.rebind, lambda e: e.maps.rebind)
_call_methods(map_release, lambda m: m.maps.release, lambda e: e.maps.release)
_call_methods(map_acquire, lambda m: m.maps.acquire, lambda e: e.maps.acquire)
_call_methods(map_publish, lambda m: m.maps.publish, lambda e: e.maps.publish)
_call_methods(map_prefetch, lambda m: m.maps.prefetch, lambda e: e.maps.prefetch)
# If copies write by the map, they write the array that it is bound to.
@map_rebind.written
def _(call,
                            mapped):
    return [call.args[1]] if mapped and isinstance(type_of(call.args[1]), Region) else []


def _whole_granules(context, call: Call) -> None:
    """Check that the rows of an array that copies store to by a map are provably multiples of 16 bytes.

    The TMA unit clips the rows of a store only at multiples of 16 bytes.
    """
    map_, nbytes = call.args[0], element_type(call.args[0]).nbytes
    copies = (c for c in context.calls if c.op.traits.copy and c.op.traits.asynchronous)
    stored = any(buffer_type(c.args[0]).map is not None and context.definition(c.args[0]).args[0] is map_
                 for c in copies)
    if not stored or 16 % nbytes or nbytes == 16:
        return
    if call.op is map_rebind:
        columns = call.args[2]
    elif any(c.op is map_rebind and c.args[0] is map_ for c in context.calls):
        return
    else:
        columns = type_as(map_, TensorMap).array.shape[-1]
    if isinstance(columns, Value) and context.definition(columns).op is size_of:
        size = context.definition(columns).attrs["sym"]
    else:
        size = columns
    if isinstance(size, Sym):
        fits = context.facts.ask("size_multiple", size.arg, size.dim, 16 // nbytes)
    else:
        fits = (size if isinstance(size, int) else context.divisor(size)) % (16 // nbytes) == 0
    if not fits:
        name = columns.name if isinstance(columns, Value) else "columns"
        raise CompilationError("copies store by this map, and a store clips rows in steps of 16 bytes: "
                               f"its last dimension must be known to be a multiple of {16 // nbytes} elements, "
                               f"as tile.assume({name} % {16 // nbytes} == 0) promises", call.loc)
    return


map_seed.rules.plan = map_rebind.rules.plan = _whole_granules


@method(TensorMap)
def seed(g: Builder, m: Value):
    """Initialise the map as a copy of the one that the launch encodes.
    The first thread of the scope writes its 128 bytes."""
    _type_of_own_map(g, m, "seed")
    g.call(map_seed, m)


@method(TensorMap)
def rebind(g: Builder, m: Value, array, shape=None, strides=None, **changes):
    """Bind the map to another array: change its address, dimensions and strides, and nothing else
    (``tensormap.replace``).

    `array` is an array of the same dtype and rank. It may also be an element of an array, as ``storage[start]``, or a
    64-bit integer address; then give `shape` (with the map's rank) and optionally `strides` (in elements, the last
    one 1; by default those of a contiguous array). The address and the strides must be multiples of 16 bytes, and
    extents at least 1. The first thread of the scope writes the map, and copies see the change after
    ``fence_release`` and ``fence_acquire``. The error for other fields says why they cannot be changed, and which
    instruction writes them.
    """
    t = _type_of_own_map(g, m, "rebind")
    for name in changes:
        _refuse(g, t, name)
    host_born(g, array, "rebind takes an array, or an address with shape= and strides=")
    rank = len(t.array.shape)
    if isinstance(type_of(array), Buffer) and array.type.narrowed is not None:
        raise g.error("a tensor map has the bounds of a whole array, and this is a window: name the array, "
                      "or a place in it with a shape")
    if isinstance(type_of(array), Buffer) and shape is None and strides is None:
        by_address = isinstance(array.type.arg, Addressed)
        place, shape, strides = (_whole_addressed if by_address else _whole_array)(g, t, array)
    else:
        place, shape, strides = _check_given(g, t, array, shape, strides)
    numbers = [_number(g, n, int32) for n in reversed(shape)]
    numbers += [_bytes(g, s, t.dtype.nbytes) for s in list(reversed(strides))[1:]]
    g.call(map_rebind, m, place, *numbers, rank=rank)


def _refuse(g: Builder, t: TensorMap, name: str):
    """Raise the error for a field that rebind does not change."""
    if name not in _KEPT:
        raise g.error(f"rebind has no option {name!r}; it takes an array, or an address with shape= and strides=")
    raise g.error(f"rebind gives a map another address, other dimensions and strides; its {name} stays, "
                  f"since {_explain_kept(g, t, name)}")


def _explain_kept(g: Builder, t: TensorMap, name: str) -> str:
    """In words, why rebind does not change a field, and which instruction of the target does."""
    field, why = _KEPT[name]
    if field is None:
        return f"{why}, and no instruction changes it"
    row = ptx.form(f"tensormap.replace.tile.{field}.{'shared::cta' if t.slot == 'shared' else 'global'}.b1024.b32")
    call = f"tile.ptx.{ptx.python_name(row)}(m, {', '.join(o.name for o in row.inputs[1:])})"
    if not row.exists_on(g.target):
        return f"{why}; {row.name}, which writes it, exists on {', '.join(row.targets)}, not on {g.target}"
    return f"{why}. {call} writes that field, with nothing checked"


def _whole_array(g: Builder, t: TensorMap, array: Value) -> tuple:
    """Address, shape and strides of an array. The alignment that a map needs becomes a guard of the launch."""
    a, rank = _checked_array(g, t, array), len(t.array.shape)
    if not g.facts.ask("aligned", a.arg, 16):
        raise g.error(f"{array.name} does not start at a multiple of 16 bytes, as a tensor map's array does")
    strides = strides_of(a)
    if strides[-1] != 1 or not all(in_steps(s, t.dtype.nbytes, g.facts.ask) for s in strides[:-1]):
        raise g.error(f"the last stride of {array.name} must be 1, and the others multiples of 16 bytes that are not "
                      "negative: they are not")
    place = index(g, array, (0,) * rank)
    return place, [extent_value(g, array, n) for n in a.shape], [extent_value(g, array, s) for s in strides]


def _whole_addressed(g: Builder, t: TensorMap, array: Value) -> tuple:
    """Address, shape and strides of an array that the kernel makes from an address, checked."""
    _checked_array(g, t, array)
    rank, (address, *given) = len(t.array.shape), array_call(g, array).args
    numbers = tuple(n.value if isinstance(n, Const) else n for n in given)
    return _check_given(g, t, address, numbers[:rank], numbers[rank:])


def _checked_array(g: Builder, t: TensorMap, array: Value) -> Buffer:
    """The type of an array that a map may be bound to."""
    a, rank = type_as(array, Buffer), len(t.array.shape)
    if a.scope != "global" or a.map is not None:
        raise g.error(f"a tensor map is of an array in global memory, not of {describe(array)}")
    if a.dtype != t.dtype:
        _wrong_dtype(g, t, a.dtype)
    if len(a.shape) != rank:
        raise g.error(f"this map has {rank} dimensions, and {describe(array)} has {len(a.shape)}; its rank stays, "
                      f"since {_explain_kept(g, t, 'rank')}")
    return a


def _wrong_dtype(g: Builder, t: TensorMap, dtype):
    raise g.error(f"this map moves {t.dtype}, and the array holds {dtype}; its dtype stays, "
                  f"since {_explain_kept(g, t, 'dtype')}")


def _check_given(g: Builder, t: TensorMap, place, shape, strides) -> tuple:
    """Address, shape and strides as the caller gave them, checked."""
    place = _address(g, t, place)
    rank = len(t.array.shape)
    for what, values in (("shape", shape), *([("strides", strides)] if strides is not None else [])):
        if not isinstance(values, tuple) or len(values) != rank:
            if values is None:
                given = "none"
            else:
                given = str(len(values)) if isinstance(values, tuple) else describe(values)
            raise g.error(f"{what} has {rank} entries, as the map has dimensions, not {given}; its rank stays, "
                          f"since {_explain_kept(g, t, 'rank')}")
    if strides is None:
        strides = _row_major(g, shape)
    last = strides[-1].value if isinstance(strides[-1], Const) else strides[-1]
    if last != 1 or isinstance(last, bool):
        raise g.error("the last stride of a tensor map's array is 1, the constant: a map has no field for it")
    for n in (*shape, *strides):
        if not _is_size(n):
            raise g.error(f"shape and strides are integers of at least 0, not {describe(n)}")
    if any(isinstance(n, int) and n < 1 for n in shape):
        raise g.error("a tensor map's array has elements: its shape has a 0; leave such a copy out")
    for s in (s.value if isinstance(s, Const) else s for s in strides[:-1]):
        if isinstance(s, int) and (s * t.dtype.nbytes % 16 or s * t.dtype.nbytes >= 1 << 40):
            raise g.error(f"strides of a tensor map are multiples of 16 bytes ({16 // t.dtype.nbytes} elements of "
                          f"{t.dtype}) below 2^40, and one of these is {s} elements")
    return place, list(shape), list(strides)


def _address(g: Builder, t: TensorMap, place) -> Value:
    """The address to which a map is bound: a region of an array of its dtype, or a 64-bit integer."""
    kind = type_of(place)
    if isinstance(kind, Scalar) and kind.dtype.is_int and kind.dtype.bits == 64 and isinstance(place, Value):
        return _number(g, place, int64)
    in_array = isinstance(kind, Region) and kind.scope == "global" and kind.buffer.map is None
    if not in_array and not (isinstance(kind, Buffer) and kind.scope == "global"):
        raise g.error("rebind takes an array, a place in one as storage[start], or a 64-bit address, "
                      f"not {describe(place)}")
    if kind.dtype != t.dtype:
        _wrong_dtype(g, t, kind.dtype)
    if isinstance(kind, Buffer):
        place = index(g, place, (0,) * len(kind.shape))
    if g.scope.partial is None:
        g.require_uniform("this rebind", *g.definitions[place].args[1:])
    return place


def _is_size(n) -> bool:
    """Whether `n` may be a size or a stride: a constant integer of at least 0, or a run-time integer."""
    if isinstance(n, int):
        return n >= 0 and not isinstance(n, bool)
    kind = type_of(n)
    # a buffer of integers is rejected later, by `_number`
    return kind is not None and not isinstance(kind, Tile) and kind.dtype.is_int


def _row_major(g: Builder, shape: tuple) -> tuple:
    strides: list = [1]
    for n in reversed(shape[1:]):
        inner = strides[0]
        if isinstance(n, int) and isinstance(inner, int):
            strides.insert(0, n * inner)
        elif isinstance(inner, int) and inner == 1:
            strides.insert(0, n)
        else:
            strides.insert(0, binary(g, "*", _as_int64(g, inner), n))
    return tuple(strides)


def _as_int64(g: Builder, n):
    return convert(g, n, int64) if isinstance(n, Value) else n


def _number(g: Builder, n, dtype):
    """A number as an operand. It must be uniform over the scope, unless the threads have diverged:
    then each has its own."""
    if g.scope.partial is not None:
        return convert(g, n, dtype)
    return uniform_scalar(g, n, "what a map is rebound to", dtype)


def _bytes(g: Builder, stride, nbytes: int):
    if isinstance(stride, (int, Const)):
        return Const((stride if isinstance(stride, int) else stride.value) * nbytes, int64)
    return _number(g, binary(g, "*", convert(g, stride, int64), nbytes), int64)


# -- fences ------------------------------------------------------------------------------------------------------------

def _fence_scope(g: Builder, scope) -> str:
    if scope not in FENCE_SCOPES:
        raise g.error(f"a fence's scope is one of {', '.join(FENCE_SCOPES)}, not {scope!r}")
    return scope


@method(TensorMap)
def fence_release(g: Builder, m: Value, scope="gpu"):
    """Order each thread's edits of the map before copies by threads that acquire it
    (``fence.proxy.tensormap``, release).

    `scope` says where those threads may be: in the same "cta", "cluster" or "gpu" (also in a later kernel), or on
    another device ("sys").
    """
    if _type_of_own_map(g, m, "fence_release").slot == "shared":
        raise g.error("a map that is edited in shared memory is released by .publish(scope), "
                      "which copies it to global memory, where copies read it")
    g.call(map_release, m, scope=_fence_scope(g, scope))


@method(TensorMap)
def fence_acquire(g: Builder, m: Value, scope="gpu"):
    """Make released edits of the map visible to later copies by these threads (``fence.proxy.tensormap``, acquire).

    `scope` says where the thread that edited the map may be: in the same "cta", "cluster" or "gpu" (also in an
    earlier kernel), or on another device ("sys").
    """
    _type_of_own_map(g, m, "fence_acquire")
    g.call(map_acquire, m, scope=_fence_scope(g, scope))


@method(TensorMap)
def publish(g: Builder, m: Value, scope="gpu"):
    """Copy the map from shared memory to its slot and release it (``tensormap.cp_fenceproxy``).

    The first warp of the scope executes this instruction, between two barriers of the scope.
    """
    if _type_of_own_map(g, m, "publish").slot != "shared":
        raise g.error('publish is for a map that is edited in shared memory, made with edit="shared"; '
                      'one in global memory is released by .fence_release(scope)')
    if g.scope.partial is not None or g.scope.threads < 32:
        if g.scope.partial is not None:
            few = f"the condition {source_text(g.scope.partial)} differs between them"
        else:
            few = f"this scope has {g.scope.threads}"
        raise g.error(f"publish copies 4 bytes by each of the 32 threads of a warp, and {few}: "
                      "call it at the scope of a warp or wider")
    g.call(map_publish, m, scope=_fence_scope(g, scope))


@method(TensorMap)
def prefetch(g: Builder, m: Value):
    """Prefetch the map into the cache from which copies read it (``prefetch.tensormap``)."""
    g.call(map_prefetch, m)


@builtin
def fence_proxy_tensormap(g: Builder, kind, m, scope="gpu"):
    """``m.fence_release(scope)`` if `kind` is "release", ``m.fence_acquire(scope)`` if it is "acquire"."""
    if kind not in ("release", "acquire"):
        raise g.error(f"kind is 'release' or 'acquire', not {kind!r}")
    if not isinstance(type_of(m), TensorMap):
        raise g.error(f"this fence takes a tensor map, not {describe(m)}")
    (fence_release if kind == "release" else fence_acquire)(g, m, scope)


__all__ = ["fence_proxy_tensormap"]
