"""``print`` and ``breakpoint`` in kernels: the simulator calls Python's own with NumPy arrays."""

import io
import pdb
import sys
from bdb import BdbQuit

import numpy as np
import pytest
import tilejit as tile


@tile.jit(num_warps=1)
def shows(x, n, N: tile.constexpr):
    p = tile.program_id(0)
    s = tile.alloc((8, 8), x.dtype, layout=tile.swizzled(x.dtype, (8, 8), 32))
    tile.store(s, tile.load(x[p, 0:8, 0:8]))
    tile.sync()
    if p == 1:
        print("tile", tile.load(x[p, 0, 0:4]), n, N, (n, x.shape))
        print(s[2], x[p, 7, 6:10], x[p, 0, n], sep="; ")
    if tile.thread_id() < 3:
        print(tile.thread_id())
    with tile.thread(5):
        print("here")


@tile.jit
def helper(v, k):
    product = v * k
    breakpoint()  # in the helper
    return product


@tile.jit(num_warps=1)
def stops(x, y, n):
    p = tile.program_id(0)
    total = tile.zeros((4,), tile.float32)
    for i in range(n):
        v = tile.load(x[p, i, 0:4])
        total += v
    pair = (p, v if n is None else total, 2.5)
    bar = tile.mbarrier(count=1)
    lane = tile.thread_id()
    s = tile.alloc((4,), x.dtype)
    tile.store(s, total)
    tile.sync()
    if p == 1:
        breakpoint()  # in the kernel
    tile.store(y[p, 0:4], helper(total, p))


X = np.arange(128, dtype=np.float32).reshape(2, 8, 8)


def line_of(kernel, mark: str) -> int:
    """The only line of a kernel that ends with ``# mark``."""
    line, = (n for n, text in enumerate(kernel.source.lines, kernel.source.first_line) if text.rstrip().endswith(f"# {mark}"))
    return line


def lines_of(capfd) -> list[str]:
    return capfd.readouterr().out.splitlines()


def debug(monkeypatch, *sessions: list[str]) -> io.StringIO:
    """Let breakpoint() stop in a pdb that reads the commands of one session after the other; returns what it prints."""
    output, left = io.StringIO(), iter(sessions)

    def hook():
        debugger = pdb.Pdb(stdin=io.StringIO("\n".join(next(left)) + "\n"), stdout=output, nosigint=True, readrc=False)
        debugger.use_rawinput = False
        debugger.set_trace(sys._getframe(1))
    monkeypatch.setattr(sys, "breakpointhook", hook)
    return output


def names_at(monkeypatch) -> list[tuple[int, dict]]:
    """(line, names) of each stop, in a list that grows as kernels run."""
    found = []

    def hook():
        frame = sys._getframe(1)
        found.append((frame.f_lineno, dict(frame.f_locals)))
    monkeypatch.setattr(sys, "breakpointhook", hook)
    return found


def test_print_shows_tiles_scalars_and_memory_as_numpy_does(capfd):
    shows[2,](X, 3, N=5)
    x = X[1]
    assert lines_of(capfd) == [
        f"cta 1: tile {x[0, :4]} 3 5 (3, (2, 8, 8))", f"cta 1: {x[2]}; [126. 127.   0.   0.]; {x[0, 3]}", "cta 0: [0 1 2]", "cta 1: [0 1 2]", "cta 0 thread 5: here", "cta 1 thread 5: here"]


def test_breakpoint_stops_in_pdb_at_the_kernel_s_line_with_its_names(monkeypatch):
    y = np.zeros((2, 4), np.float32)
    output = debug(monkeypatch, ["p total.tolist()", "p n, p, __cta__", "p s.tolist(), pair[2]", "total[0] = 1", "c"],
                   ["p product.tolist()", "c"], ["p product.tolist()", "c"])
    stops[2,](X, y, 2)
    sums = X[:, :2, :4].sum(1)
    assert (y == sums * [[0], [1]]).all()
    text = output.getvalue()
    assert f"test_host_calls.py({line_of(stops, 'in the kernel')})stops()" in text
    assert f"test_host_calls.py({line_of(helper, 'in the helper')})helper()" in text
    assert f"{sums[1].tolist()}\n" in text and "(2, 1, 1)" in text.replace("np.int32(2)", "2").replace("np.int32(1)", "1")
    assert f"({sums[1].tolist()}, 2.5)" in text and "read-only" in text and text.count("[0.0, 0.0, 0.0, 0.0]") == 1


def test_quitting_the_debugger_ends_the_launch(monkeypatch):
    debug(monkeypatch, ["q"])
    with pytest.raises(BdbQuit):
        stops[2,](X, np.zeros((2, 4), np.float32), 2)


def test_breakpoint_has_the_names_that_the_scope_can_use(monkeypatch):
    @tile.jit
    def kernel(x, n):
        v = tile.load(x[0, 0, 0:4])
        with tile.warp(1):
            w = tile.load(x[0, 1, 0:4])
            breakpoint()
        if tile.thread_id() < 2:
            lane = tile.thread_id() + n
            breakpoint()
        tile.store(x[0, 0, 0:4], v)

    found = names_at(monkeypatch)
    kernel[1,](X.copy(), 7)
    (_, inner), (_, divergent) = found
    assert sorted(inner) == ["n", "w", "x"] and sorted(divergent) == ["lane", "n", "x"]
    assert inner["w"].tolist() == X[0, 1, :4].tolist() and divergent["lane"].tolist() == [7, 8]


def test_looking_changes_neither_findings_nor_products_in_flight(monkeypatch):
    @tile.jit
    def kernel(x, y):
        a = tile.alloc((64, 64), x.dtype, layout=tile.auto)
        tile.store(a, tile.load(x[0:64, 0:64]))
        tile.fence_proxy_async()
        tile.sync()
        acc = tile.mma_async(tile.zeros((64, 64), tile.float32), a, a)
        tile.mma_commit()
        breakpoint()
        tile.mma_wait(0)
        tile.store(y[0:64, 0:64], acc)

    @tile.jit
    def racy(x):
        s = tile.alloc((64,), x.dtype)
        tile.store(s, tile.load(x[0:64]))
        breakpoint()
        print(s)
        tile.store(x[0:64], tile.load(s[63 - tile.arange(64)]))  # reads

    names_at(monkeypatch)
    x, y = np.eye(64, dtype=np.float16), np.zeros((64, 64), np.float32)
    kernel[1,](x, y)
    assert (y == x).all()
    report = racy.simulate(1, np.zeros(64, np.float32))
    assert [(f.kind, f.line) for f in report.findings] == [("race", line_of(racy, "reads"))]


@pytest.mark.parametrize("body,words", [
    ("print(n)", "print what the kernel computes with tile.device_print(...)"),
    ("breakpoint()", "breakpoint stops on the simulator")])
def test_code_for_a_gpu_refuses_them_at_their_line(body, words):
    kernel = tile.jit(source=f"import tilejit as tile\ndef kernel(x, n):\n    tile.store(x[0], n)\n    {body}\n")
    with pytest.raises(tile.CompilationError, match="^" + words.replace("(", r"\(").replace(")", r"\)")) as caught:
        kernel.compile(tile.ArraySpec((4,), "int32"), 3)
    assert caught.value.loc.line == 4 and f"    {body}\n    {'^' * len(body)}" in str(caught.value)


@pytest.mark.parametrize("body,words", [
    ("print(tile.mbarrier(count=1))", "print shows scalars, register tiles, and buffers in global and shared memory"),
    ("print(n, end='')", "print.*end"), ("breakpoint(n)", "breakpoint.*argument")])
def test_what_they_cannot_take_is_an_error(body, words):
    kernel = tile.jit(source=f"import tilejit as tile\ndef kernel(x, n):\n    tile.store(x[0], n)\n    {body}\n")
    with pytest.raises(tile.CompilationError, match=words):
        kernel.simulate(1, np.zeros(4, np.int32), 3)
