"""Launches a loaded kernel: checks that the call matches what was compiled, packs its parameters, and calls the driver.

For each recipe a Python function is generated that does this in a few microseconds (`writer`). For arrays of a library
that offers a C interface, as torch does, `native` compiles machine code that takes a few tenths of a microsecond."""

from __future__ import annotations

import ctypes
import struct
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import LaunchError
from ..names import entry_name
from . import driver, streams, tensormap
from .driver import EntryPoints
from .element_types import scalar_bytes
from .facts import describe_fact, evaluate, evaluate_fact
from .libcuda import error_text
from .recipe import ATTRIBUTE_BYTES, IM2COL_FIELDS, MAP_FIELDS, PORTABLE_CLUSTER, Recipe
from .writer import LAUNCH, is_scalar, view_of, write

PATIENCE = 100  # launches after which LLVM is loaded to compile a native launcher
_ONE_POINTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Link:
    """What a launcher needs of its device: `context` is the handle of its primary context."""

    device: int
    context: int
    points: EntryPoints
    blackwell: bool = False

    @staticmethod
    def to(device: int = 0) -> Link:
        """The link to a real device. LaunchError if there is none."""
        target = driver.target(device)
        return Link(device, driver.context(device), driver.entry_points(), target not in ("sm_80", "sm_86", "sm_89", "sm_90a"))

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
    if any(map_.get("nowhere") for map_ in checked.maps):
        driver.nowhere(device)  # allocated now, since a launch may be captured in a graph, and cuMemAlloc is not allowed there
    in_code = False
    if checked.cluster:
        x, y, z = checked.cluster
        if x * y * z > PORTABLE_CLUSTER:
            driver.allow_large_clusters(function, device)
        in_code = any(driver.required_cluster(function, device))
    return Launcher(recipe, function, Link.to(device), cluster_in_code=in_code, store=store, native=native)


class Launcher:
    """``launcher(grid, stream, args)`` launches the kernel, or returns False if the call is not one that it was compiled
    for.

    `stream` is a handle, a stream object of a library, or None for the current stream of the arrays' library; `args` are
    the runtime arguments. Thread-safe."""

    def __init__(self, recipe: dict, function: int, link: Link, *, cluster_in_code: bool = False, store=None,
                 native: bool = True):
        self.recipe = Recipe.of(recipe)
        self.function = function
        self.link = link
        attributes = self.recipe.attributes(cluster_in_code)
        self.attributes = ctypes.create_string_buffer(attributes, max(len(attributes), 1))
        self.attribute_count = len(attributes) // ATTRIBUTE_BYTES
        self.source, self._python = write(self)
        self._native = None
        self._wait = PATIENCE if native else -1  # launches left until LLVM may be loaded for native code; -1: no attempt any more
        self._store = store

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
                self.refused(code, grid)
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
        from . import native

        if self._native is None and self._wait >= 0:
            self._native = native.build(self, self._store, patient)
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
            if kind[0] == "scalar":
                seen.append(value)
                if not is_scalar(value, kind[1]):
                    found.append(f"{title} is {value!r}, compiled for {kind[1]}")
                continue
            view = view_of(value)
            if view is None:
                return [*found, f"{title} is {value!r}, compiled for an array"]
            seen.append(view)
            if view.dtype != kind[1] or len(view.shape) != kind[2]:
                found.append(f"{title} is {view.dtype} with {len(view.shape)} dimensions, compiled for {kind[1]} with {kind[2]}")
            if view.device != self.link.device:
                found.append(f"{title} is on {'the host' if view.device == 'host' else f'device {view.device}'}, "
                             f"the kernel on device {self.link.device}")
        if found:
            return found
        return [("not: " if answer else "") + describe_fact(fact, names)
                for fact, answer in self.recipe.guards if evaluate_fact(fact, seen) != answer]

    def parameters(self, args) -> list[bytes]:
        """Each parameter's bytes as a launch with `args` packs them; tensor maps as the driver encodes them."""
        views = [view_of(value) if kind[0] == "array" else value for kind, value in zip(self.recipe.arguments, args)]
        packed = []
        for param, form in zip(self.recipe.params, self.recipe.formats):
            if param[0] == "map":
                room = ctypes.create_string_buffer(192)
                start = ctypes.addressof(room) + -ctypes.addressof(room) % 64
                self.encode(self.recipe.maps[param[1]], start, views)
                packed.append(ctypes.string_at(start, 128))
            elif param[0] == "scalar":
                packed.append(scalar_bytes(views[param[1]], param[2]))
            else:
                packed.append(struct.pack("<" + form, evaluate(param[:3] if param[0] != "ptr" else param, views)))
        return packed

    # -- slow paths, called by the generated function -----------------------------------------------------------------

    def encode(self, map_: dict, into: int, views) -> None:
        """Encode a tensor map at the address `into`. LaunchError names the field that does not fit."""
        fields = {key: map_[key] for key in MAP_FIELDS}
        fields["address"] = driver.nowhere(self.link.device) if map_.get("nowhere") else evaluate(
            ["add", ["ptr", map_["argument"]], map_["base_offset"]], views)
        fields["dims"] = [evaluate(part, views) for part in map_["dims"]]
        fields["strides"] = [evaluate(part, views) for part in map_["strides"]]
        points = self.link.points
        if "box" in map_:
            tensormap.encode_tiled(points.encode_tiled, into, box=map_["box"], blackwell=self.link.blackwell, **fields)
        else:
            corners = {key: map_[key] for key in IM2COL_FIELDS if key in map_}
            kind = "encode_im2col_wide" if "wide" in map_ else "encode_im2col"
            getattr(tensormap, kind)(getattr(points, kind), into, blackwell=self.link.blackwell, **corners, **fields)

    def again(self, code: int, config: int, params: int, grid) -> None:
        """Handles a failed launch: retries in the right context if another one is current, else raises LaunchError."""
        if self.link.current_context() != self.link.context:
            with self.link.current():
                code = LAUNCH(self.link.points.launch)(config, self.function, params, None)
        if code:
            self.refused(code, grid)

    def refused(self, code: int, grid) -> None:
        recipe = self.recipe
        cluster = f", cluster {recipe.cluster}" if recipe.cluster else ""
        raise LaunchError(f"{recipe.name}: the launch failed: {error_text(code)}; grid {grid}, {recipe.threads} threads, "
                          f"{recipe.shared} bytes of shared memory{cluster}, device {self.link.device}")

    def pick_stream(self, views, own: int, arrays: int) -> int:
        """The stream for a call with `arrays` arrays: `views` of other libraries' arrays, `own` arrays of this package,
        and the rest torch's."""
        handles = [streams.torch_stream(self.link.device)] if len(views) + own < arrays else []
        chosen, others = streams.choose([*handles, *map(streams.current_stream, views), *[0] * own])
        for other in others:
            driver.wait_stream(chosen, other, self.link.device)
        return chosen
