"""Warns of reductions and scans over loads that may be partly out of bounds.

Without an explicit `other`, such loads give 0 there.

The search goes from a reduced tile back to the loads that it is computed from, and keeps track of the axes that are
reduced: elements that are out of bounds along these axes take part in the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...dtypes import DType, integer_range
from ...ir.builder import Builder, Warning_, as_value, element_type, extents_of, type_as, type_of
from ...ir.graph import Call, Const, Operand, Value
from ...ir.op_rules import require_rule
from ...types import Region, Sym, Tile
from ..tiles import casts, elementwise as ew, generate
from ..tiles.arrange import broadcast, reshape_, transpose_
from .combine import Known
from .reduce import reduce_

Axes = frozenset[int]

MOVED = (casts.cast, reshape_, transpose_, broadcast)
LARGEST_FIRST = ("max", "argmax", "topk", "descending sort", "descending argsort")
SMALLEST_FIRST = ("min", "argmin", "sort", "argsort")
# elements that do not affect a reduction
NEUTRAL = {"sum": 0, "cumsum": 0, "any": 0, "prod": 1, "cumprod": 1, "all": 1}


@dataclass(frozen=True)
class Ragged:
    """A load that is reduced or scanned along `axes` (of the load) and may be out of bounds along them.

    `at_end` says whether its elements out of bounds are also at the end of the axes that are reduced. `direct` says
    whether the load's own elements are reduced, rather than values computed from them.
    """

    region: Value
    axes: Axes
    at_end: bool
    direct: bool


@dataclass(frozen=True)
class Tail:
    """A scan towards the end of an axis, over loads that may reach beyond the end of their arrays along it.

    `scanned` are the results. `loads` are pairs (start index, size of the array) along the axis. `warning` is given
    if elements beyond the end reach a result that is used.
    """

    scanned: tuple[Value, ...]
    axis: int
    loads: tuple[tuple[Operand, int | Sym], ...]
    warning: Warning_


def warn_if_ragged(g: Builder, x: Value, what: str, axes: Iterable[int]) -> None:
    """Warn if elements that are out of bounds along `axes` affect a reduction. Along other axes they only affect
    results of their own.

    They do not where the reduced tile is then computed to be what changes nothing: 0 for a sum, for `any` and for the
    maximum of a tile without negative elements, 1 for a product and for `all`.
    """
    found = next(_ragged_loads(g, x, what, frozenset(axes)), None)
    if found is not None:
        g.warn(_message(g, found, what, x))


def warn_if_scanned_ragged(g: Builder, x: Value, what: str, axis: int, reverse: bool,
                           scanned: tuple[Value, ...]) -> None:
    """`warn_if_ragged` for a scan. If only elements at the end of the axis are out of bounds, a `Tail` is recorded
    instead of a warning.

    A later pass warns if the results at the end of the axis (in `scanned`) are used.
    """
    found = list(_ragged_loads(g, x, what, frozenset([axis])))
    if not found:
        return
    message = _message(g, found[0], what, x)
    if reverse or not all(load.at_end for load in found):
        g.warn(message)
        return
    places = ((load.region, type_as(load.region, Region), a) for load in found for a in load.axes)
    loads = tuple((g.definitions[place].args[1 + t.kept[a]], t.buffer.shape[t.kept[a]]) for place, t, a in places)
    g.state.setdefault("tails", []).append(Tail(scanned, axis, loads, Warning_(message, g.loc)))


def _message(g: Builder, found: Ragged, what: str, x: Value) -> str:
    return (f"{what} over a load that may read out of bounds of {as_value(g.definitions[found.region].args[0]).name}, "
            "where its elements are 0: "
            + _remedy(what, element_type(x), found.direct))


def _ragged_loads(g: Builder, x: Value, what: str, axes: Axes) -> Iterator[Ragged]:
    """The loads that a tile is computed from, and whose elements out of bounds affect a reduction along `axes`."""
    if ((what in NEUTRAL or what == "max" and _not_negative(g, x))
        and _value_outside(g, x, axes) == NEUTRAL.get(what, 0)):
        return
    clean = g.state.setdefault("not_ragged", set())  # what earlier searches found to come from no such load
    seen: set[tuple[Value, Axes, bool]] = set()
    found, queue = False, [(x, axes, True, True)]
    while queue:
        value, axes, at_end, direct = queue.pop()
        if not axes or (value, axes) in clean or (value, axes, at_end) in seen:
            continue
        seen.add((value, axes, at_end))
        call = g.definitions.get(value)
        if call is not None and _reads_outside(g, value, axes):
            found = True
            region = as_value(call.args[0])
            yield Ragged(region, axes, at_end and _ends_with_array(type_as(region, Region), axes), direct)
        elif call is not None and (call.op.rules.element is not None or call.op in (*MOVED, reduce_)):
            before = _axes_before(call, axes)
            kept = (call.op is not reshape_ or sorted(extents_of(call.args[0])[a] for a in before)
                    == sorted(extents_of(value)[a] for a in axes))
            queue += [(as_value(a), before, at_end and kept, direct and call.op in MOVED)
                      for a in call.args if isinstance(type_of(a), Tile)]
    if not found:
        clean.update((value, axes) for value, axes, _ in seen)


def _ends_with_array(t: Region, axes: Axes) -> bool:
    """Whether the bounds of a region's buffer along `axes` are those of its array, and not a window's."""
    bounds = t.buffer.narrowed
    return bounds is None or not any(bounds[t.kept[a]] for a in axes)


def _axes_before(call: Call, axes: Axes) -> Axes:
    """The axes of a call's operands that correspond to `axes` of its results."""
    if call.op is transpose_:
        return frozenset(call.attrs["axes"][a] for a in axes)
    if call.op not in (broadcast, reshape_, reduce_):
        return axes
    shape = extents_of(call.args[0])
    if call.op is broadcast:
        return frozenset(a for a in axes if shape[a] == extents_of(call.result)[a])
    if call.op is reshape_:
        return _before_reshape(shape, extents_of(call.result), axes)
    kept = [d for d in range(len(shape)) if d not in call.attrs["axes"]]
    return axes.intersection(kept) if call.attrs["keepdims"] else frozenset(kept[a] for a in axes)


def _before_reshape(source: tuple[int, ...], target: tuple[int, ...], axes: Axes) -> Axes:
    """The axes of shape `source` that correspond to `axes` of shape `target`.

    Both shapes are cut wherever the products of their leading extents are equal. All axes between two cuts correspond.
    """
    first, other = ([math.prod(shape[:d]) for d in range(len(shape) + 1)] for shape in (source, target))
    cuts = sorted({*first} & {*other})
    pieces = [(low, high) for low, high in zip(cuts, cuts[1:])
              if any(low <= other[a] < high and target[a] > 1 for a in axes)]
    return frozenset(d for d, n in enumerate(source) if n > 1 and any(low <= first[d] < high for low, high in pieces))


# -- out of bounds -----------------------------------------------------------------------------------------------------

def _reads_outside(g: Builder, value: Value, axes: Axes) -> bool:
    """Whether a value is a load without `other` and mask that may be partly out of bounds along one of `axes`."""
    call = g.definitions.get(value)
    return (call is not None and value in g.state.get("implicit_other", ()) and call.args[2] is None
            and _may_be_ragged(g, as_value(call.args[0]), axes))


def _may_be_ragged(g: Builder, source: Value, axes: Axes) -> bool:
    """Whether a region may be partly out of bounds along one of `axes`: it is not known to be inside its buffer, nor
    to tile it exactly."""
    t = source.type
    if not isinstance(t, Region) or t.scope != "global":
        return False
    starts = g.definitions[source].args[1:]
    return any(not _tiles(g, t, d, starts[d]) for axis, d in enumerate(t.kept) if axis in axes)


def _tiles(g: Builder, t: Region, d: int, start) -> bool:
    size, extent = t.buffer.shape[d], t.extents[d]
    if t.buffer.narrowed is not None and t.buffer.narrowed[d]:
        return False
    terms = g.linear_form(start)
    if set(terms) <= {None}:
        stop = terms.get(None, 0) + extent
        return (stop >= extent
                and (stop <= size if isinstance(size, int) else g.facts.ask("size_at_least", size.arg, size.dim, stop)))
    if any(c % extent for c in terms.values()):
        return False
    if isinstance(size, int):
        return size % extent == 0
    return g.facts.ask("size_multiple", size.arg, size.dim, extent)


# -- values of a tile out of bounds ------------------------------------------------------------------------------------

def _value_outside(g: Builder, x: Value, axes: Axes) -> bool | int | float | None:
    """The number that a tile's elements are wherever the loads that it is computed from are out of bounds along
    `axes`; None if unknown.

    What is unknown is taken for a finite number, and a divisor for another than 0: times it, and over it, 0 is 0.
    """
    found: dict[tuple[Operand, Axes], bool | int | float | None] = g.state.setdefault("outside", {})  # of all searches
    queue = [(x, axes)]
    while queue:
        value, at = key = queue[-1]
        if key in found:
            queue.pop()
            continue
        call = g.definitions.get(value)
        if call is not None and _computes(call) and not _reads_outside(g, value, at):
            operands = [(a, _axes_before(call, at)) for a in call.args]
        else:
            operands = []
        waiting = [(as_value(o[0]), o[1]) for o in operands if o not in found and isinstance(type_of(o[0]), Tile)]
        queue += waiting
        if not waiting:
            found[queue.pop()] = _computed_outside(g, *key, [found.get(o, _fill_number(g, o[0])) for o in operands])
    return found[x, axes]


def _computes(call: Call) -> bool:
    """Whether each element of a result is computed from those of the operands at its place, or by a known reduction."""
    return call.op.rules.element is not None or call.op in (*MOVED, ew.select) or _known_reduction(call)


def _computed_outside(g: Builder, value: Value, axes: Axes, numbers: list) -> bool | int | float | None:
    """`_value_outside` of a call's result, from the numbers of its operands."""
    call, known = g.definitions.get(value), _fill_number(g, value)
    if _reads_outside(g, value, axes) or known is not None or not numbers:
        return 0 if _reads_outside(g, value, axes) else known
    assert call is not None  # since it has operands
    if call.op is casts.cast:
        if numbers[0] is None:
            return None
        return casts.cast_number(numbers[0], element_type(call.args[0]), element_type(value))
    if call.op in MOVED:
        return numbers[0]
    if call.op is reduce_:
        return numbers[0] if numbers[0] == 0 else None
    if call.op is ew.select:
        test, x, y = numbers
        if test or x == y:
            return x
        return y if test is not None else None
    if None not in numbers:
        with np.errstate(all="ignore"):
            operands = (np.array([n]).astype(element_type(a).np) for n, a in zip(numbers, call.args))
            return require_rule(call.op.rules.simulate)(None, call, *operands).item()
    if call.op in (ew.mul, ew.bit_and):
        return 0 if 0 in numbers and all(n is None or math.isfinite(n) for n in numbers) else None
    return 0 if call.op in (ew.div, ew.shl, ew.shr) and numbers[0] == 0 else None


def _known_reduction(call: Call) -> bool:
    """Whether a call is a reduction by a known operation: that of zeros is 0,
    and that of non-negative numbers non-negative."""
    return call.op is reduce_ and isinstance(call.attrs["combine"], Known)


def _not_negative(g: Builder, x: Value) -> bool:
    """Whether no element of a tile can be negative, whatever is loaded."""
    seen: set[Operand] = set()
    queue: list[Operand] = [x]
    while queue:
        value = queue.pop()
        known, dtype = _fill_number(g, value), element_type(value)
        if value in seen or dtype.kind in ("uint", "bool") or known is not None and known >= 0:
            continue
        seen.add(value)
        call = g.definitions.get(value)
        if call is None:
            return False
        if dtype.is_float and (call.op is ew.abs_ or call.op is ew.mul and call.args[0] is call.args[1]):
            continue
        if not (call.op in MOVED
                and (dtype.is_float or dtype.bits >= element_type(call.args[0]).bits + (call.op is casts.cast))
                or dtype.is_float and (call.op in (ew.add, ew.mul, ew.div) or _known_reduction(call))
                or call.op is ew.maximum):
            return False
        sure = call.op is ew.maximum and any((n := _fill_number(g, a)) is not None and n >= 0 for a in call.args)
        queue += () if sure else call.args
    return True


def _fill_number(g: Builder, value):
    """The number that fills a tile, if it is a constant; otherwise None."""
    if isinstance(value, Const):
        return value.value
    call = g.definitions.get(value)
    if call is None or call.op not in (generate.splat, casts.cast, reshape_, broadcast):
        return None
    n = _fill_number(g, call.args[0])
    if n is not None and call.op is casts.cast:
        return casts.cast_number(n, element_type(call.args[0]), element_type(value))
    return n


# -- the message -------------------------------------------------------------------------------------------------------

def _remedy(what: str, dtype: DType, direct: bool) -> str:
    """In words, how to change the kernel. For a `direct` reduction,
    this includes the `other` that does not affect the result."""
    if what == "mean":
        return ("the mean counts these elements too; divide tile.sum(...) by how many there are, "
                "or accept it by tile.load(..., other=0)")
    if not direct:
        return "give them a value by tile.load(..., other=...), one that leaves the result as it should be"
    neutral = {"prod": "1", "cumprod": "1", "all": "True", "reduce": "...", "scan": "...",
               "histogram": "-1" if dtype.signed else "..."}.get(what, "0")
    if what in LARGEST_FIRST or what in SMALLEST_FIRST:
        if dtype.is_float:
            least, most = '-float("inf")', 'float("inf")'
        else:
            least, most = map(str, integer_range(dtype) if dtype.is_int else (False, True))
        neutral = least if what in LARGEST_FIRST else most
    return f"give them a value that changes nothing, as in tile.load(..., other={neutral})"
