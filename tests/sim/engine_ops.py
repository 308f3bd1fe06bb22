"""Ops for tests alone: the engines of the machine, called with exactly the fields that a test wants."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from tilejit.ir.builder import type_of
from tilejit.ir.op import op
from tilejit.types import Tile


def fields(buffer, box, swizzle=0, dtype=None, dims=None, strides=None, element_strides=None, oob_fill=0):
    """A tensor map over a whole simulated buffer, innermost dimension first, with what the caller overrides."""
    rank, nbytes = len(buffer.shape), buffer.type.dtype.nbytes
    return SimpleNamespace(
        dtype=dtype or buffer.type.dtype.name, global_dim=dims or buffer.shape[::-1],
        global_strides=strides or tuple(s * nbytes for s in buffer.strides[::-1][1:]), box=tuple(box),
        element_strides=element_strides or (1,) * rank, swizzle=swizzle, oob_fill=oob_fill, interleave=0, l2_promotion=0)


_MAPS = {}


def map_of(m, call, buffer, **how):
    """The same map object for the same call and buffer."""
    key = id(call), id(buffer.memory)
    if key not in _MAPS:
        _MAPS[key] = m.tensor_map(buffer, fields(buffer, **how)), call, buffer.memory
    return _MAPS[key][0]


def place(x, offset=0):
    """The buffer of a region or buffer, and the byte offset where it begins."""
    if not hasattr(x, "starts"):
        return x, offset
    layout = x.type.buffer.layout.without_swizzle()
    at = layout.offset_of(*(s[:, :1].astype(np.int64) for s in x.starts), shape=x.type.buffer.shape)
    return x.buffer, np.asarray(at) * x.type.dtype.nbytes + offset


ATTRS = ("box", "swizzle", "dims", "strides", "element_strides", "oob_fill", "offset", "dtype")


def chosen(call):
    return {k: v for k, v in call.attrs.items() if k in ATTRS and k != "offset" and v is not None}


@op("writes", attrs=(*ATTRS, "multicast"))
def test_tma_load(dst, src, mbar, x, y, box, swizzle=0, dims=None, strides=None, element_strides=None, oob_fill=0, offset=0, dtype=None,
                  multicast=None):
    """A tensor load of `box` at (x, y) to byte `offset` of `dst`."""


@test_tma_load.simulate
def _(m, call, dst, src, mbar, x, y):
    m.tma_load(map_of(m, call, src, **chosen(call)), (x, y), *place(dst, call.attrs["offset"]), mbar, multicast=call.attrs["multicast"])


@op("writes", attrs=(*ATTRS, "reduce"))
def test_tma_store(dst, src, x, y, box, swizzle=0, dims=None, strides=None, element_strides=None, oob_fill=0, offset=0, dtype=None, reduce=None):
    """A tensor store (or reduction) of `box` at (x, y) from byte `offset` of `src`."""


@test_tma_store.simulate
def _(m, call, dst, src, x, y):
    map_ = map_of(m, call, dst, **chosen(call))
    if call.attrs["reduce"] is None:
        m.tma_store(map_, (x, y), *place(src, call.attrs["offset"]))
    else:
        m.tma_reduce(map_, (x, y), *place(src, call.attrs["offset"]), call.attrs["reduce"])


@op("writes", attrs=("nbytes", "rank"))
def test_bulk(dst, src, mbar, nbytes, rank=None):
    """A bulk copy of `nbytes` bytes, to CTA `rank` of the cluster if given."""


@test_bulk.simulate
def _(m, call, dst, src, mbar):
    if call.attrs["rank"] is not None:
        dst = replace(dst, peer=np.full((1, 1), call.attrs["rank"]))
    m.bulk_copy(dst, 0, src, 0, call.attrs["nbytes"], mbar)


@op("syncs", attrs=("number", "threads", "wait"))
def test_named(number, threads, wait=True):
    """A hardware barrier."""


@test_named.simulate
def _(m, call):
    a = call.attrs
    return m.named_sync(a["number"], a["threads"]) if a["wait"] else m.named_arrive(a["number"], a["threads"])


@op("syncs", attrs=("noinc",))
def test_arrive_on_copies(mbar, noinc=False):
    """``cp.async.mbarrier.arrive``."""


@test_arrive_on_copies.simulate
def _(m, call, mbar):
    m.cp_async_arrive(mbar, call.attrs["noinc"])


@op("syncs", attrs=("nbytes",))
def test_mma(a, d, nbytes):
    """A warpgroup's tensor-core operation that reads `nbytes` bytes of `a` and adds 1 to what it copies to `d`."""


@test_mma.simulate
def _(m, call, a, d):
    from tilejit.sim.engines import Span
    m.collective("wgmma")
    m.issue("the wgmma", reads=[Span.of(a, 0, call.attrs["nbytes"])], land=lambda rows, params: None, params={}, queue="wgmma", collective=True)


@op("syncs", attrs=("n",))
def test_mma_wait(n=0):
    """Commit and wait for the tensor-core operations of the scope."""


@test_mma_wait.simulate
def _(m, call):
    m.commit("wgmma")
    m.wait_groups("wgmma", call.attrs["n"])


for nothing in (test_tma_load, test_tma_store, test_bulk, test_named, test_arrive_on_copies, test_mma, test_mma_wait):
    nothing.infer(lambda g, *args, **attrs: None)
@op("reads", attrs=("rank",))
def test_peer_load(buffer, rank):
    """The whole of a buffer in the shared memory of CTA `rank`."""


@test_peer_load.infer
def _(g, buffer, rank):
    return Tile(type_of(buffer).dtype, type_of(buffer).shape)


@test_peer_load.simulate
def _(m, call, buffer):
    coords = np.indices(buffer.shape)[:, None]
    return m.read(replace(buffer, peer=np.full((1, 1), call.attrs["rank"])), tuple(coords), owner=m.owners(call.result.type))
