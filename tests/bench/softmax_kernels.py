"""Two kernels for row softmax: for rows that fit in registers, and for long 16-bit rows, which are read three times from shared memory."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def in_registers(x, out, BLOCK: tile.constexpr, ROWS: tile.constexpr):
    """ROWS rows per CTA, held in registers."""
    row = tile.program_id(0) * ROWS
    v = tile.load(x[row:row + ROWS, 0:BLOCK], other=-float("inf")).to(tile.float32)
    v = tile.exp(v - tile.max(v, axis=1, keepdims=True), fast=True)
    tile.store(out[row:row + ROWS, 0:BLOCK], v * (1.0 / tile.sum(v, axis=1, keepdims=True)))


@tile.jit
def in_shared(x, out, BLOCK: tile.constexpr, CHUNK: tile.constexpr):
    """One row per CTA, copied to shared memory by TMA. It uses few registers, so that several CTAs run on an SM and overlap."""
    stage = tile.alloc((BLOCK,), x.dtype)
    full = tile.mbarrier(count=1)
    row = tile.program_id(0)
    with tile.elect():
        full.arrive_expect_tx(stage.nbytes)
        tile.copy_async(stage, x[row, 0:BLOCK], mbar=full)
    full.wait(phase=0)
    largest = tile.full((CHUNK,), -float("inf"), tile.float32)
    for i in tile.static_range(BLOCK // CHUNK):
        largest = tile.maximum(largest, tile.load(stage[i * CHUNK:(i + 1) * CHUNK]).to(tile.float32))
    top = tile.max(largest)
    total = tile.zeros((CHUNK,), tile.float32)
    for i in tile.static_range(BLOCK // CHUNK):
        total += tile.exp(tile.load(stage[i * CHUNK:(i + 1) * CHUNK]).to(tile.float32) - top, fast=True)
    scale = 1.0 / tile.sum(total)
    for i in tile.static_range(BLOCK // CHUNK):
        v = tile.exp(tile.load(stage[i * CHUNK:(i + 1) * CHUNK]).to(tile.float32) - top, fast=True)
        tile.store(out[row, i * CHUNK:(i + 1) * CHUNK], v * scale)


def softmax(x, out, rows: int, columns: int, nbytes: int):
    """A function without arguments that launches the kernel for this shape; elements have `nbytes` bytes."""
    if nbytes == 2 and columns >= 16384:
        launch, options = in_shared[(rows,)], dict(BLOCK=columns, CHUNK=2048, num_warps=4, min_ctas=3)
    else:
        warps = {1024: 2 if nbytes == 4 else 4, 2048: 2 if nbytes == 4 else 4, 4096: 16 if nbytes == 4 else 8, 8192: 16 if nbytes == 4 else 4,
                 16384: 16, 32768: 32}[columns]
        per = 2 if nbytes == 2 and columns in (1024, 4096) else 1
        launch, options = in_registers[(rows // per,)], dict(BLOCK=columns, ROWS=per, num_warps=warps)
    return lambda: launch(x, out, **options)
