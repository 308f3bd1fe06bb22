"""``tile.philox`` passes Random123's known answers, and all calls agree bit for bit with Philox 4x32-10 and Triton's conversions in
NumPy. The constants below are those of the paper (J. K. Salmon et al., SC 2011, section 4.3)."""

from types import SimpleNamespace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.emit.value import V
from tilejit.ops.language.random import philox_

from tests.gpu import in_child, needs_gpu

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
WORD = 2**32 - 1


def philox(seed, *counter):
    """The four words of each counter, uint32 arrays, by Python's integers of 64 bits."""
    wide = np.asarray(seed).astype(np.int64 if np.asarray(seed).dtype.kind == "i" else np.uint64).astype(np.uint64)
    k0, k1 = (wide & WORD), (wide >> np.uint64(32))
    c = [np.asarray(word).astype(np.uint64) & WORD for word in counter] + [np.uint64(0)] * (4 - len(counter))
    for _ in range(10):
        left, right = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(right >> np.uint64(32)) ^ c[1] ^ k0, right & WORD, (left >> np.uint64(32)) ^ c[3] ^ k1, left & WORD]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & WORD, (k1 + np.uint64(0xBB67AE85)) & WORD
    return np.stack(np.broadcast_arrays(*c)).astype(np.uint32)


def uniform(words):
    """Triton's uint_to_uniform_float: 31 bits, since a negative number is replaced by its complement."""
    signed = words.view(np.int32)
    return np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def normal(first, second):
    """Triton's pair_uniform_to_normal of two uniform numbers, in float64 from its float32 operands on."""
    u, angle = np.maximum(np.float32(1e-7), uniform(first)), np.float32(6.283185307179586) * uniform(second)
    return np.sqrt(-2 * np.log(u.astype(np.float64))) * np.cos(angle.astype(np.float64))


ANSWERS = [  # Random123, kat_vectors, "philox4x32 10": counter, key, words
    ((0, 0, 0, 0), (0, 0), (0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd)),
    ((0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), (0xa4093822, 0x299f31d0),
     (0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1)),
]


@tile.jit
def known(out, words, key):
    counter = (tile.load(words[0]), tile.load(words[1]), tile.load(words[2]), tile.load(words[3]))
    result = tile.philox(tile.load(key[0]), counter)
    for i in tile.static_range(4):
        tile.store(out[i], result[i])


@tile.jit
def known_constants(out, SEED: tile.constexpr, COUNTER: tile.constexpr):
    result = tile.philox(SEED, COUNTER)
    for i in tile.static_range(4):
        tile.store(out[i], result[i])


@tile.jit
def draw(words, floats, offsets, seed, N: tile.constexpr):
    at = tile.load(offsets[0:N])
    tile.store(words[0:4, 0:N], tile.stack(tile.philox(seed, at)))
    tile.store(words[4, 0:N], tile.randint(seed, at))
    tile.store(floats[0, 0:N], tile.rand(seed, at))
    tile.store(floats[1, 0:N], tile.randn(seed, at))


def drawn(offsets, seed, **options):
    """What `draw` stores: the words, [5, N], and the floats, [2, N]."""
    words, floats = np.zeros((5, len(offsets)), np.uint32), np.zeros((2, len(offsets)), np.float32)
    draw[1](words, floats, offsets, seed, N=len(offsets), **options)
    return words, floats


def check(words, floats, want):
    """`rand` agrees bit for bit. The functions' errors (1, 0.5 and 2 ulp) and two products' allow 4 ulp of `randn`'s result;
    log's relative error is halved by the square root."""
    np.testing.assert_array_equal(words, np.concatenate((want, want[:1])))
    np.testing.assert_array_equal(floats[0].view(np.uint32), uniform(want[0]).view(np.uint32))
    exact = normal(want[0], want[1])
    assert (np.abs(floats[1] - exact) <= 4 * np.spacing(np.abs(exact).astype(np.float32))).all()


@pytest.mark.parametrize("counter, key, words", ANSWERS)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    out, seed = np.zeros(4, np.uint32), key[1] << 32 | key[0]
    known[1](out, np.array(counter, np.uint32), np.array([seed], np.uint64))
    assert tuple(out) == words
    out[:] = 0
    known_constants[1](out, SEED=seed, COUNTER=counter)
    assert tuple(out) == words
    assert tuple(philox(np.uint64(seed), *(np.uint32(c) for c in counter))) == words


class Interpreter:
    """An emitter that computes each LLVM instruction of integers at once: the values are decimal numbers."""

    def const(self, number, dtype):
        return V(self, str(number % 2**dtype.bits), dtype)

    def widen(self, x, dtype):
        assert x.dtype.bits == dtype.bits, "an index would be extended by its sign"
        return x

    def ins(self, text, dtype):
        name, kind, a, *rest = text.replace(",", "").split()
        a, b = int(a) % 2**int(kind[1:]), int(rest[-1][1:] if rest[0] == "to" else rest[0])
        result = {"mul": lambda: a * b, "add": lambda: a + b, "xor": lambda: a ^ b, "lshr": lambda: a >> b,
                  "zext": lambda: a, "trunc": lambda: a % 2**b}[name]()
        return V(self, str(result % 2**(b if rest[0] == "to" else int(kind[1:]))), dtype)


@pytest.mark.parametrize("counter, key, words", ANSWERS)
def test_the_emitted_instructions_compute_the_known_answers(counter, key, words):
    e = Interpreter()
    operands = [e.const(n, tile.uint32) for n in (*counter, *key)]
    got = [int(philox_.rules.emit(e, SimpleNamespace(attrs={"word": n}), *operands).text) for n in range(4)]
    assert tuple(got) == words


SEEDS = (0, 1, -1, 2**31 - 1, -2**31, 2**31, WORD, 2**32, 0x123456789abcdef0, -2**63, 2**63 - 1, 2**63 + 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_of_64_bits_is_the_key_as_an_argument_and_as_a_constant(seed):
    offsets = np.arange(100, dtype=np.int32)
    want = philox(np.int64(seed) if seed < 2**63 else np.uint64(seed), offsets)
    check(*drawn(offsets, seed if seed < 2**63 else seed - 2**64), want)  # an argument is an int64
    constant, out = tile.jit(source="""
def constant(out, SEED: tile.constexpr):
    tile.store(out[0:100], tile.randint(SEED, tile.arange(100)))
"""), np.zeros(100, np.uint32)
    constant[1](out, SEED=seed)
    np.testing.assert_array_equal(out, want[0])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")), st.integers(1, 300),
       st.integers(-2**63, 2**63 - 1), st.sampled_from((1, 2, 4)), st.integers(0, 99))
def test_offsets_of_every_integer_dtype_agree_with_numpy(dtype, count, seed, warps, start):
    info = np.iinfo(dtype)
    offsets = np.random.default_rng(start).integers(info.min, info.max, count, dtype, endpoint=True)
    counter = (offsets, offsets >> 32) if info.bits == 64 else (offsets,)
    check(*drawn(offsets, seed, num_warps=warps), philox(np.int64(seed), *counter))


def test_an_offset_of_64_bits_that_fits_in_32_gives_the_numbers_of_the_shorter_one():
    offsets = np.array([0, 1, 77, 2**31 - 1], np.int64)
    for one, other in zip(drawn(offsets, 3), drawn(offsets.astype(np.int32), 3)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("offset", [0, 5, -1, 2**31, WORD, 2**40 + 1])
def test_scalar_offsets_give_scalars(offset):
    @tile.jit
    def scalars(words, floats, offset, OFFSET: tile.constexpr):
        tile.store(words[0], tile.randint(9, offset))
        tile.store(words[1], tile.randint(9, OFFSET))
        tile.store(floats[0], tile.rand(9, offset))
        tile.store(floats[1], tile.randn(9, OFFSET))

    words, floats = np.zeros(2, np.uint32), np.zeros(2, np.float32)
    scalars[1](words, floats, offset, OFFSET=offset)
    counter = (offset & WORD, offset >> 32 if offset > WORD else 0)
    want = philox(np.int64(9), *(np.array([c]) for c in counter))[:, 0]
    assert (words == want[0]).all() and floats[0] == uniform(want[:1])[0]
    np.testing.assert_allclose(floats[1], normal(want[:1], want[1:2])[0], rtol=4e-7)


def test_seeds_and_words_of_a_counter_broadcast():
    @tile.jit
    def rows(out, seeds, step, ROWS: tile.constexpr, N: tile.constexpr):
        counter = (tile.arange(N)[None, :], tile.arange(ROWS)[:, None] + 7, step)
        tile.store(out[0:ROWS, 0:N], tile.randint(tile.load(seeds[0:ROWS])[:, None], counter))

    out, seeds = np.zeros((5, 33), np.uint32), np.array([1, -2, 3, 2**40, 5], np.int64)
    rows[1](out, seeds, 4, ROWS=5, N=33)
    want = philox(seeds[:, None], np.arange(33)[None, :], np.arange(5)[:, None] + 7, np.array([[4]]))
    np.testing.assert_array_equal(out, want[0])


def test_numbers_do_not_depend_on_the_layout_or_the_grid():
    @tile.jit
    def table(out, R: tile.constexpr, C: tile.constexpr):
        row, column = tile.program_id(0) * R, tile.program_id(1) * C
        at = (row + tile.arange(R))[:, None] * 48 + column + tile.arange(C)[None, :]
        tile.store(out[row:row + R, column:column + C], tile.rand(11, at))

    want = uniform(philox(np.int64(11), np.arange(24 * 48))[0]).reshape(24, 48)
    for (r, c), warps in zip(((24, 48), (8, 16), (5, 7), (1, 48)), (4, 1, 2, 8)):
        out = np.zeros((24, 48), np.float32)
        table[-(-24 // r), -(-48 // c)](out, R=r, C=c, num_warps=warps)
        np.testing.assert_array_equal(out, want)


def counter_of(words, key):
    """The counter, four integers, whose words after ten rounds with `key` are `words`: the rounds undone, last first."""
    multipliers, steps = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
    c = list(words)
    for n in reversed(range(10)):
        k0, k1 = (k + n * step & WORD for k, step in zip(key, steps))
        c0, c2 = (low * pow(m, -1, 2**32) & WORD for low, m in zip((c[3], c[1]), multipliers))
        c = [c0, c[0] ^ k0 ^ c2 * multipliers[1] >> 32, c2, c[2] ^ k1 ^ c0 * multipliers[0] >> 32]
    return c


def test_the_extreme_words_give_0_the_number_below_1_and_finite_normal_numbers():
    """Counters are chosen so that the first two words are those whose 31 bits are the least and the most."""
    @tile.jit
    def extremes(floats, c, N: tile.constexpr):
        counter = (tile.load(c[0, 0:N]), tile.load(c[1, 0:N]), tile.load(c[2, 0:N]), tile.load(c[3, 0:N]))
        tile.store(floats[0, 0:N], tile.rand(5, counter))
        tile.store(floats[1, 0:N], tile.randn(5, counter))

    firsts = (0, WORD, 2**31 - 1, 2**31, 2**31 - 64, 2**31 - 65, 1)
    words = np.array([(first, second, 3, 4) for first in firsts for second in firsts], np.uint32)
    counters = np.array([counter_of(map(int, four), (5, 0)) for four in words], np.uint32).T.copy()
    np.testing.assert_array_equal(philox(np.int64(5), *counters), words.T)
    for options in ({}, {"fast_math": True}):
        floats = np.zeros((2, len(words)), np.float32)
        extremes[1](floats, counters, N=len(words), **options)
        check(words.T[[0, 1, 2, 3, 0]], floats, words.T)
        assert floats[0].min() == 0 and floats[0].max() == np.float32(1 - 2**-24) and np.isfinite(floats[1]).all()


def test_uniform_and_normal_numbers_have_their_moments():
    words, floats = drawn(np.arange(8192, dtype=np.int32), 42)
    u, n = floats.astype(np.float64)
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003 and 0 <= u.min() and u.max() < 1
    assert abs(n.mean()) < 0.04 and abs(n.var() - 1) < 0.06 and np.abs(n).max() < 5.7


def test_randn_is_accurate_also_under_fast_math():
    offsets = np.arange(300, dtype=np.int32)
    check(*drawn(offsets, 8, fast_math=True), philox(np.int64(8), offsets))


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_64_bits_is_one_instruction(target):
    """20 products of 10 rounds for one element per thread, less the first, of a word that is 0; no other multiplication."""
    kernel = tile.jit(source="""
def k(out, seed):
    words = tile.philox(seed, tile.arange(128))
    for i in tile.static_range(4):
        tile.store(out[i, 0:128], words[i])
""")
    compiled = kernel.compile(tile.ArraySpec((4, 128), "uint32"), 5, target=target)
    assert compiled.ptx.count("mul.wide.u32") == 19
    assert not any(word in compiled.ptx for word in ("mul.hi", "mul.lo.s64", "mul.lo.u64", "shared"))


@pytest.mark.parametrize("call, words", [
    ("tile.rand(1, tile.load(f[0:32]))", "the offset of rand is an integer, as in start + tile.arange(N), not a tile float32[32]"),
    ("tile.randn(1, 0.5)", "the offset of randn is an integer, as in start + tile.arange(N), not the number 0.5"),
    ("tile.randint(1, at < 5)", "the offset of randint is an integer, as in start + tile.arange(N), not a tile bool[32]"),
    ("tile.philox(1.5, at)", "the seed of philox is an integer, as in philox(1234, offset), not the number 1.5"),
    ("tile.rand(True, at)", "the seed of rand is an integer, as in philox(1234, offset), not the number True"),
    ("tile.rand(2**64, at)", "does not fit in 64 bits"),
    ("tile.rand(f, at)", "load it first"),
    ("tile.rand(1, f)", "load it first"),
    ("tile.rand(None, at)", "a number or a tile is needed here, not NoneType"),
    ("tile.philox(1, ())", "the counter of philox has one to four words, not 0"),
    ("tile.philox(1, (at, 0, 0, 0, 0))", "the counter of philox has one to four words, not 5"),
    ("tile.philox(1, (at, 1.0))", "a word of the counter of philox is an integer, as in (offset, step), not the number 1.0"),
    ("tile.philox(1, (at.astype(tile.int64), 0))", "a word of the counter of philox has at most 32 bits, unlike a tile int64[32]"),
    ("tile.philox(1, (at, 2**32))", "has at most 32 bits, unlike the number 4294967296"),
    ("tile.philox(1, (at, tile.arange(31)))", "do not broadcast"),
    ("tile.randint4x(1, at)", "write tile.philox(seed, offset)"),
])
def test_wrong_seeds_and_offsets_are_refused(call, words):
    kernel = tile.jit(source=f"def k(f):\n    at = tile.arange(32)\n    r = {call}\n")
    with pytest.raises(tile.CompilationError) as caught:
        kernel.compile(tile.ArraySpec((32,), "float32"))
    assert words in str(caught.value)


def test_many_elements_of_a_thread_do_not_spill():
    """A thread computes one counter after the other: 64 elements with four words each would not fit in its registers."""
    kernel = tile.jit(source="""
def k(x, seed, p):
    at = tile.program_id(0) * 8192 + tile.arange(8192)
    tile.store(x[at], tile.where(tile.rand(seed, at) >= p, tile.load(x[at]), 0))
""")
    assert kernel.compile(tile.ArraySpec((32768,), "float32"), 5, 0.5, num_warps=4).spills == 0


@needs_gpu()
@in_child(timeout=120)
def test_the_gpu_gives_the_bits_of_numpy():
    rng = np.random.default_rng(0)
    for dtype, seed in (("int32", 7), ("uint32", -1), ("int64", -2**63), ("int16", WORD)):
        info = np.iinfo(dtype)
        offsets = rng.integers(info.min, info.max, 3000, dtype, endpoint=True)
        words, floats = (tile.to_device(np.zeros(shape, t)) for shape, t in (((5, 3000), np.uint32), ((2, 3000), np.float32)))
        draw[1](words, floats, tile.to_device(offsets), seed, N=3000)
        counter = (offsets, offsets >> 32) if info.bits == 64 else (offsets,)
        check(words.numpy(), floats.numpy(), philox(np.int64(seed), *counter))
