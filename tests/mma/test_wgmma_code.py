"""The code emitted for wgmma: the fence before a group, and descriptors, majors and signs with which the instructions read
exactly their operands."""

import re
from dataclasses import dataclass

import numpy as np
import tilejit as tile
from hypothesis import HealthCheck, given, settings
from tilejit.ops.mma.descriptor import Descriptor

from tests.drawn import numbers
from tests.mma.test_wgmma import products, viewed


@dataclass(frozen=True)
class Written:
    """One instruction: N and its elements along k; descriptor bits and byte offsets from the operand's start (None: in
    registers); its other operands."""

    n: int
    k: int
    a: tuple[int, int] | None
    b: tuple[int, int]
    adds: str
    flags: tuple[int, ...]


def groups(ptx: str) -> list[list[Written]]:
    """The instructions of each inline asm, which begins with the fence."""
    bits = {name: int(value) for name, value in re.findall(r"or\.b64\s+(%rd\d+), %rd\d+, (-?\d+);", ptx)}
    found = []
    for text in re.findall(r"// begin inline asm\s(.*?)// end inline asm", ptx, re.DOTALL):
        if "wgmma.mma_async" not in text:
            continue
        assert text.count("wgmma.fence.sync.aligned;") == 1 and text.index("wgmma.fence") < text.index("wgmma.mma_async")
        moved = {name: (bits[start] % (1 << 64), 16 * int(step)) for name, start, step in re.findall(r"add\.s64 (\w+), (%rd\d+), (\d+);", text)}
        made = re.findall(r"wgmma\.mma_async\.\S+\.m64n(\d+)k(\d+)\S* \{[^}]*\}, (\{[^}]*\}|\w+), (\w+), (\w)((?:, -?\d)*);", text)
        assert len(made) == text.count("wgmma.mma_async")
        found.append([Written(int(n), int(k), moved.get(a), moved[b], adds, tuple(map(int, flags.replace(",", " ").split())))
                      for n, k, a, b, adds, flags in made])
    return found


def elements(buffer_layout, shape, at, extents, itemsize) -> tuple[int, np.ndarray]:
    """The start of a slice of a matrix before the swizzle, and the address of each of its elements; the buffer is at 0."""
    plain = buffer_layout.without_swizzle()
    rows, columns = (start + index for start, index in zip(at[1:], np.indices(extents)))
    return plain.offset_of(*at, shape=shape) * itemsize, buffer_layout.offset_of(at[0], rows, columns, shape=shape) * itemsize


def read_by(written: tuple[int, int], start: int, mn: int, itemsize: int, major: str) -> np.ndarray:
    """The addresses of the elements (mn, k) that an instruction reads."""
    bits, step = written
    descriptor, _ = Descriptor.decode(bits & ~0x3FFF, major)
    return descriptor.addresses(start + step, mn, itemsize)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products())
def test_instructions_read_exactly_the_elements_of_their_operands(case):
    """For any types, majors, swizzles and slices; the fence is before each group, and a product from zero reads no accumulator."""
    one, other, acc, warpgroups, (a_shape, a_at, a_is, a_span), (b_shape, b_at, b_is, b_span), ta, tb, source, negate, _, seed = case
    size = np.dtype(one).itemsize
    a, b = numbers((2, *a_shape), one, seed), numbers((2, *b_shape), other, seed)
    (m, k), n = a_is[::-1] if ta else a_is, b_is[0] if tb else b_is[1]
    made = viewed.compile(a, b, np.zeros((m, n), acc.np), 0, A_SHAPE=a_shape, B_SHAPE=b_shape, A_AT=a_at, B_AT=b_at, A_SPAN=a_span, B_SPAN=b_span,
                          A_IS=a_is, B_IS=b_is, TA=ta, TB=tb, ACC=acc, PRECISION="tf32" if one == np.float32 else None, FROM=source, NEGATE=negate, num_warps=4 * warpgroups)
    found = groups(made.ptx)
    first, second = found
    assert [w.adds for w in first] == ["z" if i % (k * size // 32) == 0 else "o" for i in range(len(first))] and {w.adds for w in second} == {"o"}
    layouts = [tile.swizzled(getattr(tile, np.dtype(t).name), (2, *shape), span) for t, shape, span in ((one, a_shape, a_span), (other, b_shape, b_span))]
    a_start, a_all = elements(layouts[0], (2, *a_shape), (0, *a_at), a_is, size)
    b_start, b_all = elements(layouts[1], (2, *b_shape), (1, *b_at), b_is, size)
    a_all, b_all = a_all.T if ta else a_all, b_all if tb else b_all.T  # [m, k] and [n, k]
    tiles, steps, step = m // 64 // warpgroups, k * size // 32, 32 // size
    for made_ in found:
        assert len(made_) == tiles * steps
        for i, w in enumerate(made_):
            t, s = divmod(i, steps)
            assert (w.n, w.k) == (n, step)
            majors = ((int(ta),) if w.a is not None else ()) + (int(not tb),) if size == 2 else ()
            assert w.flags == (() if acc == tile.int32 else (-1 if negate else 1, 1) + majors)
            if w.a is not None:
                np.testing.assert_array_equal(read_by(w.a, a_start, 64, size, "mn" if ta else "k"), a_all[64 * t:64 * t + 64, s * step:(s + 1) * step])
            np.testing.assert_array_equal(read_by(w.b, b_start, n, size, "k" if tb else "mn"), b_all[:, s * step:(s + 1) * step])
