"""Names of forms in Python, as chains of attributes: `tile.ptx.cp_async.bulk._1d`."""

from __future__ import annotations

import keyword
import re
from typing import Any, NoReturn

from ..errors import CompilationError
from ..names import InstructionName
from .form import Form
from .lookup import form, forms_that_start_with, is_prefix, key


class Name(InstructionName):
    """The first words of a form's name, or all of them; a kernel calls a whole name."""

    __slots__ = ("_words",)

    def __init__(self, words: str):
        self._words = words

    def __getattr__(self, word: str) -> Name:
        longer = f"{self._words}.{word}"
        if word.startswith("__") or not is_prefix(longer):
            raise AttributeError(f"no PTX instruction form starts with {longer!r}")
        return Name(longer)

    @property
    def __name__(self) -> str:
        return f"tile.ptx.{self._words}"

    @property
    def tile_names(self) -> list[str]:
        """The words that may come next, or the rest of one (`cta` after the `shared` of `shared_cta`)."""
        return sorted({name for f in forms_that_start_with(self._words)
                       if (name := next_word(key(self._words), python_name(f).split(".")))})

    def __repr__(self) -> str:
        return f"<ptx {self._words}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CompilationError(f"tile.ptx.{self._words} runs inside @tile.jit kernels, not in plain Python")

    @property
    def form(self) -> Form:
        """The form of that name. CompilationError, with similar names, if it is not a whole name."""
        return form(self._words)


def next_word(said: str, words: list[str]) -> str:
    """The word, or rest of a word, that follows the first of `words`, whose key is `said`; '' if nothing follows."""
    for n in range(1, len(words) + 1):
        begun = key(".".join(words[:n]))
        if begun == said:
            return words[n] if n < len(words) else ""
        if begun.startswith(said + "_"):
            return begun[len(said) + 1:]
    return ""


def python_name(of: Form) -> str:
    """A form's name as Python writes it after `tile.ptx.`: `::` becomes `_`;
    a leading digit or a keyword gets an underscore."""
    words = of.name.replace("::", "_").split(".")
    if words[:2] == ["cp", "async"]:
        words[:2] = ["cp_async"]
    return ".".join(map(_identifier, words))


def _identifier(word: str) -> str:
    """A word as an attribute's name: a leading digit or a keyword gets an underscore."""
    if re.match(r"\d", word):
        return f"_{word}"
    return f"{word}_" if keyword.iskeyword(word) else word
