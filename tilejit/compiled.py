"""A compiled kernel and what it tells: every stage's text, the copies' paths, the resources, the warnings."""

from __future__ import annotations

import html
from dataclasses import dataclass, field, replace
from typing import Any

from .compile import Code, CopyRecord, Lowered, assemble_graph, graph_key
from .ops.copy_async.tma_view import evaluated
from .types import Buffer


@dataclass(frozen=True)
class TensorMapRecord:
    """A descriptor with the fields that ``cuTensorMapEncodeTiled`` takes, innermost dimension first, for the arrays that
    the kernel was compiled for.

    `argument` is the array's name, `base_offset` counts bytes from its data pointer, `global_strides` (one fewer than
    the rank) are in bytes. `origin` says whether the host or the kernel makes it.
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


@dataclass
class CompiledKernel:
    """The machine code of one version of a kernel, with everything that led to it.

    `registers` per thread, `spills` and `shared_bytes` in bytes; `compile_time` in seconds per stage.
    """

    name: str
    target: str
    signature: str
    key: str
    graph: str
    llvm_ir: str
    ptx: str
    cubin: bytes | None
    registers: int
    spills: int
    shared_bytes: int
    assembler: str
    copies: tuple[CopyRecord, ...]
    tensor_maps: tuple[TensorMapRecord, ...]
    warnings: tuple
    compile_time: dict[str, float]
    recipe: dict[str, Any] = field(repr=False, default_factory=dict)
    written: tuple[int, ...] = ()  # the numbers of the runtime arguments that the kernel writes
    launchers: dict[int, Any] = field(repr=False, default_factory=dict)  # by device

    def launcher(self, device: int):
        """The kernel loaded on a device, ready to launch. LaunchError when the device cannot hold it."""
        if device not in self.launchers:
            from .runtime.launcher import load
            from .runtime.store import open_store
            self.launchers[device] = load(self.recipe, self.cubin if self.cubin is not None else self.ptx, device, store=open_store())
        return self.launchers[device]

    def told_for(self, bound) -> "CompiledKernel":
        """The same code, with its tensor maps in the numbers of these arguments."""
        return replace(self, tensor_maps=map_records(bound.names, self.recipe["maps"], bound)) if self.tensor_maps else self

    def sass(self) -> str:
        """The machine code as text. ToolchainError without the disassembler (``pip install nvidia-cuda-nvdisasm``)."""
        from .toolchain.disassembler import sass
        return sass(self.cubin)

    def explain(self) -> str:
        """The choices and resources as text for a person."""
        lines = [f"{self.name} for {self.target}: {self.registers} registers, {self.shared_bytes} bytes of shared memory"
                 + (f", {self.spills} bytes spilled" if self.spills else "")]
        for copy in self.copies:
            lines.append(f"  line {copy.line}: {copy.source}")
            lines.append(f"    {copy.src_scope} -> {copy.dst_scope} by {_article(copy.exec_scope)}: {copy.variant}, "
                         f"{copy.instructions} instruction{'s' if copy.instructions != 1 else ''} a thread, {copy.bytes} bytes")
            lines += [f"      not {variant}: {reason}" for variant, reason in copy.declined]
        for m in self.tensor_maps:
            lines.append(f"  tensor map of {m.argument}: dimensions {list(m.global_dim)} of {m.dtype}, box {list(m.box)}, "
                         f"swizzle {m.swizzle}, made on the {m.origin}")
        lines += [f"  warning: {w}" for w in self.warnings]
        times = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in self.compile_time.items())
        return "\n".join([*lines, f"  compiled in ms: {times}; assembled by {self.assembler}"])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"


def _article(scope: str) -> str:
    return "the CTA" if scope == "cta" else f"a {scope}"


def recipe_of(lowered: Lowered, code: Code) -> dict[str, Any]:
    """What a launch needs, as plain data."""
    launch = lowered.graph.launch
    arguments = []
    for p in lowered.graph.params:
        arguments.append(["array", str(p.type.dtype), len(p.type.shape)] if isinstance(p.type, Buffer) else ["scalar", str(p.type.dtype)])
    return {"name": lowered.graph.name, "arguments": arguments, "threads": launch.threads, "cluster": list(launch.cluster) if launch.cluster else None,
            "shared": lowered.graph.shared_bytes, "pdl": launch.pdl, "params": code.params, "maps": code.maps,
            "guards": [[list(fact), held] for fact, held in lowered.facts.items()]}


def map_records(names: list[str], maps: list[dict], bound) -> tuple[TensorMapRecord, ...]:
    """The kernel's tensor maps, with the sizes and strides of the arrays at hand; `names` are those of its arguments."""
    arrays = bound.runtime
    read = lambda kind, i, d: (arrays[i].shape if kind == "size" else arrays[i].strides)[d]
    records = []
    for m in maps:
        records.append(TensorMapRecord(
            argument=names[m["argument"]], base_offset=evaluated(m["base_offset"], read), dtype=m["dtype"], rank=m["rank"],
            global_dim=tuple(evaluated(n, read) for n in m["dims"]), global_strides=tuple(evaluated(n, read) for n in m["strides"]),
            box=tuple(m["box"]), element_strides=tuple(m["element_strides"]), interleave=m["interleave"], swizzle=m["swizzle"],
            l2_promotion=m["l2_promotion"], oob_fill=m["oob_fill"], origin=m["origin"]))
    return tuple(records)


def compile_lowered(lowered: Lowered, bound, source) -> CompiledKernel:
    """Code for a lowered kernel."""
    code = assemble_graph(lowered)
    a = code.assembled
    return CompiledKernel(
        name=lowered.graph.name, target=lowered.graph.target, signature=signature_text(bound), key=graph_key(lowered.graph),
        graph=code.graph, llvm_ir=code.llvm_ir, ptx=code.ptx, cubin=a.cubin, registers=a.registers, spills=a.spill_bytes,
        shared_bytes=lowered.graph.shared_bytes, assembler=a.assembler, copies=lowered.copies, tensor_maps=map_records(bound.names, code.maps, bound),
        warnings=tuple(map(str, lowered.warnings)) + tuple(a.notes), compile_time=code.seconds,
        recipe=recipe_of(lowered, code), written=tuple(sorted(lowered.written)))


def signature_text(bound) -> str:
    """The arguments' kinds and the constants' values, as text."""
    parts = []
    for name, value in bound.values.items():
        if name in bound.constants:
            parts.append(f"{name}={value!r}")
        elif hasattr(value, "dtype"):
            parts.append(f"{name}: {value.dtype}[{', '.join('?' * len(value.shape))}]")
        else:
            parts.append(f"{name}: {type(value).__name__}")
    return ", ".join(parts)
