"""The ready-made kernels as operators of torch: where it traces or compiles, maps by vmap, or needs gradients.

A call becomes one of an operator that takes its tensors, its numbers, and its form: the call as text, in which tensors
and numbers are places in lists, functions under ``@tile.jit`` their number, and configurations their fields. Everything
up to the operator is traced by torch.compile, so it is written in plain Python."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from ..errors import LaunchError
from ..jit import KERNELS, Kernel
from .attention import config as attention_config
from .attention.backward import config as backward_config
from .matmul import config as matmul_config
from .matmul.blackwell import config as blackwell_config


@dataclass(frozen=True)
class Traced:
    """A function of the package as an operator called `name`.

    `new(arguments)` makes the arrays of its results, and `compute(into, arguments)` fills them. `returned(results,
    arguments)` is what a call returns. `gradients(arguments, gradients, results)` are those of the arguments by name,
    from those of the results, each of which may be None; it gets the results if it `keeps` them, and calls the
    functions named by `calls`. `missing` says why a call has none, or "". `mapped(arguments, axes, size)` are the
    arguments of the call that stands for `size` calls, whose results have a new first axis."""

    name: str
    new: Callable[[dict[str, Any]], list[Any]]
    compute: Callable[[Sequence[Any], dict[str, Any]], Any]
    returned: Callable[[list[Any], dict[str, Any]], Any]
    missing: Callable[[dict[str, Any]], str]
    gradients: Callable[[dict[str, Any], Sequence[Any], Sequence[Any]], dict[str, Any]] | None = None
    mapped: Callable[[dict[str, Any], dict[str, int | None], int], dict[str, Any]] | None = None
    keeps: bool = False
    calls: tuple[str, ...] = ()


# -- when a call goes through an operator ------------------------------------------------------------------------------

def is_traced(*arrays: Any) -> bool:
    """Whether torch traces, compiles or maps a call with these arrays, of which some may be None: the tensors then have
    no memory that a kernel could be given."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_compiling():
        return any(isinstance(x, torch.Tensor) for x in arrays)
    plain = (torch.Tensor, torch.nn.Parameter)
    mapped = torch._C._functorch.maybe_current_level() is not None
    return any(isinstance(x, torch.Tensor) and (mapped or x.__class__ not in plain) for x in arrays)


def is_tensor(x: Any) -> bool:
    """Whether `x` is one of torch's tensors."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def needs_gradient(*arrays: Any) -> bool:
    """Whether torch would have to differentiate by one of the arrays, or of those in tuples; some may be None."""
    for x in arrays:
        if x.__class__ in (tuple, list):
            if needs_gradient(*x):
                return True
        elif getattr(x, "requires_grad", False):
            return bool(sys.modules["torch"].is_grad_enabled())
    return False


# -- calls as tensors, numbers and text --------------------------------------------------------------------------------

# the fields of each kind of configuration
CONFIGURATIONS = {kind: tuple(f.name for f in fields(kind)) for kind in (
    attention_config.Config, backward_config.BackwardConfig, blackwell_config.BlackwellConfig, matmul_config.Config)}


def taken_apart(value: Any, tensors: list[Any], numbers: list[float], integers: list[int]) -> Any:
    """A value as nested tuples of constants that `put_together` reads; its tensors and numbers go to the lists."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return "tensor", len(tensors) - 1
    if value is None or isinstance(value, (bool, str)):
        return "constant", value
    if isinstance(value, int):
        integers.append(value)
        return "integer", len(integers) - 1
    if isinstance(value, float):
        numbers.append(value)
        return "number", len(numbers) - 1
    if isinstance(value, (tuple, list)):
        return "list", tuple([taken_apart(x, tensors, numbers, integers) for x in value])
    if isinstance(value, Kernel):
        return "kernel", value.number
    for kind, names in CONFIGURATIONS.items():
        if isinstance(value, kind):
            return kind.__module__, tuple([taken_apart(getattr(value, n), tensors, numbers, integers) for n in names])
    raise LaunchError(f"{type(value).__name__} is none of the arguments that a call takes under torch.compile, "
                      "torch.vmap or where torch differentiates: tensors, numbers, functions under @tile.jit and "
                      "configurations")


def put_together(form: Any, tensors: Sequence[Any], numbers: Sequence[float], integers: Sequence[int]) -> Any:
    """The value of which `taken_apart` made `form`."""
    kind, held = form
    if kind == "constant":
        return held
    if kind in ("tensor", "integer", "number"):
        return {"tensor": tensors, "integer": integers, "number": numbers}[kind][held]
    if kind == "kernel":
        return _kernel(held)
    parts = tuple(put_together(part, tensors, numbers, integers) for part in held)
    if kind == "list":
        return parts
    return next(config for config in CONFIGURATIONS if config.__module__ == kind)(*parts)


def _kernel(number: int) -> Kernel:
    found = KERNELS.get(number)
    if found is None:
        raise LaunchError("a function under @tile.jit that a compiled graph calls no longer exists: "
                          "keep a reference to it")
    return found


@lru_cache(maxsize=1024)
def _read(text: str) -> dict[str, Any]:
    return dict(ast.literal_eval(text))


def _arguments(tensors: Sequence[Any], numbers: Sequence[float], integers: Sequence[int], form: str) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {name: put_together(part, tensors, numbers, integers) for name, part in _read(form).items()}


def call_operator(operator: Traced, arguments: dict[str, Any]) -> Any:
    """Call a function of the package as an operator of torch."""
    torch = sys.modules["torch"]
    given = {name: value for name, value in arguments.items() if name != "out"}
    out = arguments["out"]
    tensors: list[Any] = []
    numbers: list[float] = []
    integers: list[int] = []
    form = repr(tuple([(name, taken_apart(value, tensors, numbers, integers)) for name, value in given.items()]))
    define(operator.name)
    if out is None:
        made = getattr(torch.ops.tilejit, operator.name)(tensors, numbers, integers, form)
        return operator.returned(made, given)
    into = list(out) if isinstance(out, (list, tuple)) else [out]
    if given.get("lse"):  # the sums, which have no place in `out`
        into += operator.new(given)[1:]
    getattr(torch.ops.tilejit, f"{operator.name}_into")(into, tensors, numbers, integers, form)
    return operator.returned(into, given)


def new_tensor(like: Any, shape: tuple[Any, ...], dtype: str) -> Any:
    """A new tensor on the device of another, which may have no memory."""
    return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))


def name_of_dtype(x: Any) -> str:
    """The name of a tensor's dtype."""
    return str(x.dtype).removeprefix("torch.").removesuffix("_x2")


# -- the operators -----------------------------------------------------------------------------------------------------

OPERATORS: dict[str, Traced] = {}
_defined: dict[str, Any] = {}  # torch's objects, which end with the process
SCHEMA = "Tensor[] arrays, float[] numbers, SymInt[] integers, str form"


def define(name: str) -> bool:
    """Make the operators of a function known to torch, at its first call, and those that its gradients call: where
    torch takes a compiled backward from its cache, it does not trace the gradients."""
    if name not in _defined:
        library, rules = sys.modules["torch"].library, _Rules(OPERATORS[name])
        made = library.custom_op(f"tilejit::{name}", rules.run, mutates_args=(), schema=f"({SCHEMA}) -> Tensor[]")
        made.register_fake(rules.make_results)
        made.register_autograd(rules.differentiate, setup_context=rules.keep)
        made.register_vmap(rules.map)
        into = library.custom_op(f"tilejit::{name}_into", rules.fill, mutates_args=("out",),
                                 schema=f"(Tensor(a!)[] out, {SCHEMA}) -> ()")
        into.register_fake(lambda out, arrays, numbers, integers, form: None)
        into._setup_context_fn = rules.refuse  # called where torch would have to differentiate
        _defined[name] = made, into
        for other in OPERATORS[name].calls:
            define(other)
    return True


define._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result does


class _Rules:
    """What torch calls for an operator."""

    def __init__(self, operator: Traced):
        self.operator = operator

    def make_results(self, *call: Any) -> list[Any]:
        return self.operator.new(_arguments(*call))

    def run(self, *call: Any) -> list[Any]:
        arguments = _arguments(*call)
        made = self.operator.new(arguments)
        self.operator.compute(made, arguments)
        return made

    def fill(self, out: Sequence[Any], *call: Any) -> None:
        self.operator.compute(out, _arguments(*call))

    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the arguments of a call that torch is to differentiate. LaunchError if it has no backward."""
        arguments = _arguments(*inputs)
        missing = self.operator.missing(arguments)
        if missing:
            raise LaunchError(no_gradient(self.operator.name, missing))
        ctx.save_for_backward(*inputs[0], *(output if self.operator.keeps else ()))
        ctx.count = len(inputs[0])
        ctx.others = inputs[1:]

    def refuse(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        raise LaunchError(no_gradient(self.operator.name, "with out="))

    def differentiate(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        assert self.operator.gradients is not None  # `keep` raises for operators without
        tensors, results, form = ctx.saved_tensors[:ctx.count], ctx.saved_tensors[ctx.count:], ctx.others[-1]
        found = self.operator.gradients(_arguments(tensors, *ctx.others), gradients, results)
        places = {held: name for name, (kind, held) in _read(form).items() if kind == "tensor"}
        others: list[Any] = [[] if x == [] else None for x in ctx.others]  # an empty list counts as one of tensors
        return [found.get(places.get(n, "")) for n in range(len(tensors))], *others

    def map(self, info: Any, axes: tuple[Any, ...], *call: Any) -> tuple[list[Any], list[int]]:
        """The operator for a batch of calls."""
        arguments, form = _arguments(*call), call[-1]
        places = {name: axes[0][held] for name, (kind, held) in _read(form).items() if kind == "tensor"}
        inner = sum(axis is not None for axis in axes[0]) - sum(axis is not None for axis in places.values())
        if self.operator.mapped is None or inner:
            raise LaunchError(f"{self.operator.name} has no batched form of this call for torch.vmap")
        arguments = self.operator.mapped(arguments, places, info.batch_size)
        made = call_operator(self.operator, {**arguments, "out": None})
        made = made if isinstance(made, (list, tuple)) else [made]
        return list(made), [0] * len(made)


def no_gradient(kernel: str, missing: str = "") -> str:
    """The text of an error: torch would have to differentiate a kernel that has no backward, or none of this call."""
    return (f"{kernel} has no backward, {f'{missing}, ' if missing else ''}and an operand requires a gradient: call it "
            "under torch.no_grad(), or with the operands' .detach()")


__all__ = ["OPERATORS", "Traced", "call_operator", "is_tensor", "is_traced", "name_of_dtype", "needs_gradient",
           "new_tensor", "no_gradient"]
