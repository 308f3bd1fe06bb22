"""How the lowerings of an op stand in the code: one ordered tuple of variants, each with its own needs beside it."""

import ast
from collections.abc import Iterator

import pytest
from tilejit.dispatch import Need, Site, Variant, choose, conditions, names
from tilejit.errors import DispatchError
from tilejit.ir.op import OPS

from tests.package_trees import ROOT, nodes_of, trees


def calls(path: str, name: str) -> list[ast.Call]:
    """The calls in a file of a function with this name."""
    return [node for node in nodes_of(ROOT / path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name]


def declarations() -> Iterator[tuple[str, ast.Module, ast.Call]]:
    """Each ``Variant(…)`` of the package, with its file and that file's tree."""
    for path, tree in trees().items():
        yield from ((path, tree, call) for call in calls(path, "Variant"))


def variants() -> list[Variant]:
    return [v for op in OPS.values() for v in op.variants]


def needs_of(tree: ast.Module, call: ast.Call) -> ast.expr:
    """The expression for a variant's needs; where that is a name, what the file assigns to it."""
    (given,) = (k.value for k in call.keywords if k.arg == "needs")
    if isinstance(given, ast.Name):
        assigned = (node for node in tree.body if isinstance(node, ast.Assign))
        (given,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == given.id)
    return given


def test_every_op_with_variants_has_one_ordered_tuple_of_them():
    """It stands in the op. No other rule of the op gives variants, and no variant belongs to it twice."""
    with_variants = [op for op in OPS.values() if op.variants]
    expected = {"copy", "copy_async", "prefetch", "load", "store", "atomic", "dot", "mma_async"}
    assert expected <= {op.name for op in with_variants}
    for op in with_variants:
        assert isinstance(op.variants, tuple) and all(isinstance(v, Variant) for v in op.variants), op
        assert len(set(map(id, op.variants))) == len(op.variants), op
    assigned = [ast.unparse(node.targets[0]) for path in trees() for node in nodes_of(ROOT / path)
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".variants")]
    assert len(assigned) == len(set(assigned)), "two tuples of one op"


def test_every_variant_of_an_op_is_declared_once_at_the_top_of_a_file():
    """Nothing makes a variant while the package runs, and no variant is another one rewritten."""
    declared = list(declarations())
    at_the_top = [call for _, tree, call in declared for statement in tree.body
                  if isinstance(statement, ast.Assign) and call in ast.walk(statement)]
    assert len(at_the_top) == len(declared)
    assert len({id(v) for v in variants()}) == len(declared), "a variant that no op has, or one that is not declared"


def test_every_need_of_a_variant_is_listed_in_the_file_that_declares_the_variant():
    """Each by its words or by the name of a need: no slices or lists of others' needs, and nothing added later."""
    for path, tree, call in declarations():
        needs = needs_of(tree, call)
        assert isinstance(needs, ast.Tuple), f"{path}:{call.lineno}: needs are a tuple"
        for need in needs.elts:
            single = isinstance(need, (ast.Name, ast.Attribute, ast.Call))
            assert single, f"{path}:{need.lineno}: {ast.unparse(need)} is not one need"
        added = (ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign))
        assert "NEEDS" not in added, path


def test_no_variant_is_made_by_rewriting_another():
    """`replace` of a dataclass never sets a field that only variants have."""
    own = {"needs", "emit", "simulate", "takes", "same_dtype", "wider"}
    for path in trees():
        for call in calls(path, "replace"):
            assert not own & {k.arg for k in call.keywords}, f"{path}:{call.lineno}: {ast.unparse(call)}"


# -- what follows from a variant's fields ------------------------------------------------------------------------------

class Copying(Site):
    """A site of an op with the selective options `fast` and `wide`."""

    selective = "fast", "wide"

    def __init__(self, place="here", alike=True, **options):
        self.at, self.alike, self.options = place, alike, options

    place = property(lambda self: self.at)

    def one_dtype(self):
        return self.alike or "two"

    def __str__(self):
        return "the call"


def variant(name, *needs, **fields) -> Variant:
    return Variant(name, needs=needs, plan=lambda site: name, **fields)


BIG = Need("a big one", lambda s: s.options.get("big", False) or "a small one")


def test_a_variant_declines_the_selective_options_that_it_does_not_take():
    """After its own needs, in the order of the site's class, whatever the call's order."""
    some, none = variant("some", BIG, takes=("fast",)), variant("none")
    with pytest.raises(DispatchError) as error:
        choose("op", (some, none), Copying(wide=1, fast=1))
    assert error.value.declined == (("some", "needs a big one: a small one; needs no wide="),
                                    ("none", "needs no fast=; needs no wide="))
    assert choose("op", (some, none), Copying(fast=1, big=True)).variant == "some"
    assert choose("op", (some, none), Copying()).variant == "none"
    assert [need.words for need in conditions(some, Copying)] == ["a big one", "no wide="]


def test_a_variant_that_copies_bytes_unchanged_needs_one_dtype_before_all_else():
    same, other = variant("same", BIG, same_dtype=True), variant("other")
    choice = choose("op", (same, other), Copying(alike=False))
    assert (choice.variant, choice.declined) == ("other", (("same", "needs one dtype on both sides: two"),))
    assert choose("op", (same, other), Copying(big=True)).variant == "same"


def test_a_variant_for_another_place_is_no_candidate_and_gives_no_reason():
    here, there, anywhere = variant("here", place="here"), variant("there", place="there"), variant("anywhere")
    every = there, here, anywhere
    assert choose("op", every, Copying("here")).declined == (("anywhere", "here comes first"),)
    assert choose("op", every, Copying("there")).declined == (("anywhere", "there comes first"),)
    with pytest.raises(DispatchError, match="op has no variant 'there'; its variants are here, anywhere"):
        choose("op", every, Copying("here"), only="there")


def test_variants_of_one_name_are_forms_of_one_lowering():
    """The first that fits is taken. The choice tells nothing of the others, but has the wider forms that it names."""
    first = variant("load", BIG)
    second = variant("load", wider=lambda site, plan: (("16 bytes", f"no {plan} is wider"),))
    assert names((first, second)) == ("load",)
    assert choose("op", (first, second), Copying()).declined == (("16 bytes", "no load is wider"),)
    chosen = choose("op", (first, second), Copying(big=True))
    assert chosen.lowering is first and chosen.declined == ()


def test_a_variant_without_a_plan_is_chosen_and_left_to_a_pass():
    assert choose("op", (Variant("elsewhere", needs=()),), Copying()).plan is None
