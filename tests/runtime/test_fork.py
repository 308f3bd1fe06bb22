"""A process may fork while its other threads compile."""

import os

import pytest

from tests.gpu import run_child

PROGRAM = """
    import faulthandler, os, threading, time
    import numpy as np
    import tilejit as tile

    def kernel(lines):
        return tile.jit(source="def k(o, n):\\n    v = tile.load(o[0:64])\\n"
                               + "    v = tile.exp(v) * 2 + n\\n" * lines + "    tile.store(o[0:64], v)\\n")

    def work(first):
        lines = first
        while True:
            if simulated:
                kernel(lines % 50 + 1)[1,](np.zeros(64, np.float32), -1.0)
            else:
                kernel(lines).compile(np.zeros(64, np.float32), 2.0, target="sm_90a")
            lines += 1

    def child():
        pid = os.fork()
        if pid:
            return pid
        faulthandler.dump_traceback_later(20, exit=True)  # it hangs
        out, k = np.zeros(64, np.float32), kernel(1)
        k[1,](out, 1.0)
        k.compile(out, 1.0, target="sm_90a")
        os._exit(0 if (out == 3).all() else 3)

    for first in (1, 20, 40):
        threading.Thread(target=work, args=(first,), daemon=True).start()
    for n in range(8):
        time.sleep(0.05 * n)
        _, status = os.waitpid(child(), 0)
        assert status == 0, (n, status)
    os._exit(0)
"""


@pytest.mark.parametrize("simulated", [False, True])
def test_a_fork_during_the_first_compilations_of_other_threads_gives_a_child_that_compiles(simulated, monkeypatch):
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    run_child(f"    simulated = {simulated}\n{PROGRAM}", timeout=100)


def test_a_fork_inside_a_compilation_of_the_same_thread_does_not_wait_for_itself():
    from tilejit.concurrency import not_while_forking

    @not_while_forking
    def fork():
        return os.fork() or os._exit(0)
    assert os.waitpid(fork(), 0)[1] == 0
