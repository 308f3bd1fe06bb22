"""Keeps ``os.fork`` and compiling in other threads apart, and caches properties without a lock.

A forked child has only the thread that forked, and a lock that another thread held then stays locked in it. Compiling
takes such locks: of modules that are imported at their first use, of Python's parser, of LLVM. So a fork waits until
no other thread compiles, and no thread begins to until the fork is over. CPython does the same for its global import
lock only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")

_changing = threading.Condition(threading.Lock())
_compiling: dict[int, int] = {}  # thread -> how many functions under `not_while_forking` it is in
_waiting: list[int] = []         # threads that are about to fork; meanwhile no other thread begins to compile


class cached_property(Generic[T]):
    """``functools.cached_property`` without the lock that it takes before Python 3.12, which all instances of a class
    share: another thread may hold it at a fork."""

    def __init__(self, function: Callable[[Any], T]):
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)
        return value


def not_while_forking(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: a fork in another thread waits until `function` is over."""
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        thread = threading.get_ident()
        with _changing:
            while _waiting and thread not in _compiling:
                _changing.wait()
            _compiling[thread] = _compiling.get(thread, 0) + 1
        try:
            return function(*args, **kwargs)
        finally:
            with _changing:
                _compiling[thread] -= 1
                if not _compiling[thread]:
                    del _compiling[thread]
                    _changing.notify_all()
    return call


def _wait_for_others() -> None:
    """Wait until no other thread compiles. The lock stays taken until the fork is over."""
    thread = threading.get_ident()
    _changing.acquire()
    _waiting.append(thread)
    while _compiling.keys() - {thread}:
        _changing.wait()


def _resume() -> None:
    _waiting.remove(threading.get_ident())
    _changing.notify_all()
    _changing.release()


def _resume_in_child() -> None:
    """The other threads that wait to fork or to compile do not exist here;
    the lock that this one holds is the child's own."""
    global _changing
    _waiting.clear()
    _changing = threading.Condition(threading.Lock())


os.register_at_fork(before=_wait_for_others, after_in_parent=_resume, after_in_child=_resume_in_child)

__all__ = ["cached_property", "not_while_forking"]
