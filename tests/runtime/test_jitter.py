"""The launch option `jitter`: the timing of the machine code is perturbed, and nothing else."""

import os
import re
import weakref

import numpy as np
import pytest
import tilejit as tile
from tilejit.config import TARGETS
from tilejit.emit.jitter import KINDS, MOST, PRESSURE_BYTES, add_jitter, sites
from tilejit.toolchain.disassembler import sass

from tests.chosen_cases import part
from tests.gpu import in_child, jitter_seeds, needs_gpu

MARK = re.compile(r"^\t/\* jitter \d+, (\w+) \*/ ", re.MULTILINE)
SEEDS = range(20)


@tile.jit
def staged(x, y):
    s = tile.alloc((32, 32), x.dtype)
    tile.copy_async(s, x[0:32, 0:32]).wait()
    tile.store(y[0:32, 0:32], tile.load(s[:, 0:32]) * 2)


@tile.jit
def summed(x, y, n):
    """Blocks of 32 rows through a buffer of three slots; each is refilled behind ordinary loads."""
    s, v = tile.alloc((32, 64), x.dtype), tile.zeros((32, 64))
    for i in tile.pipelined(range(0, n, 1), stages=3, warp_specialize=True):
        tile.copy_async(s, x[i * 32:i * 32 + 32, 0:64])
        v = v + tile.load(s)
    tile.store(y[tile.program_id(0), 0:32, 0:64], v)


@tile.jit(num_warps=4)
def product(a, b, c, n):
    acc = tile.zeros((64, 64))
    sa, sb = tile.alloc((64, 64), a.dtype, layout=tile.auto), tile.alloc((64, 64), b.dtype, layout=tile.auto)
    for k in tile.pipelined(range(0, n, 1), stages=3):
        tile.copy_async(sa, a[0:64, k * 64:k * 64 + 64])
        tile.copy_async(sb, b[k * 64:k * 64 + 64, 0:64])
        acc = tile.dot(sa, sb, acc)
    tile.store(c[tile.program_id(0), 0:64, 0:64], acc)


@tile.jit
def doubled(x, y):
    tile.store(y[0:128], tile.load(x[0:128]) * 2)


def compiled(kernel, **options):
    specs = {"staged": [((32, 32), "float32")] * 2, "doubled": [((128,), "float32")] * 2,
             "summed": [((1024, 64), "float32"), ((8, 32, 64), "float32")],
             "product": [((64, 512), "bfloat16"), ((512, 64), "bfloat16"), ((8, 64, 64), "float32")]}[kernel.name]
    return kernel.compile(*(tile.ArraySpec(*s) for s in specs), *([8] if "n" in kernel.names else []), **options)


def without_marks(ptx: str) -> str:
    return "\n".join(line for line in ptx.split("\n") if not MARK.match(line))


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("kernel", [staged, summed, product, doubled])
def test_the_ptx_has_perturbations_only_if_asked_for_and_nothing_else_differs(kernel):
    plain = compiled(kernel).ptx
    assert compiled(kernel, jitter=None).ptx == plain and "/* jitter" not in plain
    texts = {compiled(kernel, jitter=seed).ptx for seed in SEEDS[:8]}
    assert {without_marks(text) for text in texts} == {plain} and len(texts) > 5
    assert compiled(kernel, jitter=7).ptx == add_jitter(plain, 7)


def test_every_kind_of_site_is_perturbed_under_some_seed():
    found = {kind for kernel in (summed, product, staged) for seed in SEEDS for kind in MARK.findall(add_jitter(compiled(kernel).ptx, seed))}
    assert found == set(KINDS) - {"tensor"}


def test_nothing_stands_between_a_wgmma_fence_and_the_commit_of_its_products():
    lines = compiled(product).ptx.split("\n")
    at = [next(n for n, line in enumerate(lines) if word in line) for word in ("wgmma.fence", "wgmma.mma_async", "wgmma.commit_group")]
    assert at == sorted(at) and all(not at[0] < site.line <= at[2] for site in sites(lines))
    assert any(site.line == at[2] + 2 and site.after for site in sites(lines))


def test_a_kernel_has_a_limited_number_of_perturbations():
    many = "$L__func_begin0:\n" + "\tld.shared.b32 %r1, [%r2];\n" * 5000
    assert max(len(MARK.findall(add_jitter(many, seed))) for seed in SEEDS) == MOST


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_with_jitter_become_machine_code_on_every_target(target):
    for kernel in (staged, summed, product):
        for seed in part(range(4), 2, TARGETS.index(target)):
            assert compiled(kernel, target=target, jitter=seed).cubin


def test_idle_time_and_the_loads_that_press_on_shared_memory_survive_the_assembler():
    """The loads have bank conflicts; the access that follows them is not moved ahead of them."""
    plain = compiled(staged)
    for seed in range(200):
        ptx = add_jitter(plain.ptx, seed)
        block = next((m for m in re.findall(r"/\* jitter \d+, shared \*/ (\{ \.reg \.pred jp; \.reg \.b32 jb.*)", ptx)), None)
        if block and "nanosleep" in ptx:
            break
    code = [line.strip() for line in sass(compiled(staged, jitter=seed).cubin, lines=False).splitlines()]
    assert any("NANOSLEEP" in line for line in code)
    assert sum(bool(re.search(r"\bLDS\b", line)) for line in code) >= block.count("ld.volatile") + 1


def test_shared_memory_is_as_large_as_the_loads_reach_and_a_budget_of_spills_does_not_count():
    assert compiled(staged).shared_bytes == 4096 == PRESSURE_BYTES
    assert compiled(doubled, jitter=1).shared_bytes == 0

    @tile.jit
    def small(x, y):
        s = tile.alloc((32,), x.dtype)
        tile.store(s, tile.load(x[0:32]))
        tile.sync()
        tile.store(y[0:32], tile.load(s))

    spec = tile.ArraySpec((32,), "float32")
    assert small.compile(spec, spec).shared_bytes == 128 and small.compile(spec, spec, jitter=1).shared_bytes == PRESSURE_BYTES
    assert not small.compile(spec, spec, jitter=1, spills=0).warnings


def test_the_setting_gives_a_seed_to_kernels_that_do_not_set_the_option(monkeypatch):
    plain = compiled(staged).ptx
    monkeypatch.setenv("TILEJIT_JITTER", "7")
    assert compiled(staged).ptx == add_jitter(plain, 7)
    assert compiled(staged, jitter=8).ptx == add_jitter(plain, 8)
    assert compiled(staged, jitter=None).ptx == plain
    for text in ("", "  "):
        monkeypatch.setenv("TILEJIT_JITTER", text)
        assert compiled(staged).ptx == plain
    monkeypatch.setenv("TILEJIT_JITTER", "often")
    with pytest.raises(tile.CompilationError, match="TILEJIT_JITTER is a seed, an integer of at least 0, not 'often'"):
        compiled(staged)


def test_jitter_does_not_change_a_simulation():
    x, y = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
    plain, perturbed = (staged.simulate((1,), x, y, jitter=seed) for seed in (None, 3))
    assert (y == 2).all() and plain.stats == perturbed.stats and not perturbed.findings


def test_each_seed_of_a_run_begins_with_kernels_that_were_not_launched(monkeypatch):
    """Whatever else is alive in the process, such as a reference to an object that is gone."""
    monkeypatch.setenv("TILEJIT_JITTER", "3")
    monkeypatch.setenv("TILEJIT_JITTER_SEEDS", "2")
    gone = weakref.proxy(Gone())
    for turn, seed in enumerate(jitter_seeds()):
        assert seed == 3 + turn == int(os.environ["TILEJIT_JITTER"]) and not staged.warm.launchers_of(())
        staged.warm.launchers_of(()).append("launcher of the seed before")
    assert turn == 1 and type(gone) is weakref.ProxyType
    staged.warm.clear()


def test_kernels_without_synchronisation_have_one_turn(monkeypatch):
    @tile.jit(num_warps=1)
    def doubled(x, y):
        tile.store(y[0:32], tile.load(x[0:32]) * 2)

    monkeypatch.setenv("TILEJIT_JITTER_SEEDS", "3")
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    x = tile.ArraySpec((32, 32), "float32")
    for kernel, args, turns in ((doubled, (tile.ArraySpec((32,), "float32"),) * 2, 1), (staged, (x, x), 3)):
        monkeypatch.setenv("TILEJIT_JITTER", "5")
        assert sum(kernel.compile(*args, target="sm_90a") is not None for _ in jitter_seeds()) == turns


class Gone:
    pass


@pytest.mark.unperturbed  # it sets the option itself
@needs_gpu("sm_90a")
@in_child(timeout=300)
def test_results_with_jitter_are_right_on_the_gpu():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (32 * 32, 64)).astype(np.float32)
    a, b = rng.integers(-4, 5, (64, 512)).astype(np.float16), rng.integers(-4, 5, (512, 64)).astype(np.float16)
    dx, da, db = map(tile.to_device, (x, a, b))
    for seed in SEEDS:
        y, c = tile.empty((264, 32, 64), "float32"), tile.empty((264, 64, 64), "float32")
        summed[264,](dx, y, 32, jitter=seed)
        product[264,](da, db, c, 8, jitter=seed)
        assert (y.numpy() == x.reshape(32, 32, 64).sum(axis=0)).all(), seed
        assert (c.numpy() == a.astype(np.float32) @ b.astype(np.float32)).all(), seed
