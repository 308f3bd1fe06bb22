"""Temporary memory of a product, besides its operands and its result."""

import numpy as np

from tilejit.kernels import views
from tilejit.runtime.arrays import describe


def test_temporary_memory_captured_by_a_cuda_graph_is_never_freed_and_any_other_is(monkeypatch):
    view = describe(np.zeros(4, np.float32))
    monkeypatch.setattr(views, "HELD", [])
    made = views.temporary(np.zeros(1), (3,), "float32")
    assert made.shape == (3,) and not views.hold_if_captured("host", view) and views.HELD == []
    for capture, held in ((0, []), (5, ["device"])):
        monkeypatch.setattr(views.streams, "current_stream", lambda view: 1)
        monkeypatch.setattr(views.driver, "capturing", lambda stream, device: capture)
        assert views.hold_if_captured("device", type("View", (), {"device": 0})) is (capture > 0) and views.HELD == held
