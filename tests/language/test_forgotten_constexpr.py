"""A parameter that should have been a tile.constexpr is named, with what to write, wherever a constant is needed."""

import numpy as np
import pytest
import tilejit as tile


@tile.jit
def helper(x, N: tile.constexpr):
    tile.store(x[0:N], 1.0)


PLACES = [
    'tile.store(x[i:i + B], 1.0)',
    'tile.store(x[0:B], 1.0)',
    'tile.load(y[0:4, 0:B])',
    'v = tile.zeros((B,))',
    'v = tile.zeros((4, B))',
    'v = tile.zeros(B)',
    'v = tile.full((B,), 1.0)',
    'v = tile.ones((B * 2,))',
    'v = tile.arange(B)',
    'v = tile.arange(0, B)',
    'v = tile.alloc((B, 4), tile.float32)',
    'v = tile.alloc((B,), tile.float32)',
    'v = tile.reshape(tile.arange(16), (B, 4))',
    'v = tile.arange(16).reshape((B, 4))',
    'v = tile.broadcast_to(tile.arange(4), (B, 4))',
    'for j in tile.static_range(B): pass',
    'for j in tile.static_range(0, 8, B): pass',
    'for j in tile.range(0, 8, unroll=B): pass',
    'for j in tile.pipelined(range(4), stages=B): pass',
    'v = tile.sum(tile.zeros((4, 4)), axis=B)',
    'v = tile.max(tile.zeros((4, 4)), axis=B)',
    'v = tile.sum(tile.zeros((4, 4)), axis=0, keepdims=B)',
    'v = tile.cumsum(tile.zeros((4, 4)), axis=B)',
    'v = tile.argmax(tile.zeros((4, 4)), axis=B)',
    'v = tile.expand_dims(tile.zeros((4, 4)), B)',
    'v = tile.mbarrier(count=B)',
    'v = tile.mbarrier(n=B)',
    'v = tile.named_barrier(B)',
    'v = tile.ring(B, A=((4, 4), tile.float32))',
    'v = tile.turns(B)',
    'tile.cp_async_wait(B)',
    'tile.bulk_wait(B)',
    'v = y.tiles((B, 4))[0, 0]',
    'v = tile.program_id(B)',
    'v = tile.num_programs(B)',
    'v = tile.stack((tile.arange(4), tile.arange(4)), B)',
    'v = tile.transpose(tile.zeros((4, 4)), (B, 0))',
    'v = tile.swizzled(tile.float32, (8, B), 128)',
    "v = tile.TileLayout(((B, 1, 'm'),))",
    'v = y.shape[B]',
    'v = (1, 2, 3)[B]',
    'v = tile.zeros((4, 4))[0:B]',
    'v = tile.zeros((4, 4))[:, 0:B]',
    'v = tile.topk(tile.zeros((4, 4)), B)',
    'v = tile.histogram(tile.arange(4), B)',
    'v = tile.sort(tile.zeros((4, 4)), descending=B)',
    'with tile.warp(range(0, B)): pass',
    'with tile.warpgroup(0, regs=B): pass',
    'tile.static_assert(B > 2)',
    'v: tile.constexpr = B',
    'v = tile.window(y, (0, 0), (B, 4)); w = tile.load(v[0:B, 0:4])',
    'v = tile.alloc((4, 4), tile.float32, align=B)',
    'tile.copy(x[0:B], x[0:B])',
    't = tile.copy_async(tile.alloc((4,), tile.float32), x[0:B])',
    'v = tile.tensor_map(y[0:B, 0:4])',
    'v = tile.where(True, 1, 2) if tile.zeros((B,)).shape == (1,) else 3',
    'v = tile.int32(4) ** B',
    'with tile.each_warpgroup(range(B)): pass',
    'helper(x, B)',
    'v = tile.dot(tile.zeros((B, 16)), tile.zeros((16, 16)))',
    's = tile.alloc((8, 8), tile.float32); v = s.reshape((B, 4))',
    's = tile.alloc((8, 8), tile.float32); v = s.permute((B, 0))',
    's = tile.alloc((8, 8), tile.float32); v = s.view(tile.int8, (B, 4))',
    's = tile.alloc((8, 8), tile.float32); v = s.reshape(B, 4)',
    'v = tile.tile_order(4, 4, group=B)',
    'C = B + 1; v = tile.zeros((C,))',
]


def message(line: str) -> str:
    kernel = tile.jit(source=f"def k(x, y, B):\n    i = tile.program_id(0)\n    {line}\n")
    with pytest.raises(tile.CompilationError) as caught:
        kernel[1,](np.zeros(64, np.float32), np.zeros((8, 8), np.float32), 4)
    return str(caught.value).split("\n")[0]


@pytest.mark.parametrize("line", PLACES)
def test_the_parameter_is_named_with_its_annotation(line):
    text = message(line)
    assert text.endswith("; B is a number of the launch: declare the parameter as B: tile.constexpr") \
        or "constant; B is a number of the launch" in text
    assert "start:start + BLOCK" not in text


def test_two_parameters_are_both_named():
    kernel = tile.jit(source="def k(x, A, B):\n    tile.store(x[0:A * 2 + B], 1.0)\n")
    with pytest.raises(tile.CompilationError, match="A and B are numbers of the launch: declare the parameter as A: tile.constexpr"):
        kernel[1,](np.zeros(64, np.float32), 2, 4)


@pytest.mark.parametrize("line", ["v = tile.zeros((i,))", "v = tile.zeros((i * B,))", "v = tile.zeros((y.shape[0],))",
                                  "tile.store(x[B:2 * B + i], 1.0)", "for j in range(B): v = tile.zeros((j,))"])
def test_no_parameter_is_named_where_its_annotation_would_not_help(line):
    """The place also depends on what only the device knows."""
    assert "of the launch" not in message(line)
