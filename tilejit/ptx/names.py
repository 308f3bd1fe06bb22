"""Names of forms as Python writes them: `tile.ptx.cp_async.bulk._1d`, one attribute after the other."""

from __future__ import annotations

import keyword
import re

from ..errors import CompilationError
from ..names import InstructionName
from .form import Form
from .lookup import form, is_prefix, key, starting


class Name(InstructionName):
    """Some words of a form's name, from the first on; a whole name is what a kernel calls."""

    __slots__ = ("_words",)

    def __init__(self, words: str):
        self._words = words

    def __getattr__(self, word: str) -> "Name":
        longer = f"{self._words}.{word}"
        if word.startswith("__") or not is_prefix(longer):
            raise AttributeError(f"no PTX instruction form starts with {longer!r}")
        return Name(longer)

    @property
    def __name__(self) -> str:
        return f"tile.ptx.{self._words}"

    @property
    def tile_names(self) -> list[str]:
        """The words that may come next, or what is left of one: of `shared_cta` after `shared`."""
        return sorted({name for f in starting(self._words) if (name := following(key(self._words), python_name(f).split(".")))})

    def __repr__(self) -> str:
        return f"<ptx {self._words}>"

    def __call__(self, *args, **kwargs):
        raise CompilationError(f"tile.ptx.{self._words} runs inside @tile.jit kernels, not in plain Python")

    @property
    def form(self) -> Form:
        """The form that it names; says what is near if it is not a whole name."""
        return form(self._words)


def following(said: str, words: list[str]) -> str:
    """What comes after the first of the `words`, which have the key `said`; '' where nothing does."""
    for n in range(1, len(words) + 1):
        begun = key(".".join(words[:n]))
        if begun == said:
            return words[n] if n < len(words) else ""
        if begun.startswith(said + "_"):
            return begun[len(said) + 1:]
    return ""


def python_name(of: Form) -> str:
    """How Python writes a form's name after `tile.ptx.`: `::` as `_`, a digit or a keyword with an underscore."""
    words = of.name.replace("::", "_").split(".")
    if words[:2] == ["cp", "async"]:
        words[:2] = ["cp_async"]
    return ".".join(f"_{w}" if re.match(r"\d", w) else f"{w}_" if keyword.iskeyword(w) else w for w in words)
