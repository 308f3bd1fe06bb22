"""Binds a call's arguments to the kernel's parameters.

Which are constants, what the compiler may know of the arrays, and which facts hold for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from inspect import Parameter
from operator import index, is_
from typing import Any

from ..concurrency import cached_property
from ..dtypes import DTYPES, MAX_BITS, DType, bool_, dtype_of, float32, int32, int64, shown_integer
from ..errors import LaunchError
from ..frames import hide_own_frames
from ..ir.builder import Facts
from ..layout import Auto
from ..types import Buffer, Sym
from .arrays import Address, ArrayView, checked_shape, describe, row_major
from .element_types import fits_float32
from .facts import Kind, evaluate_fact, kind_of
from .groups import Group, constant_fields, name_of_part, parts_of


@dataclass(frozen=True)
class ArraySpec:
    """The shape, dtype and strides of an array (in elements; row-major by default): all that compiling needs of it.

    `pointer` is the address of the first element. A spec without data gets an address that is a multiple of 256
    bytes, and is far from all other arguments. `view` is the array. For packed dtypes, shape and strides count bytes
    once a call has the spec (`counted`)."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...] | Any = None
    pointer: int = 0
    view: ArrayView | None = field(default=None, compare=False, repr=False)
    counted: bool = field(default=False, compare=False, repr=False)

    @staticmethod
    def of_view(view: ArrayView) -> ArraySpec:
        made = ArraySpec(view.shape, view.dtype, view.strides, view.pointer, view, counted=True)
        if made.dtype.packed and made.shape[-1:] > (1,) and view.strides[-1] != 1:
            raise LaunchError(f"packed {made.dtype} needs a contiguous last dimension; "
                              f"this array has shape {view.shape} and strides {view.strides} in bytes")
        return made

    def in_memory(self) -> ArraySpec:
        """The spec with shape and strides in bytes, if its dtype is packed. LaunchError if a row does not fill whole
        bytes."""
        if self.counted or not self.dtype.packed:
            return self
        elements, _ = self.dtype.packing
        *outer, last = self.strides or (0,)
        if not self.shape or last != 1 or any(n % elements for n in (self.shape[-1], *outer)):
            raise LaunchError(f"packed {self.dtype} needs a contiguous last dimension, and rows of multiples of "
                              f"{elements} elements, not shape {self.shape} with strides {self.strides}")
        per, nbytes = self.dtype.packing
        row, *steps = (n // per * nbytes for n in (self.shape[-1], *outer))  # as `stored`: whole groups
        return replace(self, shape=(*self.shape[:-1], row), strides=(*steps, 1), counted=True)

    def __post_init__(self):
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        object.__setattr__(self, "shape", checked_shape(self.shape))
        try:
            strides = row_major(self.shape) if self.strides is None else tuple(map(index, self.strides))
        except TypeError:
            raise LaunchError(f"strides are integers, one for each dimension, not {self.strides!r}") from None
        object.__setattr__(self, "strides", strides)
        if len(self.strides) != len(self.shape):
            raise LaunchError(f"{len(self.shape)} extents and {len(self.strides)} strides do not go together")


ArraySpec.__init__ = hide_own_frames(ArraySpec.__init__)  # type: ignore[method-assign]


@dataclass
class Bound:
    """A call's arguments by name, in order; `constants` are the names of those that are known while compiling, `key`
    is what versions are looked up by.

    The parts of a group are arguments of their own, named as a kernel would write them (``layer.bias``); `groups` has
    those of the `parameters` that are groups, and `given` what the call gave for them."""

    values: dict[str, Any]
    constants: frozenset[str]
    key: tuple
    parameters: tuple[str, ...]
    groups: dict[str, Group] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def runtime(self) -> list:
        """The arguments that are not constants, in order. A fact's argument number is an index into this list."""
        return [v for n, v in self.values.items() if n not in self.constants]

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kind of each argument in `runtime`."""
        return tuple(map(kind_of, self.runtime))

    @property
    def names(self) -> list[str]:
        """The names of `runtime`, in order."""
        return [n for n in self.values if n not in self.constants]

    def parts(self, parameters: Iterable[str]) -> list[str]:
        """The names of the arguments of these parameters, in order."""
        return [name for p in parameters for name in (self.groups[p].names() if p in self.groups else (p,))]

    def host_arguments(self) -> list:
        """Host arrays and scalars, for the simulator. LaunchError for an array on a device."""
        result = []
        for name, value in zip(self.names, self.runtime):
            if isinstance(value, ArraySpec):
                if value.view is None or value.view.device != "host":
                    raise LaunchError("the simulator needs host arrays, "
                                      f"and {name} is {'on a device' if value.view else 'a spec without data'}")
                value = value.view.numpy()
            result.append(value)
        return result

    def check_writable(self, written) -> None:
        """LaunchError if the kernel writes (`written`: argument numbers) an array that is read-only."""
        for n in sorted(written):
            value = self.runtime[n]
            if value.view is not None and value.view.readonly:
                raise LaunchError(f"the kernel writes {self.names[n]}, and that array is read-only")

    def without_data(self) -> Bound:
        """The same call without references to its arrays, for objects that outlive it."""
        values = {n: replace(v, view=None) if isinstance(v, ArraySpec) else v for n, v in self.values.items()}
        return replace(self, values=values, given={})

    def meta(self) -> dict[str, Any]:
        """The arguments by parameter, as a grid function gets them."""
        return {name: held.view.owner if isinstance(held, ArraySpec) and held.view is not None else held
                for name, held in ((p, self.given[p] if p in self.groups else self.values[p]) for p in self.parameters)}


CONSTANTS = (bool, int, float, str, DType, Auto, type(None))


FAR = 44  # arguments without data are 2^44 bytes apart


def bind_arguments(name: str, parameters, args: tuple, kwargs: dict) -> Bound:
    """Match a call's arguments with the parameters. LaunchError names an argument that is missing, surplus, or of a
    type that kernels do not take."""
    if len(args) > len(parameters):
        raise LaunchError(f"{name} takes {len(parameters)} arguments, and {len(args)} are given")
    binding = _Binding(name)
    groups, held = {}, {}
    given = dict(zip((p.name for p in parameters), args))
    for p in parameters:
        if p.name in given and p.name in kwargs:
            raise LaunchError(f"{name}: {p.name!r} is given twice")
        if p.name in given or p.name in kwargs:
            value = given.get(p.name, kwargs.get(p.name))
        elif p.default is not Parameter.empty:
            value = p.default
        else:
            raise LaunchError(f"{name} needs the argument {p.name!r}")
        part = binding.constant(p.name, value) if p.constexpr else binding.argument(p.name, value)
        if isinstance(part, Group):
            groups[p.name], held[p.name] = part, value
    forms = tuple((param, group.form) for param, group in groups.items())
    return Bound(binding.values, frozenset(binding.constants), (*binding.key, *forms),
                 tuple(p.name for p in parameters), groups, held)


class _Binding:
    """The arguments of a call that have been bound so far."""

    def __init__(self, kernel: str):
        self.kernel = kernel
        self.values: dict[str, Any] = {}
        self.constants: set[str] = set()
        self.key: list[Any] = []

    def constant(self, name: str, value: Any) -> str:
        """Add an argument that is known while compiling; gives its name."""
        value = self.values[name] = plain_constant(value)
        self.constants.add(name)
        self.key.append((name, _constant_key(self.kernel, name, value)))
        return name

    def argument(self, name: str, value: Any) -> Group | str:
        """Add an array, a number, None, or the parts of a group; gives the name or the group."""
        if value is None:
            return self.constant(name, value)
        found = None if isinstance(value, ArraySpec) or _is_constant_only(value) else parts_of(value)
        if found is None:
            value = _runtime_value(self.kernel, name, value)
            if isinstance(value, ArraySpec) and value.view is None and not value.pointer:
                value = replace(value, pointer=len(self.values) + 1 << FAR)
            self.values[name] = value
            self.key.append(_signature(value))
            return name
        kind, (named, parts) = type(value), found
        fixed = constant_fields(kind) if named else ()
        places: Iterable[str | int] = named or range(len(parts))
        return Group(kind, named, tuple(self._part(name_of_part(name, at), part, at in fixed)
                                        for at, part in zip(places, parts)))

    def _part(self, name: str, value: Any, fixed: bool) -> Group | str:
        """Add a part of a group. What cannot change at run time is a constant."""
        if fixed or isinstance(value, Enum) or _is_constant_only(value):
            return self.constant(name, value)
        return self.argument(name, value)


def _is_constant_only(value: Any) -> bool:
    """Whether a value cannot be an argument at run time: a string, a dtype, a member of an enumeration, a kernel, a
    helper, a layout."""
    return (isinstance(value, (str, DType, Auto)) or isinstance(value, Enum) and not isinstance(value, (int, float))
            or _names_dtype(value) or getattr(value, "source", None) is not None or hasattr(value, "shards"))


def _describe_constant(value: Any) -> str:
    """A value of which `_is_constant_only` is true, in words."""
    if isinstance(value, DType) or _names_dtype(value):
        return f"the dtype {dtype_of(value)}"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Enum):
        return f"a member of {type(value).__name__}"
    return "a layout" if hasattr(value, "shards") or isinstance(value, Auto) else "a function"


def plain_constant(value):
    """A constant with NumPy's numbers replaced by Python's, and the dtypes of NumPy, torch and Python by this
    package's; tuples, named or not, item by item. Of the fields of a frozen dataclass, only numbers are replaced."""
    if isinstance(value, tuple):
        items = tuple(map(plain_constant, value))
        if all(map(is_, items, value)):
            return value
        return value._make(items) if hasattr(value, "_make") else items
    if constant_parts(value) is not None:
        held = {f.name: getattr(value, f.name) for f in fields(value)}
        plain = {name: x if _names_dtype(x) else plain_constant(x) for name, x in held.items()}
        changed = {name: x for name, x in plain.items() if x is not held[name]}
        made = copy(value) if changed else value
        for name, x in changed.items():
            object.__setattr__(made, name, x)  # `replace` would run the user's code
        return made
    if _names_dtype(value):
        return dtype_of(value)
    number = _numpy_number(value)
    return value if number is None else number


def _names_dtype(value) -> bool:
    """Whether a constant is an element type of another library, or one of Python's."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if isinstance(value, type):
        return value in (bool, int, float) or numpy is not None and issubclass(value, numpy.generic)
    return (numpy is not None and isinstance(value, numpy.dtype)
            or torch is not None and isinstance(value, getattr(torch, "dtype", ())))


def constant_parts(value) -> tuple | None:
    """The parts of a constant that groups others: the items of a tuple, named or not, or the fields of a frozen
    dataclass; None for any other."""
    if isinstance(value, tuple):
        return value
    options = getattr(type(value), "__dataclass_params__", None)
    if options is None or not options.frozen or isinstance(value, CONSTANTS) or hasattr(value, "shards"):
        return None
    return tuple(getattr(value, f.name) for f in fields(value))


def _constant_key(kernel: str, name: str, value):
    if isinstance(value, Enum):
        return type(value), value.name
    parts = constant_parts(value)
    if parts is not None:
        return type(value), tuple(_constant_key(kernel, name, v) for v in parts)
    if _names_dtype(value):  # within a dataclass, where `plain_constant` has not replaced it
        return "DType", dtype_of(value)
    if isinstance(value, float):
        return "float", repr(value)  # -0.0 is not 0.0, and NaN is itself
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise LaunchError(f"{kernel}: the constexpr {name!r} has {value.bit_length()} bits, "
                          f"and a constant has at most {MAX_BITS}")
    if isinstance(value, CONSTANTS):
        return type(value).__name__, value
    if getattr(value, "source", None) is not None or hasattr(value, "shards"):
        return value
    raise LaunchError(f"{kernel}: the constexpr {name!r} is a number, string, dtype, layout, kernel, enum member, "
                      f"or a tuple or frozen dataclass of those, not {type(value).__name__}")


def _runtime_value(kernel: str, name: str, value):
    if isinstance(value, ArraySpec):
        return value.in_memory()
    if isinstance(value, (bool, int, float)):
        if not isinstance(value, (bool, Address)):  # instances of other subclasses become plain numbers
            value = int(value) if isinstance(value, int) else float(value)
        if isinstance(value, int) and not -2**63 <= value < 2**63:
            raise LaunchError(f"{kernel}: {name} = {shown_integer(value)} does not fit in 64 bits (int64 holds "
                              f"{-2**63} to {2**63 - 1})")
        if isinstance(value, float) and not fits_float32(value):
            raise LaunchError(f"{kernel}: {name} = {value} does not fit in float32, as which a float is passed "
                              "(-3.4028235e38 to 3.4028235e38); an array of one float64 holds it")
        return value
    if isinstance(value, (dict, set)):
        raise LaunchError(f"{kernel}: {name} is a {type(value).__name__}, and an array or a number is needed; "
                          "pass its values in a tuple, or in a named tuple or dataclass to have names for them")
    if _is_constant_only(value):
        raise LaunchError(f"{kernel}: {name} is {_describe_constant(value)}, which is known while compiling: declare "
                          f"the parameter as {name}: tile.constexpr")
    if isinstance(value, complex):
        raise LaunchError(f"{kernel}: {name} is a complex number, and kernels have none: pass its real and its "
                          "imaginary part")
    number = _numpy_number(value)
    if number is not None:
        return _runtime_value(kernel, name, number)
    try:
        view = describe(value)
        if (view.shape == () and not hasattr(value, "__array_interface__") and hasattr(value, "item")
            and not hasattr(value, "__dlpack__")):
            return value.item()
        return ArraySpec.of_view(view)
    except LaunchError as error:
        raise LaunchError(f"{kernel}: {name}: {error}") from None


def _numpy_number(value) -> bool | int | float | None:
    """A NumPy scalar as a Python number; None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or value.dtype.name not in DTYPES:
        return None
    return float(value) if DTYPES[value.dtype.name].is_float else value.item()


def _signature(value):
    if isinstance(value, ArraySpec):
        return "array", value.dtype.name, len(value.shape)
    return type(value).__name__


def is_host(bound: Bound) -> bool:
    """Whether the call's arrays are on the host; also if it has none. LaunchError if they are in different places."""
    homes = {name: v.view.device for name, v in bound.values.items() if isinstance(v, ArraySpec) and v.view is not None}
    devices = set(homes.values())
    if len(devices) > 1:
        places = (f"{n} is on {'the host' if d == 'host' else f'device {d}'}" for n, d in homes.items())
        raise LaunchError("the arrays of a launch must be in one place, and " + ", ".join(places))
    return devices != set() and devices == {"host"} or not devices


def buffer_type(spec: ArraySpec, arg: int, name: str, facts: Facts) -> Buffer:
    """The type of a global array argument. Sizes and strides are symbols that the launch fills in, except for one
    stride of 1, which is a fact (and so a guard)."""
    bits = 32 if facts.ask("fits32", arg) else 64
    rank = len(spec.shape)
    shape = tuple(Sym("size", arg, d, bits, f"{name}.shape[{d}]") for d in range(rank))
    strides: list = [Sym("stride", arg, d, bits, f"{name}.strides[{d}]") for d in range(rank)]
    for d in reversed(range(rank)):  # if several strides are 1, the last such dimension counts as contiguous
        if facts.ask("stride_is", arg, d, 1):
            strides[d] = 1
            break
    return Buffer(spec.dtype, shape, "global", strides=tuple(strides), arg=arg)


def scalar_dtype(value, n: int, facts: Facts) -> DType:
    """The dtype of a Python scalar argument: bool, float32, or int32 (int64 if it does not fit, or is an `Address`)."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return float32
    return int32 if not isinstance(value, Address) and facts.ask("scalar_fits32", n) else int64


def answer(fact: tuple, bound: Bound) -> bool:
    """Whether a fact holds for these arguments."""
    return evaluate_fact(fact, bound.runtime, bound.kinds)
