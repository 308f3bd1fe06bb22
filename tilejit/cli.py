"""The commands of ``python -m tilejit``: ``demo``, ``cache``, ``ptx``."""

from __future__ import annotations

import argparse
import os
import sys

from .config import config
from .errors import TileError
from .lazy import Lazy
from .runtime.store import Store

demo = Lazy("tilejit.demo")  # brings the language
ptx = Lazy("tilejit.ptx")  # the instruction table


def main(argv: list[str] | None = None) -> int:
    """Run the command of `argv`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tilejit",
                                     description="GPU kernels in Python, lowered per call site.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="compile four kernels, say how each copy was lowered, run and check them")
    cache = commands.add_parser("cache", help="what the on-disk cache holds")
    cache.add_argument("--clear", action="store_true", help="remove every entry")
    ptx = commands.add_parser("ptx", help="the instruction table")
    ptx.add_argument("--json", action="store_true", help="one object per form: name, one PTX line, targets")
    arguments = parser.parse_args(argv)
    try:
        status = {"demo": _demo, "cache": _cache, "ptx": _ptx}[arguments.command](arguments)
        sys.stdout.flush()
        return status
    # the reader has closed the pipe, as `head` does; redirect, or the interpreter's last flush would fail too
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except TileError as error:
        print(f"tilejit: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _demo(arguments: argparse.Namespace) -> int:
    code: int = demo.run()
    return code


def _cache(arguments: argparse.Namespace) -> int:
    store = Store(config().cache_path)
    if arguments.clear:
        print(f"removed {store.clear()} entries from {config().cache_path}")
        return 0
    entries = store.entries()
    total = sum(e.nbytes for e in entries)
    print(f"{config().cache_path}: {len(entries)} entries, {total / 1e6:.2f} MB")
    for entry in entries:
        print(f"  {entry.kind:10} {entry.nbytes:>9}  {entry.key}")
    return 0


def _ptx(arguments: argparse.Namespace) -> int:
    print(ptx.to_json() if arguments.json else ptx.coverage_markdown())
    return 0
