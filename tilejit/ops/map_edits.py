"""Tensor maps that the kernel makes: seeded, rebound, published, and fenced before the copies that go by them.

A map with a slot starts as a copy of the launch's, is given another array, and is read by copies in another proxy than the one
that writes it: the writing threads release, whoever copies acquires. PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy",
"fence.proxy.tensormap" and "Memory Consistency Model: Proxies".
"""

from __future__ import annotations

from ..dtypes import int32, int64
from ..errors import CompilationError
from ..ir.builder import Builder, describe, type_of, written
from ..ir.builtin import builtin, method
from ..ir.graph import Call, Const, Value
from ..ir.op import op
from ..types import Buffer, Region, Scalar, Sym, TensorMap, Tile
from .barriers import FENCE_SCOPES
from .language import binary, converted, uniform_scalar
from .regions import index
from .sizes import extent_value
from .tensor_map import host_born, in_steps

# What rebind does not change: the field of ``tensormap.replace`` that does (None: there is none), and why it stays.
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


# -- changing it -----------------------------------------------------------------------------------------------------------

def _own(g: Builder, m, what: str) -> TensorMap:
    """The type of a map that the kernel makes; says why the launch's is not to be changed."""
    t: TensorMap = m.type
    if t.slot is None:
        raise g.error(f"{what} is for a map that the kernel makes: this one is a parameter, which the launch encodes and nothing may write; give "
                      f"tile.tensor_map a slot=")
    return t


@op("writes")
def map_seed(map):
    """Copy the 128 bytes of the map that the launch encodes to the map's slot."""


@op("writes", attrs=("rank",))
def map_rebind(map, place, *numbers, rank):
    """Give a map another array: its address, `rank` dimensions and ``rank - 1`` strides in bytes, innermost first."""


@op("syncs", attrs=("scope",))
def map_release(map, scope):
    """Order the thread's edits of a map before the copies of whoever acquires it."""


@op("syncs", attrs=("scope",))
def map_acquire(map, scope):
    """Let the copies that follow see what was released of a map."""


@op("syncs", attrs=("scope",))
def map_publish(map, scope):
    """Copy a map from shared memory to its slot, all 128 bytes by a warp, and release it."""


@op("pure")
def map_prefetch(map):
    """Fetch a map to where copies look for it."""


def _simple(declared, machine: str, emitter: str) -> None:
    """The rules of an op that is one method of the machine and one of the emitter."""
    @declared.infer
    def _(g, *operands, **attrs):
        return None

    @declared.simulate
    def _(m, call, *args):
        return getattr(m, machine)(*args, **{k: v for k, v in call.attrs.items() if k != "rank"})

    @declared.emit
    def _(e, call, *args):
        getattr(e, emitter)(*args, **{k: v for k, v in call.attrs.items() if k != "rank"})


for _declared in (map_seed, map_rebind, map_release, map_acquire, map_publish, map_prefetch):
    _simple(_declared, _declared.name, _declared.name)
    _declared.rules["written"] = lambda call, mapped: ()
map_rebind.rules["touches"] = 2
# The array that a map is bound to is written by the copies to it, if there are any.
map_rebind.rules["written"] = lambda call, mapped: [call.args[1]] if mapped and isinstance(type_of(call.args[1]), Region) else []


def _whole_granules(context, call: Call) -> None:
    """The engine clips a store's rows in steps of 16 bytes only, so what is stored to has rows of whole ones, provably."""
    map_, nbytes = call.args[0], call.args[0].type.dtype.nbytes
    stored = any(c.op.name == "copy_async" and c.args[0].type.buffer.map is not None and context.definition(c.args[0]).args[0] is map_
                 for c in context.calls)
    if not stored or 16 % nbytes or nbytes == 16:
        return None
    if call.op is map_rebind:
        columns = call.args[2]
    elif any(c.op is map_rebind and c.args[0] is map_ for c in context.calls):
        return None
    else:
        columns = map_.type.array.shape[-1]
    size = context.definition(columns).attrs["sym"] if isinstance(columns, Value) and context.definition(columns).op.name == "size_of" else columns
    if isinstance(size, Sym):
        fits = context.facts.ask("size_multiple", size.arg, size.dim, 16 // nbytes)
    else:
        fits = (size if isinstance(size, int) else context.divisor(size)) % (16 // nbytes) == 0
    if not fits:
        name = columns.name if isinstance(columns, Value) else "columns"
        raise CompilationError("copies store by this map, and a store clips rows in steps of 16 bytes: its last dimension must be known "
                               f"to be a multiple of {16 // nbytes} elements, as tile.assume({name} % {16 // nbytes} == 0) promises", call.loc)
    return None


map_seed.rules["plan"] = map_rebind.rules["plan"] = _whole_granules


@method(TensorMap)
def seed(g: Builder, m):
    """Make the map a copy of the launch's: the first thread of the scope writes its 128 bytes."""
    _own(g, m, "seed")
    g.call(map_seed, m)


@method(TensorMap)
def rebind(g: Builder, m, array, shape=None, strides=None, **changes):
    """Give the map another array: its address, dimensions and strides; everything else stays (``tensormap.replace``).

    `array` is an array of the same dtype and rank; or a place in one, as ``storage[start]``, or the address as a 64-bit
    integer, both with a `shape` (as many extents as the map has) and `strides` (in elements, the last one 1; by default those
    of rows without gaps). The address and the strides are multiples of 16 bytes, extents at least 1. The first thread of the
    scope writes; copies see it after ``fence_release`` and ``fence_acquire``. An error says why another field stays, and which
    raw instruction writes it.
    """
    t = _own(g, m, "rebind")
    for name in changes:
        _refuse(g, t, name)
    host_born(g, array, "rebind takes an array, or an address with shape= and strides=")
    rank = len(t.array.shape)
    if isinstance(type_of(array), Buffer) and array.type.narrowed is not None:
        raise g.error("a tensor map has the bounds of a whole array, and this is a window: name the array, or a place in it with a shape")
    if isinstance(type_of(array), Buffer) and shape is None and strides is None:
        place, shape, strides = _whole_array(g, t, array)
    else:
        place, shape, strides = _given(g, t, array, shape, strides)
    numbers = [_number(g, n, int32) for n in reversed(shape)]
    numbers += [_bytes(g, s, t.dtype.nbytes) for s in list(reversed(strides))[1:]]
    g.call(map_rebind, m, place, *numbers, rank=rank)


def _refuse(g: Builder, t: TensorMap, name: str):
    """Why rebind leaves a field as it is, and the instruction that changes it."""
    if name not in _KEPT:
        raise g.error(f"rebind has no option {name!r}; it takes an array, or an address with shape= and strides=")
    raise g.error(f"rebind gives a map another address, other dimensions and strides; its {name} stays, since {_kept(g, t, name)}")


def _kept(g: Builder, t: TensorMap, name: str) -> str:
    """Why a field stays, and what writes it on the target."""
    from ..ptx import form, python_name
    field, why = _KEPT[name]
    if field is None:
        return f"{why}, and no instruction changes it"
    row = form(f"tensormap.replace.tile.{field}.{'shared::cta' if t.slot == 'shared' else 'global'}.b1024.b32")
    call = f"tile.ptx.{python_name(row)}(m, {', '.join(o.name for o in row.inputs[1:])})"
    if not row.on(g.target):
        return f"{why}; {row.name}, which writes it, exists on {', '.join(row.targets)}, not on {g.target}"
    return f"{why}. {call} writes that field, with nothing checked"


def _whole_array(g: Builder, t: TensorMap, array: Value) -> tuple:
    """Place, shape and strides of an array; facts that a map needs are asked of the launch."""
    a, rank = array.type, len(t.array.shape)
    if a.scope != "global" or a.map is not None:
        raise g.error(f"a tensor map is of an array in global memory, not of {describe(array)}")
    if a.dtype != t.dtype:
        _wrong_dtype(g, t, a.dtype)
    if len(a.shape) != rank:
        raise g.error(f"this map has {rank} dimensions, and {describe(array)} has {len(a.shape)}; its rank stays, since {_kept(g, t, 'rank')}")
    if not g.facts.ask("aligned", a.arg, 16):
        raise g.error(f"{array.name} does not start at a multiple of 16 bytes, as a tensor map's array does")
    if a.strides[-1] != 1 or not all(in_steps(s, t.dtype.nbytes, g.facts.ask) for s in a.strides[:-1]):
        raise g.error(f"the last stride of {array.name} must be 1, and the others multiples of 16 bytes that are not negative: they are not")
    place = index(g, array, (0,) * rank)
    return place, [extent_value(g, array, n) for n in a.shape], [extent_value(g, array, s) for s in a.strides]


def _wrong_dtype(g: Builder, t: TensorMap, dtype):
    raise g.error(f"this map moves {t.dtype}, and the array holds {dtype}; its dtype stays, since {_kept(g, t, 'dtype')}")


def _given(g: Builder, t: TensorMap, place, shape, strides) -> tuple:
    """An address with a shape and strides of one's own."""
    place = _address(g, t, place)
    rank = len(t.array.shape)
    for what, values in (("shape", shape), *([("strides", strides)] if strides is not None else [])):
        if not isinstance(values, tuple) or len(values) != rank:
            given = "none" if values is None else len(values) if isinstance(values, tuple) else describe(values)
            raise g.error(f"{what} has {rank} entries, as the map has dimensions, not {given}; its rank stays, since {_kept(g, t, 'rank')}")
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
    if any(isinstance(s, int) and s * t.dtype.nbytes % 16 for s in strides[:-1]):
        raise g.error(f"strides of a tensor map are multiples of 16 bytes, {16 // t.dtype.nbytes} elements of {t.dtype}, and one of these is not")
    return place, list(shape), list(strides)


def _address(g: Builder, t: TensorMap, place) -> Value:
    """Where a map is to begin: a region of an array of its dtype, or an integer of 64 bits."""
    kind = type_of(place)
    if isinstance(kind, Scalar) and kind.dtype.is_int and kind.dtype.bits == 64 and isinstance(place, Value):
        return _number(g, place, int64)
    in_array = isinstance(kind, Region) and kind.scope == "global" and kind.buffer.map is None
    if not in_array and not (isinstance(kind, Buffer) and kind.scope == "global"):
        raise g.error(f"rebind takes an array, a place in one as storage[start], or a 64-bit address, not {describe(place)}")
    if kind.dtype != t.dtype:
        _wrong_dtype(g, t, kind.dtype)
    if isinstance(kind, Buffer):
        place = index(g, place, (0,) * len(kind.shape))
    if g.scope.partial is None:
        g.shared("this rebind", *g.definitions[place].args[1:])
    return place


def _is_size(n) -> bool:
    """Whether `n` is an integer that may be a size or a stride: known now and at least 0, or known at run time."""
    if isinstance(n, int):
        return n >= 0 and not isinstance(n, bool)
    kind = type_of(n)
    return kind is not None and not isinstance(kind, Tile) and kind.dtype.is_int  # a buffer of them is refused where its value is taken


def _row_major(g: Builder, shape: tuple) -> tuple:
    strides: list = [1]
    for n in reversed(shape[1:]):
        both = isinstance(n, int) and isinstance(strides[0], int)
        one = isinstance(strides[0], int) and strides[0] == 1
        strides.insert(0, n * strides[0] if both else n if one else binary(g, "*", _wide(g, strides[0]), n))
    return tuple(strides)


def _wide(g: Builder, n):
    return converted(g, n, int64) if isinstance(n, Value) else n


def _number(g: Builder, n, dtype):
    """A number as an operand: the same for the scope, or each thread's own where the threads have parted."""
    return converted(g, n, dtype) if g.scope.partial is not None else uniform_scalar(g, n, "what a map is rebound to", dtype)


def _bytes(g: Builder, stride, nbytes: int):
    if isinstance(stride, (int, Const)):
        return Const((stride if isinstance(stride, int) else stride.value) * nbytes, int64)
    return _number(g, binary(g, "*", converted(g, stride, int64), nbytes), int64)


# -- fences ----------------------------------------------------------------------------------------------------------------

def _fence_scope(g: Builder, scope) -> str:
    if scope not in FENCE_SCOPES:
        raise g.error(f"a fence's scope is one of {', '.join(FENCE_SCOPES)}, not {scope!r}")
    return scope


@method(TensorMap)
def fence_release(g: Builder, m, scope="gpu"):
    """Order each thread's edits of the map before the copies of who acquires it (``fence.proxy.tensormap``, release).

    `scope` says how far these copies may be: in the "cta", in the "cluster", on the "gpu" (those of a later kernel too), or on
    another device ("sys").
    """
    if _own(g, m, "fence_release").slot == "shared":
        raise g.error("a map that is edited in shared memory is released by .publish(scope), which copies it to global memory, where copies read it")
    g.call(map_release, m, scope=_fence_scope(g, scope))


@method(TensorMap)
def fence_acquire(g: Builder, m, scope="gpu"):
    """Let the copies that follow in these threads see what was released of the map (``fence.proxy.tensormap``, acquire).

    `scope` says how far the thread that edited it may be: in the "cta", in the "cluster", on the "gpu" (in an earlier kernel
    too), or on another device ("sys").
    """
    _own(g, m, "fence_acquire")
    g.call(map_acquire, m, scope=_fence_scope(g, scope))


@method(TensorMap)
def publish(g: Builder, m, scope="gpu"):
    """Copy the map from shared memory to its slot and release it, in one (``tensormap.cp_fenceproxy``): the first warp of
    the scope does it together, between barriers of the scope."""
    if _own(g, m, "publish").slot != "shared":
        raise g.error('publish is for a map that is edited in shared memory, made with edit="shared"; one in global memory is released '
                      'by .fence_release(scope)')
    if g.scope.partial is not None or g.scope.threads < 32:
        few = f"the condition {written(g.scope.partial)} differs between them" if g.scope.partial is not None else f"this scope has {g.scope.threads}"
        raise g.error(f"publish copies 4 bytes by each of the 32 threads of a warp, and {few}: call it at the scope of a warp or wider")
    g.call(map_publish, m, scope=_fence_scope(g, scope))


@method(TensorMap)
def prefetch(g: Builder, m):
    """Fetch the map to where copies look for it (``prefetch.tensormap``)."""
    g.call(map_prefetch, m)


@builtin
def fence_proxy_tensormap(g: Builder, kind, m, scope="gpu"):
    """``m.fence_release(scope)`` or ``m.fence_acquire(scope)``, as `kind` is "release" or "acquire"."""
    if kind not in ("release", "acquire"):
        raise g.error(f"kind is 'release' or 'acquire', not {kind!r}")
    if not isinstance(type_of(m), TensorMap):
        raise g.error(f"this fence takes a tensor map, not {describe(m)}")
    (fence_release if kind == "release" else fence_acquire)(g, m, scope)


__all__ = ["fence_proxy_tensormap"]
