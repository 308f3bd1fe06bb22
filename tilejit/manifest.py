"""The on-disk cache of kernels, in two levels: a call looks up manifests, a lowered graph looks up code.

Level 1, ``manifest/<key>``: the key is a digest of everything that is known about a call without compiling: the
kernel's text and location, the kinds of its arguments, the compile-time values, the launch options, the target, this
package and the tools. The entry has the manifests of up to 64 versions of the kernel. Each lists the captured values
and the facts about the arguments for which it is valid, and all data of the compiled kernel except the code. A
process that finds a valid manifest and its code loads no frontend, no passes, no LLVM and no assembler.

Level 2, ``code/<key>``: the key is a digest of the lowered graph with its plans and source lines. The entry is the
machine code with its parameters and resources; ``texts/<key>`` has the stages' texts, which are read on request.
Versions with different values or facts but the same graph share an entry.

Entries are JSON, followed by machine code. They are checksummed and replaced atomically, so a race between processes
costs at most a compilation, and a damaged entry counts as absent.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from .compiled import CompiledKernel, describe_code, describe_launch, made_of
from .config import config
from .errors import CacheError
from .frontend.captures import Capture, Unrecorded, find_changed_capture, identity, record_captures, text_of, token
from .frontend.source import Source
from .ir.graph import Launch
from .lazy import Lazy, hashlib
from .runtime.arguments import Bound, answer
from .runtime.facts import describe_fact
from .runtime.groups import Group
from .runtime.store import Store, open_store
from .toolchain.installed import tools

if TYPE_CHECKING:
    from .compile import Lowered

compiler = Lazy("tilejit.compile")  # a process that finds its kernels in the cache does not need it
records = Lazy("tilejit.records")

FORMAT = 3            # the version of the entries' format
MANIFESTS_PER_KEY = 64
KEPT_BYTES = 1 << 30  # once a day, the least recently used entries are removed until the cache has at most this size
# fields of a code entry's JSON, from `compiled.describe_code`
CODE_FIELDS = frozenset(("params", "maps", "registers", "spills", "notes", "assembler"))
# raised by reading an entry that this version did not write
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
_SEPARATOR = b"\n"    # between an entry's JSON, which is a single line, and its machine code


@dataclass(frozen=True)
class Found:
    """A compiled kernel from the cache, with the facts and captures for which it is valid, and the lines that
    `static_print` printed."""

    compiled: CompiledKernel
    facts: dict[tuple[Any, ...], bool]
    captured: tuple[Capture, ...]
    printed: tuple[str, ...]


class Shelf:
    """The part of the cache for one kernel and one signature. `find` looks up a version;
    `compile` makes and stores one.

    If the cache is off, `find` finds nothing and `compile` stores nothing. `missed` says why the last `find` failed:
    which value or fact differs from the newest manifest.
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

    def _require_store(self) -> Store:
        """The store, which the caller knows to be there."""
        assert self.store is not None
        return self.store

    # -- level 1 -----------------------------------------------------------------------------------------------------

    def find(self, bound: Bound, rebuild: Callable[[], dict[str, str]]) -> Found | None:
        """The version that is valid for these arguments and the current captured values. If the cache has lost the
        texts of the stages, `rebuild` makes them again."""
        if self.store is None:
            return None
        start = perf_counter()
        self.missed = ""
        for manifest in self._manifests():
            try:
                found = self._version(manifest, bound, rebuild, start)
            except MALFORMED:
                continue
            if found is not None:
                return found
        return None

    def _version(self, manifest: dict[str, Any], bound: Bound, rebuild: Callable[[], dict[str, str]],
                 start: float) -> Found | None:
        """The version that a manifest describes, if it is valid here and the cache has its code."""
        captured, differs = find_changed_capture(manifest["captured"], self.source, self.constants)
        facts = {tuple(fact): held for fact, held in manifest["lowered"]["recipe"]["guards"]}
        if not differs:
            differs = difference(facts, bound)
        else:
            differs += " has changed"
        entry = None if differs else _Code.read(self._require_store(), manifest["code"])
        if entry is None:
            self.missed = self.missed or differs or "its code is no longer in the cache"
            return None
        lowered = manifest["lowered"]
        texts = _reader(self._require_store(), manifest["code"], rebuild)
        seconds = {"cache": perf_counter() - start}
        kept = {name: records.from_data(kind, manifest[name]) for name, kind in records.RECORDS.items()}
        compiled = made_of(lowered, entry.says, manifest["code"], entry.cubin, kept, texts, seconds, bound)
        return Found(compiled, facts, captured, tuple(lowered["printed"]))

    def _manifests(self) -> list[dict[str, Any]]:
        """The manifests under the key, newest first."""
        manifests = self._require_store().get_json("manifest", self.key)
        return manifests if isinstance(manifests, list) else []

    def _manifest(self, lowered: Lowered, description: dict[str, Any], code_key: str) -> dict[str, Any] | None:
        """The manifest of a kernel; None if one of its captured values cannot be recorded."""
        try:
            captured = record_captures(lowered.captured, self.source, self.constants)
        except Unrecorded:
            return None
        kept = {name: records.to_data(rows) for name, rows in lowered.records.items()}
        manifest = {"captured": captured, "lowered": description, **kept, "code": code_key}
        copied: dict[str, Any] = json.loads(_json(manifest))
        return copied

    def _keep(self, manifest: dict[str, Any]) -> None:
        kept = [manifest, *(m for m in self._manifests() if _validity(m) not in (None, _validity(manifest)))]
        self._require_store().put("manifest", self.key, _json(kept[:MANIFESTS_PER_KEY]))

    # -- level 2 -----------------------------------------------------------------------------------------------------

    def compile(self, lowered: Lowered, bound: Bound) -> CompiledKernel:
        """Compile a lowered kernel, or take its code from the cache if the same graph was compiled before. Store the
        manifest and the code."""
        description = json.loads(_json(describe_launch(lowered, bound)))
        key = code_key(lowered)
        start = perf_counter()
        manifest, packed = None, b""

        def prepare(texts: dict[str, str]) -> None:
            nonlocal manifest, packed
            if self.store is not None:
                manifest, packed = self._manifest(lowered, description, key), zlib.compress(_json(texts), 1)

        entry = _Code.read(self.store, key) if self.store is not None else None
        if entry is not None:
            compiler.check_budgets(lowered.graph, entry.says["registers"], entry.says["spills"])
            texts = _reader(self._require_store(), key, lambda: compiler.assemble_graph(lowered).texts)
            seconds = {**lowered.seconds, "cache": perf_counter() - start}
            manifest = self._manifest(lowered, description, key)
        else:
            code = compiler.assemble_graph(lowered, prepare)
            entry = _Code(json.loads(_json(describe_code(code))), code.assembled.cubin)
            texts, seconds = lambda: code.texts, code.seconds
            if self.store is not None and self.store.put("texts", key, packed):
                entry.write(self.store, key)
        if self.store is not None:
            if manifest is not None:
                self._keep(manifest)
            _make_room(self.store)
        return made_of(description, entry.says, key, entry.cubin, lowered.records, texts, seconds, bound)


def _validity(manifest: Any) -> tuple[Any, ...] | None:
    """The captured values and guards for which a manifest is valid; None if it is malformed."""
    try:
        return manifest["captured"], manifest["lowered"]["recipe"]["guards"]
    except MALFORMED:
        return None


def difference(facts: dict[tuple[Any, ...], bool], bound: Bound) -> str:
    """Say which fact is the first with a different answer for these arguments; "" if none is."""
    for fact, held in facts.items():
        if answer(fact, bound) != held:
            return ("not: " if held else "") + describe_fact(fact, bound.names)
    return ""


@dataclass(frozen=True)
class _Code:
    """An entry of level 2: its JSON data and the machine code. `cubin` is None if only the driver can assemble; the
    driver then compiles the PTX."""

    says: dict[str, Any]
    cubin: bytes | None

    @staticmethod
    def read(store: Store, key: str) -> _Code | None:
        data = store.get("code", key)
        if data is None:
            return None
        head, _, cubin = data.partition(_SEPARATOR)
        try:
            says = json.loads(head)
        except ValueError:
            return None
        return _Code(says, cubin or None) if isinstance(says, dict) and says.keys() >= CODE_FIELDS else None

    def write(self, store: Store, key: str) -> None:
        store.put("code", key, _json(self.says) + _SEPARATOR + (self.cubin or b""))


def _reader(store: Store, key: str, rebuild: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    """A function that returns the texts of an entry, and reads them at its first call."""
    @cache
    def read() -> dict[str, str]:
        data = store.get("texts", key)
        try:
            texts = None if data is None else json.loads(zlib.decompress(data))
        except (ValueError, zlib.error):
            texts = None
        return texts if isinstance(texts, dict) and texts.keys() >= {"graph", "llvm_ir", "ptx"} else rebuild()
    return read


def _json(x: Any) -> bytes:
    """Compact JSON on one line; NumPy scalars are written as Python numbers."""
    return json.dumps(x, separators=(",", ":"), default=lambda number: number.item()).encode()


def _make_room(store: Store) -> None:
    mark = store.path / "pruned"
    try:
        if not mark.exists() or time() - mark.stat().st_mtime > 86400:
            mark.touch()
            store.prune(KEPT_BYTES)
    except (OSError, CacheError):
        pass  # the store has already warned that the folder cannot be written


# -- keys --------------------------------------------------------------------------------------------------------------

def _store() -> Store | None:
    """The cache; None if it is off, or if ``TILEJIT_DUMP`` or ``TILEJIT_OVERRIDE`` require all stages to run."""
    settings = config()
    return None if settings.dump or settings.override else open_store()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _call_key(source: Source, bound: Bound, constants: dict[str, Any], launch: Launch, target: str) -> str:
    signature = [text_of(token(constants[name])) if name in constants else repr(kind)
                 for name, kind in zip(bound.values, bound.key)]
    signature += [f"{name} {group_text(group)}" for name, group in bound.groups.items()]
    return _digest(str(FORMAT), package(), tools(), identity(source), *signature, repr(launch), target)


def group_text(group: Group) -> str:
    """The form of an argument that groups others, as text that is equal in every process."""
    parts = ", ".join(group_text(part) if isinstance(part, Group) else part for part in group.parts)
    return f"{text_of(token(group.kind))}({parts})"


def code_key(lowered: Lowered) -> str:
    """The key of a lowered kernel's code."""
    return _digest(str(FORMAT), package(), tools(), compiler.graph_key(lowered))


@cache
def package() -> str:
    """The identity of this package: its version if it is installed,
    otherwise also a digest of its files' sizes and times."""
    from . import __version__  # late, since the package imports this file before it has its version
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.isdir(os.path.join(os.path.dirname(here), f"tilejit-{__version__}.dist-info")):
        return __version__
    return f"{__version__} {_digest(*sorted(_files(here)))}"


def _files(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _files(entry.path)
        elif entry.name.endswith(".py"):
            status = entry.stat()
            yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"


__all__ = ["Found", "Shelf", "code_key", "difference", "package"]
