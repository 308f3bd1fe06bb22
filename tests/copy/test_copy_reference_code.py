"""The PTX of tensor copies option by option compared with reference code, and reference plans with runtime values.

The comparison is by what an instruction does, not by its text: the same modifiers and the same number of operands of each kind.
`expected` describes the deliberate differences from the reference.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from copy_cases import DATA, cases
from tilejit import ptx

INSTRUCTION = r"\b((?:cp\.async\.bulk\.tensor|cp\.reduce\.async\.bulk\.tensor|mbarrier\.init|prefetch\.tensormap)\S*) (.*?);"
EMITTED = {c["name"]: c for c in cases("emitted_tma")}


# -- the code of each option -----------------------------------------------------------------------------------------------

def facts(line: str) -> tuple[str, tuple[str, ...]]:
    """The mnemonic of an instruction and its operands, with registers and numbers treated alike, and without an address's offset."""
    mnemonic, operands = re.search(INSTRUCTION, line).groups()
    operands = re.sub(r"%[a-z]*\d+(?: \+ \d+)?", "x", operands)
    return mnemonic, tuple(re.findall(r"\[x, \{[x, ]+\}\]|\[x\]|x|\d+", operands))


def expected(case) -> set:
    """The reference's instructions, with the deliberate differences: barriers are addressed as this CTA's own
    (``.shared::cta``, which ``.shared`` means) and initialised with a constant count; ``.cta_group::1`` is omitted
    unless a group was requested, since it states the default: the barrier of the receiving CTA; and a mask
    of one bit is a multicast to that CTA, where the reference drops the mask and loads the box to the wrong one."""
    wanted = set()
    for line in case["instructions"]:
        mnemonic, operands = facts(line)
        if mnemonic.startswith("mbarrier.init"):
            mnemonic, operands = mnemonic.replace(".shared.", ".shared::cta."), ("[x]", "1")
        if "cta_group" not in case["options"]:
            mnemonic = mnemonic.replace(".cta_group::1", "")
        if case["options"].get("multicast") and ".multicast" not in mnemonic and ".tensor" in mnemonic:
            assert case["reference_is_wrong"]
            mnemonic, operands = mnemonic + ".multicast::cluster", (*operands, "x")
        wanted.add((mnemonic, operands))
    return wanted


def program(direction: str, options: dict):
    """A box of 64 x 64 in or out; with a mask, rank 0 loads it for those CTAs."""
    said = "".join(f", {name}={value!r}" for name, value in options.items())
    if direction == "store":
        body = ["s = tile.alloc((64, 64), A.dtype)", "tile.store(s, 1)", "tile.fence_proxy_async()", "tile.sync()", "with tile.elect():",
                f"    tile.copy_async(A[0:64, 0:64], s{said})", "    tile.bulk_commit()", "    tile.bulk_wait(0)"]
    else:
        body = ["s = tile.alloc((64, 64), A.dtype)", "bar = tile.mbarrier()", "bar.arrive_expect_tx(s.nbytes)"]
        body += ["tile.cluster_sync()", "if tile.cta_rank() == 0:"] if "multicast" in options else ["if True:"]
        body += ["    with tile.elect():", f"        tile.copy_async(s, A[0:64, 0:64], mbar=bar{said})", "bar.wait(phase=0)"]
    return tile.jit(source="\n    ".join(["def program(A):", *body]) + "\n")


@pytest.mark.parametrize("name", EMITTED)
def test_each_option_gives_the_instruction_of_the_reference(name):
    case = EMITTED[name]
    options = case["options"]
    cluster = {"cluster": (2, 1, 1)} if options.get("multicast") or options.get("cta_group") == 2 else {}
    compiled = program(case["direction"], options).compile(tile.ArraySpec((1024, 1024), "float32"), target=case["target"], **cluster)
    found = {facts(line) for line in compiled.ptx.splitlines() if re.search(INSTRUCTION, line)}
    assert found == expected(case)
    assert all(ptx.form(mnemonic).exists_on(case["target"]) for mnemonic, _ in found) and compiled.cubin
    assert case["map_is_a_grid_constant"] and 'byval([128 x i8]) align 64 "nvvm.grid_constant"' in compiled.llvm_ir


def test_a_mask_of_one_bit_loads_the_box_to_that_cta_only():
    """The reference gets this wrong."""
    @tile.jit(num_warps=1, cluster=(2, 1, 1))
    def to_the_other(A, B):
        s = tile.alloc((8, 64), A.dtype)
        bar = tile.mbarrier()
        tile.store(s, 7)
        tile.fence_proxy_async()
        if tile.cta_rank() == 1:
            bar.arrive_expect_tx(s.nbytes)
        tile.cluster_sync()
        if tile.cta_rank() == 0:
            with tile.elect():
                tile.copy_async(s, A[0:8, 0:64], mbar=bar, multicast=2)
        else:
            bar.wait(phase=0)
        tile.store(B[tile.cta_rank(), 0:8, 0:64], tile.load(s))

    a, b = np.random.default_rng(0).random((8, 64), np.float32), np.zeros((2, 8, 64), np.float32)
    assert not to_the_other.simulate((2,), a, b).findings
    assert (b[0] == 7).all() and (b[1] == a).all()


def test_every_file_of_reference_cases_is_read_by_a_test():
    """By `cases("<name>")`, or by its file name."""
    folder = Path(__file__).parent
    text = "".join(file.read_text() for file in [*folder.glob("test_*.py"), *folder.parent.glob("layout/test_*.py")])
    files = [*DATA.glob("*.json"), *folder.parent.glob("layout/data/*.json")]
    assert len(files) >= 6
    for file in files:
        assert f'cases("{file.stem.removesuffix("_cases")}")' in text or f'"{file.name}"' in text, file
        assert json.loads(file.read_text())


# -- runtime values --------------------------------------------------------------------------------------------------------

def tiles_of(start: str, columns: int, swizzle: int = 128):
    """A tile of 128 rows whose first column is the expression `start` of the argument `k`."""
    layout = f"tile.swizzled(A.dtype, (128, {columns}), {swizzle})" if swizzle else "None"
    lines = ["def tiles(A, B, k, m):", f"    s = tile.alloc((128, {columns}), A.dtype, layout={layout})", "    bar = tile.mbarrier()",
             "    with tile.elect():", "        bar.arrive_expect_tx(s.nbytes)",
             f"        tile.copy_async(s, A[m * 128:m * 128 + 128, {start}:{start} + {columns}], mbar=bar)", "    bar.wait(phase=0)",
             f"    tile.copy(B[0:128, 0:{columns}], s)"]
    return tile.jit(source="\n".join(lines) + "\n")


def ran(kernel, a, columns, k, m):
    """The copy record and map of the compiled kernel, after checking the simulator's result."""
    b = np.zeros((128, columns), a.dtype)
    assert not kernel.simulate((1,), a, b, k, m).findings
    return b, kernel.compile(a, b, k, m)


def test_a_row_count_known_only_at_launch_gives_one_instruction_with_the_reference_s_box():
    """float16 [M, 1024], 128 x 64 with a 128-byte swizzle: box (64, 128), strides (2048,), one instruction; one compilation for every M."""
    kernel, rng = tiles_of("0", 64), np.random.default_rng(0)
    keys = set()
    for rows in (200, 1000):
        a = rng.random((rows, 1024)).astype(np.float16)
        b, compiled = ran(kernel, a, 64, 0, 1)
        m = compiled.tensor_maps[0]
        assert (m.global_dim, m.global_strides, m.box, m.swizzle) == ((1024, rows), (2048,), (64, 128), 3)
        assert (compiled.copies[0].instructions, compiled.copies[0].bytes) == (1, 16384)
        want = np.zeros((128, 64), np.float16)
        want[:rows - 128] = a[128:256, :64]
        assert (b == want).all()
        keys.add(compiled.key)
    assert len(keys) == 1


def test_a_start_in_steps_of_the_swizzle_gives_one_instruction_of_three_dimensions():
    """float16 [1024, 1024], 128 x 128 from column ko * 128: (64, 1024, 16) with box (64, 128, 2), one instruction of 32 KB."""
    a = np.random.default_rng(0).random((1024, 1024)).astype(np.float16)
    b, compiled = ran(tiles_of("k * 128", 128), a, 128, 3, 2)
    m = compiled.tensor_maps[0]
    assert (m.global_dim, m.global_strides, m.box) == ((64, 1024, 16), (2048, 128), (64, 128, 2))
    assert (compiled.copies[0].instructions, compiled.copies[0].bytes) == (1, 32768)
    assert (b == a[256:384, 384:512]).all()


def test_an_arbitrary_start_declines_with_the_reason():
    """As in the reference; here because TMA coordinates must be multiples of 16 bytes."""
    a = np.zeros((1024, 1024), np.float16)
    with pytest.raises(tile.DispatchError, match="tma: needs a start along the innermost dimension at a multiple of 16 bytes"):
        tiles_of("k", 128).compile(a, a, 1, 0)


def test_a_runtime_stride_gives_one_instruction_if_it_is_a_multiple_of_16_bytes_and_otherwise_declines():
    """The reference declines every stride that it cannot prove (and takes it unproved by another name); here it becomes a guard,
    so that a wrong one cannot run."""
    kernel, whole = tiles_of("0", 64, swizzle=0), np.random.default_rng(0).random((256, 1040)).astype(np.float16)
    a = whole[:, :1024]                             # rows of 2080 bytes: a multiple of 16
    b, compiled = ran(kernel, a, 64, 0, 1)
    m = compiled.tensor_maps[0]
    assert (m.global_dim, m.global_strides, m.box, compiled.copies[0].instructions) == ((1024, 256), (2080,), (64, 128), 1)
    assert (b == a[128:, :64]).all()
    odd = np.zeros((256, 1028), np.float16)[:, :1024]   # 2056
    with pytest.raises(tile.DispatchError, match="the stride of dimension 0 is not known to be a multiple of 16 bytes"):
        kernel.compile(odd, b, 0, 1)
