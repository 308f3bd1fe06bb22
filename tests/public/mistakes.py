# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-calls
"""For type checkers: each line that ends in ``# wrong`` is, every other line is right. All functions are annotated."""

from __future__ import annotations

from typing import Any

import numpy as np
import tilejit as tile
from tilejit.kernels import grouped_matmul, matmul
from typing_extensions import assert_type


@tile.jit
def scaled(v: Any, factor: float = 2.0) -> Any:
    return v * factor


@tile.jit(num_warps=4, cluster=(2, 1, 1))
def values(x: Any, y: Any, BLOCK: tile.constexpr = 128) -> None:
    row = tile.program_id(0)
    tile.program_id(0, 1)  # wrong
    v = tile.load(x[row, 0:BLOCK], other=-float("inf"))
    tile.laod(x[row, 0:BLOCK])  # wrong
    tile.load(x[row, 0:BLOCK], msk=row < 3)  # wrong
    tile.load()  # wrong
    v = tile.load(x[row, 0:BLOCK], mask=(row < 3) & (row >= 0), cache="cg")
    v = (v + 1) * 2.0 - v / 3 // 2 % 5**v @ v
    v = 1 + (2 * v) - (3 / v) ** 2
    v = (-v).to(tile.float32) + abs(v)[0:4, None].T
    v = tile.float32(v > 0) + tile.int32(row).to("float16").astype(np.float32)
    assert_type(v, tile._Tile)
    assert_type(v.shape, tuple[int, ...])
    assert_type(v.dtype, tile.DType)
    v = v.sum(axis=0) + tile.sum(v, axis=(0, 1), keepdims=True)
    tile.sum(v, axes=0)  # wrong
    v.shpae  # wrong
    v.maxx()  # wrong
    tile.exp("1")  # wrong
    tile.exp(tile.alloc((8, 8), x.dtype))  # wrong
    v = tile.where(v > 0, v, 0)
    tile.where(v > 0, v)  # wrong
    v = scaled(v) + scaled(v, 3.0)
    scaled(v, 3.0, 4.0)  # wrong
    scaled(v, facter=3.0)  # wrong
    v = tile.reduce(v, 0, tile.maximum)
    both = tile.reduce((v, v), 0, lambda a, b: (a[0] + b[0], a[1] + b[1]))
    v = both[0] + both[1]
    v = tile.asm("mov.b32 $0, $1;", tile.int32, v)
    tile.asm("nanosleep.u32 20;", None)
    v = tile.ptx.lop3.b32(v, v, v, 0xEA)
    tile.ptx.lopp3.b32(v, v, v, 0xEA)  # wrong
    tile.store(y[row, 0:BLOCK], v)
    tile.store(y[row, 0:BLOCK])  # wrong
    tile.store(y[row, 0:BLOCK], v, 1, 2, 3, 4, 5)  # wrong


@tile.jit
def optional(x: tile.Array, bias: tile.Array | None, rest: tuple[tile.Array, ...] = ()) -> None:
    v = tile.load(x[0:8])
    bias[0:8]  # wrong
    if bias is not None:
        v = v + tile.load(bias[0:8])
    for i in tile.static_range(len(rest)):
        v = v + tile.load(rest[i][0:8])
    tile.store(x[0:8], v)
    tile.load(rest[0:8])  # wrong


optional[1](np.zeros(8), None)
optional[1](np.zeros(8), np.zeros(8), [np.zeros(8)])


@tile.jit
def memory(x: Any, y: Any) -> None:
    buffer = tile.alloc((8, 64), x.dtype, layout=tile.swizzled(x.dtype, (8, 64), 128))
    tile.alloc((8, 64))  # wrong
    tile.alloc((8, 64), x.dtype, layuot=tile.auto)  # wrong
    bars = tile.mbarrier(count=1, n=2)
    bar = bars[0]
    with tile.elect():
        bar.arrive_expect_tx(buffer.nbytes)
        tile.copy_async(buffer, x[0:8, 0:64], mbar=bar)
        tile.copy_async(buffer, x[0:8, 0:64], mabr=bar)  # wrong
        tile.copy_async(buffer, x[0:8, 0:64], mbar=buffer)  # wrong
        tile.copy_async(buffer)  # wrong
    with tile.elekt():  # wrong
        pass
    bar.wait(phase=0)
    bar.wait()  # wrong
    bar.wiat(phase=0)  # wrong
    tile.copy_async(buffer[0:4, :], x[0:4, 0:64]).wait(read=True)
    tile.copy(y[0:8, 0:64], buffer.view(tile.int32).reshape(64, 8).permute(1, 0))
    ring = tile.ring(3, A=((8, 64), x.dtype), consumers=2)
    with ring.produce() as slot:
        tile.copy_async(slot.A, x[0:8, 0:64], mbar=slot.full)
    with ring.consum() as slot:  # wrong
        pass
    with tile.each_warpgroup(range(1, 3), regs=232) as w, tile.warp(2):
        acc = tile.mma_async(tile.zeros((64, 64)), buffer, buffer[0:8, :], trans_b=True)
        assert_type(acc, tile._Tile)
        tile.mma_wait(w)  # wrong
    total: Any = 0.0
    for i in tile.pipelined(range(0, 8, 2), stages=3):
        assert_type(i, int)
        total = total + i
    for m, n in tile.pipelined(tile.tile_order(4, 4, "grouped", 8)):
        assert_type(m, tile._Tile)
    for i in tile.pipelined(range(0, 8, 2), stagse=3):  # wrong
        pass


@tile.jit(num_warp=4)  # wrong
def misspelt_option(x: Any) -> None:
    tile.sync()


def launched(kernel: tile.Kernel, x: Any) -> None:
    kernel[1,](x)
    kernel.lunch(x)  # wrong


def host(x: Any, y: Any) -> None:
    values[(4,)](x, y, BLOCK=128)
    values[4, 2](x, y, num_warps=8, backend="sim")
    values[lambda meta: (tile.cdiv(meta["x"].shape[0], meta["BLOCK"]),)](x, y)
    values["4"](x, y)  # wrong
    values.simulat((4,), x, y)  # wrong
    report = values.simulate((4,), x, y, BLOCK=128)
    report.findings[0].lien  # wrong
    print(report.findings[0].line, report.stats["bank conflicts"])
    blocks = dict(BLOCK=128)
    compiled = values.compile(x, tile.ArraySpec((8, 8), "float16"), **blocks, target="sm_90a")
    print(compiled.explain(), compiled.ptx, compiled.copies[0].variant, compiled.copies[0].plan.vec_bytes)
    compiled.explian()  # wrong
    tile.verify(values, (4,), x, y, **blocks, reference=lambda x, y: x)
    tile.verify(values, (4,), x, y)  # wrong
    tuned = tile.autotune([dict(BLOCK=128)], key=("x",))(values)
    tuned[4,](x, y)
    tile.autotune([dict(BLOCK=128)])(host)  # wrong
    assert_type(tile.cdiv(5, 2), int)
    assert_type(tile.to_device(x).numpy().tolist(), Any)
    print(tile.S[(8, 64) : (64, 1)], tile.empty((4, 4), "float32").shape)
    matmul(x, y, epilogue=scaled, tiles=(x,))
    matmul(x, y, eplogue=scaled)  # wrong
    grouped_matmul([x], [y])
    spec = tile.BufferSpec((8, 64), "float16", "shared")
    tile.plan_copy(spec, tile.BufferSpec((8, 64), "float16", "global"), variant="tma")
    tile.plan_copy(tile.BufferSpec((8, 64), "float16"), x)  # wrong
    try:
        tile.kernels.matmul(x, y)
    except tile.CompilatoinError:  # wrong
        pass
    except (tile.CompilationError, tile.LaunchError) as error:
        print(error)
