"""The declarations of all ops are complete: docstring, rules, roles of operands, traits that agree with them."""

import dataclasses
import inspect
import pkgutil
from importlib import import_module

import pytest
import tilejit.ops
from tilejit.ir.op import OPS, Op, op
from tilejit.ir.op_rules import Rules
from tilejit.ir.op_traits import Reads, Registers, Role, Signals, Traits, Writes

for module in pkgutil.walk_packages(tilejit.ops.__path__, "tilejit.ops."):
    import_module(module.name)

ALL = [declared for declared in OPS.values() if (declared.place[0] or "tilejit.").startswith("tilejit.")]
RULES = [field.name for field in dataclasses.fields(Rules)]

# Ops that a pass replaces before kernels run: by the ops of a product, the producer's copy, the waits of copies, fences, a ring's cursor.
REPLACED = ["dot", "hand_over", "load_for_program", "pipeline_slot", "token_wait"]


def names(ops) -> list[str]:
    return sorted(declared.name for declared in ops)


def test_every_op_has_a_docstring_and_the_rule_infer():
    assert len(ALL) > 150
    assert names(o for o in ALL if not o.__doc__ or o.rules.infer is None) == []


@pytest.mark.parametrize("rule", ("simulate", "emit"))
def test_every_op_runs_in_the_simulator_and_on_the_device_unless_a_pass_replaces_it(rule):
    assert names(o for o in ALL if getattr(o.rules, rule) is None) == REPLACED


def test_an_op_with_variants_describes_its_calls_to_them():
    assert names(o for o in ALL if o.variants and o.rules.site is None) == []


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_the_name_of_a_decorator_and_some_op_has_it(rule):
    assert any(getattr(o.rules, rule) is not None for o in ALL)
    marker = object()
    declared = _declared("pure", lambda x: None)
    assert getattr(declared, rule)(marker) is marker
    assert getattr(declared.rules, rule) is marker


def test_each_rule_has_a_comment_that_says_what_it_is():
    lines = inspect.getsource(Rules).splitlines()
    bare = [line for above, line in zip(lines, lines[1:]) if line.strip().partition(":")[0] in RULES and not above.strip().startswith("#:")]
    assert bare == []


def test_a_misspelt_rule_is_an_error_where_it_is_declared():
    with pytest.raises(AttributeError, match="emitt"):
        _ = ALL[0].emitt
    with pytest.raises(AttributeError, match="layot"):
        ALL[0].rules.layot = None


def test_a_misspelt_trait_is_an_error_where_it_is_declared():
    with pytest.raises(TypeError, match="vieww"):
        Traits(vieww=True)


# -- operands --------------------------------------------------------------------------------------------------------------

def _declared(effect: str, function) -> Op:
    """An op that is declared for a test, and is no op of the language."""
    before = dict(OPS)
    try:
        return op(effect)(function)
    finally:
        OPS.clear()
        OPS.update(before)


def test_an_op_with_an_effect_says_what_each_operand_is():
    def writes(destination: Writes, value): ...
    with pytest.raises(ValueError, match="'value' of the op writes"):
        _declared("writes", writes)


def test_an_operand_is_annotated_by_its_role_only():
    def pure(x: int): ...
    with pytest.raises(ValueError, match="'x' of the op pure"):
        _declared("pure", pure)


def test_what_a_call_writes_is_what_its_signature_says_however_operands_are_spelled():
    def swap(src: Writes, bar: Signals, *more: Writes, n=0): ...
    def read(dst: Reads, target: Registers): ...
    swap, read = _declared("writes", swap), _declared("reads", read)
    assert swap.roles.written_operands(("a", "b", "c", "d")) == ["a", "c", "d"] and swap.writes
    assert read.roles.written_operands(("a", "b")) == [] and not read.writes


def test_ops_that_write_no_memory_of_their_operands():
    """Those that write and sync otherwise: allocations, edits of maps and what has neither destination nor source."""
    assert names(o for o in ALL if o.effect == "writes" and not o.writes) == ["alloc_shared", "alloc_tmem", "map_seed"]


def test_only_a_tensor_maps_slot_is_written_by_an_op_without_effect():
    assert names(o for o in ALL if o.effect in ("pure", "reads") and o.writes and not o.traits.instruction) == ["tensor_map"]


def test_roles_are_no_part_of_the_signature_that_errors_show():
    assert str(OPS["store"].signature) == "(target, value, mask, cache, each_thread)"
    assert OPS["store"].roles.named == (Role.WRITES, Role.REGISTERS, Role.REGISTERS)


# -- traits ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("trait, ops", {
    "view": ["buffer_view", "bytes_of", "bytes_without_padding", "matrix_of", "points", "region"],
    "allocates": ["alloc_shared", "alloc_tmem", "mbarrier_init"],
    "product": ["dot", "mma", "mma_async", "tensor_mma", "thread_product"],
    "access": ["atomic", "load", "ordered_load", "ordered_store", "store"],
    "copy": ["copy", "copy_async", "prefetch", "tmem_load", "tmem_store"],
    "asynchronous": ["copy_async", "mma_async", "tensor_mma"],
    "atomic": ["atomic", "ordered_load", "ordered_store"],
    "waits": ["bulk_wait", "cluster_wait", "cp_async_wait", "griddepcontrol_wait", "mbarrier_wait", "mma_wait", "tcgen05_wait", "token_wait"],
}.items())
def test_the_ops_with_a_trait(trait, ops):
    """A new op with the trait is added here, after a look at what passes then do with it."""
    assert names(o for o in ALL if getattr(o.traits, trait)) == ops


def test_traits_agree_with_rules():
    assert names(o for o in ALL if o.rules.element is not None and not o.traits.elementwise) == []
    assert names(o for o in ALL if o.traits.elementwise and o.effect != "pure") == []
    assert names(o for o in ALL if (o.traits.access or o.traits.copy or o.traits.atomic) and o.effect not in ("reads", "writes")) == []
    assert names(o for o in ALL if o.traits.waits and o.effect != "syncs") == []
    assert names(o for o in ALL if (o.traits.free or o.traits.lazy or o.traits.view) and o.effect != "pure") == []
