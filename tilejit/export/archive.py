"""The file of an exported kernel: a zip archive with ``kernel.json`` and the machine code of each version.

Whoever reads it needs no compiler: a version has a cubin and its launch recipe, in which guards and tensor maps are
expressions over the call's arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import architecture
from ..dtypes import DTYPES, DType
from ..errors import LaunchError
from ..lazy import Lazy
from ..runtime.facts import describe_fact
from ..runtime.recipe import Recipe

if TYPE_CHECKING:
    import zipfile
else:
    zipfile = Lazy("zipfile")

loading = Lazy("tilejit.runtime.launcher")  # whoever looks at a file launches nothing

FORMAT = 1
INDEX = "kernel.json"
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can have: equal kernels give equal files

# target of a device -> the targets whose machine code it runs, the best first
RUNS = {"sm_86": ("sm_86", "sm_80"), "sm_89": ("sm_89", "sm_86", "sm_80")}


class Fixed(str):
    """A constant of which a file holds the kind only, such as a function: it is the same in all versions."""

    __slots__ = ()


@dataclass(frozen=True)
class ExportedVersion:
    """A version of an exported kernel: machine code for a `target`, for arguments of the kinds in `signature`.

    `constants` are the compile-time values by name, `arguments` the names of the others in the order of the recipe's;
    `registers` are per thread, `spills` and `shared_bytes` in bytes."""

    target: str
    signature: str
    constants: dict[str, Any]
    arguments: tuple[str, ...]
    registers: int
    spills: int
    shared_bytes: int
    recipe: dict[str, Any] = field(repr=False)
    cubin: bytes = field(repr=False)
    launchers: dict[int, Any] = field(repr=False, default_factory=dict, compare=False)  # by device

    @property
    def guards(self) -> tuple[str, ...]:
        """What a call's arguments must be, in words."""
        return tuple(("not: " if not held else "") + describe_fact(fact, self.arguments)
                     for fact, held in self.recipe["guards"])

    def launcher(self, device: int) -> Any:
        """The launcher on a device, loaded at the first call. LaunchError if the device cannot run the kernel."""
        if device not in self.launchers:
            self.launchers[device] = loading.load(self.recipe, self.cubin, device, native=False)
        return self.launchers[device]


@dataclass(frozen=True)
class Archive:
    """An exported kernel: its `parameters` as (name, whether it is a constant, its default by `to_json`, or None if it
    has none), and its versions, those of newer targets first."""

    name: str
    package: str
    parameters: tuple[tuple[str, bool, list[Any] | None], ...]
    versions: tuple[ExportedVersion, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(version.target for version in self.versions))


def in_order(versions: Sequence[ExportedVersion]) -> tuple[ExportedVersion, ...]:
    """Versions in the order in which a call tries them: of newer targets first."""
    return tuple(sorted(versions, key=lambda version: -architecture(version.target)))


# -- constants -------------------------------------------------------------------------------------------------------

def to_json(value: Any) -> list[Any]:
    """A constant as JSON, with its type, since 1, 1.0 and True are equal but different constants."""
    if value is None or isinstance(value, (bool, int, str)) and type(value) in (bool, int, str):
        return [type(value).__name__, value]
    if isinstance(value, float):
        return ["float", repr(value)]
    if isinstance(value, DType):
        return ["dtype", value.name]
    if type(value) is tuple:
        return ["tuple", [to_json(part) for part in value]]
    return ["object", type(value).__name__]


def from_json(data: list[Any]) -> Any:
    """The constant that `to_json` gave; a `Fixed` for one of which it holds the kind only."""
    kind, value = data
    if kind == "float":
        return float(value)
    if kind == "dtype":
        return DTYPES[value]
    if kind == "tuple":
        return tuple(map(from_json, value))
    return Fixed(f"<{value}>") if kind == "object" else value


# -- files -----------------------------------------------------------------------------------------------------------

def write_file(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. LaunchError if that is impossible."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise LaunchError(f"{path} cannot be written: {error}") from None


def pack_archive(archive: Archive, into: Any) -> None:
    """Write an archive to a binary file object."""
    versions: list[dict[str, Any]] = [
        {"target": v.target, "signature": v.signature, "constants": v.constants, "arguments": v.arguments,
         "registers": v.registers, "spills": v.spills, "shared_bytes": v.shared_bytes, "recipe": v.recipe,
         "cubin": f"{n}.{v.target}.cubin"} for n, v in enumerate(archive.versions)]
    index = {"format": FORMAT, "package": archive.package, "name": archive.name, "parameters": archive.parameters,
             "versions": versions}
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo(INDEX, _DATE), json.dumps(index, indent=1), zipfile.ZIP_DEFLATED)
        for data, version in zip(versions, archive.versions):
            file.writestr(zipfile.ZipInfo(data["cubin"], _DATE), version.cubin, zipfile.ZIP_DEFLATED)


def read_archive(path: Path) -> Archive:
    """The archive in a file. LaunchError if it is none, or of a newer format than this package reads."""
    try:
        with zipfile.ZipFile(path) as file:
            index = json.loads(file.read(INDEX))
            if index["format"] > FORMAT:
                raise LaunchError(f"{path} was exported by tilejit {index['package']}, in a format that is newer than "
                                  "this package reads: install that version, or export the kernel again")
            versions = tuple(ExportedVersion(**{**data, "arguments": tuple(data["arguments"]),
                                                "cubin": file.read(data["cubin"])}) for data in index["versions"])
        for version in versions:
            Recipe.of(version.recipe)
        parameters = tuple((name, constant, default) for name, constant, default in index["parameters"])
        return Archive(index["name"], index["package"], parameters, versions)
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise LaunchError(f"{path} is not the file of an exported kernel, or is damaged "
                          f"({type(error).__name__}: {error})") from None


__all__ = ["Archive", "ExportedVersion", "Fixed", "in_order", "pack_archive", "read_archive", "from_json", "to_json",
           "write_file"]
