"""Modules that load at their first use, since loading them takes tens of milliseconds and few kernels need them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class Lazy:
    """The module `name`, imported when one of its attributes is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"Lazy({self._name!r})"


if TYPE_CHECKING:
    import hashlib as hashlib
else:
    hashlib = Lazy("hashlib")  # which loads OpenSSL, in two milliseconds
