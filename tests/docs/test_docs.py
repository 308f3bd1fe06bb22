"""The pages say what is so: their examples run and print what stands below them, their tables are the code's.

A page's ``python`` blocks run in order, in one namespace. The ``text`` block right after one is what it prints, on both
streams; after a block marked ``python raises SomeError`` it is the error's text. A ``...`` in it stands for any text.
The tables between ``<!-- table NAME -->`` and ``<!-- end -->`` are made by the functions of TABLES; to write them anew:

    python tests/docs/test_docs.py
"""

from __future__ import annotations

import inspect
import io
import linecache
import os
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import tilejit as tile

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"(<!-- table ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")


# -- examples ------------------------------------------------------------------------------------------------------------

@dataclass
class Example:
    """A block of Python: the line of the page it begins at, the error it raises, and the text that stands below it."""

    line: int
    code: str
    raises: str | None
    expected: str | None


def examples(text: str) -> list[Example]:
    """The Python blocks of a page, with what is to come out of them."""
    found: list[Example] = []
    end = None
    for block in _BLOCK.finditer(text):
        language, marks, body = block[1], block[2].split(), block[3]
        if language == "python":
            raises = marks[marks.index("raises") + 1] if "raises" in marks else None
            found.append(Example(text.count("\n", 0, block.start()) + 2, body, raises, None))
        elif language == "text" and end is not None and not text[end:block.start()].strip():
            found[-1].expected = body
        end = block.end() if language == "python" else None
    return found


def run(example: Example, namespace: dict) -> str:
    """What the example prints, or the text of the error it raises."""
    name = "example.py"
    linecache.cache[name] = (len(example.code), None, example.code.splitlines(keepends=True), name)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: print(f"{type(message).__name__}: {message}", file=printed)
        if example.raises is None:
            exec(compile(example.code, name, "exec"), namespace)
            return printed.getvalue()
        with pytest.raises(Exception) as caught:
            exec(compile(example.code, name, "exec"), namespace)
    assert type(caught.value).__name__ == example.raises, f"raised {caught.value!r}"
    return f"{caught.value}\n"


def matches(expected: str, printed: str) -> bool:
    """Whether the text is as the page has it; ``...`` stands for anything."""
    shape = lambda text: "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    pattern = ".*?".join(map(re.escape, shape(expected).split("...")))
    return re.fullmatch(pattern, shape(printed), re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_of_a_page_runs_and_prints_what_stands_below_it(page, tmp_path, monkeypatch):
    """All Python blocks of a page, one after the other in one namespace, as a reader would type them."""
    for name in [n for n in os.environ if n.startswith("TILEJIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(import_module("tilejit.jit"), "_say_once_that_a_gpu_is_there", lambda: None)  # that there is a GPU, where there is one
    namespace = {"__name__": "example"}
    for example in examples(page.read_text()):
        try:
            printed = run(example, namespace)
        except BaseException as error:
            raise AssertionError(f"{page.name}, the example at line {example.line}: {type(error).__name__}: {error}") from error
        if example.expected is not None:
            assert matches(example.expected, printed), f"{page.name}, the example at line {example.line} gave:\n{printed}"


def test_what_an_example_prints_is_compared_with_the_page():
    """The checker itself: a wrong output, a wrong error and a missing error are seen."""
    (good,) = examples("```python\nprint(1, 2)\n```\n\n```text\n1 ...\n```\n")
    assert matches(good.expected, run(good, {}))
    assert not matches("2 ...\n", run(good, {}))
    for code in ("pass", "raise TypeError('no')"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            run(Example(1, code, "ValueError", None), {})


# -- tables --------------------------------------------------------------------------------------------------------------

def markdown(head: tuple[str, ...], rows) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(x) -> str:
    return f"`{x}`"


def table_dtypes() -> str:
    from tilejit.dtypes import DTYPES
    return markdown(("dtype", "bytes", "values"), (
        (code(repr(d)), f"{d.packing[1]}/{d.packing[0]}" if d.packed else d.nbytes, {
            "bool": "true, false", "int": f"-2^{d.bits - 1} to 2^{d.bits - 1} - 1", "uint": f"0 to 2^{d.bits} - 1",
            "float": f"{d.mantissa + 1} significant bits" if d.mantissa else "2^-127 to 2^127, powers of two, and NaN"}[d.kind])
        for d in DTYPES.values() if not d.padded))


def table_promotion() -> str:
    from tilejit.dtypes import DTYPES, promote
    shown = [d for name, d in DTYPES.items() if name not in ("int16", "uint16", "uint32", "float8_e8m0fnu") and not d.packed]
    return markdown(("", *map(code, shown)), ((code(a), *(promote(a, b) for b in shown)) for a in shown))


def table_layouts() -> str:
    from inspect import getdoc, isfunction, signature
    from tilejit import TileLayout

    def row(name, member):
        does = re.match(r".*?[^.\d][.;](?=\s|$)", " ".join(getdoc(member).split()))[0].rstrip(".;")
        if not isfunction(getattr(TileLayout, name)):
            return code(f".{name}"), does
        taken = [p for p in signature(getattr(TileLayout, name)).parameters.values() if p.name not in ("self", "divides")]
        words = (f"{'*' * (p.kind is p.VAR_POSITIONAL)}{p.name}" + ("" if p.default is p.empty else f"={p.default!r}") for p in taken)
        return code(f"{'TileLayout' * isinstance(member, staticmethod)}.{name}({', '.join(words)})"), does

    shown = [(name, m) for name, m in vars(TileLayout).items() if not name.startswith("_") and (isfunction(m) or hasattr(m, "__get__"))]
    return markdown(("", "what it is"), (row(name, m) for name, m in shown if getdoc(m) and name not in TileLayout.__dataclass_fields__))


def table_math() -> str:
    from tilejit.ops.math import _TABLE as functions
    return markdown(("function", "float32", "`fast=True`"),
                    ((code(f"tile.{name}"), ulp, fast or "") for name, _, _, ulp, _, fast in functions))


def table_atomics() -> str:
    from tilejit.ops.atomics import DTYPES
    return markdown(("operation", "dtypes"), ((code(f"tile.atomic_{kind}"), ", ".join(dtypes)) for kind, dtypes in DTYPES.items()))


def table_reductions() -> str:
    from tilejit.ops.copy_async.reductions import TYPES
    where = {"tensor map": "`tma`", "global": "`bulk`, to an array", "shared": "`dsmem`, to a peer"}
    kinds = list(dict.fromkeys(kind for _, kind in TYPES))
    return markdown(("reduce=", *where.values()), ((code(kind), *(", ".join(TYPES[place, kind]) for place in where)) for kind in kinds))


def table_targets() -> str:
    from tilejit.config import TARGETS, architecture
    from tilejit.passes.shared_memory import SHARED_LIMIT
    return markdown(("target", "shared memory of a CTA, bytes"), ((code(t), SHARED_LIMIT[architecture(t)]) for t in TARGETS))


def table_settings() -> str:
    from inspect import getsource
    from tilejit.config import Config
    comments = dict(re.findall(r"^    (\w+): \w+ = [^#\n]*# (.*)$", getsource(Config), re.MULTILINE))
    return markdown(("variable", "what it sets"), ((code(f"TILEJIT_{f.name.upper()}"), comments[f.name]) for f in fields(Config)))


def table_facts() -> str:
    from inspect import getsource
    from tilejit.runtime.facts import describe_fact
    kinds = re.findall(r'case "(\w+)":', getsource(describe_fact))
    rest = {"aligned": (16,), "size_multiple": (1, 64), "size_is": (0, 1), "size_at_least": (0, 1), "size_within": (0, 2),
            "stride_multiple": (0, 8), "stride_is": (1, 1), "stride_at_least": (0, 0), "scalar_multiple": (8,), "scalar_between": (-128, 127), "no_overlap": (1,)}
    name = lambda kind: "n" if kind.startswith("scalar") else "A"
    return markdown(("fact", "for example"), ((code(kind), describe_fact((kind, 0, *rest.get(kind, ())), (name(kind), "B", "M"))) for kind in kinds))


def table_kinds() -> str:
    from tilejit.sim.report import KINDS
    missing = [k for k in KINDS if k not in MEANING]
    assert not missing, f"say in MEANING what these findings mean: {missing}"
    return markdown(("kind", "what was found"), ((code(kind), MEANING[kind]) for kind in KINDS))


MEANING = {
    "race": "two threads, or two CTAs, touch the same bytes, one of them writes, and nothing orders them",
    "missing-wait": "bytes of an asynchronous copy, or an operand of the tensor cores, are accessed before the wait for it; a kernel that "
                    "ends without that wait",
    "missing-proxy-fence": "ordinary writes to shared memory that the async proxy reads without a `fence_proxy_async()` in between, or a "
                           "tensor map that a copy reads without its fences",
    "uninitialized-read": "shared or tensor memory is read that nothing has written",
    "out-of-bounds": "an access outside its buffer that the language does not clip",
    "misaligned": "an address or a size that is no multiple of what the instruction requires",
    "deadlock": "threads that wait for something that can no longer happen",
    "barrier-phase": "a wait for a phase that had already completed, that nothing completes, that a slow warp may miss, or that may begin before "
                     "the previous phase has completed; arrivals beyond a barrier's count, or that may count toward the previous phase",
    "barrier-lifecycle": "a barrier used before its initialisation or after its invalidation, initialised while in use, or with a count that "
                         "an mbarrier cannot hold",
    "transaction-count": "the bytes announced to a barrier differ from those that its copies transfer, or exceed the 2^20 - 1 that one phase "
                         "counts",
    "descriptor": "a tensor map or coordinates that the encoder or the hardware refuses",
    "wgmma-order": "an operand or accumulator of an mma in flight that is accessed before the wait for it",
    "tmem": "tensor memory used outside its allocation, its lifetime or the warp's lanes, without the fences between threads, or by a product "
            "whose accumulator lies over what it reads there",
    "divergent-collective": "an operation of the whole scope that some of its threads do not reach",
    "assertion": "a `device_assert` or `assume` that does not hold; a number that does not fit in the dtype it takes",
}


def _needs(name: str) -> str:
    from tilejit.ops.copy_async import VARIANTS
    from tilejit.ops.mma import tcgen05
    from tilejit.ops.tmem import ldst
    (variant,) = (v for v in (*VARIANTS, *ldst.VARIANTS, tcgen05.VARIANT) if v.name == name)
    return "".join(f"- {need.words}\n" for need in variant.needs)


def _further(name: str) -> str:
    """The needs of a variant that a tensor copy of a region does not have."""
    from tilejit.ops.copy_async import selected, tma, tma_map
    known = {need.words for need in tma.NEEDS}
    variant = tma_map.VARIANT if name == "named" else getattr(selected, name)
    return "".join(f"- {need.words}\n" for need in variant.needs if need.words not in known)


def table_instructions() -> str:
    from tilejit.ptx import coverage_markdown
    return re.sub(r"^##", "###", coverage_markdown().partition("\n\n")[2], flags=re.MULTILINE)


def table_families() -> str:
    from instruction_use import families
    from tilejit.ptx import TARGETS
    return markdown(("family", "rows", "forms", *TARGETS, "rows that the compiler writes"), families())


def table_uses() -> str:
    from instruction_use import missing, written_for
    unknown, unseen = missing()
    assert not unknown, f"the compiler writes what the table of instructions has no row for: {sorted(unknown)}"
    assert not unseen, f"give tests/docs/instruction_use.py a kernel that gets {sorted(unseen)}"
    return markdown(("instruction", "in a kernel", "written for"), ((code(word), code(name), operations) for word, name, operations in written_for()))


TABLES = {
    "dtypes": table_dtypes, "promotion": table_promotion, "math": table_math, "atomics": table_atomics, "targets": table_targets,
    "settings": table_settings, "instructions": table_instructions, "reductions": table_reductions, "facts": table_facts,
    "kinds": table_kinds, "families": table_families, "uses": table_uses, "layouts": table_layouts,
    "ldgsts": lambda: _needs("ldgsts"), "tma": lambda: _needs("tma"), "vector": lambda: _needs("vector"),
    "patches": lambda: _further("PATCHES"), "rows": lambda: _further("TAKEN"), "named": lambda: _further("named"),
    "bulk": lambda: _needs("bulk"), "dsmem": lambda: _needs("dsmem"), "tcgen05_ldst": lambda: _needs("tcgen05_ldst"),
    "tcgen05_cp": lambda: _needs("tcgen05_cp"), "tcgen05": lambda: _needs("tcgen05"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_generated_tables_of_a_page_are_what_the_code_says(page):
    """A stale table is written anew by ``python tests/docs/test_docs.py``."""
    for table in _TABLE.finditer(page.read_text()):
        assert table[3] == TABLES[table[2]](), f"the table {table[2]} of {page.name} is stale: run python tests/docs/test_docs.py"


# -- what the pages must have ------------------------------------------------------------------------------------------------

def test_every_table_stands_on_some_page():
    """No table is made for nobody."""
    used = {table[2] for page in PAGES for table in _TABLE.finditer(page.read_text())}
    assert used == set(TABLES)


def test_every_public_name_stands_on_the_page_of_the_language():
    """What `import tilejit as tile` offers is named there, in code."""
    page = (ROOT / "docs" / "language.md").read_text()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", page)) + " ".join(b[3] for b in _BLOCK.finditer(page))))
    names = [n for n in dir(tile) if not n.startswith("_") and not isinstance(getattr(tile, n), ModuleType)]
    assert not [n for n in names if n not in words]


def test_a_full_signature_is_that_of_the_function():
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "language.md").read_text())
    found = re.findall(r"full signature is `tile\.(\w+)\(([^`]*)\)`", text)
    assert found
    for name, shown in found:
        parameters = list(inspect.signature(getattr(tile, name).function).parameters.values())[1:]  # the first is the builder
        assert shown.replace('"', "'") == ", ".join(p.name + (f"={p.default!r}" if p.default is not p.empty else "") for p in parameters)


def test_every_launch_option_stands_on_the_page_of_the_language():
    """In the table of launch options."""
    from tilejit.runtime.options import CALL_OPTIONS, LAUNCH_OPTIONS
    page = (ROOT / "docs" / "language.md").read_text()
    assert not [name for name in LAUNCH_OPTIONS + CALL_OPTIONS if f"| `{name}` |" not in page]


def test_every_variant_of_copy_async_has_its_needs_a_program_its_graph_its_ptx_and_what_inputs_change():
    """On the page of copies, in the section of its name; that they are right is tested with the page's other examples."""
    from tilejit.ops.copy_async import VARIANTS
    page = (ROOT / "docs" / "copies.md").read_text()
    for name in (v.name for v in VARIANTS):
        section = re.split(r"^## ", page[page.index(f"\n## {name}\n") + 4:], flags=re.MULTILINE)[0]
        printed = "".join(example.expected or "" for example in examples(section))
        assert f"<!-- table {name} -->" in section, f"{name}: what it needs"
        assert "tile.copy_async(" in section or name == "vector", f"{name}: a program"
        assert re.search(rf"copy_async\(.* by {name}$", printed, re.MULTILINE), f"{name}: its graph"
        assert re.search(r"^ *(cp\.async|ld\.global|tcgen05\.cp)\S* ?", printed, re.MULTILINE), f"{name}: its PTX"
        assert "**How inputs change it.**" in section, f"{name}: how inputs change it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    """To a file of the repository, and to a heading of it if the link names one."""
    anchor = lambda heading: re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
    for target, heading in _LINK.findall(_BLOCK.sub("", page.read_text())):
        if target.startswith("http"):
            continue
        path = page.parent / target
        assert path.exists(), f"{page.name} links to {target}"
        if heading:
            assert heading in map(anchor, re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)), f"{page.name} links to {target}#{heading}"


if __name__ == "__main__":
    for path in PAGES:
        before = path.read_text()
        after = _TABLE.sub(lambda table: table[1] + TABLES[table[2]]() + table[4], before)
        if after != before:
            path.write_text(after)
            print(f"wrote {path.relative_to(ROOT)}")
