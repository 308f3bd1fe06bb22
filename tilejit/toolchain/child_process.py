"""Runs a program that reads from a pipe and writes to memory: without files, and any number at the same time.

It can be started before its input is ready, so that its start-up (10 ms for ptxas) overlaps the
preparation of the input."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress


class Program:
    """A program that has been started. `command` maps the path to which the program is to write its output to its
    arguments; `environment` is added to this process's own, which takes precedence.

    Raises OSError if it cannot be started."""

    def __init__(self, command, environment: Mapping[str, str] = {}):
        self.open: list[int] = []
        self.process = None
        _started.add(self)
        try:
            self.log, self.output = self._keep(os.memfd_create("log")), self._keep(os.memfd_create("output"))
            reading, self.input = map(self._keep, os.pipe())
            # glibc before 2.29 closes a descriptor that is duplicated to its own number
            there = 3 if self.output != 3 else 4
            arguments = command(f"/proc/self/fd/{there}")
            given = ((reading, 0), (self.log, 1), (self.log, 2), (self.output, there))
            self.process = os.posix_spawn(arguments[0], arguments, {**environment, **os.environ},
                                          file_actions=[(os.POSIX_SPAWN_DUP2, *pair) for pair in given])
            self._close(reading)
        except BaseException:
            self.end()
            raise

    def _keep(self, descriptor: int) -> int:
        """The descriptor, duplicated if it has a number of the standard ones, which this process may have closed."""
        if descriptor <= 2:
            beside = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
            os.close(descriptor)
            descriptor = beside
        self.open.append(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        self.open.remove(descriptor)
        os.close(descriptor)

    def finish(self, text: bytes, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, bytes, bytes]:
        """Give the program `text` as its input and wait for its end: (exit code, output, what it printed).
        `meanwhile` is called while it runs."""
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self.input, left):]
        except BrokenPipeError:
            pass  # it has ended already; the exit code says why
        self._close(self.input)
        meanwhile()
        code = self._await_end()
        output, log = (os.pread(d, os.fstat(d).st_size, 0) for d in (self.output, self.log))
        return code, output, log

    def _await_end(self) -> int:
        """Wait for its end and return its exit code; 0 if that is unavailable,
        since this process ignores the exits of its children."""
        code = 0
        with suppress(ChildProcessError):
            assert self.process is not None  # it has been started, and not ended yet
            code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        self.process = None
        return code

    def end(self) -> None:
        """Kill the program if it still runs, and release everything."""
        if self.process is not None:
            with suppress(ProcessLookupError):  # it has ended, and the system has reaped it
                os.kill(self.process, 9)
            self._await_end()
        self.forget()

    def forget(self) -> None:
        """Close this process's descriptors, without touching the program."""
        for descriptor in list(self.open):
            self._close(descriptor)
        _started.discard(self)


_started: set[Program] = set()


def _forget_all() -> None:
    """Runs in a forked child: if the child kept a program's input pipe open, the program would not see its end, and the
    parent would wait for ever."""
    for program in list(_started):
        program.process = None
        program.forget()


os.register_at_fork(after_in_child=_forget_all)
