"""Fields of an explicit map that cannot be changed: the reason, and the raw instruction that changes it, if the target has one."""

import re

import pytest
import tilejit as tile
from tilejit import ptx

pytestmark = pytest.mark.usefixtures("assembled_later")

TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
FIELDS = {"dtype": ("tile.float16", "elemtype", "coordinates, sizes and the byte counts of barriers are based on it"),
          "box": ("(8, 32)", "box_dim", "every copy by the map is planned in whole boxes of it"),
          "swizzle": ("64", "swizzle_mode", "the shared buffers of its copies are laid out by it"),
          "swizzle_atomicity": ("1", "swizzle_atomicity", "laid out in units of 16 bytes"),
          "fill": ("'nan'", "fill_mode", "its copies are planned to read it out of bounds"),
          "interleave": ("1", "interleave_layout", "its copies are planned for arrays without one"),
          "element_strides": ("(2, 1)", "element_stride", "its boxes are planned without gaps"),
          "rank": ("3", "rank", "its copies give as many coordinates")}


def compiled(body: str, target: str = "sm_90a", edit: str = "global", slot: bool = True, **options):
    """A kernel with a map `m` of A; B has three dimensions, H another dtype."""
    lines = ["def k(A, B, H, slots):", "s = tile.alloc((8, 64), A.dtype)", "bar = tile.mbarrier()",
             f"m = tile.tensor_map(A[0:8, 0:64]{f', slot=slots[1, 0:128], edit={edit!r}' if slot else ''})", *body.splitlines()]
    f = lambda shape, dtype="float32": tile.ArraySpec(shape, dtype)
    specs = f((16, 64)), f((4, 16, 64)), f((16, 64), "float16"), f((4, 128), "uint8")
    return tile.jit(source="\n    ".join(lines) + "\n", num_warps=2).compile(*specs, target=target, **options)


def refused(body: str, **options) -> str:
    with pytest.raises(tile.CompilationError) as error:
        compiled(body, **options)
    return str(error.value)


def raw_names(text: str) -> list[str]:
    return re.findall(r"tile\.ptx\.([\w.]+\w)", text)


def call_of(name: str) -> str:
    """The call of a form with a map for every map address, and the smallest legal number for other operands."""
    form = ptx.form(name)
    given = {"map": "m", "dst": "s", "bar": "bar", "coords": "(0, 0)" if "gather4" not in name else "(0, 0, 1, 2, 3)",
             "value": "0" if form.operand("map").space == "map" else "1"}
    words = [given.get(o.name, "0") for o in form.inputs]
    return f"tile.ptx.{name}({', '.join(words)})"


@pytest.mark.parametrize("edit", ["global", "shared"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_rebind_cannot_change_is_an_error_with_the_reason_and_the_raw_instruction(name, target, edit):
    """And that instruction accepts the map, and assembles."""
    value, field, why = FIELDS[name]
    text = refused(f"m.rebind(A, {name}={value})", target=target, edit=edit)
    assert f"its {name} stays, since" in text and why in text
    row = ptx.form(f"tensormap.replace.tile.{field}.{'shared::cta' if edit == 'shared' else 'global'}.b1024.b32")
    if not row.exists_on(target):
        assert name == "swizzle_atomicity" and target == "sm_90a"
        assert raw_names(text) == [] and f"{row.name}, which writes it, exists on sm_100a, sm_103a, sm_120a, not on sm_90a" in text
        return
    (named,) = raw_names(text)
    assert ptx.form(named) is row
    k = compiled(f"with tile.elect():\n        m.seed()\n        {call_of(named)}", target=target, edit=edit)
    assert row.mnemonic in k.ptx


def test_l2_promotion_has_no_instruction_and_the_error_says_so():
    assert "its l2_promotion stays, since the launch has encoded it, and no instruction changes it" in refused("m.rebind(A, l2_promotion=256)")
    assert not [f for f in ptx.forms() if "tensormap.replace" in f.name and "promotion" in f.name]


@pytest.mark.parametrize("body, name", [("m.rebind(H)", "dtype"), ("m.rebind(H[0, 0], shape=(8, 64))", "dtype"), ("m.rebind(B)", "rank"),
                                        ("m.rebind(A[0, 0], shape=(1, 8, 64))", "rank"),
                                        ("m.rebind(A[0, 0], shape=(8, 64), strides=(64, 64, 1))", "rank")])
def test_rebinding_to_an_array_that_would_change_a_field_is_the_same_error(body, name):
    text = refused(body)
    assert f"its {name} stays, since {FIELDS[name][2]}" in text and raw_names(text)[0].startswith(f"tensormap.replace.tile.{FIELDS[name][1]}.")


PATCHES = ("tile.im2col(B, 3)", "tile.im2col(B, 3)[0:8, 0, 0:64]")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("body", [text.format(x) for x in PATCHES for text in ("n = tile.tensor_map({}, slot=slots[2, 0:128])", "m.rebind({})")])
def test_im2col_maps_must_be_encoded_at_launch_since_no_instruction_sets_their_fields(body, target):
    text = refused(body, target=target)
    assert "an im2col map is the launch's, since the corners, pixels and channels that make it one have no tensormap.replace, raw or other" in text
    assert "Index the matrix in copy_async" in text and raw_names(text) == []
    assert not [f for f in ptx.forms() if f.name.startswith("tensormap.replace") and ".tile." not in f.name]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("body", ["n = tile.tensor_map(A.take((1, 2, 3, 4)))", "n = tile.tensor_map(A.take((1, 2, 3, 4))[:, 0:64], "
                                                                               "slot=slots[2, 0:128])",
                                  "m.rebind(A.take((1, 2, 3, 4)))"])
def test_maps_for_gather4_are_made_for_their_copy_and_the_error_names_the_raw_gather_if_it_exists(body, target):
    text = refused(body, target=target)
    assert "these are rows one by one: copy_async has their map made where it is given the rows" in text
    assert len(raw_names(text)) == (target != "sm_90a")
    for name in raw_names(text):
        k = compiled(f"with tile.elect():\n        m.seed()\n        {call_of(name)}", target=target)
        assert "tile::gather4" in k.ptx


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_a_map_for_a_cta_pair_must_be_encoded_at_launch_and_the_error_names_the_raw_copy(target):
    copy = "with tile.elect():\n        tile.copy_async(s, m[0:8, 0:64], mbar=bar, cta_group=2)"
    text = refused(copy, target=target, cluster=(2, 1, 1))
    assert "that of a pair of CTAs is the launch's, since both copy parts of one tile by it" in text and "give tile.tensor_map no slot=" in text
    (named,) = raw_names(text)
    k = compiled(f"with tile.elect():\n        m.seed()\n        {call_of(named)}", target=target, cluster=(2, 1, 1))
    assert ".cta_group::2" in k.ptx
    assert ".cta_group::2" in compiled(copy, target=target, slot=False, cluster=(2, 1, 1)).ptx


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_a_map_for_a_cta_pair_is_refused_on_targets_without_pairs(target):
    text = refused("with tile.elect():\n        tile.copy_async(s, m[0:8, 0:64], mbar=bar, cta_group=2)", target=target, cluster=(2, 1, 1))
    assert "for sm_100a or sm_103a" in text and raw_names(text) == []


@pytest.mark.parametrize("raw", ["tensormap.replace.tile.box_dim.global_.b1024.b32(m, 0, 1)",
                                 "tensormap.replace.tile.box_dim.shared_cta.b1024.b32(m, 0, 1)"])
def test_a_raw_edit_of_a_map_encoded_at_launch_is_refused(raw):
    text = refused(f"with tile.elect():\n        tile.ptx.{raw}", slot=False)
    assert "this one is a parameter, which the launch encodes and nothing may write; give tile.tensor_map a slot=" in text


def test_a_raw_edit_in_shared_memory_of_a_map_that_is_edited_in_global_memory_is_refused():
    text = refused("with tile.elect():\n        tile.ptx.tensormap.replace.tile.box_dim.shared_cta.b1024.b32(m, 0, 1)")
    assert 'this one is edited in global memory: give tile.tensor_map edit="shared"' in text


@pytest.mark.parametrize("form", ["cp_async.bulk.tensor._2d.shared_cluster.global_.mbarrier_complete_tx_bytes(s, s[0, 0], (0, 0), bar)",
                                  "cp_async.bulk.tensor._2d.global_.shared_cta.tile.bulk_group(s[0, 0], (0, 0), s)", "prefetch.tensormap(s[0, 0])"])
def test_a_raw_instruction_that_reads_a_map_in_shared_memory_is_refused(form):
    """It would fault."""
    text = refused(f"with tile.elect():\n        tile.ptx.{form}")
    assert "a copy reads its tensor map from global, constant or parameter memory, and faults at one in shared memory" in text


@pytest.mark.parametrize("where", ["with tile.elect():\n        ", "with tile.thread(3):\n        ", "if tile.thread_id() < 16:\n        "])
def test_a_raw_copy_and_release_by_less_than_a_warp_is_refused(where):
    text = refused(f"{where}tile.ptx.tensormap.cp_fenceproxy.global_.shared_cta.tensormap_generic.release.cta.sync.aligned(m, m, 128)", edit="shared")
    assert "is executed by all 32 threads of a warp together, and " in text
