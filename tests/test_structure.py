"""The structure of the package: which layer may import which, and what importing it loads."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.package_trees import ROOT, nodes_of, tree_of

# A layer may import itself and the layers before it.
LAYERS = ("errors", "config", "frames", "concurrency", "lazy", "names", "svg", "timeline", "roofline", "layout", "dtypes", "types", "records", "dispatch", "ptx", "ir", "ops", "frontend",
          "passes", "sim", "emit", "toolchain", "runtime", "compile", "compiled", "manifest", "warm", "export", "interop", "jit", "jax", "plan", "schedule", "work", "timing", "profiling", "tuning",
          "kernels", "testing", "api", "demo", "cli", "__init__", "__main__")

# Layers that use the package as its users do, through its public name.
PACKAGE_AS_A_WHOLE = {"demo", "cli", "testing", "__main__", "kernels"}


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(path: Path):
    """(layer, line) of every import from the package in a file, including those in functions."""
    depth = len(path.relative_to(ROOT).parts) - 1
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            up = node.level - 1
            base = path.relative_to(ROOT).parts[:depth - up]
            target = (*base, *(node.module.split(".") if node.module else ()))
            for name in [target[0]] if target else [a.name for a in node.names]:
                yield name, node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tilejit":
            rest = node.module.split(".")[1:]
            for name in rest[:1] or [a.name for a in node.names]:
                yield name, node.lineno
        elif name := lazily_imported(node):
            yield name.split(".")[0], node.lineno


def lazily_imported(node: ast.AST) -> str | None:
    """`x` for the expression ``Lazy("tilejit.x")``."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Lazy" and isinstance(node.args[0], ast.Constant):
        return node.args[0].value.removeprefix("tilejit.") if node.args[0].value.startswith("tilejit.") else None
    return None


def test_the_list_of_layers_matches_the_folders_and_modules_of_the_package():
    """Every folder and module is a layer, and vice versa."""
    found = {p.stem for p in ROOT.glob("*.py")} | {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert set(LAYERS) == found and len(LAYERS) == len(found)
    assert PACKAGE_AS_A_WHOLE <= found


def names_in_table(heading: str) -> list[str]:
    """The names of files and folders in the first column of the table below a heading of CONTRIBUTING."""
    section = (ROOT.parent / "CONTRIBUTING.md").read_text().partition(f"{heading}\n")[2].partition("\n#")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)]


def test_the_page_contributing_lists_every_layer_in_order():
    """And the folders of `ROOMS`, in their order."""
    assert names_in_table("## The layers") == [x for x in LAYERS if not x.startswith("__")]
    for layer, folders in ROOMS.items():
        assert names_in_table(f"### The folders of {layer}") == list(folders)


def test_the_page_how_it_works_lists_every_pass_in_order():
    """Its table of passes lists those of the pipeline."""
    from tilejit.compile import PASSES
    page = (ROOT.parent / "docs" / "internals" / "how_it_works.md").read_text()
    passes = page[page.index("## Passes"):page.index("## Choosing a lowering")]
    assert re.findall(r"^\| `(\w+)`", passes, re.MULTILINE) == [name for name, _ in PASSES]


def test_every_pass_has_the_name_of_the_module_that_it_is_in():
    from tilejit import compile as pipeline
    for name, run in pipeline.PASSES:
        functions = [run] if run.__name__ != "<lambda>" else [getattr(pipeline, used) for used in run.__code__.co_names]
        assert {f.__module__.rpartition(".")[2] for f in functions} == {name}
        assert all(f.__module__.startswith("tilejit.passes.") for f in functions)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_imports_a_layer_after_its_own(path):
    """Layers are ordered by `LAYERS`."""
    own = layer_of(path)
    assert own in LAYERS, f"{path} is in no layer"
    if own in PACKAGE_AS_A_WHOLE or own == "__init__":
        return
    for name, line in imports(path):
        if name not in LAYERS:
            continue
        assert LAYERS.index(name) <= LAYERS.index(own), f"{path}:{line} imports {name}, which stands below {own}"


# The folders of a layer, each of which imports only from itself and from those before it.
ROOMS = {
    "ops": ("tiles", "language", "memory", "reduce", "order", "sync", "ptx", "tmem", "moves", "mma", "structure"),
    "passes": ("placement", "analysis", "layouts", "checks", "products", "pipelining"),
}

# Modules that import each other, at any time, and why.
CIRCLES = {
    frozenset({"ir.graph", "ir.printer"}): "a graph prints itself, and the printer knows the kinds of nodes",
    frozenset({"frontend.branches", "frontend.scoping", "frontend.assignment_targets", "frontend.walker"}):
        "a branch walks its statements, and a statement may be a branch",
    frozenset({"__init__", "jit", "manifest"}): "the package makes kernels, and the key of the cache has its version",
}


def modules() -> dict[str, Path]:
    """The files of the package, by the name of the module in it."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(ROOT.rglob("*.py"))}


def run_by_type_checkers_only(path: Path) -> set[int]:
    return {id(inner) for node in nodes_of(path) if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            for inner in ast.walk(node)}


@cache
def imported_modules(when_loaded: bool = False) -> dict[str, set[str]]:
    """For each module those of the package that it imports from, except for type checkers: at any time, or when it is loaded."""
    known, needs = modules(), {}
    for name, path in known.items():
        skipped = run_by_type_checkers_only(path)
        package = name.split(".") if path.name == "__init__.py" and name != "__init__" else name.split(".")[:-1]
        needs[name] = set()
        for node in tree_of(path).body if when_loaded else nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.level and id(node) not in skipped:
                base = [*package[:len(package) - node.level + 1], *(node.module.split(".") if node.module else ())]
                source = ".".join(base) or "__init__"
                targets = {".".join([*base, a.name]) for a in node.names}
                needs[name] |= {target if target in known else source for target in targets} & set(known) - {name}
            elif not when_loaded and (lazy := lazily_imported(node)):
                needs[name].add(lazy)
    return needs


def in_circles(needs: dict[str, set[str]]) -> set[str]:
    """The modules that remain when those are taken away that import none that remains, or that none that remains imports."""
    left = set(needs)
    while out := {m for m in left if not needs[m] & left or not any(m in needs[other] for other in left - {m})}:
        left -= out
    return left


def test_a_module_is_in_a_circle_if_it_reaches_itself():
    assert in_circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"d"}, "e": {"a"}}) == {"a", "b", "c", "d"}


def test_there_are_no_import_cycles_between_modules_when_they_are_loaded():
    assert not in_circles(imported_modules(when_loaded=True))


def test_modules_import_each_other_at_any_time_only_where_a_reason_is_given():
    """Imports in functions count. Each of `CIRCLES` still is one."""
    needs = imported_modules()
    inside = {name: {other for other in others if not any({name, other} <= circle for circle in CIRCLES)} for name, others in needs.items()}
    assert not in_circles(inside)
    for circle in CIRCLES:
        assert in_circles({name: needs[name] & circle for name in circle}) == circle


@pytest.mark.parametrize("layer", ROOMS)
def test_folders_of_a_layer_import_only_from_those_before_them(layer):
    """At any time. `ROOMS` lists all folders."""
    assert set(ROOMS[layer]) == {path.parent.name for path in (ROOT / layer).glob("*/__init__.py")}
    for name, others in imported_modules().items():
        for other in others:
            (_, room, *_), (_, used, *_) = name.split(".") + [""] * 2, other.split(".") + [""] * 2
            if name.startswith(f"{layer}.") and other.startswith(f"{layer}."):
                assert ROOMS[layer].index(used) <= ROOMS[layer].index(room), f"{name} imports {other}, and {used} stands after {room}"


def test_every_module_of_the_operations_is_in_a_folder():
    assert [path.name for layer in ROOMS for path in (ROOT / layer).glob("*.py")] == ["__init__.py"] * len(ROOMS)


def test_no_module_or_class_defines_a_name_twice():
    """The second definition would silently replace the first. Exceptions: rules of ops, which are all called `_`, setters
    of properties, and the signatures of an overloaded function."""
    twice = []
    for path in sorted(ROOT.rglob("*.py")):
        for part in (tree_of(path), *(node for node in nodes_of(path) if isinstance(node, ast.ClassDef))):
            names = [node.name for node in part.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name != "_"
                     and not any(ast.unparse(d).split(".")[-1] in ("setter", "overload") for d in node.decorator_list)]
            twice += [f"{path.relative_to(ROOT)}: {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    assert not twice


def test_no_two_test_files_have_the_same_name():
    """pytest imports them by their base names."""
    names = [path.name for path in (ROOT.parent / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_gpu_tests_are_skipped_where_a_library_that_they_import_is_not_installed():
    """An import that a test may do without stands in a `try`."""
    unmarked = []
    for path in (ROOT.parent / "tests").rglob("test_*.py"):
        text = path.read_text()
        if "needs_gpu" not in text:
            continue
        marked = re.search(r"^pytestmark = .*needs_module", text, re.MULTILINE)
        for test in tree_of(path).body:
            if isinstance(test, ast.FunctionDef) and "needs_gpu" in (marks := " ".join(map(ast.unparse, test.decorator_list))):
                names = {a.name.split(".")[0] for node in test.body if isinstance(node, ast.Import) for a in node.names}
                if names & {"torch", "cupy", "numba", "jax"} and not marked and "needs_module" not in marks:
                    unmarked.append(f"{path.name}: {test.name}")
    assert not unmarked


def test_importing_the_package_loads_no_llvm_no_driver_and_no_numba():
    """`import tilejit` works on a machine without a GPU, and is fast."""
    code = "import sys, tilejit; print([m for m in ('llvmlite', 'cuda', 'cuda.bindings', 'numba', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_each_package_that_compiles_or_drives_gpus_is_imported_by_its_own_files():
    """cuda.bindings by one and cuda.pathfinder by another; torch by what makes its operators."""
    users = {"llvmlite": set(), "cuda": set(), "numba": set(), "torch": set()}
    for path in ROOT.rglob("*.py"):
        for node in nodes_of(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Lazy", "import_module") and isinstance(node.args[0], ast.Constant):
                names = [node.args[0].value]
            for name in names:
                if name.split(".")[0] in users:
                    users[name.split(".")[0]].add(str(path.relative_to(ROOT)))
    assert users == {"llvmlite": {"toolchain/llvm.py"}, "cuda": {"runtime/libcuda.py", "toolchain/pathfinder.py"}, "numba": {"sim/compile_loops.py"},
                     "torch": {"interop/torch_operator.py"}}
