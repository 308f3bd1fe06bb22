"""The site, by Sphinx: ``python -m sphinx -W -j auto -c docs/site . build/site``, after ``pip install -e '.[docs]'``.

MyST reads the Markdown as GitHub does, with the same anchors and links, so a page looks the same in the repository. A
broken link, a missing anchor and a page that NAVIGATION leaves out are warnings, which -W makes errors. The reference
is generated before (``python -m tests.public.generate``): the signatures that users see are not those of the functions.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser

ROOT = Path(__file__).resolve().parents[2]

project = "tilejit"
author = "The tilejit authors"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/**/*.md", "docs/*.md", "tutorials/*.ipynb", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "tests", "tilejit"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # of code in languages that Pygments does not know

html_theme = "furo"
html_title = "tilejit"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
smartquotes = False  # messages and code in tables are shown as they are
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style, pygments_dark_style = "friendly", "one-dark"

# What the sidebar lists: {heading of a group: its pages}. The pages of PARTS open below one of them.
NAVIGATION = {
    "Start": "start guide/from_triton guide/coming_from comparison limits",
    "Tutorials": "../tutorials/*",
    "Tiles and arrays": (
        "guide/arrays guide/dtypes guide/arithmetic guide/reductions guide/order guide/random_numbers guide/gather "
        "guide/atomics guide/control_flow"
    ),
    "Products and attention": (
        "guide/products guide/pipelined_loops guide/warp_specialization guide/matmul guide/attention"
    ),
    "Threads, memory, synchronisation": (
        "guide/scopes guide/shared_memory guide/copies guide/barriers guide/clusters guide/schedules guide/wgmma "
        "guide/tensor_memory guide/tcgen05 guide/ptx"
    ),
    "Use": "guide/launch guide/interoperability guide/frameworks guide/export guide/command_line",
    "Debug": "guide/debugging guide/testing guide/simulator",
    "Performance": "guide/hopper guide/tuning lab/index",
    "Look up": "reference/README ../CHANGELOG",
    "Contribute": "../CONTRIBUTING internals/how_it_works",
}
PARTS = {
    "docs/guide/copies": "tma tensor_maps gathered_rows convolution",
    "docs/lab/index": "matrix_products copies attention first_kernels memory compile_time",
    "docs/reference/README": (
        "launch ids scopes values creation random elementwise shape reductions order warps memory copies products "
        "synchronisation checks ptx dtypes layouts tools errors"
    ),
    "CONTRIBUTING": "docs/contributing/op docs/contributing/variant docs/contributing/instruction docs/contributing/pass",
    "docs/internals/how_it_works": (
        "layouts copies/ldgsts copies/tma copies/bulk copies/dsmem copies/tcgen05_cp copies/vector launching simulator "
        "matmul instructions testing"
    ),
}


def toctree(pages: str, caption: str = "") -> str:
    lines = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else []), "", *pages.split()]
    return "\n\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """The pages below a page are not written on it, where other readers of Markdown would show them as code."""
    if page == root_doc:
        source[0] += "".join(toctree(pages, caption) for caption, pages in NAVIGATION.items())
    elif page in PARTS:
        source[0] += toctree(PARTS[page])


# -- notebooks ---------------------------------------------------------------------------------------------------------


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def shown(output: dict[str, Any]) -> str:
    """An output of a cell: its picture, if it has one, and otherwise its text."""
    if output["output_type"] == "stream":
        return fenced("text", "".join(output["text"]))
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    for kind in ("image/svg+xml", "image/png"):
        if kind in data:
            inside = data[kind] if kind.endswith("png") else base64.b64encode(data[kind].encode()).decode()
            return f'<img class="output" alt="picture" src="data:{kind};base64,{"".join(inside.split())}">'
    return data["text/html"] if "text/html" in data else fenced("text", data.get("text/plain", ""))


def markdown_of(notebook: str, name: str) -> str:
    """A notebook with its stored outputs as Markdown."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else fenced("python", text))
        parts += [shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join([*parts, f"---\n\nThis page is the notebook `tutorials/{name}`, with its stored outputs."])


class NotebookParser(MystParser):
    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(markdown_of(inputstring, Path(document["source"]).name), document)


# -- names and the first page ------------------------------------------------------------------------------------------


def register_names(app: Any, document: nodes.document) -> None:
    """The sections of the reference are objects: for the search, and for links from other projects (objects.inv)."""
    if not app.env.docname.startswith("docs/reference/"):
        return
    for section in document.findall(nodes.section):
        name = section.next_node(nodes.title).astext()
        if name.startswith(("tile.", "tilejit.")):
            kind = "class" if name.rpartition(".")[2][0].isupper() else "function"
            full = "tilejit." + name.partition(".")[2]
            app.env.domains["py"].note_object(full, kind, section["ids"][0], location=section)


def link_names(app: Any, document: nodes.document, page: str) -> None:
    """A name in code, such as `tile.sum` or `tile.sum(x, axis=0)`, leads to its section of the reference."""
    objects = app.env.domains["py"].objects
    for code in list(document.findall(nodes.literal)):
        name = re.match(r"(?:tile|tilejit)\.(\w+(?:\.\w+)*)", code.astext())
        entry = objects.get(f"tilejit.{name[1]}") if name else None
        inside = any(isinstance(node, (nodes.reference, nodes.title)) for node in ancestors(code))
        if entry and not inside and entry.docname != page:
            uri = f"{app.builder.get_relative_uri(page, entry.docname)}#{entry.node_id}"
            code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=uri))


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def lead_to_the_index(app: Any, error: Exception | None) -> None:
    """The site's own root leads to docs/index.html."""
    if error is None:
        page = '<!doctype html><title>tilejit</title><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        Path(app.outdir, "index.html").write_text(page)


def setup(app: Any) -> None:
    app.add_source_parser(NotebookParser)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", register_names)
    app.connect("doctree-resolved", link_names)
    app.connect("build-finished", lead_to_the_index)
