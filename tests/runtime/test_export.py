"""Exported kernels: the file, what launches it without a compiler, and the C launcher."""

import json
import os
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError
from tilejit.export.archive import from_json, to_json
from tilejit.runtime import driver, launcher
from tilejit.runtime.recipe import GridParameter

from tests.gpu import in_child, needs_gpu, run_child
from tests.runtime.fakes import FakeArray, FakeDriver

HERE = Path(__file__).parent / "exported"
F32 = tile.float32


@tile.jit(num_warps=2)
def add_row(x, y, bias, n, factor, BLOCK: tile.constexpr):
    """Rows of x, times a factor, plus n, go through shared memory by a tensor map where there is one."""
    s = tile.alloc((BLOCK, 64), x.dtype)
    row = tile.program_id(0) * BLOCK
    token = tile.copy_async(s, x[row:row + BLOCK, 0:64])
    token.wait()
    v = tile.load(s) * factor + n
    if bias is not None:
        v += tile.load(bias[row:row + BLOCK, 0:64])
    tile.store(y[row:row + BLOCK, 0:64], v)


@tile.jit(num_warps=2)
def by_map(x, y, n, BLOCK: tile.constexpr):
    s = tile.alloc((8, 64), x.dtype, layout=tile.swizzled(x.dtype, (8, 64), 128))
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x[0:8, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.store(y[n:n + BLOCK, 0:64], tile.load(s[0:BLOCK, 0:64]))


@tile.jit(num_warps=8)
def in_turn(x, programs, count):
    """Its CTAs run several programs. Its parameters have names that the launcher uses itself."""
    row, acc = tile.program_id(0) * 128 + tile.program_id(1), tile.zeros((128, 64))
    for k in tile.pipelined(range(0, x.shape[1], 64), stages=2, warp_specialize=True):
        a = tile.load(x[row:row + 128, k:k + 64])
        acc = tile.dot(a, tile.load(x[0:64, k:k + 64]).T, acc)
    tile.store(programs[row:row + 128, 0:64], acc * count)


def spec(*shape, dtype=F32):
    return tile.ArraySpec(shape, dtype)


SPECS = [(spec(64, 64), spec(64, 64), None, 3, 0.5), dict(x=spec(64, 64), y=spec(64, 64), bias=spec(64, 64), n=3, factor=0.5),
         (spec(64, 64), spec(64, 64), None, 3, 0.5, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with both kernels exported: `add_row` for two targets in three forms, and `by_map`."""
    folder = tmp_path_factory.mktemp("exported")
    specs = [{"BLOCK": 8, **s} if isinstance(s, dict) else s + (8,) * (6 - len(s)) for s in SPECS]
    add_row.export(folder / "add_row.tile", specs, targets=("sm_80", "sm_90a"))
    by_map.export(folder / "by_map.tile", [(spec(64, 64, dtype=tile.float16), spec(64, 64, dtype=tile.float16), 3)],
                  BLOCK=8)
    return folder


@pytest.fixture
def device(monkeypatch):
    """A fake driver of an sm_90a, by which loaded kernels launch."""
    fake = FakeDriver()
    monkeypatch.setattr(driver, "available", lambda: True)
    monkeypatch.setattr(driver, "target", lambda device=0: "sm_90a")
    monkeypatch.setattr(launcher, "load", lambda recipe, image, device=0, **options: fake.launcher(recipe))
    return fake


# -- the file ------------------------------------------------------------------------------------------------------------

def test_the_file_has_the_code_the_guards_and_the_maps_of_each_version(folder):
    with zipfile.ZipFile(folder / "by_map.tile") as file:
        index = json.loads(file.read("kernel.json"))
        version, = index["versions"]
        assert file.read(version["cubin"])[:4] == b"\x7fELF"
    assert version["recipe"]["guards"] and version["recipe"]["maps"][0]["box"] == [64, 8]
    loaded = tile.load_kernel(folder / "add_row.tile")
    assert loaded.targets == ("sm_90a", "sm_80") and len(loaded.versions) == 6
    assert "x.strides[1] is 1" in loaded.versions[0].guards and loaded.versions[0].registers > 0
    assert "version 5 for sm_80" in loaded.explain()


def test_equal_exports_give_equal_files(folder, tmp_path):
    again = by_map.export(tmp_path / "by_map.tile",
                          [(spec(64, 64, dtype=tile.float16), spec(64, 64, dtype=tile.float16), 3)], BLOCK=8)
    for path in again:
        assert path.read_bytes() == (folder / path.name).read_bytes()


@pytest.mark.parametrize("constant", [None, True, 3, -0.0, float("inf"), "tf32", tile.float16, (1, (2.5, "a")), ()])
def test_a_constant_comes_back_from_json(constant):
    back = from_json(json.loads(json.dumps(to_json(constant))))
    assert back == constant and repr(back) == repr(constant) and type(back) is type(constant)


# -- launches ------------------------------------------------------------------------------------------------------------

def test_a_loaded_kernel_launches_as_the_kernel_does(folder, device):
    loaded = tile.load_kernel(str(folder / "by_map.tile"))
    x, y = FakeArray(4096, (64, 64), typestr="<f2"), FakeArray(65536, (64, 64), typestr="<f2")
    for turn in range(3):  # the second call takes the fast path
        loaded[2, 3](x, y, 5)
        call = device.launches[turn]
        assert (call.grid, call.block) == ((2, 3, 1), (64, 1, 1)) and len(device.encoded) == turn + 1
    assert device.encoded[0][1:4] == (2, 4096, (64, 64))
    assert struct.pack("<i", 5) in call.params and struct.pack("<Q", 65536) in call.params


def test_a_grid_function_sees_the_constants_that_need_not_be_given_at_every_launch(folder, device):
    loaded = tile.load_kernel(folder / "by_map.tile")
    x, y = FakeArray(4096, (64, 64), typestr="<f2"), FakeArray(65536, (64, 64), typestr="<f2")
    for turn in range(3):  # the second call takes the fast path
        loaded[lambda given: given["BLOCK"]](x, y, 5)
        assert device.launches[turn].grid == (8, 1, 1)


def test_constants_and_none_choose_the_version(folder, device):
    loaded = tile.load_kernel(folder / "add_row.tile")
    x = FakeArray(4096, (64, 64))
    for bias, block in ((None, 8), (x, 8), (None, 4)):
        loaded[lambda given: given["BLOCK"]](x, x, bias, 3, 0.5, BLOCK=block)
        assert device.launches[-1].grid == (block, 1, 1)
    chosen = [v for v in loaded.versions if v.launchers]
    assert [v.constants for v in chosen] == [v.constants for v in loaded.versions[:3]]


@pytest.mark.parametrize("change, says", [
    (dict(x=FakeArray(4096, (64, 64), (4, 256))), "version 0 (sm_90a, x: float32[?, ?], y: float32[?, ?], bias=None, n: int, factor: float, "
     "BLOCK=8): it needs x.strides[1] is 1"),
    (dict(x=FakeArray(4100, (64, 64))), "x starts at a multiple of 16 bytes"),
    (dict(x=FakeArray(4096, (64, 64), typestr="<f2")), "x is float32[?, ?] there"),
    (dict(x=FakeArray(4096, (64,))), "x is float32[?, ?] there"),
    (dict(BLOCK=16), "BLOCK is 8 there"), (dict(BLOCK=8.0), "BLOCK is 8 there"), (dict(n=2 ** 40), "n is int32 there"),
    (dict(n=None), "n is an argument at run time"), (dict(bias=1), "bias is the constant None there")])
def test_a_call_that_no_version_accepts_raises_an_error_that_names_the_fact(folder, device, change, says):
    loaded = tile.load_kernel(folder / "add_row.tile")
    x = FakeArray(4096, (64, 64))
    with pytest.raises(LaunchError) as error:
        loaded[8,](**{**dict(x=x, y=x, bias=None, n=3, factor=0.5, BLOCK=8), **change})
    assert says in str(error.value) and "no version of add_row" in str(error.value) and not device.launches


def test_what_a_loaded_kernel_cannot_do_is_an_error(folder, device, monkeypatch):
    loaded, x = tile.load_kernel(folder / "by_map.tile"), FakeArray(4096, (64, 64), typestr="<f2")
    host = np.zeros((64, 64), np.float16)
    for says, call in {
        "without what the simulator runs": lambda: loaded[2,](host, host, 3),
        "option of kernel.export": lambda: loaded[2,](x, x, 3, num_warps=4),
        "no parameter 'm'": lambda: loaded[2,](x, x, 3, m=1),
        "backend 'cuda', not 'sim'": lambda: loaded[2,](x, x, 3, backend="sim"),
        "launched with a grid": lambda: loaded(x, x, 3),
    }.items():
        with pytest.raises(LaunchError, match=says):
            call()
    monkeypatch.setattr(driver, "target", lambda device=0: "sm_86")
    with pytest.raises(LaunchError, match="by_map for sm_90a, and the GPU's target is sm_86"):
        loaded[2,](x, x, 3)
    monkeypatch.setattr(driver, "available", lambda: False)
    with pytest.raises(LaunchError, match="on a GPU only"):
        loaded[2,](host, host, 3, backend="cuda")


def test_an_sm_86_runs_the_code_for_sm_80(folder, device, monkeypatch):
    monkeypatch.setattr(driver, "target", lambda device=0: "sm_86")
    loaded, x = tile.load_kernel(folder / "add_row.tile"), FakeArray(4096, (64, 64))
    loaded[8,](x, x, None, 3, 0.5, 8)
    assert [v.target for v in loaded.versions if v.launchers] == ["sm_80"]


def test_bad_exports_and_files_are_errors(folder, tmp_path):
    good = (spec(64, 64), spec(64, 64), None, 3, 0.5, 8)
    for says, call in {
        "specs is a list of the calls": lambda: add_row.export(tmp_path / "a", good),
        "'sm_91' is not a target": lambda: add_row.export(tmp_path / "a", [good], targets="sm_91"),
        "at least one target": lambda: add_row.export(tmp_path / "a", [good], targets=()),
        "another ending": lambda: add_row.export(tmp_path / "a.c", [good]),
        "needs the argument": lambda: add_row.export(tmp_path / "a", [good[:5]]),
        "cannot be written": lambda: add_row.export(tmp_path / "missing" / "a", [good]),
        "n is float32 and int32 in the specs": lambda: add_row.export(tmp_path / "a", [good, (*good[:3], 0.5, *good[4:])]),
        "differ in their launch options": lambda: add_row.export(
            tmp_path / "a", [dict(zip(add_row.names, good)), dict(zip(add_row.names, good), num_warps=4)]),
        "No such file": lambda: tile.load_kernel(tmp_path / "none"),
        "not the file of an exported kernel": lambda: tile.load_kernel(folder / "by_map.h"),
    }.items():
        with pytest.raises(tile.TileError, match=says):
            call()
    assert not list(tmp_path.iterdir())


ALONE = """
    import sys
    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.startswith(("llvmlite", "tilejit.compile", "tilejit.emit", "tilejit.passes", "tilejit.sim", "tilejit.ops",
                                "tilejit.toolchain.llvm", "tilejit.toolchain.assembler")) and name != "tilejit.compiled":
                raise ImportError(name)
    sys.meta_path.insert(0, Blocked())
    import os
    import tilejit as tile
    from tilejit.runtime import driver, launcher
    from tests.runtime.fakes import FakeArray, FakeDriver
    loaded = tile.load_kernel(os.environ["EXPORTED"])
    x = FakeArray(4096, (64, 64), typestr="<f2")
    try:
        driver.device_count()
    except tile.LaunchError as error:  # as far as it goes without a driver
        try:
            loaded[2,](x, x, 5)
        except tile.LaunchError as error:
            assert "no CUDA driver or no GPU was found" in str(error), error
    fake = FakeDriver()
    driver.available, driver.target = lambda: True, lambda device=0: "sm_90a"
    launcher.load = lambda recipe, image, device=0, **options: fake.launcher(recipe, native=False)
    for _ in range(200):
        loaded[2,](x, x, 5)
    assert len(fake.launches) == 200 and fake.launches[-1].grid == (2, 1, 1)
    print("launched", not [m for m in sys.modules if m.startswith(("llvmlite", "tilejit.ops"))])
"""


def test_a_file_is_launched_without_llvm_assembler_compiler_or_source(folder, monkeypatch):
    monkeypatch.setenv("EXPORTED", str(folder / "by_map.tile"))
    monkeypatch.setenv("PATH", "")
    assert run_child(ALONE).split() == ["launched", "True"]


# -- the C launcher ------------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def build_program(folder, *libraries):
    """The C++ program of `exported/`, linked with `libraries`. Its warnings are errors."""
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    made = [subprocess.run(["gcc", "-std=gnu99", "-pedantic", *flags, "-c", folder / "add_row.c", "-o", folder / "add_row.o"]),
            subprocess.run(["g++", *flags, HERE / "program.cpp", folder / "add_row.o", "-o", folder / "program", *libraries,
                            "-pthread"])]
    assert [done.returncode for done in made] == [0, 0]
    return folder / "program"


def stub_driver(folder) -> list[str]:
    subprocess.run(["gcc", "-shared", "-fPIC", HERE / "stub_cuda.c", "-o", folder / "libcuda_stub.so"], check=True)
    return [f"-L{folder}", "-lcuda_stub", f"-Wl,-rpath,{folder}"]


@needs_compiler
def test_a_c_plus_plus_program_launches_with_the_parameters_that_python_packs(folder, device):
    program = build_program(folder, *stub_driver(folder))
    loaded, x = tile.load_kernel(folder / "add_row.tile"), FakeArray(0, (16, 64))
    version = loaded.versions[0]
    made = FakeDriver().launcher(version.recipe)
    sizes = [struct.calcsize("<" + p.form) if p.form else 128 for p in made.recipe.params]
    done = subprocess.run([program], capture_output=True, text=True, env={"SIZES": ",".join(map(str, sizes))})
    lines = dict(line.partition(":")[::2] for line in reversed(done.stdout.splitlines()))  # the first of equals
    assert done.returncode == 0 and lines["launched"].strip() == "0" and lines["with a bias"] == lines["empty"] == " 0"
    assert "201, add_row: no CUDA context is current" in lines["without a context"]
    head = f"launch 2 1 1, {version.recipe['threads']} 1 1, {version.recipe['shared']}, 0, 0"
    packed = made.parameters((x, x, 3, 0.5))
    passed = [bytes.fromhex(part) for part in lines[head].split()[:len(sizes)]]
    pointers = [p.value.kind == "ptr" for p in made.recipe.params]
    assert [a for a, p in zip(passed, pointers) if not p] == [a for a, p in zip(packed, pointers) if not p]
    assert "-1, version 0 (sm_90a" in lines["columns first"] and "not: x.strides[1] is 1" in done.stdout
    assert "x is no float32 array of 2 dimensions" in done.stdout and "BLOCK is not 8" in done.stdout
    assert lines["grid"].startswith(" -2, add_row: a grid is at most")
    assert done.stdout.count("load 1") == 3  # add_row_load loads the versions for this GPU, launches none again


@needs_compiler
def test_a_c_plus_plus_program_learns_that_there_is_no_code_for_its_gpu(folder):
    program = build_program(folder, *stub_driver(folder))
    for capability, says in (("86", "loaded: 0"), ("100", "exported for sm_90a, sm_80, and this GPU has compute capability 10.0")):
        done = subprocess.run([program], capture_output=True, text=True, env={"CAPABILITY": capability})
        assert says in done.stdout


@needs_compiler
def test_the_c_launcher_encodes_the_maps_that_python_encodes(folder, device):
    main = """#include "by_map.h"
    #include <stdio.h>
    int cuCtxSetCurrent(void *);
    int main(void) {
        const int64_t shape[] = {64, 64};
        tilejit_array x = {(void *)4096, TILEJIT_FLOAT16, 2, shape, 0};
        cuCtxSetCurrent((void *)1);
        int code = by_map_launch(2, 1, 1, 0, &x, &x, 5);
        printf("code %d %s\\n", code, by_map_error());
        return 0;
    }"""
    (folder / "main.c").write_text(main)
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-pedantic", folder / "main.c", folder / "by_map.c", "-o",
                    folder / "main", *stub_driver(folder), "-pthread"], check=True)
    done = subprocess.run([folder / "main"], capture_output=True, text=True)
    tile.load_kernel(folder / "by_map.tile")[2,](*[FakeArray(4096, (64, 64), typestr="<f2")] * 2, 5)
    dtype, rank, _, *fields, modes = device.encoded[0]
    numbers = [dtype, rank, *(n for field in fields for n in field), *modes]
    assert f"map {' '.join(map(str, numbers))}\n" in done.stdout and "code 0" in done.stdout
    refused = subprocess.run([folder / "main"], capture_output=True, text=True, env=dict(os.environ, REFUSE_MAPS="1"))
    assert "code 1 by_map: encoding tensor map 0 failed: CUDA_ERROR_INVALID_VALUE" in refused.stdout


@needs_compiler
def test_the_c_launcher_starts_a_cta_for_each_multiprocessor_for_programs_in_turn(tmp_path, device):
    """And passes the extents of the grid."""
    main = """#include "in_turn.h"
    #include <stdio.h>
    int cuCtxSetCurrent(void *);
    int main(void) {
        const int64_t shape[] = {512, 64};
        tilejit_array x = {(void *)4096, TILEJIT_FLOAT16, 2, shape, 0}, y = {(void *)1048576, TILEJIT_FLOAT32, 2, shape, 0};
        cuCtxSetCurrent((void *)1);
        in_turn_launch(2, 5, 1, 0, &x, &y, 3);
        in_turn_launch(3, 1, 1, 0, &x, &y, 3);
        int code = in_turn_launch(2147483647u, 2, 1, 0, &x, &y, 3);
        printf("code %d %s\\n", code, in_turn_error());
        return 0;
    }"""
    in_turn.export(tmp_path / "in_turn.tile", [(spec(512, 64, dtype=tile.float16), spec(512, 64), 3)], targets=("sm_90a",))
    (tmp_path / "main.c").write_text(main)
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-pedantic", tmp_path / "main.c", tmp_path / "in_turn.c", "-o",
                    tmp_path / "main", *stub_driver(tmp_path), "-pthread"], check=True)
    recipe = FakeDriver().launcher(tile.load_kernel(tmp_path / "in_turn.tile").versions[0].recipe).recipe
    sizes = [struct.calcsize("<" + p.form) if p.form else 128 for p in recipe.params]
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, env={"SIZES": ",".join(map(str, sizes))})
    launches = [line for line in done.stdout.splitlines() if line.startswith("launch")]
    assert [line.split(",")[0] for line in launches] == ["launch 7 1 1", "launch 3 1 1"]
    passed = [[int.from_bytes(bytes.fromhex(part), "little") for part in line.partition(":")[2].split()] for line in launches]
    of_launch = [n for n, p in enumerate(recipe.params) if isinstance(p, GridParameter)]
    seen = {recipe.params[n].axis: [values[n] for values in passed] for n in of_launch}
    assert seen == {0: [2, 3], 1: [5, 1], 2: [1, 1]}
    assert "code -2 in_turn: this version has at most" in done.stdout


# -- on a GPU ------------------------------------------------------------------------------------------------------------

@needs_gpu("sm_90a", "sm_80")
@needs_compiler
def test_a_c_plus_plus_program_computes_on_the_gpu(folder):
    program = build_program(folder, "-l:libcuda.so.1")
    done = subprocess.run([program], capture_output=True, text=True)
    host = np.arange(16 * 64) % 97 * 0.5 + 3
    assert f"result: {host[0]:g} {host[1]:g} {host[-1]:g}" in done.stdout


@needs_gpu("sm_90a")
@in_child(timeout=90)
def test_a_loaded_kernel_computes_on_the_gpu():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        by_map.export(f"{folder}/k", [(spec(64, 64, dtype=tile.float16), spec(64, 64, dtype=tile.float16), 3)], BLOCK=8)
        x, y = np.random.default_rng(0).random((64, 64)).astype(np.float16), np.zeros((64, 64), np.float16)
        tile.load_kernel(f"{folder}/k")[1,](x, y, 5, backend="cuda")
        assert (y[5:13] == x[:8]).all() and not y[13:].any()
