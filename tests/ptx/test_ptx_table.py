"""The table itself: names, and what is derived from the rows."""

import json

import pytest
from tilejit import ptx
from tilejit.errors import CompilationError


@pytest.fixture(scope="module")
def forms():
    return ptx.forms()


# Names.

def test_names_are_unique_in_every_spelling(forms):
    assert len({ptx.key(form.name) for form in forms}) == len(forms)


def test_a_form_is_found_by_its_ptx_name_and_by_its_python_name(forms):
    for form in forms:
        assert ptx.form(form.name) is form
        assert ptx.form(ptx.python_name(form)) is form


def test_a_form_s_name_is_its_mnemonic_followed_by_what_distinguishes_its_operands(forms):
    for form in forms:
        assert form.name == form.mnemonic or form.name.startswith(form.mnemonic + ".")
    assert ptx.form("cp.async.cg.shared.global.16").template == "cp.async.cg.shared.global [{dst}], [{src}], 16;"
    assert ptx.form("cp.async.ca.shared.global.4.zfill").template == "cp.async.ca.shared.global [{dst}], [{src}], 4, {src_size};"


def test_python_names_are_valid_attributes(forms):
    for form in forms:
        assert all(word.isidentifier() for word in ptx.python_name(form).split(".")), form.name
    of = ptx.form("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group")
    assert ptx.python_name(of) == "cp_async.bulk.tensor._2d.global_.shared_cta.bulk_group"
    assert ptx.cp_async.bulk.tensor._2d.global_.shared_cta.bulk_group.form is of


def test_an_unknown_name_suggests_similar_ones():
    with pytest.raises(CompilationError, match="'mapa.u65'; near it are mapa.u64"):
        ptx.form("mapa.u65")
    with pytest.raises(CompilationError, match="near it are shfl.sync.bfly.b32"):
        ptx.form("shfl.sync.bfly")
    with pytest.raises(AttributeError, match="starts with 'mbarrier.arive'"):
        ptx.mbarrier.arive
    with pytest.raises(AttributeError):
        ptx.frobnicate
    with pytest.raises(CompilationError, match="inside @tile.jit kernels"):
        ptx.mapa.u64(1, 2)


def test_packed_additions_in_a_peer_s_shared_memory_are_not_forms():
    """The assembler accepts them, but generates integer additions of the words."""
    for form in ("atom.shared::cluster.add.noftz.f16x2", "red.release.cluster.shared::cluster.add.noftz.bf16x2"):
        with pytest.raises(CompilationError, match="no PTX instruction form is called"):
            ptx.form(form)
        assert ptx.form(form.replace("::cluster", "::cta")) and ptx.form(form[:-2])


# Rows.

def test_every_row_has_forms_targets_and_a_known_effect():
    for row in ptx.rows():
        assert ptx.expand(row), row.text
        assert row.effect in ptx.EFFECTS, row.text
        assert all(set(form.targets) <= set(ptx.TARGETS) and form.targets for form in ptx.expand(row))


def test_every_operand_appears_in_the_text_and_nothing_else_does(forms):
    for form in forms:
        written = form.template
        for operand in form.operands:
            assert f"{{{operand.name}}}" in written, form.name
            written = written.replace(f"{{{operand.name}}}", "")
        assert "{" not in written.replace("{{", ""), form.name
        assert len({operand.name for operand in form.operands}) == len(form.operands), form.name


def test_every_form_exists_in_the_ptx_version_that_llvm_emits(forms):
    assert {form.isa for form in forms} == {ptx.ISA}


@pytest.mark.parametrize("name", [
    "bar.sync.threads", "barrier.sync.aligned.threads", "barrier.arrive", "bar.warp.sync", "membar.gl", "fence.acq_rel.gpu",
    "shfl.sync.bfly.b32", "shfl.sync.idx.b32.pred", "shfl.sync.up.b32", "shfl.sync.down.b32", "vote.sync.ballot.b32", "match.any.sync.b32",
    "redux.sync.add.s32", "activemask.b32", "elect.sync", "ld.global.v4.b32", "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.b32",
    "ld.global.v8.b32", "ld.shared.b128", "st.shared.v2.b64", "st.global.cs.b8", "ld.acquire.gpu.global.b32", "st.release.sys.global.b64",
    "atom.acq_rel.gpu.global.add.u32", "atom.relaxed.cluster.shared::cluster.cas.b64", "red.release.gpu.global.add.f32", "red.shared::cta.max.s32",
    "createpolicy.fractional.L2::evict_first.b64", "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.bf16x2.f32", "cvt.rna.tf32.f32", "ex2.approx.ftz.f32",
    "lg2.approx.f32", "tanh.approx.f32", "rsqrt.approx.ftz.f32", "rcp.approx.f32", "sqrt.approx.f32", "sin.approx.f32", "prmt.b32",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "stmatrix.sync.aligned.m8n8.x2.shared.b16",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "mov.u32.cluster_ctarank", "mov.u32.clusterid.x", "mov.u32.nctaid.y", "mov.u32.laneid", "mov.u32.smid", "mov.u64.globaltimer", "mov.u64.clock64",
    "griddepcontrol.wait", "nanosleep.u32", "setmaxnreg.dec.sync.aligned.u32", "trap", "mapa.shared::cluster.u32", "getctarank.shared::cluster.u32",
    "isspacep.shared::cluster", "discard.global.L2", "prefetch.global.L2", "cp.async.ca.shared.global.L2::cache_hint.L2::128B.8.zfill",
])
def test_the_table_has_the_instructions_that_kernels_consist_of(name):
    assert ptx.form(name).name == name


# Properties passed to LLVM.

def test_every_sync_aligned_or_barrier_form_is_convergent(forms):
    for form in forms:
        words = set(form.mnemonic.replace("::", ".").split("."))
        if words & {"sync", "aligned", "bar", "barrier", "mbarrier"} and not form.mnemonic.startswith(("cp.", "st.async", "red.async", "clusterlaunch")):
            assert form.is_convergent or form.name == "mbarrier.pending_count.b64", form.name
            assert form.effect == "pure" or form.attributes.sideeffect, form.name


def test_a_form_that_touches_memory_clobbers_it_and_a_pure_one_does_not():
    store, product, clock = ptx.form("st.global.b32"), ptx.form("fma.rn.f32x2"), ptx.form("mov.u64.clock64")
    assert store.attributes == ptx.Attributes(sideeffect=True, convergent=False, memory=True)
    assert store.constraints() == "l,r,~{memory}"
    assert product.attributes.call_site == "nounwind memory(none)"
    assert product.constraints() == "=l,l,l,l"
    assert clock.attributes == ptx.Attributes(sideeffect=True, convergent=False, memory=False)
    assert ptx.form("ld.global.nc.v4.b32").attributes.sideeffect is False
    assert ptx.form("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32").attributes.call_site == "nounwind convergent memory(none)"


@pytest.mark.parametrize("name, text, constraints, result", [
    ("elect.sync",                         "elect.sync $0|$1, $2;",                          "=r,=b,r",              "{ i32, i1 }"),
    ("mapa.u64",                           "mapa.u64 $0, $1, $2;",                           "=l,l,r",               "i64"),
    ("mov.u32.laneid",                     "mov.u32 $0, %laneid;",                           "=r",                   "i32"),
    ("barrier.cluster.arrive.release",     "barrier.cluster.arrive.release;",                "~{memory}",            "void"),
    ("ld.shared.v2.b16",                   "ld.shared.v2.b16 {$0, $1}, [$2];",               "=h,=h,r,~{memory}",    "{ i16, i16 }"),
    ("cvt.rn.f16x2.e4m3x2",                "cvt.rn.f16x2.e4m3x2 $0, $1;",                    "=r,h",                 "i32"),
    ("atom.global.cas.b128",               "atom.global.cas.b128 $0, [$1], $2, $3;",         "=q,l,q,q,~{memory}",   "i128"),
    ("rcp.approx.ftz.f64",                 "rcp.approx.ftz.f64 $0, $1;",                     "=d,d",                 "double"),
    ("vote.sync.any.pred",                 "vote.sync.any.pred $0, $1, $2;",                 "=b,b,r",               "i1"),
    ("cvt.rn.satfinite.e2m1x2.f32",        "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $1, $2; mov.b16 $0, {t, 0}; }", "=h,f,f", "i16"),
])
def test_constraints_and_text_follow_llvm_s_operand_order(name, text, constraints, result):
    form = ptx.form(name)
    assert (form.asm_text(), form.constraints(), form.result_type()) == (text, constraints, result)


def test_a_register_that_is_read_and_written_is_a_result_and_a_tied_input():
    form = ptx.form("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16")
    imm = {"scale_a": 1, "scale_b": -1, "trans_a": 0, "trans_b": 1}
    assert form.asm_text(imm) == "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, $4, $5, $6, 1, -1, 0, 1;"
    assert form.constraints(imm) == "=f,=f,=f,=f,l,l,b,0,1,2,3,~{memory}"
    assert [operand.name for operand in form.arguments(imm)] == ["a", "b", "scale_d", "d"]


def test_an_immediate_operand_may_be_written_into_the_text():
    form = ptx.form("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16")
    imm = {"d": [f"acc{i}" for i in range(4)], "scale_a": 1, "scale_b": 1, "trans_a": 0, "trans_b": 0}
    assert form.asm_text(imm) == "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {acc0, acc1, acc2, acc3}, $0, $1, $2, 1, 1, 0, 0;"
    assert form.constraints(imm) == "l,l,b,~{memory}"
    arrive = ptx.form("mbarrier.arrive.shared::cta.b64")
    assert (arrive.asm_text({"state": "_"}), arrive.constraints({"state": "_"})) == ("mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}")
    policy = ptx.form("createpolicy.fractional.L2::evict_last.b64")
    assert policy.asm_text({"fraction": 1.0}) == "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;"


def test_a_guard_ties_the_results_to_their_previous_values():
    load, store = ptx.form("ld.global.v2.b32"), ptx.form("st.global.b32")
    assert load.asm_text(offsets={"a": 2048}, guard=True) == "@$3 ld.global.v2.b32 {$0, $1}, [$2 + 2048];"
    assert load.constraints(guard=True) == "=r,=r,l,b,0,1,~{memory}"
    assert [operand.name for operand in load.arguments(guard=True)] == ["a", "guard", "d"]
    assert (store.asm_text(guard=True), store.constraints(guard=True)) == ("@$2 st.global.b32 [$0], $1;", "l,r,b,~{memory}")
    with pytest.raises(CompilationError, match="takes no guard"):
        ptx.form("cvt.rn.f16x2.e2m1x2").asm_text(guard=True)
    with pytest.raises(CompilationError, match="not an address"):
        store.asm_text(offsets={"value": 4})


def test_a_dollar_sign_is_doubled_for_llvm():
    assert ptx.form("trap").asm_text() == "trap;"
    assert ptx.form("bar.sync").asm_text({"id": "$x"}) == "bar.sync $$x;"


def test_an_immediate_is_required_and_checked_against_the_allowed_values():
    form = ptx.form("setmaxnreg.inc.sync.aligned.u32")
    with pytest.raises(CompilationError, match="operand count needs an immediate: an integer from 24 to 256 in steps of 8"):
        form.asm_text()
    assert form.asm_text({"count": 232}) == "setmaxnreg.inc.sync.aligned.u32 232;"
    assert form.constraints({"count": 232}) == "~{memory}"


# Checks of operands.

STORE = {"map": "ptr %map", "coords": ["i32 %x", 0, "i32"], "src": "i32 %s"}


@pytest.mark.parametrize("change, words", [
    ({"src": "ptr addrspace(3) %s"},     "operand src needs a 32-bit shared::cta address (i32), not ptr addrspace(3)"),
    ({"coords": ["i32", "i32"]},         "operand coords needs 3 values, each a .s32 value (i32), not 2 values"),
    ({"coords": "i32"},                  "operand coords needs 3 values, each a .s32 value (i32), not a single value"),
    ({"coords": ["i32", "i64", "i32"]},  "operand coords needs 3 values, each a .s32 value (i32), not i64"),
    ({"coords": [1 << 40, 0, 0]},        "operand coords needs 3 values, each a .s32 value (i32), not 1099511627776"),
    ({"cords": ["i32"]},                 "has no input operand 'cords': did you mean 'coords'?"),
])
def test_an_operand_error_names_the_operand_and_what_it_needs(change, words):
    form = ptx.form("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group")
    ptx.check(form, STORE, "sm_90a")
    with pytest.raises(CompilationError) as error:
        ptx.check(form, {**STORE, **change}, "sm_90a")
    assert words in str(error.value)


def test_an_error_names_missing_operands_and_the_targets_that_have_the_form():
    form = ptx.form("mapa.u64")
    with pytest.raises(CompilationError, match="operand rank is missing; it needs a .u32 value"):
        ptx.check(form, {"a": "i64"})
    with pytest.raises(CompilationError, match="mapa.u64 exists on sm_90, .*, not on sm_80"):
        ptx.check(form, {"a": "i64", "rank": 0}, "sm_80")
    with pytest.raises(CompilationError, match="a value known only at run time"):
        ptx.check(ptx.form("wgmma.wait_group.sync.aligned"), {"n": "i32 %n"})


# Output.

def test_an_example_is_one_line_of_ptx():
    assert ptx.example(ptx.form("mapa.shared::cluster.u32")) == "mapa.shared::cluster.u32 %r1, %r2, %r3;"
    assert ptx.example(ptx.form("cp.async.bulk.prefetch.tensor.3d.L2.global.im2col")) == \
        "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%rd1, {%r1, %r2, %r3}], {%h1};"


def test_json_lists_every_form_with_its_line_of_ptx_and_targets(forms):
    listed = json.loads(ptx.to_json())
    assert [entry["name"] for entry in listed] == [form.name for form in forms]
    assert all(entry["ptx"] and entry["targets"] for entry in listed)


def test_the_coverage_page_has_a_line_for_every_row():
    page = ptx.coverage_markdown()
    assert sum(line.startswith("| `") for line in page.splitlines()) == len(ptx.rows())
