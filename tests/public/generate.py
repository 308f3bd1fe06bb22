"""Writes what is generated from signatures and docstrings: ``tilejit/__init__.pyi`` and the pages of docs/reference.

python -m tests.public.generate            writes them
python -m tests.public.generate --check    names those that differ, and ends with 1 if there are any
"""

from __future__ import annotations

import sys
from pathlib import Path

from .pages import pages
from .stub import stub

ROOT = Path(__file__).resolve().parents[2]


def generated() -> dict[Path, str]:
    """The text of each generated file."""
    reference = ROOT / "docs" / "reference"
    return {
        ROOT / "tilejit" / "__init__.pyi": stub(),
        **{reference / f"{name}.md": text for name, text in pages().items()},
    }


def stale() -> list[str]:
    """The generated files that differ from what would be written, and pages that nothing generates."""
    files = generated()
    differ = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    differ += set((ROOT / "docs" / "reference").glob("*.md")) - set(files)
    return [str(path.relative_to(ROOT)) for path in differ]


def main() -> None:
    if "--check" in sys.argv[1:]:
        differ = stale()
        print("\n".join(differ))
        sys.exit(bool(differ))
    files = generated()
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        if path not in files:
            path.unlink()


if __name__ == "__main__":
    main()
