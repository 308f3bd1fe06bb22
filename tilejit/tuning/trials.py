"""What is known of each configuration: its time or why it has none, in memory, on disk, and in files to be shipped.

Each configuration has a key of its own: a digest of the kernel's source, the kind of call, the configuration, the GPU's
name, and the versions of tilejit, LLVM and the assembler. A result also lists the values that compiling read from the
code around the kernel, and is valid while they are unchanged. No key contains a path, so results can be shipped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from time import time
from typing import Any

from ..errors import LaunchError
from ..frontend.captures import (
    Capture,
    Unrecorded,
    find_changed_capture,
    identity,
    record_captures,
    text_of,
    token,
)
from ..ir.graph import Launch
from ..jit import Kernel
from ..manifest import MALFORMED, group_text, package
from ..runtime import driver
from ..runtime.arguments import ArraySpec, Bound
from ..runtime.arrays import row_major
from ..runtime.store import open_store
from ..toolchain.installed import tools

FORMAT = "tilejit tuning results 1"
KIND = "trial"  # of the entries on disk


@dataclass(frozen=True)
class Resources:
    """What a compiled configuration takes: `registers` of each thread, `spills` and `shared_bytes` in bytes, `threads`
    of a CTA. `active_ctas` is how many CTAs fit on a multiprocessor at once."""

    registers: int
    spills: int
    shared_bytes: int
    threads: int
    active_ctas: int = 0

    def __str__(self) -> str:
        return (f"{self.registers} registers, {self.spills} bytes spilled, {self.shared_bytes} bytes of shared memory, "
                f"{self.active_ctas} CTAs on a multiprocessor")


@dataclass(frozen=True)
class Trial:
    """What became of one configuration: `ms`, the milliseconds of a launch; or `reason`, why it was not timed. The
    `resources` are None if it does not compile. `known` says whether the time is an earlier one.
    """

    config: dict[str, Any]
    ms: float | None = None
    reason: str = ""
    resources: Resources | None = None
    known: bool = False
    budget: float | None = field(default=None, repr=False)  # the budget, if that was too small for this one
    limit: float | None = field(default=None, repr=False)   # the limit, if it took longer
    lasting: bool = field(default=True, repr=False)         # whether the reason holds in other processes too


def is_settled(trial: Trial, limit: float | None, budget: float | None) -> bool:
    """Whether a configuration has a time, or a reason that holds with these seconds too."""
    if trial.ms is not None or not trial.reason or not trial.lasting:
        return trial.ms is not None
    given = ((trial.limit, limit), (trial.budget, budget))
    return all(had is None or now is not None and now <= had for had, now in given)


class Trials:
    """The results for one kernel: of this process, and of the on-disk cache."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.own: dict[str, dict[str, Any]] = {}  # records by key, of this process and of loaded files

    def place(self, bound: Bound, names: Iterable[str], launch: Launch, grid: tuple[int, ...], gpu: str) -> str | None:
        """The key of a configuration's result for a kind of call; None if it cannot be kept. `names` are the arguments
        that tell kinds of calls apart; all constants count, of whatever a configuration sets."""
        try:
            parts = [_package(), tools(), self._source(), gpu, repr(grid), repr(launch)]
            parts += [f"{n}={text_of(token(value), located=False)}" for n, value in sorted(_constants(bound).items())]
            parts += [f"{n}: {_form(bound.values[n])}" for n in names if n not in bound.constants]
            parts += [f"{n}: {group_text(group)}" for n, group in bound.groups.items()]
        except Unrecorded:
            return None
        if "none" in tools().split(", "):  # no assembler: the driver's makes the code
            parts.append(str(driver.version()))
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]

    def _source(self) -> str:
        """The identity of the kernel's function. Unrecorded if it has none."""
        return hashlib.sha256(identity(self.kernel.source, located=False).encode(errors="surrogatepass")).hexdigest()

    def find(self, place: str | None, config: dict[str, Any], bound: Bound) -> Trial | None:
        """The result under a key, if it is still valid."""
        if place is None:
            return None
        record, store = self.own.get(place), open_store()
        if record is None and store is not None:
            record = store.get_json(KIND, place)
        try:
            if record is None or not _is_record(record) or self._has_changed(record, bound):
                return None
            resources = None if record["resources"] is None else Resources(**record["resources"])
        except MALFORMED:
            return None
        self.own[place] = record
        return Trial(config, record["ms"], record["reason"], resources, True, record["budget"], record["limit"])

    def _has_changed(self, record: dict[str, Any], bound: Bound) -> bool:
        return bool(find_changed_capture(record["captured"], self.kernel.source, _constants(bound), located=False)[1])

    def keep(self, place: str | None, trial: Trial, bound: Bound, captured: tuple[Capture, ...] | None, call: str,
             gpu: str) -> None:
        """Keep a result under its key."""
        if place is None or captured is None or not trial.lasting:
            return
        try:
            values = record_captures(captured, self.kernel.source, _constants(bound), located=False)
            source = self._source()
        except Unrecorded:
            return
        record = {"kernel": self.kernel.name, "source": source, "call": call, "gpu": gpu,
                  "config": {name: repr(value) for name, value in trial.config.items()},
                  "ms": trial.ms, "reason": trial.reason, "budget": trial.budget, "limit": trial.limit,
                  "resources": None if trial.resources is None else asdict(trial.resources),
                  "captured": values, "tilejit": _package(), "tools": tools(),
                  "driver": driver.version(), "when": time()}
        data = json.dumps(record).encode()
        self.own[place] = json.loads(data)
        store = open_store()
        if store is not None:
            store.put(KIND, place, data)

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write all results of this kernel's source to a file of JSON; returns how many."""
        try:
            source = self._source()
        except Unrecorded:
            raise LaunchError(f"{self.kernel.name} has defaults that are not recorded, so its results cannot be "
                              "saved") from None
        found = dict(self.own)
        store = open_store()
        for entry in [] if store is None else store.entries():
            if entry.kind == KIND and entry.key not in found and store is not None:
                found[entry.key] = store.get_json(KIND, entry.key)
        records = {place: r for place, r in sorted(found.items()) if _is_record(r) and r["source"] == source}
        try:
            Path(path).write_text(json.dumps({"format": FORMAT, "results": records}, indent=1) + "\n")
        except OSError as error:
            raise LaunchError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None
        return len(records)

    def load(self, paths: Iterable[str | os.PathLike[str]]) -> int:
        """Add the results in files, of which the newer counts where there are two; returns how many this process can
        use. LaunchError if a file has none."""
        total, store = 0, open_store()
        for path in paths:
            records = _read_records(path)
            usable = {place: r for place, r in records.items() if not self._unusable(r)}
            if not usable:
                reason = next((self._unusable(r) for r in records.values()), "it is empty")
                raise LaunchError(f"{os.fspath(path)} has no results for {self.kernel.name} here: {reason}")
            total += len(usable)
            for place, record in usable.items():
                held = self.own.get(place) or (None if store is None else store.get_json(KIND, place))
                if held is None or not _is_record(held) or held["when"] < record["when"]:
                    self.own[place] = record
                    if store is not None:
                        store.put(KIND, place, json.dumps(record).encode())
        return total

    def _unusable(self, record: dict[str, Any]) -> str:
        """Why a record is of no use here; "" if it may be."""
        if record["kernel"] != self.kernel.name:
            return f"they are of the kernel {record['kernel']}"
        if record["source"] != self._source():
            return f"the source of {self.kernel.name} was another"
        for name, there, here in (("tilejit", record["tilejit"], _package()), ("the tools", record["tools"], tools())):
            if there != here:
                return f"{name} was {there}, and is {here} here"
        return ""


def _read_records(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The records of a file. LaunchError if it is not one of `Trials.save`."""
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise LaunchError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
    except ValueError:
        data = None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("results"), dict):
        raise LaunchError(f"{os.fspath(path)} is not a file of tuning results, as save_results writes them")
    records: dict[str, dict[str, Any]] = data["results"]
    for place, record in records.items():
        if not _is_record(record) or not place.isalnum():
            raise LaunchError(f"{os.fspath(path)} has a result that is damaged: {place}")
    return records


_TYPES: dict[str, Any] = {"kernel": str, "source": str, "call": str, "gpu": str, "config": dict, "reason": str,
                          "captured": dict, "tilejit": str, "tools": str, "ms": (float, int, type(None)),
                          **dict.fromkeys(("budget", "limit"), (float, int, type(None))), "when": (float, int),
                          "resources": (dict, type(None))}


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and all(n in record and isinstance(record[n], kind) for n, kind in _TYPES.items())


def _constants(bound: Bound) -> dict[str, Any]:
    return {name: bound.values[name] for name in bound.values if name in bound.constants}


def _form(value: Any) -> str:
    """An argument in a key: an array by dtype, shape, strides and alignment, which the code depends on."""
    return f"{_array_text(value)} at {value.pointer % 16}" if isinstance(value, ArraySpec) else repr(value)


def _array_text(spec: ArraySpec) -> str:
    strides = f" strides {list(spec.strides)}" if spec.strides != row_major(spec.shape) else ""
    return f"{spec.dtype}{list(spec.shape)}{strides}"


def call_text(bound: Bound, names: Iterable[str]) -> str:
    """The arguments that tell a kind of call apart, in words."""
    return ", ".join(f"{n}: {_array_text(v)}" if isinstance(v, ArraySpec) else f"{n}={v!r}"
                     for n, v in ((n, bound.values[n]) for n in names))


@cache
def _package() -> str:
    """This package: its version, and a digest of its files if it is not an installed release."""
    version, *of_this_copy = package().split()
    if not of_this_copy:
        return version
    here, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for file in sorted(here.rglob("*.py")):
        digest.update(str(file.relative_to(here)).encode() + b"\0" + file.read_bytes())
    return f"{version} {digest.hexdigest()[:16]}"


__all__ = ["Resources", "Trial", "Trials", "call_text", "is_settled"]
