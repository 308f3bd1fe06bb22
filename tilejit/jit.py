"""``@tile.jit`` makes a Kernel; ``kernel[grid](...)`` runs it, on the GPU or for host arrays on the simulator."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import Parameter
from itertools import count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from .compiled import CompiledKernel
from .concurrency import not_while_forking
from .config import checked_target, chosen_seed, config
from .errors import CompilationError, LaunchError, TileError, print_text, warn
from .frames import hide_frames, hide_own_frames
from .frontend import Capture, Source
from .frontend.captures import attached_captures
from .ir.builder import Facts
from .ir.op import variant_names
from .lazy import Lazy
from .manifest import Shelf, difference
from .names import suggest_keyword, suggest_nearest
from .runtime import driver, libcuda
from .runtime.addresses import known_arrays
from .runtime.arguments import ArraySpec, Bound, answer, bind_arguments, buffer_type, is_host, scalar_dtype
from .runtime.groups import Group
from .runtime.options import CALL_OPTIONS, LAUNCH_OPTIONS, call_grid, checked_grid, make_launch, padded_grid
from .warm import Warm, form_of

if TYPE_CHECKING:
    from .compile import Lowered
    from .frontend.building import Built
    from .sim.report import Report

P = ParamSpec("P")
R = TypeVar("R")

compiler = Lazy("tilejit.compile")  # a process that finds its kernels in the cache does not need it
building = Lazy("tilejit.frontend.building")
exporting = Lazy("tilejit.export.exporting")
torch_operator = Lazy("tilejit.interop.torch_operator")


@hide_own_frames
def jit(function: Any = None, *, source: str | None = None, **options: Any) -> Any:
    """Decorate a Python function as a kernel, or as a helper that kernels may call.

    Options: `num_warps` (by default 4, that is 128 threads per CTA), `cluster`, `min_ctas`, `max_registers`,
    `spills`, `max_shared`, `fast_math`, `pdl`, `jitter`, `profile` (with the marks of named ranges, which
    `tile.profile` asks for by itself), `persistent` (with False, each CTA runs one program); each may also be given at
    the launch. `source` is the function's text, for functions whose text Python does not keep (``exec``, an old REPL).
    """
    unknown = [name for name in options if name not in LAUNCH_OPTIONS]
    if unknown:
        raise CompilationError(f"jit has no option {unknown[0]!r}{suggest_keyword(unknown, LAUNCH_OPTIONS)}")
    if function is None and source is None:
        return partial(jit, **options)
    if source is not None and function is None:
        frame = sys._getframe(2)  # the caller's: the decorator is between
        return Kernel(Source.from_text(source, frame.f_globals), options)
    kernel = Kernel(Source.of(function) if source is None else Source.from_text(source, function.__globals__), options)
    kernel.__qualname__ = function.__qualname__
    return kernel


@not_while_forking
def _simulator() -> Callable[..., Report]:
    """The simulator, imported at its first use."""
    from .sim import simulate  # loads NumPy; no other thread may fork meanwhile
    return simulate


@dataclass
class Version:
    """One version of a kernel: for a signature, a set of facts and a set of captured values. The simulator or the
    compiler sets `lowered` when it needs it; `compiled` is set once the machine code is compiled or found in the
    cache."""

    facts: dict[tuple[Any, ...], bool]
    captured: tuple[Capture, ...]
    lowered: Lowered | None = None
    compiled: CompiledKernel | None = None

    def require_lowered(self) -> Lowered:
        """The lowered kernel, which the caller knows to exist."""
        assert self.lowered is not None
        return self.lowered

    def current(self) -> bool:
        """Whether the captured values are unchanged."""
        return all(c.current() == c.token for c in self.captured)

    def difference(self, bound: Bound) -> str:
        """Say which captured value or fact keeps this version from fitting a call; "" if it fits."""
        for capture in self.captured:
            if capture.current() != capture.token:
                return f"{capture.name} has changed"
        return difference(self.facts, bound)

    @property
    def copies(self) -> tuple[Any, ...]:
        found = self.lowered or self.compiled
        assert found is not None  # one of the two is set
        return found.copies


def _user_call(method: Callable[P, R]) -> Callable[P, R]:
    """Decorator of methods that users call: errors have no frames of the compiler, and one says what nests too
    deeply."""
    @hide_own_frames
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except RecursionError:
            raise CompilationError("the kernel, or an argument of this call, nests too deeply") from None
    return call


_numbers = count()
KERNELS: WeakValueDictionary[int, Kernel] = WeakValueDictionary()  # by their `number`, for graphs of other libraries


class SeenLaunch(NamedTuple):
    """A launch on a device: what `bench` counts the work of."""

    kernel: Kernel
    bound: Bound
    options: dict[str, Any]
    grid: tuple[int, ...]
    target: str


# A list to which launches on devices are added, but for those that take the fast path, and with which launches on the
# simulator are errors; None outside of `bench`.
launches_seen: ContextVar[list[SeenLaunch] | None] = ContextVar("launches_seen", default=None)


# What `profile` records launches with; None outside of it.
profiler: ContextVar[Any] = ContextVar("profiler", default=None)


class Kernel:
    """A function decorated with ``@tile.jit``.

    ``kernel[grid](*args, **options)`` runs it; ``kernel.compile(*specs)`` and ``kernel.simulate(grid, *args)`` need no
    GPU. A call inside another kernel is inlined.
    """

    def __init__(self, source: Source, options: dict[str, Any]):
        self.source, self.options = source, dict(options)
        self.__name__ = self.name = source.name
        self.__doc__ = ast.get_docstring(source.tree)
        self.__module__, self.__qualname__ = source.globals.get("__name__", ""), source.name
        self.parameters = source.params
        self.__signature__ = source.signature
        self.names = [p.name for p in self.parameters]
        self.defaults = {p.name: p.default for p in self.parameters if p.default is not Parameter.empty}
        reserved = [p.name for p in self.parameters if p.name in LAUNCH_OPTIONS + CALL_OPTIONS]
        if reserved:
            raise CompilationError(f"{reserved[0]!r} is a launch option and cannot name a parameter of {self.name}")
        make_launch(self.options)
        self.versions: dict[tuple[Any, ...], list[Version]] = {}
        self.expectations: list[tuple[str, str]] = []
        self.warm = Warm()
        self.number = next(_numbers)
        KERNELS[self.number] = self

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(p.name for p in self.parameters)})>"

    def __reduce__(self) -> str:
        """Pickle by module and name, like a function; copying gives the same object."""
        return self.__qualname__

    @hide_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(f"a kernel is launched with a grid, as in {self.name}[(number_of_ctas,)](...)")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return a function that launches the kernel on a grid: one to three numbers of CTAs, or a function of the dict
        of arguments."""
        grid = padded_grid(grid)

        def launch(*args: Any, **kwargs: Any) -> None:
            try:
                for launcher in self.warm.find(form_of(kwargs)):
                    if launcher(grid, None, args):
                        return
                self.launch(grid, args, kwargs)
            except TileError as error:
                hide_frames(error)
                raise

        def launch_on_grid_of(*args: Any, **kwargs: Any) -> None:
            try:
                for launcher in self.warm.find(form_of(kwargs)):
                    arguments = {**self.defaults, **dict(zip(self.names, args)), **kwargs}
                    if launcher(call_grid(grid, arguments), None, args):
                        return
                self.launch(grid, args, kwargs)
            except TileError as error:
                hide_frames(error)
                raise

        return launch_on_grid_of if callable(grid) else launch

    __iter__ = None  # else Python would iterate by index without end, since every number is a grid

    def prepared(self, grid: Any, /, **kwargs: Any) -> Callable[..., None]:
        """``self[grid]`` with the keyword arguments bound in advance: a function of the remaining,
        positional arguments."""
        grid, launchers = padded_grid(grid), self.warm.launchers_of(form_of(kwargs))

        def launch(*args: Any) -> None:
            try:
                for launcher in self.warm.current(launchers):
                    if launcher(grid, None, args):
                        return
                self.launch(grid, args, kwargs)
            except TileError as error:
                hide_frames(error)
                raise

        return launch

    # -- versions ------------------------------------------------------------------------------------------------------

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, dict[str, Any], dict[str, Any]]:
        """Split and bind a call's arguments: (arguments, launch options, call options)."""
        starred = self.source.tree.args.vararg
        if self.source.rest is not None:
            raise CompilationError(f"a kernel's parameters are named one by one, and `*{self.source.rest.name}` takes "
                                   "any number: that is for the functions that a kernel calls",
                                   None if starred is None else self.source.loc(starred))
        names = {p.name for p in self.parameters}
        options = {k: v for k, v in kwargs.items() if k in LAUNCH_OPTIONS}
        call = {k: v for k, v in kwargs.items() if k in CALL_OPTIONS}
        if config().jitter is not None and "jitter" not in self.options:
            options.setdefault("jitter", config().jitter)
        if options:
            make_launch({**self.options, **options})
        rest = {k: v for k, v in kwargs.items() if k not in options and k not in call}
        for name in rest:
            if name not in names:
                known = sorted(names) + list(LAUNCH_OPTIONS + CALL_OPTIONS)
                raise LaunchError(f"{self.name} has no parameter {name!r}{suggest_keyword((name,), known)}")
        return bind_arguments(self.name, self.parameters, args, rest), options, call

    def bind_alone(self, words: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, dict[str, Any]]:
        """As `bind`, for methods that do not launch: a call option, such as a stream, raises a LaunchError that begins
        with `words`."""
        bound, options, call = self.bind(args, kwargs)
        if call:
            raise LaunchError(f"{words}: {next(iter(call))!r} is not for it")
        return bound, options

    def _versions(self, bound: Bound, options: dict[str, Any], target: str) -> tuple[list[Version], Version | None]:
        """All versions for this signature so far, and the one that fits these arguments, if any."""
        versions = self.versions.setdefault((bound.key, tuple(sorted(options.items())), target), [])
        return versions, next((v for v in versions if v.current() and not difference(v.facts, bound)), None)

    @not_while_forking
    def version(self, bound: Bound, options: dict[str, Any], target: str, cause: str = "") -> Version:
        """The version for these arguments, with `lowered` set. `cause` is logged if it is the first version."""
        versions, version = self._versions(bound, options, target)
        if version is not None and version.lowered is not None:
            return version
        lowered = self._lower(bound.without_data(), options, target)
        if self.expectations:
            self._hold_to_expectations(lowered.copies)
        if version is None:
            self._say(lowered.warnings, cause=versions[-1].difference(bound) if versions else cause)
            version = Version(lowered.facts, lowered.captured)
            versions.append(version)
        version.lowered = lowered
        return version

    @not_while_forking
    def compiled(self, bound: Bound, options: dict[str, Any], target: str) -> CompiledKernel:
        """The compiled kernel for these arguments: from an earlier call, from the cache, or compiled now."""
        versions, version = self._versions(bound, options, target)
        if version is not None and version.compiled is not None:
            return version.compiled
        shelf = Shelf(self.source, bound, make_launch({**self.options, **options}), target)
        bare = bound.without_data()
        found = shelf.find(bound, rebuild=lambda: shelf.compile(self._lower(bare, options, target), bare).texts())
        if found is None:
            with compiler.pause_garbage_collection():
                version = self.version(bound, options, target, shelf.missed)
                lowered = version.require_lowered()
                with attached_captures(lambda: lowered.captured):
                    compiled = shelf.compile(lowered, bound)
            self._warn_of(compiled.warnings[len(lowered.warnings):])
            version.compiled = compiled
            return compiled
        self._hold_to_expectations(found.compiled.copies)
        if version is None:
            self._say(found.compiled.warnings, found.printed)
            version = Version(found.facts, found.captured)
            versions.append(version)
        else:
            self._warn_of(found.compiled.warnings[len(version.require_lowered().warnings):])
        version.compiled = found.compiled
        return version.compiled

    def captures(self, bound: Bound, options: dict[str, Any], target: str) -> tuple[Capture, ...]:
        """The values that compiling for these arguments has read from the code around the kernel; () if it has not been
        compiled for them."""
        version = self._versions(bound, options, target)[1]
        return () if version is None else version.captured

    def _lower(self, bound: Bound, options: dict[str, Any], target: str) -> Lowered:
        lowered: Lowered = compiler.lower(self.source, **self._frontend_inputs(bound, options, target))
        return lowered

    def build(self, bound: Bound, options: dict[str, Any], target: str) -> Built:
        """What the frontend makes of the kernel, before the passes."""
        built: Built = building.build(self.source, **self._frontend_inputs(bound, options, target))
        return built

    def _frontend_inputs(self, bound: Bound, options: dict[str, Any], target: str) -> dict[str, Any]:
        facts = Facts(lambda fact: answer(fact, bound), bound.runtime)
        return dict(arguments=self._arguments(bound, facts), target=target,
                    launch=make_launch({**self.options, **options}), facts=facts)

    def _arguments(self, bound: Bound, facts: Facts) -> dict[str, tuple[Any, ...]]:
        """The `ParamSpec` of each parameter, for the frontend."""
        specs: dict[str, tuple[Any, ...]] = {}
        n = 0
        for name, value in bound.values.items():
            if name in bound.constants:
                specs[name] = ("constexpr", value)
                continue
            if isinstance(value, ArraySpec):
                specs[name] = ("buffer", buffer_type(value, n, name, facts))
            else:
                specs[name] = ("scalar", scalar_dtype(value, n, facts), True)
            n += 1
        grouped = set(bound.parts(bound.groups))
        return {**{name: spec for name, spec in specs.items() if name not in grouped},
                **{name: _group_spec(group, specs) for name, group in bound.groups.items()}}

    def _hold_to_expectations(self, copies: tuple[Any, ...]) -> None:
        for argument, variant in self.expectations:
            held = [record for record in copies
                    if argument in record.buffers or re.search(rf"\b{re.escape(argument)}\b", record.source)]
            if not held and argument not in self.names:
                known = {*self.names, *(name for record in copies for name in record.buffers)}
                raise CompilationError(
                    f"assert_variant wants copies of {argument} to be {variant!r}, and {self.name} has no copy of that "
                    f"name{suggest_nearest(argument, known)}")
            for record in held:
                if record.variant != variant:
                    reasons = "; ".join(r for v, r in record.declined if v == variant)
                    raise CompilationError(f"assert_variant wants the copy of {argument} to be {variant!r}, "
                                           f"and it was lowered as {record.variant!r}: {reasons}\n"
                                           f"  line {record.line}: {record.source}")

    def _say(self, told: tuple[Any, ...], printed: tuple[Any, ...] | None = None, cause: str = "") -> None:
        """Report a new version: its warnings (`told`), the lines of `static_print` if it came from the cache
        (`printed`), and in the log why it was needed (`cause`)."""
        for line in printed or ():
            print_text(line)
        self._warn_of(told)
        if config().log:
            if printed is None:
                how = f"compiled {self.name}: {cause or 'first call'}"
            else:
                how = f"loaded {self.name} from the cache"
            print(f"tilejit: {how}", file=sys.stderr)

    def _warn_of(self, told: tuple[Any, ...]) -> None:
        for text in told:
            warn(f"{self.name}: {text}")

    # -- without a GPU -------------------------------------------------------------------------------------------------

    @_user_call
    def compile(self, *specs: Any, target: str | None = None, **kwargs: Any) -> CompiledKernel:
        """Compile for `target` ("sm_90a" by default) without a launch.

        A spec is an array, a scalar, or ``tile.ArraySpec(shape, dtype, strides=None)``; constexprs and options are
        given by keyword. Raises CompilationError.
        """
        target = checked_target(target or config().target or "sm_90a")
        bound, options = self.bind_alone("compile launches nothing", specs, kwargs)
        return self.compiled(bound, options, target).told_for(bound)

    @_user_call
    def export(self, path: str | PathLike[str], specs: Sequence[Any], *, targets: str | Sequence[str] | None = None,
               **kwargs: Any) -> tuple[Path, Path, Path]:
        """Write machine code for each of `specs` and `targets` ("sm_90a" by default) to the file `path`, with the
        guards and tensor maps that a launch needs, and beside it a C header and source (`path` with the endings .h
        and .c).

        A spec is a tuple of arguments as for `compile`, or a dict of them by name; constexprs and options that all
        specs share are given by keyword. ``tile.load_kernel(path)`` launches the kernel without a compiler. Returns the
        paths of file, header and source. Raises CompilationError, and LaunchError for specs that cannot be in one file.
        """
        made: tuple[Path, Path, Path] = exporting.export(self, path, specs, targets, kwargs)
        return made

    @_user_call
    def as_torch_op(self, name: str, *specs: Any, grid: Any, out: dict[str, Any] | None = None,
                    backward: Callable[..., Any] | None = None, **constants: Any) -> Any:
        """Make an operator of ``torch.library`` called `name` ("mine::scale"), which torch.compile takes whole, and
        return it. It launches on CUDA tensors, and runs on the simulator for CPU tensors.

        `specs` are arguments as for `compile`, which show what is an array and what a number; the graph tells which
        arrays are written, and the operator declares that it mutates them. Those in `out` it makes and returns
        instead: ``{"y": "x"}`` makes y like x, ``{"y": lambda given: ...}`` what a function of the dict of arguments
        returns. `grid` is a grid as of a launch; constexprs and options are `constants`, where a plain function is
        called with the dict of arguments. ``backward(given, *gradients)`` gets the dict of arguments and results, and
        the gradient of each result, and returns the gradients of the arguments as a dict, or of the only array alone;
        without it, differentiating raises torch's error. Raises LaunchError, CompilationError and torch's errors.
        """
        return torch_operator.as_torch_op(self, name, specs, grid, out, backward, constants)

    @_user_call
    def simulate(self, grid: Any, /, *args: Any, seed: int | None = None, checks: bool = True,
                 target: str | None = None, max_steps: int | None = None, timeline: bool = False,
                 **kwargs: Any) -> Report:
        """Run on the simulator and return its report: `.findings`, `.stats`. Arrays are written in place. The simulator
        stops after `max_steps` operations of the lowered kernel, with a finding that says where. With `timeline`, the
        report's `.timeline()` shows who did what when. `seed` chooses the order of what the hardware leaves open; by
        default it is that of the setting TILEJIT_SEED, or 0.

        If the kernel has a parameter named `seed`, `checks`, `target` or `timeline`, give that argument by position.
        """
        for name, given in (("seed", seed is not None), ("checks", not checks), ("target", target is not None),
                            ("timeline", timeline)):
            if given and name in self.names[len(args):]:
                raise LaunchError(f"{name}= is the simulator's here, and {self.name} has a parameter of that name: "
                                  "give that by position")
        bound, options = self.bind_alone("simulate runs on the simulator", args, kwargs)
        return self._simulate(bound, options, checked_grid(grid, bound), target, seed=seed, checks=checks,
                              max_steps=max_steps, timeline=timeline)

    def _simulate(self, bound: Bound, options: dict[str, Any], grid: tuple[Any, ...], target: str | None = None,
                  seed: int | None = None, **how: Any) -> Report:
        simulate = _simulator()
        if how.get("timeline"):
            options = {**options, "profile": True}  # with its named ranges
        version = self.version(bound, options, checked_target(target or config().target or "sm_90a"))
        bound.check_writable(version.require_lowered().written)
        return simulate(version.require_lowered().graph, grid, bound.host_arguments(), known=known_arrays,
                        seed=chosen_seed(seed), **how)

    @_user_call
    def assert_variant(self, argument: str, variant: str) -> None:
        """Require `variant` for all copies of `argument`, the name of an array or an allocation of the kernel, and
        for all copies whose source line contains that name. Otherwise compiling fails from now on, and also if
        `argument` is not a parameter and has no copies."""
        from . import ops  # noqa: F401  # with the compiler; they register the names of their variants
        if not isinstance(argument, str) or not argument:
            raise LaunchError("assert_variant takes the name of an array or of an allocation of the kernel, "
                              f"as in 'A', not {argument!r}")
        if variant not in variant_names():
            raise LaunchError(f"nothing is lowered as {variant!r}{suggest_nearest(variant, variant_names())}; "
                              f"the variants are {', '.join(variant_names())}")
        self.expectations.append((argument, variant))
        for versions in self.versions.values():
            for version in versions:
                self._hold_to_expectations(version.copies)

    # -- launch --------------------------------------------------------------------------------------------------------

    @_user_call
    def launch(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound, options, call = self.bind(args, kwargs)
        backend = call.get("backend") or config().backend or ("sim" if is_host(bound) else "cuda")
        if backend not in ("sim", "cuda"):
            raise LaunchError(f"backend is 'sim' or 'cuda', not {backend!r}")
        grid = checked_grid(grid, bound)
        if 0 in grid:  # nothing to run, so nothing is compiled
            return
        if backend == "sim":
            if launches_seen.get() is not None:
                raise LaunchError(f"bench times calls on the GPU, and this launch of {self.name} is for the simulator: "
                                  "pass device arrays")
            _say_once_that_a_gpu_is_there()
            seen = profiler.get()
            report = self._simulate(bound, options, grid, max_steps=call.get("max_steps"), timeline=seen is not None)
            report.raise_first()
            if seen is not None:
                seen.note_simulation(self.name, report)
            return
        if "max_steps" in call:
            raise LaunchError("max_steps= limits the simulator, and this launch is for the GPU")
        self._launch_on_device(bound, options, grid, call, (args, kwargs))

    def _launch_on_device(self, bound: Bound, options: dict[str, Any], grid: tuple[Any, ...], call: dict[str, Any],
                          given: tuple[Any, ...]) -> None:
        from .runtime.launch import device_of, on_device, run  # for launches only, at each
        device = device_of(bound, call)
        there, copies = on_device(bound, device)
        profiled = profiler.get()
        if profiled is not None:
            options = {**options, "profile": True}
        compiled = self.compiled(there, options, driver.target(device))
        seen = launches_seen.get()
        if seen is not None:
            seen.append(SeenLaunch(self, there, options, grid, compiled.target))
        if profiled is not None:
            profiled.launch(self.name, compiled, device, grid,
                            lambda: run(self.name, compiled, bound, there, copies, device, grid, call))
            return
        launcher = run(self.name, compiled, bound, there, copies, device, grid, call)
        if not copies and not call:
            version = self._versions(there, options, compiled.target)[1]
            assert version is not None  # the one that was launched
            self.warm.remember(self.names, launcher, there, given, version.captured)


def _group_spec(group: Group, specs: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The `ParamSpec` of a group; `specs` has those of its parts by name."""
    return "group", group.kind, group.fields, tuple(
        ("", _group_spec(part, specs)) if isinstance(part, Group) else (part, specs[part]) for part in group.parts)


@cache
def _say_once_that_a_gpu_is_there() -> None:
    if libcuda.device_files():
        print("tilejit: host arrays run on the simulator; pass device arrays, or backend=\"cuda\", to use the GPU",
              file=sys.stderr)
