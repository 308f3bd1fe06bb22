"""Every row of the table, called in a kernel: `tile.ptx.<form>(...)`."""

import numpy as np
import pytest
import tilejit as tile
from tilejit import ptx
from tilejit.config import TARGETS
from tilejit.ops.ptx.calls import DTYPES

pytestmark = pytest.mark.usefixtures("assembled_later")
ARRAYS = ("uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "bool")
ROWS_IN_A_KERNEL = 70


def argument(operand, form):
    """The text that a kernel passes for an operand: runtime values, memory locations for addresses."""
    if operand.kind == "imm":
        one = str(operand.values.first_allowed)
    elif operand.kind == "address":
        bar = operand.name == "bar"
        one = {"shared": "bar" if bar else "s[1]", "cluster": "bar" if bar else "s[1]", "global": "g[i]", "generic": "g[i]",
               "tmem": "v_uint32", "map": "v_uint64"}[operand.space]
        if operand.space == "cluster" and "shared::cluster" in form.mnemonic:
            one = "bar.peer(1)" if bar else "s.peer(1)[1]"
    else:
        one = f"v_{DTYPES[operand.type][0].name}"
        one = {"v_int32": "tile.int32(v_uint32)", "v_int64": "tile.int64(v_uint64)", "v_int16": "tile.int16(v_uint16)",
               "v_int8": "tile.int8(v_uint8)"}.get(one, one)
        one = f"({one}, {one})" if operand.type == "b128" else one
    return one if operand.count is None else "(" + f"{one}, " * operand.count + ")"


def lines_of(form, n):
    """The lines that call a form and store one of its results."""
    call = f"tile.ptx.{ptx.python_name(form)}({', '.join(argument(o, form) for o in form.inputs)})"
    if not form.results:
        return [call]
    first, rest = form.results[0], len(form.results) > 1
    pick = "[0]" * (rest + (first.count is not None) + (first.type == "b128"))
    lines = [f"r{n} = {call}{pick}"]
    if form.mnemonic.startswith("wgmma.mma_async"):
        lines = ["tile.ptx.wgmma.fence.sync.aligned()", *lines, "tile.ptx.wgmma.commit_group.sync.aligned()",
                 "tile.ptx.wgmma.wait_group.sync.aligned(0)"]
    return [*lines, f"tile.store(o_{DTYPES[first.type][0].name}[{n}], r{n})"]


def kernel_of(forms):
    outputs = sorted({DTYPES[f.results[0].type][0].name for f in forms if f.results})
    head = f"def calls(g, {', '.join([f'x_{a}' for a in ARRAYS] + [f'o_{d}' for d in outputs])}):"
    body = ["s = tile.alloc((64,), tile.uint32)", "bar = tile.mbarrier()", "i = tile.thread_id()", "tile.store(s, 0)"]
    body += [f"v_{a} = tile.load(x_{a}[i])" for a in ARRAYS]
    for n, form in enumerate(forms):
        body += lines_of(form, n)
    specs = [tile.ArraySpec((4096,), d) for d in ("uint32", *ARRAYS, *outputs)]
    return tile.jit(source="\n    ".join([head, *body])), specs


def one_of_each_row(target):
    """For each row, one form that the target has; which one depends on the target."""
    place = TARGETS.index(target)
    for row in ptx.rows():
        having = [form for form in ptx.expand(row) if form.exists_on(target)]
        if having:
            yield having[(7 * place + 3) % len(having)]


def batches(forms):
    """The forms, in batches of a few dozen per kernel. Forms that cannot share a kernel are separated, as are those that need most of
    its registers; forms that end the kernel come last."""
    kinds = {}
    for form in forms:
        ends = form.name in ("exit", "trap", "brkpt")
        wide = form.name if sum(o.registers for o in form.operands) > 64 else ""
        kind = "pairs" if "cta_group::2" in form.mnemonic else "registers" if "setmaxnreg" in form.mnemonic else "ends" if ends else ""
        kinds.setdefault((kind, wide), []).append(form)
    return [part[i:i + ROWS_IN_A_KERNEL] for part in kinds.values() for i in range(0, len(part), ROWS_IN_A_KERNEL)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_form_of_every_row_is_called_in_a_kernel_and_assembles(target):
    cluster = {} if target in ("sm_80", "sm_86", "sm_89") else {"cluster": (2, 1, 1)}
    for part in batches(one_of_each_row(target)):
        kernel, specs = kernel_of(part)
        text = kernel.compile(*specs, target=target, **cluster).ptx
        assert [f.name for f in part if f.mnemonic not in text] == []


# Checks of calls.

def compiled(line, target="sm_90a", **options):
    specs = [tile.ArraySpec((64,), d) for d in ("float32", "uint32")]
    return tile.jit(source=f"def k(x, n):\n    s = tile.alloc((64,), tile.float32)\n    bar = tile.mbarrier()\n    {line}\n").compile(*specs, target=target, **options)


@pytest.mark.parametrize("line, words", [
    ("tile.ptx.mapa.u64(x[0])",                         "mapa.u64: operand rank is missing, a .u32 value (uint32, int32); it takes a, rank"),
    ("tile.ptx.mapa.u64(x[0], 0, 1)",                   "mapa.u64 was given 3 operands; it takes a, rank"),
    ("tile.ptx.mapa.u64(x[0], rnak=0)",                 "mapa.u64 has no operand 'rnak'; it takes a, rank"),
    ("tile.ptx.mapa.u64(x[0], 0, a=x[0])",              "mapa.u64 was given a twice"),
    ("tile.ptx.tanh.approx.f32(tile.thread_id())",      "operand a needs a .f32 value (float32), not a scalar int32"),
    ("tile.ptx.mov.b32.pack(1)",                        "operand a needs 2 values, each a .b16 value (uint16, int16, float16, bfloat16), "
                                                        "not the number 1"),
    ("tile.ptx.mov.b32.pack((1, 2, 3))",                "not 3 values"),
    ("tile.ptx.mov.b32.pack((1, 70000))",               "70000 does not fit in uint16"),
    ("tile.ptx.lop3.b32(1, 2, 3, 256)",                 "operand table needs an immediate: an integer from 0 to 255, not 256"),
    ("tile.ptx.lop3.b32(1, 2, 3, tile.thread_id())",    "operand table needs an immediate"),
    ("tile.ptx.st.shared.b32(x[0], 1)",                 "operand a needs"),
    ("tile.ptx.ld.global_.b32(s[0])",                   "operand a needs an element of an array (uint64, int64), not"),
    ("tile.ptx.mbarrier.inval.shared_cta.b64(bar.peer(0))", "operand bar needs an element of the CTA's own shared memory, or a barrier"),
    ("tile.ptx.ex2.approx.f32",                         None),
    ("tile.ptx.ex2.approx(1.0)",                        "no PTX instruction form is called 'ex2.approx'; near it are"),
    ("tile.ptx.ld.shared_cluster.f32(x)",               "tile.ptx.ld.shared_cluster has no attribute 'f32' (did you mean 'b32'?)"),
    ("tile.ptx.mbarrier.inval.shared.b64(x)",           "tile.ptx.mbarrier.inval.shared has no attribute 'b64'; it has cta"),
    ("tile.ptx.shfl.sync.left",                         "tile.ptx.shfl.sync has no attribute 'left'; it has bfly, down, idx, up"),
    ("tile.ptx.ex3",                                    "has no attribute 'ex3'"),
    ("tile.ptx.st.global_.b32(x[0], tile.load(x[0:64]))", "takes scalars, one in each thread"),
    ("tile.ptx.nanosleep.u32(10, simulate=3)",          "simulate is a function of arrays"),
    ("if tile.thread_id() < 3:\n        tile.ptx.bar.sync(0)", "bar.sync is executed by all 32 threads of a warp together, and the "
                                                               "condition `tile.thread_id() < 3` differs"),
    ("with tile.elect():\n        tile.ptx.barrier.cluster.arrive.aligned()", "and this scope has 1"),
    ("with tile.warp(0):\n        tile.ptx.wgmma.fence.sync.aligned()", "all 128 threads of a warpgroup together"),
])
def test_a_wrong_call_is_an_error_that_explains_it(line, words):
    if words is None:
        compiled(line)
        return
    with pytest.raises(tile.CompilationError) as error:
        compiled(line)
    assert words in str(error.value)


def test_a_form_that_the_target_lacks_is_an_error_that_names_the_targets_with_it():
    with pytest.raises(tile.CompilationError, match="tcgen05.wait::ld.sync.aligned exists on sm_100a, sm_103a, not on sm_90a"):
        compiled("tile.ptx.tcgen05.wait_ld.sync.aligned()")
    assert "tanh.approx" in compiled("tile.store(x[0], tile.ptx.tanh.approx.f32(tile.load(x[0])))", target="sm_86").ptx


def test_a_form_called_outside_a_kernel_is_an_error_and_the_table_is_loaded_on_first_use():
    import subprocess
    import sys
    with pytest.raises(tile.CompilationError, match="inside @tile.jit kernels"):
        tile.ptx.mapa.u64(1, 2)
    code = "import sys, tilejit as tile; print('tilejit.ptx' in sys.modules); tile.ptx.mapa; print('tilejit.ptx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False", "True"]


def test_an_array_whose_address_a_store_takes_counts_as_written_and_that_of_a_load_does_not():
    written = compiled("tile.ptx.st.global_.b32(n[0], tile.ptx.ld.global_.b32(x[0]))").written
    assert written == (1,)
    text = compiled("with tile.elect():\n        tile.ptx.cp_async.bulk.shared_cta.global_.mbarrier_complete_tx_bytes(s, x, 256, bar)")
    assert text.written == ()


def test_forms_that_touch_memory_keep_their_order_in_the_code():
    ptx_text = compiled("tile.ptx.st.global_.b32(n[0], 1)\n    a = tile.ptx.ld.global_.b32(n[0])\n    tile.ptx.fence.acq_rel.gpu()\n"
                        "    b = tile.ptx.ld.global_.b32(n[0])\n    tile.ptx.st.global_.b32(n[1], a + b)").ptx
    order = [word for line in ptx_text.splitlines() for word in ("st.global", "ld.global", "fence.acq_rel") if line.strip().startswith(word)]
    assert order == ["st.global", "ld.global", "fence.acq_rel", "ld.global", "st.global"]


def test_hardware_barriers_used_by_a_constant_number_are_not_allocated_by_the_compiler():
    text = compiled("tile.ptx.bar.sync.threads(1, 128)\n    with tile.warpgroup(0):\n        tile.sync()", num_warps=8).ptx
    numbers = [line.split()[1].rstrip(",;") for line in text.splitlines() if line.strip().startswith("bar.sync")]
    assert "2" in numbers and numbers.count("1") <= 1


# The simulator.

def lanes(body, dtype, out_dtype, num_warps=2, **kwargs):
    """The result of a kernel line, applied to one number per thread."""
    kernel = tile.jit(source=f"def k(x, y):\n    v = tile.load(x[tile.thread_id()])\n    tile.store(y[tile.thread_id()], {body})\n",
                      num_warps=num_warps)
    x = np.random.default_rng(0).integers(0, 200, 32 * num_warps).astype(dtype)
    y = np.zeros(32 * num_warps, out_dtype)
    kernel[1,](x, y)
    return x, y


@pytest.mark.parametrize("body, dtype, out, want", [
    ("tile.ptx.add.rn.f32(v, 1.5)",                          "float32", "float32", lambda x: x + np.float32(1.5)),
    ("tile.ptx.add.rn.sat.f32(v, -3.5)",                     "float32", "float32", lambda x: np.clip(x - 3.5, 0, 1)),
    ("tile.ptx.cvt.rzi.u32.f32(v)",                          "float32", "uint32",  lambda x: x.astype("u4")),
    ("tile.ptx.lop3.b32(v, 12, 10, 0xE8)",                   "uint32",  "uint32",  lambda x: (x & 12) | (x & 10) | (12 & 10)),
    ("tile.ptx.prmt.b32(v, 0, 0x0123)",                      "uint32",  "uint32",  lambda x: x.byteswap()),
    ("tile.ptx.shf.l.wrap.b32(v, v, 8)",                     "uint32",  "uint32",  lambda x: x << 8 | x >> 24),
    ("tile.ptx.popc.b32(v * 0x9E3779B9)",                    "uint32",  "uint32",  lambda x: [bin(n).count("1") for n in x * np.uint32(0x9E3779B9)]),
    ("tile.ptx.popc.b64(v * 0x9E3779B97F4A7C15)",            "uint64",  "uint32",
     lambda x: [bin(n).count("1") for n in x * np.uint64(0x9E3779B97F4A7C15)]),
    ("tile.ptx.clz.b32(v)",                                  "uint32",  "uint32",  lambda x: [32 - int(n).bit_length() for n in x]),
    ("tile.ptx.clz.b64(v)",                                  "uint64",  "uint32",  lambda x: [64 - int(n).bit_length() for n in x]),
    ("tile.ptx.brev.b32(v * 0x9E3779B9)",                    "uint32",  "uint32",
     lambda x: [int(f"{n:032b}"[::-1], 2) for n in x * np.uint32(0x9E3779B9)]),
    ("tile.ptx.brev.b64(v)",                                 "uint64",  "uint64",
     lambda x: np.array([int(f"{n:064b}"[::-1], 2) for n in x], np.uint64)),
    ("tile.ptx.mul.hi.u32(v * 0x9E3779B9, 0xCAFEBABE)",      "uint32",  "uint32",
     lambda x: [int(n) * 0xCAFEBABE >> 32 for n in x * np.uint32(0x9E3779B9)]),
    ("tile.ptx.mul.hi.s32(v * -99999999, 77777777)",         "int32",   "int32",
     lambda x: [int(n) * 77777777 >> 32 for n in x * np.int32(-99999999)]),
    ("tile.ptx.mul.hi.u64(v * 0x9E3779B97F4A7C15, v)",       "uint64",  "uint64",
     lambda x: np.array([int(n) * int(k) >> 64 for n, k in zip(x * np.uint64(0x9E3779B97F4A7C15), x)], np.uint64)),
    ("tile.ptx.dp4a.u32.u32(v, 0x01010101, 5)",              "uint32",  "uint32",  lambda x: x.view("u1").reshape(-1, 4).sum(1) + 5),
    ("tile.ptx.mov.b64.unpack(tile.ptx.mov.b64.pack((7, v)))[1]", "uint32", "uint32", lambda x: x),
    ("tile.ptx.shfl.sync.up.b32(v, 3, 0, -1)",               "uint32",  "uint32",
     lambda x: np.stack([np.r_[w[:3], w[:-3]] for w in x.reshape(-1, 32)]).ravel()),
    ("tile.ptx.shfl.sync.idx.b32(v, 2, 0x181f, -1)",         "uint32",  "uint32",  lambda x: np.repeat(x.reshape(-1, 8)[:, 2], 8)),
    ("tile.ptx.shfl.sync.down.b32(v, 1, 0x1f, -1)",          "uint32",  "uint32",
     lambda x: np.stack([np.r_[w[1:], w[-1:]] for w in x.reshape(-1, 32)]).ravel()),
    ("tile.ptx.vote.sync.ballot.b32(v > 100, -1)",           "uint32",  "uint32",
     lambda x: np.repeat(np.packbits(x.reshape(-1, 32) > 100, axis=1, bitorder="little").view("u4").ravel(), 32)),
    ("tile.ptx.redux.sync.max.u32(v, tile.where(tile.lane_id() < 16, tile.uint32(0xffff), tile.uint32(0xffff0000)))",
     "uint32",  "uint32",
     lambda x: np.repeat(x.reshape(-1, 16).max(1), 16)),
    ("tile.ptx.match.any.sync.b32(v // 64, -1)",             "uint32",  "uint32",
     lambda x: np.concatenate([[sum(1 << k for k in range(32) if w[k] // 64 == a // 64) for a in w] for w in x.reshape(-1, 32)])),
    ("tile.ptx.elect.sync(tile.where(tile.lane_id() < 4, tile.uint32(15), tile.uint32(0xfffffff0)))[0] + v", "uint32",
     "uint32",
     lambda x: x + np.where(np.arange(len(x)) % 32 < 4, 0, 4)),
    ("tile.ptx.mov.u32.laneid() + tile.ptx.mov.u32.tid.x()", "uint32",  "uint32",  lambda x: np.arange(len(x)) % 32 + np.arange(len(x))),
    ("tile.ptx.mov.u32.lanemask_lt()",                       "uint32",  "uint32",  lambda x: (1 << np.arange(len(x)) % 32) - 1),
])
def test_the_simulator_s_results_of_forms_agree_with_the_isa_manual(body, dtype, out, want):
    x, y = lanes(body, dtype, out)
    assert (y == np.asarray(want(x)).astype(out)).all()


def _cosine(x):
    return np.cos(x)


@tile.jit(num_warps=2)
def with_a_meaning_of_its_own(x, y):
    i = tile.thread_id()
    tile.store(y[i], tile.ptx.sin.approx.f32(tile.load(x[i]), simulate=_cosine))


@tile.jit(num_warps=1)
def with_a_place(x, y):
    i = tile.thread_id()
    tile.store(y[i], tile.ptx.atom.global_.add.f32(x[i], 1.0, simulate=_sum))


def _sum(place, value):
    return place + value


def test_a_function_of_arrays_passed_as_simulate_replaces_a_form_on_the_simulator():
    x = np.linspace(0, 3, 64, dtype=np.float32)
    y = np.zeros_like(x)
    with_a_meaning_of_its_own[1,](x, y)
    assert (y == np.cos(x)).all()


def test_such_a_function_receives_the_element_at_a_memory_operand():
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    with_a_place[1,](x, y)
    assert (y == x + 1).all()


def test_a_form_that_the_simulator_does_not_implement_cannot_be_simulated():
    x = np.zeros(64, np.float32)
    with pytest.raises(tile.SimulationError, match="no meaning for cvt.rz.f16.f32: give simulate="):
        tile.jit(source="def k(x):\n    tile.store(x[0], tile.float32(tile.ptx.cvt.rz.f16.f32(1.0)))\n")[1,](x)


@tile.jit(num_warps=2)
def through_shared_memory(x, y):
    i = tile.thread_id()
    s = tile.alloc((64,), tile.uint32)
    a, b = tile.ptx.ld.global_.v2.b32(x[2 * (i % 32)])
    tile.ptx.st.shared.b32(s[i], a + b)
    tile.ptx.bar.sync(0)
    old = tile.ptx.atom.shared_cta.add.u32(s[i // 2], 1000)
    tile.ptx.bar.sync(0)
    tile.ptx.red.global_.add.u32(y[0], tile.ptx.ld.shared.b32(s[i]))


def test_loads_stores_and_atomics_on_memory_operands_run_on_the_simulator():
    x, y = np.arange(64, dtype=np.uint32), np.zeros(1, np.uint32)
    through_shared_memory[1,](x, y)
    assert y[0] == 2 * x.sum() + 64 * 1000


@tile.jit(num_warps=1)
def by_bulk_copy(x, y):
    s = tile.alloc((64,), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, 256)
        tile.ptx.cp_async.bulk.shared_cta.global_.mbarrier_complete_tx_bytes(s, x[0], 256, bar)
    while not tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(bar, 0):
        pass
    with tile.elect():
        tile.ptx.cp_async.bulk.global_.shared_cta.bulk_group(y[0], s[0], 256)
        tile.ptx.cp_async.bulk.commit_group()
        tile.ptx.cp_async.bulk.wait_group(0)


def test_a_copy_written_in_ptx_instructions_runs_on_the_simulator():
    x = np.random.default_rng(1).random(64).astype(np.float32)
    y = np.zeros_like(x)
    by_bulk_copy[1,](x, y)
    assert (x == y).all()


@tile.jit(num_warps=1)
def without_a_barrier(y):
    s = tile.alloc((64,), tile.uint32)
    tile.ptx.st.shared.b32(s[tile.thread_id()], 1)
    tile.ptx.st.shared.b32(s[(tile.thread_id() + 1) % 32], 2)
    tile.store(y[0:64], 0)


def test_a_race_between_ptx_instructions_is_found():
    report = without_a_barrier.simulate((1,), np.zeros(64, np.uint32))
    assert [f.kind for f in report.findings] == ["race"]


@pytest.mark.parametrize("call", ["tile.ptx.bar.sync({n})", "tile.ptx.barrier.sync({n})", "tile.ptx.bar.sync.threads({n}, 128)",
                                  "tile.ptx.bar.arrive({n}, 128)"])
def test_a_barrier_beyond_the_16_of_a_cta_is_refused(call):
    kernel = lambda n: tile.jit(source=f"def k(x):\n    {call.format(n=n)}\n    tile.store(x[0], 1)\n")
    for n in (16, 99, -1):
        with pytest.raises(tile.CompilationError, match=f"barriers 0 to 15, not {n}"):
            kernel(n).compile(np.zeros(1, np.int32), target="sm_90a")
    assert kernel(15).compile(np.zeros(1, np.int32), target="sm_90a").ptx


@pytest.mark.parametrize("call", ["bar.sync({n})", "barrier.sync({n})", "bar.sync.threads({n}, 128)", "bar.arrive({n}, 128)",
                                  "bar.red.popc.u32({n}, True)"])
def test_a_barrier_beyond_the_16_of_a_cta_is_found_where_its_number_is_known_at_run_time(call):
    kernel = tile.jit(source=f"def k(x, n):\n    tile.ptx.{call.format(n='n + tile.program_id(0)')}\n    tile.store(x[tile.program_id(0)], 1)\n")
    beyond = lambda *numbers: [f.message for f in kernel.simulate((2,), np.zeros(2, np.int32), *numbers).findings if f.kind == "barrier-lifecycle"]
    for n, wrong in ((15, 16), (16, 16), (40, 40), (-2, -2)):
        found, = beyond(n)
        assert f"barriers 0 to 15, not {wrong}" in found
    assert not beyond(0) and not beyond(14)


def test_threads_of_two_ctas_meet_at_different_barriers():
    """The first warp of each CTA waits at the barrier whose number its CTA has."""
    @tile.jit(num_warps=2)
    def kernel(y):
        s, pid = tile.alloc((32,), tile.int32), tile.program_id(0)
        with tile.warp(1):
            tile.store(s, tile.arange(32) + pid)
            tile.ptx.bar.arrive(1 + pid, 64)
        with tile.warp(0):
            tile.ptx.bar.sync.threads(1 + pid, 64)
            tile.store(y[pid, 0:32], tile.load(s))

    y = np.zeros((3, 32), np.int32)
    assert not kernel.simulate((3,), y).findings
    np.testing.assert_array_equal(y, np.arange(32) + np.arange(3)[:, None])
