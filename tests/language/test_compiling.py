"""Every dtype, operator and access compiles to machine code for Ampere, Hopper and both Blackwells."""

from concurrent.futures import ThreadPoolExecutor

import control_cases
import memory_cases
import operator_cases
import pytest
import shape_cases
import tilejit as tile
from language_cases import TARGETS
from language_reference import DTYPES, FLOAT8, FLOATS, INTS


def sample():
    """Cases that between them use each dtype with each operator, cast, function, shape change and access."""
    for i, dtype in enumerate(DTYPES):
        yield operator_cases.operators(dtype, dtype)
        yield operator_cases.operators(dtype, DTYPES[(i + 7) % len(DTYPES)], "scalar")
        yield operator_cases.casts(dtype, ("tile", "scalar")[i % 2])
        yield operator_cases.casts(dtype, ("scalar", "tile")[i % 2], [d for d in DTYPES if d not in FLOAT8])
        yield operator_cases.selections(dtype, dtype)
    for dtype in INTS[::3]:
        yield operator_cases.divisions_by_zero(dtype)
    for i, dtype in enumerate(FLOATS):
        yield operator_cases.function_case(dtype)
        yield operator_cases.fused(dtype)
    yield from list(shape_cases.shape_cases())[::5]
    yield from list(memory_cases.memory_cases(few=True))[::3]
    yield from list(control_cases.control_cases())[::7]


CASES = list(sample())


@pytest.mark.parametrize("target", TARGETS)
def test_everything_compiles(target):
    """To a cubin. Casts to float8 need sm_89: before, the error says so."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda case: compiles(case, target), CASES if target == "sm_90a" else CASES[TARGETS.index(target) % 2::2]))


def compiles(case, target: str) -> None:
    """Whether a case becomes machine code without spills, or is refused for the right reason."""
    float8 = target == "sm_80" and any(array.dtype.name in FLOAT8 for array in case.expected.values()) and "cast" in case.name
    if float8:
        with pytest.raises(tile.CompilationError, match="need sm_89 or later, and the target is sm_80"):
            case.compile(target)
        return
    compiled = case.compile(target)
    assert compiled.cubin and not compiled.spills, f"{case.name}: {compiled.spills} bytes spilled"
