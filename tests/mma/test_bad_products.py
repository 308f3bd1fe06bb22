"""Unsupported tensor core operations and pipelines are errors at their line that say what is needed, before the assembler runs."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError
from tilejit.toolchain import assembler

SPEC = tile.ArraySpec((512, 512), "float32")


@pytest.fixture(autouse=True)
def no_assembler(monkeypatch):
    """Fails if a test of this file reaches the assembler."""
    def asked(*_, **__):
        raise AssertionError("the assembler was asked")
    monkeypatch.setattr(assembler, "assemble", asked)


def refused(lines, words, line, target="sm_90a", **options):
    """The error's message, checked to be at the given line of the kernel body `lines`, counted from 1."""
    kernel = tile.jit(source="def wrong(x):\n" + "".join(f"    {text}\n" for text in lines))
    with pytest.raises(CompilationError, match=words) as caught:
        kernel.compile(SPEC, target=target, **options)
    assert caught.value.loc.line == line + 1, str(caught.value)
    assert lines[line - 1].strip() in str(caught.value)


def operands(a, b, dtype, other=None, a_span=128, b_span=128):
    """Lines that allocate two swizzled operands."""
    laid = lambda shape, name, span: "" if span is None else f', layout=tile.swizzled("{name}", {shape}, {span})'
    return [f'{v} = tile.alloc({shape}, "{name}"{laid(shape, name, span)})' for v, shape, name,
            span in (("a", a, dtype, a_span), ("b", b, other or dtype, b_span))]


WIDE = {"float16": 64, "bfloat16": 64, "float32": 32, "float8_e4m3fn": 128, "float8_e5m2": 128, "int8": 128, "uint8": 128}


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("n", [4, 12, 100, 252, 264])
def test_an_unsupported_number_of_columns_is_an_error(dtype, n):
    """For every type."""
    precision = ', precision="tf32"' if dtype == "float32" else ""
    refused([*operands((64, WIDE[dtype]), (-(-n // 8) * 8, WIDE[dtype]), dtype), f"tile.mma_async(None, a, b[0:{n}], trans_b=True{precision})"],
            f"there is no m64n{n}k", 3)


@pytest.mark.parametrize("n", [40, 56, 72, 248])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_support_fewer_numbers_of_columns(dtype, n):
    refused([*operands((64, 128), (n, 128), dtype), "tile.mma_async(None, a, b, trans_b=True)"], f"there is no m64n{n}k32", 3)


LAST = "tile.mma_async(None, a, b, trans_b=True)"


@pytest.mark.parametrize("lines,words", [
    (operands((64, 64), (64, 64), "bfloat16", a_span=None), r"as layout=tile.auto or tile.swizzled\(dtype, shape, 128\) of its allocation lays them"),
    (operands((64, 64), (64, 64), "bfloat16", b_span=None), "b: its elements are neither in columns of 16 bytes nor in atoms"),
    (['a = tile.alloc((64, 64), "float16", layout=tile.S[(64, 64):(72, 1)])', operands((64, 64), (64, 64), "float16")[1]],
     "a: its elements are neither"),
    (['a = tile.alloc((64, 64), "float16", layout=tile.S[(64, 64):(128, 2)])', operands((64, 64), (64, 64), "float16")[1]],
     "a: its elements are neither"),
    ([operands((64, 64), (64, 64), "float16")[0], 'b = tile.alloc((64, 64), "float16", layout=tile.Swizzle(3, 3, 3) @ tile.S[(64, '
                                                  '64):(128, 1)])'], "b: "),
    ([operands((64, 64), (64, 64), "float16")[0], 'b = tile.alloc((64, 64), "float16", layout=tile.Swizzle(2, 2, 4) @ tile.S[(64, '
                                                  '64):(64, 1)])'], "b: the swizzle"),
    ([*operands((80, 64), (64, 64), "float16"), "a = a[4:68]"], "a: it begins at a multiple of 512 bytes, and 1024 are needed"),
    (['a = tile.alloc((64, 64), "float16", layout=tile.swizzled("float16", (64, 64), 128), align=512)',
      operands((64, 64), (64, 64), "float16")[1]], "a: the buffer is aligned to 512 bytes, and 1024 are needed"),
    ([*operands((64, 128), (64, 64), "float16"), "a = a[:, 8:72]"], "a: its elements are neither in columns"),
    ([*operands((64, 64), (64, 64), "float16"), "a, b = a[:, 8:40], b[:, 8:40]"], "a: a part of it begins neither at a multiple of 32 bytes"),
    ([*operands((64, 128), (64, 64), "float16"), "at = tile.program_id(0)", "a = a[:, at:at + 64]"], "a: elements to .64 of dimension 1 cut across"),
])
def test_operands_that_no_descriptor_expresses_are_errors(lines, words):
    """Unswizzled rows, padding, every other element, other swizzles, slices and buffers with unaligned starts."""
    refused([*lines, LAST], words, len(lines) + 1)


@pytest.mark.parametrize("call,words", [
    ("tile.mma_async(None, a, b, precision='tf32')", "is not contiguous along k, as elements of 4 bytes must be"),
    ("tile.mma_async(None, a, b, trans_a=True, trans_b=True, precision='tf32')", "is not contiguous along k, as elements of 4 bytes must be"),
    ("tile.mma_async(None, a, b, trans_b=True)", "precision='tf32' for float32 operands"),
    ("tile.mma_async(None, a, b, trans_b=True, precision='half')", "precision is None or 'tf32'"),
])
def test_float32_operands_must_be_k_major(call, words):
    refused([*operands((64, 64), (64, 64), "float32"), call], words, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float8_e4m3fn", "int8", "uint8"])
@pytest.mark.parametrize("call", ["tile.dot(a, b, precision='tf32')", "tile.dot(tile.load(a), tile.load(b), precision='tf32', variant='fma')",
                                  "tile.mma(None, a, b, precision='tf32')", "tile.mma_async(None, a, b, precision='tf32')"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_a_precision_for_operands_other_than_float32_is_an_error(call, dtype, target):
    words = "precision='tf32' rounds operands of float32 to 10 bits of mantissa, and %s is %s: leave it out"
    refused([*operands((64, 64), (64, 64), dtype, a_span=None, b_span=None), call], words % ("a", dtype), 3, target)
    if dtype.startswith(("float", "bfloat")):  # an integer and a float cannot be operands of one product, whatever the precision
        refused([*operands((64, 64), (64, 64), "float32", dtype, None, None), call], words % ("b", dtype), 3, target)


@pytest.mark.parametrize("dtype,kind", [("float16", None), ("float8_e5m2", "f8f6f4"), ("int8", "i8"), ("float16", "tf32")])
def test_a_precision_for_tensor_memory_products_of_operands_other_than_float32_is_an_error(dtype, kind):
    lines = [*operands((128, 64), (64, 64), dtype, a_span=64, b_span=64), 'acc = tile.alloc((128, 64), "float32", scope="tmem")', "with tile.elect():",
             f"    tile.mma_async(acc, a, b, trans_b=True, kind={kind!r}, precision='tf32')"]
    refused(lines, f"precision='tf32' rounds operands of float32 .*and a is {dtype}", 5, "sm_100a")


@pytest.mark.parametrize("a, b", [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_float16_by_bfloat16_has_no_kind_of_tensor_memory_product(a, b):
    """Nor has a dot whose variant is one."""
    lines = operands((128, 64), (64, 64), a, b)
    into = [*lines, 'acc = tile.alloc((128, 64), "float32", scope="tmem")', "with tile.elect():",
            "    tile.mma_async(acc, a, b, trans_b=True)"]
    short = {"float16": "f16", "bfloat16": "bf16"}
    refused(into, f"there is no kind for {short[a]} by {short[b]}: the kinds are f16, tf32", 5, "sm_100a")
    refused([*lines, "tile.dot(a, b, trans_b=True, variant='tcgen05')"],
            rf"needs types that a kind of tcgen05\.mma multiplies .*: {a} by {b}", 3, "sm_100a")


@pytest.mark.parametrize("call", ["tile.copy_async(s, h[0:64, 0:64], precision='tf32').wait()", "tile.copy_async(s, h[0:64, 0:64], precision='tf32')",
                                  "tile.copy_async(s, h[0:64, 1:65], precision='tf32').wait()"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_a_rounding_precision_for_copies_of_other_dtypes_than_float32_is_an_error(call, target):
    """On every path, including ordinary loads and stores."""
    kernel = tile.jit(source=f'def wrong(h):\n    s = tile.alloc((64, 64), "float16")\n    {call}\n')
    with pytest.raises(CompilationError, match="precision='tf32' on float16|vector: needs no precision=") as caught:
        kernel.compile(tile.ArraySpec((512, 512), "float16"), target=target)
    assert caught.value.loc.line == 3


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("options", ["trans_a=True, trans_b=True", ""])
def test_operands_of_8_bits_must_be_k_major_for_wgmma(dtype, options):
    """Only 16-bit types can be MN-major."""
    refused([*operands((64, 64), (64, 64), dtype, None, 64, 64), f"tile.mma_async(None, a, b, {options})"], f"of {dtype} is not contiguous along k", 3)


@pytest.mark.parametrize("shape,options,words", [
    ((64, 48), "", r"b of int8 is not contiguous along k.*hold it as \[n, k\], with trans_b=True"),       # rows that fit no swizzle
    ((64, 128), "trans_a=True, trans_b=True", r"a of int8 is not contiguous along k.*hold it as \[m, k\]"),  # slices that begin inside the swizzle
])
def test_operands_of_8_bits_with_the_wrong_major_are_refused_for_that_and_not_for_their_layout(shape, options, words):
    lines = [f'a = tile.alloc({shape if "trans_a" in options else (64, 64)}, "int8", layout=tile.auto)',
             f'b = tile.alloc({shape if "trans_a" not in options else (64, 64)}, "int8", layout=tile.auto)']
    refused([*lines, f"tile.mma_async(None, a, b, {options})"], words, 3)


@pytest.mark.parametrize("columns", [24, 40, 72, 104, 232])
def test_rows_that_fit_no_swizzle_are_laid_out_in_16_byte_columns_if_the_product_takes_nothing_else(columns):
    """By tile.auto; `dot` uses mma_sync for plain rows, which is faster than columns filled by TMA. Explicit row-major
    allocations get an error."""
    lines = ['a = tile.alloc((64, 64), "float16", layout=tile.auto)', f'b = tile.alloc((64, {columns}), "float16", layout=%s)', "tile.%s"]
    kernel = lambda layout, call: tile.jit(source="def k(x):\n" + "".join(f"    {t}\n" for t in (lines[0], lines[1] % layout, lines[2] % call)))
    call, laid = "mma_async(None, a, b); tile.mma_commit(); tile.mma_wait(0)", f'tile.swizzled("float16", (64, {columns}), 0)'
    for made, chosen, variant in ((kernel("tile.auto", call).compile(SPEC), "columns of 16 bytes", "wgmma"),
                                  (kernel("tile.auto", "dot(a, b)").compile(SPEC), "row-major", "mma_sync"),
                                  (kernel("tile.auto", "dot(a, b, variant='wgmma')").compile(SPEC), "columns of 16 bytes", "wgmma")):
        assert [layout.chosen for layout in made.layouts] == ["a swizzle of 128 bytes", chosen] and made.products[0].variant == variant
    refused([lines[0], lines[1] % None, lines[2] % call], r"as layout=tile.auto or tile.swizzled\(dtype, shape, 0\) of its allocation lays them", 3)
    for layout in ("tile.auto", "None"):
        warned, = kernel(layout, "dot(a, b)").compile(SPEC).warnings
        assert f"no swizzle fits 64 rows of {2 * columns} bytes" in warned and "layout=tile.auto" not in warned
    assert kernel(laid, "dot(a, b)").compile(SPEC).products[0].variant == "wgmma"


@pytest.mark.parametrize("product", ["a, b[:, 40:128]", "b[:, 32:96], a, trans_a=True"])
def test_a_slice_that_begins_inside_a_swizzle_row_is_not_called_unswizzled(product):
    """If another path is used because of it, the warning has the same text."""
    lines, words = operands((64, 64), (64, 256), "float16"), "begins inside the 64 elements of a row of the swizzle and extends beyond them: begin it at a multiple of 64"
    refused([*lines, f"tile.mma_async(None, {product})"], words, 3)
    kernel = tile.jit(source="def k(x):\n" + "".join(f"    {t}\n" for t in [*lines, f"tile.dot({product})"]))
    warned, = kernel.compile(SPEC).warnings
    assert words in warned and "layout=tile.auto" not in warned


@tile.jit
def staged(A, B, C, LAYOUT: tile.constexpr, ROLES: tile.constexpr):
    a, b = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 72), B.dtype, layout=LAYOUT)
    acc = tile.zeros((64, 72))
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=3, warp_specialize=ROLES):
        tile.copy_async(a, A[0:64, k:k + 64])
        tile.copy_async(b, B[k:k + 64, 0:72])
        acc = tile.dot(a, b, acc)
    tile.store(C[0:64, 0:72], acc)


@pytest.mark.parametrize("roles", [False, True])
def test_an_error_for_rows_that_fit_no_swizzle_suggests_a_layout_in_pipelined_loops_too(roles):
    specs = tile.ArraySpec((64, 256), "float16"), tile.ArraySpec((256, 72), "float16"), tile.ArraySpec((64, 72), "float32")
    warned, = staged.compile(*specs, LAYOUT=tile.auto, ROLES=roles).warnings
    assert "no swizzle fits 64 rows of 144 bytes" in warned and "layout=tile.swizzled(dtype, shape, 0)" in warned
    made = staged.compile(*specs, LAYOUT=tile.swizzled("float16", (64, 72), 0), ROLES=roles)
    assert [p.variant for p in made.products] == ["wgmma"] and {c.variant for c in made.copies} == {"tma"} and not made.warnings
    arrays = [np.random.default_rng(0).integers(-4, 4, spec.shape).astype(str(spec.dtype)) for spec in specs]
    for layout in (tile.auto, tile.swizzled("float16", (64, 72), 0)):
        staged.simulate(1, *arrays, LAYOUT=layout, ROLES=roles).raise_first()
        np.testing.assert_array_equal(arrays[2], arrays[0].astype(float) @ arrays[1].astype(float))


@pytest.mark.parametrize("call", ["tile.mma_async(None, a, b[0:32])", "tile.mma_async(None, a[0:64, 0:32], b)",
                                  "tile.mma_async(None, a, b[:, 0:32], trans_b=True)",
                                  "tile.dot(a, b[0:32])", "tile.dot(tile.load(a), b[0:16])"])
def test_different_extents_along_k_are_an_error(call):
    refused([*operands((64, 64), (64, 64), "float16"), call], "their k differ", 3)


SUMS = [("float16", "bfloat16"), ("float16", "float64"), ("float16", "int32"), ("bfloat16", "float16"), ("bfloat16", "int32"),
        ("float32", "float16"), ("int8", "float32"),
        ("int8", "float16"), ("float8_e4m3fn", "int32"), ("float8_e5m2", "bfloat16")]


@pytest.mark.parametrize("dtype,sums", SUMS)
@pytest.mark.parametrize("given", [False, True])
def test_an_unsupported_accumulator_is_an_error(dtype, sums, given):
    """Requested by dtype=, or given as the accumulator tile."""
    precision = ", precision='tf32'" if dtype == "float32" else ""
    acc, asked = (f"tile.zeros((64, 64), tile.{sums})", "") if given else ("None", f", dtype=tile.{sums}")
    refused([*operands((64, WIDE[dtype]), (64, WIDE[dtype]), dtype), f"tile.mma_async({acc}, a, b, trans_b=True{asked}{precision})"],
            f"an accumulator is float32, float16 or int32|there is no m64n64k|an accumulator of float32, float16 or int32: {sums}", 3)


@pytest.mark.parametrize("dtype,sums", [pair for pair in SUMS if pair[1] != "float64"])
def test_an_accumulator_that_tensor_memory_does_not_support_is_an_error(dtype, sums):
    precision = ", precision='tf32'" if dtype == "float32" else ""
    refused([*operands((128, WIDE[dtype]), (64, WIDE[dtype]), dtype), f'acc = tile.alloc((128, 64), "{sums}", scope="tmem")',
             "with tile.elect():", f"    tile.mma_async(acc, a, b, trans_b=True{precision})"],
            f"{sums} from kind::|float16 from bf16", 5, target="sm_100a")


@pytest.mark.parametrize("call", ["tile.mma_commit()", "tile.mma_wait(0)"])
@pytest.mark.parametrize("around,words,options", [
    (["with tile.elect():"], "as mma_async does, not one thread", {}), (["with tile.warp(1):"], "as mma_async does, not a warp of 32 threads", {}),
    ([], "as mma_async does, not a cta of 96 threads", dict(num_warps=3)),
    (["if tile.thread_id() < 5:"], "`tile.thread_id.. < 5` differs between them", {}),
    ([], "needs sm_90a, and the target is sm_80", dict(target="sm_80")),
    ([], "tile.tcgen05_commit.bar. signals the end of products into tensor memory", dict(target="sm_100a")),
])
def test_commits_and_waits_of_products_need_a_scope_that_can_use_wgmma(call, around, words, options):
    """Whole warpgroups, on a target with wgmma."""
    refused([*around, "    " * len(around) + call], words, len(around) + 1, **options)


@pytest.mark.parametrize("acc,accumulate,words", [
    ("tile.zeros((64, 64))", "0.5", "accumulate is a condition, as k > 0, not the number 0.5"),
    ("None", "tile.program_id(0) > 0", "there is nothing to accumulate in"),
    ("tile.zeros((64, 64))", "tile.thread_id() > 0", "share this mma_async, so accumulate must be the same for all of them"),
])
def test_a_runtime_accumulate_condition_is_refused_for_unsupported_products(acc, accumulate, words):
    refused([*operands((64, 64), (64, 64), "float16"), f"tile.mma_async({acc}, a, b, trans_b=True, accumulate={accumulate})"], words, 3)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_one_thread_cannot_issue_a_product_into_registers(target):
    refused([*operands((64, 64), (64, 64), "float16"), "with tile.elect():", "    tile.mma_async(None, a, b, trans_b=True)"],
            "a product into registers must be started by whole warpgroups: leave out tile.elect()", 4, target=target)


R, FILL = "ring = tile.ring(2, A=((64, 64), tile.float32))", "    tile.copy_async(slot.A, x[0:64, 0:64], mbar=slot.full)"


@pytest.mark.parametrize("lines,words,line", [
    ([R, "with ring.consume() as slot:", "    tile.store(x[0:64, 0:64], tile.load(slot.A))"], "nothing fills this ring's slots", 2),
    ([R, "with tile.elect():", "    with ring.produce() as slot:", "        tile.copy_async(slot.A, x[0:64, 0:64])"],
     "16384 bytes are announced, and no copy completes on this barrier", 3),
    ([R, "with ring.produce() as slot:", "    tile.store(slot.A, 1.0)"], "16384 bytes are announced, and no copy completes on this barrier", 2),
    ([R, "with tile.warp(0):", "    if tile.lane_id() > 3:", "        with ring.produce() as slot:", "        " + FILL],
     "produce.. of a ring needs all threads of the warp", 4),
    ([R, "if tile.thread_id() < 64:", "    with ring.consume() as slot:", "        tile.load(slot.A)"],
     "consume.. of a ring needs all threads of the cta", 3),
    ([R, "slot = ring.produce()", FILL[4:]], "Turn has no attribute 'A': `with ring.produce", 3),
    ([R, "with ring.produce() as slot:", FILL.replace("slot.A", "slot.B")], "Slot has no attribute 'B'; it has A, full, release", 3),
    ([R, "with ring.consumer() as slot:", "    pass"], "has no attribute 'consumer' .did you mean 'consume", 2),
    (["ring = tile.ring(2, A=((64, 64), tile.float32), consumer=2)"], "not the number 2 .did you mean 'consumers'", 1),
    (["ring = tile.ring(2, A=(64, 64))"], "A is given as .shape, dtype. or .shape, dtype, layout., not tuple .64, 64", 1),
    (["ring = tile.ring(0, A=((64, 64), tile.float32))"], "stages is a constant of at least 1, not the number 0", 1),
    (["ring = tile.ring(x.shape[0], A=((64, 64), tile.float32))"], "stages is a constant of at least 1, not a scalar int32", 1),
    (["for i in range(3):", "    ring = tile.ring(2, A=((64, 64), tile.float32))"], "once, at CTA scope and outside loops", 2),
])
def test_unusable_rings_are_errors(lines, words, line):
    """Slots that are never filled, or that only some threads acquire; unknown names of rings and slots."""
    refused(lines, words, line)


@pytest.mark.parametrize("call,words", [
    ("tile.mma_async(acc, a, b, trans_b=True, block=32)", "give scale_a= and scale_b= too"),
    ("tile.mma_async(acc, a, b, trans_b=True, accumulate=0.5)", "accumulate is a condition, as k > 0, not the number 0.5"),
    ("tile.mma_async(acc, a, b, transb=True)", "did you mean 'trans_b'"),
])
def test_options_without_effect_on_a_product_into_tensor_memory_are_errors(call, words):
    refused([*operands((128, 64), (64, 64), "float16"), 'acc = tile.alloc((128, 64), "float32", scope="tmem")', "with tile.elect():", f"    {call}"], words, 5, target="sm_100a")


def test_buffers_that_exceed_tensor_memory_are_an_error():
    """At the line of the largest one."""
    refused([f'acc{n} = tile.alloc((128, {n}), "float32", scope="tmem")' for n in (64, 256, 224)], "1024 columns of tensor memory", 2,
            target="sm_100a")


@pytest.mark.parametrize("lines,words,line,target", [
    (["ring = tile.ring(8, filled='stores', A=((128, 64), tile.float32))", "with ring.produce() as slot:",
      "    tile.store(slot.A, tile.load(x[0:128, 0:64]))"],
     r"needs 2\d+ bytes of shared memory, and sm_90a allows 232448", 1, "sm_90a"),
    (["ring = tile.ring(6, filled='stores', A=((128, 64), tile.float32))", "with ring.produce() as slot:",
      "    tile.store(slot.A, tile.load(x[0:128, 0:64]))"],
     "sm_120a allows 101376", 1, "sm_120a"),
    (["s = tile.alloc((128, 64), tile.float32)", "for i in tile.pipelined(range(8), stages=7):",
      "    tile.copy_async(s, x[0:128, i * 64:i * 64 + 64])",
      "    tile.store(x[0, 0], tile.load(s[0, 0]))"], "sm_80 allows 166912", 1, "sm_80"),
    (["s = tile.alloc((128, 64), tile.float32)", "for i in tile.pipelined(range(8), stages=9, warp_specialize=True):",
      "    tile.copy_async(s, x[0:128, i * 64:i * 64 + 64])", "    tile.store(x[0, 0], tile.load(s[0, 0]))"], "sm_90a allows 232448", 1, "sm_90a"),
    (["ring = tile.ring(3, D=((128, 256), tile.float32), filled='products')", "with tile.warp(0):", "    with tile.elect():",
      "        with ring.produce() as slot:", "            pass"], "tensor memory has 128 lanes and 512 columns", 1, "sm_100a"),
])
def test_a_ring_that_does_not_fit_in_memory_is_an_error(lines, words, line, target):
    """In the target's shared memory, or in tensor memory: at the line of the largest buffer."""
    refused(lines, words, line, target)


def test_exceeding_max_shared_names_the_largest_buffer():
    refused(["small = tile.alloc((16,), tile.float32)", "large = tile.alloc((64, 64), tile.float32)", "tile.store(small[0], 1.0)",
             "tile.store(large[0, 0], 1.0)"],
            "max_shared allows 8192", 2, max_shared=8192)
