"""Tracebacks that show a user his own lines: the package's frames are taken out of errors that leave it."""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from .config import config
from .errors import TileError

P = ParamSpec("P")
R = TypeVar("R")

_BETWEEN = ("contextlib", "functools")  # what stands between two frames of the package


def hide_frames(error: BaseException) -> None:
    """Let an error leave the package: the caller handles it, and raises it again by a bare ``raise``.

    The package's frames are taken out of its traceback and those of its causes, and an error that led to it inside the
    package is not shown. With ``TILEJIT_LOG`` set, nothing is hidden. Long lines of the message are folded from now
    on."""
    if isinstance(error, TileError):
        error.folded = True
    if config().log:
        return
    _forget(error)
    if sys.version_info < (3, 11):  # a bare `raise` takes the traceback from what is being handled
        api = ctypes.pythonapi
        api.PyErr_SetExcInfo.argtypes = ctypes.py_object, ctypes.py_object, ctypes.c_void_p
        trace = error.__traceback__
        for held in (type(error), error, *(() if trace is None else (trace,))):
            api.Py_IncRef(ctypes.py_object(held))  # they are handed over
        api.PyErr_SetExcInfo(type(error), error, None if trace is None else id(trace))


def _forget(error: BaseException) -> None:
    """`hide_frames` of an error that is not being handled."""
    while error.__context__ is not None and error.__cause__ is None and _is_own(error.__context__.__traceback__):
        error.__context__ = error.__context__.__context__
    error.__traceback__ = _without_own(error.__traceback__)
    if error.__cause__ is not None:
        _forget(error.__cause__)


def _is_own(trace: TracebackType | None) -> bool:
    """Whether a frame is the package's. Its module tells, since generated methods have no file."""
    if trace is None:
        return False
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    return module == "tilejit" or module.startswith("tilejit.") or module in _BETWEEN


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the package's frames: those of the user's functions that the package called stay."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not _is_own(trace):
            kept.append(trace)
        trace = trace.tb_next
    for one, after in zip(kept, kept[1:]):
        one.tb_next = after
    if not kept:
        return None
    kept[-1].tb_next = None
    return kept[0]


def hide_own_frames(function: Callable[P, R], errors: tuple[type[Exception], ...] = (TileError,)) -> Callable[P, R]:
    """Decorate a function that users call: those of its `errors` that it raises have no frame of the package, nor has
    the TypeError of a call that does not fit its signature."""
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except errors as error:
            hide_frames(error)
            raise
        except TypeError as error:
            if not _fits(function, args, kwargs):
                hide_frames(error)
            raise
    return call


def _fits(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Whether the arguments of a call fit the function's signature."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
