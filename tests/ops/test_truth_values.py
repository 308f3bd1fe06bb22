"""Truth values as numbers: the assembler must not take 1 for 1.0, nor LLVM -1 for 1."""

import re

import numpy as np
import pytest
import tilejit as tile
from tilejit.toolchain.llvm import selected_signs

from tests.gpu import in_child, needs_gpu

# integer, float of the same width, what is done with the float, the dtype stored, the instruction that does it
READS = [("int16", "float16", "tile.cast({}, tile.int32)", "int32", "F2I"), ("uint16", "float16", "tile.cast({}, tile.float32)", "float32", "HADD2"),
         ("int16", "bfloat16", "tile.cast({}, tile.int64)", "int64", "F2I"), ("int32", "float32", "tile.cast({}, tile.int16)", "int16", "F2I"),
         ("int32", "float32", "tile.cast({}, tile.float16)", "float16", "F2F|F2FP"),
         ("uint32", "float32", "tile.cast({}, tile.bfloat16)", "bfloat16", "F2F|F2FP"),
         ("int32", "float32", "tile.round({})", "float32", "FRND"), ("int32", "float32", "-({})", "float32", "FADD|FMUL|LOP3|FFMA"),
         ("int32", "float32", "tile.cast({}, tile.float64)", "float64", "F2F"), ("int64", "float64", "tile.cast({}, tile.int32)", "int32", "F2I")]
# ways to an integer `i` that is 0 or 1, from the bools p and q; of the last the assembler knows that it is 1, but not LLVM
WAYS = ["tile.cast(p, tile.{0})", "tile.cast(p, tile.{0}) | tile.cast(q, tile.{0})", "tile.cast(p, tile.{0}) & tile.cast(q, tile.{0})",
        "tile.where(p, tile.cast(0, tile.{0}), tile.cast(1, tile.{0}))", "-(-tile.cast(p, tile.{0}))",
        "tile.minimum(tile.cast(tile.abs(y), tile.{0}), tile.cast(1, tile.{0}))",
        "tile.cast(tile.any(tile.broadcast_to(tile.arange(3), (32, 3)), axis=1), tile.{0})"]


def kernel_of(ways: list[str], integer: str, kind: str, use: str, out: str):
    """For each way, reads the bits in a loop, whose trips go on with the result, and once after it."""
    lines = []
    for n, way in enumerate(ways):
        read = use.format(f"tile.bitcast({way.format(integer)}, tile.{kind})")
        lines += [f"v = tile.load(x[{n}, 0:32])", f"y = tile.cast(v, tile.{out})", "for i in range(m):", "    p, q = y != 0, v > 5",
                  f"    y = {read}", f"tile.store(o[{n}, 0, 0:32], y)",
                  "p, q, y = v > 3, v > 5, v", f"tile.store(o[{n}, 1, 0:32], {read})"]
    return tile.jit(source="def k(x, o, m):\n" + "".join(f"    {line}\n" for line in lines))


def arrays(out: str, ways: int = len(WAYS)):
    import ml_dtypes
    x = np.broadcast_to(np.arange(32, dtype=np.int32) % 8, (ways, 32)).copy()
    return x, np.zeros((ways, 2, 32), getattr(ml_dtypes, out, None) or out.rstrip("_"))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("integer, kind, use, out, instruction", READS)
def test_the_instruction_that_reads_the_float_is_in_the_machine_code(integer, kind, use, out, instruction, target):
    """ptxas 13.0 replaces it by a select of 1 or 1.0 if it knows that the bits are 0 or 1."""
    kernel = kernel_of(WAYS[:3], integer, kind, use, out)
    sass = kernel.compile(*arrays(out, 3), 2, target=target, num_warps=1).sass().splitlines()
    reads = [line for line in sass if any(f" {word}" in line for word in instruction.split("|"))]
    assert len(reads) >= 3 * 2
    assert not any("SEL" in line and ("0x3c00" in line or "0x3f80" in line or " 1," in line or "0xffffffff" in line) for line in sass)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("integer, kind", sorted({(integer, kind) for integer, kind, *_ in READS}))
def test_the_assembler_does_not_know_that_a_truth_value_is_one(integer, kind, target):
    """It would fold the comparison, as if 1 were 1.0."""
    kernel = kernel_of([WAYS[-1]], integer, kind, "{} != 1", "bool_")
    sass = kernel.compile(*arrays("bool", 1), 2, target=target, num_warps=1).sass()
    assert "SR_LTMASK" in sass and re.search(r"\b[DFH]SETP?2?\.\S*(NEU|EQ)", sass)


@pytest.mark.parametrize("integer, kind, use, out, instruction", READS)
def test_one_as_the_bits_of_a_float_is_its_smallest_number(integer, kind, use, out, instruction):
    x, o = arrays(out)
    kernel_of(WAYS, integer, kind, use, out)[1,](x, o, 2)
    p, q = x[0] > 3, x[0] > 5
    bits = np.stack([p, p | q, p & q, ~p, p, x[0] != 0, x[0] >= 0]).astype(integer).view(kind if kind != "bfloat16" else arrays("bfloat16")[1].dtype)
    with np.errstate(under="ignore"):
        want = np.round(bits) if "round" in use else -bits if use.startswith("-") else bits.astype(o.dtype)
    np.testing.assert_array_equal(o[:, 1], want)


def test_only_integers_that_may_be_truth_values_are_hidden_from_the_assembler():
    """Bits that come from memory, or by arithmetic from it, cost nothing."""
    @tile.jit
    def unpacked(x, y):
        v = tile.load(x[0:128])
        tile.store(y[0:128], tile.bitcast((v & 0xFF | 0x4B000000) ^ 0x80, tile.float32) - tile.bitcast(v >> 31, tile.float32))

    @tile.jit
    def chosen(x, y, n):
        v = tile.load(x[0:128])
        if n > 3:
            v = tile.minimum(v, 1)
        tile.store(y[0:128], tile.bitcast(v, tile.float32))

    specs = tile.ArraySpec((128,), "int32"), tile.ArraySpec((128,), "float32")
    assert "lanemask" not in unpacked.compile(*specs).ptx and "%lanemask_lt" in chosen.compile(*specs, 3).ptx


@needs_gpu()
@in_child(timeout=300)
def test_a_gpu_reads_the_bits_of_truth_values_as_the_simulator_does():
    for integer, kind, use, out, _ in READS:
        kernel, results = kernel_of(WAYS, integer, kind, use, out), []
        for backend in ("sim", "cuda"):
            x, o = arrays(out)
            kernel[1,](x, o, 2, backend=backend, num_warps=1)
            results.append(o)
        for way, *row in zip(WAYS, *results):
            assert row[0].tobytes() == row[1].tobytes(), (way, use)


# amounts of 64 and more: known to the compiler, to LLVM only, and to neither
AMOUNTS = ["-2", "64", "n * 0 + 65", "tile.where(p, 64, 64)", "tile.cast(n, tile.int32) | 64", "n"]


def shifted_by(amount: str):
    return tile.jit(source=f"def k(x, o, n):\n    p = tile.load(x[0:32]) > 3\n"
                           f"    tile.store(o[0:32], tile.cast(p, tile.int64) << tile.cast({amount}, tile.int64))\n")


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_truth_value_shifted_by_its_64_bits_or_more_is_zero(amount):
    """ptxas 13.0 and 13.5 take a constant amount of ``shl.b64`` modulo 64, if it shifts a select of constants."""
    o = np.ones(32, np.int64)
    shifted_by(amount)[1,](np.arange(32, dtype=np.int32), o, 64)
    np.testing.assert_array_equal(o, 0)
    ptx = shifted_by(amount).compile(tile.ArraySpec((32,), "int32"), tile.ArraySpec((32,), "int64"), 64, target="sm_90a").ptx
    assert "shl.b64" not in ptx if amount in ("-2", "64") else "%lanemask_lt" in ptx


@needs_gpu()
@in_child(timeout=120)
def test_a_gpu_shifts_truth_values_by_their_64_bits_or_more_to_zero():
    for amount in AMOUNTS:
        o = np.ones(32, np.int64)
        shifted_by(amount)[1,](np.arange(32, dtype=np.int32), o, 64, backend="cuda", num_warps=1)
        assert not o.any(), amount


# truth values of a comparison, of two, of a loaded bool, and of the elements of columns
SIGNS = ["v > 3", "(v > 3) & (w > 1)", "tile.cast(w, tile.bool_)",
         "tile.reshape(tile.broadcast_to(tile.all(tile.reshape(v, (4, 8)) > 0, axis=0), (4, 8)), (32,))"]


def signs(integer: str, kind: str):
    """Stores each truth value, negated as an integer, in a dtype: cast at once, and through float32."""
    lines = ["v, w = tile.load(x[0, 0:32]), tile.load(x[1, 0:32])"]
    for n, truth in enumerate(SIGNS):
        lines += [f"i = -tile.cast({truth}, tile.{integer})", f"tile.store(o[{n}, 0, 0:32], tile.cast(i, tile.{kind}))",
                  f"tile.store(o[{n}, 1, 0:32], tile.cast(tile.cast(i, tile.float32), tile.{kind}))"]
    return tile.jit(source="def k(x, o):\n" + "".join(f"    {line}\n" for line in lines))


def sign_arrays(kind: str):
    import ml_dtypes
    v, w = np.arange(32) % 8, np.arange(32) // 8 % 3
    want = np.stack([v > 3, (v > 3) & (w > 1), w != 0, v > 0])
    o = np.zeros((len(SIGNS), 2, 32), getattr(ml_dtypes, kind, None) or kind)
    return np.stack([v, w]).astype(np.int32), o, np.where(want, -1.0, 0.0)


@pytest.mark.parametrize("integer", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "float64", "float8_e5m2"])
def test_a_negated_truth_value_is_minus_one_in_any_float(integer, kind):
    x, o, want = sign_arrays(kind)
    signs(integer, kind)[1,](x, o)
    for cast in range(2):
        np.testing.assert_array_equal(o[:, cast].astype(float), want)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("integer", ["int8", "int16", "int32", "int64"])
def test_no_select_of_one_becomes_a_signed_bfloat16(integer, target):
    """See `toolchain.llvm.selected_signs`."""
    x, o, _ = sign_arrays("bfloat16")
    ptx = signs(integer, "bfloat16").compile(x, o, target=target, num_warps=1).ptx
    for register in re.findall(r"selp\.\w+\s+(%\w+), 1, 0,", ptx):
        assert not re.search(rf"cvt\.rn\.bf16\.s\d+\s+%\w+, {register};", ptx)


def test_vectors_of_signs_are_selected_too():
    text = "%a = sitofp <2 x i1> %b to <2 x bfloat>\n%c = sitofp i1 %d to bfloat\n%e = sitofp i1 %d to float"
    assert selected_signs(text) == ("%a = select <2 x i1> %b, <2 x bfloat> splat (bfloat 0xRBF80), <2 x bfloat> zeroinitializer\n"
                                    "%c = select i1 %d, bfloat 0xRBF80, bfloat 0xR0000\n%e = sitofp i1 %d to float")


@needs_gpu()
@in_child(timeout=120)
def test_a_gpu_makes_minus_one_of_negated_truth_values():
    for kind in ("bfloat16", "float16", "float32", "float64", "float8_e5m2"):
        for integer in ("int8", "int16", "int32", "int64"):
            x, o, want = sign_arrays(kind)
            signs(integer, kind)[1,](x, o, backend="cuda", num_warps=1)
            for cast in range(2):
                np.testing.assert_array_equal(o[:, cast].astype(float), want, err_msg=f"{kind} {integer}")
