"""``kernel.as_torch_op``: a kernel as an operator of ``torch.library``.

The schema comes from the kernel's signature and from what its graph writes. On CUDA tensors the operator launches, on
CPU tensors it runs on the simulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from ..config import checked_target, config
from ..errors import LaunchError
from ..lazy import Lazy
from ..names import suggest_nearest
from ..runtime.arguments import ArraySpec
from ..runtime.arrays import describe
from .results import checked_out, constants_of

if TYPE_CHECKING:
    from ..runtime.arguments import Bound

torch = Lazy("torch")

NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
TYPES = {bool: "bool", int: "SymInt", float: "float"}  # of a number, in a schema


@dataclass
class Operator:
    """A kernel as an operator: its arguments by `names`, in order, of which it `writes` some; `results` are those that
    it returns instead of taking them, each with the function of the arguments that makes the array."""

    kernel: Any
    grid: Any
    constants: dict[str, Any]
    schema: str
    names: tuple[str, ...]
    writes: tuple[str, ...]
    results: dict[str, Callable[[dict[str, Any]], Any]]
    backward: Callable[..., Any] | None = None
    tensors: frozenset[str] = field(default_factory=frozenset)

    def arguments(self, given: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments of a call by name."""
        return dict(zip(self.names, given))

    def make_results(self, *given: Any) -> Any:
        """What the operator returns, not computed yet: new arrays; for tensors without memory too."""
        arguments = self.arguments(given)
        made = tuple(make(arguments) for make in self.results.values())
        return made[0] if len(made) == 1 else made or None

    def run(self, *given: Any) -> Any:
        """Launch the kernel, or run it on the simulator; returns the results."""
        made = self.make_results(*given)
        some = made if len(self.results) > 1 else (made,)
        arguments = self.arguments(given) | dict(zip(self.results, some))
        self.kernel[self.grid](**arguments, **constants_of(self.constants, arguments))
        return made

    # -- gradients ---------------------------------------------------------------------------------------------------

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the arguments and the results for the backward."""
        results = output if isinstance(output, tuple) else (output,)
        known = self.arguments(inputs) | dict(zip(self.results, results))
        arrays = {name: value for name, value in known.items() if isinstance(value, torch.Tensor)}
        ctx.save_for_backward(*arrays.values())
        ctx.arrays, ctx.others = tuple(arrays), {n: v for n, v in known.items() if n not in arrays}

    def refuse_gradient(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """LaunchError: an argument requires a gradient, and the operator writes to arguments."""
        raise LaunchError(f"{self.kernel.name} writes its argument {self.writes[0]}, through which torch carries no "
                          "gradient, and an argument requires one: call it under torch.no_grad(), or with .detach(), "
                          "or let the operator return its results (out= and backward= of as_torch_op)")

    def gradients(self, ctx: Any, *of_results: Any) -> tuple[Any, ...]:
        """The gradients of the operator's arguments, in order."""
        assert self.backward is not None  # registered only then
        found = self.backward({**ctx.others, **dict(zip(ctx.arrays, ctx.saved_tensors))}, *of_results)
        if not isinstance(found, dict):
            first = [name for name in self.names if name in self.tensors]
            if len(first) != 1:
                raise LaunchError(f"backward= of {self.kernel.name} returns a dict of gradients, by the names of "
                                  f"arguments, since there are several arrays: {', '.join(first)}")
            found = {first[0]: found}
        for name in found:
            if name not in self.tensors:
                raise LaunchError(f"backward= of {self.kernel.name} returns a gradient of {name!r}, which is no array "
                                  f"that the operator takes{suggest_nearest(name, sorted(self.tensors))}")
        return tuple(found.get(name) for name in self.names)


def as_torch_op(kernel: Any, name: str, specs: tuple[Any, ...], grid: Any, out: Any, backward: Any,
                constants: dict[str, Any]) -> Any:
    """``kernel.as_torch_op``."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise LaunchError(f'an operator has a name with a namespace, as in "mine::{kernel.name}", not {name!r}')
    operator = _operator(kernel, specs, grid, checked_out(kernel, out, lambda x: torch.empty_like(x)), constants)
    operator.backward = backward
    mutated = tuple(n for n in operator.names if n in operator.writes)
    if backward is not None and not callable(backward):
        raise LaunchError("backward= is a function of the dict of arguments and results, and of the results' gradients")
    if backward is not None and mutated:
        raise LaunchError(f"{kernel.name} writes its argument {mutated[0]}, and torch differentiates operators that "
                          f"return their results: pass out={{{mutated[0]!r}: ...}}")
    made = torch.library.custom_op(name, operator.run, mutates_args=mutated, schema=operator.schema)
    made.register_fake(operator.make_results)
    if backward is not None:
        made.register_autograd(operator.gradients, setup_context=operator.save)
    elif mutated:
        # Torch calls this only where it would have to differentiate. `register_autograd` does not take it for operators
        # that write arguments, and without it the gradients would be dropped.
        made._setup_context_fn = operator.refuse_gradient
    return made




def _operator(kernel: Any, specs: tuple[Any, ...], grid: Any, results: dict[str, Any],
              constants: dict[str, Any]) -> Operator:
    """The operator for calls like `specs`, which may leave the results out."""
    given = _named_specs(kernel, specs, results, constants)
    shown = {**given, **{name: _spec_of(make, given) for name, make in results.items() if name not in given}}
    bound, options = kernel.bind_alone("as_torch_op launches nothing", (),
                                       {**shown, **constants_of(constants, shown)})
    if bound.groups:
        raise LaunchError(f"an operator of torch takes arrays, numbers and None, and {next(iter(bound.groups))} "
                          "is an argument that groups others")
    version = kernel.version(bound, options, checked_target(config().target or "sm_90a"))
    writes = tuple(bound.names[n] for n in sorted(version.require_lowered().written))
    for name in results:
        if name not in writes:
            raise LaunchError(f"{kernel.name} does not write {name}, and out= has the arrays that it makes")
    fixed = {p.name for p in kernel.parameters if p.constexpr}
    names = tuple(n for n in kernel.names if n not in fixed and n not in results)
    types = [_declaration(kernel, n, bound, n in writes) for n in names]
    returned = ", ".join(["Tensor"] * len(results))
    schema = f"({', '.join(types)}) -> {returned if len(results) == 1 else f'({returned})'}"
    tensors = frozenset(n for n in names if "Tensor" in types[names.index(n)])
    return Operator(kernel, grid, constants, schema, names, writes, results, None, tensors)


def _named_specs(kernel: Any, specs: tuple[Any, ...], results: dict[str, Any],
                 constants: dict[str, Any]) -> dict[str, Any]:
    """The specs by parameter. Defaults stand for those that are not given."""
    open_ = [p for p in kernel.parameters if not p.constexpr and p.name not in results and p.name not in constants]
    if len(specs) > len(open_):
        raise LaunchError(f"as_torch_op takes a spec for each of {', '.join(p.name for p in open_)}, and {len(specs)} "
                          "are given; results are named by out=, and constants by keyword")
    given = dict(zip((p.name for p in open_), specs))
    for p in open_[len(specs):]:
        if p.default is Parameter.empty:
            raise LaunchError(f"as_torch_op needs a spec of {p.name}: an array, a number, "
                              "or tile.ArraySpec(shape, dtype)")
        given[p.name] = p.default
    for p in kernel.parameters:
        if not p.constexpr and p.name in constants:
            raise LaunchError(f"{p.name} is an argument of the operator: give its spec by position")
    return given


def _spec_of(make: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
    """What `make` makes of arrays like the specs, without memory."""
    arrays = {}
    for name, value in given.items():
        if hasattr(value, "shape") and not isinstance(value, torch.Tensor):
            spec = value if isinstance(value, ArraySpec) else ArraySpec.of_view(describe(value))
            value = torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, _torch_name(spec)),
                                        device="meta")
        arrays[name] = value
    made = make(arrays)
    return ArraySpec(tuple(made.shape), made.dtype, tuple(made.stride()))


def _torch_name(spec: ArraySpec) -> str:
    name = str(spec.dtype)
    return name if hasattr(torch, name) else f"{name}_x2"


def _declaration(kernel: Any, name: str, bound: Bound, written: bool) -> str:
    """A parameter in the schema."""
    default = next(p.default for p in kernel.parameters if p.name == name)
    value = bound.values[name]
    after = "" if default is Parameter.empty else f" = {default!r}"
    if isinstance(value, ArraySpec) or value is None:
        alias = f"({name}!)" if written else ""
        return f"Tensor{alias}{'?' if value is None or default is None else ''} {name}{after}"
    if type(value) not in TYPES:
        raise LaunchError(f"an operator of torch takes arrays, numbers and None, and {name} is {value!r}")
    return f"{TYPES[type(value)]} {name}{after}"


__all__ = ["as_torch_op"]
