"""Ops for tests only, which call the machine's engines with exactly the given fields."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from tilejit.dtypes import float32
from tilejit.ir.op import op
from tilejit.ir.op_traits import Reads, Registers, Signals, Writes
from tilejit.layout import TileLayout
from tilejit.types import Buffer, Scalar


def fields(buffer, box, swizzle=0, dtype=None, dims=None, strides=None, element_strides=None, oob_fill=0):
    """A tensor map over a whole simulated buffer, innermost dimension first, with the caller's overrides."""
    rank, nbytes = len(buffer.shape), buffer.type.dtype.nbytes
    return SimpleNamespace(
        dtype=dtype or buffer.type.dtype.name, global_dim=dims or buffer.shape[::-1],
        global_strides=strides or tuple(s * nbytes for s in buffer.strides[::-1][1:]), box=tuple(box),
        element_strides=element_strides or (1,) * rank, swizzle=swizzle, oob_fill=oob_fill, interleave=0, l2_promotion=0)


_MAPS = {}


def map_of(m, call, buffer, **how):
    """The map object, the same one for the same call and buffer."""
    key = id(call), id(buffer.memory)
    if key not in _MAPS:
        _MAPS[key] = m.tensor_map(buffer, fields(buffer, **how)), call, buffer.memory
    return _MAPS[key][0]


def place(x, offset=0):
    """The buffer of a region or buffer, and the byte offset of its start."""
    if not hasattr(x, "starts"):
        return x, offset
    layout = x.type.buffer.layout.without_swizzle()
    at = layout.offset_of(*(s[:, :1].astype(np.int64) for s in x.starts), shape=x.type.buffer.shape)
    return x.buffer, np.asarray(at) * x.type.dtype.nbytes + offset


ATTRS = ("box", "swizzle", "dims", "strides", "element_strides", "oob_fill", "offset", "dtype")


def chosen(call):
    return {k: v for k, v in call.attrs.items() if k in ATTRS and k != "offset" and v is not None}


@op("writes", attrs=(*ATTRS, "multicast"))
def test_tma_load(dst: Writes, src: Reads, mbar: Signals, x: Registers, y: Registers, box, swizzle=0, dims=None,
                  strides=None, element_strides=None, oob_fill=0, offset=0, dtype=None, multicast=None):
    """A tensor load of `box` at (x, y) to byte `offset` of `dst`."""


@test_tma_load.simulate
def _(m, call, dst, src, mbar, x, y):
    m.tma.load(map_of(m, call, src, **chosen(call)), (x, y), *place(dst, call.attrs["offset"]), mbar, multicast=call.attrs["multicast"])


@op("writes", attrs=(*ATTRS, "reduce"))
def test_tma_store(dst: Writes, src: Reads, x: Registers, y: Registers, box, swizzle=0, dims=None, strides=None,
                   element_strides=None, oob_fill=0, offset=0, dtype=None, reduce=None):
    """A tensor store (or reduction) of `box` at (x, y) from byte `offset` of `src`."""


@test_tma_store.simulate
def _(m, call, dst, src, x, y):
    map_ = map_of(m, call, dst, **chosen(call))
    if call.attrs["reduce"] is None:
        m.tma.store(map_, (x, y), *place(src, call.attrs["offset"]))
    else:
        m.tma.store(map_, (x, y), *place(src, call.attrs["offset"]), kind=call.attrs["reduce"])


@op("writes", attrs=("nbytes", "rank"))
def test_bulk(dst: Writes, src: Reads, mbar: Signals, nbytes, rank=None):
    """A bulk copy of `nbytes` bytes, to CTA `rank` of the cluster if given."""


@test_bulk.simulate
def _(m, call, dst, src, mbar):
    if call.attrs["rank"] is not None:
        dst = replace(dst, peer=np.full((1, 1), call.attrs["rank"]))
    m.bulk.copy(dst, 0, src, 0, call.attrs["nbytes"], mbar)


@op("syncs", attrs=("number", "threads", "wait"))
def test_named(number, threads, wait=True):
    """A hardware barrier."""


@test_named.simulate
def _(m, call):
    a = call.attrs
    return m.sync.named_barrier(a["number"], a["threads"]) if a["wait"] else m.sync.named_arrive(a["number"], a["threads"])


@op("syncs", attrs=("nbytes",))
def test_mma(a: Reads, d: Writes, nbytes):
    """A warpgroup's tensor core operation that reads `nbytes` bytes of `a` and adds 1 to what it copies to `d`."""


@test_mma.simulate
def _(m, call, a, d):
    from tilejit.sim.engines import Operation, Span
    m.sync.collective("wgmma")
    m.engines.issue(Operation("the wgmma", reads=[Span.of(a, 0, call.attrs["nbytes"])],
                              land=lambda rows, params: None, params={}, queue="wgmma", collective=True))


@op("syncs", attrs=("n",))
def test_mma_wait(n=0):
    """Commit and wait for the tensor core operations of the scope."""


@test_mma_wait.simulate
def _(m, call):
    m.engines.commit("wgmma")
    m.engines.wait_groups("wgmma", call.attrs["n"])


for nothing in (test_tma_load, test_tma_store, test_bulk, test_named, test_mma, test_mma_wait):
    nothing.infer(lambda g, *args, **attrs: None)

# -- tensor memory ----------------------------------------------------------------------------------------------------------

ACCUMULATOR = TileLayout([(128, 1, "TLane"), (8, 1, "TCol")])


@op("writes")
def test_tmem():
    """Tensor memory for 128 x 8 float32."""


@test_tmem.infer
def _(g):
    return Buffer(float32, (128, 8), "tmem", ACCUMULATOR)


@test_tmem.simulate
def _(m, call):
    return m.alloc_tmem(call.result)


@op("writes", attrs=("warp",))
def test_tmem_fill(d: Writes, value: Registers, warp=None):
    """Each thread writes `value` to its lane (or to the lane of the same thread in another warp)."""


@test_tmem_fill.simulate
def _(m, call, d, value):
    lanes, owner = _lanes(m, call.attrs["warp"])
    m.write(d, (lanes[None, :, None], np.arange(8)[None, None, :]), np.broadcast_to(value.reshape(-1, 1, 1), (1, len(lanes), 8)), owner=owner)


@op("reads", attrs=("warp",))
def test_tmem_sum(d: Reads, warp=None):
    """The sum of each thread's lane."""


@test_tmem_sum.simulate
def _(m, call, d):
    lanes, owner = _lanes(m, call.attrs["warp"])
    return m.read(d, (lanes[None, :, None], np.arange(8)[None, None, :]), owner=owner).sum(axis=2)


@test_tmem_sum.infer
def _(g, d, warp=None):
    return Scalar(float32)


def _lanes(m, warp):
    threads = m.thread_ids()[0]
    lanes = threads % 128 if warp is None else warp * 32 + threads % 32
    return lanes, np.repeat(np.arange(m.threads)[:, None], 8, axis=1)


@op("writes")
def test_tcgen05_mma(d: Writes, a: Reads):
    """An asynchronous tensor core operation of one thread: adds the first element of shared `a` to all of `d`."""


@test_tcgen05_mma.simulate
def _(m, call, d, a):
    from tilejit.sim.engines import Operation, Span
    lanes = np.arange(128) * 2048

    def collect(rows, params):
        return {"x": a.memory.view(np.dtype(np.float32))[rows, a.base // 4]}

    def land(rows, params):
        data = d.memory.view(np.dtype(np.float32)).reshape(-1, 128, 512)
        data[rows, :, d.base // 4:d.base // 4 + 8] += params["x"][:, None, None]

    m.engines.issue(Operation("the tcgen05.mma", reads=[Span.of(a, 0, 16)], writes=[Span.of(d, 0, 32, lanes)],
                              land=land, collect=collect, params={}, queue="tcgen05", pipe="tcgen05"))


@op("syncs")
def test_tcgen05_commit(mbar: Signals):
    """``tcgen05.commit``."""


@test_tcgen05_commit.simulate
def _(m, call, mbar):
    m.commits.to_barrier("tcgen05", mbar)


for nothing in (test_tmem_fill, test_tcgen05_mma, test_tcgen05_commit):
    nothing.infer(lambda g, *args, **attrs: None)


@op("writes", attrs=("rows", "store"))
def test_four_rows(a: Writes, s: Writes, mbar: Signals, x: Registers, rows, store=False):
    """gather4 of `rows` (scatter4 with `store`), 16 columns from `x` on."""


@test_four_rows.simulate
def _(m, call, a, s, mbar, x):
    map_, rows = map_of(m, call, a, box=(16, 1)), call.attrs["rows"]
    if call.attrs["store"]:
        m.tma.store(map_, (x, *rows), s, 0, mode="rows")
    else:
        m.tma.load(map_, (x, *rows), s, 0, mbar, mode="rows")


@op("writes", attrs=("walk", "at", "offsets", "steps"))
def test_im2col(dst: Writes, src: Reads, mbar: Signals, walk, at, offsets, steps):
    """An im2col load of an NHWC array; `walk` is (lower, upper, channels, pixels)."""


@test_im2col.simulate
def _(m, call, dst, src, mbar):
    from tilejit.ops.moves.copy_async.tma.boxes import Im2col
    a = call.attrs
    map_ = replace(map_of(m, call, src, box=(1,) * len(src.shape), element_strides=(1, *a["steps"], 1)), im2col=Im2col(*a["walk"]))
    m.tma.load(map_, a["at"], dst, 0, mbar, mode="im2col", offsets=a["offsets"])


for nothing in (test_four_rows, test_im2col):
    nothing.infer(lambda g, *args, **attrs: None)
