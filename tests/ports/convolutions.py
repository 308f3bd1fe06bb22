"""Convolutions of images, as a product and of each channel for itself; the largest element of windows; FFT."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, normal, port

# A convolution as a product whose operand is gathered: rows are the pixels of all images, columns the filters, and the
# sum runs over the places of the filter and the channels. Pixels around the image lie out of bounds and read as 0.

@tile.jit
def convolve(x, weight, bias, out, H: tile.constexpr, W: tile.constexpr, STRIDE: tile.constexpr, PAD: tile.constexpr,
             BM: tile.constexpr, BN: tile.constexpr, BC: tile.constexpr):
    pixel, n = tile.program_id(0) * BM + tile.arange(BM), tile.program_id(1) * BN
    image, row, column = pixel // W // H, pixel // W % H, pixel % W
    acc = tile.zeros((BM, BN))
    for r in range(weight.shape[0]):
        for s in range(weight.shape[1]):
            for c in range(0, x.shape[3], BC):
                a = tile.load(x[image, row * STRIDE + r - PAD, column * STRIDE + s - PAD, c:c + BC])
                acc = tile.dot(a, tile.load(weight[r, s, c:c + BC, n:n + BN]), acc)
    tile.store(out[image, row, column, n:n + BN], acc + tile.load(bias[n:n + BN])[None, :])


def windows(x: np.ndarray, size: int, stride: int, pad: int, fill: float) -> np.ndarray:
    """The windows of images NHWC: [n, h, w, c, size, size]."""
    padded = np.pad(exact(x), [(0, 0), (pad, pad), (pad, pad), (0, 0)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::stride, ::stride]


@port
def implicit_convolution(on: Machine):
    x, weight, bias = normal(2, 9, 11, 20, dtype=bfloat16), normal(3, 3, 20, 24, dtype=bfloat16), normal(24)
    out = on.empty((2, 5, 6, 24), bfloat16)
    convolve[2, 1](on(x), on(weight), on(bias), out, H=5, W=6, STRIDE=2, PAD=1, BM=32, BN=32, BC=32)
    on.check(out, np.einsum("nhwcrs,rsck->nhwk", windows(x, 3, 2, 1, 0), exact(weight)) + bias)


@tile.jit
def convolve_each_channel(x, weight, out, SIZE: tile.constexpr, BH: tile.constexpr, BW: tile.constexpr,
                          BC: tile.constexpr):
    h, c, image = tile.program_id(0) * BH, tile.program_id(1) * BC, tile.program_id(2)
    for w in range(0, x.shape[2], BW):
        acc = tile.zeros((BH, BW, BC))
        for r, s in [(r, s) for r in range(SIZE) for s in range(SIZE)]:
            i, j = h + r - SIZE // 2, w + s - SIZE // 2
            acc += tile.load(x[image, i:i + BH, j:j + BW, c:c + BC]) * tile.load(weight[r, s, c:c + BC])
        tile.store(out[image, h:h + BH, w:w + BW, c:c + BC], acc)


@port
def depthwise_convolution(on: Machine):
    x, weight = normal(2, 6, 7, 20, dtype=np.float16), normal(3, 3, 20, dtype=np.float16)
    out = on.empty(x.shape, np.float16)
    convolve_each_channel[2, 2, 2](on(x), on(weight), out, SIZE=3, BH=4, BW=4, BC=16)
    on.check(out, np.einsum("nhwcrs,rsc->nhwc", windows(x, 3, 1, 1, 0), exact(weight)))


@tile.jit
def largest_of_windows(x, out, places, SIZE: tile.constexpr, STRIDE: tile.constexpr, PAD: tile.constexpr,
                       BH: tile.constexpr, BW: tile.constexpr):
    image, channel, h = tile.program_id(0), tile.program_id(1), tile.program_id(2) * BH
    rows = (h + tile.arange(BH))[:, None] * STRIDE - PAD
    for w in range(0, out.shape[2], BW):
        columns = (w + tile.arange(BW))[None, :] * STRIDE - PAD
        most, place = tile.full((BH, BW), -float("inf")), tile.full((BH, BW), -1)
        for r in tile.static_range(SIZE):
            for s in tile.static_range(SIZE):
                v = tile.load(x[image, rows + r, columns + s, channel], other=-float("inf"))
                place = tile.where(v > most, (rows + r) * x.shape[2] + columns + s, place)
                most = tile.maximum(most, v)
        tile.store(out[image, h:h + BH, w:w + BW, channel], most)
        tile.store(places[image, h:h + BH, w:w + BW, channel], place)


@port
def max_pool(on: Machine):
    x = normal(2, 9, 10, 3)
    out, places = on.empty((2, 5, 5, 3), "float32"), on.empty((2, 5, 5, 3), "int32")
    largest_of_windows[2, 3, 2](on(x), out, places, SIZE=3, STRIDE=2, PAD=1, BH=4, BW=4)
    want = windows(x, 3, 2, 1, -np.inf).max((-1, -2))
    on.check(out, want, 0)
    at = on.get(places)
    image, channel = np.indices(at.shape)[[0, 3]]
    on.check(x.reshape(2, 90, 3)[image, at, channel], want, 0)


# FFT of N = A x B points by the matrices of the shorter transforms (Bailey's four steps; tcFFT, Li et al. 2021).

@tile.jit
def roots(i, j, N: tile.constexpr):
    """The powers exp(-2 pi sqrt(-1) i j / N), as (cosine, sine)."""
    sine, cosine = tile.sincos((i * j % N).to(tile.float32) * (-6.283185307179586 / N))
    return cosine, sine


@tile.jit
def complex_dot(a, b):
    (re, im), (re_b, im_b) = a, b
    return tile.dot(re, re_b) - tile.dot(im, im_b), tile.dot(re, im_b) + tile.dot(im, re_b)


@tile.jit
def fft_of_rows(x, out, A: tile.constexpr, B: tile.constexpr):
    row, a, b = tile.program_id(0), tile.arange(A), tile.arange(B)
    points = tile.load(x[row, 0:A * B, 0]).reshape(A, B), tile.load(x[row, 0:A * B, 1]).reshape(A, B)
    re, im = complex_dot(roots(a[:, None], a[None, :], A), points)
    c, s = roots(a[:, None], b[None, :], A * B)
    re, im = complex_dot((re * c - im * s, re * s + im * c), roots(b[:, None], b[None, :], B))
    tile.store(out[row, 0:A * B, 0], re.T.reshape(A * B))
    tile.store(out[row, 0:A * B, 1], im.T.reshape(A * B))


@port
def fft(on: Machine):
    x = normal(3, 120, 2)
    out = on.empty((3, 120, 2), "float32")
    fft_of_rows[3,](on(x), out, A=12, B=10)
    want = np.fft.fft(exact(x[..., 0]) + 1j * exact(x[..., 1]))
    on.check(out, np.stack([want.real, want.imag], -1))
