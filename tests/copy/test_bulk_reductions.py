"""Bulk reductions into global memory and into a peer's memory: every operator and type, on the simulator and as PTX."""

import numpy as np
import pytest
from bulk_kernels import REDUCTIONS, TYPES, reduced, reduction_case, summed
from tilejit import ptx
from tilejit.errors import DispatchError
from tilejit.plan import BufferSpec, plan_copy
from values import WHOLE

pytestmark = pytest.mark.usefixtures("assembled_later")

PLACES = {"global": "cp.reduce.async.bulk.global.shared::cta.bulk_group", "shared": "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"}
GLOBAL, PEER = ([case[1:] for case in REDUCTIONS if case[0] == place] for place in ("global", "shared"))


def instructions(compiled) -> list[str]:
    return [line.split(" [")[0].strip() for line in compiled.ptx.splitlines() if "cp.reduce" in line]


@pytest.mark.parametrize("place", PLACES)
def test_the_operators_and_types_of_the_tests_are_those_of_the_instruction_table(place):
    """Neither more nor fewer; forms with a cache hint do not count."""
    words = {form.mnemonic.replace(".L2::cache_hint", "").removeprefix(PLACES[place] + ".") for form in ptx.forms() if form.mnemonic.startswith(PLACES[place])}
    assert words == {f"{kind}.{spelled}" for kind, types in TYPES[place].items() for spelled in types}


@pytest.mark.parametrize("kind, dtype, spelled", GLOBAL)
def test_a_reduction_combines_with_global_memory(kind, dtype, spelled):
    """Four CTAs reduce into the same region."""
    a, b, want = reduction_case(kind, dtype, 4)
    k = reduced.compile(a, b, N=64, KIND=kind)
    assert instructions(k) == [f"{PLACES['global']}.{kind}.{spelled}"]
    assert next(c for c in k.copies if c.op == "copy_async").variant == "bulk"
    assert not reduced.simulate((4,), a, b, N=64, KIND=kind).findings
    assert (b == want).all()


@pytest.mark.parametrize("kind, dtype, spelled", PEER)
def test_a_reduction_combines_with_a_peer_s_memory(kind, dtype, spelled):
    """Two CTAs of a cluster reduce into the memory of rank 0. A CTA may address its own memory by shared::cluster, which
    compute-sanitizer reports as not remote."""
    a, b, want = reduction_case(kind, dtype, 2)
    c = np.zeros_like(b)
    k = summed.compile(a, b, c, KIND=kind)
    assert instructions(k) == [f"{PLACES['shared']}.{kind}.{spelled}"]
    assert next(c for c in k.copies if c.op == "copy_async").variant == "dsmem"
    assert not summed.simulate((3,), a, b, c, KIND=kind).findings
    assert (c == want).all()


@pytest.mark.parametrize("place, variant", [("global", "bulk"), ("shared", "dsmem")])
@pytest.mark.parametrize("kind", TYPES["global"])
def test_an_unsupported_reduction_is_declined_with_the_supported_ones(place, variant, kind):
    """For every other dtype. The assembler accepts some of them, and the hardware faults."""
    taken = [dtype for dtypes in TYPES[place][kind].values() for dtype in dtypes]
    for dtype in WHOLE:
        to, of = BufferSpec((64,), dtype, place), BufferSpec((64,), dtype, "shared")
        ask = lambda: plan_copy(to, of, variant=variant, reduce=kind, peer=1 if place == "shared" else None)
        if dtype in taken:
            assert ask().plan.reduce[0] == kind
            continue
        with pytest.raises(DispatchError) as refused:
            ask()
        (line,) = [line for line in str(refused.value).splitlines() if f"reduce={kind!r} of {dtype}; in {place} memory it takes " in line]
        assert set(line.split("it takes ")[1].split(", ")) == set(taken)


@pytest.mark.parametrize("kind, dtype", [("add", "uint8"), ("min", "float32"), ("inc", "int32"), ("xor", "float32")])
def test_a_kernel_with_an_unsupported_reduction_does_not_compile(kind, dtype):
    a = np.zeros((4, 64), dtype)
    with pytest.raises(DispatchError, match=f"reduce='{kind}' of {dtype}; in global memory it takes"):
        reduced.compile(a, a[0].copy(), N=64, KIND=kind)
    with pytest.raises(DispatchError, match=f"reduce='{kind}' of {dtype}; in shared memory it takes"):
        summed.compile(a[:2], a[0].copy(), a[0].copy(), KIND=kind)
