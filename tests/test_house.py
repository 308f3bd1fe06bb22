"""Measures of the package's code that may only fall: late imports, decisions by ops' names, long and branched functions, long lines.

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


def reason(path: str, line: int) -> str:
    """The comment at the end of a line, without those that tools read."""
    comment = (ROOT / path).read_text().splitlines()[line - 1].partition("  # ")[2]
    return re.sub(r"^(noqa|type: ignore)\S*( [A-Z]+\d+)*(  # )?", "", comment)


def is_an_ops_name(node: ast.AST) -> bool:
    """Whether an expression is `….op.name`, `op.name` or `op_name`, or begins with one that may be missing (`… if … else ""`)."""
    if isinstance(node, ast.IfExp):
        return is_an_ops_name(node.body)
    text = ast.unparse(node)
    return text == "op_name" or re.search(r"\bop\.name$", text) is not None


def names_of_ops_in(tree: ast.AST) -> set[int]:
    """The expressions in a tree (by id) that are an op's name: also by a variable to which a function has assigned one."""
    found = {id(node) for node in ast.walk(tree) if isinstance(node, ast.expr) and is_an_ops_name(node)}
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS):
            inside = list(ast.walk(function))
            named = {target.id for node in inside if isinstance(node, ast.Assign) and id(node.value) in found
                     for target in node.targets if isinstance(target, ast.Name)}
            found |= {id(node) for node in inside if isinstance(node, ast.Name) and node.id in named}
    return found


@cache
def names_of_ops(path: str) -> set[int]:
    return names_of_ops_in(trees()[path])


def comparisons_with_ops_names() -> Iterator[Place]:
    """Comparisons of an op's name with others by ``==``, ``!=``, ``in``, ``not in`` or `match`; each case of a match counts."""
    for path, node in nodes(ast.Compare, ast.Match):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            part = any(isinstance(op, (ast.In, ast.NotIn)) and id(right) in names_of_ops(path) for op, right in zip(node.ops, node.comparators))
            if any(id(side) in names_of_ops(path) for side in sides) and not part:
                yield path, node.lineno, shown(node)
        elif id(node.subject) in names_of_ops(path):
            yield from ((path, case.pattern.lineno, f"case {ast.unparse(case.pattern)}") for case in node.cases
                        if not (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None))


def parts_of_ops_names() -> Iterator[Place]:
    """Decisions by a part of an op's name: ``"mma" in op.name``, ``op.name.startswith(…)``, slices."""
    for path, node in nodes(ast.Compare, ast.Attribute, ast.Subscript):
        if isinstance(node, ast.Compare):
            if any(isinstance(op, (ast.In, ast.NotIn)) and id(right) in names_of_ops(path) for op, right in zip(node.ops, node.comparators)):
                yield path, node.lineno, shown(node)
        elif isinstance(node.value, (ast.Name, ast.Attribute)) and id(node.value) in names_of_ops(path):
            yield path, node.lineno, shown(node)


def lookups_by_ops_names() -> Iterator[Place]:
    """Tables that are read by an op's name: ``TABLE[op.name]``, ``TABLE.get(op.name)``. A count of calls by name is none."""
    for path, node in nodes(ast.Subscript, ast.Call):
        if isinstance(node, ast.Subscript):
            key = node.slice if isinstance(node.ctx, ast.Load) else None
        else:
            key = node.args[0] if node.args and isinstance(node.func, ast.Attribute) and node.func.attr == "get" else None
        if key is not None and id(key) in names_of_ops(path):
            yield path, node.lineno, shown(node)


def rules_read_by_string() -> Iterator[Place]:
    """Uses of an op's rules, or its traits, by a string: ``rules["emit"]``, ``rules.get(…)``, ``"emit" in rules``, ``getattr(op.rules, …)``."""
    record = lambda node: re.search(r"(^|\.)(rules|traits)$", ast.unparse(node)) is not None
    for path, node in nodes(ast.Subscript, ast.Compare, ast.Call):
        if isinstance(node, ast.Subscript):
            read = record(node.value)
        elif isinstance(node, ast.Compare):
            read = any(isinstance(op, (ast.In, ast.NotIn)) and record(right) for op, right in zip(node.ops, node.comparators))
        elif isinstance(node.func, ast.Attribute):
            read = node.func.attr in ("get", "update", "setdefault", "pop") and record(node.func.value)
        else:
            read = ast.unparse(node.func) in ("getattr", "hasattr") and record(node.args[0])
        if read:
            yield path, node.lineno, shown(node)


def effects_by_spelling() -> Iterator[Place]:
    """Comparisons with the usual names of operands that are read or written, by which an effect would depend on how these are spelled."""
    for path, node in nodes(ast.Compare):
        sides = [part for side in (node.left, *node.comparators) for part in getattr(side, "elts", [side])]
        texts = {side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)}
        if texts & {"src", "source", "dst", "destination", "target", "place"}:
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


# Functions that need more parameters than that, with the reason.
MAY_HAVE_MANY = {
    ("ops/moves/copy_async/__init__.py", "copy_async"): "its options are public keywords",
    ("ops/mma/__init__.py", "mma_async"): "its options are public keywords",
    ("kernels/matmul/hopper/stream.py", "stream"): "a launch passes arrays and numbers one by one, and constants in one record",
}


def many_parameters() -> Iterator[Place]:
    """Functions with more than 12 parameters, except those of `MAY_HAVE_MANY`."""
    for path, node in nodes(*FUNCTIONS):
        taken = node.args
        count = len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *filter(None, (taken.vararg, taken.kwarg))])
        if count > PARAMETERS and (path, node.name) not in MAY_HAVE_MANY:
            yield path, node.lineno, f"{node.name}, {count}"


def long_lines() -> Iterator[Place]:
    """Lines of more than 120 columns."""
    for path in trees():
        for n, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if len(line) > COLUMNS:
                yield path, n, f"{len(line)} columns"



# -- the recorded numbers --------------------------------------------------------------------------------------------------

MEASURES = (late_imports, comparisons_with_ops_names, parts_of_ops_names, lookups_by_ops_names, rules_read_by_string, effects_by_spelling,
            nested_conditional_expressions, long_functions, complex_functions, many_parameters, long_lines)
BY_LAYER = (long_lines, nested_conditional_expressions)

RECORDED: dict[str, dict[str, int]] = {
    "late_imports": {
        "frontend/walker.py": 1,
        "ir/graph.py": 1,
        "jit.py": 3,
        "manifest.py": 1,
        "toolchain/llvm.py": 1,
    },
    "comparisons_with_ops_names": {
    },
    "parts_of_ops_names": {
    },
    "lookups_by_ops_names": {
    },
    "rules_read_by_string": {
    },
    "effects_by_spelling": {
    },
    "nested_conditional_expressions": {
        "emit": 6,
        "errors": 1,
        "frontend": 4,
        "ir": 3,
        "kernels": 1,
        "names": 1,
        "ops": 18,
        "ptx": 6,
        "sim": 21,
        "testing": 4,
        "toolchain": 1,
    },
    "long_functions": {
        "kernels/matmul/hopper/split.py": 1,
        "ops/moves/copy_async/__init__.py": 1,
        "ops/moves/copy_async/tma/tensor_map.py": 1,
    },
    "complex_functions": {
        "dispatch.py": 1,
        "frontend/branches.py": 1,
        "ops/memory/packed.py": 1,
        "ops/memory/regions.py": 2,
        "ops/mma/shared_matrix.py": 1,
        "ops/moves/copy_async/options.py": 1,
        "ops/moves/copy_async/tma/boxes.py": 1,
        "ops/tmem/fragments.py": 1,
        "passes/pipelining/loads_ahead.py": 1,
        "passes/products/products_in_flight.py": 1,
        "plan.py": 1,
        "sim/engines.py": 1,
    },
    "many_parameters": {
        "kernels/attention/blank.py": 1,
        "kernels/attention/call.py": 1,
        "kernels/attention/hopper.py": 1,
        "kernels/attention/pipelined.py": 1,
        "kernels/attention/sequences.py": 2,
        "ops/mma/tcgen05.py": 2,
        "sim/engines.py": 1,
        "sim/parts.py": 1,
    },
    "long_lines": {
        "kernels": 1,
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


def test_each_late_import_has_its_reason_on_its_line():
    """Loading a module later is what `Lazy` is for; a statement is for circles, for handling its error, and for paths that are short of time."""
    assert not [place for place in late_imports() if not reason(*place[:2])]


def test_the_complexity_of_a_function_counts_its_branches():
    function = ast.parse("def f(x, y):\n    if x and y or x:\n        return [z for z in x if z if y]\n    return 1 if x else 2\n").body[0]
    assert complexity(function) == 1 + 1 + 2 + 3 + 1


def test_an_ops_name_is_recognised_however_it_is_written():
    written = {"call.op.name": True, "op.name": True, "call.op.name if call else ''": True, "op_name": True, "form.name": False, "call.op": False}
    assert {text: is_an_ops_name(ast.parse(text, mode="eval").body) for text in written} == written


def test_an_ops_name_is_recognised_by_a_variable_that_holds_it():
    tree = ast.parse("def f(call):\n    name, other = call.op.name, 1\n    kind = call.op.name\n    return TABLE[kind] or kind == 'add'\n"
                     "def g(kind):\n    return kind == 'add'")
    found = names_of_ops_in(tree)
    assert sorted(ast.unparse(node) for node in ast.walk(tree) if id(node) in found) == ["call.op.name"] * 2 + ["kind"] * 3


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
