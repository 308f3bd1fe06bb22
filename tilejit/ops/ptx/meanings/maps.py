"""Simulation of the PTX instructions on tensor maps: edits, fences, and the tensor copies that use a map.

The operand is a tensor map of the kernel, or the place of its 128 bytes in memory. PTX ISA, "tensormap.replace",
"tensormap.cp_fenceproxy", "fence.proxy.tensormap", "cp.async.bulk.tensor".
"""

from __future__ import annotations

import re

import numpy as np

from ....errors import SimulationError
from . import means
from .barriers import barrier_of
from .copies import run_of


def _map(m, form, x):
    """The tensor map that an operand denotes."""
    if isinstance(x, np.ndarray):
        raise SimulationError(f"the simulator runs {form.name} on a tensor map or the place of one, "
                              "not on a number as address", m.loc)
    return m.maps.in_memory(x) if hasattr(x, "starts") else x


@means(r"tensormap\.replace\.tile\.\w+\.(global|shared::cta)\.b1024\.b(32|64)")
def replace_field(m, form, x):
    """The value is the plain number for sizes, bytes for strides, and the rank minus one for the rank."""
    name = form.name.split(".")[3]
    if name == "swizzle_atomicity":
        if x["value"]:
            raise SimulationError("the simulator knows swizzles in units of 16 bytes only, which is atomicity 0", m.loc)
        return
    m.maps.replace(_map(m, form, x["map"]), ".shared::cta." in form.name, name, x.get("index"), x["value"])


@means(
    r"tensormap\.cp_fenceproxy\.global\.shared::cta\.tensormap::generic\.release\.(cta|cluster|gpu|sys)\.sync\.aligned")
def copy_and_release(m, form, x):
    m.maps.copy_map(_map(m, form, x["dst"]), _map(m, form, x["src"]), form.name.split(".")[-3])


@means(r"fence\.proxy\.tensormap::generic\.(acquire|release)\.(cta|cluster|gpu|sys)")
def fence_of_maps(m, form, x):
    scope = form.name.split(".")[-1]
    return m.maps.acquire(_map(m, form, x["map"]), scope) if "map" in x else m.maps.release_all(scope)


def _numbers(x, name: str) -> list[np.ndarray]:
    """The coordinates or offsets that one thread gives, (B or 1, 1) each."""
    given = x.get(name, ())
    return [np.asarray(c)[:, :1].astype(np.int64) for c in (given if isinstance(given, tuple) else (given,))]


def _mode(form) -> str:
    """The addressing mode of a form, by the simulator's name: "tile", "rows" (gather4, scatter4),
    "im2col" or one of its variants."""
    found = re.search(r"im2col::w::128|im2col::w|im2col|gather4|scatter4", form.name)
    if found is None:
        return "tile"
    return "rows" if "4" in found[0] else found[0]


@means(
    r"cp\.async\.bulk\.tensor\.[1-5]d\.(tile::gather4\.)?shared::(cta|cluster)\.global"
    r"(\.tile|\.tile::gather4|\.im2col(::w(::128)?)?)?"
    r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?(\.cta_group::[12])?(\.L2::cache_hint)?")
def tensor_load(m, form, x):
    (dst, to), barrier = run_of(m, form, x["dst"]), barrier_of(m, form, x)
    mask = None if "mask" not in x else x["mask"][:, :1].astype(np.int64)
    with m.maps.open_map(_map(m, form, x["map"]), None) as maps:
        for described, where in maps:
            m.tma.load(described, _numbers(x, "coords"), dst, to, barrier, mode=_mode(form),
                       offsets=_numbers(x, "offsets"), multicast=mask,
                       paired=".cta_group::2" in form.name, positions=where)


@means(
    r"cp\.(reduce\.)?async\.bulk\.tensor\.[1-5]d\.(tile::scatter4\.)?global\.shared::cta"
    r"(\.(add|min|max|inc|dec|and|or|xor))?"
    r"(\.tile|\.tile::scatter4|\.im2col_no_offs)?\.bulk_group(\.L2::cache_hint)?")
def tensor_store(m, form, x):
    src, at = run_of(m, form, x["src"])
    kind = form.name.split("shared::cta.")[1].split(".")[0] if form.name.startswith("cp.reduce") else None
    with m.maps.open_map(_map(m, form, x["map"]), None) as maps:
        for described, where in maps:
            m.tma.store(described, _numbers(x, "coords"), src, at, mode=_mode(form), kind=kind, positions=where)


@means(
    r"cp\.async\.bulk\.prefetch\.tensor\.[1-5]d\.L2\.global\.(tile|tile::gather4|im2col(::w(::128)?)?)"
    r"(\.L2::cache_hint)?")
def tensor_prefetch(m, form, x):
    """A prefetch has no effect, but a wrong map or wrong coordinates are reported."""
    with m.maps.open_map(_map(m, form, x["map"]), None) as maps:
        for described, _ in maps:
            m.tma.prefetch(described, _numbers(x, "coords"), mode=_mode(form), offsets=_numbers(x, "offsets"))


__all__: list[str] = []
