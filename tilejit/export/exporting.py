"""Compiles versions of a kernel for ``kernel.export``, and writes them with their C launcher."""

from __future__ import annotations

import io
from collections.abc import Sequence
from inspect import Parameter
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import checked_target, config
from ..errors import LaunchError, ToolchainError
from ..lazy import Lazy
from ..runtime.arguments import plain_constant
from .archive import Archive, ExportedVersion, in_order, pack_archive, to_json, write_file
from .c_launcher import header_text, source_text

if TYPE_CHECKING:
    from ..runtime.arguments import Bound

whole = Lazy("tilejit")  # for its version

def export(kernel: Any, path: str | PathLike[str], specs: Any, targets: Any,
           common: dict[str, Any]) -> tuple[Path, Path, Path]:
    """``kernel.export``; `common` are keyword arguments of every spec."""
    file = Path(fspath(path))
    if file.suffix in (".h", ".c"):
        raise LaunchError(f"the header and the source are written beside the file, as {file.stem}.h and {file.stem}.c: "
                          f"export to a path with another ending, not {str(path)!r}")
    versions = []
    for target in _listed_targets(targets):
        for args, kwargs in _listed_specs(kernel, specs):
            bound, options = kernel.bind_alone("export launches nothing", args, {**common, **kwargs})
            versions.append(_version(kernel.compiled(bound, options, target), bound))
    kept = tuple(v for n, v in enumerate(versions) if v not in versions[:n])
    _check_told_apart(kept)
    archive = Archive(kernel.name, whole.__version__, _parameters(kernel, kept), in_order(kept))
    header, source = file.with_suffix(".h"), file.with_suffix(".c")
    texts = header_text(archive), source_text(archive, header.name)
    packed = io.BytesIO()
    pack_archive(archive, packed)
    for place, data in ((file, packed.getvalue()), (header, texts[0].encode()), (source, texts[1].encode())):
        write_file(place, data)
    return file, header, source


def _listed_targets(targets: Any) -> tuple[str, ...]:
    if targets is None:
        return (config().target or "sm_90a",)
    if isinstance(targets, str):
        return (checked_target(targets),)
    listed = tuple(dict.fromkeys(map(checked_target, targets)))
    if not listed:
        raise LaunchError("export needs at least one target")
    return listed


def _listed_specs(kernel: Any, specs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The specs as (positional arguments, keyword arguments)."""
    if not isinstance(specs, Sequence) or not specs or not all(isinstance(spec, (tuple, dict)) for spec in specs):
        raise LaunchError(f"specs is a list of the calls that {kernel.name} is exported for, each a tuple of arguments "
                          "or a dict of them by name, as in [(tile.ArraySpec((1024, 1024), tile.float32),)]")
    return [((), spec) if isinstance(spec, dict) else (spec, {}) for spec in specs]


def _version(compiled: Any, bound: Bound) -> ExportedVersion:
    if compiled.cubin is None:
        raise ToolchainError("export needs machine code, and only the driver assembles here: "
                             "pip install nvidia-cuda-nvcc")
    constants = {name: to_json(bound.values[name]) for name in bound.values if name in bound.constants}
    return ExportedVersion(compiled.target, compiled.signature, constants, tuple(bound.names), compiled.registers,
                           compiled.spills, compiled.shared_bytes, compiled.recipe, compiled.cubin)


def _check_told_apart(versions: Sequence[ExportedVersion]) -> None:
    """LaunchError for two versions that differ in a constant which a file does not hold."""
    seen: dict[tuple[Any, ...], ExportedVersion] = {}
    for version in versions:
        recipe = version.recipe
        form = version.target, repr(version.constants), repr(recipe["arguments"]), repr(recipe["guards"])
        other = seen.setdefault(form, version)
        if other.cubin != version.cubin:
            objects = [name for name, (kind, _) in version.constants.items() if kind == "object"]
            what = f"the constants {', '.join(objects)}" if objects else "their launch options"
            raise LaunchError(f"two specs differ in {what}, by which a call of the loaded kernel cannot choose: "
                              "export them to two files")


def _parameters(kernel: Any, versions: Sequence[ExportedVersion]) -> tuple[tuple[str, bool, list[Any] | None], ...]:
    """The kernel's parameters with their defaults. A constant that is the same in all versions need not be given."""
    rows = []
    for p in kernel.parameters:
        default = None
        if p.default is not Parameter.empty:
            default = to_json(plain_constant(p.default))
        values = [v.constants[p.name] for v in versions if p.name in v.constants]
        if p.constexpr and values and all(value == values[0] for value in values):
            default = values[0]
        if default is not None and default[0] == "object" and not p.constexpr:
            default = None
        rows.append((p.name, bool(p.constexpr), default))
    return tuple(rows)


__all__ = ["export"]
