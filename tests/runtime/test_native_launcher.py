"""Launching by machine code: when it is generated, what it returns, and that it agrees with the Python launcher."""

import math
import struct
import sys

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.runtime import native
from tilejit.runtime.arrays import ArrayView
from tilejit.runtime.facts import evaluate_fact
from tilejit.runtime.store import Store

from tests.runtime.fakes import MAP, FakeDriver, make_recipe, make_torch, tensor
from tests.runtime.test_facts import facts_about


def test_native_code_is_generated_at_the_second_launch_and_cached_on_disk(torch, tmp_path):
    store, driver = Store(tmp_path), FakeDriver()
    recipe = make_recipe(threads=97)
    launcher = driver.launcher(recipe, store=store)
    import tilejit.toolchain.llvm as llvm

    llvm._llvm()
    args = tensor(torch), 1, 1.0
    assert launcher((1, 1, 1), None, args) and launcher._native is None
    assert launcher((1, 1, 1), None, args) and launcher._native is not None
    assert [entry.kind for entry in store.entries()] == ["launcher"]
    native._loaded.clear()
    again = driver.launcher(recipe, store=store)
    llvm_used = llvm.machine_code
    try:
        llvm.machine_code = None
        assert again.prepare() and again((1, 1, 1), None, args)
    finally:
        llvm.machine_code = llvm_used


def test_the_native_function_returns_true_for_a_launch(torch, launch):
    driver, make = launch
    launcher = make(make_recipe(guards=[[["aligned", 0, 16], True]]))
    if not hasattr(launcher, "answers"):
        pytest.skip("the Python way")
    for _ in range(3):
        assert launcher((1, 1, 1), None, (tensor(torch), 1, 1.0))
    assert launcher.answers == [True] * 3


def test_a_tensor_without_c_exchange_support_is_left_to_the_python_launcher(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    if hasattr(launcher, "answers"):
        assert launcher._native((1, 1, 1), None, (tensor(torch, pointer=None), 1, 1.0)) is False
    assert driver.launches == []


def test_real_torch_tensors_are_launched_natively():
    torch = pytest.importorskip("torch")
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe(guards=[[["size_multiple", 0, 1, 8], True]]), device=-1)  # device -1 is the host
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch before 2.10")
    assert launcher.prepare()
    base = torch.zeros(6, 16)
    for array in (base, base[1:, 8:], torch.nn.Parameter(base), base.requires_grad_()[:2]):
        args = (array, 3, 2.5)
        assert launcher._native((2, 1, 1), None, args) is True and launcher._python((2, 1, 1), None, args) is True
        by_native, by_python = driver.launches[-2:]
        assert by_native == by_python and by_native.params[0] == struct.pack("<Q", array.data_ptr())
    for array in (base[:, 1:], base.half(), base[0], torch.zeros(3, 8, device="meta"), base.to_sparse()):
        assert launcher._native((2, 1, 1), None, (array, 3, 2.5)) is False
    assert len(driver.launches) == 8


def test_native_calls_do_not_leak_references(torch, launch):
    driver, make = launch
    launcher = make(make_recipe())
    grid, args = (1000, 1, 1), (tensor(torch), 123456, 1.5)
    launcher(grid, None, args)
    before = [sys.getrefcount(thing) for thing in (grid, args, *args, 123456)]
    for _ in range(100):
        launcher(grid, None, args)
    assert [sys.getrefcount(thing) for thing in (grid, args, *args, 123456)] == before


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_lazily_negated_tensor_is_refused_by_both_launchers(launch, torch, dtype):
    """Its address is an odd multiple of the element size, like that of a conjugated tensor's imaginary part; others there are launched."""
    driver, make = launch
    launcher = make(make_recipe(arguments=[["array", dtype, 2]], params=[["ptr", 0], ["stride", 0, 1, "i64"]]))
    nbytes = 2 * int(dtype[5:]) // 16
    array = tensor(torch, 4096 + nbytes, (6, 8), (16, 2), dtype)
    for array.negated in (False, True, False, True):
        assert launcher((1, 1, 1), None, (array,)) is not array.negated
    assert [call.params[0] for call in driver.launches] == [struct.pack("<Q", 4096 + nbytes)] * 2
    if hasattr(launcher, "answers"):
        assert launcher.answers == [True, False, True, False]


def test_querying_a_tensor_leaks_no_references(torch, launch):
    driver, make = launch
    launcher = make(make_recipe(arguments=[["array", "float32", 2]], params=[["ptr", 0]]))
    array, asked = tensor(torch, 4100, (6, 8), (16, 2)), (True, False, "is_neg")
    array.negated = True
    before = [sys.getrefcount(thing) for thing in (*asked, array)]
    for _ in range(1000):
        launcher((1, 1, 1), None, (array,))
        getattr(launcher, "answers", []).clear()
    assert all(abs(sys.getrefcount(thing) - n) < 100 for thing, n in zip((*asked, array), before)) and not driver.launches


def test_the_imaginary_part_of_a_conjugated_tensor_is_refused_also_after_many_launches():
    torch = pytest.importorskip("torch")
    driver = FakeDriver()
    launcher = driver.launcher(make_recipe(params=[["ptr", 0]], guards=[]), device=-1)
    numbers = torch.zeros(6, 16, dtype=torch.complex64)
    for native in (False, True):
        if native and not launcher.prepare():
            continue
        for view in (lambda x: x, lambda x: x[1:, 3:], lambda x: x.T, lambda x: x[:, ::3], lambda x: x.expand(6, 16)):
            assert launcher((2, 1, 1), None, (view(numbers.imag), 3, 2.5)) is True
            assert view(numbers.conj().imag).is_neg() and launcher((2, 1, 1), None, (view(numbers.conj().imag), 3, 2.5)) is False


@pytest.mark.parametrize("name, dtype", [("float4_e2m1fn_x2", "float4_e2m1fn"), ("float8_e8m0fnu", "float8_e8m0fnu")])
def test_tensors_of_narrow_types_are_launched_with_their_element_type(launch, torch, name, dtype):
    """torch has pairs of float4 as one element, with its own dtype; uint8 tensors are not packed elements."""
    driver, make = launch
    launcher = make(make_recipe(arguments=[["array", dtype, 2]], params=[["ptr", 0], ["size", 0, 1, "i32"]]))
    assert launcher((1, 1, 1), None, (torch.Tensor(4096, (3, 32), (32, 1), getattr(torch, name)),))
    assert launcher.mismatch((torch.Tensor(4096, (3, 32), (32, 1), torch.uint8),)) == [f"argument 0 is uint8 with 2 dimensions, compiled for {dtype} with 2"]


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_native_python_and_evaluated_guards_agree(data):
    torch = make_torch()
    known = sys.modules.get("torch")
    sys.modules["torch"] = torch
    try:
        extents, strides = st.sampled_from([0, 1, 2, 3, 64, 2**31 - 1, 2**31]), st.sampled_from([-3, 0, 1, 2, 64, 2**31 - 1, 2**33])
        rank = data.draw(st.integers(1, 3))
        arrays = [torch.Tensor(data.draw(st.integers(1, 64)) * 8, [data.draw(extents) for _ in range(rank)],
                               [data.draw(strides) for _ in range(rank)], torch.float32) for _ in range(2)]
        number = data.draw(st.sampled_from([0, -1, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**62]))
        factor = data.draw(st.sampled_from([0.0, -0.0, 0.5, -0.5, 1e-60, 2.0**-126, 3.4e38, math.inf, -math.inf, math.nan]))
        views = [ArrayView(a._pointer, a.shape, a._strides, "float32", 0) for a in arrays]
        facts = [*facts_about(views[0]), ("fits32", 1), ("scalar_fits32", 2), ("scalar_multiple", 2, 4), ("scalar_positive", 3)]
        if all(abs(stride * extent) < 2**58 for view in views for stride, extent in zip(view.strides, view.shape)):
            facts.append(("no_overlap", 0, 1))  # larger arrays would not fit in any memory
        guards = [[list(fact), evaluate_fact(fact, [*views, number, factor])] for fact in facts]
        if data.draw(st.booleans()):
            guards[data.draw(st.integers(0, len(guards) - 1))][1] ^= True
            holds = False
        else:
            holds = True
        driver = FakeDriver()
        recipe = make_recipe(arguments=[["array", "float32", rank]] * 2 + [["scalar", "int64"], ["scalar", "float32"]], params=[["ptr", 0]], guards=guards)
        launcher = driver.launcher(recipe)
        assert launcher.prepare()
        args = (*arrays, number, factor)
        assert launcher._python((1, 1, 1), None, args) is holds
        assert launcher._native((1, 1, 1), None, args) is holds
        assert (launcher.mismatch(args) == []) is holds
    finally:
        if known is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = known


@settings(max_examples=50, suppress_health_check=list(HealthCheck), deadline=None)
@given(a=st.integers(-50, 50), b=st.integers(-9, 9).filter(bool), c=st.integers(0, 2**40))
def test_native_expressions_agree_with_python(a, b, c):
    torch = make_torch()
    known = sys.modules.get("torch")
    sys.modules["torch"] = torch
    try:
        stride, size = ["stride", 0, 0], ["size", 0, 0]
        dims = [["floordiv", stride, b], ["mod", stride, b], ["min", stride, 3], ["max", stride, ["sub", size, 7]], ["abs", stride]]
        map_ = {**MAP, "rank": 5, "dims": dims, "strides": [["add", size, 1]] * 4, "box": [32, 1, 1, 1, 1], "element_strides": [1] * 5,
                "base_offset": ["mul", size, 2]}
        driver = FakeDriver()
        launcher = driver.launcher(make_recipe(arguments=[["array", "float32", 1]], params=[["map", 0]], maps=[map_]))
        assert launcher.prepare()
        array = torch.Tensor(64, (c,), (a,), torch.float32)
        if launcher._native((1, 1, 1), None, (array,)) is True:
            wanted = [a // b, a % b, min(a, 3), max(a, c - 7), abs(a)]
            _dtype, _rank, base, extents, strides, *_ = driver.encoded[-1]
            assert base == 64 + 2 * c and list(extents) == [value % 2**64 for value in wanted] and strides == (c + 1,) * 4
    finally:
        if known is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = known


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_native_code_needs_no_relocation_on_any_host_platform(triple):
    from tilejit.runtime.recipe import Recipe
    from tilejit.toolchain import llvm

    binding = llvm._llvm()
    try:
        machine = binding.Target.from_triple(triple).create_target_machine(opt=0, reloc="pic", codemodel="small")
    except RuntimeError:
        pytest.skip("this llvmlite has no such target")
    text = native.print_ir(Recipe.of(make_recipe(
        maps=[MAP], params=[["map", 0], ["scalar", 1, "int32"], ["scalar", 2, "float32"]], cluster=[2, 1, 1],
        guards=[[["fits32", 0], True], [["aligned", 0, 16], True]])))
    module = llvm._parse(text, binding.create_context(), triple, str(machine.target_data))
    assert len(llvm._text_section(machine.emit_object(module), "launch")) > 500
