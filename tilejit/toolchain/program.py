"""A program that takes its input from a pipe and leaves its output in memory: no files, any number of them at once.

It is started before there is any input, so that its own start (10 ms for ptxas) passes while the input is made.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress


class Program:
    """A program that has been started. `command` is a function of the path under which it is to write its output, `environment` what its
    environment has besides this process's own.

    Raises OSError when it cannot be started.
    """

    def __init__(self, command, environment: Mapping[str, str] = {}):
        self.open: list[int] = []
        self.process = None
        _started.add(self)
        try:
            self.log, self.output = self._keep(os.memfd_create("log")), self._keep(os.memfd_create("output"))
            reading, self.input = map(self._keep, os.pipe())
            there = 3 if self.output != 3 else 4  # glibc before 2.29 closes a descriptor that is to keep its number
            arguments = command(f"/proc/self/fd/{there}")
            given = ((reading, 0), (self.log, 1), (self.log, 2), (self.output, there))
            self.process = os.posix_spawn(arguments[0], arguments, {**environment, **os.environ},
                                          file_actions=[(os.POSIX_SPAWN_DUP2, *pair) for pair in given])
            self._close(reading)
        except BaseException:
            self.end()
            raise

    def _keep(self, descriptor: int) -> int:
        """The descriptor, or one beside the standard ones, which a process may have closed."""
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
        """Its exit code, its output and what it printed, with `text` as its input. It runs while this process does something else `meanwhile`."""
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self.input, left):]
        except BrokenPipeError:
            pass  # it has ended already: its exit code says why
        self._close(self.input)
        meanwhile()
        code = self._ended()
        output, log = (os.pread(d, os.fstat(d).st_size, 0) for d in (self.output, self.log))
        return code, output, log

    def _ended(self) -> int:
        """Wait for its end; its exit code, 0 where the process is one that leaves those of its children to nobody."""
        code = 0
        with suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        self.process = None
        return code

    def end(self) -> None:
        """Let nothing of it stay, whether it was finished or not."""
        if self.process is not None:
            with suppress(ProcessLookupError):  # it ended by itself, and nobody had to wait for it
                os.kill(self.process, 9)
            self._ended()
        self.forget()

    def forget(self) -> None:
        """Close what this process has of it, and leave the program as it is."""
        for descriptor in list(self.open):
            self._close(descriptor)
        _started.discard(self)


_started: set[Program] = set()


def _forget_all() -> None:
    """In a process forked while programs run: an input open here as well would not end in the process that waits for them."""
    for program in list(_started):
        program.process = None
        program.forget()


os.register_at_fork(after_in_child=_forget_all)
