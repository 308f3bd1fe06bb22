"""Times candidates in a child process, so that one that hangs or faults costs a process and not the session.

The child has a CUDA context of its own and copies of the call's arrays. It knows no kernel: a candidate is machine
code with the data of its launch. One child serves all candidates until one hangs, faults or crashes; the next candidate
gets a new child.

The arrays go through a file in memory, from which each child uploads them: a fault cannot reach the caller's arrays,
and what the kernel does with the data (trips, indices) is what it will do in the call."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from time import monotonic
from typing import Any

from ..errors import LaunchError, TileError
from ..lazy import Lazy
from ..runtime import driver
from ..runtime.arguments import ArraySpec, Bound
from ..runtime.arrays import ArrayView
from ..timing import milliseconds, time_bursts

loading = Lazy("tilejit.runtime.launcher")

PROGRAM = "from tilejit.tuning.measuring import main; main"  # what a child runs, with three numbers
ALIGNED = 512             # a block begins at the same address modulo this as the array that it is a copy of
SECONDS_TO_START = 120.0  # for a child to make its context and to upload the arrays
SECONDS_TO_END = 30.0     # for a killed child: the driver first takes the GPU from its kernel
SPARE = 256 << 20         # bytes of device memory for a child's context and code
_DIES_WITH_PARENT = 1     # PR_SET_PDEATHSIG


class NotStarted(LaunchError):
    """No child can time candidates here: there is no memory for it, or the GPU admits no second process."""


class TookTooLong(LaunchError):
    """A candidate had not ended after `limit` seconds."""

    def __init__(self, message: str, limit: float = 0.0):
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True)
class Array:
    """An array argument: where it begins in a block of `Contents`, and its shape, strides and element type."""

    block: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Candidate:
    """A compiled kernel and its grid."""

    recipe: dict[str, Any]
    image: bytes | str
    grid: tuple[int, ...]


class Contents:
    """The contents of the memory that a call's arrays lie in, as blocks of bytes in a file in memory. `blocks` are
    (place in the file, bytes, address modulo `ALIGNED`). Can be pickled."""

    def __init__(self, blocks: tuple[tuple[int, int, int], ...]):
        self.blocks = blocks
        self.nbytes = sum(nbytes for _, nbytes, _ in blocks)
        self.file = os.memfd_create("tilejit arguments")
        self.close = weakref.finalize(self, os.close, self.file)  # a child has a descriptor of its own
        os.ftruncate(self.file, max(self.nbytes, 1))
        self.map = mmap.mmap(self.file, max(self.nbytes, 1))

    @property
    def address(self) -> int:
        """Where the file is in this process's memory."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def __reduce__(self) -> tuple[Any, ...]:
        return make_contents, (self.blocks, self.map[:])


def make_contents(blocks: tuple[tuple[int, int, int], ...], data: bytes) -> Contents:
    made = Contents(blocks)
    made.map[:] = data
    return made


@dataclass(frozen=True)
class Call:
    """The arguments of a call, for another process: numbers, and an `Array` for each array."""

    arguments: tuple[Any, ...]
    contents: Contents

    @staticmethod
    def copy(bound: Bound, device: int) -> Call:
        """A call with the present contents of its arrays on a device."""
        spans = merge_spans([span_of(v) for v in bound.runtime if isinstance(v, ArraySpec)])
        blocks, place = [], 0
        for low, high in spans:
            blocks.append((place, high - low, low % ALIGNED))
            place += high - low
        contents = Contents(tuple(blocks))
        try:
            driver.synchronize(device)
            for (at, nbytes, _), (low, _) in zip(blocks, spans):
                driver.copy_to_host(contents.address + at, low, nbytes, device)
        except BaseException:
            contents.close()
            raise
        return Call(tuple(_as_data(v, spans) for v in bound.runtime), contents)


def merge_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of addresses (first, end), in order, with those that overlap as one. Empty ones are left out.

    Spans that only touch stay apart: they may be two allocations, and the driver copies from one at a time."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(s for s in spans if s[0] < s[1]):
        if joined and low < joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def span_of(spec: ArraySpec) -> tuple[int, int]:
    """The addresses (first, end) of the bytes of an array; an empty span if it has no elements."""
    if 0 in spec.shape:
        return spec.pointer, spec.pointer
    reaches = [stride * (extent - 1) for extent, stride in zip(spec.shape, spec.strides)]
    low, high = sum(min(r, 0) for r in reaches), sum(max(r, 0) for r in reaches)
    size = spec.dtype.nbytes
    return spec.pointer + low * size, spec.pointer + (high + 1) * size


def _as_data(value: Any, spans: list[tuple[int, int]]) -> Any:
    """An argument without its data: a number, or an `Array` in the block that contains it (-1 if it has no bytes)."""
    if not isinstance(value, ArraySpec):
        return value
    assert value.view is not None  # a launch has data
    low, high = span_of(value)
    block = next((i for i, (first, end) in enumerate(spans) if first <= low < high <= end), -1)
    offset = value.pointer - spans[block][0] if block >= 0 else 0
    return Array(block, offset, tuple(value.view.shape), tuple(value.view.strides), value.view.dtype)


# -- in the child ------------------------------------------------------------------------------------------------------

class _Copy:
    """An array in the child."""

    def __init__(self, view: ArrayView):
        self.shape, self.view = view.shape, view

    def __tilejit_view__(self) -> ArrayView:
        return self.view


class Server:
    """Times candidates for another process: loads each once, and runs bursts of it, captured in a CUDA graph where
    that is possible, so that the host's part of a launch does not count."""

    def __init__(self, call: Call, device: int):
        self.device = device
        driver.context(device)
        addresses = []
        for place, nbytes, aligned in call.contents.blocks:
            start = driver.allocate(nbytes + ALIGNED, device)
            start += (aligned - start) % ALIGNED
            driver.copy_to_device(start, call.contents.address + place, nbytes, device)
            addresses.append(start)
        self.arguments = tuple(self._argument(a, addresses) if isinstance(a, Array) else a for a in call.arguments)
        self.stream = driver.create_stream(device)
        self.launches: dict[int, Callable[[], None]] = {}
        self.graphs: dict[tuple[int, int], Callable[[], None]] = {}

    def _argument(self, a: Array, addresses: list[int]) -> _Copy:
        pointer = addresses[a.block] + a.offset if a.block >= 0 else driver.unused_address(self.device)
        return _Copy(ArrayView(pointer, a.shape, a.strides, a.dtype, self.device))

    def load(self, number: int, candidate: Candidate) -> None:
        """Load a candidate; it is launched by its number from now on."""
        launcher = loading.load(candidate.recipe, candidate.image, self.device)

        def launch() -> None:
            if not launcher(candidate.grid, self.stream, self.arguments):
                raise LaunchError("the call does not fit what was compiled for it: "
                                  f"{'; '.join(launcher.mismatch(self.arguments))}")
        self.launches[number] = launch

    def burst(self, number: int, count: int) -> float:
        """The milliseconds of a launch, as the mean of `count` in a row."""
        run = self.launches[number]
        if count > 1:
            if (number, count) not in self.graphs:
                self.graphs[number, count] = self._capture(run, count)
            run = self.graphs[number, count]
        return milliseconds(run, self.stream, self.device) / count

    def _capture(self, launch: Callable[[], None], count: int) -> Callable[[], None]:
        def launches() -> None:
            for _ in range(count):
                launch()
        try:
            return partial(driver.WorkGraph(launches, self.stream, self.device).launch, self.stream)
        except LaunchError:  # what cannot be captured is launched
            return launches

    def is_lost(self) -> bool:
        """Whether the context cannot be used any more, since a kernel faulted."""
        try:
            driver.synchronize(self.device)
            return False
        except LaunchError:
            return True


def serve(connection: Connection, server: Server) -> None:
    """Answer requests, (number, candidate or None if it is known, count), with milliseconds, or with the text of an
    error and whether this process is lost, until the other side closes."""
    while True:
        try:
            number, candidate, count = connection.recv()
        except EOFError:
            return
        try:
            if candidate is not None:
                server.load(number, candidate)
            connection.send(server.burst(number, count))
        except LaunchError as error:
            lost = server.is_lost()
            connection.send((str(error), lost))
            if lost:
                return


def main(channel: int, file: int, device: int) -> None:
    """The child's program. It ends with its parent."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    connection = Connection(channel)
    arguments, blocks = connection.recv()
    contents = Contents.__new__(Contents)
    contents.blocks, contents.file = blocks, file
    contents.map = mmap.mmap(file, 0)
    try:
        server = Server(Call(arguments, contents), device)
    except LaunchError as error:
        connection.send(str(error))
        return
    connection.send(None)
    serve(connection, server)
    sys.stdout.flush()
    os._exit(0)  # nothing is to be torn down, and a lost context cannot be


# -- in the parent -----------------------------------------------------------------------------------------------------

class Child:
    """A process that times the candidates of a call on a device, from `start` to `end`. `limit` are the seconds that a
    burst, with the loading of the candidate before it, may take."""

    def __init__(self, call: Call, device: int, limit: float):
        self.call, self.device, self.limit = call, device, limit
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: Connection | None = None
        self.errors = -1  # a file in memory, with what the process says on stderr
        self.loaded: set[int] = set()

    def burst(self, number: int, candidate: Candidate, count: int) -> float:
        """The milliseconds of a launch of a candidate, as the mean of `count` in a row. LaunchError if it hangs,
        faults, or cannot be launched; NotStarted if a new process is needed and cannot be started."""
        if self.process is None:
            self.start()
        assert self.connection is not None  # set by `start`
        try:
            self.connection.send((number, None if number in self.loaded else candidate, count))
            if not self.connection.poll(self.limit):
                self.end()
                raise TookTooLong(f"it had not ended after {self.limit:g} s", self.limit)
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise LaunchError(f"the process that ran it {self.end()}") from None
        if isinstance(answer, tuple):
            text, lost = answer
            if lost:
                self.end()
            raise LaunchError(text)
        self.loaded.add(number)
        return float(answer)

    def start(self) -> None:
        """Start a process. NotStarted if there cannot be one, or it cannot use the GPU."""
        self.loaded.clear()
        self.errors = os.memfd_create("errors")
        file = self.call.contents.file
        own, other = Pipe()
        with other:
            program = f"import sys; sys.path[:] = {sys.path!r}\n{PROGRAM}({other.fileno()}, {file}, {self.device})"
            try:
                self.process = subprocess.Popen([sys.executable, "-c", program], pass_fds=(other.fileno(), file),
                                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                                stderr=self.errors, start_new_session=True)
            except OSError as error:
                own.close()
                os.close(self.errors)
                raise NotStarted(f"no process could be started to time candidates: {error}") from None
        self.connection = own
        try:
            own.send((self.call.arguments, self.call.contents.blocks))
            problem = own.recv() if own.poll(SECONDS_TO_START) else f"it was not ready after {SECONDS_TO_START:g} s"
        except (EOFError, OSError):
            problem = self.end()
        if problem is not None:
            self.end()
            raise NotStarted(f"the process that times candidates could not start: {problem}")

    def end(self) -> str:
        """End the process, and say how it ended if it had already."""
        if self.process is None:
            return ""
        if self.connection is not None:
            self.connection.close()
        try:
            code: int | None = self.process.wait(0.5)  # one that has crashed, or sees that the connection is closed
        except subprocess.TimeoutExpired:
            self.process.kill()
            try:
                code = self.process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                code = None
        text = self._last_line()
        self.process = self.connection = None
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}{text}"
        return f"ended with code {code}{text}"

    def _last_line(self) -> str:
        lines = os.pread(self.errors, os.fstat(self.errors).st_size, 0).decode(errors="replace").strip().splitlines()
        os.close(self.errors)
        return f": {lines[-1]}" if lines else ""


def time_share(candidates: Mapping[int, Candidate], call: Call, device: int, limit: float, seconds: float | None,
               tell: Callable[[int, float | None], None] = lambda number, first: None
               ) -> tuple[dict[int, float], dict[int, TileError]]:
    """The milliseconds per launch of candidates on a device, and the errors of those that fail. Those that are not
    begun within `seconds` have neither. `tell` is called after the first timing of each, with its milliseconds or None.
    NotStarted if no child can be started."""
    end = None if seconds is None else monotonic() + seconds
    timed = False

    def go_on(number: int, first: float | None) -> bool:
        nonlocal timed
        tell(number, first)
        timed = timed or first is not None
        return end is None or not timed or monotonic() < end

    child = Child(call, device, limit)
    child.start()
    try:
        return time_bursts({n: partial(child.burst, n, c) for n, c in candidates.items()}, go_on)
    finally:
        child.end()


def room_for(call_bytes: int, device: int) -> bool:
    """Whether the device has memory for a copy of that many bytes, and a second context."""
    return driver.free_memory(device) >= call_bytes + SPARE
