"""The command line, ``tilejit`` or ``python -m tilejit``, with a module of this folder for each command.

A command's module is imported when it runs: ``run(arguments)`` prints, and returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys

from .. import __version__
from ..errors import TileError
from ..lazy import Lazy

COMMANDS = {"demo": Lazy("tilejit.cli.demo"), "cache": Lazy("tilejit.cli.cache"), "ptx": Lazy("tilejit.cli.ptx")}


def main(argv: list[str] | None = None) -> int:
    """Run the command of `argv`; returns the exit status."""
    arguments = _make_parser().parse_args(argv)
    try:
        status: int = COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
        return status
    # the reader has closed the pipe, as `head` does; redirect, or the interpreter's last flush would fail too
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except TileError as error:
        print(f"tilejit: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tilejit", description="GPU kernels in Python, lowered per call site.")
    parser.add_argument("--version", action="version", version=f"tilejit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, json: str = "") -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        if json:
            added.add_argument("--json", action="store_true", help=json)
        return added

    command("demo", "compile four kernels, say how each copy was lowered, run and check them")
    cache = command("cache", "what the on-disk cache holds, or remove it", "the same for programs")
    cache.add_argument("--clear", action="store_true", help="remove the entries instead: all, or those selected below")
    cache.add_argument("--kernel", metavar="NAME", help="only entries of this kernel")
    cache.add_argument("--older-than", metavar="AGE", help="only entries last used so long ago: 30d, 12h, 45m, 10s")
    command("ptx", "the instruction table", "one object per form: name, one PTX line, targets")
    return parser


__all__ = ["main"]
