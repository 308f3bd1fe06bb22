"""``python -m tilejit``: each command as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tilejit import ptx

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


def test_cache_lists_a_kernel_s_entries_and_clear_removes_them(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text("import tilejit as tile\n\n@tile.jit\ndef k(x):\n    tile.store(x[0:8], 1)\n\nk.compile(tile.ArraySpec((8,), 'float32'))\n")
    cache = tmp_path / "cache"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TILEJIT_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, str(kernel)], env=env, check=True, timeout=300)
    head, *entries = run("cache", cache=cache).stdout.splitlines()
    assert entries and head.startswith(f"{cache}: {len(entries)} entries, ")
    assert {line.split()[0] for line in entries} >= {"manifest"} and all(int(line.split()[1]) > 0 for line in entries)
    assert run("cache", "--clear", cache=cache).stdout == f"removed {len(entries)} entries from {cache}\n"
    assert run("cache", cache=cache).stdout == f"{cache}: 0 entries, 0.00 MB\n"


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
