"""Prints the paths of CPythons that this machine has and the package supports, neither previews nor free-threaded ones.

    python .ci/pythons.py          the oldest and the newest, if they are not of the version that runs this
    python .ci/pythons.py --first  the one for all tests: the distribution's, or the one that runs this

They are those of pyenv, and `python3.N` on PATH. A distribution's build ran all tests in 728 s, the one that pyenv makes by
default in 844 s."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWEST = 30  # minor versions that are looked for


def oldest_supported() -> int:
    """The minor version of 3 that the package needs."""
    return int(re.search(r'^requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1])


def candidates() -> list[str]:
    """Programs that may be Pythons."""
    home = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    named = (shutil.which(f"python3.{minor}") for minor in range(oldest_supported(), NEWEST))
    return [*map(str, sorted(home.glob("versions/3.*/bin/python3"))), *filter(None, named)]


def minor_of(program: str) -> int | None:
    """The minor version of a finished CPython 3 that can make virtual environments; None of anything else."""
    code = ("import ensurepip, sys, sysconfig, venv; print(sys.implementation.name, *sys.version_info[:2], "
            "sys.version_info.releaselevel, sysconfig.get_config_var('Py_GIL_DISABLED') or 0)")
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    found = re.fullmatch(r"cpython 3 (\d+) final 0\n", done.stdout)
    return int(found[1]) if done.returncode == 0 and found else None


def chosen(programs: list[str], own: int, least: int) -> list[str]:
    """Of programs, the one of the oldest version from `least` on and the one of the newest, but for the version `own`."""
    by_minor: dict[int, str] = {}
    for program in programs:
        minor = minor_of(program)
        if minor is not None and minor >= least:
            by_minor.setdefault(minor, program)
    ends = sorted({min(by_minor), max(by_minor)}) if by_minor else []
    return [by_minor[minor] for minor in ends if minor != own]


def first(programs: list[str], least: int) -> str:
    """The first of programs that is supported, or the one that runs this."""
    return next((program for program in programs if (minor_of(program) or 0) >= least), sys.executable)


if __name__ == "__main__":
    if sys.argv[1:] == ["--first"]:
        print(first(["/usr/bin/python3"], oldest_supported()))
        sys.exit()
    print("\n".join(chosen(candidates(), sys.version_info[1], oldest_supported())))
