"""The command line, ``tilejit`` or ``python -m tilejit``, with a module of this folder for each command.

A command's module is imported when it runs: ``run(arguments)`` prints, and returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys

from .. import __version__
from ..errors import TileError
from ..lazy import Lazy

COMMANDS = {"demo": Lazy("tilejit.cli.demonstration"), "doctor": Lazy("tilejit.cli.doctor"),
            "explain": Lazy("tilejit.cli.explain"), "inspect": Lazy("tilejit.cli.stages"),
            "diff": Lazy("tilejit.cli.diff"), "bench": Lazy("tilejit.cli.measurement"),
            "cache": Lazy("tilejit.cli.cache"), "ptx": Lazy("tilejit.cli.instruction_table")}
STAGES = ("graph", "llvm", "ptx", "sass")


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
    command("doctor", "what is here, what works, and what to install", "the same for programs")
    _add_kernel(command("explain", "how a kernel is lowered, and why", "the same for programs"))
    inspect = command("inspect", "the text of a stage of a kernel", "the same for programs")
    _add_kernel(inspect)
    inspect.add_argument("--stage", choices=STAGES, default="ptx", help="default ptx; sass has source lines beside it")
    diff = command("diff", "two builds: other kernels, arguments, constants, options or targets",
                   "the same for programs")
    _add_kernel(diff)
    diff.add_argument("other", nargs="?", metavar="FILE:KERNEL", help="the second kernel, if it is another")
    diff.add_argument("--stage", choices=STAGES, default="ptx", help="the stage whose text is compared, default ptx")
    _add_build(diff, "--to-", "of the second build: ")
    _add_timing(command("bench", "calls timed on the GPU, in turns", "the same for programs, with all samples"))
    cache = command("cache", "what the on-disk cache holds, or remove it", "the same for programs")
    cache.add_argument("--clear", action="store_true", help="remove the entries instead: all, or those selected below")
    cache.add_argument("--kernel", metavar="NAME", help="only entries of this kernel")
    cache.add_argument("--older-than", metavar="AGE", help="only entries last used so long ago: 30d, 12h, 45m, 10s")
    command("ptx", "the instruction table", "one object per form: name, one PTX line, targets")
    return parser


def _add_timing(parser: argparse.ArgumentParser) -> None:
    """Add calls and how to time them."""
    parser.add_argument("calls", nargs="+", metavar="FILE:CALL",
                        help="a function without arguments, or a dict of such, as in speed.py:add")
    parser.add_argument("--rounds", type=int, default=50, help="rounds that alternate over the calls, default 50")
    parser.add_argument("--warmup-ms", type=float, default=25.0, metavar="MS", help="warm-up of each call, default 25")
    parser.add_argument("--warm", action="store_true", help="do not flush the L2 cache before each timing")
    parser.add_argument("--no-graph", action="store_true", help="time launches by the host, not CUDA graphs")
    parser.add_argument("--bytes", type=int, metavar="N", help="the bytes that a call is credited with")
    parser.add_argument("--flops", type=int, metavar="N", help="the operations that a call is credited with")
    parser.add_argument("--device", type=int, metavar="N", help="the number of the GPU")


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    """Add a kernel and what to compile it for."""
    parser.add_argument("kernel", metavar="FILE:KERNEL", help="as in kernels.py:softmax or package.module:softmax")
    _add_build(parser, "--", "")


def _add_build(parser: argparse.ArgumentParser, prefix: str, whose: str) -> None:
    """Add the options that describe a build, named with a prefix."""
    parser.add_argument(f"{prefix}arg", action="append", default=[], metavar="NAME=SPEC",
                        help=f"{whose}an argument: float32[1024,1000], with strides float32[1024,1000]:1024,1, or 7")
    parser.add_argument(f"{prefix}const", action="append", default=[], metavar="NAME=VALUE",
                        help=f"{whose}a constexpr parameter: BLOCK=1024, DTYPE=float16")
    parser.add_argument(f"{prefix}option", action="append", default=[], metavar="NAME=VALUE",
                        help=f"{whose}a launch option: num_warps=8")
    parser.add_argument(f"{prefix}target", metavar="TARGET", help=f"{whose}sm_80 to sm_120a")


__all__ = ["main"]
