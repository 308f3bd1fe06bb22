"""Simulates PTX asynchronous copies without a tensor map, and their completion.

``cp.async``, bulk copies and reductions, and stores and reductions to another CTA. PTX ISA, "Data Movement and
Conversion Instructions".
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ....dtypes import dtype_of
from ....errors import SimulationError
from . import means
from .barriers import barrier_of
from .memory import element_of, elements_of, place_of


def run_of(m, form, place):
    """The buffer and the byte offset (B or 1, 1) of a place. SimulationError unless the scope has one thread."""
    buffer, at = place_of(m, form, place)
    if m.threads != 1:
        raise SimulationError(f"the simulator runs {form.name} in a scope of one thread, as in with tile.elect():",
                              m.loc)
    return buffer, at[:, :1]


# -- cp.async ----------------------------------------------------------------------------------------------------------

@means(r"cp\.async\.c[ag]\.shared\.global(\.L2::cache_hint)?(\.L2::(64|128|256)B)?\.(4|8|16)(\.zfill|\.ignore_src)?")
def copy_by_threads(m, form, x):
    """Each thread copies its own bytes. Those past `src_size`, or all with `ignore_src`, are not read,
    and zeros are written."""
    nbytes = int(re.search(r"\.(4|8|16)\b", form.name)[1])
    (dst, to), (src, source) = place_of(m, form, x["dst"]), place_of(m, form, x["src"])
    count = np.full((1, 1), nbytes)
    if "src_size" in x:
        count = x["src_size"].astype(np.int64)
    elif "ignore_src" in x:
        count = np.where(x["ignore_src"], 0, nbytes)
    if ((count > nbytes) & m.active).any():
        m.finding("out-of-bounds", f"cp.async of {nbytes} bytes is given a larger source size, {int(count.max())}")
        return
    if (((to < 0) | (to + nbytes > dst.type.nbytes)) & m.active).any():
        m.finding("out-of-bounds",
                  f"cp.async of {nbytes} bytes leaves the buffer of {dst.type.nbytes} bytes that it writes to")
        return
    m.engines.cp_async(dst, to[:, :, None], src, source[:, :, None], nbytes, count[:, :, None])


@means(r"cp\.async\.(commit_group|wait_group|wait_all)|cp\.async\.bulk\.(commit_group|wait_group(\.read)?)")
def groups(m, form, x):
    if ".bulk" in form.name:
        if "commit" in form.name:
            return m.engines.bulk_commit()
        return m.engines.bulk_wait(x["n"], form.name.endswith(".read"))
    return m.engines.cp_async_commit() if "commit" in form.name else m.engines.cp_async_wait(x.get("n"))


@means(r"cp\.async\.mbarrier\.arrive(\.noinc)?\.shared::cta\.b64")
def arrival_of_copies(m, form, x):
    m.engines.cp_async_arrive(barrier_of(m, form, x), ".noinc" in form.name)


# -- bulk --------------------------------------------------------------------------------------------------------------

@means(
    r"cp\.(reduce\.)?async\.bulk\."
    r"(shared::(cta|cluster)\.(global|shared::cta)\.mbarrier::complete_tx::bytes(\.multicast::cluster)?|"
    r"global\.shared::cta\.bulk_group)"
    r"(\.L2::cache_hint)?(\.(add|min|max|inc|dec|and|or|xor)(\.noftz)?\.\w+|\.cp_mask)?")
def bulk_copy(m, form, x):
    """A bulk copy or reduction. A reduction works on elements of the instruction's type,
    whatever the dtype of the buffers."""
    (dst, to), (src, source) = run_of(m, form, x["dst"]), run_of(m, form, x["src"])
    barrier = barrier_of(m, form, x) if "bar" in x else None
    if barrier is not None:
        completes_there(m, form, barrier, dst)
    mask, byte_mask = (x[name][:, :1].astype(np.int64) if name in x else None for name in ("mask", "byte_mask"))
    kind = dtype = None
    if "reduce" in form.name:
        kind = re.search(r"\.(add|min|max|inc|dec|and|or|xor)\.", form.name)[1]
        dtype = element_of(form)
    m.bulk.copy(dst, to, src, source, x["size"][:, :1].astype(np.int64), barrier, multicast=mask, kind=kind,
                dtype=dtype, byte_mask=byte_mask)


# -- to another CTA ----------------------------------------------------------------------------------------------------

@means(
    r"(st|red)\.async\.(weak|relaxed\.cluster)\.shared::cluster\.mbarrier::complete_tx::bytes"
    r"(\.(add|min|max|inc|dec|and|or|xor))?"
    r"(\.v[24])?\.[bsuf](32|64)")
def to_a_peer(m, form, x):
    """A store or reduction to another CTA, which must complete at a barrier of that CTA.

    The elements have the instruction's type, whatever the dtype of the buffer.
    """
    place, value, barrier = x["dst"], x["value"], barrier_of(m, form, x)
    if not hasattr(place, "buffer") or place.buffer.peer is None:
        raise SimulationError(f"the simulator runs {form.name} on a place in the memory of a peer, as in s.peer(1)[i]",
                              m.loc)
    (buffer, elements), element = elements_of(m, form, place), element_of(form)
    completes_there(m, form, barrier, buffer)
    buffer = replace(buffer, type=replace(buffer.type, dtype=dtype_of(element)))
    kind = form.name.split("bytes.")[1].split(".")[0] if form.name.startswith("red") else None
    for at, part in zip(elements, value if isinstance(value, tuple) else (value,)):
        m.remote.store(buffer, at, np.ascontiguousarray(part).view(element), barrier, kind=kind)


def completes_there(m, form, barrier, buffer) -> None:
    """Report a finding if the barrier is not in the CTA whose memory is written."""
    there, told = (np.full((1, 1), m.rank) if x.peer is None else x.peer for x in (buffer, barrier))
    if (there != told).any():
        m.finding("transaction-count",
                  f"{form.name} writes the memory of the CTA of rank {int(there.flat[0])} in the cluster, "
                  f"and its barrier is that of rank {int(told.flat[0])}: give that CTA's barrier, as in bar.peer(1)")


__all__ = ["run_of"]
