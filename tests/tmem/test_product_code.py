"""The code emitted for tcgen05.mma: descriptors, columns and scale factors with which the instructions read exactly their operands."""

import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings
from tensor_operands import memory_dtype
from test_any_product import SCALED, any_product, arguments, products, scaled_by_a_pair
from tilejit.layout import tmem_datapath
from tilejit.ops.mma.descriptor import Descriptor
from tilejit.ops.mma.tcgen05_kinds import KINDS, TYPES, Instruction
from tilejit.ops.tmem.descriptor import SharedDescriptor

pytestmark = pytest.mark.usefixtures("assembled_later")

STEP = re.compile(r"add\.(?:u32 t|s64 x), (%\w+), (\d+); add\.s64 y, (%\w+), (\d+);(?: add\.u32 u, (%\w+), (\d+); add\.u32 v, (%\w+), (\d+);)? "
                  r"tcgen05\.mma\.cta_group::(\d)\.kind::(\w+?)(?:\.block_scale\.(\S+))? \[(%\w+)\], (x|\[t\]), y, (\d+)((?:, \[u\], \[v\])?), (\S+);")


@dataclass(frozen=True)
class Written:
    """One instruction: descriptor bits, byte or column offsets from the operands' start, scale factor addresses, qualifiers and
    the flag."""

    a: tuple[int | None, int]
    b: tuple[int, int]
    factors: tuple[int, int] | None
    group: int
    kind: str
    qualifier: str
    instruction: Instruction
    adds: str


def written(ptx: str) -> list[list[Written]]:
    """The instructions in each inline asm."""
    bits = {name: int(value) % (1 << 64) for name, value in re.findall(r"or\.b64\s+(%rd\d+), %rd\d+, (-?\d+);", ptx)}
    found = []
    for text in re.findall(r"// begin inline asm\s(.*?)// end inline asm", ptx, re.DOTALL):
        if "tcgen05.mma." not in text:
            continue
        assert "setp.ne.b32 one, 1, 0; setp.ne.b32 zero, 0, 0;" in text
        steps = []
        for x, x_at, y, y_at, u, u_at, v, v_at, group, kind, qualifier, _, left, idesc, factors, adds in STEP.findall(text):
            assert bool(factors) == bool(u) == bool(qualifier) and (not u or u != v)
            unit = 16 if left == "x" else 1
            columns = (int(u_at), int(v_at)) if u else None
            steps.append(Written((bits[x] if left == "x" else None, unit * int(x_at)), (bits[y], 16 * int(y_at)), columns, int(group), kind, qualifier,
                                 Instruction.decode(int(idesc), kind), adds))
        assert len(steps) == text.count("tcgen05.mma.")
        found.append(steps)
    return found


def held(dtype, shape, span) -> np.ndarray:
    """The address of each element of a swizzled buffer at address 0."""
    layout = tile.swizzled(dtype, shape, span)
    return layout.offset_of(*np.indices(shape), shape=shape)


def read_by(made: tuple[int, int], mn: int, itemsize: int, major: str) -> np.ndarray:
    """The addresses of the elements (mn, k) that an instruction reads, in elements."""
    decoded, start = SharedDescriptor.decode(made[0] & ~0x3FFF)
    assert start == 0
    return Descriptor(major, decoded.span, decoded.leading, decoded.stride).addresses(made[1], mn, itemsize) // itemsize


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products())
def test_instructions_read_exactly_the_elements_of_their_operands(case):
    """For any types, majors and swizzles, one CTA and a pair, A in shared and in tensor memory. The call's accumulate flag applies to the
    first instruction only."""
    one, other, acc, group, rows, n, k, spans, ta, tb, left, negate, _ = case
    arrays, constants = arguments(case)
    size = np.dtype(one).itemsize
    steps, = written(any_product.compile(*arrays, **constants, target="sm_100a").ptx)
    types = [tile.ArraySpec((1,), t).dtype for t in (one, other)]
    a_all, b_all = (held(t, shape, span) for t, shape, span in zip(types, (arrays[0].shape[1:], arrays[1].shape[1:]), spans))
    a_all, b_all = a_all.T if ta else a_all, b_all if tb else b_all.T
    kind = {2: "f16", 4: "tf32"}.get(size, "i8" if acc == tile.int32 else "f8f6f4")
    expected = Instruction(kind, rows * group, n * group, *(TYPES[t.name] for t in types), acc.name, ta and not left, not tb, negated=negate)
    assert len(steps) == k * size // 32 and steps[0].adds.startswith("%p") and {s.adds for s in steps[1:]} <= {"one"}
    for i, s in enumerate(steps):
        assert (s.group, s.kind, s.factors, s.instruction) == (group, kind, None, expected)
        along = slice(i * 32 // size, (i + 1) * 32 // size)
        if left:
            assert s.a == (None, 8 * i)  # 32 bytes of k are 8 columns
        else:
            np.testing.assert_array_equal(read_by(s.a, rows, size, "mn" if ta else "k"), a_all[:, along])
        np.testing.assert_array_equal(read_by(s.b, n, size, "k" if tb else "mn"), b_all[:, along])


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("kind,types,block,factors", SCALED)
@pytest.mark.parametrize("n,k", [(32, 128), (48, 512), (80, 64)])
def test_each_instruction_uses_the_scale_factors_of_its_blocks(kind, types, block, factors, n, k, target):
    """The word, and the byte in it, where `tile.scale_layout` places the factors of the blocks in its 32 bytes of k."""
    dtypes = tuple(memory_dtype(t, kind) for t in types)
    nbytes, chunks = k // (2 if KINDS[kind].k == 64 else 1), k // block
    constants = dict(K=k, BYTES=nbytes, N=n, KIND=kind, TYPES=dtypes, BLOCK=block, CHUNKS=chunks, LAYOUT=tmem_datapath("A", 2 * n))
    scale = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}[factors]
    arrays = (((2, 128, nbytes), "uint8"), ((2, n, nbytes), "uint8"), ((2, 128, chunks), scale), ((2 * n, chunks), scale), ((2, 128, 2 * n), "float32"))
    specs = [tile.ArraySpec(*s) for s in arrays]
    steps, = written(scaled_by_a_pair.compile(*specs, **constants, target=target).ptx)
    whole, per = max(chunks, 4), chunks * 32 // nbytes
    places = [[tile.scale_layout(rows, whole).apply(0, j, shape=(rows, whole))["TCol"] for j in range(chunks)] for rows in (128, -(-2 * n // 32) * 32)]
    buffers = [held(tile.uint8, (rows, nbytes), 32) for rows in (128, n)]
    assert len(steps) == nbytes // 32 and [s.adds for s in steps] == ["zero"] + ["one"] * (len(steps) - 1)
    for i, s in enumerate(steps):
        first = [p[i * per] for p in places]  # bytes per lane, four to a column
        assert s.group == 2 and s.kind == kind and s.qualifier == f"scale_vec::{per}X"
        assert s.factors == tuple(at // 4 for at in first)
        assert s.instruction == Instruction(kind, 256, 2 * n, *types, "float32", False, False, factors, tuple(at % 4 for at in first))
        for made, rows, addresses in zip((s.a, s.b), (128, n), buffers):
            np.testing.assert_array_equal(read_by(made, rows, 1, "k"), addresses[:, 32 * i:32 * i + 32])
