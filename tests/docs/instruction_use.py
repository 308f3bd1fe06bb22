"""Which table instructions the compiler emits, and for which operation and variant: recorded while it emits small kernels."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import tilejit as tile
from tilejit import demo, ptx
from tilejit.emit.emitter import Emitter, emit
from tilejit.ir.op import OPS
from tilejit.ptx.table import SECTIONS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "copy"))

import box_kernels as boxes  # noqa: E402
import bulk_kernels as bulk  # noqa: E402
import named_map_kernels as named  # noqa: E402
import programs  # noqa: E402
import remote_kernels as remote  # noqa: E402
import tma_kernels as tma  # noqa: E402

# -- kernels that together use the whole language ------------------------------------------------------------------------------

@tile.jit
def values(A, I, N, B):
    x = tile.load(A[0:32, 0:64])
    tile.store(B[0:32, 0:64], tile.exp(x) + tile.tanh(x) + tile.rsqrt(x) + tile.log(x) + tile.sqrt(x) + tile.sin(x) + tile.exp(x, fast=True)
               + tile.sum(x, axis=1, keepdims=True) + tile.cumsum(x, axis=0) + tile.transpose(tile.load(A[0:64, 0:32])))
    tile.store(B[0:32, 0:64], tile.maximum(x, tile.zeros((32, 64))))
    tile.atomic_add(N[0], 1)
    tile.threadfence("gpu")
    tile.device_assert(tile.load(I[0]) >= 0)


@tile.jit(cluster=(2, 1, 1))
def meetings(A, B):
    s = tile.alloc((128,), A.dtype)
    tile.store(s, tile.load(A[0:128]))
    bar = tile.mbarrier(count=2)
    bar.peer(1).arrive()
    bar.arrive()
    ready = bar.test(phase=0)
    bar.expect_tx(0)
    tile.cluster_arrive()
    tile.cluster_wait()
    with tile.warpgroup(0):
        tile.sync()
    tile.store(B[0:128], tile.load(s))
    tile.store(B[0], tile.where(ready, 1.0, 0.0))


@tile.jit
def product_in_shared(A, B, C):
    a = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    b = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    tile.copy(a, A[0:64, 0:64])
    tile.copy(b, B[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    acc = tile.mma_async(tile.zeros((64, 64)), a, b)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:64, 0:64], acc)


@tile.jit
def product(A, B, C):
    tile.store(C[0:64, 0:64], tile.dot(tile.load(A[0:64, 0:64]), tile.load(B[0:64, 0:64])))


@tile.jit
def in_tensor_memory(A, B):
    d = tile.alloc((128, 16), A.dtype, scope="tmem")
    tile.store(d, tile.load(A[0:128, 0:16]))
    tile.store(B[0:128, 0:16], tile.load(d))


@tile.jit
def to_tensor_memory(A, B):
    s = tile.alloc((128, 16), A.dtype, layout=tile.swizzled(A.dtype, (128, 16), 32))
    d, acc = tile.alloc((128, 16), A.dtype, scope="tmem"), tile.alloc((128, 16), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.copy(s, A[0:128, 0:16])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(d, s)
        tile.mma_async(acc, s, s[0:16, :], trans_b=True, accumulate=False)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(B[0:128, 0:16], tile.load(d) + tile.load(acc))
    d.dealloc()


def _array(*shape, dtype="float16"):
    return tile.ArraySpec(shape, dtype)


def _corpus():
    """(kernel, arguments, target, constants) of kernels that together use every operation with its own instructions."""
    square, line = _array(64, 64), _array(4096)
    for target in ("sm_80", "sm_90a"):
        yield programs.staged, [_array(128, 32)] * 2, target, {}
        yield programs.staged, [_array(128, 36)] * 2, target, {"COLUMNS": 36}
    yield programs.handed_over, [_array(128, 64)] * 2, "sm_90a", {}
    yield programs.boxed, [_array(8, 256)] * 2, "sm_90a", {}
    yield programs.boxed_out, [_array(8, 256)] * 2, "sm_90a", {}
    yield tma.multicast, [square, _array(2, 32, 64), 3], "sm_90a", {"R": 2, "SENDER": 0, "cluster": (2, 1, 1)}
    yield boxes.reduced_box, [_array(2, 1024), _array(16, 64)], "sm_90a", {"KIND": "add"}
    yield tma.paired, [_array(128, 64)] * 2, "sm_100a", {"GROUP": 2}
    yield tma.prefetched, [_array(64, 256)] * 2, "sm_90a", {"N": 64}
    yield bulk.through, [line] * 2, "sm_90a", {"N": 4096, "VARIANT": "bulk"}
    yield bulk.broadcast, [_array(1024, dtype="float32"), _array(4, 1024, dtype="float32")], "sm_90a", {"MASK": 3}
    yield bulk.reduced, [_array(4, 64, dtype="int32"), _array(64, dtype="int32")], "sm_90a", {"N": 64, "KIND": "add"}
    yield bulk.summed, [_array(2, 64, dtype="int32"), _array(64, dtype="int32"), _array(64, dtype="int32")], "sm_90a", {"KIND": "add"}
    yield bulk.fetched, [_array(8, 256, dtype="float32")] * 2, "sm_80", {"N": 256}
    yield bulk.fetched, [_array(8, 256, dtype="float32")] * 2, "sm_90a", {"N": 256}
    yield remote.pass_on(2), [_array(4, 8, 64)] * 2, "sm_90a", {"ROWS": 8, "COLUMNS": 64}
    yield remote.gather_sums(2), [_array(4, 100, dtype="int32"), _array(100, dtype="int32"), _array(2, 100, dtype="int32")], "sm_90a", {"KIND": "add", "N": 100}
    for edit in ("global", "shared"):
        yield named.grouped, [square, line, _array(4, 3, dtype="int32"), _array(4, 128, dtype="uint8"), _array(4, 64, 64)], "sm_90a", {"BM": 32, "BN": 64, "EDIT": edit}
    yield demo.staged_copy, [_array(4096, 33)] * 2, "sm_90a", {"ROWS": 128, "COLUMNS": 33}
    yield product_in_shared, [square] * 2 + [_array(64, 64, dtype="float32")], "sm_90a", {}
    yield values, [_array(64, 64, dtype="float32"), line, _array(4, dtype="int32"), _array(32, 64, dtype="float32")], "sm_90a", {}
    yield tma.gathered_and_scattered, [_array(64, 64), _array(16, dtype="int32"), _array(64, 64)], "sm_100a", {"N": 8, "C": 64, "MODE": 0}
    yield named.of_arrays, [_array(64, 64)] * 3 + [_array(1, 128, dtype="uint8"), _array(3, 8, 64)], "sm_90a", {"BM": 8, "BN": 64}
    for target, dtype in (("sm_80", "float16"), ("sm_90a", "float16"), ("sm_90a", "float32")):
        yield product, [_array(64, 64, dtype=dtype)] * 2 + [_array(64, 64, dtype="float32")], target, {}
    yield in_tensor_memory, [_array(128, 16, dtype="float32")] * 2, "sm_100a", {}
    yield to_tensor_memory, [_array(128, 16)] * 2, "sm_100a", {}
    yield meetings, [_array(128, dtype="float32")] * 2, "sm_90a", {}


# -- the emitted instructions -----------------------------------------------------------------------------------------------------

@contextmanager
def _watched(written: set):
    """A context in which (operation, instruction) of every emitted inline instruction is added to `written`."""
    asm, call_, current = Emitter.asm, Emitter._call, ["entry and exit"]

    def watching(self, text, *args, **kwargs):
        written.update((current[-1], word) for word in mnemonics(text))
        return asm(self, text, *args, **kwargs)

    def calling(self, call):
        variant = call.reported_choice.variant if call.reported_choice is not None else call.op.name
        current.append(call.op.name + (f" by {variant}" if variant != call.op.name else ""))
        try:
            return call_(self, call)
        finally:
            current.pop()

    Emitter.asm, Emitter._call = watching, calling
    try:
        yield
    finally:
        Emitter.asm, Emitter._call = asm, call_


def mnemonics(text: str) -> list[str]:
    """The mnemonics in an inline asm text, without guards, labels, declarations and operands."""
    found = []
    for statement in re.split(r"[;{}]", re.sub(r"\{[^{};]*\}", "", text)):
        statement = re.sub(r"^\s*(\$?\w+:\s*)?(@!?\S+\s+)?", "", statement).strip()
        if statement and not statement.startswith(".") and re.match(r"[a-z]", statement):
            found.append(statement.split()[0])
    return found


@cache
def uses() -> frozenset[tuple[str, str]]:
    """(operation, instruction) of all kernels of the corpus."""
    written: set[tuple[str, str]] = set()
    for kernel, arguments, target, constants in _corpus():
        bound, options, _ = kernel.bind(arguments, constants)
        with _watched(written):
            emit(kernel._lower(bound, options, target).graph)
    return frozenset(written)


# -- the tables of the page ---------------------------------------------------------------------------------------------------------

# Ops without a row: conditions, or addresses computed for an instruction.
PLAIN = re.compile(r"(setp|selp|add|bra|and|or|mov)\b")


# Operations that a pass replaces by others. The instructions of those count for them.
WRITTEN_OUT = ("dot",)


def missing() -> tuple[set[str], set[str]]:
    """(instructions that the compiler emits but the table lacks, variants that no kernel here uses)."""
    known = {form.mnemonic for form in ptx.forms()}
    written = {word for _, word in uses()}
    variants = {f"{op.name} by {v.name}" for op in OPS.values() if op.name not in WRITTEN_OUT for v in op.variants or ()
                if v.name != op.name}
    return {w for w in written - known if not PLAIN.match(w)}, variants - {operation for operation, _ in uses()}


def families() -> list[tuple]:
    """For each family: its title, and the numbers of rows, of forms, of forms on each target, and of rows that the compiler
    itself emits."""
    written = {word for _, word in uses()}
    lines = []
    for title, rows in SECTIONS:
        forms = [form for row in rows for form in ptx.expand(row)]
        own = sum(any(form.mnemonic in written for form in ptx.expand(row)) for row in rows)
        lines.append((title, len(rows), len(forms), *(sum(t in form.targets for form in forms) for t in ptx.TARGETS), own))
    return lines


def written_for() -> list[tuple[str, str, str]]:
    """(instruction, its name in a kernel, the operations that use it), in the table's order."""
    for_which: dict[str, set[str]] = {}
    for operation, word in uses():
        for_which.setdefault(word, set()).add(operation)
    lines, seen = [], set()
    for form in ptx.forms():
        if form.mnemonic in for_which and form.mnemonic not in seen and not PLAIN.match(form.mnemonic):
            seen.add(form.mnemonic)
            lines.append((form.mnemonic, f"tile.ptx.{ptx.python_name(form)}", ", ".join(sorted(for_which[form.mnemonic]))))
    return lines
