"""``tilejit cache``: the kernels in the on-disk cache. Reads the store alone: no frontend, no LLVM, no driver."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..config import config
from ..errors import CacheError
from ..runtime.store import Entry, Store
from .text import count, print_json, table

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Cached:
    """A compiled kernel in the cache: `nbytes` of machine code and texts, last used `age` seconds ago."""

    kernel: str
    target: str
    arguments: str
    nbytes: int
    age: float
    key: str


def run(arguments: argparse.Namespace) -> int:
    """List or remove the entries that the options select."""
    store, now = Store(config().cache_path), time.time()
    entries = store.entries()
    described = dict(_describe(store, entries))
    least = 0.0 if arguments.older_than is None else seconds(arguments.older_than)
    chosen = [e for e in entries if now - e.used >= least
              and (arguments.kernel is None or arguments.kernel in _kernels_of(e, described))]
    if arguments.kernel is not None and not any(arguments.kernel == name for name, *_ in described.values()):
        raise CacheError(f"the cache {store.path} has no kernel {arguments.kernel!r}")
    if arguments.clear:
        removed = sum(store.remove(entry) for entry in chosen)
        nbytes = sum(e.nbytes for e in chosen)
        if arguments.json:
            print_json({"folder": str(store.path), "removed": removed, "bytes": nbytes})
        else:
            print(f"removed {count(removed, 'entry', 'entries')} from {store.path}")
        return 0
    kernels = _kernels(chosen, described, now)
    if arguments.json:
        print_json({"folder": str(store.path), "bytes": sum(e.nbytes for e in chosen), "entries": len(chosen),
                    "kernels": [asdict(k) for k in kernels]})
        return 0
    print(f"{store.path}: {count(len(kernels), 'kernel')}, {count(len(chosen), 'entry', 'entries')}, "
          f"{size(sum(e.nbytes for e in chosen))}")
    if kernels:
        print(table(("kernel", "target", "size", "used", "arguments"),
                    [(k.kernel, k.target, size(k.nbytes), age(k.age), k.arguments) for k in kernels], "llrr"))
    return 0


def _describe(store: Store, entries: list[Entry]) -> Iterator[tuple[tuple[str, str], tuple[str, str, str]]]:
    """For the entries of kernels, by kind and key: the kernel's name, its target and its arguments."""
    for entry in entries:
        if entry.kind != "manifest":
            continue
        try:
            for manifest in json.loads(store.peek(entry) or b"[]"):
                lowered = manifest["lowered"]
                told = lowered["recipe"]["name"], lowered["target"], lowered["signature"]
                yield ("manifest", entry.key), told
                for kind in ("code", "texts"):
                    yield (kind, manifest["code"]), told
        except (LookupError, TypeError, ValueError):
            continue  # of another version of the package


def _kernels_of(entry: Entry, described: dict[tuple[str, str], tuple[str, str, str]]) -> tuple[str, ...]:
    return described.get((entry.kind, entry.key), ())[:1]


def _kernels(entries: list[Entry], described: dict[tuple[str, str], tuple[str, str, str]], now: float) -> list[Cached]:
    """The compiled kernels among `entries`, the most recently used first."""
    texts = {e.key: e.nbytes for e in entries if e.kind == "texts"}
    return [Cached(*described.get(("code", e.key), ("(unknown)", "", "")), e.nbytes + texts.get(e.key, 0),
                   max(now - e.used, 0.0), e.key) for e in entries if e.kind == "code"]


def seconds(text: str) -> float:
    """The seconds of an age such as "30d" or "1.5h". CacheError if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise CacheError(f"an age is a number with a unit of s, m, h or d, as in 30d or 12h, not {text!r}")
    return float(found[1]) * UNITS[found[2]]


def age(past: float) -> str:
    """An age in its largest unit: "3d", "12h"."""
    unit = next((u for u in ("d", "h", "m") if past >= UNITS[u]), "s")
    return f"{int(past / UNITS[unit])}{unit}"


def size(nbytes: int) -> str:
    """A number of bytes for people: "812 B", "14.2 kB", "3.1 MB"."""
    if nbytes < 1000:
        return f"{nbytes} B"
    return f"{nbytes / 1e3:.1f} kB" if nbytes < 1e6 else f"{nbytes / 1e6:.2f} MB"
