"""Temporary memory of a product, besides its operands and its result."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
from tilejit.kernels import views
from tilejit.runtime import driver
from tilejit.runtime.arrays import describe


class Graphs:
    """A driver that captures the streams of `captures`, {stream: number of the capture}, and keeps what graphs own, {graph: [(function, its
    argument)]}."""

    def __init__(self, monkeypatch):
        self.captures, self.owned, self.objects, self.status = {}, {}, [], 1
        monkeypatch.setattr(views, "HELD", {})
        monkeypatch.setattr(views.streams, "current_stream", lambda view: view.stream)
        monkeypatch.setattr(driver, "in_context", lambda device: nullcontext())
        monkeypatch.setattr(driver, "call", lambda name, *args, doing: getattr(self, name)(*args))

    def cuStreamGetCaptureInfo(self, stream):
        number = self.captures.get(stream)
        found = (0, 0, 0) if number is None else (self.status, number, 0x1000 + number)
        return [*found, [], [], 0]

    def cuUserObjectCreate(self, argument, function, references, flags):
        assert references == flags == 1
        self.objects.append((function, argument))
        return len(self.objects)

    def cuGraphRetainUserObject(self, graph, thing, count, flags):
        assert count == flags == 1
        self.owned.setdefault(graph - 0x1000, []).append(self.objects[thing - 1])

    def end(self, capture: int) -> None:
        """The graph, and what was instantiated from it, is destroyed."""
        for function, argument in self.owned.pop(capture):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(argument)


def held(thing, stream: int) -> bool:
    return views.hold_if_captured(thing, SimpleNamespace(device=0, stream=stream))


def test_temporary_memory_that_no_cuda_graph_captures_is_not_held(monkeypatch):
    graphs = Graphs(monkeypatch)
    made = views.temporary(np.zeros(1), (3,), "float32")
    assert made.shape == (3,) and not views.hold_if_captured("host", describe(np.zeros(4, np.float32))) and not held("device", 1)
    assert views.HELD == {} and not graphs.objects


def test_what_a_cuda_graph_captures_lives_as_long_as_the_graph(monkeypatch):
    """Of one graph all together; a later call, captured or not, frees what ended graphs used."""
    graphs = Graphs(monkeypatch)
    graphs.captures = {1: 4, 2: 7}
    assert held("table", 1) and held("sums", 1) and held("other", 2)
    shown = lambda: sorted(things for _, things in views.HELD.values())
    assert shown() == [["other"], ["table", "sums"]] and {n: len(o) for n, o in graphs.owned.items()} == {4: 1, 7: 1}
    graphs.captures = {}
    assert not held("eager", 1) and shown() == [["other"], ["table", "sums"]]
    graphs.end(4)
    assert not held("eager", 1) and shown() == [["other"]]
    graphs.captures = {1: 9}
    graphs.end(7)
    assert held("third", 1) and shown() == [["third"]]


def test_an_invalidated_capture_makes_no_graph_that_could_hold_anything(monkeypatch):
    """Its stream refuses the next launch, in the driver's own words."""
    graphs = Graphs(monkeypatch)
    graphs.captures, graphs.status = {1: 4}, 2
    assert not held("table", 1) and views.HELD == {} and not graphs.objects
