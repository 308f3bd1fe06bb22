"""Elements of one or two bytes packed in 32-bit registers: bitwise operations and shifts of whole words, and bytes cast to floats."""

import re

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu, needs_module

pytestmark = pytest.mark.usefixtures("assembled_later")
KINDS = ("int8", "uint8", "int16", "uint16")
BITS = ("v & 15", "v | 64", "v ^ w", "(v ^ 3) & w", "v << 3", "v >> 4", "v >> 0", "v << 7", "(v << 4) >> 4", "(v >> 1) | (w << 2)", "v >> 7")
FAR = ("v << 8", "v >> 8", "v >> 16", "v << 16", "v >> (w & 3)", "v << (w & 3)")
CONSTANT = ("v & 0", "0 & v", "(v & 0) | (w << 2)", "((v & 0) ^ w) & 3", "(v & 0) >> 1", "(v & 0) << 1", "v | 0", "v ^ 0", "v & -1", "v | -1")
FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4}


def kernel(text: str):
    lines = ["def k(x, y, out, N: tile.constexpr):", "v, w = tile.load(x[0:N]), tile.load(y[0:N])", f"tile.store(out[0:N], {text})"]
    return tile.jit(source="\n    ".join(lines))


def numbers(kind: str, seed: int) -> np.ndarray:
    """Every byte value, or all 16-bit numbers."""
    one = np.arange(256) if kind[-1] == "8" else np.random.default_rng(seed).integers(0, 1 << 16, 256)
    return np.roll(one, 77 * seed).astype(kind.replace("int", "uint") if kind[0] == "i" else kind).view(kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", BITS)
def test_bitwise_operations_and_constant_shifts_take_one_instruction_per_word(kind, text):
    made = kernel(text).compile(*[tile.ArraySpec((2048,), kind)] * 3, N=2048)
    assert not re.search(r"\.(b|u|s)16 |prmt|cvt\.[us](8|16)|bfe|selp", made.ptx)


@pytest.mark.parametrize("kind, elements, carried", [
    ("int8", 1, ["i8"]), ("uint8", 2, ["i8"] * 2), ("uint8", 4, ["i32"]), ("int8", 8, ["i32"] * 2), ("int16", 1, ["i16"]),
    ("uint16", 2, ["i32"]), ("float16", 1, ["half"]), ("float16", 4, ["i32"] * 2), ("bfloat16", 1, ["bfloat"]),
    ("bfloat16", 2, ["i32"]), ("int32", 2, ["i32"] * 2), ("float32", 2, ["float"] * 2)])
def test_a_loop_carries_narrow_elements_in_words_where_they_fill_whole_words(kind, elements, carried):
    """Of 128 threads with so many elements each; other elements are carried one by one, as they are."""
    loop = tile.jit(source="\n    ".join((
        "def k(x, y, times):", f"v = tile.load(x[0:{128 * elements}])", "for _ in range(times):",
        f"    v = v + tile.load(y[0:{128 * elements}])", f"tile.store(y[0:{128 * elements}], v)")))
    array = tile.ArraySpec((128 * elements,), kind)
    phis = re.findall(r" = phi (\w+) ", loop.compile(array, array, 3).llvm_ir)
    assert phis == ["i32", *carried]  # the first is the index


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_constants_decide_compile_and_are_right(kind):
    """A mask of zero makes a word a constant, which later operations take apart, shift, combine, convert and store."""
    x, y = numbers(kind, 1), numbers(kind, 2)
    for text in CONSTANT:
        text = text.replace("-1", f"tile.cast(-1, tile.{kind})")
        want, made = np.zeros_like(x), kernel(text)
        made.simulate(1, x, y, want, N=256).raise_first()
        np.testing.assert_array_equal(want, eval(text, {"v": x, "w": y, "tile": Numpy}), err_msg=text)
        made.compile(x, y, want, N=256)
    kernel("(v & 0).to(tile.float32)").compile(x, y, np.zeros(256, np.float32), N=256)


class Numpy:
    """The names of the language in `CONSTANT`, with NumPy's meaning."""

    int8, uint8, int16, uint16 = np.int8, np.uint8, np.int16, np.uint16
    cast = staticmethod(lambda x, dtype: np.array(x).astype(dtype))


@pytest.mark.parametrize("kind", ("int8", "uint8"))
@pytest.mark.parametrize("to", FLOATS)
def test_bytes_are_cast_to_floats_without_conversion_instructions(kind, to):
    """One `prmt` and one subtraction per result register; bfloat16 needs one more per pair."""
    made = kernel(f"v.to(tile.{to})").compile(tile.ArraySpec((2048,), kind), tile.ArraySpec((2048,), kind), tile.ArraySpec((2048,), to), N=2048)
    pairs = 1 if to == "float16" else 2
    assert made.ptx.count("prmt") == 8 * pairs and len(re.findall(r"(add|sub)\.(rn\.f32|f16x2)", made.ptx)) == 8 * pairs
    assert "cvt.rn.f" not in made.ptx and made.ptx.count("cvt.rn.bf16x2") == (8 if to == "bfloat16" else 0)


@needs_module("torch")
@needs_gpu()
@in_child(timeout=240)
def test_word_operations_on_the_gpu_agree_with_numpy():
    import torch
    for kind in KINDS:
        x, y = numbers(kind, 1), numbers(kind, 2)
        for text in (*BITS, *FAR, *(t for t in CONSTANT if "-1" not in t)):
            out = torch.zeros(256, dtype=getattr(torch, kind), device="cuda")
            want, got = np.zeros_like(x), kernel(text)
            got.simulate(1, x, y, want, N=256).raise_first()
            got[1](torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda(), out, N=256)
            np.testing.assert_array_equal(out.cpu().numpy(), want, err_msg=f"{kind} {text}")
        for to in FLOATS if kind[-1] == "8" else ():
            for n in (256, 64):
                out = torch.zeros(n, dtype=getattr(torch, to), device="cuda")
                kernel(f"v.to(tile.{to})")[1](torch.from_numpy(x[:n]).cuda(), torch.from_numpy(y[:n]).cuda(), out, N=n)
                np.testing.assert_array_equal(out.double().cpu().numpy(), x[:n].astype(np.float64), err_msg=f"{kind} {to}")
