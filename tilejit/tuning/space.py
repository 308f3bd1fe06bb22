"""What `autotune` chooses from: configurations, listed or as a space of choices with constraints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from ..errors import LaunchError
from ..frames import hide_own_frames
from ..ir.graph import Launch
from ..jit import Kernel
from ..names import suggest_keyword
from ..runtime.options import LAUNCH_OPTIONS

MOST = 100_000  # configurations of a space, before constraints

Config = dict[str, Any]


@dataclass(frozen=True)
class Choices:
    """Values of which a configuration has one: the result of `choice`."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"choice({', '.join(map(repr, self.values))})"


@hide_own_frames
def choice(*values: Any) -> Choices:
    """Values of a constexpr argument or a launch option that `autotune` is to try: ``dict(BLOCK=tile.choice(512, 1024),
    num_warps=tile.choice(4, 8))`` are four configurations. LaunchError if there are no values."""
    if not values:
        raise LaunchError("choice takes at least one value, as in tile.choice(64, 128)")
    for value in values:
        if isinstance(value, (list, set, frozenset, dict, range)) or hasattr(value, "__next__"):
            raise LaunchError("choice takes its values one by one, as in tile.choice(64, 128): "
                              f"write tile.choice(*values) for those of a {type(value).__name__}")
        if isinstance(value, Choices):
            raise LaunchError(f"choice takes values, and {value!r} is another choice")
    return Choices(values)


def listed_configs(configs: Any) -> tuple[list[Config], bool]:
    """All configurations of a dict, or of a list of dicts, with each choice made in each way; and whether there are
    choices. LaunchError if they are none."""
    spaces: list[Any] = [configs] if isinstance(configs, dict) else [None]
    if isinstance(configs, Iterable) and not isinstance(configs, dict):
        spaces = list(configs)
    if not all(isinstance(c, dict) for c in spaces):
        raise LaunchError("autotune takes a list of configurations, each a dict, as in [dict(BLOCK=512), "
                          "dict(BLOCK=2048, num_warps=8)], or a dict of choices, as in "
                          "dict(BLOCK=tile.choice(512, 2048))")
    if not spaces:
        raise LaunchError("autotune takes at least one configuration")
    listed: list[Config] = []
    for space in spaces:
        ways = [value.values if isinstance(value, Choices) else (value,) for value in space.values()]
        if (count := _product(map(len, ways))) + len(listed) > MOST:
            raise LaunchError(f"a space of {count} configurations is too large: autotune times at most {MOST}")
        listed += (dict(zip(space, values)) for values in product(*ways))
    return listed, any(isinstance(value, Choices) for space in spaces for value in space.values())


def _product(numbers: Iterable[int]) -> int:
    total = 1
    for n in numbers:
        total *= n
    return total


def complete_configs(configs: list[Config], kernel: Kernel) -> list[Config]:
    """The configurations, each with all that one of them sets: what it lacks is the kernel's default. LaunchError for
    what a configuration cannot set, or the kernel has no default for."""
    parameters = {p.name: p for p in kernel.parameters}
    defaults = _defaults(kernel)
    every = dict.fromkeys(name for c in configs for name in c)
    for name in every:
        if name not in LAUNCH_OPTIONS and (name not in parameters or not parameters[name].constexpr):
            raise LaunchError(f"a configuration sets constexpr parameters and launch options of {kernel.name}, "
                              f"and {name!r} is none{suggest_keyword((name,), (*parameters, *LAUNCH_OPTIONS))}")
        lacking = next((c for c in configs if name not in c and name not in defaults), None)
        if lacking is not None:
            raise LaunchError(f"the configuration {lacking} does not set {name!r}, "
                              f"which others set and {kernel.name} has no default for")
    return [{n: c[n] if n in c else defaults[n] for n in every} for c in configs]


def _defaults(kernel: Kernel) -> dict[str, Any]:
    """What a configuration may set, with the values where it does not."""
    constants = {p.name for p in kernel.parameters if p.constexpr}
    return {**{n: value for n, value in kernel.defaults.items() if n in constants},
            **{f.name: f.default for f in fields(Launch)}, **kernel.options}


def apply_constraints(configs: list[Config], where: Any, kernel: Kernel) -> list[Config]:
    """The configurations for which each constraint in `where` holds, each once. LaunchError for a constraint that is
    no function of what configurations set, that raises, and if none is left."""
    left, removed = configs, []
    for number, constraint in enumerate(_functions(where), 1):
        names = _names_of(constraint, configs[0], kernel)
        kept = [c for c in left if _holds(constraint, names, {**_defaults(kernel), **c})]
        removed.append(f"{_name(constraint, number)} turns down {len(left) - len(kept)}")
        left = kept
    if not left:
        raise LaunchError(f"where= leaves none of the {len(configs)} configurations of {kernel.name}: "
                          f"{', '.join(removed)}")
    unique: list[Config] = []
    seen: set[str] = set()
    for config in left:
        if repr(config) not in seen:
            seen.add(repr(config))
            unique.append(config)
    return unique


def _functions(where: Any) -> list[Callable[..., Any]]:
    if where is None:
        return []
    functions = [where] if callable(where) else where
    if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
        raise LaunchError("where is a constraint or a list of them, each a function of what configurations set, as in "
                          f"where=lambda BM, num_warps: BM >= 16 * num_warps, not {where!r}")
    return list(functions)


def _names_of(constraint: Callable[..., Any], config: Config, kernel: Kernel) -> list[str]:
    """The names of a constraint's parameters."""
    known = {**_defaults(kernel), **config}
    names = []
    for parameter in inspect.signature(constraint).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            names += [name for name in known if name not in names]
        elif parameter.name in known:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            if parameter.name in kernel.names:
                raise LaunchError(f"where= has a constraint on {parameter.name!r}, which each call gives: "
                                  "prune=, a function of the configurations and the arguments, sees it")
            raise LaunchError(f"where= has a constraint on {parameter.name!r}, which no configuration of {kernel.name} "
                              f"sets{suggest_keyword((parameter.name,), known)}")
    return names


def _holds(constraint: Callable[..., Any], names: list[str], values: dict[str, Any]) -> bool:
    given = {name: values[name] for name in names}
    try:
        return bool(constraint(**given))
    except Exception as error:
        raise LaunchError(f"the constraint {_name(constraint)} raised {type(error).__name__}: {error}; "
                          f"it was called with {config_text(given)}") from error


def _name(constraint: Callable[..., Any], number: int | None = None) -> str:
    name = getattr(constraint, "__name__", "<lambda>")
    if name != "<lambda>":
        return name
    line = getattr(getattr(constraint, "__code__", None), "co_firstlineno", None)
    return f"{'constraint ' + str(number) if number else 'lambda'}{f' (line {line})' if line else ''}"


def config_text(config: Config) -> str:
    """A configuration in words: ``BLOCK=512, num_warps=4``."""
    return ", ".join(f"{name}={value!r}" for name, value in config.items())


def key_names(key: Iterable[str] | str | None, kernel: Kernel) -> tuple[str, ...] | None:
    """The parameters that tell kinds of calls apart; None for all. LaunchError for a name that is none."""
    if key is None:
        return None
    names = (key,) if isinstance(key, str) else tuple(key)
    for name in names:
        if all(name != p.name for p in kernel.parameters):
            raise LaunchError(f"key names parameters of {kernel.name}, and {name!r} is none")
    return names


__all__ = ["Choices", "choice", "complete_configs", "config_text", "apply_constraints", "key_names", "listed_configs"]
