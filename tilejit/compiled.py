"""A compiled kernel with its attributes: code, stages' texts, resources, records of copies and products, warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .ir.builder import element_type
from .ir.graph import range_names
from .lazy import Lazy
from .runtime import driver
from .runtime.launch_expressions import evaluate, expression
from .runtime.store import open_store
from .types import Buffer

if TYPE_CHECKING:
    from .compile import Code, Lowered
    from .ir.graph import Value
    from .records import (
        AccessRecord,
        CopyRecord,
        LayoutRecord,
        LoadRecord,
        LoopRecord,
        MaskRecord,
        PersistenceRecord,
        ProductRecord,
        RotationRecord,
    )
    from .runtime.arguments import Bound

html = Lazy("html")
jitter = Lazy("tilejit.emit.jitter")  # part of the compiler
loading = Lazy("tilejit.runtime.launcher")  # a process may compile kernels and launch none
disassembler = Lazy("tilejit.toolchain.disassembler")

PREPOSITIONS = {"load": "from", "store": "to"}


@dataclass(frozen=True)
class TensorMapRecord:
    """A tensor map, for the arrays that the kernel was compiled for: the arguments of ``cuTensorMapEncodeTiled``,
    innermost dimension first. With an empty `box`, the map is one of ``cuTensorMapEncodeIm2col``, with `lower`,
    `upper`, `channels` and `pixels`.

    `argument` is the array's name. `base_offset` (from its data pointer) and `global_strides` (one fewer than the
    rank) are in bytes. `origin` is "host" if the launch encodes the map, "device" if the kernel writes it.
    """

    argument: str
    base_offset: int
    dtype: str
    rank: int
    global_dim: tuple[int, ...]
    global_strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int
    origin: str = "host"
    lower: tuple[int, ...] | None = None
    upper: tuple[int, ...] | None = None
    channels: int | None = None
    pixels: int | None = None
    wide: int | None = None


@dataclass
class CompiledKernel:
    """One compiled version of a kernel.

    `registers` are per thread, `spills` and `shared_bytes` in bytes, `compile_time` in seconds per stage. If the
    kernel was found in the cache, `graph`, `llvm_ir` and `ptx` are read from it when they are first used.
    """

    name: str
    target: str
    signature: str
    key: str
    cubin: bytes | Any = field(repr=False)
    registers: int
    spills: int
    shared_bytes: int
    assembler: str
    copies: tuple[CopyRecord, ...]
    accesses: tuple[AccessRecord, ...]
    products: tuple[ProductRecord, ...]
    layouts: tuple[LayoutRecord, ...]
    loops: tuple[LoopRecord, ...]
    loads: tuple[LoadRecord, ...]
    rotations: tuple[RotationRecord, ...]
    persistence: tuple[PersistenceRecord, ...]
    masks: tuple[MaskRecord, ...]
    tensor_maps: tuple[TensorMapRecord, ...]
    warnings: tuple[str, ...]
    compile_time: dict[str, float]
    recipe: dict[str, Any] = field(repr=False, default_factory=dict)
    written: tuple[int, ...] = ()  # the indices of the run-time arguments that the kernel writes
    launchers: dict[int, Any] = field(repr=False, default_factory=dict)  # by device
    texts: Callable[[], dict[str, str]] = field(repr=False, default=dict)  # returns the stages' texts, by name

    @property
    def graph(self) -> str:
        """The lowered graph as text."""
        return self.texts()["graph"]

    @property
    def llvm_ir(self) -> str:
        return self.texts()["llvm_ir"]

    @property
    def ptx(self) -> str:
        return self.texts()["ptx"]

    def launcher(self, device: int) -> Any:
        """The launcher of the kernel on a device, loaded at the first call. Raises LaunchError if the device cannot run
        the kernel."""
        if device not in self.launchers:
            image = self.cubin if self.cubin is not None else self.ptx
            self.launchers[device] = loading.load(self.recipe, image, device, store=open_store())
        return self.launchers[device]

    def active_ctas(self, device: int = 0) -> int:
        """How many CTAs of the kernel fit on one multiprocessor of the GPU at once: a persistent grid has this many per
        multiprocessor. (CUDA driver API, ``cuOccupancyMaxActiveBlocksPerMultiprocessor``.)"""
        return driver.active_ctas(self.launcher(device).function, self.recipe["threads"], self.recipe["shared"], device)

    def active_clusters(self, device: int = 0) -> int:
        """How many clusters of the kernel fit on the GPU at once: the size of a persistent grid of clusters. They may
        not fill all multiprocessors. (CUDA driver API, ``cuOccupancyMaxActiveClusters``.)"""
        return driver.active_clusters(self.launcher(device).function, self.recipe["threads"], self.recipe["shared"],
                                      tuple(self.recipe["cluster"] or (1, 1, 1)), device)

    def told_for(self, bound: Bound) -> CompiledKernel:
        """The same kernel, with the records of its tensor maps for these arguments."""
        if not self.tensor_maps:
            return self
        return replace(self, tensor_maps=map_records(bound.names, self.recipe["maps"], bound))

    def sass(self) -> str:
        """The disassembled machine code. Raises ToolchainError if there is no disassembler (``pip install
        nvidia-cuda-nvdisasm``)."""
        text: str = disassembler.sass(self.cubin or b"")
        return text

    def explain(self) -> str:
        """A readable report: resources, layouts, the variant of each copy, access and product with the reasons,
        warnings, compile time."""
        lines = [f"{self.name} for {self.target}: {self.registers} registers, "
                 f"{self.shared_bytes} bytes of shared memory"
                 + (f", {self.spills} bytes spilled" if self.spills else "")]
        for layout in self.layouts:
            lines += _explain_layout(layout)
        lines += _merge_lines((replace(copy, declined=(), plan=None), _explain_copy(copy)) for copy in self.copies)
        for before, access in zip((None, *self.accesses), self.accesses):
            lines += _explain_access(access, before)
        lines += _merge_lines((replace(product, declined=()), _explain_product(product)) for product in self.products)
        for loop in self.loops:
            lines += _explain_loop(loop)
        for load in self.loads:
            lines += _explain_load(load)
        for rotation in self.rotations:
            lines += _explain_rotation(rotation)
        for mask in self.masks:
            lines += _explain_mask(mask)
        lines += [f"  {'' if p.persistent else 'not '}persistent: {p.how}" for p in self.persistence]
        lines += map(_explain_map, self.tensor_maps)
        lines += ["  warning: " + w.replace("\n", "\n    ") for w in self.warnings]
        times = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in self.compile_time.items())
        return "\n".join([*lines, f"  compiled in ms: {times}; assembled by {self.assembler}"])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"


def _merge_lines(parts: Iterable[tuple[object, list[str]]]) -> list[str]:
    """The lines of all parts, each given with its subject; of parts with equal subjects only the last is kept. A
    pipelined loop has each of its copies several times, ahead of it and in it."""
    return [line for part in dict(parts).values() for line in part]


def _explain_layout(b: LayoutRecord) -> list[str]:
    return [f"  line {b.line}: {b.source}",
            f"    {list(b.shape)} in shared memory: {b.chosen}",
            *(f"      not {name}: {reason}" for name, reason in b.declined)]


def _explain_copy(copy: CopyRecord) -> list[str]:
    return [f"  line {copy.line}: {copy.source}",
            f"    {copy.src_scope} -> {copy.dst_scope} by {_article(copy.exec_scope)}: {copy.variant}, "
            f"{_count(copy.instructions, 'instruction')} a thread, {copy.bytes} bytes",
            *(f"      without {hint}=, which only {path} takes" for hint, path in copy.unused),
            *(f"      not {variant}: {reason}" for variant, reason in copy.declined)]


def _explain_access(a: AccessRecord, before: AccessRecord | None) -> list[str]:
    """An access in words. `before` is the access before it, whose reasons may be the same."""
    where = a.buffer or f"{a.scope} memory"
    again = before is not None and before.declined == a.declined
    return [f"  line {a.line}: {a.op} of {a.tile} {PREPOSITIONS.get(a.op, 'in')} {where} by {_article(a.exec_scope)}: "
            f"{a.variant}, {_count(a.instructions, 'instruction')} of {_count(a.vec_bytes, 'byte')} a thread",
            *(f"    not {longer}: {'as above' if again else reason}" for longer, reason in a.declined)]


def _explain_product(p: ProductRecord) -> list[str]:
    return [f"  line {p.line}: {p.source}",
            f"    {p.a} by {p.b} to {p.result}, by {_article(p.exec_scope)}: {p.variant}, "
            f"{_count(p.instructions, 'instruction')} a {'thread' if p.variant in ('fma', 'tcgen05') else 'warp'}"
            f"{_divided_columns(p)}",
            *(f"      not {variant}: {reason}" for variant, reason in p.declined)]


def _divided_columns(p: ProductRecord) -> str:
    """How warps divide the result, where they divide its columns and not only its rows."""
    if p.variant == "fma" or p.warps is None or p.warps[-1] == 1:
        return ""
    return f", {p.warps[0]} by {p.warps[1]} warps"


def _explain_loop(loop: LoopRecord) -> list[str]:
    where = f"line{'s' if len(loop.loads) > 1 else ''} {', '.join(map(str, loop.loads))}"
    return [f"  line {loop.line}: {loop.source}",
            f"    its products' operands are loaded at {where} in the iteration that uses them; a pipelined loop would "
            f"load them ahead: for ... in tile.pipelined(range(...), stages={loop.stages})"]


def _explain_load(load: LoadRecord) -> list[str]:
    verb = "runs" if load.ahead else "does not run"
    return [f"  line {load.line}: {load.source}",
            f"    {verb} ahead of the pipelined loop at line {load.loop}: {load.how}"]


def _explain_rotation(loop: RotationRecord) -> list[str]:
    return [f"  line {loop.line}: {loop.source}", f"    {'' if loop.rotated else 'not '}rotated: {loop.how}"]


def _explain_mask(mask: MaskRecord) -> list[str]:
    return [f"  line {mask.line}: {mask.source}",
            f"    skipped in iterations of the pipelined loop at line {mask.loop} in which the mask is true everywhere"]


def _explain_map(m: TensorMapRecord) -> str:
    patches = (f"{m.pixels} pixels of {m.channels} channels between the corners {list(m.lower or ())} and "
               f"{list(m.upper or ())}")
    return (f"  tensor map of {m.argument}: dimensions {list(m.global_dim)} of {m.dtype}, "
            f"{f'box {list(m.box)}' if m.box else patches}, swizzle {m.swizzle}, made on the {m.origin}")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' if n != 1 else ''}"


def _article(scope: str) -> str:
    return "the CTA" if scope == "cta" else f"a {scope}"


# -- the plain data that the cache stores, and the compiled kernel made from it ----------------------------------------

def describe_launch(lowered: Lowered, bound: Bound) -> dict[str, Any]:
    """The cached data of a kernel apart from its code: recipe, target, signature, warnings. The `RECORDS` are stored
    separately."""
    graph, launch = lowered.graph, lowered.graph.launch
    perturbed = launch.jitter is not None
    shared = graph.shared_bytes
    if perturbed and shared:
        shared = max(shared, jitter.PRESSURE_BYTES)
    ranges = range_names(graph)
    if ranges:  # a counter for each warp
        shared = -(-shared // 4) * 4 + 4 * launch.num_warps
    recipe = {"name": graph.name, "arguments": list(map(_parameter_record, graph.params)), "threads": launch.threads,
              "cluster": list(launch.cluster) if launch.cluster else None, "shared": shared, "pdl": launch.pdl,
              "guards": [[list(fact), held] for fact, held in lowered.facts.items()],
              "written": sorted(lowered.written), "by_address": lowered.by_address}
    if ranges:
        recipe["ranges"] = ranges
    if graph.persistent:
        recipe["persistent"] = True
    return {"recipe": recipe, "target": graph.target, "signature": signature_text(bound),
            "warnings": [str(w) for w in lowered.warnings], "printed": list(lowered.printed),
            # with jitter, no number of spills is refused or worth a warning
            "spills_allowed": 0 if perturbed else launch.spills}


def describe_code(code: Code) -> dict[str, Any]:
    """The cached data of a kernel's code, from the emitter and the assembler."""
    a = code.assembled
    return {"params": code.params, "maps": code.maps, "registers": a.registers, "spills": a.spill_bytes,
            "notes": list(a.notes), "assembler": a.assembler}


def made_of(lowered: dict[str, Any], code: dict[str, Any], key: str, cubin: bytes | None, records: dict[str, Any],
            texts: Callable[[], dict[str, str]], seconds: dict[str, float], bound: Bound) -> CompiledKernel:
    """Make a compiled kernel from the data of `describe_launch` (`lowered`), of `describe_code` (`code`), and its
    `RECORDS`."""
    recipe = {**lowered["recipe"], "params": code["params"], "maps": code["maps"]}
    return CompiledKernel(
        name=recipe["name"], target=lowered["target"], signature=lowered["signature"], key=key, cubin=cubin,
        registers=code["registers"], spills=code["spills"], shared_bytes=recipe["shared"], assembler=code["assembler"],
        **records, tensor_maps=map_records(bound.names, recipe["maps"], bound),
        warnings=(*lowered["warnings"], *code["notes"], *spill_warnings(code["spills"], lowered["spills_allowed"])),
        compile_time=seconds, recipe=recipe,
        written=tuple(recipe["written"]), texts=texts)


def spill_warnings(spilled: int, allowed: int | None) -> tuple[str, ...]:
    """The warning that registers spill, unless the kernel sets a budget (`spills`). `spilled` counts bytes stored plus
    bytes loaded."""
    if spilled <= 0 or allowed is not None:
        return ()
    return (f"registers spill: {spilled} bytes are stored to memory and loaded again; "
            f"smaller tiles or more warps avoid it, and spills={spilled} accepts it",)


def _parameter_record(parameter: Value) -> list[Any]:
    """A parameter of a kernel in its recipe: an array by dtype and rank, or a scalar by dtype."""
    if isinstance(parameter.type, Buffer):
        return ["array", str(parameter.type.dtype), len(parameter.type.shape)]
    return ["scalar", str(element_type(parameter))]


def map_records(names: list[str], maps: list[dict[str, Any]], bound: Bound) -> tuple[TensorMapRecord, ...]:
    """Records of the kernel's tensor maps `maps`, with the sizes and strides of the arrays in `bound`; `names` are
    the arguments' names."""
    def number(data: Any) -> int:
        return evaluate(expression(data), bound.runtime)

    records = []
    for m in maps:
        patches = {}
        if "box" not in m:
            patches = {"lower": tuple(m["lower"]), "upper": tuple(m["upper"]), "channels": m["channels"],
                       "pixels": m["pixels"], "wide": m.get("wide")}
        records.append(TensorMapRecord(
            argument=names[m["argument"]], base_offset=number(m["base_offset"]), dtype=m["dtype"], rank=m["rank"],
            global_dim=tuple(map(number, m["dims"])), global_strides=tuple(map(number, m["strides"])),
            box=tuple(m.get("box", ())), element_strides=tuple(m["element_strides"]), interleave=m["interleave"],
            swizzle=m["swizzle"], l2_promotion=m["l2_promotion"], oob_fill=m["oob_fill"], origin=m["origin"],
            **patches))
    return tuple(records)


def signature_text(bound: Bound) -> str:
    """The arguments' dtypes and ranks and the constants' values, as text."""
    parts = []
    for name, value in bound.values.items():
        if name in bound.constants:
            parts.append(f"{name}={value!r}")
        elif hasattr(value, "dtype"):
            parts.append(f"{name}: {value.dtype}[{', '.join('?' * len(value.shape))}]")
        else:
            parts.append(f"{name}: {type(value).__name__}")
    return ", ".join(parts)
