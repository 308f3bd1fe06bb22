"""The assembler: how it is located, what it reports, and what it must not silently drop."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tilejit.errors import ToolchainError
from tilejit.toolchain import assembler, pathfinder

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
NOTHING = HEAD + ".visible .entry k() { ret; }\n"
REGISTERS = HEAD + ".visible .entry k() { setmaxnreg.inc.sync.aligned.u32 232; ret; }\n"  # without .maxntid


def spilling(count=120):
    """A kernel with `count` values alive at once."""
    names = range(count)
    loads = "".join(f"ld.volatile.global.f32 %f{i}, [%rd1+{4 * i}];\n" for i in names)
    stores = "".join(f"st.volatile.global.f32 [%rd1+{4 * i}], %f{i};\n" for i in names)
    return (HEAD + f".visible .entry k(.param .u64 p) {{\n.reg .f32 %f<{count}>;\n.reg .b64 %rd<2>;\n"
            f"ld.param.u64 %rd1, [p];\n{loads}{stores}ret;\n}}\n")


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(assembler, "_WHEELS", ())
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    for search in ("program", "library"):
        monkeypatch.setattr(pathfinder, search, lambda name: None)
    assembler._find.cache_clear()
    yield monkeypatch
    assembler._find.cache_clear()


def test_the_wheel_is_found_and_its_version_comes_from_its_metadata():
    found = assembler.find()
    assert (found.kind, found.name) == ("ptxas", "nvidia-cuda-nvcc")
    result = assembler.assemble(NOTHING, "sm_90a")
    assert result.version == found.version and result.assembler == found.name


def test_the_fingerprint_does_not_run_the_assembler(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assembler._find.cache_clear()
    assert assembler.fingerprint().startswith("nvidia-cuda-nvcc ")


def test_the_setting_precedes_the_wheel_and_its_fingerprint_changes_with_the_file(tmp_path, monkeypatch):
    path = script(tmp_path / "myptxas", f'exec "{assembler.find().path}" "$@"\n')
    monkeypatch.setenv("TILEJIT_PTXAS", path)
    before = assembler.fingerprint()
    result = assembler.assemble(NOTHING, "sm_90a")
    assert result.assembler == "setting" and result.version.count(".") == 2  # read from the cubin
    os.utime(path, ns=(1, 1))
    assert assembler.fingerprint() != before


def test_a_setting_that_is_not_an_executable_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_PTXAS", str(tmp_path / "absent"))
    with pytest.raises(ToolchainError, match="TILEJIT_PTXAS"):
        assembler.find()


def test_cuda_home_comes_before_path(tmp_path, no_wheel):
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        script(tmp_path / folder / "ptxas", "exit 0\n")
    no_wheel.setenv("PATH", str(tmp_path / "path"))
    assert assembler.find().name == "PATH"
    no_wheel.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert assembler.find().name == "CUDA_HOME"


def test_cuda_pathfinder_is_asked_after_path(tmp_path, no_wheel):
    """It also knows where conda puts the toolkit."""
    no_wheel.setenv("PATH", str(tmp_path))
    path = script(tmp_path / "found", "exit 0\n")
    no_wheel.setattr(pathfinder, "program", {"ptxas": path}.get)
    assert (assembler.find().name, assembler.find().path) == ("cuda.pathfinder", path)


def test_without_cuda_pathfinder_it_finds_nothing(monkeypatch):
    pytest.importorskip("cuda.pathfinder")
    pathfinder._ask.cache_clear()
    assert os.path.isfile(pathfinder.program("ptxas")) and pathfinder.libdevice().name == "libdevice.10.bc"
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    pathfinder._ask.cache_clear()
    assert pathfinder.program("ptxas") is None and pathfinder.libdevice() is None
    pathfinder._ask.cache_clear()


def test_the_driver_s_compiler_comes_next_and_keeps_the_ptx(tmp_path, no_wheel):
    no_wheel.setenv("PATH", str(tmp_path))
    no_wheel.setattr(pathfinder, "library", {"cuda": Path("libcuda.so.1")}.get)
    result = assembler.assemble(NOTHING, "sm_90a")
    assert result.assembler == "driver" and result.cubin is None and result.ptx == NOTHING


def test_without_any_assembler_the_error_says_what_to_install(tmp_path, no_wheel):
    from tilejit.toolchain import nvjitlink

    no_wheel.setenv("PATH", str(tmp_path))
    no_wheel.setattr(nvjitlink, "_WHEELS", ())
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-nvcc"):
        assembler.assemble(NOTHING, "sm_90a")


def test_spills_and_stack_are_counted_in_bytes():
    fits = assembler.assemble(spilling(), "sm_90a")
    assert fits.registers >= 120 and fits.spill_bytes == 0
    tight = assembler.assemble(spilling(), "sm_90a", options=("-maxrregcount=32",))
    assert tight.registers <= 32 and tight.spill_bytes > 0 and tight.stack_bytes > 0


def test_a_dropped_setmaxnreg_is_an_error_unless_allowed():
    with pytest.raises(ToolchainError, match="C7508"):
        assembler.assemble(REGISTERS, "sm_90a")
    assert any("C7508" in note for note in assembler.assemble(REGISTERS, "sm_90a", allow=("C7508",)).notes)


@pytest.mark.parametrize("code,fatal", [("C7518", True), ("C7519", False)])
def test_a_wait_inserted_by_the_assembler_is_an_error_and_an_inserted_fence_is_ignored(tmp_path, monkeypatch, code, fatal):
    real = assembler.find().path
    monkeypatch.setenv("TILEJIT_PTXAS", script(tmp_path / "telling", f'echo "ptxas info    : ({code}) injected in around line 4" >&2\nexec {real} "$@"\n'))
    if fatal:
        with pytest.raises(ToolchainError, match=code):
            assembler.assemble(NOTHING, "sm_90a")
    else:
        assert not assembler.assemble(NOTHING, "sm_90a").notes


def test_an_error_of_the_assembler_is_shown_with_its_line():
    with pytest.raises(ToolchainError) as caught:
        assembler.assemble(NOTHING.replace("ret;", "frob.u32 1;"), "sm_90a")
    assert "line 4" in str(caught.value) and "frob.u32 1;" in str(caught.value)


def test_a_text_for_another_target_is_refused():
    with pytest.raises(ToolchainError, match="SM version|sm_100a"):
        assembler.assemble(NOTHING.replace("sm_90a", "sm_100a"), "sm_90a")


def test_an_assembler_that_writes_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_PTXAS", script(tmp_path / "empty", "exit 0\n"))
    with pytest.raises(ToolchainError, match="no cubin"):
        assembler.assemble(NOTHING, "sm_90a")


def test_an_assembler_that_crashes_is_an_error_with_its_last_output(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_PTXAS", script(tmp_path / "crash", "echo out of memory >&2\nexit 139\n"))
    with pytest.raises(ToolchainError, match="out of memory"):
        assembler.assemble(NOTHING, "sm_90a")


def test_an_assembler_that_a_signal_ends_has_crashed_and_the_error_says_what_to_try(tmp_path, monkeypatch):
    """As ptxas 13.0 does with some texts, by a segmentation fault at all levels but -O0."""
    monkeypatch.setenv("TILEJIT_PTXAS", script(tmp_path / "crash", "kill -SEGV $$\n"))
    with pytest.raises(ToolchainError, match=r"crashed \(signal 11\) on the PTX for sm_90a; .*pip install -U nvidia-cuda-nvcc"):
        assembler.assemble(NOTHING, "sm_90a")


def test_many_threads_assemble_at_once():
    texts = [spilling(8 + i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: assembler.assemble(text, "sm_90a").cubin, texts))
    assert together == [assembler.assemble(text, "sm_90a").cubin for text in texts]


def test_many_processes_assemble_at_once_and_leave_nothing_behind(tmp_path):
    code = ("from tilejit.toolchain import assembler\nimport sys\n"
            f"r = assembler.assemble({NOTHING!r}, 'sm_90a')\nprint(len(r.cubin))\n")
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) for _ in range(6)]
    sizes = {process.communicate()[0] for process in running}
    assert len(sizes) == 1 and int(sizes.pop()) > 500
    assert list(tmp_path.iterdir()) == []
