"""What rules of ops use of the emitter and the machine is in the protocols of `ir`.

`Uses` follows the two through the syntax trees of `ops`: from the first parameter of rules, and from parameters called `e` and `m`,
to variables, fields and the parameters of the helpers that they are passed to.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tilejit.emit.emitter import Emitter
from tilejit.ir import emitter_protocol, machine_protocol
from tilejit.ir.graph import Block, Graph, Launch
from tilejit.sim.machine import Machine

OPS = Path(__file__).parent.parent / "tilejit" / "ops"
FUNCTIONS = (ast.FunctionDef, ast.Lambda)
PROTOCOLS = {"e": emitter_protocol.Emitter, "m": machine_protocol.Machine}
REAL = {"e": Emitter, "m": Machine}
RULES = {"emit": "e", "element": "e", "simulate": "m", "means": "m"}  # how rules are registered, and their first parameter

Kind = tuple[str, str]  # "e" or "m", and the name of a component, "" for the whole
Trees = dict[str, ast.Module]


# -- the protocols -----------------------------------------------------------------------------------------------------------

def members(protocol: type) -> set[str]:
    return {name for name in {**vars(protocol), **protocol.__dict__.get("__annotations__", {})} if not name.startswith("_")}


@cache
def components(side: str) -> dict[str, type]:
    """The protocols of the components, by their names."""
    found = {}
    for name, member in vars(PROTOCOLS[side]).items():
        if isinstance(member, property):
            kind = typing.get_type_hints(member.fget)["return"]
            if getattr(kind, "_is_protocol", False):
                found[name] = kind
    return found


def protocol_of(kind: Kind) -> type:
    side, component = kind
    return components(side)[component] if component else PROTOCOLS[side]


# -- the uses ----------------------------------------------------------------------------------------------------------------

def parameters(function: ast.FunctionDef | ast.Lambda) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


class Uses:
    """The names that `trees` use: (kind, name, file, line). A use that hides a name, by `getattr`, has the name "getattr"."""

    def __init__(self, trees: Trees):
        self.trees = trees
        self.functions: dict[tuple[str, str], list] = defaultdict(list)  # and classes, by file and name
        self.methods: dict[str, list] = defaultdict(list)                # of all classes, by name
        self.imports: dict[tuple[str, str], tuple[str, str]] = {}        # file and name -> the module's last name, and the name in it
        self.kinds: dict[int, Kind] = {}                     # of parameters, by the id of their node
        self.fields: dict[str, Kind] = {"e": ("e", ""), "m": ("m", "")}
        self.owner: dict[int, ast.ClassDef] = {}             # the class of a method, by the id of its node
        for path, tree in trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.functions[path, node.name].append(node)
                    for method in (f for f in node.body if isinstance(f, ast.FunctionDef)):
                        self.owner[id(method)] = node
                        self.methods[method.name].append(method)
                elif isinstance(node, ast.FunctionDef) and id(node) not in self.owner:
                    self.functions[path, node.name].append(node)
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                    for target in (t for t in node.targets if isinstance(t, ast.Name)):
                        self.functions[path, target.id].append(node.value)
                elif isinstance(node, ast.ImportFrom):
                    module = (node.module or "").rpartition(".")[2]
                    self.imports.update({(path, a.asname or a.name): (module, a.name) for a in node.names})
        for path, tree in trees.items():
            self._begin(tree, path)
        self.found: set[tuple[Kind, str, str, int]] = set()
        before = None
        while before != (len(self.kinds), len(self.fields)):  # until nothing more is learned of helpers
            before = len(self.kinds), len(self.fields)
            self.found.clear()
            for path, tree in trees.items():
                self._scope(tree, {}, path)

    def _begin(self, tree: ast.Module, path: str) -> None:
        """The parameters that are the emitter or the machine because of how they are called, or how rules are registered."""
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                for p in parameters(node):
                    if p.arg in PROTOCOLS and (p.annotation is None or "Emitter" in (of := ast.unparse(p.annotation)) or "Machine" in of):
                        self.kinds[id(p)] = p.arg, ""
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    self._rule(decorator.func if isinstance(decorator, ast.Call) else decorator, node)
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg in RULES:
                        self._registered(keyword.arg, keyword.value, path)
                if isinstance(node.func, ast.Attribute) and node.func.attr in RULES and len(node.args) == 1:
                    self._registered(node.func.attr, node.args[0], path)
            if isinstance(node, ast.Assign):
                targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for target, value in zip(targets, values):
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value).endswith("rules"):
                        self._registered(target.attr, value, path)

    def _rule(self, name: ast.expr, function) -> None:
        word = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
        if word in RULES and parameters(function):
            self.kinds[id(parameters(function)[0])] = RULES[word], ""

    def _registered(self, word: str, value: ast.expr, path: str) -> None:
        for function in self._resolve(value, path):
            if word in RULES and isinstance(function, FUNCTIONS) and parameters(function):
                self.kinds[id(parameters(function)[0])] = RULES[word], ""

    def _resolve(self, value: ast.expr, path: str) -> list:
        """The functions and classes that an expression may name: those of the file, what it imports, and all methods of that name."""
        if isinstance(value, ast.Lambda):
            return [value]
        if isinstance(value, ast.Name):
            return self.functions.get((path, value.id)) or self._imported(*self.imports.get((path, value.id), ("", "")))
        if isinstance(value, ast.Attribute):
            if isinstance(value.value, ast.Name) and (path, value.value.id) in self.imports:
                return self._imported(self.imports[path, value.value.id][1], value.attr)
            return self.methods.get(value.attr, [])
        return []

    def _imported(self, module: str, name: str) -> list:
        """What a module of ops defines, which is given by the last part of its name."""
        files = [path for path in self.trees if module and path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2] == module]
        return [f for path in files for f in self.functions.get((path, name), [])]

    # -- following them ------------------------------------------------------------------------------------------------------

    def _scope(self, node: ast.AST, known: dict[str, Kind | None], path: str) -> None:
        """Walk a function or module whose variables are `known`, in the order of the text."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                own = {p.arg: self.kinds.get(id(p)) for p in parameters(child)}
                self._scope(child, {**known, **own}, path)
                continue
            self._scope(child, known, path)
            if isinstance(child, (ast.Assign, ast.NamedExpr, ast.AnnAssign)) and child.value is not None:
                self._assign(child, known)
            elif isinstance(child, ast.Attribute):
                self._attribute(child, known, path)
            elif isinstance(child, ast.Call):
                self._call(child, known, path)

    def _kind(self, value: ast.AST, known: dict[str, Kind | None]) -> Kind | None:
        if isinstance(value, ast.Name):
            return known.get(value.id)
        if isinstance(value, ast.Attribute):
            base = self._kind(value.value, known)
            if base is not None:
                side, component = base
                return (side, value.attr) if not component and value.attr in components(side) else None
            return self.fields.get(value.attr)
        if isinstance(value, ast.NamedExpr):
            return self._kind(value.value, known)
        return None

    def _assign(self, node, known: dict[str, Kind | None]) -> None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts)
            for one, value in zip(target.elts, node.value.elts) if several else [(target, node.value)]:
                kind = self._kind(value, known)
                if isinstance(one, ast.Name):
                    known[one.id] = kind
                elif isinstance(one, ast.Attribute) and kind is not None:
                    self.fields[one.attr] = kind

    def _attribute(self, node: ast.Attribute, known: dict[str, Kind | None], path: str) -> None:
        kind = self._kind(node.value, known)
        if kind is not None:
            self.found.add((kind, node.attr, path, node.lineno))

    def _call(self, call: ast.Call, known: dict[str, Kind | None], path: str) -> None:
        called = self._kind(call.func, known)
        if called is not None:  # a component is no method
            self.found.add((called, "__call__", path, call.lineno))
        given = [(n, self._kind(a, known)) for n, a in enumerate(call.args)] + [(k.arg, self._kind(k.value, known)) for k in call.keywords]
        for place, kind in given:
            if kind is None:
                continue
            if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "setattr", "hasattr", "vars"):
                self.found.add((kind, call.func.id, path, call.lineno))
            for function in self._resolve(call.func, path):
                self._pass(function, place, kind)

    def _pass(self, function, place: int | str, kind: Kind) -> None:
        """A helper gets the emitter, the machine or a component."""
        if isinstance(function, ast.ClassDef):
            made = next((f for f in function.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
            if made is None:  # a dataclass
                names = [f.target.id for f in function.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
                name = place if isinstance(place, str) else names[place] if place < len(names) else None
                if name in names:
                    self.fields[name] = kind
                return
            function = made
        takes = parameters(function)
        if id(function) in self.owner and not any(ast.unparse(d) == "staticmethod" for d in function.decorator_list):
            takes = takes[1:]
        chosen = [p for n, p in enumerate(takes) if place in (n, p.arg)]
        for p in chosen:
            self.kinds.setdefault(id(p), kind)


def unknown(uses: Uses) -> Iterator[str]:
    """The uses that no protocol has, in words."""
    for kind, name, path, line in sorted(uses.found):
        if name not in members(protocol_of(kind)):
            yield f"{path}:{line}: {'.'.join(filter(None, kind))}.{name}"


@cache
def uses_of_ops() -> Uses:
    return Uses({path.relative_to(OPS).as_posix(): ast.parse(path.read_text()) for path in sorted(OPS.rglob("*.py"))})


# -- the tests ---------------------------------------------------------------------------------------------------------------

def test_every_name_that_rules_use_of_the_emitter_and_the_machine_is_in_a_protocol():
    assert not list(unknown(uses_of_ops()))


def test_the_protocols_have_no_name_that_no_rule_uses():
    used = defaultdict(set)
    for kind, name, _, _ in uses_of_ops().found:
        used[kind].add(name)
    for side, protocol in PROTOCOLS.items():
        assert members(protocol) - used[side, ""] == set()
        for name, component in components(side).items():
            assert members(component) - used[side, name] == set(), name


def test_the_emitter_and_the_machine_have_what_their_protocols_say_with_these_parameters():
    """mypy compares the types, too: at the end of emit/emitter.py and sim/machine.py."""
    made = {"e": vars(Emitter(Graph("empty", (), Block(), Launch(), "sm_90a", None))), "m": {}}
    for side, real in REAL.items():
        compared(PROTOCOLS[side], real)
        for name, component in components(side).items():
            compared(component, vars(real)[name].function if side == "m" else type(made[side][name]))


def compared(protocol: type, real: type) -> None:
    for name, method in vars(protocol).items():
        if not name.startswith("_") and callable(method):
            wanted = [p.name for p in inspect.signature(method).parameters.values() if p.name != "self"]
            assert wanted == [p for p in inspect.signature(getattr(real, name)).parameters if p != "self"], f"{real.__name__}.{name}"


HELPERS = """
def helper(maker, x):
    return maker.ins(x)

def by_name(first, *, out):
    out.tma.load(first)

class Region:
    def __init__(self, what, x):
        self.maker = what

    def place(self):
        return self.maker.made_up(1)

@dataclass
class Part:
    unit: object
    n: int

    def run(self):
        self.unit.also_made_up()
"""

IMPORTS = "from .helpers import Part, Region, by_name, helper\n"

WRONG = {
    "a rule": ("@add.emit\ndef _(out, call):\n    out.made_up()\n", "e.made_up"),
    "a component of a rule": ("@add.simulate\ndef _(machine, call):\n    machine.tma.made_up(1)\n", "m.tma.made_up"),
    "a name that a component has, of the whole": ("@add.emit\ndef _(e, call):\n    e.load(1)\n", "e.load"),
    "a variable": ("@add.emit\ndef _(e, call):\n    t = e.tma\n    t.made_up()\n", "e.tma.made_up"),
    "one of two variables": ("@add.emit\ndef _(e, call):\n    x, t = 1, e\n    t.made_up()\n", "e.made_up"),
    "a method that is stored": ("@add.emit\ndef _(e, call):\n    f = e.tma.made_up\n    f()\n", "e.tma.made_up"),
    "a helper": ("def aid(it):\n    it.made_up()\n\n@add.emit\ndef _(e, call):\n    aid(e)\n", "e.made_up"),
    "a helper of a helper, by keyword": ("def deep(*, to):\n    to.made_up()\n\ndef aid(it):\n    deep(to=it)\n\n@add.emit\ndef _(e, call):\n"
                                        "    aid(e)\n", "e.made_up"),
    "a helper that gets a component": ("def aid(it):\n    it.made_up()\n\n@add.simulate\ndef _(m, call):\n    aid(m.barriers)\n",
                                      "m.barriers.made_up"),
    "a parameter by its name": ("def aid(m):\n    m.made_up\n", "m.made_up"),
    "a function inside": ("@add.emit\ndef _(e, call):\n    def inner():\n        e.made_up()\n    inner()\n", "e.made_up"),
    "a lambda": ("declare('x', lambda m: m.maps.made_up, lambda e: e.ins)\n", "m.maps.made_up"),
    "a field": ("@add.emit\ndef _(e, call):\n    Region(e, 1).place()\n", "e.made_up"),
    "a field of a dataclass": ("@add.simulate\ndef _(m, call):\n    Part(m, 2).run()\n", "m.also_made_up"),
    "a variant's rule": ("def lower(to, plan, call):\n    to.made_up()\n\nV = Variant('v', emit=lower)\n", "e.made_up"),
    "a meaning": ("@means('mov')\ndef moved(it, form, x):\n    it.made_up()\n", "m.made_up"),
    "an element": ("def one(to, dtype, x):\n    to.made_up()\n\nadd.rules.element = one\n", "e.made_up"),
    "a component that is called": ("@add.emit\ndef _(e, call):\n    e.sync()\n", "e.sync.__call__"),
    "a name by string": ("@add.emit\ndef _(e, call):\n    getattr(e.tma, call.name)()\n", "e.tma.getattr"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_name_without_a_protocol_is_found_in(case):
    text, name = WRONG[case]
    assert [line.partition(": ")[2] for line in unknown(Uses({"helpers.py": ast.parse(HELPERS), "x.py": ast.parse(IMPORTS + text)}))] == [name]


def test_names_of_protocols_and_of_other_objects_are_no_findings():
    text = ("@add.emit\ndef _(e, call):\n    e.tma.load(1)\n    helper(e, 2)\n    by_name(1, out=e)\n    x = call.made_up\n    e = call\n    e.anything\n"
            "for m in moves:\n    m.anything\n")
    assert not list(unknown(Uses({"helpers.py": ast.parse(HELPERS), "x.py": ast.parse(IMPORTS + text)})))
