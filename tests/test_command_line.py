"""The command line: each command as a process of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import tilejit as tile
from tilejit import ptx
from tilejit.cli import main
from tilejit.config import TARGETS
from tilejit.toolchain import packages

from tests.gpu import in_child, needs_gpu

ROOT = Path(__file__).parents[1]


def run(*words, cache, stdout=subprocess.PIPE, **settings):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TILEJIT_CACHE_DIR": str(cache), **settings}
    return subprocess.run([sys.executable, "-m", "tilejit", *words], env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300)


def test_ptx_json_lists_each_form_of_the_table_with_a_line_of_ptx_and_its_targets(tmp_path):
    done = run("ptx", "--json", cache=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    listed = json.loads(done.stdout)
    assert len(listed) == len(ptx.forms()) and len({entry["name"] for entry in listed}) == len(listed)
    for entry, form in zip(listed, ptx.forms()):
        assert set(entry) == {"name", "ptx", "targets"}
        assert entry["name"] == form.name and entry["targets"] == list(form.targets) and entry["targets"]
        assert "\n" not in entry["ptx"] and form.mnemonic.split(" ")[0] in entry["ptx"] and entry["ptx"].rstrip().endswith((";", "}"))


def test_ptx_without_json_prints_the_coverage_page(tmp_path):
    assert run("ptx", cache=tmp_path).stdout == ptx.coverage_markdown() + "\n"


KERNELS = """import tilejit as tile

@tile.jit
def fill(x, VALUE: tile.constexpr):
    tile.store(x[0:8], VALUE)

@tile.jit
def double(x):
    tile.store(x[0:8], 2 * tile.load(x[0:8]))
"""
COMPILES = """
for value in range(2):
    fill.compile(tile.ArraySpec((8,), 'float32'), VALUE=value)
double.compile(tile.ArraySpec((8,), 'float16'), target='sm_80')
"""


@pytest.fixture
def kernel_file(tmp_path):
    """A file with two kernels."""
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return file


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory):
    """A cache with two versions of `fill` and one of `double`."""
    at = tmp_path_factory.mktemp("filled")
    program, folder = at / "program.py", at / "cache"
    program.write_text(KERNELS + COMPILES)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TILEJIT_CACHE_DIR": str(folder)}
    subprocess.run([sys.executable, str(program)], env=env, check=True, timeout=300)
    return folder


@pytest.fixture
def cache(filled_cache, tmp_path):
    """A copy of `filled_cache`, for one test."""
    return shutil.copytree(filled_cache, tmp_path / "cache", copy_function=shutil.copy)


def listed(cache, *words):
    """The (kernel, target) pairs in the cache, by --json."""
    return sorted((k["kernel"], k["target"]) for k in json.loads(run("cache", "--json", *words, cache=cache).stdout)["kernels"])


def test_cache_lists_each_compiled_kernel_with_its_target_size_age_and_arguments(cache):
    head, columns, *rows = run("cache", cache=cache).stdout.splitlines()
    assert re.fullmatch(rf"{cache}: 3 kernels, 9 entries, \d+\.\d kB", head)
    assert columns.split() == ["kernel", "target", "size", "used", "arguments"]
    shown = sorted(re.sub(r"  +", "|", re.sub(r"[\d.]+ kB +\d+[sm]", "SIZE AGE", row)) for row in rows)
    assert shown == ["double|sm_80|SIZE AGE|x: float16[?]", "fill|sm_90a|SIZE AGE|x: float32[?], VALUE=0", "fill|sm_90a|SIZE AGE|x: float32[?], VALUE=1"]
    data = json.loads(run("cache", "--json", cache=cache).stdout)
    assert data["entries"] == 9 and data["bytes"] == sum(f.stat().st_size for f in cache.rglob("??/*") if f.is_file() and f.parent.parent.parent == cache)
    assert all(set(k) == {"kernel", "target", "arguments", "nbytes", "age", "key"} and 0 < k["nbytes"] < 100_000 and 0 <= k["age"] < 300
               for k in data["kernels"])


def test_cache_clear_removes_the_entries_of_one_kernel_or_all(cache):
    assert run("cache", "--clear", "--kernel", "fill", cache=cache).stdout == f"removed 6 entries from {cache}\n"
    assert listed(cache) == [("double", "sm_80")]
    assert run("cache", "--clear", cache=cache).stdout == f"removed 3 entries from {cache}\n"
    assert run("cache", cache=cache).stdout == f"{cache}: 0 kernels, 0 entries, 0 B\n"


def test_cache_clear_removes_the_entries_that_were_not_used_for_an_age(cache):
    double = next(k["key"] for k in json.loads(run("cache", "--json", cache=cache).stdout)["kernels"] if k["kernel"] == "double")
    aged = [file for file in cache.rglob("*") if file.is_file() and (file.name == double or b'"name":"double"' in file.read_bytes())]
    for file in aged:
        os.utime(file, (time.time() - 40 * 86400,) * 2)
    assert len(aged) == 3 and listed(cache, "--older-than", "30d") == [("double", "sm_80")]
    run("cache", "--clear", "--older-than", "30d", cache=cache)
    assert listed(cache) == [("fill", "sm_90a")] * 2
    assert listed(cache, "--older-than", "1h") == []


def test_listing_the_cache_is_no_use_of_its_entries(cache):
    old = time.time() - 3 * 86400
    for file in filter(Path.is_file, cache.rglob("*")):
        os.utime(file, (old, old))
    for _ in range(2):
        assert {int(k["age"] // 86400) for k in json.loads(run("cache", "--json", cache=cache).stdout)["kernels"]} == {3}


@pytest.mark.parametrize("words, message", [
    (("--older-than", "3x"), "an age is a number with a unit of s, m, h or d, as in 30d or 12h, not '3x'"),
    (("--clear", "--kernel", "flil"), "the cache {cache} has no kernel 'flil'")])
def test_cache_says_what_is_wrong_with_its_options(words, message, cache):
    done = run("cache", *words, cache=cache)
    assert (done.returncode, done.stderr) == (1, f"tilejit: CacheError: {message.format(cache=cache)}\n")
    assert len(listed(cache)) == 3


def test_the_command_cache_loads_neither_llvm_nor_the_compiler_nor_numpy(cache):
    code = ("import sys; from tilejit.cli import main; main(['cache']); "
            "print([m for m in sys.modules if m.startswith(('llvmlite', 'numpy', 'tilejit.ops', 'tilejit.passes', 'tilejit.toolchain.llvm')) or m in ('tilejit.compile', 'tilejit.frontend.walker')])")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TILEJIT_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def checks(tmp_path, **settings):
    """The status of doctor, and its checks by name: (state, text)."""
    done = run("doctor", "--json", cache=tmp_path / "cache", **settings)
    assert "Traceback" not in done.stderr
    data = json.loads(done.stdout)
    assert data["ok"] == (done.returncode == 0)
    return done.returncode, {c["name"]: (c["state"], c["text"]) for c in data["checks"]}


def test_doctor_compiles_for_every_target_and_simulates_without_a_gpu(tmp_path):
    status, found = checks(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert status == 0 and all(found[f"compile for {target}"][0] == "ok" for target in TARGETS)
    assert found["simulate"] == ("ok", "vector_add, with the right result")
    assert found["assembler"][1].startswith("ptxas ") and found["libdevice"][1].endswith("libdevice.10.bc") and found["numpy"][0] == "ok"
    assert found["cache"] == ("ok", f"{tmp_path}/cache, 0 entries, 0 B")
    assert found["launch"] == ("none", "no GPU here; kernels on NumPy arrays run on the simulator") and found["driver"][0] != "ok"


def test_doctor_prints_the_same_in_at_most_100_columns(tmp_path):
    done = run("doctor", cache=tmp_path, CUDA_VISIBLE_DEVICES="")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "kernels can be compiled and simulated"
    assert [line for line in lines if line and not line.startswith(" ")][:-1] == ["Environment", "Tools", "GPU", "What works"]
    assert all(len(line) <= 100 or " " not in line.strip() for line in lines)


def test_doctor_says_which_tool_is_missing_and_what_does_not_work_then(tmp_path):
    status, found = checks(tmp_path, CUDA_VISIBLE_DEVICES="", TILEJIT_PTXAS=str(tmp_path / "none"))
    text = f"TILEJIT_PTXAS={tmp_path / 'none'} is not a program that can be run"
    assert status == 1 and found["assembler"] == ("missing", text)
    assert {found[f"compile for {target}"] for target in TARGETS} == {("broken", text)}
    assert found["simulate"][0] == "ok" and f"TILEJIT_PTXAS={tmp_path / 'none'}" in found["settings"][1]


def test_doctor_says_that_the_cache_cannot_be_written(tmp_path):
    (tmp_path / "cache").write_text("a file")
    status, found = checks(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert status == 1 and found["cache"][0] == "broken" and "set TILEJIT_CACHE_DIR to another folder" in found["cache"][1]


@pytest.mark.parametrize("package, name, cure", [("llvmlite", "llvmlite", "pip install llvmlite"), ("nvidia_cuda_nvdisasm", "SASS", "pip install nvidia-cuda-nvdisasm")])
def test_doctor_says_what_to_install_for_a_package_that_is_not_there(package, name, cure, monkeypatch, capsys):
    doctor, disassembler = import_module("tilejit.cli.doctor"), import_module("tilejit.toolchain.disassembler")
    absent = lambda wanted: None if wanted.replace("-", "_") == package else packages.package(wanted)
    monkeypatch.setattr(doctor, "package", absent)
    monkeypatch.setattr(disassembler, "package", lambda wanted: None)
    monkeypatch.setattr(disassembler.pathfinder, "program", lambda wanted: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    disassembler._find.cache_clear()
    monkeypatch.setattr(doctor, "_what_works", lambda: ())
    status = main(["doctor", "--json"])
    disassembler._find.cache_clear()
    found = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert found[name]["state"] == "missing" and cure in found[name]["text"] and status == (name == "llvmlite")


@needs_gpu()
@in_child(timeout=120)
def test_doctor_launches_a_kernel_on_each_machine_with_a_gpu():
    import contextlib
    import io
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["doctor", "--json"]) == 0
    found = {c["name"]: c for c in json.loads(printed.getvalue())["checks"]}
    assert found["launch"]["state"] == found["driver"]["state"] == found["device 0"]["state"] == "ok"
    assert re.fullmatch(r"for CUDA \d+\.\d", found["driver"]["text"])


def test_version_is_that_of_the_package(tmp_path):
    assert run("--version", cache=tmp_path).stdout == f"tilejit {tile.__version__}\n"


def test_demo_runs_four_kernels_and_checks_their_results(tmp_path):
    done = run("demo", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("vector_add", "softmax", "staged_copy", "staged_tma"):
        assert name in done.stdout
    assert ": ldgsts, " in done.stdout and ": tma, " in done.stdout and done.stdout.endswith("all checked\n")


@pytest.mark.parametrize("words, message", [((), "the following arguments are required: command"), (("frobnicate",), "invalid choice: 'frobnicate'")])
def test_a_wrong_command_prints_one_line_and_exits_with_status_2(words, message, tmp_path):
    done = run(*words, cache=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_an_error_of_the_package_prints_one_line_and_exits_with_status_1(tmp_path):
    done = run("demo", cache=tmp_path, TILEJIT_PTXAS=str(tmp_path / "no_ptxas"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("tilejit: ToolchainError: ") and "no_ptxas" in done.stderr


def test_a_reader_that_closes_the_pipe_early_ends_the_command_without_a_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = run("ptx", "--json", cache=tmp_path, stdout=write)
    os.close(write)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
