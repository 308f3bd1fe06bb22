"""Measures of the package's code: late imports, decisions by ops' names, long and branched functions, long lines and expressions,
names of files that repeat.

Each finds places in the code, and has a bar: so many may be there, none if `BARS` does not say otherwise. ``python -m tests.test_house``
prints what each finds.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.package_trees import ROOT, nodes_of, trees

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LINES, COMPLEXITY, PARAMETERS, COLUMNS = 60, 25, 12, 120  # of a function, and of a line
EXPRESSION = 100                                          # columns of a conditional expression

Place = tuple[str, int, str]  # a file in the package, a line, and what is there


def nodes(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    for path in trees():
        for node in nodes_of(ROOT / path):
            if isinstance(node, kinds):
                yield path, node


def shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:90]


# -- the measures ----------------------------------------------------------------------------------------------------------

def late_imports() -> Iterator[Place]:
    """Statements inside functions that import; of the package or of others."""
    for path, tree in trees().items():
        below = [node for node in nodes_of(ROOT / path) if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in tree.body]
        functions = [node for node in nodes_of(ROOT / path) if isinstance(node, FUNCTIONS)] if below else []
        inside = {id(node): node for f in functions for node in ast.walk(f) if isinstance(node, (ast.Import, ast.ImportFrom))}
        yield from ((path, node.lineno, shown(node)) for node in inside.values())


def reason(path: str, line: int) -> str:
    """The comment at the end of a line, without those that tools read."""
    comment = (ROOT / path).read_text().splitlines()[line - 1].partition("  # ")[2]
    return re.sub(r"^(noqa|type: ignore)\S*( [A-Z]+\d+)*(  # )?", "", comment)


def is_an_ops_name(node: ast.AST) -> bool:
    """Whether an expression is `….op.name`, `op.name` or `op_name`, or begins with one that may be missing (`… if … else ""`)."""
    if isinstance(node, ast.IfExp):
        return is_an_ops_name(node.body)
    if isinstance(node, ast.Attribute):
        owner = node.value
        return node.attr == "name" and (isinstance(owner, ast.Name) and owner.id == "op" or isinstance(owner, ast.Attribute) and owner.attr == "op")
    return isinstance(node, ast.Name) and node.id == "op_name"


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


def is_nested(expression: ast.IfExp) -> bool:
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(expression) if inner is not expression)


def is_long(expression: ast.IfExp) -> bool:
    return expression.end_lineno > expression.lineno or expression.end_col_offset - expression.col_offset > EXPRESSION


def nested_conditional_expressions() -> Iterator[Place]:
    """Conditional expressions that contain another one."""
    yield from ((path, node.lineno, shown(node)) for path, node in nodes(ast.IfExp) if is_nested(node))


def long_conditional_expressions() -> Iterator[Place]:
    """Conditional expressions of more than 100 columns, or of more than one line."""
    yield from ((path, node.lineno, shown(node)) for path, node in nodes(ast.IfExp) if is_long(node))


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


KEYWORDS = "its options are public keywords"
LAUNCHED = "a launch passes arrays and numbers one by one, and constants in one record"

# Functions that need more parameters than that, with the reason.
MAY_HAVE_MANY = {
    ("ops/moves/copy_async/__init__.py", "copy_async"): KEYWORDS,
    ("ops/mma/__init__.py", "mma_async"): KEYWORDS,
    ("kernels/attention/call.py", "attention"): KEYWORDS,
    ("kernels/attention/backward/call.py", "attention_backward"): KEYWORDS,
    ("kernels/attention/backward/gradients_hopper.py", "gradients_hopper"): LAUNCHED,
    ("kernels/attention/backward/gradients.py", "gradients"): LAUNCHED,
    ("kernels/attention/backward/queries.py", "queries"): LAUNCHED,
    ("kernels/attention/blank.py", "blank"): LAUNCHED,
    ("kernels/attention/hopper.py", "hopper"): LAUNCHED,
    ("kernels/attention/pipelined.py", "pipelined"): LAUNCHED,
    ("kernels/attention/sequences.py", "sequences"): LAUNCHED,
    ("kernels/matmul/hopper/stream.py", "stream"): LAUNCHED,
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


# Words that end like a participle and are nouns or verbs, and function names that are bare participles or adjectives for a reason.
NOUNS_AND_VERBS = {"bring", "deed", "finding", "meaning", "ring", "seed", "string", "padding", "need"}
IRREGULAR = frozenset("begun built chosen found given held hidden kept known left made said seen sent shown taken told torn written".split())
OTHER_WORDS = frozenset(
    "absent accurate afresh after again alike alive along already always apart aside away back before behind below beside between beyond both "
    "busy common contiguous convergent crossable different direct each early either else elsewhere encodable endless enough equal evenly few "
    "flat fresh ghost here idle independent injective inner innermost instead joint largest last late later legal linear local logical "
    "misspelt narrower native natural near nearest new newer none nowhere once ordinary own past pending plain possible raw readable "
    "reducible regular remote right same serial short sideways simple since single some standard static surely then through together uneven "
    "unfit unhindered uniform unknown unplain unseen unset up usable when whole wide wider widest wrong".split())
MAY_BE_BARE = {
    "CUDA's, NumPy's or PTX's word": {"contiguous", "first", "uniform", "where"},
    "a public name": {"compiled", "grouped", "packed", "padded", "passed", "pipelined", "prepared", "signed", "strided", "swizzled"},
    "an op's name": {"assumed", "remote", "renewed"},
    "part of a record of plans": {"across", "moving"},
    "the sides of a window": {"left", "right"},
    "a component of the machine": {"shared", "ordered"},
    "a field of `Wait`, for which its classes have methods": {"ready", "then"},
}


def bare_participles() -> Iterator[Place]:
    """Functions, methods and properties called by one word that is a participle, an adverb or an adjective."""
    for path, node in nodes(*FUNCTIONS):
        word = node.name.strip("_")
        participle = re.fullmatch(r"[a-z]{2,}(ed|ing)", word) and word not in NOUNS_AND_VERBS
        if (participle or word in IRREGULAR | OTHER_WORDS) and not any(word in allowed for allowed in MAY_BE_BARE.values()):
            yield path, node.lineno, node.name


def unfinished_first_lines() -> Iterator[Place]:
    """Files of code whose first line is not a whole sentence, which says what the file holds."""
    for path, tree in trees().items():
        first = (ast.get_docstring(tree) or "").partition("\n")[0]
        if tree.body and not first.endswith("."):
            yield path, 1, first


# File names that occur more than once, because the folder says of what.
MAY_REPEAT = {
    "a component of the emitter and one of the machine, for the same instructions":
        {"barriers", "bulk", "component", "control", "named_maps", "parts", "synchronisation", "tma"},
    "the part of each kernel's family with the same task":
        {"call", "choice", "config", "constants", "launch", "mainloop", "model", "persistent", "planning", "problem", "split"},
    "a section of the instruction table, and what its rows mean or which ops are made of them":
        {"barriers", "copies", "matrices", "memory", "tcgen05", "warps"},
    "the ops of a subject, and the pass, the part of the simulator or of the runtime that has the same subject":
        {"atomics", "launch", "memory", "packed", "pipeline", "reductions", "remote", "tokens"},
    "the emitter's part and the pass's, or the simulator's and the pass's, of one subject": {"accumulators", "tensor_memory"},
    "of shared memory in one folder, of tensor memory in the other": {"alloc", "descriptor"},
    "of what the folder is about: a copy, a product, a launch, an instruction, a kernel's source":
        {"calls", "config", "names", "operands", "options", "site"},
}


def repeated_file_names() -> Iterator[Place]:
    """Files whose name another file has too, unless `MAY_REPEAT` says why."""
    allowed, first = set().union(*MAY_REPEAT.values()), {}
    for path in trees():
        name = Path(path).stem
        other = first.setdefault(name, path)
        if other != path and name != "__init__" and name not in allowed:
            yield path, 1, f"as {other}"


# -- the bars --------------------------------------------------------------------------------------------------------------

MEASURES = (late_imports, comparisons_with_ops_names, parts_of_ops_names, lookups_by_ops_names, rules_read_by_string, effects_by_spelling,
            nested_conditional_expressions, long_conditional_expressions, long_functions, complex_functions, many_parameters,
            bare_participles, long_lines, unfinished_first_lines, repeated_file_names)
BARS = {late_imports: 10}  # how many places a measure may find, if not none


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.__name__)
def test_the_package_is_within_the_bar_of_the_measure(measure):
    places, bar = [*measure()], BARS.get(measure, 0)
    assert len(places) <= bar, "\n".join([f"{measure.__doc__.strip()} At most {bar}, and there are {len(places)}:",
                                          *(f"  {path}:{line}: {what}" for path, line, what in places)])


def test_each_late_import_has_its_reason_on_its_line_and_none_is_in_an_op():
    """Loading a module later is what `Lazy` is for; a statement is for circles, for handling its error, and for paths that are short of time."""
    assert not [place for place in late_imports() if place[0].startswith("ops/") or not reason(*place[:2])]


def test_every_file_name_that_may_repeat_does():
    names = [Path(path).stem for path in trees()]
    assert [name for allowed in MAY_REPEAT.values() for name in allowed if names.count(name) < 2] == []


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


@pytest.mark.parametrize("expression,nested,long", [
    ("a if b else c", False, False), ("a if b else c if d else e", True, False), ("f(a if b else c) if d else e", True, False),
    ("(a if b\n else c)", False, True), (f"{'a' * 50} if b else {'c' * 50}", False, True)])
def test_a_nested_and_a_long_conditional_expression_are_recognised(expression, nested, long):
    node = ast.parse(expression, mode="eval").body
    assert (is_nested(node), is_long(node)) == (nested, long)


if __name__ == "__main__":
    for measure in MEASURES:
        places = [*measure()]
        print(f"{measure.__name__}: {len(places)}", *(f"  {path}:{line}: {what}" for path, line, what in places), sep="\n")
