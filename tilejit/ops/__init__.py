"""The operations of the language, one declaration each with its rules beside it."""

from . import access  # noqa: F401 - the lowering of load and store
