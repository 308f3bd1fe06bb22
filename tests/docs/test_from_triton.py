"""The page "From Triton" has a row for each name of `triton.language`, and what its rows say to write is right."""

import ast
import importlib.util
import re
import warnings
from pathlib import Path

import pytest
import tilejit as tile
from tilejit.names import find_counterpart

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "from_triton.md"
ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")

# `triton.language.__all__` of the versions 3.5 and 3.9.
NAMES = """
    PropagateNan TRITON_MAX_TENSOR_NUMEL load_tensor_descriptor store_tensor_descriptor make_tensor_descriptor tensor_descriptor
    abs add advance arange argmax argmin associative_scan assume async_task atomic_add atomic_and atomic_cas atomic_load atomic_max
    atomic_min atomic_or atomic_poll atomic_store atomic_xchg atomic_xor bfloat16 bitonic_merge block_type broadcast broadcast_to cat
    cast cdiv ceil clamp condition const constexpr constexpr_type cos cumprod cumsum debug_barrier device_assert device_print div_rn
    dot dot_scaled dtype erf exp exp2 expand_dims expect_zero extra fdiv flip float16 float32 float64 float8e4b15 float8e4nv
    float8e4b8 float8e5 float8e5b16 floor fma full gather histogram inline_asm_elementwise interleave int1 int16 int32 int64 int8
    join load log log2 make_block_ptr map_elementwise math max max_constancy max_contiguous maximum min minimum mul multiple_of
    num_programs pair_uniform_to_normal permute philox philox_impl pi32_t pointer_type program_id rand rand4x randint randint4x randn
    randn4x range ravel reduce reduce_or reshape rsqrt slice sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert
    static_print static_range store sub sum swizzle2d target_info tensor to_tensor topk trans tuple uint16 uint32 uint64 uint8
    uint_to_uniform_float umulhi unsqueeze view void where xor_sum zeros zeros_like
""".split()

# What the names of the right column are.
AROUND = """def kernel(A, flags, n):
    x, i, w = tile.load(A[0, 0:16]), tile.load(flags[0:16]), tile.load(A[0:4, 0:16])
    y, z, j, m = x + 1, x + 2, i + 1, i > 0
    a = tile.load(A[0:16, 0:16]).to(tile.float16)
    b, acc = a.T, tile.zeros((16, 16))
    address = tile.load(flags[0]).to(tile.int64)
"""


@tile.jit
def combine(a, b):
    return a + b


@tile.jit
def both(a, b):
    return a[0] + b[0], a[1] + b[1]


def rows() -> list[tuple[str, str]]:
    """The names of `tl` and what is beside them."""
    return ROW.findall(PAGE.read_text().partition("### Programs")[2])


def pieces() -> list[str]:
    """The code in the right column that is more than a name or a keyword."""
    found = [piece.replace("\\|", "|") for _, text in rows() for piece in CODE.findall(re.sub(r"\[[^]`]*\]\([^)]*\)", "", text))]
    return [piece for piece in found if re.search(r"[(\[/*+-]", piece)]


def test_there_is_one_row_for_each_name_of_triton():
    assert sorted(name for name, _ in rows()) == sorted(NAMES)


def test_every_row_names_something_that_exists_or_says_why_there_is_none():
    for name, text in rows():
        named = [member for piece in CODE.findall(text) for member in re.findall(r"\btile\.(\w+)", piece)]
        assert not [member for member in named if not hasattr(tile, member)], name
        assert named or CODE.search(text) or len(text.split()) > 2, name


def test_the_compiler_answers_each_name_of_an_operation_with_what_to_write():
    """Not those of Triton's types and compiler, which no kernel calls."""
    types = [name for name, text in rows() if text.startswith("none: ")]
    silent = [name for name in NAMES if not find_counterpart(name)]
    assert set(silent) <= {*types, "dtype", "tuple", "slice"}


def test_what_the_rows_say_to_write_compiles():
    """Regions are loaded, and loops get a body; the rest stands in a kernel as it is."""
    body = []
    for piece in dict.fromkeys(pieces()):
        if piece.startswith(("tile.range", "tile.static_range", "tile.pipelined(range", "tile.tile_order")):
            piece = f"for _ in {piece.replace('...', '0, n')}:\n        pass"
        elif piece.startswith("A["):
            piece = f"tile.load({piece})"
        elif piece.startswith("tile.warpgroup"):
            piece = f"with {piece}:\n        pass"
        body.append(f"    {piece}\n")
    assert len(body) > 90
    kernel = tile.jit(source=AROUND + "".join(body))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tile.TileWarning)  # nothing uses the results
        kernel.compile(tile.ArraySpec((32, 32), "float32"), tile.ArraySpec((32,), "int32"), 32)


def test_the_kernels_in_triton_call_names_of_triton():
    kernels = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(kernels) == 5
    for kernel in kernels:
        ast.parse(kernel)
        assert set(re.findall(r"\btl\.(\w+)", kernel)) <= set(NAMES)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_names_are_those_of_the_installed_triton():
    source = Path(importlib.util.find_spec("triton").origin).parent / "language" / "__init__.py"
    there = next(node.value for node in ast.parse(source.read_text()).body
                 if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    assert set(ast.literal_eval(there)) <= set(NAMES)
