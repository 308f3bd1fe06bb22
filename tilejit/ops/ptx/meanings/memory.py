"""Simulation of PTX loads, stores and atomics, and the places in memory that instructions address.

PTX ISA, "Data Movement and Conversion Instructions", "Parallel Synchronization and Communication Instructions".
"""

from __future__ import annotations

import re

import numpy as np

from ....dtypes import DTYPES
from ....errors import SimulationError
from . import means

_ELEMENTS = {"f16": "float16", "bf16": "bfloat16", "b32": "uint32", "b64": "uint64"}


# -- places ------------------------------------------------------------------------------------------------------------

def element_of(form) -> np.dtype:
    """The element type in the last part of an instruction's name."""
    word = form.name.split(".")[-1]
    return DTYPES[_ELEMENTS.get(word) or {"s": "int", "u": "uint", "b": "uint", "f": "float"}[word[0]] + word[1:]].np


def buffer_of(m, form, place):
    """The buffer of a place, and the coordinates (B or 1, T or 1) in it."""
    if not hasattr(place, "buffer"):
        raise SimulationError(f"the simulator runs {form.name} on a place in memory, as in x[i], "
                              "not on a number as address", m.loc)
    return place.buffer, tuple(s.astype(np.int64) for s in place.starts)


def offset_of(buffer, coords: tuple) -> np.ndarray:
    """The byte offset of elements in their buffer, with its layout and swizzle."""
    coords = np.broadcast_arrays(*coords)
    if buffer.memory.scope == "global":
        at = sum((c * k for c, k in zip(coords, buffer.strides)), np.zeros_like(coords[0]))
    else:
        at = np.asarray(buffer.type.layout.offset_of(*coords, shape=buffer.shape)).reshape(coords[0].shape)
    return at * buffer.type.dtype.nbytes


def place_of(m, form, place):
    """The buffer of a place and the byte offset (B or 1, T or 1) in it."""
    buffer, coords = buffer_of(m, form, place)
    return buffer, offset_of(buffer, coords)


def elements_of(m, form, place):
    """The buffer of a place, and the coordinates of the 1, 2 or 4 elements that an instruction accesses there.

    The elements of a vector must be contiguous and aligned to its size (PTX ISA, "Vectors as Operands").
    """
    buffer, coords = buffer_of(m, form, place)
    nbytes, vector = element_of(form).itemsize, re.search(r"\.v([24])\b", form.name)
    if buffer.type.dtype.np.itemsize != nbytes:
        raise SimulationError(f"the simulator runs {form.name} on elements of {8 * nbytes} bits, "
                              f"not on {buffer.type.dtype}", m.loc)
    count = int(vector[1]) if vector else 1
    found = [(*coords[:-1], coords[-1] + i) for i in range(count)]
    if count > 1:
        first, last = offset_of(buffer, found[0]), offset_of(buffer, found[-1])
        if ((last - first != (count - 1) * nbytes) & m.active).any():
            raise SimulationError(f"the simulator runs {form.name} on contiguous elements, and these are not", m.loc)
        memory = buffer.memory
        origin = memory.address + memory.origin * memory.itemsize if memory.scope == "global" else 0
        if (((first + np.asarray(buffer.base) + origin) % (count * nbytes) != 0) & m.active).any():
            m.finding("misaligned", f"{form.name} is given an address that is no multiple of {count * nbytes}")
    return buffer, found


# -- instructions ------------------------------------------------------------------------------------------------------

@means(
    r"ld(\.volatile)?\.(global|shared(::cta|::cluster)?)(\.(ca|cg|cs|lu|cv))?(\.nc)?(\.L[12]::\w+)*"
    r"\.(v[24]\.)?b(8|16|32|64)")
def load(m, form, x):
    buffer, elements = elements_of(m, form, x["a"])
    found = tuple(np.ascontiguousarray(m.read(buffer, at, bounds=False)).view(element_of(form)) for at in elements)
    return found if len(found) > 1 else found[0]


@means(r"st(\.volatile)?\.(global|shared(::cta|::cluster)?)(\.(wb|cg|cs|wt))?(\.L[12]::\w+)*\.(v[24]\.)?b(8|16|32|64)")
def store(m, form, x):
    buffer, elements = elements_of(m, form, x["a"])
    values = x["value"] if isinstance(x["value"], tuple) else (x["value"],)
    for at, value in zip(elements, values):
        m.write(buffer, at, np.ascontiguousarray(value).view(buffer.type.dtype.np), bounds=False)


@means(r"ld\.(relaxed|acquire)\.(cta|cluster|gpu|sys)\.global\.(v[24]\.)?b(8|16|32|64)")
def ordered_load(m, form, x):
    buffer, elements = elements_of(m, form, x["a"])
    sem, scope = form.name.split(".")[1:3]
    found = tuple(np.ascontiguousarray(m.ordered.read(buffer, at, 0, None, None, sem, scope,
                                                      alone=True)).view(element_of(form)) for at in elements)
    return found if len(found) > 1 else found[0]


@means(r"st\.(relaxed|release)\.(cta|cluster|gpu|sys)\.global\.(v[24]\.)?b(8|16|32|64)")
def ordered_store(m, form, x):
    buffer, elements = elements_of(m, form, x["a"])
    sem, scope = form.name.split(".")[1:3]
    values = x["value"] if isinstance(x["value"], tuple) else (x["value"],)
    for at, value in zip(elements, values):
        m.ordered.write(buffer, at, np.ascontiguousarray(value).view(buffer.type.dtype.np), None, None, sem, scope,
                        alone=True)


@means(r"discard\.global\.L2")
def discard(m, form, x):
    """Discarded bytes become undefined; they are overwritten with 0xff."""
    buffer, coords = buffer_of(m, form, x["a"])
    own = buffer.type.dtype.np
    nothing = np.full((1, own.itemsize), 0xff, np.uint8).view(own)
    for i in range(x["size"] // own.itemsize):
        m.write(buffer, (*coords[:-1], coords[-1] + i), nothing, bounds=False)


@means(r"(atom|red)(\.(relaxed|acquire|release|acq_rel)\.(cta|cluster|gpu|sys))?\.(global|shared::(cta|cluster))"
       r"\.(add|min|max|and|or|xor|exch|cas|inc|dec)\.(u32|s32|u64|s64|f32|f64|b32|b64)")
def atomic(m, form, x):
    """An atomic operation by each active thread."""
    buffer, (coords,) = elements_of(m, form, x["a"])
    words = form.name.split(".")
    kind, order = words[-2], words[1] if words[1] in ("acquire", "release", "acq_rel") else None
    own, element = buffer.type.dtype.np, element_of(form)
    alike = kind in ("exch", "cas") or kind in ("add", "and", "or", "xor") and own.kind in "iu" and element.kind in "iu"
    if own != element and not alike:
        raise SimulationError(f"the simulator runs {form.name} on elements of {element}, not of {own}", m.loc)
    def threads(v):
        return np.broadcast_to(np.ascontiguousarray(v).view(own), (m.batch, m.threads))
    coords = tuple(np.broadcast_to(c, (m.batch, m.threads)) for c in coords)
    swap = kind == "cas"
    old = m.ordered.atomic(buffer, coords, kind, threads(x["c"] if swap else x["b"]), threads(x["b"]) if swap else None,
                           order=order,
                           scope=words[2] if words[1] in ("relaxed", "acquire", "release", "acq_rel") else "gpu")
    if words[0] == "red":
        return None
    return np.ascontiguousarray(old).view(f"u{own.itemsize}") if words[-1][0] == "b" else old


__all__ = ["element_of", "elements_of", "place_of"]
