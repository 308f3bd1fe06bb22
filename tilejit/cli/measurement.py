"""``tilejit bench``: calls of a file, timed on the GPU in turns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

from ..errors import LaunchError
from ..names import suggest_nearest
from ..timing import bench
from .kernels import load_module
from .text import print_json


def run(arguments: argparse.Namespace) -> int:
    """Print the table of the calls."""
    with redirect_stdout(sys.stderr):  # what the file and the calls print
        calls: dict[str, Any] = {}
        modules: dict[str, ModuleType] = {}
        for text in arguments.calls:
            found = find_calls(text, modules)
            twice = next((name for name in found if name in calls), None)
            if twice is not None:
                raise LaunchError(f"two calls are named {twice}: give them as a dict, with names of their own")
            calls.update(found)
        result = bench(calls, rounds=arguments.rounds, warmup_ms=arguments.warmup_ms, graph=not arguments.no_graph,
                       flush=False if arguments.warm else None, nbytes=arguments.bytes, flops=arguments.flops,
                       device=arguments.device)
    if arguments.json:
        print_json(result.describe())
    else:
        print(result)
    return 0


def find_calls(text: str, modules: dict[str, ModuleType]) -> dict[str, Any]:
    """The calls of FILE:CALL or MODULE:CALL, by name: what is there, or the items of a dict. `modules` has those that
    are loaded, by FILE or MODULE. LaunchError if there is no such name."""
    place, _, name = text.partition(":")
    if not name:
        raise LaunchError(f"name a function without arguments, or a dict of such, as in {place}:CALL")
    if place not in modules:
        modules[place] = load_module(place)
    found: Any = modules[place]
    names = [n for n, value in vars(found).items() if callable(value) or isinstance(value, Mapping)]
    for part in name.split("."):
        if not hasattr(found, part):
            raise LaunchError(f"{place} has nothing named {name}{suggest_nearest(name, names)}")
        found = getattr(found, part)
    return dict(found) if isinstance(found, Mapping) else {name: found}
