"""The table as JSON and as Markdown."""

from __future__ import annotations

import json

from .lookup import forms
from .probe import example
from .row import EFFECTS, LISTS, TARGETS, expand
from .table import SECTIONS


def to_json(target: str | None = None) -> str:
    """All forms, or those of `target`: name, one line of PTX, and targets."""
    listed = [{"name": form.name, "ptx": example(form), "targets": list(form.targets)} for form in forms(target)]
    return "[\n" + ",\n".join(map(json.dumps, listed)) + "\n]"


def coverage_markdown() -> str:
    """The table row by row: pattern, number of forms, effect, and number of forms on each target."""
    lines = ["# PTX instruction forms", "",
             "A pattern gives the names of a row's forms: `<a|b>` is one of these, "
             "`<list>` one of a list below, an empty",
             "one meaning none; `#word` tells forms of one mnemonic apart. Under a target, "
             "a dot says that it has all forms,",
             "a number how many.", ""]
    lines += [f"- *{effect}*: {meaning}" for effect, meaning in EFFECTS.items()]
    lines += ["", "| list | of |", "| --- | --- |"]
    lines += [f"| {name} | {', '.join(f'`{item}`' if item else 'none' for item in items)} |"
              for name, items in LISTS.items()]
    for title, section in SECTIONS:
        lines += ["", f"## {title}", "", "| pattern | forms | effect | " + " | ".join(TARGETS) + " |",
                  "| --- | ---: | --- |" + " :-: |" * len(TARGETS)]
        for row in section:
            having = [sum(target in form.targets for form in expand(row)) for target in TARGETS]
            total = len(expand(row))
            marks = [{0: "", total: "•"}.get(n, str(n)) for n in having]
            pattern = row.pattern.replace("|", "\\|")
            lines.append(f"| `{pattern}` | {total} | {row.effect} | " + " | ".join(marks) + " |")
    return "\n".join(lines) + "\n"
