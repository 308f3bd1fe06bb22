"""Tensor maps edited, fenced and used by raw instructions on the simulator: their effects, and what is found."""

import numpy as np
import pytest
import tilejit as tile
from named_map_kernels import aligned, by_instructions, expected_of_instructions

pytestmark = pytest.mark.usefixtures("assembled_later")

RNG = np.random.default_rng(11)
LOAD = "tile.ptx.cp_async.bulk.tensor._2d.shared_cluster.global_.mbarrier_complete_tx_bytes"
STORE = "tile.ptx.cp_async.bulk.tensor._2d.global_.shared_cta.tile.bulk_group"
EDIT = "tile.ptx.tensormap.replace.tile"
FUSED = "tile.ptx.tensormap.cp_fenceproxy.global_.shared_cta.tensormap_generic.release.cta.sync.aligned"
RELEASE, ACQUIRE = "tile.ptx.fence.proxy.tensormap_generic.release.cta()", "tile.ptx.fence.proxy.tensormap_generic.acquire.cta(m, 128)"


def kernel(body: str, edit: str = "global"):
    """A kernel with a map `m` of A with boxes of 8 x 32, a buffer `s` of that size, a barrier, and an integer `z` that is 0."""
    head = ["def k(A, B, addresses, slots, out, z):", "s = tile.alloc((8, 32), A.dtype)", "bar = tile.mbarrier()",
            f"m = tile.tensor_map(A[0:8, 0:32], slot=slots[0, 0:128], edit={edit!r})"]
    return tile.jit(source="\n    ".join(head + body.splitlines()) + "\n", num_warps=2)


def run(body: str, edit: str = "global", **options):
    """(report, A, B, out) of such a kernel, which is also assembled."""
    a, b, out = (aligned(shape, np.float32) for shape in ((16, 64), (24, 96), (8, 32)))
    a[:], b[:] = RNG.random(a.shape), RNG.random(b.shape)
    k, args = kernel(body, edit), (a, b, np.array([b.ctypes.data], np.uint64), aligned((2, 128)), out, 0)
    k.compile(*args)
    return k.simulate((1,), *args, **options), a, b, out


def found(body: str, edit: str = "global", **options) -> list[tuple[str, str]]:
    return [(f.kind, f.message) for f in run(body, edit, **options)[0].findings]


TO_B = [f"{EDIT}.global_address.SPACE.b1024.b64(m, tile.load(addresses[0]))", f"{EDIT}.global_dim.SPACE.b1024.b32(m, 0, 96)",
        f"{EDIT}.global_dim.SPACE.b1024.b32(m, 1, 24)", f"{EDIT}.global_stride.SPACE.b1024.b64(m, 0, 384)"]
FETCH = ["bar.arrive_expect_tx(1024)", f"{LOAD}(s, m, (64, 16), bar)", "bar.wait(phase=0)", "tile.copy(out[0:8, 0:32], s)"]


def elected(*lines: str) -> str:
    return "\n".join(["with tile.elect():", *("    " + line for line in lines)])


def edits(space: str) -> list[str]:
    return [line.replace("SPACE", space) for line in TO_B]


# -- effects ---------------------------------------------------------------------------------------------------------------

def test_raw_edits_fences_and_copies_have_the_effect_of_the_methods():
    report, _, b, out = run(elected("m.seed()", *edits("global_"), RELEASE, ACQUIRE, *FETCH[:2]) + "\n" + "\n".join(FETCH[2:]))
    assert not report.findings, report
    assert (out == b[16:, 64:]).all()


def test_a_slot_may_be_addressed_by_its_memory_location():
    """Initialised and edited through the map object, acquired and used through its location."""
    body = elected("m.seed()", "m.rebind(B)", RELEASE, ACQUIRE.replace("m,", "slots[0, 0],"), FETCH[0], FETCH[1].replace("m,", "slots[0, 0],"))
    report, _, b, out = run(body + "\n" + "\n".join(FETCH[2:]))
    assert not report.findings, report
    assert (out == b[16:, 64:]).all()


def test_raw_edits_in_shared_memory_are_published_by_a_raw_copy_of_a_whole_warp():
    body = elected("m.seed()", *edits("shared_cta")) + "\nwith tile.warp(0):\n    tile.sync()\n    " + f"{FUSED}(m, m, 128)\n" + elected(ACQUIRE, *FETCH[:2]) \
        + "\n" + "\n".join(FETCH[2:])
    report, _, b, out = run(body, "shared")
    assert not report.findings, report
    assert (out == b[16:, 64:]).all()


def zeroed(space: str) -> list[str]:
    """The instructions that make a map of B from zeros, with the boxes and modes of `m`."""
    others = ("rank", "1"), ("elemtype", "7"), ("box_dim", "0, 32"), ("box_dim", "1, 8"), ("element_stride", "0, 1"), ("element_stride", "1, 1"), \
        ("interleave_layout", "0"), ("swizzle_mode", "0"), ("fill_mode", "0")
    return [*edits(space), *(f"{EDIT}.{name}.{space}.b1024.b32(m, {value})" for name, value in others)]


def test_a_map_can_be_built_in_a_zeroed_slot_by_setting_every_field():
    """As in hardware: rank (minus one), element type, sizes, strides, box, element strides, modes."""
    report, _, b, out = run(elected(*zeroed("global_"), RELEASE, ACQUIRE, *FETCH[:2]) + "\n" + "\n".join(FETCH[2:]))
    assert not report.findings, report
    assert (out == b[16:, 64:]).all()


def test_a_copy_uses_a_replaced_box_swizzle_and_fill():
    """16 columns of 8 rows with a 64-byte swizzle, NaN beyond the last row."""
    body = elected("m.seed()", f"{EDIT}.box_dim.global_.b1024.b32(m, 0, 16)", f"{EDIT}.swizzle_mode.global_.b1024.b32(m, 2)",
                   f"{EDIT}.fill_mode.global_.b1024.b32(m, 1)", RELEASE, ACQUIRE, "bar.arrive_expect_tx(512)", f"{LOAD}(q, m, (16, 12), bar)")
    body = "q = tile.alloc((8, 16), A.dtype, layout=tile.swizzled(A.dtype, (8, 16), 64))\ntile.store(q, 0)\ntile.fence_proxy_async()\ntile.sync()\n" + body
    report, a, _, out = run(body + "\nbar.wait(phase=0)\ntile.copy(out[0:8, 0:16], q)")
    assert not report.findings, report
    assert (out[:4, :16] == a[12:, 16:32]).all() and np.isnan(out[4:, :16]).all()


@pytest.mark.parametrize("edit", ["global", "shared"])
def test_edits_of_every_kind_of_field_in_both_memories_take_effect(edit):
    a, out = RNG.random((16, 64)).astype(np.float32), np.zeros((8, 16), np.float32)
    report = by_instructions.simulate((1,), a, aligned((1, 128)), out, EDIT=edit)
    assert not report.findings, report
    np.testing.assert_array_equal(out, expected_of_instructions(a))


def test_a_raw_store_and_a_raw_reduction_use_the_map():
    lines = ["tile.store(s, 2)", "tile.fence_proxy_async()", "tile.sync()"]
    store = elected("m.seed()", "m.rebind(B)", RELEASE, ACQUIRE, f"{STORE}(m, (64, 16), s)", "tile.bulk_commit()", "tile.bulk_wait(0)",
                    f"{STORE.replace('cp_async', 'cp_reduce.async_').replace('shared_cta.', 'shared_cta.add.')}(m, (64, 8), s)",
                    "tile.bulk_commit()", "tile.bulk_wait(0)")
    a, b = aligned((16, 64), np.float32), aligned((24, 96), np.float32)
    b[:] = 1
    k, args = kernel("\n".join(lines) + "\n" + store), (a, b, np.zeros(1, np.uint64), aligned((2, 128)), np.zeros((8, 32), np.float32), 0)
    assert not k.simulate((1,), *args).findings
    assert (b[16:, 64:] == 2).all() and (b[8:16, 64:] == 3).all() and (b[:8] == 1).all() and (b[:, :64] == 1).all()
    assert 1 in k.compile(*args).written            # the array that the map is bound to counts as written, so that its loads are not treated as constant


# -- findings --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("body, kind, words", [
    (elected("m.seed()", *edits("global_"), RELEASE, *FETCH[:3]), "missing-proxy-fence", "without .fence_acquire(scope) after its edit at line"),
    (elected("m.seed()", *edits("global_"), ACQUIRE, *FETCH[:3]), "missing-proxy-fence", "has not released it: it must call .fence_release(scope)"),
    (elected("m.seed()", RELEASE, ACQUIRE, *edits("global_"), RELEASE, *FETCH[:3]), "missing-proxy-fence",
     "without .fence_acquire(scope) after its edit at line 12"),
    ("with tile.thread(0):\n    m.seed()\ntile.sync()\nwith tile.thread(32):\n    " + "\n    ".join([RELEASE, ACQUIRE, *FETCH[:3]]),
     "missing-proxy-fence", "has not released it: it must call .fence_release(scope)"),
    (elected(ACQUIRE, *FETCH[:3]), "descriptor", "that nothing has written"),
    (elected("m.seed()", f"{EDIT}.global_address.global_.b1024.b64(m, 4096)", RELEASE, ACQUIRE, *FETCH[:3]), "descriptor",
     "the address 0x1000, which is in no array"),
    (elected("m.seed()", f"{EDIT}.global_dim.global_.b1024.b32(m, 1, 1000)", RELEASE, ACQUIRE, *FETCH[:3]), "out-of-bounds", "that reach byte"),
    (elected("m.seed()", f"{EDIT}.global_stride.global_.b1024.b64(m, 0, 24)", RELEASE, ACQUIRE, *FETCH[:3]), "descriptor", "a stride of 24 bytes"),
    (elected("m.seed()", f"{EDIT}.box_dim.global_.b1024.b32(m, 0, 300)", RELEASE, ACQUIRE, *FETCH[:3]), "descriptor", "box[0] is 1 to 256, not 300"),
    (elected("m.seed()", f"{EDIT}.box_dim.global_.b1024.b32(m, 1, 4)", RELEASE, ACQUIRE, *FETCH[:3]), "transaction-count",
     "1024 bytes are announced"),
    (elected("m.seed()", RELEASE, ACQUIRE, f"{EDIT}.rank.global_.b1024.b32(m, 2)", RELEASE, ACQUIRE, *FETCH[:3]), "descriptor",
     "2 coordinates for a map of rank 3"),
    (elected("m.seed()", f"{EDIT}.rank.global_.b1024.b32(m, 9)", RELEASE, ACQUIRE, *FETCH[:3]), "descriptor", "1 to 5 dimensions, not 10"),
    (elected("m.seed()", f"{EDIT}.element_stride.global_.b1024.b32(m, 1, z)", RELEASE, ACQUIRE, *FETCH[:3]), "descriptor",
     "element_strides[1] is 1 to 8, not 0"),
    (elected("m.seed()", RELEASE, ACQUIRE, *FETCH[:2], f"{EDIT}.global_dim.global_.b1024.b32(m, 0, 32)", "bar.wait(phase=0)"),
     "missing-wait", "is edited while the tensor load at line"),
    (elected("tile.store(slots[0, 0], 7)", f"{EDIT}.global_dim.global_.b1024.b32(m, 0, 32)"), "descriptor",
     "a field of a tensor map that was never seeded is replaced"),
])
def test_an_unfenced_or_wrong_raw_use_is_a_finding(body, kind, words):
    findings = found(body)
    assert any(k == kind and words in message for k, message in findings), findings


@pytest.mark.parametrize("left_out, missing", [
    (range(1, 13), "rank, elemtype, global_dim[0], box_dim[0], element_stride[0], interleave_layout, swizzle_mode, fill_mode"),
    (range(4, 13), "rank, elemtype, box_dim[0], box_dim[1], element_stride[0], element_stride[1], interleave_layout, swizzle_mode, fill_mode"),
    ([0], "global_address"), ([2], "global_dim[1]"), ([3], "global_stride[0]"), ([4], "rank"), ([5], "elemtype"), ([7], "box_dim[1]"),
    ([9], "element_stride[1]"), ([10], "interleave_layout"), ([11, 12], "swizzle_mode, fill_mode"),
])
def test_a_map_made_from_zeros_is_usable_only_once_all_its_fields_are_set(left_out, missing):
    """Whether edited where copies read it, or in shared memory and published from there; the finding names what is missing."""
    kept = lambda space: [line for i, line in enumerate(zeroed(space)) if i not in left_out]
    in_place = elected(*kept("global_"), RELEASE, ACQUIRE, *FETCH[:2])
    published = "\n".join(["z = tile.alloc((128,), 'uint8', align=128)", "tile.store(z, 0)", "tile.sync()",
                           elected(*(line.replace("(m, ", "(z[0], ") for line in kept("shared_cta"))), "with tile.warp(0):", "    tile.sync()",
                           f"    {FUSED}(m, z[0], 128)", elected(ACQUIRE, *FETCH[:2])])
    for body in (in_place, published):
        assert [m for k, m in found(body) if k == "descriptor"] == [
            f"a copy uses a tensor map that was made from zeros, and nothing has set its {missing}: tensormap.replace sets each, or seed the map"]


def test_fields_of_zeros_that_rebind_sets_are_set():
    """`rebind` changes the address, sizes and strides; the raw instructions the rest."""
    report, _, b, out = run(elected(*zeroed("global_")[4:], "m.rebind(B)", RELEASE, ACQUIRE, *FETCH[:2]) + "\n" + "\n".join(FETCH[2:]))
    assert not report.findings, report
    assert (out == b[16:, 64:]).all()
    assert [m for k, m in found(elected(*zeroed("global_")[5:], "m.rebind(B)", RELEASE, ACQUIRE, *FETCH[:2])) if "has set its rank:" in m]


@pytest.mark.parametrize("byte", [0, 16, 127])
def test_a_store_to_any_byte_of_a_map_leaves_no_map(byte):
    body = elected("m.seed()", f"tile.store(slots[0, {byte}], 7)", RELEASE, ACQUIRE, *FETCH[:2])
    assert ("descriptor", "a copy uses a tensor map whose bytes something else has overwritten since its edit at line 6") in found(body)
    assert found(body.replace("slots[0,", "slots[1,") + "\n" + "\n".join(FETCH[2:])) == []


THERE = [line.replace("m,", "slots[1, 0],") for line in (ACQUIRE, *FETCH[:2])]


def test_the_bytes_of_a_map_are_the_map_wherever_they_are_copied():
    """By the kernel, whoever edits the first one afterwards; unless a fence is missing, or some of the bytes."""
    copied = elected("m.seed()", "m.rebind(B)") + "\ntile.sync()\ntile.store(slots[1, 0:{}], tile.load(slots[0, 0:{}]))\ntile.sync()\n"
    report, _, b, out = run(copied.format(128, 128) + elected(RELEASE, *THERE) + "\n" + "\n".join(FETCH[2:]))
    assert not report.findings, report
    assert (out == b[16:, 64:]).all()
    assert ("missing-proxy-fence", "a copy uses a tensor map without .fence_acquire(scope) after its edit: the engine may read its old contents") in \
        found(copied.format(128, 128) + elected(RELEASE, *THERE[1:]))
    assert any("that nothing has written" in m for _, m in found(copied.format(64, 64) + elected(RELEASE, *THERE)))


@tile.jit(num_warps=1)
def make_map(A, slots):
    m = tile.tensor_map(A[0:8, 0:32], slot=slots[0, 0:128])
    with tile.elect():
        m.seed()
        m.fence_release("gpu")


@tile.jit(num_warps=1)
def use_map(A, slots, out):
    s = tile.alloc((8, 32), A.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(A[0:8, 0:32], slot=slots[0, 0:128])
    with tile.elect():
        m.fence_acquire("gpu")
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, m[8:16, 32:64], mbar=bar)
    bar.wait(phase=0)
    tile.store(out[0:8, 0:32], tile.load(s))


def test_the_bytes_of_a_map_are_the_map_where_the_host_copies_them_between_launches():
    a, out, slots, other = RNG.random((16, 64)).astype(np.float32), np.zeros((8, 32), np.float32), aligned((1, 128)), aligned((1, 128))
    make_map[1,](a, slots)
    other[:] = slots
    slots[:] = 0
    use_map[1,](a, other, out)
    assert (out == a[8:, 32:]).all()
    with pytest.raises(tile.SimulationError, match="that nothing has written"):
        use_map[1,](a, slots, out)


def test_a_raw_edit_by_several_threads_is_a_finding():
    """Each thread executes the instruction, which reads and writes whole words: it must be in a one-thread scope."""
    replace = f"{EDIT}.global_dim.global_.b1024.b32(m, 0, 32)"
    assert any(k == "race" and "64 threads of one CTA edit one tensor map at the same time" in m for k,
               m in found(elected("m.seed()") + f"\ntile.sync()\n{replace}"))
    assert any(k == "race" and "2 threads of one CTA edit" in m for k,
               m in found(elected("m.seed()") + f"\ntile.sync()\nif tile.thread_id() < 2:\n    {replace}"))


def test_unordered_edits_of_one_slot_by_two_threads_race():
    replace = f"{EDIT}.global_dim.global_.b1024.b32(m, 0, 32)"
    apart = f"{elected('m.seed()')}\ntile.sync()\nwith tile.thread(0):\n    {replace}\nWAITwith tile.thread(32):\n    {replace}"
    assert any(k == "race" for k, _ in found(apart.replace("WAIT", "")))
    assert found(apart.replace("WAIT", "tile.sync()\n")) == []


@pytest.mark.parametrize("copy", [FETCH[1], "tile.copy_async(s, m[0:8, 32:64], mbar=bar)"])
def test_a_copy_with_a_map_that_is_only_in_shared_memory_is_a_finding(copy):
    """Edited there and never published: its slot in global memory, which TMA reads, is uninitialised."""
    body = elected("m.seed()", *edits("shared_cta"), ACQUIRE, FETCH[0], copy, FETCH[2])
    assert any(k == "descriptor" and "that nothing has written: seed it, or publish it, first" in m for k, m in found(body, "shared"))


def test_publishing_an_uninitialised_map_is_a_finding():
    for line in ("m.publish('cta')", f"with tile.warp(0):\n    {FUSED}(m, m, 128)"):
        assert any(k == "descriptor" and "published from shared memory to which none was written" in m for k, m in found(line, "shared")), line


def test_a_slot_that_is_not_aligned_to_128_bytes_is_a_finding():
    body = elected("m.seed()", "m.rebind(A)", RELEASE, "tile.ptx.fence.proxy.tensormap_generic.acquire.cta(slots[0, 64], 128)")
    assert [k for k, _ in found(body)] == ["misaligned"]


def test_an_address_passed_as_an_integer_cannot_be_simulated():
    with pytest.raises(tile.SimulationError, match="on a tensor map or the place of one, not on a number as address"):
        found(elected(FETCH[0], FETCH[1].replace("m,", "tile.load(addresses[0]),")))
