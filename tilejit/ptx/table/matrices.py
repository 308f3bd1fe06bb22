"""Matrix loads and stores of a warp, mma.sync, and the warpgroup's wgmma."""

from ..row import SM80, SM90, SM90A, SM100, SM120A, Row

TITLE = "Warp and warpgroup matrices"

ROWS = (
    # 8x8 matrices of 16-bit elements, one, two or four at once; wider matrices of narrow elements.
    Row("ldmatrix.sync.aligned.m8n8<n=.x1|.x2|.x4><|.trans><.shared|.shared::cta>.b16 {d}, [{a}];",
        "=d:b32*<n> a:shared",                                               "reads",  SM80),
    Row("ldmatrix.sync.aligned.m16n16<n=.x1|.x2>.trans<.shared|.shared::cta>.b8 {d}, [{a}];",
        "=d:b32*<n>*2 a:shared",                                             "reads",  SM100),
    Row("ldmatrix.sync.aligned.m16n16<n=.x1|.x2>.trans<.shared|.shared::cta>.b8x16<.b6x16_p32|.b4x16_p64> {d}, [{a}];",
        "=d:b32*<n>*2 a:shared",                                             "reads",  SM100),
    Row("ldmatrix.sync.aligned.m8n16<n=.x1|.x2|.x4><.shared|.shared::cta>.b8x16<.b6x16_p32|.b4x16_p64> {d}, [{a}];",
        "=d:b32*<n> a:shared",                                               "reads",  SM100),
    Row("stmatrix.sync.aligned.m8n8<n=.x1|.x2|.x4><|.trans><.shared|.shared::cta>.b16 [{a}], {value};",
        "a:shared value:b32*<n>",                                            "writes", SM90),
    Row("stmatrix.sync.aligned.m16n8<n=.x1|.x2|.x4>.trans<.shared|.shared::cta>.b8 [{a}], {value};",
        "a:shared value:b32*<n>",                                            "writes", SM100),
    Row("movmatrix.sync.aligned.m8n8.trans.b16 {d}, {a};",  "=d:b32 a:b32",  "pure",   SM80),

    # mma.sync: d = a * b + c.
    Row("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*2 b:b32*1 c:b32*2",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*2 b:b32*1 c:f32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*4 b:b32*2 c:b32*2",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*2 b:b32*1 c:f32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*2 b:b32*1 c:f32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM80),
    Row("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {d}, {a}, {b}, {c};",
        "=d:f64*2 a:f64*1 b:f64*1 c:f64*2",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {d}, {a}, {b}, {c};",
        "=d:f64*4 a:f64*2 b:f64*1 c:f64*4",  "pure", SM90),
    Row("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {d}, {a}, {b}, {c};",
        "=d:f64*4 a:f64*4 b:f64*2 c:f64*4",  "pure", SM90),
    Row("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {d}, {a}, {b}, {c};",
        "=d:f64*4 a:f64*8 b:f64*4 c:f64*4",  "pure", SM90),
    Row("mma.sync.aligned.m8n8k16.row.col<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*1 b:b32*1 c:b32*2",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k16.row.col<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32 {d}, {a}, {b}, {c};",
        "=d:b32*4 a:b32*2 b:b32*1 c:b32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k32.row.col<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32 {d}, {a}, {b}, {c};",
        "=d:b32*4 a:b32*4 b:b32*2 c:b32*4",  "pure", SM80),
    Row("mma.sync.aligned.m8n8k32.row.col<|.satfinite>.s32<.s4|.u4><.s4|.u4>.s32 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*1 b:b32*1 c:b32*2",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k32.row.col<|.satfinite>.s32<.s4|.u4><.s4|.u4>.s32 {d}, {a}, {b}, {c};",
        "=d:b32*4 a:b32*2 b:b32*1 c:b32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k64.row.col<|.satfinite>.s32<.s4|.u4><.s4|.u4>.s32 {d}, {a}, {b}, {c};",
        "=d:b32*4 a:b32*4 b:b32*2 c:b32*4",  "pure", SM80),
    Row("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32<.xor|.and>.popc {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*1 b:b32*1 c:b32*2",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32<.xor|.and>.popc {d}, {a}, {b}, {c};",
        "=d:b32*4 a:b32*2 b:b32*1 c:b32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32<.xor|.and>.popc {d}, {a}, {b}, {c};",
        "=d:b32*4 a:b32*4 b:b32*2 c:b32*4",  "pure", SM80),
    Row("mma.sync.aligned.m16n8k16.row.col.f32<.e4m3|.e5m2><.e4m3|.e5m2>.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*2 b:b32*1 c:f32*4",  "pure", SM90),
    Row("mma.sync.aligned.m16n8k32.row.col.f32<.e4m3|.e5m2><.e4m3|.e5m2>.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM90),
    Row("mma.sync.aligned.m16n8k16.row.col.f16<.e4m3|.e5m2><.e4m3|.e5m2>.f16 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*2 b:b32*1 c:b32*2",  "pure", SM90),
    Row("mma.sync.aligned.m16n8k32.row.col.f16<.e4m3|.e5m2><.e4m3|.e5m2>.f16 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*4 b:b32*2 c:b32*2",  "pure", SM90),
    Row("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32<.e4m3|.e5m2><.e4m3|.e5m2>.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM100),
    Row("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32<.e4m3|.e5m2><.e3m2|.e2m3|.e2m1>.f32 {d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM120A),
    Row("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32<.e3m2|.e2m3|.e2m1><.e4m3|.e5m2|.e3m2|.e2m3|.e2m1>.f32 "
        "{d}, {a}, {b}, {c};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4",  "pure", SM120A),
    Row("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16<.e4m3|.e5m2><.e4m3|.e5m2>.f16 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*4 b:b32*2 c:b32*2",  "pure", SM100),
    Row("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16<.e4m3|.e5m2><.e3m2|.e2m3|.e2m1>.f16 {d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*4 b:b32*2 c:b32*2",  "pure", SM120A),
    Row("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16<.e3m2|.e2m3|.e2m1><.e4m3|.e5m2|.e3m2|.e2m3|.e2m1>.f16 "
        "{d}, {a}, {b}, {c};",
        "=d:b32*2 a:b32*4 b:b32*2 c:b32*2",  "pure", SM120A),

    # Block-scaled: id_a and id_b say which byte of the scales' register, and which thread, to take.
    Row("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale<|.scale_vec::1X>.f32"
        "<.e4m3|.e5m2|.e3m2|.e2m3|.e2m1><.e4m3|.e5m2|.e3m2|.e2m3|.e2m1>.f32.ue8m0 {d}, {a}, {b}, {c}, {scale_a}, "
        "{id_a}, {scale_b}, {id_b};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4 scale_a:b32 id_a:b16*2 scale_b:b32 id_b:b16*2",  "pure", SM120A),
    Row("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale<|.scale_vec::2X>.f32.e2m1.e2m1.f32.ue8m0 {d}, {a}, "
        "{b}, {c}, {scale_a}, {id_a}, {scale_b}, {id_b};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4 scale_a:b32 id_a:b16*2 scale_b:b32 id_b:b16*2",  "pure", SM120A),
    Row("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 {d}, {a}, "
        "{b}, {c}, {scale_a}, {id_a}, {scale_b}, {id_b};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4 scale_a:b32 id_a:b16*2 scale_b:b32 id_b:b16*2",  "pure", SM120A),
    Row("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 {d}, {a}, "
        "{b}, {c}, {scale_a}, {id_a}, {scale_b}, {id_b};",
        "=d:f32*4 a:b32*4 b:b32*2 c:f32*4 scale_a:b32 id_a:b16*2 scale_b:b32 id_b:b16*2",  "pure", SM120A),

    # Sparse: a holds two of each four elements, metadata says which.
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c}, {metadata}, "
        "{selector};",
        "=d:b32*2 a:b32*2 b:b32*2 c:b32*2 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16 {d}, {a}, {b}, {c}, {metadata}, "
        "{selector};",
        "=d:b32*2 a:b32*4 b:b32*4 c:b32*2 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32<ab=.f16.f16|.bf16.bf16>.f32 {d}, {a}, {b}, {c}, "
        "{metadata}, {selector};",
        "=d:f32*4 a:b32*2 b:b32*2 c:f32*4 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32<ab=.f16.f16|.bf16.bf16>.f32 {d}, {a}, {b}, {c}, "
        "{metadata}, {selector};",
        "=d:f32*4 a:b32*4 b:b32*4 c:f32*4 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d}, {a}, {b}, {c}, {metadata}, "
        "{selector};",
        "=d:f32*4 a:b32*2 b:b32*2 c:f32*4 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {d}, {a}, {b}, {c}, {metadata}, "
        "{selector};",
        "=d:f32*4 a:b32*4 b:b32*4 c:f32*4 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32 {d}, {a}, {b}, "
        "{c}, {metadata}, {selector};",
        "=d:b32*4 a:b32*2 b:b32*2 c:b32*4 metadata:b32 selector:imm(0..1)",  "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32 {d}, {a}, {b}, "
        "{c}, {metadata}, {selector};",
        "=d:b32*4 a:b32*4 b:b32*4 c:b32*4 metadata:b32 selector:imm(0)",     "pure", SM80),
    Row("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32<.e4m3|.e5m2><.e4m3|.e5m2>.f32 {d}, {a}, {b}, {c}, "
        "{metadata}, {selector};",
        "=d:f32*4 a:b32*4 b:b32*4 c:f32*4 metadata:b32 selector:imm(0)",     "pure", SM90),

    # wgmma: d = a * b + d if scale_d, else a * b; a from shared memory, or from registers.
    Row("wgmma.fence.sync.aligned;",           "",
        "syncs",  SM90A),
    Row("wgmma.commit_group.sync.aligned;",    "",
        "syncs",  SM90A),
    Row("wgmma.wait_group.sync.aligned {n};",  "n:imm(0..7)",
        "syncs",  SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n8>k16.f32<.f16.f16|.bf16.bf16><|#a_regs> {d}, {a}, {b}, {scale_d}, "
        "{scale_a}, {scale_b}, {trans_a}, {trans_b};",
        "+d:f32*<n>/2 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred scale_a:imm(1,-1) scale_b:imm(1,-1) "
        "trans_a:imm(0..1)?!a_regs trans_b:imm(0..1)",  "writes", SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n8>k16.f16.f16.f16<|#a_regs> {d}, {a}, {b}, {scale_d}, {scale_a}, "
        "{scale_b}, {trans_a}, {trans_b};",
        "+d:b32*<n>/4 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred scale_a:imm(1,-1) scale_b:imm(1,-1) "
        "trans_a:imm(0..1)?!a_regs trans_b:imm(0..1)",  "writes", SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n8>k8.f32.tf32.tf32<|#a_regs> {d}, {a}, {b}, {scale_d}, {scale_a}, "
        "{scale_b};",
        "+d:f32*<n>/2 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred scale_a:imm(1,-1) scale_b:imm(1,-1)",
        "writes", SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n8>k32.f32<.e4m3|.e5m2><.e4m3|.e5m2><|#a_regs> {d}, {a}, {b}, {scale_d}, "
        "{scale_a}, {scale_b};",
        "+d:f32*<n>/2 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred scale_a:imm(1,-1) scale_b:imm(1,-1)",
        "writes", SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n8>k32.f16<.e4m3|.e5m2><.e4m3|.e5m2><|#a_regs> {d}, {a}, {b}, {scale_d}, "
        "{scale_a}, {scale_b};",
        "+d:b32*<n>/4 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred scale_a:imm(1,-1) scale_b:imm(1,-1)",
        "writes", SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n16>k32<|.satfinite>.s32<.s8|.u8><.s8|.u8><|#a_regs> {d}, {a}, {b}, "
        "{scale_d};",
        "+d:b32*<n>/2 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred",
        "writes", SM90A),
    Row("wgmma.mma_async.sync.aligned.m64n<n=n16>k256.s32.b1.b1.and.popc<|#a_regs> {d}, {a}, {b}, {scale_d};",
        "+d:b32*<n>/2 a:b64?!a_regs a:b32*4?a_regs b:b64 scale_d:pred",
        "writes", SM90A),
)
