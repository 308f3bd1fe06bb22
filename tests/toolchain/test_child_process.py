"""Programs that read their input from a pipe and write their output to memory."""

import os
import signal
import subprocess
import sys

import pytest
from tilejit.toolchain.child_process import Program


def shell(text):
    return lambda output: ["/bin/sh", "-c", text, "sh", output]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_program_reads_its_input_and_returns_its_output_and_messages():
    before = descriptors()
    program = Program(shell('cat > "$1"; echo seen; echo badly >&2; exit 3'))
    text = b"x" * 1_000_000  # more than the capacity of a pipe
    assert program.finish(text) == (3, text, b"seen\nbadly\n")
    program.end()
    assert descriptors() == before


def test_a_program_runs_while_the_caller_does_something_else(tmp_path):
    program = Program(shell(f'cat > "$1"; until [ -e {tmp_path}/done ]; do sleep 0.01; done; echo seen'))
    assert program.finish(b"text", meanwhile=(tmp_path / "done").touch) == (0, b"text", b"seen\n")
    program.end()


def test_a_program_inherits_the_environment_with_additional_variables(monkeypatch):
    monkeypatch.setenv("ONE", "mine")
    program = Program(shell("echo $ONE $OTHER $HOME"), {"ONE": "given", "OTHER": "given"})
    assert program.finish(b"")[2] == f"mine given {os.environ['HOME']}\n".encode()
    program.end()


def test_a_program_that_exits_without_reading_its_input_is_no_error_by_itself():
    program = Program(shell("exit 7"))
    assert program.finish(b"x" * 1_000_000)[0] == 7
    program.end()


def test_a_program_that_is_no_longer_needed_is_terminated():
    before = descriptors()
    program = Program(shell("cat; sleep 100"))
    process = program.process
    program.end()
    assert descriptors() == before
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_program_sees_the_end_of_its_input_even_if_the_process_forked_meanwhile():
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


def test_a_program_that_the_system_has_reaped_is_ended_without_an_error():
    run_here("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
program = Program(lambda output: ["/bin/sh", "-c", "exit 3", "sh", output])
while os.path.exists(f"/proc/{program.process}"):
    time.sleep(0.01)
program.end()
assert not program.open and program.process is None
""")


def test_a_program_is_terminated_if_the_wait_for_it_is_interrupted(monkeypatch):
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


def test_a_missing_program_is_an_error_and_leaks_no_descriptors():
    before = descriptors()
    with pytest.raises(OSError):
        Program(lambda output: ["/no/such/program"])
    assert descriptors() == before


@pytest.mark.parametrize("opened", range(4))
def test_no_descriptor_keeps_its_number_in_the_child(opened, monkeypatch):
    """glibc before 2.29 would close it in the child."""
    actions, spawn = [], os.posix_spawn
    monkeypatch.setattr(os, "posix_spawn", lambda *args, file_actions: actions.extend(file_actions) or spawn(*args, file_actions=file_actions))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(opened)]
    program = Program(shell('cat > "$1"'))
    assert program.finish(b"text")[:2] == (0, b"text") and len(actions) == 4 and all(held != number for _, held, number in actions)
    program.end()
    for other in others:
        os.close(other)


def run_here(text):
    """Run Python text in a separate process."""
    text = f"import os, signal, time\nfrom tilejit.toolchain.child_process import Program\n{text}\nos._exit(42)"
    done = subprocess.run([sys.executable, "-c", text], timeout=60)
    assert done.returncode == 42, signal.strsignal(-done.returncode) if done.returncode < 0 else done.returncode


@pytest.mark.parametrize("before", ["os.closerange(0, 3)", "os.close(1)", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"])
def test_processes_without_standard_files_or_with_ignored_sigchld_can_run_programs(before):
    run_here(f"""
{before}
program = Program(lambda output: ["/bin/sh", "-c", 'cat > "$1"; echo said', "sh", output])
assert program.finish(b"text") == (0, b"text", b"said\\n")
program.end()
""")
