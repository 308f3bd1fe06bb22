"""Records of loads, stores and atomics in a compiled kernel: bytes per instruction, instructions, and why they are not wider."""

import re

import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")

UNITS = {"v4.b32": 16, "v2.b64": 16, "v2.b32": 8, "b64": 8, "b32": 4, "b16": 2, "b8": 1}  # bytes


def spec(*shape, dtype="float32", strides=None):
    return tile.ArraySpec(shape, dtype, strides)


def kernel_of(body, parameters="x, y, n"):
    return tile.jit(source=f"def kernel({parameters}):\n    i, p = tile.arange(1024), tile.program_id(0)\n    {body}\n")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "bool"])
@pytest.mark.parametrize("columns", [1024, 1022, 1021])
def test_an_access_record_has_the_width_and_number_of_its_instructions(columns, dtype):
    @tile.jit
    def kernel(x, y):
        tile.store(y[tile.program_id(0), 0:1024], tile.load(x[tile.program_id(0), 0:1024]))

    made = kernel.compile(spec(4, columns, dtype=dtype), spec(4, columns, dtype=dtype))
    load, store = made.accesses
    assert (load.op, load.buffer, load.tile, load.scope) == ("load", "x", f"{dtype}[1024]", "global")
    assert (store.op, store.buffer, store.exec_scope, store.bytes) == ("store", "y", "cta", 1024 * tile.dtypes.DTYPES[dtype].nbytes)
    for record, text in ((load, "ld.global"), (store, "st.global")):
        issued = re.findall(rf"{text}\.(\S+) ", made.ptx)
        assert [UNITS[name] for name in issued] == [record.vec_bytes] * record.instructions
        assert (record.variant == "vectorised") == (record.vec_bytes > tile.dtypes.DTYPES[dtype].nbytes)
        assert bool(record.declined) == (record.vec_bytes < 16 and record.instructions > 1)


# Accesses that a thread makes element by element, and the reason in the record.
NARROW = {
    "a mask": ("tile.store(y[0, i], 1.0, mask=i < n)", {}, "needs a mask that is the same for 4 neighbours"),
    "a start": ("tile.store(y[0, 0:1024], tile.load(x[0, p:p + 1024]))", {}, "needs a start that is a multiple of 4: not known along dimension 1 "
                "(tile.assume(start % 4 == 0) promises it)"),
    "a first index": ("tile.store(y[i // 512, i % 512 + n], 1.0)", {}, "needs a first index that is a multiple of 4"),
    "numbers from memory": ("tile.store(y[0, tile.load(x[0, 0:1024]).to(tile.int32)], 1.0)", {}, "needs one index that increases by 1 along dimension 0"),
    "two indices that go up": ("tile.store(y[i, i], 1.0)", {}, "needs one index that increases by 1 along dimension 0"),
    "rows of odd length": ("tile.store(y[0, 0:1024], 1.0)", dict(y=spec(8, 1024, strides=(1025, 1))), "needs strides that are multiples of 4: "
                           "y.strides[0] is not (pad the rows)"),
    "an odd bound": ("tile.store(y[0, 0:1024], 1.0)", dict(y=spec(8, 1021, strides=(1024, 1))), "needs bounds that are multiples of 4, or a region "
                     "that is known to be inside: y.shape[1] is not"),
    "both": ("tile.store(y[0, 0:1024], 1.0)", dict(y=spec(8, 1021)), "y.strides[0] is not (pad the rows); needs bounds"),
    "a stride": ("tile.store(y[0, 0:1024], 1.0)", dict(y=spec(8, 1024, strides=(4096, 2))), "needs contiguous neighbours in memory: the stride "
                 "y.strides[1] is not 1"),
    "an odd extent": ("tile.store(y[0:3, 0:333], tile.full((3, 333), 1.0))", {}, "needs an extent along dimension 1 of the tile that is a "
                      "multiple of 4: 333"),
    "columns of rows": ("tile.store(y[0:1024, 0], 1.0)", dict(y=spec(1024, 8)), "needs contiguous neighbours in memory: the stride y.strides[0] is not 1"),
    "a window": ("tile.store(tile.window(y, (0, 0), (8, n))[0, 0:1024], 1.0)", {}, "needs bounds that are multiples of 4"),
    "a padded buffer": ("tile.store(tile.alloc((64, 33), x.dtype)[0:64, 0:32], 1.0)", {}, "needs contiguous pieces of 16 bytes along dimension 1"),
}


@pytest.mark.parametrize("why", NARROW)
def test_the_record_of_a_narrow_access_says_which_need_of_a_wider_one_does_not_hold(why):
    body, arguments, words = NARROW[why]
    made = kernel_of(body).compile(*({"x": spec(8, 2048), "y": spec(8, 2048)} | arguments).values(), 999)
    record = next(a for a in made.accesses if a.declined)
    assert record.variant == "scalar" and record.vec_bytes == 4 and record.instructions >= 8
    (longer, reason), = record.declined
    assert longer == "16 bytes" and words in reason and f"    not 16 bytes: {reason}\n" in made.explain()


def test_an_array_that_is_not_aligned_to_the_vector_is_named():
    x = np.zeros(1025, np.float32)
    record = kernel_of("tile.store(x[0:1024], 1.0)", "x").compile(x[1:] if x.ctypes.data % 16 == 0 else x[:1024]).accesses[0]
    assert record.declined == (("16 bytes", "needs an array that starts at a multiple of 16 bytes: x does not"),)


def test_a_layout_that_splits_a_vector_is_named():
    @tile.jit
    def kernel(x, y):
        v = tile.load(x[0:64, 0:64])
        tile.store(y[0:64, 0:64], tile.dot(v, v))

    store = kernel.compile(spec(64, 64, dtype="float16"), spec(64, 64), target="sm_80").accesses[-1]
    assert (store.vec_bytes, store.declined) == (8, (("16 bytes", "needs 4 contiguous elements in each thread: the tile's layout, which suits its "
                                                      "other uses too, has 2"),))


def test_an_access_of_one_instruction_per_thread_lists_no_reasons():
    made = kernel_of("tile.store(y[0:128], tile.load(x[1:129])); tile.atomic_add(n[p], 1)").compile(spec(999), spec(999), spec(8, dtype="int32"))
    assert [(a.op, a.instructions, a.declined) for a in made.accesses] == [("load", 1, ()), ("store", 1, ()), ("atomic_add", 1, ())]


def test_atomics_are_recorded_too():
    """With vectors where the hardware has them: float additions whose old values are unused."""
    for body, target, nbytes in (("tile.atomic_add(y[0:1024], 1.0)", "sm_90a", 16), ("tile.atomic_add(y[0:1024], 1.0)", "sm_80", 4),
                                 ("tile.atomic_max(y[0:1024], 1.0)", "sm_90a", 4),
                                 ("tile.store(y[0:1024], tile.atomic_add(y[0:1024], 1.0))", "sm_90a", 4)):
        record = kernel_of(body, "y").compile(spec(1024), target=target).accesses[0]
        assert record.op in body and (record.op[:7], record.vec_bytes, record.declined) == ("atomic_", nbytes, ())


def test_loads_and_stores_with_sem_are_recorded_as_loads_and_stores():
    body = "tile.store(y[0:1024], tile.load(x[0:1024], sem='relaxed'), sem='release'); tile.store(y[n], tile.load(x[n], sem='acquire'))"
    made = kernel_of(body).compile(spec(1024), spec(1024), 3)
    assert [(a.op, a.tile, a.instructions) for a in made.accesses] == [("load", "float32[1024]", 2), ("store", "float32[1024]", 2),
                                                                      ("load", "float32", 1), ("store", "float32", 1)]


def test_calls_that_are_compiled_several_times_have_one_record():
    @tile.jit
    def kernel(x, y):
        for k in tile.static_range(8):
            tile.store(y[k, 0:1024], tile.load(x[k, 0:1024]))

    made = kernel.compile(spec(8, 1024), spec(8, 1024))
    assert [(a.op, a.instructions, a.bytes) for a in made.accesses] == [("load", 16, 8 * 4096), ("store", 16, 8 * 4096)]
    assert made.explain().count(" of float32[1024] ") == 2


def test_several_calls_on_one_line_have_a_record_each():
    made = kernel_of("tile.store(y[0:1024], tile.load(x[0:1024]) + tile.load(x[1024:2048]))").compile(spec(2048), spec(1024), 3)
    assert [(a.op, a.buffer, a.instructions) for a in made.accesses] == [("load", "x", 2), ("load", "x", 2), ("store", "y", 2)]


def test_loads_that_a_product_makes_itself_are_not_recorded():
    @tile.jit
    def kernel(a, b, c):
        sA, sB = tile.alloc((64, 64), a.dtype, layout=tile.auto), tile.alloc((64, 64), a.dtype, layout=tile.auto)
        tile.copy(sA, a[0:64, 0:64])
        tile.copy(sB, b[0:64, 0:64])
        tile.sync()
        tile.store(c[0:64, 0:64], tile.dot(sA, sB))

    for target in ("sm_80", "sm_90a"):
        assert [a.op for a in kernel.compile(*[spec(64, 64, dtype="float16")] * 3, target=target).accesses] == ["store"]


def test_ldmatrix_and_stmatrix_are_recorded_by_name():
    @tile.jit
    def kernel(a, c):
        s = tile.alloc((64, 64), c.dtype, layout=tile.swizzled(c.dtype, (64, 64), 128))
        v = tile.load(a[0:64, 0:64])
        tile.store(s[0:64, 0:64], tile.dot(v, v).to(c.dtype))
        tile.sync()
        tile.copy(c[0:64, 0:64], s)

    made = kernel.compile(*[spec(64, 64, dtype="float16")] * 2, target="sm_90a")
    record = made.accesses[-1]
    assert (record.variant, record.buffer, record.scope, record.vec_bytes) == ("stmatrix", "s", "shared", 16)
    assert made.ptx.count("stmatrix") == record.instructions > 0


def test_facts_queried_only_for_explanations_are_no_guards():
    """A store whose rows are too short for vectors works with any number of columns."""
    @tile.jit
    def kernel(y):
        tile.store(y[0, 0:1024], tile.full((1024,), 1.0))

    for columns in (1021, 1022, 1020):
        made = kernel.compile(spec(8, columns, strides=(1025, 1)))
        assert ("needs bounds" in made.accesses[0].declined[0][1]) is True
        assert not [fact for (version,) in kernel.versions.values() for fact in version.facts if fact[0] == "size_multiple"]


def test_a_report_names_each_copy_and_product_of_a_loop_once():
    """A pipelined loop has its copies ahead of it and in it; an unrolled one its products as often as it runs."""
    @tile.jit
    def k(A, B, C, BK: tile.constexpr):
        acc = tile.zeros((64, 64))
        for _ in tile.static_range(2):
            for i in tile.pipelined(range(0, A.shape[1], BK), stages=4):
                acc = tile.dot(tile.load(A[0:64, i:i + BK]), tile.load(B[i:i + BK, 0:64]), acc)
        tile.store(C[0:64, 0:64], acc)

    half = tile.ArraySpec((64, 64), "float16")
    made = k.compile(half, half, tile.ArraySpec((64, 64), "float32"), BK=32)
    report = made.explain()
    assert len(made.copies) == 16 and len(made.products) == 2
    assert report.count("global -> shared by the CTA: tma") == 2 and report.count("to float32[64, 64], by the CTA: wgmma") == 1
    assert report.count("in shared memory: a swizzle of") == 2
