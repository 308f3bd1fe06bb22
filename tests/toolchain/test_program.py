"""Programs that take their input from a pipe and leave their output in memory."""

import os
import signal
import subprocess
import sys

import pytest

from tilejit.toolchain.program import Program


def shell(text):
    return lambda output: ["/bin/sh", "-c", text, "sh", output]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_program_reads_its_input_and_leaves_its_output_and_what_it_printed():
    before = descriptors()
    program = Program(shell('cat > "$1"; echo seen; echo badly >&2; exit 3'))
    text = b"x" * 1_000_000  # more than a pipe holds
    assert program.finish(text) == (3, text, b"seen\nbadly\n")
    program.end()
    assert descriptors() == before


def test_a_program_runs_while_something_else_is_done(tmp_path):
    program = Program(shell(f'cat > "$1"; until [ -e {tmp_path}/done ]; do sleep 0.01; done; echo seen'))
    assert program.finish(b"text", meanwhile=(tmp_path / "done").touch) == (0, b"text", b"seen\n")
    program.end()


def test_a_program_has_this_process_s_environment_and_what_is_given_beside_it(monkeypatch):
    monkeypatch.setenv("ONE", "mine")
    program = Program(shell("echo $ONE $OTHER $HOME"), {"ONE": "given", "OTHER": "given"})
    assert program.finish(b"")[2] == f"mine given {os.environ['HOME']}\n".encode()
    program.end()


def test_a_program_that_ends_without_reading_is_no_error_of_its_own():
    program = Program(shell("exit 7"))
    assert program.finish(b"x" * 1_000_000)[0] == 7
    program.end()


def test_a_program_that_is_not_needed_any_more_is_ended():
    before = descriptors()
    program = Program(shell("cat; sleep 100"))
    process = program.process
    program.end()
    assert descriptors() == before
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_program_that_waits_for_its_input_ends_though_a_process_was_forked_meanwhile():
    run_here("""
program = Program(lambda output: ["/bin/sh", "-c", 'cat > "$1"', "sh", output])
forked = os.fork()
if not forked:
    time.sleep(100)
signal.alarm(20)
assert program.finish(b"text") == (0, b"text", b"")
program.end()
os.kill(forked, 9)
""")


def test_a_program_that_nobody_has_to_wait_for_is_ended_without_an_error():
    run_here("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
program = Program(lambda output: ["/bin/sh", "-c", "exit 3", "sh", output])
while os.path.exists(f"/proc/{program.process}"):
    time.sleep(0.01)
program.end()
assert not program.open and program.process is None
""")


def test_a_program_is_ended_where_the_wait_for_it_was_interrupted(monkeypatch):
    def interrupted(process, options):
        monkeypatch.undo()
        raise KeyboardInterrupt
    program = Program(shell("sleep 100"))
    process = program.process
    monkeypatch.setattr(os, "waitpid", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.finish(b"text")
    program.end()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_program_that_is_not_there_is_an_error_and_leaves_nothing_open():
    before = descriptors()
    with pytest.raises(OSError):
        Program(lambda output: ["/no/such/program"])
    assert descriptors() == before


@pytest.mark.parametrize("opened", range(4))
def test_no_descriptor_keeps_its_number_in_the_program(opened, monkeypatch):
    """glibc before 2.29 would close it there."""
    actions, spawn = [], os.posix_spawn
    monkeypatch.setattr(os, "posix_spawn", lambda *args, file_actions: actions.extend(file_actions) or spawn(*args, file_actions=file_actions))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(opened)]
    program = Program(shell('cat > "$1"'))
    assert program.finish(b"text")[:2] == (0, b"text") and len(actions) == 4 and all(held != number for _, held, number in actions)
    program.end()
    for other in others:
        os.close(other)


def run_here(text):
    """Run Python text in a process of its own."""
    text = f"import os, signal, time\nfrom tilejit.toolchain.program import Program\n{text}\nos._exit(42)"
    done = subprocess.run([sys.executable, "-c", text], timeout=60)
    assert done.returncode == 42, signal.strsignal(-done.returncode) if done.returncode < 0 else done.returncode


@pytest.mark.parametrize("before", ["os.closerange(0, 3)", "os.close(1)", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"])
def test_processes_without_standard_files_or_that_ignore_their_children_run_programs(before):
    run_here(f"""
{before}
program = Program(lambda output: ["/bin/sh", "-c", 'cat > "$1"; echo said', "sh", output])
assert program.finish(b"text") == (0, b"text", b"said\\n")
program.end()
""")
