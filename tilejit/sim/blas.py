"""NumPy's BLAS library, limited to one thread while the simulator runs."""

from __future__ import annotations

from functools import cache

from ..lazy import Lazy

threadpoolctl = Lazy("threadpoolctl")


@cache
def _controller():
    """The control of the BLAS library. It is looked for once: searching the loaded libraries takes milliseconds."""
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def one_blas_thread():
    """A context in which NumPy's products run in one thread. They are small: handing one to several threads
    takes longer than computing it.

    The limit holds for the process. If threads simulate at the same time, it is the first one's (threadpoolctl lets one
    thread control a library).
    """
    return _controller().limit(limits=1)


__all__ = ["one_blas_thread"]
