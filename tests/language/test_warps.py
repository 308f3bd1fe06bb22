"""Exchanges of scalars among the lanes of a warp agree with NumPy for every dtype; and a scope for each warp of a range."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
          "bfloat16", "float8_e4m3fn", "float8_e5m2"]
TARGETS = ["sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"]
THREADS = 96
T = np.arange(THREADS)
LANE, BASE = T % 32, T // 32 * 32


def numbers(dtype: str) -> np.ndarray:
    """A number of each thread with random bits; no NaN, and for bools 0 and 1."""
    np_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.integers(0, 2, THREADS).astype(bool)
    x = rng.integers(0, 256, THREADS * np_dtype.itemsize).astype(np.uint8).view(np_dtype)
    return np.where(np.isnan(x.astype(np.float64)), np_dtype.type(1), x).astype(np_dtype)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


# kind: (call, the lane that each thread reads, before the range of lanes is checked)
SHUFFLES = {
    "a constant lane": ("tile.shuffle(v, 5)", np.full(THREADS, 5)),
    "a constant lane modulo 32": ("tile.shuffle(v, 37)", np.full(THREADS, 5)),
    "a negative lane": ("tile.shuffle(v, -1)", np.full(THREADS, 31)),
    "a lane by thread": ("tile.shuffle(v, i * 7 - 40)", (T * 7 - 40) % 32),
    "a 64-bit lane": ("tile.shuffle(v, tile.int64(i) * 3)", T * 3 % 32),
    "xor": ("tile.shuffle_xor(v, 13)", LANE ^ 13),
    "xor by a run-time mask": ("tile.shuffle_xor(v, n)", LANE ^ 6),
    "xor of five bits": ("tile.shuffle_xor(v, 33)", LANE ^ 1),
    "up": ("tile.shuffle_up(v, 3)", LANE - 3),
    "up by nothing": ("tile.shuffle_up(v, 0)", LANE),
    "up by 31": ("tile.shuffle_up(v, 31)", LANE - 31),
    "up by a warp": ("tile.shuffle_up(v, 32)", LANE - 32),
    "up by a run-time number": ("tile.shuffle_up(v, n)", LANE - 6),
    "up by numbers beyond the warp": ("tile.shuffle_up(v, i - 20)", np.where(T < 20, -1, LANE - (T - 20))),
    "down": ("tile.shuffle_down(v, 3)", LANE + 3),
    "down by a run-time number": ("tile.shuffle_down(v, n)", LANE + 6),
    "down by numbers beyond the warp": ("tile.shuffle_down(v, i - 20)", np.where(T < 20, 32, LANE + (T - 20))),
}


def shuffles():
    lines = ["def shuffles(x, y, n):", "i = tile.thread_id()", "v = tile.load(x[i])"]
    lines += [f"tile.store(y[{k}, i], {call})" for k, (call, _) in enumerate(SHUFFLES.values())]
    return tile.jit(source="\n    ".join(lines) + "\n", num_warps=THREADS // 32)


def shuffled(x: np.ndarray) -> np.ndarray:
    """NumPy's results of all `SHUFFLES`."""
    return np.stack([x[BASE + np.where((at >= 0) & (at < 32), at, LANE)] for _, at in SHUFFLES.values()])


def check_shuffles(dtype, **options):
    x = numbers(dtype)
    y = np.zeros((len(SHUFFLES), THREADS), x.dtype)
    shuffles()[1,](x, y, 6, **options)
    for name, got, want in zip(SHUFFLES, bits(y), bits(shuffled(x))):
        np.testing.assert_array_equal(got, want, err_msg=f"{name} of {dtype}")


@tile.jit(num_warps=3)
def votes(x, masks, flags, LIMIT: tile.constexpr):
    i = tile.thread_id()
    v = tile.load(x[i])
    tile.store(masks[0, i], tile.ballot(i % 5 == 1))
    tile.store(masks[1, i], tile.ballot(v))
    tile.store(masks[2, i], tile.match(v))
    tile.store(masks[3, i], tile.ballot(True))
    tile.store(flags[0, i], tile.warp_any(i == LIMIT))
    tile.store(flags[1, i], tile.warp_all(i < LIMIT))
    tile.store(flags[2, i], tile.warp_all(v))


def mask_of(held: np.ndarray) -> np.ndarray:
    """The masks of lanes, by thread, of a condition by thread."""
    return ((held.reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)).repeat(32)


def check_votes(dtype, **options):
    x = numbers(dtype)
    x[::3], x[32:64:2] = x[0], np.zeros(1, x.dtype)
    masks, flags = np.zeros((4, THREADS), np.uint32), np.zeros((3, THREADS), bool)
    votes[1,](x, masks, flags, LIMIT=40, **options)
    rows = bits(x).reshape(-1, 32)
    equal = np.concatenate([[int(sum(1 << k for k in range(32) if row[k] == one)) for one in row] for row in rows])
    holds = x.astype(np.float64) != 0
    np.testing.assert_array_equal(masks, [mask_of(T % 5 == 1), mask_of(holds), equal, mask_of(T >= 0)])
    by_warp = lambda combine, held: combine(held.reshape(-1, 32), axis=1).repeat(32)
    np.testing.assert_array_equal(flags, [by_warp(np.any, T == 40), by_warp(np.all, T < 40), by_warp(np.all, holds)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_shuffles_of_every_dtype_agree_with_numpy_also_for_lanes_outside_the_warp(dtype):
    check_shuffles(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_votes_and_matches_of_every_dtype_agree_with_numpy(dtype):
    check_votes(dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_a_shuffle_of_64_bits_is_two_instructions_and_a_narrow_one_is_one(target):
    kernel = tile.jit(source="def one(x):\n    i = tile.thread_id()\n    tile.store(x[i], tile.shuffle_xor(tile.load(x[i]), 1))\n")
    for dtype in DTYPES:
        ptx = kernel.compile(tile.ArraySpec((128,), dtype), target=target).ptx
        assert ptx.count("shfl.sync.bfly.b32") == (2 if dtype[-2:] == "64" else 1), dtype


def test_matches_compare_bits_and_not_numbers():
    @tile.jit(num_warps=1)
    def same(x, y):
        tile.store(y[tile.lane_id()], tile.match(tile.load(x[tile.lane_id()])))

    x, y = np.where(np.arange(32) % 2, np.float32(-0.0), np.float32(0.0)), np.zeros(32, np.uint32)
    x[30:] = np.nan
    same[1,](x, y)
    assert y[0] == 0x15555555 and y[1] == 0x2AAAAAAA and y[31] == 0xC0000000


def test_a_constant_is_the_same_in_all_lanes():
    @tile.jit(num_warps=1)
    def constants(y):
        tile.store(y[tile.lane_id()], tile.shuffle(2.5, 3) + tile.shuffle_up(1, 1))

    y = np.zeros(32, np.float32)
    constants[1,](y)
    assert (y == 3.5).all()


# -- scopes and conditions -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first, stop", [(0, 8), (8, 16), (48, 64), (36, 40), (32, 64)])
def test_lanes_of_a_scope_exchange_values_among_themselves(first, stop):
    kernel = tile.jit(source=f"""def some(x, y, m, n):
    with tile.thread(range({first}, {stop})):
        i = tile.thread_id()
        v = tile.load(x[i])
        tile.store(y[0, i], tile.shuffle_up(v, 3))
        tile.store(y[1, i], tile.shuffle_down(v, n))
        tile.store(y[2, i], tile.shuffle_xor(v, 9))
        tile.store(y[3, i], tile.shuffle(v, {first} + 1))
        tile.store(m[0, i], tile.ballot(i % 2 == 0))
        tile.store(m[1, i], tile.match(i // 4))
        if tile.warp_any(i == {first}):
            tile.store(m[2, i], tile.uint32(tile.warp_all(i < {stop})))
""", num_warps=2)
    x, y, m = np.arange(64, dtype=np.float64) + 100, np.zeros((4, 64)), np.zeros((3, 64), np.uint32)
    kernel[1,](x, y, m, 2)
    i = np.arange(first, stop)
    read = lambda at: x[np.where((at >= first) & (at < stop), at, i)]
    np.testing.assert_array_equal(y[:, first:stop], [read(i - 3), read(i + 2), read(i ^ 9), read(0 * i + first + 1)])
    lanes = lambda held: sum(1 << int(t) % 32 for t in held)
    np.testing.assert_array_equal(m[:, first:stop], [[lanes(i[i % 2 == 0])] * len(i), [lanes(i[i // 4 == t // 4]) for t in i], [1] * len(i)])


def test_a_lane_outside_of_the_scope_cannot_be_read():
    @tile.jit(num_warps=1)
    def outside(x):
        with tile.thread(range(0, 8)):
            tile.store(x[tile.lane_id()], tile.shuffle(tile.lane_id(), 9))

    (finding,) = outside.simulate((1,), np.zeros(32, np.int32)).findings
    assert finding.kind == "divergent-collective" and "reads from lane 9" in str(finding)


def test_conditions_that_are_the_same_in_each_warp_may_be_around_a_shuffle():
    @tile.jit(num_warps=4)
    def some_warps(x, y):
        i = tile.thread_id()
        v = tile.load(x[i])
        if tile.warp_id() < 3:
            if tile.warp_any(v == 40):
                v = tile.shuffle_xor(v, 1)
            elif tile.shuffle(v, 0) == 64:
                v = tile.shuffle(v, 2)
        for n in range(tile.warp_id()):
            v += tile.shuffle_up(v, 0)
        tile.store(y[i], v)

    x, y = np.arange(128), np.zeros(128, np.int64)
    some_warps[1,](x, y)
    want = x.copy()
    want[32:64], want[64:96] = x[32:64] ^ 1, 66
    np.testing.assert_array_equal(y, want << (x // 32))


def test_votes_of_a_warp_may_be_conditions_around_operations_on_tiles():
    @tile.jit(num_warps=2)
    def chosen(x, y):
        with tile.each_warp(range(0, 2)) as w:
            if tile.warp_any(tile.load(x[w, tile.lane_id()]) > 40):
                tile.store(y[w], tile.sum(tile.load(x[w, 0:32])))
            n = tile.shuffle(tile.lane_id(), 3)
            tile.store(y[w + n], tile.max(tile.load(x[w, n:n + 8], other=0.0)))

    x, y = np.arange(64, dtype=np.float32).reshape(2, 32), np.full(8, -1, np.float32)
    chosen[1,](x, y)
    np.testing.assert_array_equal(y, [-1, x[1].sum(), -1, x[0, 10], x[1, 10], -1, -1, -1])


DIVERGENT = {"if tile.lane_id() < 5:\n        tile.{call}": "the condition `tile.lane_id() < 5` differs between them",
             "if tile.warp_id() < 1:\n        if tile.lane_id() < 5:\n            tile.{call}": "the condition `tile.lane_id() < 5` differs between them",
             "for k in range(tile.lane_id()):\n        tile.{call}": "differs between them",
             "with tile.elect():\n        tile.{call}": "only one thread runs here",
             "with tile.thread(3):\n        tile.{call}": "only one thread runs here"}


@pytest.mark.parametrize("around", DIVERGENT)
@pytest.mark.parametrize("call", ["shuffle(1, 0)", "shuffle_xor(i, 1)", "shuffle_up(i, 1)", "shuffle_down(i, 1)", "ballot(i > 1)", "warp_any(i > 1)",
                                  "warp_all(i > 1)", "match(i)"])
def test_exchanges_that_some_lanes_do_not_reach_are_refused(around, call):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x):\n    i = tile.thread_id()\n    {around.format(call=call)}\n").compile(tile.ArraySpec((32,), "float32"))
    assert DIVERGENT[around] in str(caught.value) and call.partition("(")[0] in str(caught.value)


@pytest.mark.parametrize("text, words", [
    ("shuffle(t, 1)", "shuffle takes a scalar, one in each thread, of 8 to 64 bits or a bool, not a tile float32[32]"),
    ("match(t)", "match takes a scalar"), ("ballot(t > 1)", "ballot takes a condition, one scalar in each thread, not a tile"),
    ("shuffle(i, 1.5)", "lane is an integer, not the number 1.5"), ("shuffle(i, t)", "lane is an integer, not a tile"),
    ("shuffle_up(i, -1)", "delta is at least 0, not -1"), ("shuffle_down(i, -1)", "delta is at least 0, not -1"),
    ("ballot(i > 1, 0)", "mask has a bit for each lane that takes part"), ("match(i, 1 << 32)", "mask has a bit for each lane"),
    ("warp_any(i > 1, mask=1.5)", "mask is an integer, not the number 1.5"), ("warp_all(i > 1, t)", "mask is an integer, not a tile"),
    ("shuffle_xor(i, -1)", "mask is at least 0, not -1"), ("shuffle_xor(i, True)", "mask is an integer"),
    ("shfl_down_sync(i, 1)", "tile.shuffle_down(x, delta)"), ("any_sync(i)", "tile.warp_any(condition)")])
def test_invalid_operands_are_refused_with_what_to_write(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x):\n    i, t = tile.thread_id(), tile.load(x[0:32])\n    tile.{text}\n").compile(tile.ArraySpec((32,), "float32"))
    assert words in str(caught.value)


# -- lanes of a mask ---------------------------------------------------------------------------------------------------

@tile.jit(num_warps=2)
def masked(x, y, flags, LOW: tile.constexpr):
    i = tile.thread_id()
    lane, v = tile.lane_id(), tile.load(x[i])
    if lane < 8:
        tile.store(y[0, i], tile.ballot(v % 2 == 0, mask=LOW))
        tile.store(y[1, i], tile.match(v % 3, mask=tile.uint32(LOW)))
        tile.store(flags[0, i], tile.warp_any(v == 5, LOW))
    halves = tile.where(lane < 16, 0xffff, -0x10000)
    tile.store(y[2, i], tile.ballot(v > 30, halves))
    tile.store(y[3, i], tile.match(tile.float32(v % 2), halves))
    tile.store(flags[1, i], tile.warp_all(v < 40, mask=halves))
    tile.store(y[4, i], tile.ballot(True, halves))


def check_masked(**options):
    x = np.random.default_rng(1).permutation(64).astype(np.int32)
    y, flags = np.zeros((5, 64), np.uint32), np.zeros((2, 64), bool)
    masked[1](x, y, flags, LOW=0xff, **options)
    lane = np.arange(64) % 32
    members = np.where(lane < 16, 0xffff, 0xffff0000).astype(np.uint32)
    low = lambda made: np.where(lane < 8, made, 0)
    equal = lambda key: np.concatenate([mask_of((key == key[t]) & (T[:64] // 32 == t // 32))[t:t + 1] for t in range(64)])
    np.testing.assert_array_equal(y, [low(mask_of(x % 2 == 0) & 0xff), low(equal(x % 3) & 0xff), mask_of(x > 30) & members,
                                      equal(x % 2) & members, members])
    five = np.array([(x[t // 32 * 32:t // 32 * 32 + 8] == 5).any() for t in range(64)])
    np.testing.assert_array_equal(flags, [low(five) != 0, (mask_of(x >= 40) & members) == 0])


def test_votes_and_matches_under_masks_agree_with_numpy():
    """Also in branches that only the lanes of the mask take, and with masks that differ by lane."""
    check_masked()
    spec = [tile.ArraySpec((64,), "int32"), tile.ArraySpec((5, 64), "uint32"), tile.ArraySpec((2, 64), "bool")]
    for target in TARGETS:
        ptx = masked.compile(*spec, LOW=0xff, target=target).ptx
        assert "vote.sync.ballot.b32" in ptx and "match.any.sync.b32" in ptx


@needs_gpu()
@in_child(timeout=60)
def test_votes_and_matches_under_masks_agree_with_numpy_on_a_gpu():
    check_masked(backend="cuda")


@pytest.mark.parametrize("call", ["ballot(i > 1, {})", "warp_any(i > 1, {})", "warp_all(i > 1, {})", "match(i, {})"])
def test_a_mask_that_names_a_lane_which_does_not_come_is_a_finding(call):
    """And the mask of those that come is none."""
    source = "def k(y):\n    i = tile.thread_id()\n    if i < 8:\n        tile.store(y[i], tile.uint32(tile." + call + "))\n"
    for mask, kinds in (("0x1ff", {"divergent-collective"}), ("0xff", set())):
        report = tile.jit(source=source.format(mask)).simulate(1, np.zeros(32, np.uint32), num_warps=1)
        assert {finding.kind for finding in report.findings} == kinds


# -- a scope for each warp -----------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def each_reverses(x, y, sums):
    staged = tile.alloc((4, 32), tile.float32)
    with tile.each_warp(range(1, 4)) as w:
        tile.copy_async(staged[w, :], x[w, 0:32]).wait()
        tile.store(y[w, 0:32], tile.load(staged[w, 31 - tile.arange(32)]))
        tile.store(sums[w], tile.sum(tile.load(staged[w, :])))


def check_each_warp(**options):
    x, y, sums = np.arange(128, dtype=np.float32).reshape(4, 32), np.zeros((4, 32), np.float32), np.zeros(4, np.float32)
    each_reverses[1,](x, y, sums, **options)
    np.testing.assert_array_equal(y[1:], x[1:, ::-1])
    np.testing.assert_array_equal(sums, [0, *x[1:].sum(axis=1)])


def test_each_warp_of_a_range_runs_the_same_code_in_a_scope_of_its_own():
    check_each_warp()
    for seed in range(4):
        assert not each_reverses.simulate((1,), np.zeros((4, 32), np.float32), np.zeros((4, 32), np.float32), np.zeros(4, np.float32), seed=seed).findings


@pytest.mark.parametrize("over, words", [("3", "each_warp takes a range, as in each_warp(range(1, 3))"),
                                         ("range(0, 5)", "warp 4 does not exist: with num_warps=4 the CTA has warps 0 to 3"),
                                         ("range(0, n)", "takes constant bounds"), ("range(2, 2)", "first below stop")])
def test_each_warp_takes_a_constant_range_of_warps(over, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(n):\n    with tile.each_warp({over}) as w:\n        tile.sync()\n").compile(3)
    assert words in str(caught.value)


@needs_gpu()
@in_child(timeout=120)
def test_exchanges_and_scopes_of_warps_agree_with_numpy_on_a_gpu():
    for dtype in DTYPES:
        check_shuffles(dtype, backend="cuda")
        check_votes(dtype, backend="cuda")
    check_each_warp(backend="cuda")


# -- reductions --------------------------------------------------------------------------------------------------------

OPS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@tile.jit(num_warps=3)
def reduced(x, y, part, OP: tile.constexpr, LOW: tile.constexpr):
    i, lane = tile.thread_id(), tile.lane_id()
    v = tile.load(x[i])
    tile.store(y[i], tile.warp_reduce(v, OP))
    if lane < 8:
        tile.store(part[i], tile.warp_reduce(v, OP, mask=LOW))
    elif lane < 20:
        tile.store(part[i], tile.warp_reduce(v, OP, mask=tile.where(lane % 2 == 0, 0x55500, 0xAAA00)))


def check_reduced(dtype: str, **options):
    """Over the warp, over lanes in a branch, and over the even and the odd ones in another."""
    x = numbers(dtype)
    group = np.where(LANE < 8, 0, np.where(LANE < 20, 1 + LANE % 2, -1)) + BASE
    for op, ufunc in OPS.items():
        if np.dtype(x.dtype).kind not in "biu" and op not in ("min", "max"):
            continue
        for values in (x, np.where(T == 37, np.nan, x).astype(x.dtype)) if np.dtype(x.dtype).kind not in "biu" else (x,):
            wide = values
            if op == "add":
                wide = values.astype(np.uint32 if x.dtype.kind == "u" else np.int32)
            elif np.dtype(x.dtype).kind not in "biu":
                wide = values.astype(np.float32)
            y, part = np.zeros(THREADS, wide.dtype if op == "add" else x.dtype), np.zeros(THREADS, wide.dtype if op == "add" else x.dtype)
            reduced[1,](values, y, part, OP=op, LOW=0xff, **options)
            over = lambda who: ufunc.reduce(wide[who], dtype=wide.dtype)
            np.testing.assert_array_equal(y.astype(wide.dtype), [over(BASE == BASE[t]) for t in T], err_msg=f"{op} {dtype}")
            want = [over(group == group[t]) if LANE[t] < 20 else 0 for t in T]
            np.testing.assert_array_equal(part.astype(wide.dtype), want, err_msg=f"{op} {dtype}")


REDUCED = [d for d in DTYPES if "64" not in d]


@pytest.mark.parametrize("dtype", REDUCED)
def test_reductions_over_a_warp_and_over_lanes_of_a_mask_agree_with_numpy(dtype):
    check_reduced(dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_a_reduction_over_lanes_is_one_instruction(target):
    spec = tile.ArraySpec((THREADS,), "int32")
    assert reduced.compile(spec, spec, spec, OP="max", LOW=3, target=target).ptx.count("redux.sync.max.s32") == 3


@pytest.mark.parametrize("call, words", [("tile.warp_reduce(tile.load(y[i]), 'add')", "warp_reduce has no add of float32"),
                                         ("tile.warp_reduce(tile.load(z[i]), 'max')", "warp_reduce has no max of int64"),
                                         ("tile.warp_reduce(i, 'mul')", "not 'mul'"),
                                         ("tile.warp_reduce(tile.load(x[0:32]), 'max')", "warp_reduce takes a scalar"),
                                         ("tile.warp_reduce(i, 'max', mask=0)", "mask has a bit for each lane")])
def test_reductions_over_lanes_refuse_what_the_instruction_has_not(call, words):
    kernel = tile.jit(source=f"def k(x, y, z):\n    i = tile.thread_id()\n    tile.store(x[i], {call})\n")
    with pytest.raises(tile.CompilationError, match=words):
        kernel.compile(*(tile.ArraySpec((128,), d) for d in ("int32", "float32", "int64")), target="sm_90a")


def test_a_reduction_whose_mask_leaves_out_a_lane_is_found():
    @tile.jit(num_warps=1)
    def left_out(x):
        tile.store(x[tile.lane_id()], tile.warp_reduce(tile.lane_id(), "add", mask=0xfffffffe))

    finding = left_out.simulate(1, np.zeros(32, np.int32)).findings[0]
    assert finding.kind == "divergent-collective"


@needs_gpu()
@in_child(timeout=120)
def test_reductions_over_a_warp_and_over_lanes_of_a_mask_agree_with_numpy_on_a_gpu():
    for dtype in REDUCED:
        check_reduced(dtype, backend="cuda")
