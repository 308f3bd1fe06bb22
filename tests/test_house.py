"""Measures of the package's code that may only fall: late imports, comparisons with ops' names, long and branched functions, long lines.

Each is counted in the code and must be what `RECORDED` says, by file, or by layer if most files have some. A number that grew is an error in
the code. One that fell is to be lowered here: ``python tests/test_house.py`` writes the numbers of today into this file.
"""

import ast
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "tilejit"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LINES, COMPLEXITY, PARAMETERS, COLUMNS = 60, 25, 12, 120

Place = tuple[str, int, str]  # a file in the package, a line, and what is there


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of the package's files, by path."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def nodes(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield path, node


def shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:90]


# -- the measures ----------------------------------------------------------------------------------------------------------

def late_imports() -> Iterator[Place]:
    """Statements inside functions that import; of the package or of others."""
    for path, tree in trees().items():
        inside = {id(node): node for f in ast.walk(tree) if isinstance(f, FUNCTIONS) for node in ast.walk(f)
                  if isinstance(node, (ast.Import, ast.ImportFrom))}
        yield from ((path, node.lineno, shown(node)) for node in inside.values())


def is_an_ops_name(node: ast.AST) -> bool:
    """Whether an expression is `….op.name`, `op.name` or `op_name`, or begins with one that may be missing (`… if … else ""`)."""
    if isinstance(node, ast.IfExp):
        return is_an_ops_name(node.body)
    text = ast.unparse(node)
    return text == "op_name" or re.search(r"\bop\.name$", text) is not None


def comparisons_with_ops_names() -> Iterator[Place]:
    """Comparisons of an op's name with others by ``==``, ``!=``, ``in``, ``not in`` or `match`; each case of a match counts."""
    for path, node in nodes(ast.Compare, ast.match_case, ast.Match):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            part = any(isinstance(op, (ast.In, ast.NotIn)) and is_an_ops_name(right) for op, right in zip(node.ops, node.comparators))
            if any(map(is_an_ops_name, sides)) and not part:
                yield path, node.lineno, shown(node)
        elif isinstance(node, ast.Match) and is_an_ops_name(node.subject):
            yield from ((path, case.pattern.lineno, f"case {ast.unparse(case.pattern)}") for case in node.cases
                        if not (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None))


def parts_of_ops_names() -> Iterator[Place]:
    """Decisions by a part of an op's name: ``"mma" in op.name``, ``op.name.startswith(…)``, slices."""
    for path, node in nodes(ast.Compare, ast.Attribute, ast.Subscript):
        if isinstance(node, ast.Compare):
            if any(isinstance(op, (ast.In, ast.NotIn)) and is_an_ops_name(right) for op, right in zip(node.ops, node.comparators)):
                yield path, node.lineno, shown(node)
        elif isinstance(node.value, (ast.Name, ast.Attribute)) and is_an_ops_name(node.value):
            yield path, node.lineno, shown(node)


def nested_conditional_expressions() -> Iterator[Place]:
    """Conditional expressions that contain another one."""
    for path, node in nodes(ast.IfExp):
        if any(isinstance(inner, ast.IfExp) and inner is not node for inner in ast.walk(node)):
            yield path, node.lineno, shown(node)


def long_functions() -> Iterator[Place]:
    """Functions of more than 60 lines."""
    for path, node in nodes(*FUNCTIONS):
        if node.end_lineno - node.lineno + 1 > LINES:
            yield path, node.lineno, node.name


def complexity(function: ast.AST) -> int:
    """1, plus the decisions: branches, loops, conditional expressions, conditions after the first of `and` and `or`, loops and conditions of
    comprehensions, handlers, cases. Those of functions inside it count too."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.match_case)):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def complex_functions() -> Iterator[Place]:
    """Functions with a complexity of more than 25."""
    for path, node in nodes(*FUNCTIONS):
        if complexity(node) > COMPLEXITY:
            yield path, node.lineno, f"{node.name}, {complexity(node)}"


def many_parameters() -> Iterator[Place]:
    """Functions with more than 12 parameters."""
    for path, node in nodes(*FUNCTIONS):
        taken = node.args
        count = len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *filter(None, (taken.vararg, taken.kwarg))])
        if count > PARAMETERS:
            yield path, node.lineno, f"{node.name}, {count}"


def long_lines() -> Iterator[Place]:
    """Lines of more than 120 columns, except in the table of instructions, which has one row per line."""
    for path in trees():
        if not path.startswith("ptx/table/"):
            for n, line in enumerate((ROOT / path).read_text().splitlines(), 1):
                if len(line) > COLUMNS:
                    yield path, n, f"{len(line)} columns"


# -- circles of files ------------------------------------------------------------------------------------------------------

def _run_by_type_checkers_only(tree: ast.Module) -> set[int]:
    return {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            for inner in ast.walk(node)}


def imported_files() -> dict[str, set[str]]:
    """For each file the files that it imports from, at any time, except for type checkers. Importing the package by its public name
    (`import tilejit`) does not count."""
    modules = {path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in trees()}
    needs = {}
    for name, path in modules.items():
        package = name.split(".") if path.endswith("__init__.py") else name.split(".")[:-1]
        package = [] if path == "__init__.py" else package
        skipped = _run_by_type_checkers_only(trees()[path])
        needs[path] = set()
        for node in ast.walk(trees()[path]):
            if not isinstance(node, ast.ImportFrom) or id(node) in skipped or not node.level:
                continue
            base = [*package[:len(package) - node.level + 1], *(node.module.split(".") if node.module else ())]
            found = {".".join([*base, a.name]) if ".".join([*base, a.name]) in modules else ".".join(base) or "__init__" for a in node.names}
            needs[path] |= {modules[m] for m in found if m in modules} - {path}
    return needs


def circles(needs: dict[str, set[str]]) -> list[set[str]]:
    """The sets of files of which each reaches each other one by imports."""
    reached = {}
    for path in needs:
        waiting, seen = [path], set()
        while waiting:
            for other in needs[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        reached[path] = seen
    found, placed = [], set()
    for path in needs:
        if path in reached[path] and path not in placed:
            found.append({other for other in reached[path] if path in reached[other]})
            placed |= found[-1]
    return found


def files_in_circles() -> Iterator[Place]:
    """Files in a circle of imports, those inside functions included; with the circle's number."""
    for number, circle in enumerate(sorted(circles(imported_files()), key=lambda c: (-len(c), min(c))), 1):
        yield from ((path, 1, f"in circle {number}") for path in sorted(circle))


# -- the recorded numbers --------------------------------------------------------------------------------------------------

MEASURES = (late_imports, comparisons_with_ops_names, parts_of_ops_names, nested_conditional_expressions, long_functions, complex_functions,
            many_parameters, long_lines, files_in_circles)
BY_LAYER = (long_lines, nested_conditional_expressions)

RECORDED: dict[str, dict[str, int]] = {
    "late_imports": {
        "__init__.py": 3,
        "cli.py": 4,
        "compile.py": 3,
        "compiled.py": 7,
        "demo.py": 1,
        "dtypes.py": 2,
        "emit/tmem.py": 1,
        "frontend/__init__.py": 1,
        "frontend/walker.py": 1,
        "ir/graph.py": 1,
        "jit.py": 8,
        "kernels/tune.py": 1,
        "layout/algebra.py": 1,
        "layout/draw.py": 1,
        "layout/fragments.py": 2,
        "manifest.py": 3,
        "names.py": 1,
        "ops/mma/wgmma.py": 2,
        "ops/moves/copy_async/tma/map_edits.py": 1,
        "ops/ptx/calls.py": 1,
        "ops/tiles/casts.py": 1,
        "passes/pipelining/pipeline.py": 1,
        "runtime/arrays.py": 3,
        "runtime/device_array.py": 2,
        "runtime/driver.py": 1,
        "runtime/element_types.py": 3,
        "runtime/launch.py": 1,
        "runtime/launcher.py": 1,
        "runtime/native.py": 2,
        "runtime/packed.py": 3,
        "sim/blas.py": 1,
        "sim/tensor_products.py": 1,
        "testing.py": 7,
        "toolchain/assembler.py": 4,
        "toolchain/installed.py": 1,
        "toolchain/llvm.py": 2,
        "tuning.py": 8,
    },
    "comparisons_with_ops_names": {
        "emit/accumulators.py": 1,
        "emit/structure.py": 1,
        "frontend/prune.py": 1,
        "frontend/scopes.py": 2,
        "ir/builder.py": 2,
        "ops/language/promotion.py": 1,
        "ops/language/truth_values.py": 1,
        "ops/memory/window.py": 1,
        "ops/moves/copy_async/tma/map_edits.py": 2,
        "ops/reduce/combine.py": 1,
        "ops/tmem/slots.py": 5,
        "passes/analysis/access_patterns.py": 17,
        "passes/analysis/constraints.py": 1,
        "passes/analysis/context.py": 4,
        "passes/analysis/difference_bounds.py": 2,
        "passes/analysis/index_tile_analysis.py": 15,
        "passes/analysis/integer_analysis.py": 17,
        "passes/analysis/lowering_records.py": 6,
        "passes/analysis/program_slices.py": 1,
        "passes/analysis/staging.py": 3,
        "passes/checks/constant_bounds.py": 1,
        "passes/checks/registers.py": 1,
        "passes/checks/scan_tails.py": 1,
        "passes/checks/transaction_counts.py": 3,
        "passes/layouts/layout_choice.py": 5,
        "passes/layouts/layouts.py": 4,
        "passes/layouts/shared_layouts.py": 1,
        "passes/layouts/vector_widths.py": 2,
        "passes/pipelining/bulk_store_waits.py": 4,
        "passes/pipelining/loads_ahead.py": 2,
        "passes/pipelining/pipeline.py": 6,
        "passes/pipelining/tokens.py": 4,
        "passes/pipelining/warp_specialization.py": 6,
        "passes/placement/shared_memory.py": 1,
        "passes/products/accumulators.py": 2,
        "passes/products/mma_hazards.py": 1,
        "passes/products/products_in_flight.py": 1,
        "passes/products/tensor_dots.py": 1,
        "sim/program.py": 4,
    },
    "parts_of_ops_names": {
        "emit/place.py": 2,
        "passes/analysis/context.py": 1,
        "passes/analysis/lowering_records.py": 1,
        "passes/analysis/program_slices.py": 1,
        "passes/pipelining/loads_ahead.py": 2,
        "sim/program.py": 2,
    },
    "nested_conditional_expressions": {
        "compiled": 1,
        "dispatch": 1,
        "emit": 6,
        "errors": 1,
        "frontend": 4,
        "ir": 4,
        "kernels": 18,
        "names": 1,
        "ops": 55,
        "passes": 13,
        "ptx": 6,
        "runtime": 1,
        "sim": 24,
        "testing": 4,
        "toolchain": 1,
        "tuning": 1,
    },
    "long_functions": {
        "kernels/hopper.py": 2,
        "kernels/matmul.py": 2,
        "kernels/stream.py": 1,
    },
    "complex_functions": {
        "compiled.py": 1,
        "kernels/grouped.py": 2,
        "kernels/hopper.py": 1,
        "kernels/matmul.py": 2,
        "kernels/plan.py": 1,
        "ops/memory/packed.py": 1,
        "ops/memory/regions.py": 2,
        "ops/mma/shared_matrix.py": 1,
        "ops/moves/copy_async/options.py": 1,
        "ops/moves/copy_async/tma/boxes.py": 1,
        "ops/tmem/fragments.py": 1,
        "passes/analysis/intervals.py": 1,
        "passes/pipelining/loads_ahead.py": 1,
        "passes/products/products_in_flight.py": 1,
        "plan.py": 1,
        "runtime/options.py": 1,
        "runtime/tensormap.py": 1,
        "sim/engines.py": 1,
        "sim/tensor_maps.py": 1,
        "tuning.py": 1,
    },
    "many_parameters": {
        "kernels/blackwell.py": 3,
        "kernels/config.py": 1,
        "kernels/grouped_hopper.py": 1,
        "kernels/hopper.py": 4,
        "kernels/mainloop.py": 2,
        "kernels/matmul.py": 1,
        "kernels/overlap.py": 3,
        "kernels/stream.py": 4,
        "ops/mma/__init__.py": 1,
        "ops/mma/tcgen05.py": 2,
        "ops/moves/copy_async/__init__.py": 1,
        "runtime/tensormap.py": 4,
        "sim/engines.py": 1,
    },
    "long_lines": {
        "__init__": 1,
        "api": 1,
        "cli": 2,
        "compile": 20,
        "compiled": 32,
        "concurrency": 4,
        "config": 1,
        "demo": 2,
        "dispatch": 7,
        "dtypes": 13,
        "emit": 236,
        "errors": 1,
        "frontend": 207,
        "ir": 55,
        "jit": 28,
        "kernels": 660,
        "layout": 15,
        "manifest": 13,
        "names": 14,
        "ops": 1432,
        "passes": 531,
        "plan": 25,
        "ptx": 31,
        "records": 11,
        "runtime": 168,
        "schedule": 23,
        "sim": 684,
        "testing": 18,
        "toolchain": 47,
        "tuning": 30,
        "types": 18,
        "warm": 1,
    },
    "files_in_circles": {
        "__init__.py": 1,
        "api.py": 1,
        "emit/emitter.py": 1,
        "emit/tmem.py": 1,
        "frontend/branches.py": 1,
        "frontend/scoping.py": 1,
        "frontend/targets.py": 1,
        "frontend/walker.py": 1,
        "ir/graph.py": 1,
        "ir/printer.py": 1,
        "jit.py": 1,
        "manifest.py": 1,
        "passes/pipelining/pipeline.py": 1,
        "passes/pipelining/warp_specialization.py": 1,
        "schedule.py": 1,
        "testing.py": 1,
        "tuning.py": 1,
    },
}


def counted(measure: Callable[[], Iterator[Place]]) -> Counter:
    layer = measure in BY_LAYER
    return Counter(path.split("/")[0].removesuffix(".py") if layer else path for path, _, _ in measure())


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.__name__)
def test_the_measure_does_not_grow_and_its_record_is_lowered_when_it_falls(measure):
    recorded, today = RECORDED[measure.__name__], counted(measure)
    grown = {name: count for name, count in today.items() if count > recorded.get(name, 0)}
    places = [f"  {path}:{line}: {what}" for path, line, what in measure() if path in grown]
    assert not grown, "\n".join([f"{measure.__doc__.strip()} Recorded, and now: "
                                 + ", ".join(f"{name} {recorded.get(name, 0)}, {count}" for name, count in grown.items()), *places])
    fallen = {name: today[name] for name, count in recorded.items() if today[name] < count}
    assert not fallen, f"fewer {measure.__name__} than recorded: set RECORDED to {fallen} (without those of 0) in {os.path.basename(__file__)}"


def test_the_counts_of_a_function_and_the_circles_of_a_graph_are_right():
    function = ast.parse("def f(x, y):\n    if x and y or x:\n        return [z for z in x if z if y]\n    return 1 if x else 2\n").body[0]
    assert complexity(function) == 1 + 1 + 2 + 3 + 1
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"d"}, "e": {"a"}}) == [{"a", "b", "c"}, {"d"}]


def test_an_ops_name_is_recognised_however_it_is_written():
    written = {"call.op.name": True, "op.name": True, "call.op.name if call else ''": True, "op_name": True, "form.name": False, "call.op": False}
    assert {text: is_an_ops_name(ast.parse(text, mode="eval").body) for text in written} == written


def printed(recorded: dict[str, dict[str, int]]) -> str:
    """`RECORDED` as it stands in this file."""
    parts = ["RECORDED: dict[str, dict[str, int]] = {"]
    for name, counts in recorded.items():
        parts += [f'    "{name}": {{', *(f'        "{path}": {count},' for path, count in sorted(counts.items())), "    },"]
    return "\n".join([*parts, "}"])


if __name__ == "__main__":
    here = Path(__file__)
    text, numbers = here.read_text(), printed({measure.__name__: counted(measure) for measure in MEASURES})
    here.write_text(re.sub(r"^RECORDED: .*?^}$", lambda _: numbers, text, count=1, flags=re.M | re.S))
    for measure in MEASURES:
        print(f"{measure.__name__}: {counted(measure).total()}")
