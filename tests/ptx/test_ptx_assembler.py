"""The table compared with the assembler: it accepts each form on its targets, and refuses it on the others."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tilejit import ptx

from tests.chosen_cases import all_cases

CHUNK = 500                  # the assembler's time is superlinear in the size of a module: smaller ones take less in total

# Older assemblers take these on sm_80 too.
PERMISSIVE = ("fence.acquire.", "fence.release.")


def refusals(assemble, forms, target):
    """The forms that the assembler refuses, with its messages. Bisects a module whose messages name no form."""
    module = ptx.probe_module(forms, target)
    log = assemble(module, target)
    if log is None:
        return {}
    named = ptx.refused_forms(module, log)
    if named:
        return {**named, **refusals(assemble, [form for form in forms if form.name not in named], target)}
    if len(forms) == 1:
        return {forms[0].name: log}
    half = len(forms) // 2
    return {**refusals(assemble, forms[:half], target), **refusals(assemble, forms[half:], target)}


@pytest.mark.parametrize("target", ptx.TARGETS)
def test_every_form_assembles_for_each_of_its_targets(assemble, target):
    """A run takes each form for the oldest of its targets, since later ones accept what older ones do, and one form in eight for all. Of
    the products of warpgroups, which differ in their widths and types only, it takes one in three."""
    forms = [form for n, form in enumerate(ptx.forms(target)) if all_cases() or n % 8 == 0 or target == min(form.targets, key=ptx.TARGETS.index)
             and (n % 3 == 0 or not form.name.startswith("wgmma.mma_async"))]
    chunks = [forms[i:i + CHUNK] for i in range(0, len(forms), CHUNK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda chunk: refusals(assemble, chunk, target), chunks))
    assert {name: words for part in found for name, words in part.items()} == {}


@pytest.mark.parametrize("target", ptx.TARGETS)
def test_a_form_is_refused_on_a_target_that_it_does_not_list(assemble, target):
    absent = [form for form in (ptx.expand(row)[-1] for row in ptx.rows())
              if target not in form.targets and not form.name.startswith(PERMISSIVE)]
    assert absent
    assert set(refusals(assemble, absent, target)) == {form.name for form in absent}


def test_a_test_module_contains_each_form_of_its_target_once():
    module = ptx.probe_ptx("sm_90a")
    names = [line.rpartition("// ")[2] for line in module.splitlines() if "// " in line]
    assert names == [form.name for form in ptx.forms("sm_90a")]


def test_a_refusal_names_the_form(assemble):
    forms = [ptx.form("mapa.shared::cluster.u32"), ptx.form("wgmma.fence.sync.aligned"), ptx.form("trap")]
    module = ptx.probe_module(forms, "sm_90")
    assert list(ptx.refused_forms(module, assemble(module, "sm_90"))) == ["wgmma.fence.sync.aligned"]


def llvm_function(form, index):
    """An LLVM function that loads the form's arguments, calls its asm, and stores what it returns."""
    imm = {o.name: [o.values.first_allowed] * (o.count or 1) for o in form.operands if o.kind == "imm"}
    types = [o.llvm_type for o in form.arguments(imm) for _ in range(o.registers)]
    lines = [f"  %a{i} = load {t}, ptr %p" for i, t in enumerate(types)]
    result, attributes = form.result_type(imm), form.attributes
    call = (f'call {result} asm {"sideeffect " * attributes.sideeffect}"{form.asm_text(imm)}", "{form.constraints(imm)}"'
            f'({", ".join(f"{t} %a{i}" for i, t in enumerate(types))}) {attributes.call_site}')
    lines += [f"  {call}"] if result == "void" else [f"  %r = {call}", f"  store {result} %r, ptr %p"]
    return "\n".join([f"define ptx_kernel void @f{index}(ptr %p) {{", *lines, "  ret void", "}"])


COMPILE = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
module = llvm.parse_assembly(sys.stdin.read())
module.verify()
machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu=sys.argv[1], features="+ptx88", opt=2)
print(machine.emit_assembly(module))
"""


@pytest.mark.parametrize("target", ptx.TARGETS)
def test_a_form_passes_through_llvm_with_its_constraints_and_assembles(assemble, target):
    pytest.importorskip("llvmlite")
    first = 0 if all_cases() else ptx.TARGETS.index(target)
    functions = [llvm_function(form, i) for i, form in enumerate(ptx.forms(target)[first::7 if all_cases() else 14])]
    ir = "\n".join(['target triple = "nvptx64-nvidia-cuda"', *functions])
    # In a separate process: LLVM aborts on code that its backend cannot compile.
    done = subprocess.run([sys.executable, "-c", COMPILE, target], input=ir, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert assemble(done.stdout, target) is None
