"""The command that runs all checks on GPUs, without one: streams of small programs in place of the checks."""

import os
import time

import pytest

from tests import gpu_checks
from tests.gpu import forks, run_child
from tests.gpu_checks import ROOT, Stream, main, streams

SAYS = "-c print(__import__('os').environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the streams that it is given on two GPUs. Returns the exit status and the lines printed."""
    monkeypatch.setattr("tests.gpu.gpu_targets", lambda: ("sm_90a", "sm_90a"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def ran(*made, seconds=30):
        monkeypatch.setattr(gpu_checks, "streams", lambda seed: list(made))
        status = main(["--log", str(tmp_path), "--seconds", str(seconds)])
        return status, capsys.readouterr().out.splitlines()
    return ran


def test_streams_run_side_by_side_each_on_its_gpu(run, tmp_path):
    status, lines = run(Stream("jitter", 50, SAYS), Stream("memcheck", 50, SAYS))
    assert status == 0 and lines == ["jitter: passed; 0 tests passed, 0 failed", "memcheck: passed; 0 tests passed, 0 failed"]
    assert [(tmp_path / f"{name}.txt").read_text() for name in ("jitter", "memcheck")] == ["0\n", "1\n"]


def test_a_stream_that_fails_or_takes_too_long_fails_the_run(run, tmp_path):
    (tmp_path / "jitter-failed.txt").write_text("== a (call, 1 s)\n== b (call, 1 s)\n")
    (tmp_path / "jitter-passed.txt").write_text("c\n")
    status, lines = run(Stream("jitter", 50, "-c raise(SystemExit(1))"))
    assert status == 1 and lines == ["jitter: ended with 1; 1 tests passed, 2 failed"]
    (tmp_path / "jitter-passed.txt").write_text("c\nb\n")  # failed once, and passed since
    assert run(Stream("jitter", 50, "-c pass")) == (0, ["jitter: passed; 2 tests passed, 1 failed"])
    status, lines = run(Stream("random", 50, "-c __import__('time').sleep(60)"), seconds=1)
    assert status == 1 and lines == ["random: cut off; no summary"]


def test_the_gpus_are_those_that_are_visible_and_folders_may_have_blanks(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert run(Stream("jitter", 50, SAYS), Stream("memcheck", 50, SAYS))[0] == 0
    assert [(tmp_path / f"{name}.txt").read_text() for name in ("jitter", "memcheck")] == ["5\n", "7\n"]
    says = "-c print(__import__('sys').argv[1]) {log}"
    monkeypatch.setattr(gpu_checks, "streams", lambda seed: [Stream("jitter", 50, says)])
    assert main(["--log", str(tmp_path / "a folder")]) == 0
    assert (tmp_path / "a folder" / "jitter.txt").read_text() == f"{tmp_path / 'a folder'}\n"


def says_and_fails(word):
    print(word, os.getpid())
    raise ValueError(f"no {word}")


def says(word):
    print(word, os.getpid())


def hangs():
    print("begins")
    time.sleep(60)


def test_a_child_may_be_a_fork_with_the_output_and_the_time_limit_of_a_new_process(monkeypatch):
    """Jitter seeds have their turns in it, too."""
    monkeypatch.setenv("TILEJIT_FORK", "1")
    word, pid = run_child(says, word="here").split()
    assert word == "here" and int(pid) != os.getpid()
    with pytest.raises(pytest.fail.Exception, match="(?s)the child ended with 1.*there .*ValueError: no there"):
        run_child(says_and_fails, word="there")
    with pytest.raises(pytest.fail.Exception, match="(?s)took longer than 0.5 s and was killed.*begins"):
        run_child(hangs, timeout=0.5)
    monkeypatch.setenv("TILEJIT_SANITIZER", '["env"]')
    assert not forks(says)
    monkeypatch.delenv("TILEJIT_SANITIZER")
    assert forks(says) and not forks("print(1)")


def test_an_unknown_stream_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "plian"])
    assert "invalid choice: 'plian'" in capsys.readouterr().err


def test_the_commands_are_of_programs_that_exist():
    for stream in streams(seed=5):
        program, *rest = stream.command.format(log="log", processes=3, seconds=10, every=1).split()
        assert program == "-m" and rest[0] == "pytest" or (ROOT / program).is_file()
        assert "3" in rest and "{" not in stream.command.format(log="", processes=1, seconds=1, every=1)
    assert sum(stream.share for stream in streams(0)) == 100


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr("tests.gpu.gpu_targets", lambda: ())
    with pytest.raises(SystemExit, match="there is no GPU here"):
        main([])
