"""Compile-time arguments: which values are allowed, and that each has its own version of the kernel."""

import enum
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import tilejit as tile

Sizes, Swapped = namedtuple("Sizes", "rows columns"), namedtuple("Swapped", "columns rows")


@dataclass(frozen=True)
class Config:
    rows: int
    scale: float = 0.5


@dataclass
class Mutable:
    rows: int


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


class Number(enum.IntEnum):
    ONE = 1


@tile.jit
def rows_of(out, config: tile.constexpr):
    tile.store(out[0], config.rows)


@tile.jit
def scaled(out, config: tile.constexpr = Config(3)):
    tile.store(out[0], config.rows * config.scale)


@tile.jit
def chosen(out, mode: tile.constexpr):
    tile.store(out[0], 10 if mode == Mode.ONE else 20)


@tile.jit
def kind_of(out, x: tile.constexpr):
    tile.store(out[0], 1.5 * x)
    tile.static_assert(isinstance(x, int) or isinstance(x, float))
    tile.store(out[1], x / 2 if isinstance(x, float) else x // 2)


def result(kernel, *constants):
    out = np.zeros(2, np.float32)
    kernel[1,](out, *constants)
    return out[0]


def test_equal_tuples_of_different_types_are_different_constants():
    assert [result(rows_of, c) for c in (Sizes(1, 2), Swapped(1, 2), Sizes(1, 2))] == [1, 2, 1]


def test_a_frozen_dataclass_can_be_a_constant():
    assert [result(scaled), result(scaled, Config(3, 2.0)), result(scaled, Config(4))] == [1.5, 6, 2]


def test_an_enum_member_can_be_a_constant():
    assert [result(chosen, m) for m in (Mode.ONE, Mode.TWO)] == [10, 20]


def test_a_mutable_object_cannot_be_a_constant():
    with pytest.raises(tile.LaunchError, match="a tuple or frozen dataclass of those, not Mutable"):
        result(rows_of, Mutable(1))


@pytest.mark.parametrize("number", [np.int64(5), np.int32(5), np.float32(5), np.uint8(5)])
def test_a_numpy_number_is_the_same_constant_as_the_python_number(number):
    assert result(kind_of, number) == 7.5
    out = np.zeros(2, np.float32)
    kind_of[1,](out, number)
    assert out[1] == (2.5 if isinstance(number, np.floating) else 2)


@dataclass(frozen=True)
class Checked:
    rows: object
    steps: tuple = ()

    def __post_init__(self):
        assert isinstance(self.rows, np.generic)


@tile.jit
def stepped(out, config: tile.constexpr):
    tile.static_assert(isinstance(config.rows, int) and isinstance(config.steps[0], int))
    tile.store(out[0], config.rows // 2 + config.steps[0] // 2)


def test_numpy_numbers_in_records_are_the_same_constants_as_python_numbers():
    assert result(rows_of, Sizes(np.int64(1), 2)) == result(rows_of, Config(np.int32(1), np.float32(2))) == 1
    assert result(stepped, Checked(np.int64(5), (np.uint8(7),))) == 2 + 3
    known = result(scaled, Config(4, 0.5)), len(scaled.versions)
    assert (result(scaled, Config(np.int16(4), np.float64(0.5))), len(scaled.versions)) == known


@tile.jit
def width_of(out, dtype: tile.constexpr):
    tile.store(out[0], tile.cast(tile.full((4,), 1.0 + 2**-9), dtype.dtype if isinstance(dtype, Typed) else dtype)[1].to(tile.float32))


@dataclass(frozen=True)
class Typed:
    dtype: object


@pytest.mark.parametrize("grouped", [False, True])
def test_a_numpy_or_python_dtype_can_be_a_constant(grouped):
    import ml_dtypes
    given = [np.float16, np.dtype("float32"), ml_dtypes.bfloat16, float, tile.float16, "bfloat16"]
    found = [result(width_of, Typed(d) if grouped else d) for d in given]
    assert found == [1 + 2**-9, 1 + 2**-9, 1, 1 + 2**-9, 1 + 2**-9, 1]
    assert width_of.compile(np.zeros(2, np.float32), Typed(np.float16) if grouped else np.float16).registers > 0


def test_a_dtype_equals_every_name_for_it():
    @tile.jit
    def compared(out):
        tile.static_assert(out.dtype == np.float32 and "float32" == out.dtype and out.dtype == float and out.dtype != np.float16)
        tile.static_assert(out.dtype in (np.float32, int) and out.dtype not in ("float16", tile.int32))
        tile.static_assert(not (out.dtype == None or out.dtype == 32 or out.dtype == "F"))  # noqa: E711
        tile.store(out[0], 1)

    assert result(compared) == 1


def test_an_annotated_assignment_casts_with_every_name_of_a_dtype():
    @tile.jit
    def annotated(out):
        a: tile.float16 = 1 + 2**-12
        b: np.float16 = 1 + 2**-12
        c: int = 2.5
        tile.static_assert(a.dtype == b.dtype == tile.float16 and c.dtype == tile.int32)
        tile.store(out[0], a.to(tile.float32) + b + c)

    assert result(annotated) == 4


def test_a_torch_dtype_can_be_a_constant():
    torch = pytest.importorskip("torch")
    assert result(width_of, torch.bfloat16) == 1


def test_an_unsupported_dtype_cannot_be_a_constant():
    with pytest.raises(tile.TileError, match="complex64.* is not an element type"):
        result(width_of, np.complex64)


def test_warm_calls_distinguish_equal_constants_of_different_types():
    """Launchers are cached by their keywords: 1, 1.0 and True are equal, alone and in tuples."""
    from tilejit.warm import form_of
    same = [1, 1.0, True, Number.ONE, (1,), (1.0,), Sizes(1, 2), Sizes(1.0, 2), Swapped(1, 2), Config(1, 2), Config(1, 2.0), (Config(1, 2),)]
    assert len({form_of({"x": x}) for x in same}) == len(same)


def test_a_cast_constant_remains_a_python_constant():
    @tile.jit
    def cast_ones(out):
        n = tile.int32(1)
        table = (10, 20, 30)
        tile.static_assert(n in (1, 2) and f"{n} {n:02d} {n!s:>2}" == "1 01  1")
        tile.static_assert(max(tile.int8(n), 5).dtype == tile.int8)
        tile.store(out[0], table[n] + max(n, 5) + abs(tile.int32(-3)))

    assert result(cast_ones) == 28


@tile.jit
def scaled_by(v, by=np.float32(2.5), *, times=np.int64(2)):
    return v * by * times


def test_elementwise_functions_of_constants_are_constants():
    @tile.jit
    def kernel(out):
        tile.static_assert(tile.abs(-3) == 3 and tile.abs(-0.5) == 0.5 and tile.maximum(1, 2.5) == 2.5 and tile.minimum(1, 2) == 1)
        tile.static_assert(tile.clip(9, 0, tile.abs(-4)) == 4 and tile.cdiv(7, 2) == 4)
        tile.store(out[0], tile.abs(tile.program_id(0) - 1) + tile.abs(-2))

    out = np.zeros(1, np.int32)
    kernel[1,](out)
    assert out[0] == 3


def test_a_numpy_number_can_be_a_helper_s_default():
    @tile.jit
    def by_default(out):
        tile.store(out[0], scaled_by(3.0) + scaled_by(1.0, times=4))

    assert result(by_default) == 25


@dataclass(frozen=True)
class Positive:
    n: object

    def __post_init__(self):
        if isinstance(self.n, int) and self.n <= 0:
            raise ValueError(f"{self.n} is not positive")

    @property
    def inverse(self):
        return 1 / (self.n - 3)


@pytest.mark.parametrize("line, text", [("p = Positive(-1)", "ValueError: -1 is not positive"),
                                        ("p = Positive(3).inverse", "ZeroDivisionError"),
                                        ("p = Positive(n).inverse", "TypeError: unsupported operand"),
                                        ("p = Positive(2).reverse", "has no attribute 'reverse' (did you mean 'inverse'?)")])
def test_an_exception_in_a_user_s_record_is_an_error_at_the_line(line, text):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def records(out, n):\n    {line}\n").compile(np.zeros(2, np.float32), 5)
    assert text in str(caught.value) and line in str(caught.value)
