"""Writes what is generated from signatures and docstrings: ``tilejit/__init__.pyi`` and the pages of docs/reference.

python -m tests.public.generate
"""

from __future__ import annotations

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


def main() -> None:
    files = generated()
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        if path not in files:
            path.unlink()


if __name__ == "__main__":
    main()
