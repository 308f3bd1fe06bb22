"""Modules that load at their first use, since loading them takes tens of milliseconds and few kernels need them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .concurrency import not_while_forking

load = not_while_forking(import_module)  # a child would find the module's lock taken


class Lazy:
    """The module `name`, imported when one of its attributes is first asked for."""

    def __init__(self, name: str) -> None:
        self._name, self._loaded = name, False

    def __getattr__(self, attribute: str) -> Any:
        if not self._loaded or sys.modules.get(self._name) is None:
            load(self._name)
            self._loaded = True
        return getattr(sys.modules[self._name], attribute)

    def __repr__(self) -> str:
        return f"Lazy({self._name!r})"


if TYPE_CHECKING:
    import hashlib as hashlib
else:
    hashlib = Lazy("hashlib")  # which loads OpenSSL, in two milliseconds
