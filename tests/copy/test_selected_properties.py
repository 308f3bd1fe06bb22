"""Random im2col copies and copies of rows selected by index: plans checked byte by byte, and data on the simulator."""

from collections import Counter

from bytecheck import NOWHERE, check_patches, check_rows
from hypothesis import HealthCheck, given, settings, strategies as st
from selected_cases import elements, load_along_w_case, load_case, rows_case, store_case, written
from selected_kernels import gather, load_patch, scatter, store_patch
from tilejit.compiled import map_records
from tilejit.emit.emitter import emit
from tilejit.errors import DispatchError
from tilejit.plan import BufferSpec

from tests.chosen_cases import all_cases


def at_random(examples: int):
    """Repeats a test, each time with another random generator; half as often unless all cases are run."""
    drawn = examples if all_cases() else examples // 2
    return lambda test: settings(max_examples=drawn, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))(
        given(st.randoms(use_true_random=True))(test))


def records_of(kernel, case):
    """The copies and the tensor maps of a kernel, before it is assembled."""
    given = dict(case.options)
    target = given.pop("target", "sm_90a")
    bound, options, _ = kernel.bind(case.arguments, given)
    version = kernel.version(bound, options, target)
    return version.copies, map_records(bound.names, emit(version.lowered.graph).maps, bound)


def checked(kernel, case, check, *more):
    """The copy's record, if the kernel has a plan for it; checks the plan byte by byte, and the bytes that the simulator moves."""
    try:
        copies, maps = records_of(kernel, case)
    except DispatchError:
        return None
    (record,) = [r for r in copies if r.op == "copy_async"]
    dtype, p, c, layout = case.box
    shared = BufferSpec((2, p, c), dtype, "shared", layout=layout, region=(case.stage, slice(0, p), slice(0, c)))
    assert record.variant == "tma"
    check(record.plan, maps[0], shared, case.at, *more)
    memory, values = (written(case.room, case.at, case.y), case.y.copy()) if record.plan.store else (case.room.copy(), elements(case.room, case.at))
    report = kernel.simulate((1,), *case.arguments, **case.options)
    assert not report.findings, report
    assert case.room.tobytes() == memory.tobytes() and case.y.tobytes() == values.tobytes()
    return record


def seen(case, record) -> tuple[str, str]:
    return "outside" if (case.at == NOWHERE).any() else "inside", "one" if record.plan.instructions == 1 else "several"


def test_im2col_loads_with_every_filter_move_exactly_their_bytes():
    """Images of one to three dimensions, filters, strides, padding on either side, dilation, every position; channels and pixels beyond
    the end; every layout of rows in shared memory."""
    accepted = Counter()

    @at_random(80)
    def holds(rng):
        case = load_case(rng)
        record = checked(load_patch, case, check_patches, case.starts, case.offsets)
        if record is not None:
            accepted.update((case.rank, *seen(case, record)))

    holds()
    assert min(accepted[k] for k in (1, 2, 3, "inside", "outside", "one", "several")) > 5, accepted


def test_im2col_loads_in_w_mode_move_exactly_their_bytes():
    """The pixels of a line of the result in one image after the other: any number of them, or 128."""
    accepted = Counter()

    @at_random(100)
    def holds(rng):
        case = load_along_w_case(rng)
        record = checked(load_patch, case, check_patches, case.starts, case.offsets)
        if record is not None:
            assert record.plan.mode == ("im2col::w::128" if case.wide else "im2col::w")
            accepted.update((case.rank, record.plan.mode))

    holds()
    assert min(accepted[k] for k in (1, 2, 3, "im2col::w", "im2col::w::128")) > 5, accepted


def test_im2col_stores_write_exactly_their_bytes():
    """If every position of the filter is inside: pixels and channels beyond the end are dropped, and nothing else is written."""
    accepted = Counter()

    @at_random(80)
    def holds(rng):
        case = store_case(rng)
        record = checked(store_patch, case, check_patches, case.starts, case.offsets)
        if record is not None:
            accepted.update((case.rank, *seen(case, record)))

    holds()
    assert min(accepted[k] for k in (1, 2, 3, "inside", "outside", "one", "several")) > 5, accepted


def test_gathers_and_scatters_of_rows_move_exactly_their_bytes():
    """Any order, also rows outside the matrix on both sides; columns that begin and end anywhere."""
    accepted = Counter()

    @at_random(100)
    def holds(rng):
        case = rows_case(rng)
        record = checked(scatter if case.store else gather, case, check_rows, case.column, case.rows)
        if record is not None:
            accepted.update(("store" if case.store else "load", *seen(case, record)[:1]))

    holds()
    assert min(accepted[k] for k in ("store", "load", "inside", "outside")) > 5, accepted
