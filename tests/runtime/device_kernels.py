"""Small kernels as LLVM IR with their launch recipes, for tests of launching on a GPU."""

from __future__ import annotations

from functools import cache

TWICE = """
define ptx_kernel void @twice(ptr addrspace(1) %x, ptr addrspace(1) %y, i32 %n, float %factor) #0 {
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = mul i32 %block, 128
  %index = add i32 %first, %thread
  %inside = icmp slt i32 %index, %n
  br i1 %inside, label %work, label %done
work:
  %wide = sext i32 %index to i64
  %from = getelementptr float, ptr addrspace(1) %x, i64 %wide
  %to = getelementptr float, ptr addrspace(1) %y, i64 %wide
  %value = load float, ptr addrspace(1) %from
  %product = fmul float %value, %factor
  store float %product, ptr addrspace(1) %to
  br label %done
done:
  ret void
}
attributes #0 = { convergent nounwind "nvvm.maxntid"="128,1,1" }
"""

TWICE_RECIPE = {
    "name": "twice", "threads": 128, "cluster": None, "shared": 0, "pdl": False,
    "arguments": [["array", "float32", 1], ["array", "float32", 1], ["scalar", "float32"]],
    "params": [["ptr", 0], ["ptr", 1], ["size", 0, 0, "i32"], ["scalar", 2, "float32"]], "maps": [],
    "guards": [[["stride_is", 0, 0, 1], True], [["stride_is", 1, 0, 1], True], [["fits32", 0], True]],
}

# One CTA copies a box of 8 x 32 floats by TMA and writes it out densely; outside the array it reads zeros.
TILE = r"""
@shared = external addrspace(3) global [0 x i8], align 1024
define ptx_kernel void @tile(ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map, ptr addrspace(1) %out) #0 {
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %column = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %row = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %columns = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %base = ptrtoint ptr addrspace(3) @shared to i32
  %barrier = add i32 %base, 1024
  %x = mul i32 %column, 32
  %y = mul i32 %row, 8
  %leader = icmp eq i32 %thread, 0
  br i1 %leader, label %issue, label %meet
issue:
  call void asm sideeffect "mbarrier.init.shared::cta.b64 [$0], 1;\0Afence.mbarrier_init.release.cluster;", "r,~{memory}"(i32 %barrier) #1
  call void asm sideeffect "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], 1024;", "r,~{memory}"(i32 %barrier) #1
  call void asm sideeffect "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];", "r,l,r,r,r,~{memory}"(i32 %base, ptr %map, i32 %x, i32 %y, i32 %barrier) #1
  br label %meet
meet:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  call void asm sideeffect "{\0A.reg .pred done;\0AAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], 0;\0A@done bra LEAVE;\0Abra AGAIN;\0ALEAVE:\0A}", "r,~{memory}"(i32 %barrier) #1
  %line = mul i32 %row, %columns
  %box = add i32 %line, %column
  %start = mul i32 %box, 256
  %first = add i32 %start, %thread
  br label %loop
loop:
  %step = phi i32 [ 0, %meet ], [ %next, %loop ]
  %element = add i32 %step, %thread
  %from = getelementptr float, ptr addrspace(3) @shared, i32 %element
  %value = load float, ptr addrspace(3) %from
  %place = add i32 %start, %element
  %to = getelementptr float, ptr addrspace(1) %out, i32 %place
  store float %value, ptr addrspace(1) %to
  %next = add i32 %step, 128
  %more = icmp slt i32 %next, 256
  br i1 %more, label %loop, label %done
done:
  ret void
}
attributes #0 = { convergent nounwind "nvvm.maxntid"="128,1,1" }
attributes #1 = { convergent nounwind }
"""

TILE_RECIPE = {
    "name": "tile", "threads": 128, "cluster": None, "shared": 1032, "pdl": False,
    "arguments": [["array", "float32", 2], ["array", "float32", 1]],
    "params": [["map", 0], ["ptr", 1]],
    "maps": [{"argument": 0, "base_offset": 0, "dtype": "float32", "rank": 2, "dims": [["size", 0, 1], ["size", 0, 0]],
              "strides": [["mul", ["stride", 0, 0], 4]], "box": [32, 8], "element_strides": [1, 1], "interleave": 0,
              "swizzle": 0, "l2_promotion": 2, "oob_fill": 0, "origin": "host"}],
    "guards": [[["aligned", 0, 16], True], [["stride_multiple", 0, 0, 4], True], [["stride_is", 0, 1, 1], True]],
}

# Each CTA writes its rank in the cluster.
RANKS = """
define ptx_kernel void @ranks(ptr addrspace(1) %out) #0 {
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %rank = call i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %block
  store i32 %rank, ptr addrspace(1) %to
  ret void
}
attributes #0 = { convergent nounwind CLUSTER }
"""


def ranks_recipe(size: int) -> dict:
    return {"name": "ranks", "threads": 32, "cluster": [size, 1, 1], "shared": 0, "pdl": False,
            "arguments": [["array", "int32", 1]], "params": [["ptr", 0]], "maps": [], "guards": []}


# Takes about a million clock cycles, then writes 1.
SLOW = """
define ptx_kernel void @slow(ptr addrspace(1) %out) #0 {
entry:
  %start = call i64 @llvm.nvvm.read.ptx.sreg.clock64()
  br label %wait
wait:
  %now = call i64 @llvm.nvvm.read.ptx.sreg.clock64()
  %passed = sub i64 %now, %start
  %more = icmp slt i64 %passed, 20000000
  br i1 %more, label %wait, label %done
done:
  store float 1.0, ptr addrspace(1) %out
  ret void
}
attributes #0 = { convergent nounwind }
"""

SLOW_RECIPE = {"name": "slow", "threads": 1, "cluster": None, "shared": 0, "pdl": False, "arguments": [["array", "float32", 1]],
               "params": [["ptr", 0]], "maps": [], "guards": []}

# Parameters only: four pointers and three ints.
NOTHING = "define ptx_kernel void @nothing(ptr %a, ptr %b, ptr %c, ptr %d, i32 %m, i32 %n, i32 %k) {\n  ret void\n}\n"

NOTHING_RECIPE = {
    "name": "nothing", "threads": 32, "cluster": None, "shared": 0, "pdl": False,
    "arguments": [["array", "float32", 2]] * 4 + [["scalar", "int32"]] * 3,
    "params": [["ptr", 0], ["ptr", 1], ["ptr", 2], ["ptr", 3], ["scalar", 4, "int32"], ["scalar", 5, "int32"], ["scalar", 6, "int32"]],
    "maps": [],
    "guards": [guard for i in range(4) for guard in (
        [["aligned", i, 16], True], [["stride_is", i, 1, 1], True], [["fits32", i], True], [["size_multiple", i, 1, 16], True])],
}


@cache
def cubin(text: str, target: str) -> bytes:
    """The machine code of a kernel."""
    from tilejit.toolchain import assembler, llvm

    return assembler.assemble(llvm.to_ptx(text, target), target).cubin
