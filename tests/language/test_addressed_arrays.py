"""tile.array: arrays that a kernel makes from addresses, compared with NumPy, and what the simulator knows of them."""

import gc

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.gpu import gpu_targets, in_child, needs_gpu

REPLACING = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")   # targets whose kernels edit tensor maps
MADE = "a = tile.array("  # the lines of findings


def aligned(n: int, dtype, to: int = 128) -> np.ndarray:
    """Memory for `n` elements at a multiple of `to` bytes."""
    raw = np.zeros(n * np.dtype(dtype).itemsize + to, np.uint8)
    return raw[-raw.ctypes.data % to:][:n * np.dtype(dtype).itemsize].view(dtype)


def findings(kernel, *args, grid=1, seeds=(0,), **meta) -> list[tuple[str, str]]:
    """The kinds of a launch's findings with their source lines, the same under all seeds."""
    found = [[(f.kind, f.loc.source_line.strip()) for f in kernel.simulate(grid, *args, seed=seed, **meta).findings] for seed in seeds]
    assert all(one == found[0] for one in found)
    return found[0]


# -- values ------------------------------------------------------------------------------------------------------------

@tile.jit
def moved(p, q, rows, columns, s0, s1, out, DTYPE: tile.constexpr, R: tile.constexpr, C: tile.constexpr):
    a = tile.array(p, DTYPE, (rows, columns), (s0, s1))
    b = tile.array(q, DTYPE, (rows, columns))
    for i in range(0, rows, R):
        for j in range(0, columns, C):
            tile.store(b[i:i + R, j:j + C], tile.load(a[i:i + R, j:j + C]))
    for d in tile.static_range(2):
        tile.store(out[d], a.shape[d])
        tile.store(out[2 + d], b.strides[d])


def check_moved(x: np.ndarray, dtype, made=lambda x: x) -> None:
    """A 2-D view copied to a row-major array, both by their addresses."""
    base = x if x.base is None else x.base
    y, out = made(np.zeros(x.shape, x.dtype)), made(np.zeros(4, np.int64))
    there = made(base)
    first = tile.address_of(there) + x.ctypes.data - base.ctypes.data
    strides = [s // x.itemsize for s in x.strides]
    moved[1,](first, tile.address_of(y), *x.shape, *strides, out, DTYPE=dtype, R=16, C=32)
    got, told = (a if isinstance(a, np.ndarray) else a.numpy() for a in (y, out))
    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(x).view(np.uint8))
    assert told.tolist() == [*x.shape, x.shape[1], 1]


DTYPES = {np.float32: tile.float32, np.float16: tile.float16, ml_dtypes.bfloat16: tile.bfloat16, np.uint8: tile.uint8, np.int64: tile.int64,
          ml_dtypes.float8_e4m3fn: tile.float8_e4m3fn, np.bool_: tile.bool_}


def views(dtype):
    """Ragged, transposed, with negative steps, and empty."""
    x = (np.arange(40 * 50) % 100).astype(dtype).reshape(40, 50)
    return x[:33, 3:48], x.T[:17, :19], x[30::-2, 40:2:-1], x[3:3]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_an_array_made_from_an_address_holds_the_elements_that_numpy_s_view_holds(dtype):
    for x in views(dtype)[:None if dtype in (np.float32, np.uint8) else 1]:
        check_moved(x, DTYPES[dtype])


@tile.jit
def adam(tables, sizes, pieces, rate, BLOCK: tile.constexpr):
    t, i = tile.load(pieces[tile.program_id(0), 0]), tile.load(pieces[tile.program_id(0), 1]) * BLOCK
    n = tile.load(sizes[t])
    p, g, m = [tile.array(tile.load(table[t]), tile.float32, n, align=4) for table in tables]
    mean = 0.5 * tile.load(m[i:i + BLOCK]) + tile.load(g[i:i + BLOCK])
    tile.store(m[i:i + BLOCK], mean)
    tile.store(p[i:i + BLOCK], tile.load(p[i:i + BLOCK]) - rate * mean)


def check_adam(made=lambda x: x, read=lambda x: x) -> None:
    lengths, B, rng = (300, 3, 0, 129, 128), 128, np.random.default_rng(0)
    host = [[rng.integers(-9, 9, n).astype(np.float32) for n in lengths] for _ in range(3)]
    p, g, m = state = [[made(x.copy()) for x in xs] for xs in host]
    pieces = np.array([(t, i) for t, n in enumerate(lengths) for i in range(-(-n // B))], np.int32)
    adam[len(pieces),](tuple(map(tile.address_table, state)), made(np.array(lengths, np.int32)), made(pieces), 0.25, BLOCK=B)
    for x, grad, mean, new, moment in zip(*host, p, m):
        np.testing.assert_array_equal(read(moment), 0.5 * mean + grad)
        np.testing.assert_array_equal(read(new), x - 0.25 * (0.5 * mean + grad))


def test_a_table_of_pointers_drives_one_launch_over_tensors_of_many_sizes():
    check_adam()


@tile.jit
def by_elements(p, n, x, y, WIDE: tile.constexpr):
    a = tile.array(p, tile.int32, n)
    tile.atomic_add(a[tile.load(x[0:64], other=-1)], 1)                      # points; those out of bounds are left alone
    tile.sync()
    w = tile.window(a, 2, 3)
    tile.store(y[0:8], tile.load(w[0:8], other=-1))
    with tile.each_warp(range(4)) as warp:
        b = tile.array(p + 4 * warp, tile.int32, 1)                          # another array for each warp
        tile.store(y[8 + warp], tile.load(b[0]))
    c = tile.array(p, tile.uint8, (n, 4), align=4)                           # the same bytes as another dtype
    tile.store(y[12], tile.load(c[1, 0]))
    tile.store(y[13], tile.load(tile.array(p, tile.int32, ())))


def check_by_elements(made=lambda x: x, read=lambda x: x) -> None:
    x, counts, y = np.arange(60, dtype=np.int32) % 9, np.zeros(7, np.int32), made(np.zeros(14, np.int32))
    p = made(counts)
    by_elements[1,](tile.address_of(p), 7, made(x), y, WIDE=True)
    want = np.bincount(x, minlength=9)[:7]
    np.testing.assert_array_equal(read(p), want)
    np.testing.assert_array_equal(read(y), [*want[2:5], *[-1] * 5, *want[:4], want[1] & 255, want[0]])


def test_points_windows_atomics_and_scopes_work_on_arrays_from_addresses():
    check_by_elements()


def test_an_address_has_64_bits_though_it_is_a_small_number():
    """The heap of a program that is not loaded at a random place begins at some."""
    spec = tile.ArraySpec((64,), "int32")
    small = type(tile.address_of(np.zeros(3)))(4096)
    for address in (small, small + 16, 16 + small, small - 16):
        assert 4080 <= address <= 4112 and by_elements.compile(address, 7, spec, spec, WIDE=True, target="sm_90a").cubin
    assert type(small + 16 - small) is int and small + np.int64(16) == 4112 and small + 0.5 == 4096.5
    with pytest.raises(tile.CompilationError, match="an address has 64 bits"):
        by_elements.compile(4096, 7, spec, spec, WIDE=True, target="sm_90a")


# -- copies ------------------------------------------------------------------------------------------------------------

@tile.jit
def copied(table, y, n, HOW: tile.constexpr):
    a = tile.array(tile.load(table[tile.program_id(0)]), y.dtype, (n, 64), align=16)
    s, bar = tile.alloc((8, 64), y.dtype), tile.mbarrier()
    if HOW == "token":
        tile.copy_async(s, a[0:8, 0:64]).wait()
    elif HOW == "bulk":
        tile.assume(n >= 8)
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, a[0:8, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(tile.array(tile.load(table[1 + tile.program_id(0)]), y.dtype, (8, 64), align=16), s, reduce="add")
            tile.bulk_commit()
            tile.bulk_wait(0)
    else:
        tile.copy_async(s, a.take(tile.arange(8) * 2)[:, 0:64]).wait()
    tile.store(y[0:8, 0:64], tile.load(s))


def check_copied(how: str, made=lambda x: x, read=lambda x: x):
    x, z, y = aligned(9 * 64, np.float32).reshape(9, 64), aligned(8 * 64, np.float32).reshape(8, 64), made(np.zeros((8, 64), np.float32))
    x[:], z[:] = np.random.default_rng(0).random(x.shape), 1
    want = {"token": np.where(np.arange(8)[:, None] < 5, x[:8], 0), "bulk": x[:8],
            "rows": np.where(np.arange(8)[:, None] < 3, x[np.arange(8) * 2 % 9], 0)}[how]
    there, more = made(x), made(z)
    args = tile.address_table((there, more)), y, 9 if how == "bulk" else 5
    copied[1,](*args, HOW=how)
    np.testing.assert_array_equal(read(y), want)
    np.testing.assert_array_equal(read(more), 1 + x[:8] if how == "bulk" else np.ones_like(z))
    return args


@pytest.mark.parametrize("how", ["token", "bulk", "rows"])
def test_copies_move_blocks_of_arrays_from_addresses(how):
    copies = copied.compile(*check_copied(how), HOW=how).copies
    assert [c.variant for c in copies] == {"token": ["ldgsts"], "bulk": ["bulk", "bulk"], "rows": ["ldgsts"]}[how]
    if how != "rows":
        assert "made from an address" in dict(copies[0].declined)["tma"]


@tile.jit(num_warps=1)
def by_map(template, table, sizes, slots, out, R: tile.constexpr, C: tile.constexpr):
    """TMA by a map that is bound to the array of each CTA."""
    i = tile.program_id(0)
    n = tile.load(sizes[i])
    a = tile.array(tile.load(table[i]), template.dtype, (n, C), align=16)
    s, bar = tile.alloc((R, C), template.dtype), tile.mbarrier()
    m = tile.tensor_map(template[0:R, 0:C], slot=slots[i, 0:128])
    with tile.elect():
        m.seed()
        m.rebind(a)
        m.fence_release("cta")
        m.fence_acquire("cta")
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[0:R, 0:C], mbar=bar)
    bar.wait(phase=0)
    tile.store(out[i, 0:R, 0:C], tile.load(s))


def check_by_map(made=lambda x: x, read=lambda x: x) -> None:
    xs = [aligned(n * 32, np.float32).reshape(n, 32) for n in (3, 11)]
    for x in xs:
        x[:] = np.random.default_rng(len(x)).random(x.shape)
    template, slots = aligned(32 * 8, np.float32).reshape(8, 32), aligned(256, np.uint8).reshape(2, 128)
    out, there = made(np.zeros((2, 8, 32), np.float32)), [made(x) for x in xs]
    by_map[2,](made(template), tile.address_table(there), made(np.array([3, 11], np.int32)), made(slots), out, R=8, C=32)
    np.testing.assert_array_equal(read(out)[0], np.concatenate([xs[0], np.zeros((5, 32), np.float32)]))
    np.testing.assert_array_equal(read(out)[1], xs[1][:8])


def test_a_tensor_map_is_bound_to_an_array_from_an_address():
    check_by_map()


@tile.jit
def grouped(tables, sizes, K: tile.constexpr, N: tile.constexpr, B: tile.constexpr):
    e = tile.program_id(0)
    m = tile.load(sizes[e])
    a, b, c = [tile.array(tile.load(t[e]), tile.float16, shape, align=16) for t, shape in zip(tables, ((m, K), (K, N), (m, N)))]
    for i in range(0, m, B):
        acc = tile.zeros((B, N), tile.float32)
        for k in tile.pipelined(range(0, K, 32), stages=3):
            acc = tile.dot(tile.load(a[i:i + B, k:k + 32]), tile.load(b[k:k + 32, 0:N]), acc)
        tile.store(c[i:i + B, 0:N], acc)


def check_grouped(made=lambda x: x, read=lambda x: x):
    rng, rows = np.random.default_rng(0), (3, 64, 0, 70)
    host = [[aligned(r * c, np.float16).reshape(r, c) for r, c in shapes] for shapes in ([(m, 64) for m in rows], [(64, 64)] * 4, [(m, 64) for m in rows])]
    for x in (*host[0], *host[1]):
        x[:] = rng.integers(-3, 4, x.shape)
    *_, Cs = there = [[made(x) for x in xs] for xs in host]
    args = tuple(map(tile.address_table, there)), made(np.array(rows, np.int32))
    grouped[len(rows),](*args, K=64, N=64, B=64)
    for a, b, c in zip(*host[:2], Cs):
        np.testing.assert_array_equal(read(c), a.astype(np.float32) @ b.astype(np.float32))
    return args


def test_products_of_separate_matrices_run_ahead_by_a_table_of_pointers():
    """Stores after the loop, to an array that may lie anywhere, hold no load back."""
    made = grouped.compile(*check_grouped(), K=64, N=64, B=64)
    assert {c.variant for c in made.copies} == {"ldgsts"} and not made.warnings


# -- what is known -----------------------------------------------------------------------------------------------------

def vector_bytes(x: np.ndarray, shift: int, n: int, align=None, promise=None) -> list[int]:
    """The bytes per instruction of the load and the store of `shifted` for an address `shift` bytes after a multiple of 128."""
    return [a.vec_bytes for a in shifted.compile(tile.address_of(x) + shift, n, x, ALIGN=align, PROMISE=promise).accesses]


@tile.jit
def shifted(p, n, x, ALIGN: tile.constexpr = None, PROMISE: tile.constexpr = None):
    if PROMISE is not None:
        tile.assume(n % PROMISE == 0)
    a = tile.array(p, tile.float32, n, align=ALIGN)
    for i in range(0, n, 1024):
        tile.store(x[i:i + 1024], tile.load(a[i:i + 1024]))


@pytest.mark.usefixtures("assembled_later")
def test_vectors_are_as_wide_as_the_launch_or_a_promise_says_that_addresses_and_extents_allow():
    x = aligned(1024, np.float32)
    assert [vector_bytes(x, shift, 512)[0] for shift in (0, 8, 4)] == [16, 8, 4]     # what the launch says of the number
    assert vector_bytes(x, 0, 510)[0] == 8
    table = np.zeros(2, np.int64)

    @tile.jit
    def loaded(table, x, N: tile.constexpr, ALIGN: tile.constexpr, ASSUME: tile.constexpr):
        p, n = tile.load(table[0]), tile.load(table[1]).to(tile.int32)
        if ASSUME:
            tile.assume(p % 16 == 0)
            tile.assume(n % 4 == 0)
        a = tile.array(p, tile.float32, N or n, align=ALIGN)
        tile.store(x[0:512], tile.load(a[0:512]))

    def width(**meta):
        return next(a for a in loaded.compile(table, x, **meta).accesses if a.buffer == "a")

    assert width(N=512, ALIGN=16, ASSUME=False).vec_bytes == 16
    assert width(N=None, ALIGN=None, ASSUME=True).vec_bytes == 16
    narrow = width(N=512, ALIGN=8, ASSUME=False)
    assert narrow.vec_bytes == 8 and "a is known to start at a multiple of 8 (align= promises more)" in narrow.declined[0][1]
    assert width(N=None, ALIGN=16, ASSUME=False).vec_bytes == 4


def test_another_address_of_the_same_alignment_needs_no_other_version():
    x, y = aligned(1024, np.float32), aligned(1024, np.float32)

    @tile.jit
    def one(p, y):
        tile.store(y[0:512], tile.load(tile.array(p, tile.float32, 512)))

    keys = [one.compile(tile.address_of(x) + shift, y).key for shift in (0, 16, 64, 4)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


@tile.jit
def far_strides(p, n):
    a, b = tile.array(p, tile.uint8, (1 << 16, 1 << 17)), tile.array(p, tile.uint8, (n, n))
    tile.store(a[(1 << 16) - 256:1 << 16, 0:2], tile.load(b[n - 256:n, 0:2]))


@pytest.mark.usefixtures("assembled_later")
def test_offsets_of_large_arrays_are_computed_in_64_bits():
    ir = far_strides.compile(1 << 40, 1 << 17).llvm_ir
    assert "mul i64" in ir and "mul i32" not in ir and "noalias" not in ir and ".nc" not in ir


def test_the_graph_names_the_array_and_what_it_is_made_of():
    text = shifted.compile(1 << 40, 8, np.zeros(8, np.float32)).graph
    assert "%a = array(" in text and "align=4" in text and "global float32[a.shape[0]]:(1)" in text


# -- what the simulator knows ------------------------------------------------------------------------------------------

@tile.jit
def checked(p, n, s, y, ALIGN: tile.constexpr = None):
    a = tile.array(p, tile.float32, n, s, align=ALIGN)
    tile.store(y[0:32], tile.load(a[0:32]))
    tile.store(a[0:32], 1)


def test_an_array_that_lies_in_no_known_array_is_a_finding_at_its_line():
    x, y = aligned(64, np.float32), np.zeros(32, np.float32)
    start = tile.address_of(x)
    right = (start, 64, 1), (start + 128, 30, -1), (start + 4, 20, 3), (0, 0, 1), (start + 2, 0, 1), (y.ctypes.data, 32, 1)
    for p, n, s in right:
        assert not findings(checked, p, n, s, y, seeds=(0, 1, 2)), (p, n, s)
    unknown = np.zeros(64, np.float32)
    wrong = {"out-of-bounds": [(start + 4, 128, 1), (start, 65, 8), (start + 128, 34 + 128, -1), (0, 4, 1), (16, 4, 1), (unknown.ctypes.data, 64, 1), (start, -1, 1)],
             "misaligned": [(start + 2, 4, 1), (start + 1, 4, 1)]}
    for kind, cases in wrong.items():
        for p, n, s in cases:
            [(found, line)] = findings(checked, p, n, s, y)
            assert found == kind and line.startswith(MADE), (p, n, s)
    assert not findings(checked, start + 64, 16, 1, y, ALIGN=64)
    assert findings(checked, start + 16, 16, 1, y, ALIGN=64)[0][0] == "misaligned"


def test_messages_of_findings_say_how_far_an_array_is_off():
    x = aligned(64, np.float32)
    whole = x.base.nbytes + x.base.ctypes.data - x.ctypes.data

    def message(p, n, s=1):
        return checked.simulate(1, p, n, s, np.zeros(32, np.float32)).findings[0].message

    assert message(tile.address_of(x), whole // 4 + 2).split(" bytes over")[0].endswith(f"runs {8 - whole % 4}")
    assert "which is in no array of the launch" in message(8, 5)
    assert "no multiple of the 4 bytes that elements of float32 need" in message(tile.address_of(x) + 3, 5)
    assert "a has the shape [-2]" in message(tile.address_of(x), -2)
    y = np.zeros(32, np.float32)
    found = checked.simulate(1, y.ctypes.data + 4, 32, 1, y).findings[0].message
    assert found.endswith("runs 4 bytes over the end of y")


def test_an_array_is_known_while_it_lives_and_as_a_part_of_its_whole():
    y, x = np.zeros(32, np.float32), np.zeros(100, np.float32)
    inner = tile.address_of(x[10:20])                                        # the view is gone, its memory is not
    assert not findings(checked, inner, 90, 1, y)
    gone = tile.address_of(x)
    del x
    gc.collect()
    assert findings(checked, gone, 90, 1, y)[0][0] == "out-of-bounds"


def test_what_the_host_may_not_write_is_not_written_by_an_address():
    x, y = np.zeros(64, np.float32), np.zeros(32, np.float32)
    x.flags.writeable = False
    with pytest.raises(tile.LaunchError, match="is read-only, through a"):
        checked.simulate(1, tile.address_of(x), 64, 1, y)


@tile.jit
def ctas(p, x, DTYPE: tile.constexpr, APART: tile.constexpr):
    a = tile.array(p, DTYPE, 128)
    i = tile.program_id(0)
    if i == 0:
        tile.store(x[0], 1)
    if i == 1:
        tile.store(a[APART], 2)


@tile.jit
def threads(p, x, y, SYNC: tile.constexpr):
    a = tile.array(p, tile.int16, 256)
    tile.store(x[0:128], 1)
    if SYNC:
        tile.sync()
    tile.store(y[0:128], tile.load(a[2 * (127 - tile.arange(128))]))


@tile.jit
def engines(p, x, FENCE: tile.constexpr):
    a = tile.array(p, tile.int32, 128, align=16)
    s, bar = tile.alloc((128,), tile.int32), tile.mbarrier()
    tile.store(x[0:128], 3)
    if FENCE:
        tile.fence_proxy_async(space="global")
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, a[0:128], mbar=bar)
    bar.wait(phase=0)
    tile.store(x[0:128], tile.load(s) + 1)


@tile.jit
def fenced_by_the_compiler(p, x, y):
    a = tile.array(p, tile.int32, 128, align=16)
    s = tile.alloc((128,), tile.int32)
    tile.store(a[0:128], 3)
    tile.sync()
    tile.copy_async(s, x[0:128], variant="bulk").wait()
    tile.store(y[0:128], tile.load(s))


@tile.jit
def in_flight(p, x, WAIT: tile.constexpr):
    a = tile.array(p, tile.int32, 128, align=16)
    s = tile.alloc((128,), tile.int32)
    done = tile.copy_async(s, a[0:128])
    if WAIT:
        done.wait()
    tile.store(x[0:128], 1)
    done.wait()


@tile.jit
def handed_over(p, flag, x, y, ORDER: tile.constexpr):
    a, f = tile.array(p, tile.int32, 64), tile.array(flag, tile.int32, 1)
    if tile.program_id(0) == 0:
        tile.store(a[0:64], 5)
        tile.sync()
        tile.store(f[0], 1, sem="release" if ORDER else "relaxed")
    else:
        tile.store(y[64], 0)
        while tile.load(y[65], sem="acquire") == 0:
            pass
        tile.store(y[0:64], tile.load(x[0:64]))


def test_races_between_an_array_and_one_made_over_it_are_found():
    """Among CTAs and among threads, also where the elements have other sizes."""
    x, y = aligned(128, np.int32), np.zeros(128, np.int32)
    p, seeds = tile.address_of(x), (0, 1, 2)
    for dtype, apart in ((tile.int32, 1), (tile.int16, 2), (tile.uint8, 4)):
        assert findings(ctas, p, x, grid=2, DTYPE=dtype, APART=apart - 1)[0][0] == "race"
        assert not findings(ctas, p, x, grid=2, seeds=seeds, DTYPE=dtype, APART=apart)
    assert [kind for kind, _ in findings(threads, p, x, y, SYNC=False)] == ["race"]
    assert not findings(threads, p, x, y, seeds=seeds, SYNC=True)


def test_proxies_and_waits_are_checked_through_an_array_from_an_address():
    x = aligned(128, np.int32)
    p, seeds = tile.address_of(x), (0, 1, 2)
    assert findings(engines, p, x, FENCE=False) == [("missing-proxy-fence", "tile.copy_async(s, a[0:128], mbar=bar)")]
    assert not findings(engines, p, x, seeds=seeds, FENCE=True)
    assert not findings(fenced_by_the_compiler, p, x, np.zeros(128, np.int32), seeds=seeds)
    assert findings(in_flight, p, x, WAIT=False) == [("missing-wait", "tile.store(x[0:128], 1)")]
    assert not findings(in_flight, p, x, seeds=seeds, WAIT=True)


def test_flags_order_ctas_whichever_name_their_memory_has():
    x, y = aligned(64, np.int32), np.zeros(66, np.int32)
    args = tile.address_of(x), y[65:].ctypes.data, x, y
    for seed in range(3):
        assert not findings(handed_over, *args, grid=2, seeds=(seed,), ORDER=True)
        np.testing.assert_array_equal(y[:64], 5)
        y[:] = 0
    assert findings(handed_over, *args, grid=2, ORDER=False) == [("race", "tile.store(y[0:64], tile.load(x[0:64]))")]


@tile.jit
def chosen(table, y):
    i = tile.program_id(0)
    p = tile.load(table[i])
    if p != 0:
        a = tile.array(p, tile.int32, 4)
        tile.store(a[0:4], tile.load(a[0:4]) + i)
    tile.store(y[i], p != 0)


def test_ctas_whose_arrays_lie_apart_meet_again_after_a_branch():
    xs, y = [np.zeros(4, np.int32) for _ in range(3)], np.zeros(6, np.int32)
    table = np.array([*tile.address_table(xs), 0, 0, xs[0].ctypes.data])
    table = table[[3, 0, 1, 4, 2, 3]]
    assert not findings(chosen, table, y, grid=6)
    assert [x[0] for x in xs] == [1, 2, 4] and y.tolist() == [0, 1, 1, 0, 1, 0]


# -- loads ahead -------------------------------------------------------------------------------------------------------

@tile.jit
def summed(table, y, count, IN_LOOP: tile.constexpr):
    total = tile.zeros((64,), tile.float32)
    for i in tile.pipelined(range(count), stages=3):
        a = tile.array(tile.load(table[i]), tile.float32, 64, align=16)
        total += tile.load(a[0:64])
        if IN_LOOP:
            tile.store(y[0:64], total)
    tile.store(y[0:64], total)


def check_summed(count: int, made=lambda x: x, read=lambda x: x) -> None:
    xs, y = [aligned(64, np.float32) for _ in range(5)], made(np.zeros(64, np.float32))
    for n, x in enumerate(xs):
        x[:] = n + 1
    there = [made(x) for x in xs]
    summed[1,](tile.address_table(there), y, count, IN_LOOP=False)
    np.testing.assert_array_equal(read(y), sum(range(1, count + 1)))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_arrays_of_a_pipelined_loop_are_made_trips_ahead(count):
    check_summed(count)


@tile.jit
def some_of(table, flags, y):
    total = tile.zeros((256,), tile.float32)
    for i in tile.pipelined(range(flags.shape[0]), stages=3):
        if tile.load(flags[i]) > 0:
            a = tile.array(tile.load(table[i]), tile.float32, 256, align=16)
            total += tile.load(a[0:256])
    tile.store(y[0:256], total)


def test_an_array_of_a_branch_is_made_ahead_only_where_the_branch_is_taken():
    """The table has no addresses for the other trips."""
    x, y, flags = aligned(256, np.float32), np.zeros(256, np.float32), np.array([1, 0, 1, 0, 0, 1], np.int32)
    x[:] = 2
    table = np.where(flags, tile.address_of(x), 3)
    assert not findings(some_of, table, flags, y, seeds=(0, 1))
    np.testing.assert_array_equal(y, 6)
    assert some_of.compile(table, flags, y).copies


@pytest.mark.filterwarnings("ignore:summed")
def test_no_load_of_an_array_from_an_address_passes_a_store_of_its_loop():
    made = [summed.compile(np.zeros(5, np.int64), np.zeros(64, np.float32), 5, IN_LOOP=inside) for inside in (False, True)]
    assert [bool(m.copies) for m in made] == [True, False]
    assert "store at line" in made[1].warnings[0] and "may write what it reads from a, since nobody knows" in made[1].warnings[0]


@tile.jit
def promised(table, sizes, y, count):
    total = tile.zeros((16, 64), tile.float32)
    for i in tile.pipelined(range(count), stages=2):
        n, p = tile.load(sizes[i]), tile.load(table[i])
        tile.assume(n % 8 == 0)
        tile.assume(p % 16 == 0)
        total += tile.load(tile.array(p, tile.float16, (n, n))[0:16, 0:64])
    tile.store(y[0:16, 0:64], total)


def test_what_is_assumed_where_an_array_is_made_holds_for_its_copies_trips_ahead():
    sizes, y = (24, 64, 8), np.zeros((16, 64), np.float32)
    xs = [aligned(n * n, np.float16).reshape(n, n) for n in sizes]
    for x in xs:
        x[:] = 1
    assert not findings(promised, tile.address_table(xs), np.array(sizes, np.int32), y, 3)
    i, j = np.indices(y.shape)
    np.testing.assert_array_equal(y, sum(((i < n) & (j < n)).astype(np.float32) for n in sizes))
    made = promised.compile(tile.address_table(xs), np.array(sizes, np.int32), y, 3)
    assert {c.plan.vec_bytes for c in made.copies} == {16}


# -- bad input ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "tile.array(y, tile.float32, 8)": "an address is a 64-bit integer, not a global buffer float32[y.shape[0]]; an array argument is an array already",
    "tile.array(table, tile.float32, 8)": "load it, as in tile.load(table[i])",
    "tile.array(table[0], tile.float32, 8)": "load it, as in tile.load(..)",
    "tile.array(1.5, tile.float32, 8)": "an address is a 64-bit integer, not the number 1.5",
    "tile.array(tile.load(y[0]), tile.float32, 8)": "an address is a 64-bit integer, not a scalar float32",
    "tile.array(tile.load(table[0]).to(tile.int32), tile.float32, 8)": "an address has 64 bits, and this is a scalar int32",
    "tile.array(tile.arange(4), tile.float32, 8)": "an array has one address, a scalar, and this is a tile int32[4]",
    "tile.array(tile.load(table[tile.thread_id()]), tile.float32, 8)": "the address of an array must be the same for all threads of the cta",
    "tile.array(p, 'float33', 8)": "'float33' is not an element type of tilejit (did you mean 'float32'?)",
    "tile.array(p, tile.float4_e2m1fn, 8)": "works on elements of whole bytes",
    "tile.array(p, tile.float32)": "missing a required argument: 'shape'",
    "tile.array(p, tile.float32, (8, -1))": "an extent is at least 0, and the shape is (8, -1)",
    "tile.array(p, tile.float32, 2.5)": "shape has an integer for each dimension, as in (rows, 64), not the number 2.5; // divides integers",
    "tile.array(p, tile.float32, tile.thread_id())": "an extent of an array must be the same for all threads of the cta",
    "tile.array(p, tile.float32, (8, 8), 8)": "an array has a stride for each dimension: 2, not 1",
    "tile.array(p, tile.float32, 8, align=12)": "align is a power of two, of at least the 4 bytes of an element, not 12",
    "tile.array(p, tile.float32, 8, align=2)": "of at least the 4 bytes of an element, not 2",
    "tile.array(p, tile.float32, 8, align=p)": "p is a number of the launch: declare the parameter as p: tile.constexpr",
    "tile.tensor_map(tile.array(p, tile.float32, (8, 8))[0:8, 0:8])": "make a map with slot= of an array argument of its dtype, and bind it",
}


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("source", REFUSED)
def test_bad_arguments_are_refused_at_the_caret(source):
    kernel = tile.jit(source=f"def k(p, y, table):\n    a = {source}\n")
    with pytest.raises(tile.CompilationError) as caught:
        kernel.compile(1 << 40, np.zeros(8, np.float32), np.zeros(8, np.int64))
    assert REFUSED[source] in str(caught.value) and f"    a = {source}\n        ^" in str(caught.value)


@pytest.mark.usefixtures("assembled_later")
def test_control_flow_chooses_between_addresses_and_not_between_arrays():
    @tile.jit
    def two(p, q, n, y):
        if n > 3:
            a = tile.array(p, tile.float32, 8)
        else:
            a = tile.array(q, tile.float32, 8)
        tile.store(y[0:8], tile.load(a[0:8]))

    @tile.jit
    def one(p, q, n, y):
        a = tile.array(p if n > 3 else q, tile.float32, 8)
        tile.store(y[0:8], tile.load(a[0:8]))

    @tile.jit
    def left(p, y):
        with tile.warp(0):
            a = tile.array(p, tile.float32, 8)
        tile.store(y[0:8], tile.load(a[0:8]))

    args = 1 << 40, 1 << 41, 5, np.zeros(8, np.float32)
    one.compile(*args)
    @tile.jit
    def turns(p, q, n, y):
        a = tile.array(p, tile.float32, 8)
        for _ in range(n):
            tile.store(y[0:8], tile.load(a[0:8]))
            a = tile.array(q, tile.float32, 8)

    for kernel in (two, turns):
        with pytest.raises(tile.CompilationError, match="their addresses are numbers: choose these, as in tile.array"):
            kernel.compile(*args)
    with pytest.raises(tile.CompilationError, match="assigned inside an execution scope"):
        left.compile(args[0], args[-1])


def test_verify_does_not_run_kernels_whose_arrays_it_cannot_copy():
    x = np.zeros(64, np.float32)
    with pytest.raises(tile.LaunchError, match="makes arrays from addresses, which name the arrays themselves"):
        tile.verify(checked, 1, tile.address_of(x), 64, 1, x, reference=lambda *args: None)
    assert not x.any()


def test_address_tables_are_of_arrays_in_one_place():
    xs = [np.zeros(3, np.float32), np.zeros((2, 2), np.int8)[:, 1:]]
    table = tile.address_table(xs)
    assert table.dtype == np.int64 and table.tolist() == [x.ctypes.data for x in xs] == [tile.address_of(x) for x in xs]
    assert tile.address_table([]).shape == (0,)
    with pytest.raises(tile.LaunchError):
        tile.address_of(object())
    with pytest.raises(tile.LaunchError, match="nothing tells how long the memory of a float32 lives"):
        tile.address_of(np.float32(3))


# -- on the GPU --------------------------------------------------------------------------------------------------------

@needs_gpu(*REPLACING)
@in_child(timeout=100)
def test_a_tensor_map_is_bound_to_an_array_from_an_address_on_the_gpu():
    check_by_map(tile.to_device, lambda x: x.numpy())


@needs_gpu()
@in_child(timeout=200)
def test_arrays_from_addresses_hold_the_same_on_the_gpu():
    to_device, read = tile.to_device, lambda x: x.numpy()
    for dtype in (np.float32, np.float16, np.uint8, np.int64):
        for x in views(dtype)[:3]:
            check_moved(x, DTYPES[dtype], to_device)
    check_adam(to_device, read)
    check_grouped(to_device, read)
    for count in (0, 1, 5):
        check_summed(count, to_device, read)
    for how in ("token", "rows", *(("bulk",) if gpu_targets()[0] != "sm_80" else ())):
        check_copied(how, to_device, read)
    check_by_elements(to_device, read)
    x = tile.to_device(np.arange(8, dtype=np.float32))
    with pytest.raises(tile.LaunchError, match="addresses of the host mean nothing"):
        checked[1,](tile.address_of(x), 8, 1, np.zeros(32, np.float32), backend="cuda")
