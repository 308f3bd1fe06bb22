"""Launches a loaded kernel: checks that the call matches what was compiled, packs its parameters, and calls the driver.

For each recipe a Python function is generated that does this in a few microseconds (`writer`). For arrays of a library
that offers a C interface, as torch does, `native` compiles machine code that takes a few tenths of a microsecond."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ..errors import LaunchError
from ..lazy import Lazy
from ..names import PROFILE_VARIABLE, entry_name
from . import driver, streams
from .driver import EntryPoints
from .facts import ArrayKind, describe_fact
from .launch_expressions import evaluate
from .libcuda import error_text
from .recipe import ATTRIBUTE_BYTES, PORTABLE_CLUSTER, GridParameter, MapParameter, MapRecipe, Recipe
from .writer import LAUNCH, is_scalar, view_of, write

machine_code = Lazy("tilejit.runtime.native")  # a kernel that is launched once does not need it

PATIENCE = 100  # launches after which LLVM is loaded to compile a native launcher
_ONE_POINTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Link:
    """What a launcher needs of its device: `context` is the handle of its primary context."""

    device: int
    context: int
    points: EntryPoints
    blackwell: bool = False
    multiprocessors: int = 1

    @staticmethod
    def connect(device: int = 0) -> Link:
        """The link to a real device. LaunchError if there is none."""
        target = driver.target(device)
        return Link(device, driver.context(device), driver.entry_points(),
                    target not in ("sm_80", "sm_86", "sm_89", "sm_90a"), driver.multiprocessors(device))

    def current_context(self) -> int:
        """The handle of the calling thread's current context, 0 if it has none."""
        found = ctypes.c_void_p()
        _ONE_POINTER(self.points.get_context)(ctypes.addressof(found))
        return found.value or 0

    @contextmanager
    def current(self):
        """A context manager in which the device's context is current; afterwards the one before is (device 0's stays if
        there was none)."""
        before, change = self.current_context(), _ONE_POINTER(self.points.set_context)
        change(self.context)
        try:
            yield
        finally:
            if before or self.device:
                change(before)


def load(recipe: dict, image: bytes | str, device: int = 0, *, store=None, native: bool = True) -> Launcher:
    """Load a cubin (or PTX text) on a device and make the launcher of its kernel. LaunchError if it does not fit the
    device."""
    checked = Recipe.of(recipe)
    module = driver.load_module(image, device)
    function = driver.get_function(module, entry_name(checked.name), device)
    driver.set_max_dynamic_shared(function, checked.shared, device)
    if any(map_.address is None for map_ in checked.maps):
        # allocated now, since a launch may be captured in a graph, and cuMemAlloc is not allowed there
        driver.unused_address(device)
    in_code = False
    if checked.cluster:
        x, y, z = checked.cluster
        if x * y * z > PORTABLE_CLUSTER:
            driver.allow_large_clusters(function, device)
        in_code = any(driver.required_cluster(function, device))
    launcher = Launcher(checked, function, Link.connect(device), cluster_in_code=in_code, store=store, native=native)
    if recipe.get("ranges"):
        launcher.profile = driver.global_address(module, PROFILE_VARIABLE, device)
    return launcher


class Launcher:
    """``launcher(grid, stream, args)`` launches the kernel, or returns False if the call is not one that
    it was compiled for.

    `stream` is a handle, a stream object of a library, or None for the current stream of the arrays' library; `args`
    are the runtime arguments. Thread-safe."""

    def __init__(self, recipe: Recipe, function: int, link: Link, *, cluster_in_code: bool = False, store=None,
                 native: bool = True):
        self.recipe = recipe
        self.function = function
        self.link = link
        attributes = self.recipe.attributes(cluster_in_code)
        self.attributes = ctypes.create_string_buffer(attributes, max(len(attributes), 1))
        self.attribute_count = len(attributes) // ATTRIBUTE_BYTES
        self.source, self._python = write(self)
        self._native = None
        # launches left until LLVM may be loaded for native code; -1: no attempt any more
        self._wait = PATIENCE if native else -1
        self._store = store
        self.profile = 0   # the address of the variable that says where a profiled kernel records: see emit/marks.py

    def __call__(self, grid, stream, args) -> bool:
        """True if it was launched (or the grid is empty); False if types or guards do not match, and nothing was
        launched.

        Raises LaunchError for a grid that no device takes, and with CUDA's error if the driver refuses the launch."""
        native = self._native
        if native is not None:
            code = native(grid, stream, args)
            if code is True:
                return True
            if code is not False:
                self.raise_refusal(code, grid)
        elif self._wait >= 0:
            self._wait -= 1
            if self._wait in (PATIENCE - 2, 0):
                self.prepare(patient=self._wait > 0)
        return self._python(grid, stream, args)

    def prepare(self, patient: bool = False) -> bool:
        """Make the native function; returns whether there is one now. If `patient`, not if LLVM would have to be loaded
        for it.

        Called on the second launch, so that a kernel that is launched once does not pay for it, and without patience
        after PATIENCE launches."""
        if self._native is None and self._wait >= 0:
            self._native = machine_code.build(self, self._store, patient)
            if self._native is not None or not patient:
                self._wait = -1
        return self._native is not None

    def mismatch(self, args, names=()) -> list[str]:
        """Why a call with `args` is not one that this kernel was compiled for, in words; empty if it is."""
        kinds = self.recipe.arguments
        if len(args) != len(kinds):
            return [f"{len(args)} arguments, and the kernel takes {len(kinds)}"]
        found, seen = [], []
        for index, (kind, value) in enumerate(zip(kinds, args)):
            title = names[index] if index < len(names) else f"argument {index}"
            if not isinstance(kind, ArrayKind):
                seen.append(value)
                if not is_scalar(value, kind.dtype):
                    found.append(f"{title} is {value!r}, compiled for {kind.dtype}")
                continue
            view = view_of(value)
            if view is None:
                return [*found, f"{title} is {value!r}, compiled for an array"]
            seen.append(view)
            if view.dtype != kind.dtype or len(view.shape) != kind.rank:
                found.append(f"{title} is {view.dtype} with {len(view.shape)} dimensions, "
                             f"compiled for {kind.dtype} with {kind.rank}")
            if view.device != self.link.device:
                found.append(f"{title} is on {'the host' if view.device == 'host' else f'device {view.device}'}, "
                             f"the kernel on device {self.link.device}")
        if found:
            return found
        return [("not: " if guard.held else "") + describe_fact(guard.fact, names)
                for guard in self.recipe.guards if bool(evaluate(guard.condition, seen)) != guard.held]

    def parameters(self, args, grid=(1, 1, 1)) -> list[bytes]:
        """Each parameter's bytes as a launch with `args` packs them; tensor maps as the driver encodes them. The
        extents of the grid are parameters of persistent kernels."""
        views = [view_of(value) if isinstance(kind, ArrayKind) else value
                 for kind, value in zip(self.recipe.arguments, args)]
        packed = []
        for param in self.recipe.params:
            if isinstance(param, MapParameter):
                map_ = self.recipe.maps[param.index]
                room = ctypes.create_string_buffer(192)
                start = ctypes.addressof(room) + -ctypes.addressof(room) % 64
                self.encode(map_, start, *map_.values(views))
                packed.append(ctypes.string_at(start, 128))
            elif isinstance(param, GridParameter):
                packed.append(grid[param.axis].to_bytes(4, "little"))
            else:
                packed.append(param.pack(views))
        return packed

    # -- slow paths, called by the generated function -----------------------------------------------------------------

    def encode(self, map_: MapRecipe, into: int, address: int | None, dims: list[int], strides: list[int]) -> None:
        """Encode a tensor map at the address `into`. LaunchError names the field that does not fit."""
        device = self.link.device
        replace(map_.fixed, address=driver.unused_address(device) if address is None else address, dims=dims,
                strides=strides, blackwell=self.link.blackwell).encode(self.link.points, into)

    def retry(self, code: int, config: int, params: int, grid) -> None:
        """Handles a failed launch: retries in the right context if another one is current, else raises LaunchError."""
        if self.link.current_context() != self.link.context:
            with self.link.current():
                code = LAUNCH(self.link.points.launch)(config, self.function, params, None)
        if code:
            self.raise_refusal(code, grid)

    def raise_refusal(self, code: int, grid) -> None:
        recipe = self.recipe
        cluster = f", cluster {recipe.cluster}" if recipe.cluster else ""
        raise LaunchError(f"{recipe.name}: the launch failed: {error_text(code)}; grid {grid}, {recipe.threads} "
                          f"threads, {recipe.shared} bytes of shared memory{cluster}, device {self.link.device}")

    def pick_stream(self, views, own: int, arrays: int) -> int:
        """The stream for a call with `arrays` arrays: `views` of other libraries' arrays, `own` arrays of this package,
        and the rest torch's."""
        handles = [streams.torch_stream(self.link.device)] if len(views) + own < arrays else []
        chosen, others = streams.choose([*handles, *map(streams.current_stream, views), *[0] * own])
        for other in others:
            driver.wait_stream(chosen, other, self.link.device)
        return chosen
