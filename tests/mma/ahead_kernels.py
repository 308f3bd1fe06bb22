"""Kernels whose pipelined loops load ahead with other values, under conditions, and by several index tiles, with what NumPy makes of them."""

from __future__ import annotations

import numpy as np
import tilejit as tile


@tile.jit
def filled(A, out, n, OTHER: tile.constexpr, FORM: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """The sum of blocks of 32 columns of `A`, in which `OTHER` stands for what is out of bounds or masked off."""
    r, acc = tile.arange(32), tile.zeros((32, 32), tile.float32 if A.dtype.is_float else tile.int64)
    for i in tile.pipelined(range(0, A.shape[1], 32), stages=STAGES, warp_specialize=ROLES):
        if FORM == "bounds":
            x = tile.load(A[0:32, i:i + 32], other=OTHER)
        elif FORM == "halo":
            x = tile.load(A[-2 + r[:, None] + n * 0, (i - 16 + r)[None, :]], other=OTHER)
        elif FORM == "limit":
            x = tile.load(A[0:32, i:i + 32], mask=(i + r < n)[None, :], other=OTHER)
        elif FORM == "pieces":
            x = tile.load(A[0:32, i:i + 32], mask=(r[:, None] ^ r[None, :]) % 3 != 0, other=OTHER)
        elif FORM == "carried":
            x = tile.load(A[0:32, i:i + 32], mask=acc > 0, other=OTHER)
        else:
            x = tile.load(A[0:32, i:i + 32], mask=(r < n % 7)[:, None], other=acc.to(A.dtype))
        acc = acc + x.to(acc.dtype)
    tile.store(out[0:32, 0:32], acc)


FORMS = "bounds", "halo", "limit", "pieces", "carried", "tile"


def filled_sum(a: np.ndarray, n: int, other, form: str) -> np.ndarray:
    wide = np.int64 if a.dtype.kind in "iu" else np.float32
    acc, r = np.zeros((32, 32), wide), np.arange(32)
    for i in range(0, a.shape[1], 32):
        rows, columns = (r - 2, i - 16 + r) if form == "halo" else (r, i + r)
        inside = ((rows >= 0) & (rows < len(a)))[:, None] & ((columns >= 0) & (columns < a.shape[1]))[None, :]
        kept = {"limit": (columns < n)[None, :], "pieces": (r[:, None] ^ r[None, :]) % 3 != 0, "carried": acc > 0,
                "tile": (r < n % 7)[:, None]}.get(form, True)
        x = a[np.clip(rows, 0, len(a) - 1)[:, None], np.clip(columns, 0, a.shape[1] - 1)[None, :]]
        instead = acc.astype(a.dtype) if form == "tile" else np.array(other).astype(a.dtype)
        acc = acc + np.where(inside & kept, x, instead).astype(wide)
    return acc


@tile.jit
def both_filled(A, B, C, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """A product of operands in which 1 and 2 stand for what is out of bounds."""
    acc = tile.zeros((64, 64))
    for k in tile.pipelined(range(0, A.shape[1], 32), stages=STAGES, warp_specialize=ROLES):
        acc = tile.dot(tile.load(A[0:64, k:k + 32], other=1), tile.load(B[k:k + 32, 0:64], other=2), acc)
    tile.store(C[0:64, 0:64], acc)


@tile.jit
def blocks(A, B, T, C, FORM: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """The product of those blocks of 32 columns of `A` and rows of `B` that the table `T` names, -1 for none."""
    acc, m = tile.zeros((64, 64)), tile.program_id(0) * 64
    for i in tile.pipelined(range(T.shape[0]), stages=STAGES, warp_specialize=ROLES):
        k = tile.load(T[i]) * 32
        if FORM == "continue":
            if k < 0:
                continue
            acc = tile.dot(tile.load(A[m:m + 64, k:k + 32]), tile.load(B[k:k + 32, 0:64]), acc)
        elif FORM == "else":
            if k >= 0:
                a = tile.load(A[m:m + 64, k:k + 32])
            else:
                a = tile.load(A[m:m + 64, 0:32]) * 0
            acc = tile.dot(a, tile.load(B[tile.maximum(k, 0):tile.maximum(k, 0) + 32, 0:64]), acc)
        elif FORM == "nested":
            b = tile.load(B[tile.maximum(k, 0):tile.maximum(k, 0) + 32, 0:64])
            if k >= 0:
                if k % 64 == 0:
                    acc = tile.dot(tile.load(A[m:m + 64, k:k + 32]), b, acc)
                else:
                    acc = tile.dot(tile.load(A[m:m + 64, k:k + 32], other=1) * 1, b, acc)
        else:
            if k >= 0:
                acc += tile.dot(tile.load(A[m:m + 64, k:k + 32]), tile.load(B[k:k + 32, 0:64]))
                acc += tile.max(tile.load(A[m:m + 64, k:k + 32], other=-float("inf")).to(tile.float32), axis=1)[:, None]
    tile.store(C[m:m + 64, 0:64], acc)


BRANCHES = "continue", "else", "nested", "reduced"


def blocks_product(a: np.ndarray, b: np.ndarray, table: np.ndarray, form: str) -> np.ndarray:
    x, y = a.astype(np.float32), b.astype(np.float32)
    c = np.zeros((len(a), 64), np.float32)
    for at in table[table >= 0] * 32:
        c += x[:, at:at + 32] @ y[at:at + 32]
        if form == "reduced":
            c += x[:, at:at + 32].max(1)[:, None]
    return c


@tile.jit
def paged(Q, K, T, out, n, R: tile.constexpr, D: tile.constexpr, FORM: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr = False):
    """Products with the keys of a cache (page, head, slot, element), whose pages the table `T` names; those of blocks are added up."""
    acc, q, h = tile.zeros((16, R)), tile.load(Q[0:16, 0:D]), tile.program_id(0)
    r, d = tile.arange(R), tile.arange(D)
    for i in tile.pipelined(range(0, n, R), stages=STAGES, warp_specialize=ROLES):
        j = i + r
        if FORM == "pages":
            p = tile.load(T[i // 8 + tile.arange(R // 8)], other=-1)
            k = tile.load(K[p[:, None, None], h, tile.arange(8)[None, :, None], d[None, None, :]])
            acc = tile.dot(q, k.reshape((R, D)).T, acc)
        else:
            page = tile.load(T[j // 8], mask=j < n, other=-1)
            if FORM == "keys":
                k = tile.load(K[page[:, None], h, (j % 8)[:, None], d[None, :]])
            elif FORM == "transposed":
                k = tile.load(K[page[None, :], h, (j % 8)[None, :], d[:, None]]).T
            elif FORM == "masked":
                k = tile.load(K[page, h, j % 8, 0:D], mask=(j < n - 3)[:, None])
            else:
                k = tile.load(K[page[:, None], h, (j % 8)[:, None], d[None, :]], mask=(j < n - 3)[:, None], other=2)
            acc = tile.dot(q, k.T, acc)
    tile.store(out[h, 0:16, 0:R], acc)


PAGED = "pages", "keys", "transposed", "masked", "filled"


def paged_products(q: np.ndarray, keys: np.ndarray, table: np.ndarray, n: int, rows: int, form: str) -> np.ndarray:
    out = np.zeros((keys.shape[1], 16, rows), np.float32)
    last = len(table) * 8 if form == "pages" else n if form in ("keys", "transposed") else n - 3
    for head in range(keys.shape[1]):
        for first in range(0, n, rows):
            k = np.zeros((rows, keys.shape[3]), np.float32)
            for row, j in enumerate(range(first, first + rows)):
                k[row] = keys[table[j // 8], head, j % 8] if j < last else 2 if form == "filled" else 0
            out[head] += q.astype(np.float32) @ k.T
    return out


@tile.jit
def convolved(X, W, Y, S: tile.constexpr, BM: tile.constexpr, BC: tile.constexpr, STAGES: tile.constexpr):
    """A convolution of images (image, row, column, channel) with a filter (3, 3, channel, result), as an implicit product."""
    height, width = X.shape[1], X.shape[2]
    m, acc = tile.program_id(0) * BM + tile.arange(BM), tile.zeros((BM, 16))
    image, y, x = m // (height * width), m // width % height, m % width
    blocks = tile.cdiv(X.shape[3], BC)
    for i in tile.pipelined(range(9 * blocks), stages=STAGES):
        tap, c = i // blocks, i % blocks * BC
        row, column = y + tap // 3 - 1, x + tap % 3 - 1
        a = tile.load(X[image[:, None], row[:, None], column[:, None], (c + tile.arange(BC))[None, :]])
        acc = tile.dot(a, tile.load(W[tap // 3, tap % 3, c:c + BC, 0:16]), acc)
    tile.store(Y[m, 0:16], acc)


def convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    n, height, width, channels = x.shape
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = sum(padded[:, r:r + height, s:s + width] @ w[r, s].astype(np.float32) for r in range(3) for s in range(3))
    return out.reshape(-1, w.shape[3])
