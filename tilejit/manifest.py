"""The on-disk cache of kernels, in two levels: a call finds a manifest, a lowered graph finds its code.

Level 1, ``manifest/<key>``: the key digests what is known of a call without compiling: the kernel's text and place, the
kinds of the arguments and the compile-time values, launch options, target, this package and the tools. Under it stand
the manifests of up to 64 versions of the kernel; each says which values of the code around the kernel and which facts of
the arguments it holds for, and everything that a compiled kernel tells but the code. A process that finds its manifest
and the code loads no frontend, no passes, no LLVM and no assembler.

Level 2, ``code/<key>``: the key digests the lowered graph with its plans and source lines; the entry is the machine code
with its parameters and resources, and ``texts/<key>`` the stages' texts, which are read when asked for. It serves
versions whose values or facts differ and whose graphs do not.

Everything is JSON next to machine code. Entries are sealed and replaced whole, so a race between processes costs a
compile and a damaged entry counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from .compiled import CompiledKernel, coded, made_of, told
from .config import config
from .errors import CacheError
from .frontend.captures import Capture, Unrecorded, changed, identity, recorded, text_of, token
from .frontend.source import Source
from .ir.graph import Launch
from .records import RECORDS, from_data, to_data
from .runtime.arguments import Bound, answer
from .runtime.facts import describe_fact
from .runtime.store import Store, open_store
from .toolchain.installed import tools

if TYPE_CHECKING:
    from .compile import Lowered

FORMAT = 3            # of the entries
MANIFESTS_PER_KEY = 64
KEPT_BYTES = 1 << 30  # once a day, what was unused for longest makes room until so much is left
_SEPARATOR = b"\n"    # between an entry's JSON, which is one line, and its machine code


@dataclass(frozen=True)
class Found:
    """A compiled kernel from the cache, what it holds for, and what it printed when it was compiled."""

    compiled: CompiledKernel
    facts: dict[tuple, bool]
    captured: tuple[Capture, ...]
    printed: tuple[str, ...]


class Shelf:
    """The part of the cache that serves one kernel called with one signature: `find` a version, `keep` another.

    Where the cache is off, both do nothing. `missed` says why the last `find` found nothing: which value or fact
    differs from the newest manifest.
    """

    def __init__(self, source: Source, bound: Bound, launch: Launch, target: str):
        self.source = source
        self.constants = {name: bound.values[name] for name in bound.values if name in bound.constants}
        self.store = _store()
        self.missed = ""
        self.key = ""
        if self.store is not None:
            try:
                self.key = _call_key(source, bound, self.constants, launch, target)
            except Unrecorded:
                self.store = None

    # -- level 1 -----------------------------------------------------------------------------------------------------

    def find(self, bound: Bound, rebuild: Callable[[], dict[str, str]]) -> Found | None:
        """The version for these arguments and the values around the kernel as they are. `rebuild` gives the stages' texts
        again, should the cache have lost them."""
        if self.store is None:
            return None
        start = perf_counter()
        self.missed = ""
        for manifest in self._manifests():
            captured, differs = changed(manifest["captured"], self.source, self.constants)
            facts = {tuple(fact): held for fact, held in manifest["lowered"]["recipe"]["guards"]}
            if not differs:
                differs = difference(facts, bound)
            else:
                differs += " has changed"
            entry = None if differs else _Code.read(self.store, manifest["code"])
            if entry is None:
                self.missed = self.missed or differs or "its code is no longer in the cache"
                continue
            lowered = manifest["lowered"]
            texts = _reader(self.store, manifest["code"], rebuild)
            seconds = {"cache": perf_counter() - start}
            records = {name: from_data(kind, manifest[name]) for name, kind in RECORDS.items()}
            compiled = made_of(lowered, entry.says, manifest["code"], entry.cubin, records, texts, seconds, bound)
            return Found(compiled, facts, captured, tuple(lowered["printed"]))
        return None

    def _manifests(self) -> list[dict]:
        """The newest first."""
        data = self.store.get("manifest", self.key)
        return [] if data is None else json.loads(data)

    def _manifest(self, lowered: "Lowered", description: dict, code_key: str) -> dict | None:
        """What is told of a kernel; None where a value of the code around it cannot be recorded."""
        try:
            captured = recorded(lowered.captured, self.source, self.constants)
        except Unrecorded:
            return None
        records = {name: to_data(records) for name, records in lowered.records.items()}
        manifest = {"captured": captured, "lowered": description, **records, "code": code_key}
        return json.loads(_json(manifest))

    def _keep(self, manifest: dict) -> None:
        of = lambda m: (m["captured"], m["lowered"]["recipe"]["guards"])
        kept = [manifest, *(m for m in self._manifests() if of(m) != of(manifest))]
        self.store.put("manifest", self.key, _json(kept[:MANIFESTS_PER_KEY]))

    # -- level 2 -----------------------------------------------------------------------------------------------------

    def compile(self, lowered: "Lowered", bound: Bound) -> CompiledKernel:
        """Code for a lowered kernel, from the cache where its graph was compiled before; keeps what is new."""
        from .compile import assemble_graph, check_budgets
        description = json.loads(_json(told(lowered, bound)))
        key = code_key(lowered)
        start = perf_counter()
        manifest, packed = None, b""

        def prepare(texts: dict[str, str]) -> None:
            nonlocal manifest, packed
            if self.store is not None:
                manifest, packed = self._manifest(lowered, description, key), zlib.compress(_json(texts), 1)

        entry = _Code.read(self.store, key) if self.store is not None else None
        if entry is not None:
            check_budgets(lowered.graph, entry.says["registers"], entry.says["spills"])
            texts = _reader(self.store, key, lambda: assemble_graph(lowered).texts)
            seconds = {**lowered.seconds, "cache": perf_counter() - start}
            manifest = self._manifest(lowered, description, key)
        else:
            code = assemble_graph(lowered, prepare)
            entry = _Code(json.loads(_json(coded(code))), code.assembled.cubin)
            texts, seconds = lambda: code.texts, code.seconds
            if self.store is not None and self.store.put("texts", key, packed):
                entry.write(self.store, key)
        if self.store is not None:
            if manifest is not None:
                self._keep(manifest)
            _make_room(self.store)
        return made_of(description, entry.says, key, entry.cubin, lowered.records, texts, seconds, bound)


def difference(facts: dict[tuple, bool], bound: Bound) -> str:
    """In words, the first fact whose answer is another for these arguments; "" where all hold."""
    for fact, held in facts.items():
        if answer(fact, bound) != held:
            return ("not: " if held else "") + describe_fact(fact, bound.names)
    return ""


@dataclass(frozen=True)
class _Code:
    """An entry of level 2. `cubin` is None where only the driver assembles, from the PTX."""

    says: dict[str, Any]
    cubin: bytes | None

    @staticmethod
    def read(store: Store, key: str) -> "_Code | None":
        data = store.get("code", key)
        if data is None:
            return None
        head, _, cubin = data.partition(_SEPARATOR)
        return _Code(json.loads(head), cubin or None)

    def write(self, store: Store, key: str) -> None:
        store.put("code", key, _json(self.says) + _SEPARATOR + (self.cubin or b""))


def _reader(store: Store, key: str, rebuild: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    """The texts of an entry, read at the first call."""
    @lru_cache(maxsize=None)
    def read() -> dict[str, str]:
        data = store.get("texts", key)
        return rebuild() if data is None else json.loads(zlib.decompress(data))
    return read


def _json(x: Any) -> bytes:
    """JSON on one line; NumPy's numbers are written as Python's."""
    return json.dumps(x, separators=(",", ":"), default=lambda number: number.item()).encode()


def _make_room(store: Store) -> None:
    mark = store.path / "pruned"
    try:
        if not mark.exists() or time() - mark.stat().st_mtime > 86400:
            mark.touch()
            store.prune(KEPT_BYTES)
    except (OSError, CacheError):
        pass  # the store has warned of a folder that cannot be written


# -- keys --------------------------------------------------------------------------------------------------------------

def _store() -> Store | None:
    """The cache, unless it is off or the settings ask for every stage to run."""
    settings = config()
    return None if settings.dump or settings.override else open_store()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _call_key(source: Source, bound: Bound, constants: dict[str, Any], launch: Launch, target: str) -> str:
    signature = [text_of(token(constants[name])) if name in constants else repr(kind) for name, kind in zip(bound.values, bound.key)]
    return _digest(str(FORMAT), package(), tools(), identity(source), *signature, repr(launch), target)


def code_key(lowered: "Lowered") -> str:
    """The key of a lowered kernel's code."""
    from .compile import graph_key
    return _digest(str(FORMAT), package(), tools(), graph_key(lowered))


@lru_cache(maxsize=None)
def package() -> str:
    """What identifies this package: its version where it is installed, its files' sizes and times where it is worked on."""
    from . import __version__
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.isdir(os.path.join(os.path.dirname(here), f"tilejit-{__version__}.dist-info")):
        return __version__
    return f"{__version__} {_digest(*sorted(_files(here)))}"


def _files(folder: str):
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _files(entry.path)
        elif entry.name.endswith(".py"):
            status = entry.stat()
            yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"


__all__ = ["Found", "Shelf", "code_key", "difference", "package"]
