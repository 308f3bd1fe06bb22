"""Runs the LLVM IR of kernels with scalar arithmetic of one thread on the host, to check emitted code without a GPU."""

from __future__ import annotations

import ctypes
import re

import numpy as np
from llvmlite import binding

CTAS = 7  # of the grid, as seen by kernels on the host
WORDS = {"b32": "i32", "b64": "i64"}
TO_BFLOAT = """{0}bits = bitcast float {1} to i32
  {0}up = lshr i32 {0}bits, 16
  {0}odd = and i32 {0}up, 1
  {0}half = add i32 {0}bits, 32767
  {0}sum = add i32 {0}half, {0}odd
  {0}top = lshr i32 {0}sum, 16
  {0}short = trunc i32 {0}top to i16
  {0} = bitcast i16 {0}short to bfloat"""
FROM_BFLOAT = """{0}short = bitcast bfloat {1} to i16
  {0}wide = zext i16 {0}short to i32
  {0}bits = shl i32 {0}wide, 16
  {0} = bitcast i32 {0}bits to float"""


def for_host(ir: str) -> str:
    """The kernel as a host function: inline asm loads and stores become LLVM's, and values of other threads are replaced by the thread's own.
    Assertions are omitted. bfloat16 is rounded with integer arithmetic (without NaN), since hosts may lack the functions that LLVM calls."""
    access = r'call \w+ asm sideeffect "@\$2 (ld|st)\.global\.(b32|b64) .*?", "[^"]*"\((.*)\) #1'
    lines = []
    for line in re.sub(r", !(dbg|llvm\.loop) !\d+", "", ir).splitlines():
        if found := re.search(access, line):
            kind, word, arguments = found.groups()
            arguments = [a.split(" ")[1] for a in arguments.split(", ")]
            address = f"%at{len(lines)}"
            lines.append(f"  {address} = inttoptr i64 {arguments[kind == 'st']} to ptr")
            loads, stores = f"load {WORDS[word]}, ptr {address}", f"  store {WORDS[word]} {arguments[0]}, ptr {address}"
            line = line[:found.start()] + loads if kind == "ld" else stores
        line = re.sub(r"call .*@llvm\.nvvm\.read\.ptx\.sreg\.(tid|ctaid)\.x\(\)", "add i32 0, 0", line)
        line = re.sub(r"call .*@llvm\.nvvm\.read\.ptx\.sreg\.nctaid\.x\(\)", f"add i32 {CTAS}, 0", line)
        line = re.sub(r"call i32 @llvm\.nvvm\.shfl\.sync\.idx\.i32\(i32 -1, i32 (%\w+), .*\)", r"add i32 \1, 0", line)
        line = re.sub(r"(%\w+) = fptrunc float (%\w+) to bfloat", lambda m: TO_BFLOAT.format(*m.groups()), line)
        line = re.sub(r"(%\w+) = fpext bfloat (%\w+) to float", lambda m: FROM_BFLOAT.format(*m.groups()), line)
        if "trap;" not in line and not line.startswith(("target", "declare i32 @llvm.nvvm", "@smem", "attributes", "!")):
            lines.append(re.sub(r"ptx_kernel | noundef| #\d| !dbg !\d+", "", line))
    return "\n".join(lines)


def run(compiled, *arrays: np.ndarray) -> None:
    """Call the kernel's function for `arrays`, all one-dimensional."""
    for prepare in (binding.initialize_native_target, binding.initialize_native_asmprinter):
        prepare()
    module = binding.parse_assembly(for_host(compiled.llvm_ir))
    # Optimised as for a GPU; the speed of the host's code does not matter.
    machine = binding.Target.from_default_triple().create_target_machine(opt=0)
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    passes.getModulePassManager().run(module, passes)
    with binding.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        function = ctypes.CFUNCTYPE(None, *(ctypes.c_int64, ctypes.c_int32) * len(arrays))(engine.get_function_address(compiled.name))
        function(*(x for a in arrays for x in (a.ctypes.data, len(a))))
