"""Kernels whose instructions all have forms that were assembled are recognized, and no others."""

import os
from copy import copy

import numpy as np
import pytest
import tilejit as tile

from tests import every_kernel
from tests.assembled_together import Queue
from tests.every_kernel import TARGETS
from tests.form_cover import Candidate, Cover
from tests.instruction_forms import forms, statements

HEAD = "define ptx_kernel void @k(i64 noundef %p0) #0 {\nentry:\n"
TAIL = '  ret void\n}\nattributes #0 = { nounwind "nvvm.maxntid"="128,1,1" }\n!0 = !{i32 7}\n'


def module(*lines: str, tail: str = TAIL) -> str:
    return HEAD + "".join(f"  {line}\n" for line in lines) + tail


def assembly(text: str, constraints: str = "l,f,~{memory}", arguments: str = "i64 %v1, float %v2") -> str:
    return f'call void asm sideeffect "{text}", "{constraints}"({arguments}) #1, !dbg !9'


@pytest.mark.parametrize("one,other", [
    ("%v1 = add i32 %v0, 5, !dbg !3", "%x = add i32 -7, %y, !dbg !4"),
    ("%v1 = getelementptr [4 x float], ptr %a, i32 0, i32 3", "%v7 = getelementptr [4 x float], ptr %b, i32 1, i32 %c"),
    ("%v1 = fmul contract float %v0, 0x3FE0000000000000", "%v1 = fmul contract float %v0, 1.5e+00"),
    ("%v1 = phi i32 [ 0, %a ], [ %b, %c ]", "%v1 = phi i32 [ %b, %c ]"),
    ("then.4:", "else.12:"),
    ("%v1 = extractvalue {float, float} %v0, 1", "%v1 = extractvalue {i32, i32, i32} %v0, 0"),
    (assembly("st.global.f32 [$0 + 16], $1;"), assembly("st.global.f32 [$0], $1;", arguments="i64 %v8, float 1.0")),
    (assembly("st.global.f32 [$0], $1;"), assembly("st.global.f32 [$1], $0;", "f,l,~{memory}", "float %v2, i64 %v1")),
    (assembly("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {acc0_0, acc0_1}, x0, y1;", "", ""),
     assembly("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {acc1_0, acc1_1}, x12, y0;", "", "")),
    (assembly("cp.async.bulk.wait_group.read 4;", "", ""), assembly("cp.async.bulk.wait_group.read 11;", "", "")),
])
def test_names_numbers_and_the_order_of_operands_make_no_other_form(one, other):
    assert forms(module(one)) == forms(module(other))


@pytest.mark.parametrize("one,other", [
    ("%v1 = add i32 %v0, 5", "%v1 = add i64 %v0, 5"),
    ("%v1 = bitcast <2 x half> %v0 to i32", "%v1 = bitcast <4 x i8> %v0 to i32"),
    ("%v1 = load i32, ptr addrspace(3) %v0, align 4", "%v1 = load i32, ptr addrspace(3) %v0, align 16"),
    ("%v1 = load i32, ptr addrspace(3) %v0, align 4", "%v1 = load i32, ptr addrspace(1) %v0, align 4"),
    ("%v1 = call float @llvm.sqrt.f32(float %v0)", "%v1 = call float @llvm.fabs.f32(float %v0)"),
    (assembly("st.global.f32 [$0], $1;"), assembly("st.global.f32 [$0], $1;", "l,r,~{memory}", "i64 %v1, i32 %v2")),
    (assembly("st.global.f32 [$0], $1;"), assembly("st.shared.f32 [$0], $1;")),
    (assembly("bar.sync 1, 128;", "~{memory}", ""), assembly("bar.sync 17, 128;", "~{memory}", "")),
    (assembly("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $0, $0, $0}, [$0];", "r"),
     assembly("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {$0, $0, $0, $0}, [$0];", "r")),
    (assembly("setmaxnreg.inc.sync.aligned.u32 240;", "", ""), assembly("setmaxnreg.inc.sync.aligned.u32 232;", "", "")),
    (assembly("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {acc0_0, acc0_1}, x, y;", "", ""),
     assembly("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {acc0_0}, x, y;", "", "")),
])
def test_types_kinds_of_registers_modifiers_and_counts_make_another_form(one, other):
    assert forms(module(one)) != forms(module(other))


def test_launch_bounds_are_a_form():
    assert forms(module()) != forms(module(tail=TAIL.replace("128,1,1", "1024,1,1")))


def test_a_tied_operand_has_the_kind_of_its_result():
    assert statements("{ .reg .pred p; add.f32 $0, $2, $1; }", "=f,r,0") == {".reg .pred p", "add.f32 <f>, <f>, <r>", ""}


FENCE, PRODUCT, COMMIT, ALL, MOVES = (assembly(text, "~{memory}", "") for text in (
    "wgmma.fence.sync.aligned;", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {acc0_0, acc0_1}, x, y;",
    "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", "mov.f32 acc0_0, acc0_1;"))


@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_access_to_accumulators_in_flight_is_a_form_of_the_kernel(place):
    """ptxas serializes the instructions then."""
    lines = [FENCE, PRODUCT, COMMIT, ALL]
    after = forms(module(*lines, MOVES))
    assert forms(module(MOVES, *lines)) == after if place == 1 else True
    assert forms(module(*lines[:place], MOVES, *lines[place:])) != after
    assert forms(module(*lines[:place], "br label %next", "next:", *lines[place:], MOVES)) != after


def test_equal_instructions_and_branches_without_accumulators_in_flight_make_no_other_order():
    lines = [FENCE, PRODUCT, COMMIT, ALL]
    assert forms(module(*lines, "br label %next", "next:")) == forms(module("br label %next", "next:", FENCE, PRODUCT, *lines[1:]))


def increased(x):
    return x + 1


@tile.jit(num_warps=1)
def stored(x, y, place: tile.constexpr, text: tile.constexpr):
    tile.store(y[place:place + 32], tile.asm(text, tile.float32, tile.load(x[place:place + 32]), simulate=increased))


@pytest.fixture
def fresh(kernels, monkeypatch, tmp_path):
    """The kernels of this run as if none had been assembled before."""
    claims = os.open(tmp_path / "claims", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for name, value in (("queue", Queue()), ("cover", Cover()), ("claims", claims), ("claimed", set()), ("read", 0)):
        monkeypatch.setattr(kernels, name, value)
    yield kernels
    os.close(claims)


def test_a_kernel_is_assembled_only_if_the_form_of_one_of_its_instructions_is_new(fresh, monkeypatch):
    kernels, x = fresh, np.zeros(128, np.float32)
    monkeypatch.setattr(every_kernel, "all_cases", bool)  # False
    waiting = []
    for place, text in ((32, "add.f32 $0, $1, 1.0;"), (64, "add.f32 $0, $1, 1.0;"), (64, "add.nowhere.f32 $0, $1, 1.0;")):
        stored[(1,)](x, x.copy(), place=place, text=text)
        assert not kernels.judge(f"tests/test_instruction_forms.py::{place}-{text}") and not kernels._cover_forms()
        waiting.append(sum(map(len, kernels.queue.waiting.values())))
    assert 0 < waiting[0] == waiting[1] < waiting[2]
    problems = kernels.finish()
    assert problems and all("add.nowhere" in problem for problem in problems)


def test_in_a_run_of_all_cases_every_kernel_is_assembled(fresh, monkeypatch):
    kernels, x = fresh, np.zeros(128, np.float32)
    monkeypatch.setattr(every_kernel, "all_cases", lambda: True)
    for place in (32, 64):
        stored[(1,)](x, x.copy(), place=place, text="add.f32 $0, $1, 2.0;")
        assert not kernels.judge(f"tests/test_instruction_forms.py::all-{place}")
    assert sum(map(len, kernels.queue.waiting.values())) == 2 * len(TARGETS) and not kernels.finish()


def test_the_processes_of_a_run_share_the_forms_and_later_targets_have_those_of_the_oldest(fresh):
    other = copy(fresh)
    other.claimed, other.read = set(), 0
    one, two = module("%v1 = add i32 %v0, 5"), module("%v1 = mul i32 %v0, 5")
    assert fresh._has_new_forms(one, "sm_90a") and not other._has_new_forms(one, "sm_90a")
    assert other._has_new_forms(one, "sm_100a") and not fresh._has_new_forms(one, "sm_100a")
    assert fresh._has_new_forms(two, TARGETS[0])
    assert not any(kernels._has_new_forms(two, target) for kernels in (fresh, other) for target in TARGETS)


def candidate(code: str, *keys: str) -> Candidate:
    return Candidate(code, "sm_80", code, "light", False, frozenset(keys))


def test_the_kernels_with_the_least_code_for_each_form_are_assembled():
    """Also if a larger one was met first, and if none of their own forms was new."""
    cover = Cover()
    waiting = [(candidate("large" * 100, "a", "b", "c"), "abc"), (candidate("small", "a", "b"), ""), (candidate("smaller", "c", "d"), "d"),
               (candidate("needless", "d"), "")]
    for kernel, new in waiting:
        cover.add(kernel, new)
    assert [kernel.title for kernel in cover.choose()] == ["small", "smaller"]
    assert not cover.choose()


def test_forms_that_were_assembled_elsewhere_are_not_assembled_again():
    cover = Cover()
    cover.add(candidate("one", "a", "b"), "ab")
    cover.shown("a")
    cover.add(candidate("other", "a"), "")
    cover.shown("b")
    assert not cover.choose()


def test_a_faulty_kernel_is_named_whose_forms_a_smaller_one_does_not_have(fresh, monkeypatch):
    """The others of its test assemble."""
    x = np.zeros(128, np.float32)
    monkeypatch.setattr(every_kernel, "all_cases", bool)  # False
    for text in ("add.f32 $0, $1, 1.0;", "add.elsewhere.f32 $0, $1, 1.0;", "add.f32 $0, $1, 3.0;"):
        stored[(1,)](x, x.copy(), place=96, text=text)
    assert not fresh.judge("tests/test_instruction_forms.py::three")
    problems = fresh.finish()
    assert problems and all("add.elsewhere" in problem and "::three" in problem for problem in problems)
