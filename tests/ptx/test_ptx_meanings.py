"""Which forms of the instruction table the simulator has no meaning for; and the meanings that no other test runs."""

from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from tilejit import ptx
from tilejit.ops.ptx.meanings import meaning

NOT_SIMULATED = Path(__file__).parent / "data" / "not_simulated.txt"


def not_simulated() -> list[str]:
    """A line for each row of the table of which no form has a meaning; for other rows, a line for each form that has
    none."""
    lines = []
    for row in ptx.rows():
        forms = ptx.expand(row)
        lacking = [form.name for form in forms if meaning(form) is None]
        lines += [f"every {row.name or row.text}"] if len(lacking) == len(forms) else lacking
    return lines


def test_the_forms_that_the_simulator_lacks_are_those_of_the_list():
    """The list may only get shorter: a form that gets a meaning leaves it, and a new form has one."""
    listed, found = NOT_SIMULATED.read_text().splitlines(), not_simulated()
    assert not (new := sorted(set(found) - set(listed))), f"no meaning for {new}"
    assert not (gone := sorted(set(listed) - set(found))), f"remove from {NOT_SIMULATED.name}: {gone}"


# -- bit fields --------------------------------------------------------------------------------------------------------

WORDS = {"u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64"}


def extracted(a: int, position: int, length: int, width: int, signed: bool) -> int:
    """PTX ISA, ``bfe``, bit by bit."""
    bit = lambda n: a >> n & 1
    top = width - 1
    fill = bit(min(position + length - 1, top)) if signed and length else 0
    value = sum((bit(position + n) if n < length and position + n <= top else fill) << n for n in range(width))
    return value - (1 << width) if signed and value >> top else value


@pytest.mark.parametrize("kind", WORDS)
def test_bfe_agrees_with_the_isa_manual_for_every_position_and_length(kind):
    """Also fields beyond the number, and operands of which only the lowest eight bits count."""
    kernel = tile.jit(source=f"def field(x, p, n, y):\n    i = tile.thread_id()\n    tile.store(y[i], "
                             f"tile.ptx.bfe.{kind}("
                             "tile.load(x[i]), tile.load(p[i]), tile.load(n[i])))\n", num_warps=32)
    rng, width = np.random.default_rng(3), int(kind[1:])
    x = rng.integers(0, 1 << 64, 1024, np.uint64, endpoint=False).astype(f"u{width // 8}").view(WORDS[kind])
    p, n = (rng.choice([*range(0, 70), 255, 256, 259], 1024).astype(np.uint32) for _ in range(2))
    y = np.zeros_like(x)
    kernel[1,](x, p, n, y)
    want = [extracted(int(a) & (1 << width) - 1, int(q) & 255, int(k) & 255, width, kind[0] == "s")
            for a, q, k in zip(x, p, n)]
    np.testing.assert_array_equal(y, np.array(want, WORDS[kind]))


# -- subnormal numbers -------------------------------------------------------------------------------------------------

SMALL = np.array([1e-40, -1e-40, 3.0, -0.5, 2.0 ** 127, np.inf, -np.inf, 0.0] * 4, np.float32)


@pytest.mark.parametrize("call, want", [
    ("ex2.approx.ftz.f32(v - 127.5)", lambda x: np.where(abs(np.exp2(x - np.float32(127.5))) < 2.0 ** -126, 0,
                                                         np.exp2(x - np.float32(127.5)))),
    ("rcp.approx.ftz.f32(v)", lambda x: np.array([np.inf, -np.inf, 1 / 3, -2, 0, 0, -0.0, np.inf] * 4)),
    ("add.rn.ftz.f32(v, v)", lambda x: np.where(abs(x) < 1e-38, 0 * x, x + x)),
    ("mul.rn.ftz.f32(v, 1.0)", lambda x: np.where(abs(x) < 1e-38, np.copysign(0, x), x)),
    ("min.ftz.f32(v, 1.0)", lambda x: np.where(abs(x) < 1e-38, np.copysign(0, x), np.minimum(x, 1))),
    ("cvt.rpi.ftz.s32.f32(v * 0.5)", None),
])
def test_ftz_flushes_operands_and_results_below_the_smallest_normal_number(call, want):
    gives = "int32" if want is None else "float32"
    kernel = tile.jit(source=f"def flush(x, y):\n    i = tile.thread_id()\n    v = tile.load(x[i])\n    "
                             f"tile.store(y[i], tile.ptx.{call})\n", num_warps=1)
    y = np.zeros(32, gives)
    kernel[1,](SMALL, y)
    with np.errstate(all="ignore"):
        wanted = np.array([0, 0, 2, 0, 2 ** 31 - 1, 2 ** 31 - 1, -2 ** 31,
                           0] * 4) if want is None else want(SMALL).astype(np.float32)
    np.testing.assert_array_equal(y, wanted.astype(gives))
    if gives == "float32":
        np.testing.assert_array_equal(np.signbit(y), np.signbit(wanted.astype(gives)))


# -- pairs of halves ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("op, want", [("add.rn", np.add), ("mul.rn", np.multiply), ("min", np.minimum),
                                      ("max.NaN", np.maximum)])
@pytest.mark.parametrize("kind, dtype", [("f16x2", "float16"), ("bf16x2", "bfloat16")])
def test_forms_of_pairs_compute_both_halves(op, want, kind, dtype):
    made = tile.dtypes.dtype_of(dtype).np
    a, b = (np.random.default_rng(n).normal(size=64).astype(np.float32).astype(made) for n in range(2))
    kernel = tile.jit(source=f"def both(x, y, z):\n    i = tile.thread_id()\n    tile.store(z[i], "
                             f"tile.ptx.{op}.{kind}(tile.load(x[i]), tile.load(y[i])))\n",
                      num_warps=1)
    z = np.zeros(32, np.uint32)
    kernel[1,](a.view(np.uint32), b.view(np.uint32), z)
    np.testing.assert_array_equal(z.view(np.uint16), want(a, b).view(np.uint16))


# -- mbarriers in the kernel's memory ----------------------------------------------------------------------------------

A = np.arange(4 * 256, dtype=np.float32).reshape(4, 256)


@tile.jit(num_warps=4)
def own_barrier(x, y, n):
    s, bars = tile.alloc((256,), x.dtype), tile.alloc((2,), tile.uint64)
    with tile.elect():
        tile.ptx.mbarrier.init.shared_cta.b64(bars[1], 1)
    tile.ptx.fence.mbarrier_init.release.cluster()
    tile.sync()
    for k in range(n):
        with tile.elect():
            tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bars[1], 1024)
            tile.ptx.cp_async.bulk.shared_cta.global_.mbarrier_complete_tx_bytes(s[0], x[k, 0], 1024, bars[1])
        while not tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(bars[1], k % 2):
            pass
        tile.store(y[k, 0:256], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()
    with tile.elect():
        tile.ptx.mbarrier.inval.shared_cta.b64(bars[1])
        tile.ptx.mbarrier.init.shared_cta.b64(bars[1], 3)


@tile.jit(num_warps=4)
def used_before(x, y):
    bars = tile.alloc((1,), tile.uint64)
    with tile.warp(0), tile.elect():
        tile.ptx.mbarrier.init.shared_cta.b64(bars[0], 1)
    with tile.warp(1), tile.elect():
        tile.ptx.mbarrier.arrive.shared_cta.b64(bars[0])


@tile.jit(num_warps=4)
def used_after(x, y):
    bar = tile.mbarrier()
    with tile.warp(0), tile.elect():
        tile.ptx.mbarrier.inval.shared_cta.b64(bar)
    tile.sync()
    with tile.warp(1), tile.elect():
        tile.ptx.mbarrier.arrive.shared_cta.b64(bar)


@tile.jit(num_warps=4)
def initialised_twice(x, y):
    bar = tile.mbarrier()
    with tile.warp(0), tile.elect():
        tile.ptx.mbarrier.init.shared_cta.b64(bar, 1)


@tile.jit(num_warps=1)
def initialised_by_all(x, y):
    bars = tile.alloc((1,), tile.uint64)
    tile.ptx.mbarrier.init.shared_cta.b64(bars[0], 1)


@tile.jit(num_warps=1)
def lacks_an_arrival(x, y):
    bars = tile.alloc((2,), tile.uint64)
    with tile.elect():
        tile.ptx.mbarrier.init.shared_cta.b64(bars[1], 2)
        tile.ptx.mbarrier.arrive.shared_cta.b64(bars[1])
    tile.sync()
    while not tile.ptx.mbarrier.test_wait.parity.shared_cta.b64(bars[1], 0):
        pass


@pytest.mark.parametrize("seed", range(4))
def test_an_mbarrier_in_a_buffer_is_initialised_used_and_invalidated(seed):
    y = np.zeros_like(A)
    report = own_barrier.simulate((1,), A, y, 4, seed=seed)
    assert not report.findings, report
    np.testing.assert_array_equal(y, A)


@pytest.mark.parametrize("kernel, kind, words", [
    (used_before, "barrier-lifecycle", "before it "), (used_after, "barrier-lifecycle", "used after it was invalidated"),
    (initialised_twice, "barrier-lifecycle", "initialised again"),
    (initialised_by_all, "barrier-lifecycle", "32 threads initialise"),
    (lacks_an_arrival, "deadlock", "loop"),
])
def test_misuse_of_such_an_mbarrier_is_found_under_every_seed(kernel, kind, words):
    for seed in range(6):
        (finding,) = kernel.simulate((1,), A, np.zeros_like(A), seed=seed).findings
        assert finding.kind == kind and words in finding.message, (seed, finding)


# -- relaxed arrivals --------------------------------------------------------------------------------------------------

def crosses(arrive, before=""):
    return tile.jit(source=f"""def crosses(x, y):
    s, rank, i = tile.alloc((128,), x.dtype), tile.cta_rank(), tile.thread_id()
    tile.store(s[i], tile.load(x[rank, i]))
    {before or "pass"}
    tile.ptx.barrier.cluster.arrive{arrive}()
    tile.ptx.barrier.cluster.wait.acquire()
    tile.store(y[rank, i], tile.ptx.ld.shared_cluster.b32(s.peer(1 - rank)[i]))
    tile.cluster_sync()
""", num_warps=4, cluster=(2, 1, 1))


@pytest.mark.parametrize("arrive, before, right", [
    (".release", "", True), (".relaxed", "", False), (".relaxed", "tile.ptx.fence.acq_rel.cluster()", True)])
def test_a_relaxed_arrival_releases_only_what_a_fence_came_after(arrive, before, right):
    x = A.astype(np.uint32)
    for seed in range(4):
        y = np.zeros_like(x)
        report = crosses(arrive, before).simulate((2,), x, y, seed=seed)
        assert [f.kind for f in report.findings] == ([] if right else ["race"]), report
        assert not right or (y[:2, :128] == x[1::-1, :128]).all()
