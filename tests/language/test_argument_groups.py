"""Arguments that may be None, and arguments that group others: tuples, lists, named tuples, dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.compiled import signature_text
from tilejit.jit import Kernel
from tilejit.runtime import groups

from tests.gpu import in_child, needs_gpu

N = 96  # elements of the arrays: no power of two, and fewer than a CTA's threads


@tile.jit
def plus_bias(x: tile.Array, bias: tile.Array | None, y: tile.Array, scale=None):
    v = tile.load(x[0:N])
    if bias is not None:
        v = v + tile.load(bias[0:N])
    if scale is None:
        tile.store(y[0:N], v)
    else:
        tile.store(y[0:N], v * scale)


@tile.jit
def total(xs: tuple[tile.Array, ...], y: tile.Array):
    v = tile.zeros((N,), y.dtype)
    for i in tile.static_range(len(xs)):
        v = v + tile.load(xs[i][0:N]).to(y.dtype)
    for x in xs:
        v = v + tile.load(x[0:N]).to(y.dtype)
    tile.store(y[0:N], v)


@dataclass
class Layer:
    weight: np.ndarray
    bias: np.ndarray | None
    scale: float = 1.0
    block: tile.constexpr = N


class Net(NamedTuple):
    layers: list
    activation: str


@tile.jit
def forward(net, x, y):
    v = tile.load(x[0:N])
    for layer in net.layers:
        v = v * tile.load(layer.weight[0:layer.block]) * layer.scale
        if layer.bias is not None:
            v = v + tile.load(layer.bias[0:layer.block])
        if net.activation == "relu":
            v = tile.maximum(v, 0)
    tile.store(y[0:N], v)


def expected(net: Net, x: np.ndarray) -> np.ndarray:
    v = x
    for layer in net.layers:
        v = v * layer.weight * np.float32(layer.scale) + (0 if layer.bias is None else layer.bias)
        v = np.maximum(v, 0) if net.activation == "relu" else v
    return v


def some(seed: int = 0, dtype="float32") -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=N) * 4).astype(dtype)


# -- None --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [None, 2.5])
def test_an_argument_of_none_is_decided_at_compile_time(bias, scale):
    x, b, y = some(0), some(1), np.zeros(N, np.float32)
    plus_bias[1](x, b if bias else None, y, scale)
    assert np.array_equal(y, (x + b if bias else x) * np.float32(1 if scale is None else scale))


def test_none_is_part_of_the_signature_and_of_the_cache_key():
    x, y = np.zeros(N, np.float32), np.zeros(N, np.float32)
    with_bias, without = plus_bias.compile(x, x, y), plus_bias.compile(x, None, y)
    assert with_bias.signature == "x: float32[?], bias: float32[?], y: float32[?], scale=None"
    assert without.signature == "x: float32[?], bias=None, y: float32[?], scale=None"
    assert with_bias.key != without.key and len(without.accesses) == 2 and len(with_bias.accesses) == 3
    assert plus_bias.compile(tile.ArraySpec((N,), "float32"), None, y).key == without.key


def test_a_parameter_that_is_left_out_takes_its_default_of_none():
    x, y = some(), np.zeros(N, np.float32)
    plus_bias[1](x, None, y)
    assert np.array_equal(y, x)
    plus_bias[1](x, bias=None, y=y, scale=None)
    assert np.array_equal(y, x)


def test_none_used_as_an_array_is_an_error_that_says_so():
    @tile.jit
    def needs(x, y):
        tile.store(y[0:N], tile.load(x[0:N]))

    with pytest.raises(tile.CompilationError, match=r"x is None in this call") as error:
        needs[1](None, some())
    assert error.value.loc.source_line.strip() == "tile.store(y[0:N], tile.load(x[0:N]))"


# -- groups ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "float64"])
@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_tuple_or_a_list_of_arrays_has_a_length_indices_and_elements(dtype, kind, count):
    xs, y = kind(some(i, dtype) for i in range(count)), np.ones(N, dtype)
    total[1](xs, y)
    want = np.zeros(N, dtype)
    for x in (*xs, *xs):
        want = want + x
    assert np.array_equal(y, want)


@pytest.mark.parametrize("activation", ["relu", "none"])
def test_groups_nest_and_hold_arrays_numbers_none_and_constants(activation):
    net = Net([Layer(some(1), None, 2.0), Layer(some(2), some(3), 0.5), Layer(some(4), None)], activation)
    x, y = some(0), np.zeros(N, np.float32)
    forward[1](net, x, y)
    assert np.allclose(y, expected(net, x), rtol=1e-6)
    forward[1](net._replace(layers=tuple(net.layers)), x, y)
    assert np.allclose(y, expected(net, x), rtol=1e-6)


def test_parts_are_named_as_a_kernel_writes_them():
    net = Net([Layer(some(1), None, 2.0)], "relu")
    assert forward.compile(net, some(), some()).signature == (
        "net.layers[0].weight: float32[?], net.layers[0].bias=None, net.layers[0].scale: float, net.layers[0].block=96, "
        "net.activation='relu', x: float32[?], y: float32[?]")
    assert "from net.layers[0].weight by the CTA" in forward.compile(net, some(), some()).explain()
    with pytest.raises(tile.LaunchError, match=r"net.layers\[0\].scale is a complex number"):
        forward[1](Net([Layer(some(1), None, 1j)], "relu"), some(), some())


def test_the_class_of_a_group_its_length_and_its_constants_tell_versions_apart():
    def key(xs):
        return total.bind((xs, some()), {})[0].key

    class Pair(NamedTuple):
        a: np.ndarray
        b: np.ndarray

    a, b = some(0), some(1)
    keys = [key(x) for x in ((a, b), [a, b], Pair(a, b), (a,), (a, (b,)), ((a,), b), (a, None), (a, 1), (a, 1.0), (a, "b"), ())]
    assert len(set(keys)) == len(keys)
    assert key((a, b)) == key((b, a)) and key((a, 1)) == key((a, 2))


def test_scalars_in_a_group_are_run_time_numbers_and_annotated_fields_are_constants():
    net = Net([Layer(some(1), None, 2.0)], "relu")
    bound = forward.bind((net, some(), some()), {})[0]
    assert bound.constants == {"net.layers[0].bias", "net.layers[0].block", "net.activation"}
    net.layers[0].scale = 3.0
    assert forward.bind((net, some(), some()), {})[0].key == bound.key
    net.layers[0].block = 32
    assert forward.bind((net, some(), some()), {})[0].key != bound.key


def test_a_grid_function_gets_the_groups_as_they_are_given():
    seen = []
    xs, y = (some(0), some(1)), np.zeros(N, np.float32)
    total[lambda given: seen.append(given) or (1,)](xs, y)
    assert seen[0]["xs"] is xs and seen[0]["y"] is y and list(seen[0]) == ["xs", "y"]


def test_arrays_in_groups_are_written_and_races_name_them():
    @tile.jit
    def negate(pairs):
        for pair in pairs:
            tile.store(pair[1][0:N], -tile.load(pair[0][0:N]))

    pairs = [(some(i), np.zeros(N, np.float32)) for i in range(3)]
    negate[1](pairs)
    assert all(np.array_equal(y, -x) for x, y in pairs)
    found, *_ = negate.simulate((2,), pairs).findings
    assert found.kind == "race" and "pairs[0][1]" in found.message
    pairs[1][1].flags.writeable = False
    with pytest.raises(tile.LaunchError, match=r"the kernel writes pairs\[1\]\[1\], and that array is read-only"):
        negate[1](pairs)


def test_helpers_take_groups_and_make_them():
    @tile.jit
    def scaled(layer):
        return Layer(tile.load(layer.weight[0:N]) * layer.scale, None)

    @tile.jit
    def kernel(layer, y):
        tile.store(y[0:N], scaled(layer).weight)

    y = np.zeros(N, np.float32)
    kernel[1](Layer(some(), None, 2.0), y)
    assert np.array_equal(y, some() * 2)


def test_verify_compares_the_arrays_in_groups():
    def reference(net, x, y):
        y[:] = expected(net, x)

    net = Net([Layer(some(1), some(2), 2.0)], "relu")
    assert tile.verify(forward, (1,), net, some(), np.zeros(N, np.float32), reference=reference).passed
    assert tile.verify(total, (1,), [some(1)], np.zeros(N, np.float32), reference=lambda xs, y: 2 * xs[0]).passed
    wrong = tile.verify(total, (1,), [some(1)], np.zeros(N, np.float32), reference=lambda xs, y: xs[0])
    assert [d.argument for d in wrong.differences] == ["y"]
    with pytest.raises(tile.LaunchError, match="and xs is given by keyword"):
        tile.verify(total, (1,), xs=[some(1)], y=np.zeros(N, np.float32), reference=lambda **given: None)


def test_configurations_are_chosen_by_the_arrays_in_groups():
    tuned = tile.autotune([dict(num_warps=2), dict(num_warps=4)], key="xs")(total)
    y = np.zeros(N, np.float32)
    tuned[1]([some(1)], y), tuned[1]([some(1)], y), tuned[1]((some(1), some(2)), y)
    assert np.allclose(y, 2 * (some(1) + some(2))) and len(tuned.chosen) == 2


def test_methods_of_an_argument_see_its_fields_and_no_other_attribute():
    @dataclass
    class Matrix:
        data: np.ndarray
        rows: tile.constexpr
        note: str = field(init=False, default="")

        def __post_init__(self):
            self.extra = 3

        @property
        def half(self):
            return self.rows // 2

    @tile.jit
    def kernel(m, y):
        tile.store(y[0:m.half], tile.load(m.data[0:m.half]))

    @tile.jit
    def reads_more(m, y):
        tile.store(y[0], m.extra)

    y = np.zeros(N, np.float32)
    kernel[1](Matrix(some(), N), y)
    assert np.array_equal(y[:N // 2], some()[:N // 2]) and not y[N // 2:].any()
    with pytest.raises(tile.CompilationError, match="has no attribute 'extra'"):
        reads_more[1](Matrix(some(), N), y)


@pytest.mark.parametrize("value, message", [
    ({"a": 1}, "xs is a dict, and an array or a number is needed; pass its values in a tuple"),
    ("abc", "xs is a string, which is known while compiling: declare the parameter as xs: tile.constexpr"),
    (tile.float32, "xs is the dtype float32, which is known while compiling: declare the parameter as xs: tile.constexpr"),
    (np.float16, "xs is the dtype float16, which is known"),
    (tile.auto, "xs is a layout, which is known"),
    (total, "xs is a function, which is known"),
    (1 + 2j, "xs is a complex number, and kernels have none: pass its real and its imaginary part"),
    ((np.zeros(1), 1j), r"xs\[1\] is a complex number"),
    (np.zeros(4, np.complex64), "pass real and imaginary parts"),
    ([object()], r"xs\[0\]: object is not an array"),
])
def test_what_cannot_be_an_argument_is_refused_by_name(value, message):
    with pytest.raises(tile.LaunchError, match=message):
        total[1](value, np.zeros(N, np.float32))


def test_a_list_that_contains_itself_nests_too_deeply():
    xs: list = []
    xs.append(xs)
    with pytest.raises(tile.CompilationError, match="nests too deeply"):
        total[1](xs, some())


# -- launches ----------------------------------------------------------------------------------------------------------

LEAVES = st.one_of(st.none(), st.integers(-3, 3), st.floats(allow_nan=False, width=32), st.booleans(),
                   st.sampled_from(["relu", tile.float32]), st.just("array").map(lambda _: np.zeros(2, np.float32)))
TREES = st.recursive(LEAVES, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
    st.builds(Net, inner, inner), st.builds(Layer, inner, inner, inner)), max_leaves=8)


anything = tile.jit(source="def anything(a, b, c):\n    tile.sync()\n")  # only bound


def _bound(call):
    return anything.bind(call, {})[0]


@settings(deadline=None)
@given(st.tuples(TREES, TREES, TREES), st.tuples(TREES, TREES, TREES))
def test_a_launcher_of_a_form_takes_exactly_calls_of_this_form(call, other):
    try:
        bound, compared = _bound(call), _bound(other)
    except tile.LaunchError:
        return
    form = [bound.groups[n] if n in bound.groups else None if bound.values[n] is None else n for n in "abc"]
    sent = []

    def launcher(grid, stream, args):
        sent.append(args)
        return all(isinstance(x, (int, float, np.ndarray)) for x in args)

    launch = groups.spread(form, {n: bound.values[n] for n in bound.constants}, launcher)
    assert launch((1, 1, 1), None, call) is True
    assert [getattr(v.view, "owner", v) if isinstance(v, tile.ArraySpec) else v for v in bound.runtime] == list(sent[0])
    if launch((1, 1, 1), None, other):
        assert {n: compared.values[n] for n in compared.constants} == {n: bound.values[n] for n in bound.constants}
        assert {n: g.form for n, g in compared.groups.items()} == {n: g.form for n, g in bound.groups.items()}


@settings(deadline=None)
@given(TREES)
def test_rebuilding_a_group_with_the_same_parts_gives_an_equal_object(value):
    try:
        bound = anything.bind((value, 0, 0), {})[0]
    except tile.LaunchError:
        return
    if "a" not in bound.groups:
        return
    seen = []
    made = groups.rebuild(bound.groups["a"], value, lambda name, part: seen.append(name) or part)
    assert type(made) is type(value) and repr(made) == repr(value) and seen == bound.parts("a")
    assert signature_text(bound)


def test_a_warm_call_launches_the_parts_and_another_form_is_looked_up(monkeypatch):
    sent = []

    def launcher(count, grid, stream, args):
        fits = len(args) == count and all(isinstance(x, np.ndarray) for x in args)
        return fits and (sent.append(len(args)) or True)

    def cold(self, grid, args, kwargs):
        bound, options, _ = self.bind(args, kwargs)
        version = self.version(bound, options, "sm_90a")
        self.warm.remember(self.names, partial(launcher, len(bound.names)), bound, (args, kwargs), version.captured)
        sent.append("cold")

    monkeypatch.setattr(Kernel, "launch", cold)
    x, b, y = some(0), some(1), np.zeros(N, np.float32)
    try:
        for call in [(x, None, y)] * 2 + [(x, b, y)] * 2 + [(x, None, y)]:
            plus_bias[1](*call)
        assert sent == ["cold", 2, "cold", 3, 2]
        sent.clear()
        for call in [((x, b), y), ((b, x), y), ([x, b], y), ((x,), y), ((x, b), y)]:
            total[1](*call)
        assert sent == ["cold", 3, "cold", "cold", 3]
    finally:
        plus_bias.warm.clear(), total.warm.clear()


@needs_gpu()
@in_child(timeout=120)
def test_none_and_groups_are_launched_on_a_gpu():
    def on_gpu(x):
        return None if x is None else tile.to_device(x)

    x, y = some(0), tile.to_device(np.zeros(N, np.float32))
    for _ in range(200):  # until the launchers are machine code
        for bias in (None, some(1)):
            plus_bias[1](tile.to_device(x), on_gpu(bias), y)
            assert np.array_equal(y.numpy(), x if bias is None else x + bias)
    for count in (0, 1, 5, 1):
        for _ in range(3):
            total[1]([tile.to_device(some(i)) for i in range(count)], y)
            assert np.allclose(y.numpy(), 2 * sum((some(i) for i in range(count)), np.zeros(N, np.float32)), atol=1e-5)
    for scale in (1.0, 2.0):
        net = Net([Layer(some(1), None, scale), Layer(some(2), some(3), 0.5)], "relu")
        there = Net([Layer(on_gpu(layer.weight), on_gpu(layer.bias), layer.scale) for layer in net.layers], "relu")
        forward[1](there, tile.to_device(x), y)
        assert np.allclose(y.numpy(), expected(net, x), rtol=1e-5)
        out = np.zeros(N, np.float32)
        forward[1](net, x, out, backend="cuda")
        assert np.allclose(out, expected(net, x), rtol=1e-5)
