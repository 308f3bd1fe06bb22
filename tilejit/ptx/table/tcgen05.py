"""Tensor memory, and tcgen05, the tensor core instructions of Blackwell."""

from ..row import SM100A, SM103A, TMEM, Row

TITLE = "Tensor memory and tcgen05"

ROWS = (
    # Tensor memory: columns in powers of two from 32 to 512.
    Row("tcgen05.alloc<g=.cta_group::1|.cta_group::2>.sync.aligned.shared::cta.b32 [{dst}], {columns};",
        "dst:shared/w columns:u32",                                                           "syncs",  TMEM),
    Row("tcgen05.dealloc<g=.cta_group::1|.cta_group::2>.sync.aligned.b32 {a}, {columns};",
        "a:tmem columns:u32",                                                                 "syncs",  TMEM),
    Row("tcgen05.relinquish_alloc_permit<g=.cta_group::1|.cta_group::2>.sync.aligned;",  "",  "syncs",  TMEM),
    Row("tcgen05.ld.sync.aligned<.16x64b|.32x32b><n=.x1|.x2|.x4|.x8|.x16|.x32|.x64|.x128><|.pack::16b>.b32 {d}, [{a}];",
        "=d:b32*<n> a:tmem",                                                                  "reads",  TMEM),
    Row("tcgen05.ld.sync.aligned.16x128b<n=.x1|.x2|.x4|.x8|.x16|.x32|.x64><|.pack::16b>.b32 {d}, [{a}];",
        "=d:b32*<n>*2 a:tmem",                                                                "reads",  TMEM),
    Row("tcgen05.ld.sync.aligned.16x256b<n=.x1|.x2|.x4|.x8|.x16|.x32><|.pack::16b>.b32 {d}, [{a}];",
        "=d:b32*<n>*4 a:tmem",                                                                "reads",  TMEM),
    Row("tcgen05.ld.sync.aligned.16x32bx2<n=.x1|.x2|.x4|.x8|.x16|.x32|.x64|.x128><|.pack::16b>.b32 {d}, [{a}], {half};",
        "=d:b32*<n> a:tmem half:imm(0..511)",                                                 "reads",  TMEM),
    Row("tcgen05.ld.red.sync.aligned.32x32b<n=.x2|.x4|.x8|.x16|.x32|.x64|.x128><.min|.max><|.abs><|.NaN>.f32 {d}, "
        "{r}, [{a}];",
        "=d:f32*<n> =r:f32 a:tmem",                                                           "reads",  SM103A),
    Row("tcgen05.ld.red.sync.aligned.32x32b<n=.x2|.x4|.x8|.x16|.x32|.x64|.x128><.min|.max><t=.u32|.s32> {d}, {r}, "
        "[{a}];",
        "=d:<t>*<n> =r:<t> a:tmem",                                                           "reads",  SM103A),
    Row("tcgen05.st.sync.aligned<.16x64b|.32x32b><n=.x1|.x2|.x4|.x8|.x16|.x32|.x64|.x128><|.unpack::16b>.b32 [{a}], "
        "{value};",
        "a:tmem value:b32*<n>",                                                               "writes", TMEM),
    Row("tcgen05.st.sync.aligned.16x128b<n=.x1|.x2|.x4|.x8|.x16|.x32|.x64><|.unpack::16b>.b32 [{a}], {value};",
        "a:tmem value:b32*<n>*2",                                                             "writes", TMEM),
    Row("tcgen05.st.sync.aligned.16x256b<n=.x1|.x2|.x4|.x8|.x16|.x32><|.unpack::16b>.b32 [{a}], {value};",
        "a:tmem value:b32*<n>*4",                                                             "writes", TMEM),
    Row("tcgen05.st.sync.aligned.16x32bx2<n=.x1|.x2|.x4|.x8|.x16|.x32|.x64|.x128><|.unpack::16b>.b32 [{a}], {half}, "
        "{value};",
        "a:tmem half:imm(0..511) value:b32*<n>",                                              "writes", TMEM),
    Row("tcgen05.wait<::ld|::st>.sync.aligned;",                                         "",  "syncs",  TMEM),
    Row("tcgen05.fence<::before_thread_sync|::after_thread_sync>;",                      "",  "syncs",  TMEM),

    # Copies from shared to tensor memory, and shifts down by a row.
    Row("tcgen05.cp<g=.cta_group::1|.cta_group::2>"
        "<.128x256b|.4x256b|.128x128b|.64x128b.warpx2::02_13|.64x128b.warpx2::01_23|.32x128b.warpx4>"
        "<|.b8x16.b6x16_p32|.b8x16.b4x16_p64> [{dst}], {src};",
        "dst:tmem/w src:b64",                                                   "writes", TMEM),
    Row("tcgen05.shift<g=.cta_group::1|.cta_group::2>.down [{a}];",  "a:tmem",  "writes", TMEM),

    # Completion of all the thread's earlier tcgen05 operations, as an arrive on an mbarrier.
    Row("tcgen05.commit<g=.cta_group::1|.cta_group::2>.mbarrier::arrive::one.shared::cluster<|.multicast::cluster>"
        ".b64 [{bar}], {mask};",
        "bar:cluster mask:b16?multicast",  "syncs", TMEM),

    # d = a * b + d if enable_d, else a * b. a is a shared-memory descriptor or, a_tmem, an address in tensor memory.
    # mask: the rows of d that are left as they are; scale: d is divided by two to the power of scale first.
    Row("tcgen05.mma.cta_group::1<kind><collect><|#mask> [{d}], {a}, {b}, {idesc}, {mask}, {enable_d};",
        "d:tmem a:b64 b:b64 idesc:b32 mask:b32*4?mask enable_d:pred",    "writes", TMEM),
    Row("tcgen05.mma.cta_group::2<kind><collect><|#mask> [{d}], {a}, {b}, {idesc}, {mask}, {enable_d};",
        "d:tmem a:b64 b:b64 idesc:b32 mask:b32*8?mask enable_d:pred",    "writes", TMEM),
    Row("tcgen05.mma.cta_group::1<kind><|.ashift><tag=#a_tmem><|#mask> [{d}], [{a}], {b}, {idesc}, {mask}, {enable_d};",
        "d:tmem a:tmem b:b64 idesc:b32 mask:b32*4?mask enable_d:pred",   "writes", TMEM),
    Row("tcgen05.mma.cta_group::2<kind><|.ashift><tag=#a_tmem><|#mask> [{d}], [{a}], {b}, {idesc}, {mask}, {enable_d};",
        "d:tmem a:tmem b:b64 idesc:b32 mask:b32*8?mask enable_d:pred",   "writes", TMEM),
    Row("tcgen05.mma<g=.cta_group::1|.cta_group::2><.kind::f16|.kind::tf32><tag=#scale> [{d}], {a}, {b}, {idesc}, "
        "{enable_d}, {scale};",
        "d:tmem a:b64 b:b64 idesc:b32 enable_d:pred scale:imm(0..15)",   "writes", TMEM),
    Row("tcgen05.mma<g=.cta_group::1|.cta_group::2><.kind::f16|.kind::tf32><tag=#a_tmem><by=#scale> [{d}], [{a}], "
        "{b}, {idesc}, {enable_d}, {scale};",
        "d:tmem a:tmem b:b64 idesc:b32 enable_d:pred scale:imm(0..15)",  "writes", TMEM),
    Row("tcgen05.mma<g=.cta_group::1|.cta_group::2>.kind::i8<collect> [{d}], {a}, {b}, {idesc}, {enable_d};",
        "d:tmem a:b64 b:b64 idesc:b32 enable_d:pred",                    "writes", SM100A),
    Row("tcgen05.mma<g=.cta_group::1|.cta_group::2>.kind::i8<tag=#a_tmem> [{d}], [{a}], {b}, {idesc}, {enable_d};",
        "d:tmem a:tmem b:b64 idesc:b32 enable_d:pred",                   "writes", SM100A),

    # Block-scaled: the scale factors of a and b are in tensor memory.
    Row("tcgen05.mma<g=.cta_group::1|.cta_group::2><scaled><collect> [{d}], {a}, {b}, {idesc}, [{scale_a}], "
        "[{scale_b}], {enable_d};",
        "d:tmem a:b64 b:b64 idesc:b32 scale_a:tmem scale_b:tmem enable_d:pred",   "writes", TMEM),
    Row("tcgen05.mma<g=.cta_group::1|.cta_group::2><scaled><tag=#a_tmem> [{d}], [{a}], {b}, {idesc}, [{scale_a}], "
        "[{scale_b}], {enable_d};",
        "d:tmem a:tmem b:b64 idesc:b32 scale_a:tmem scale_b:tmem enable_d:pred",  "writes", TMEM),

    # Sparse: the metadata of a is in tensor memory.
    Row("tcgen05.mma.sp<g=.cta_group::1|.cta_group::2><kind> [{d}], {a}, {b}, [{metadata}], {idesc}, {enable_d};",
        "d:tmem a:b64 b:b64 metadata:tmem idesc:b32 enable_d:pred",                            "writes", TMEM),
    Row("tcgen05.mma.sp<g=.cta_group::1|.cta_group::2><kind><tag=#a_tmem> [{d}], [{a}], {b}, [{metadata}], {idesc}, "
        "{enable_d};",
        "d:tmem a:tmem b:b64 metadata:tmem idesc:b32 enable_d:pred",                           "writes", TMEM),
    Row("tcgen05.mma.sp<g=.cta_group::1|.cta_group::2>.kind::i8 [{d}], {a}, {b}, [{metadata}], {idesc}, {enable_d};",
        "d:tmem a:b64 b:b64 metadata:tmem idesc:b32 enable_d:pred",                            "writes", SM100A),
    Row("tcgen05.mma.sp<g=.cta_group::1|.cta_group::2><scaled> [{d}], {a}, {b}, [{metadata}], {idesc}, [{scale_a}], "
        "[{scale_b}], {enable_d};",
        "d:tmem a:b64 b:b64 metadata:tmem idesc:b32 scale_a:tmem scale_b:tmem enable_d:pred",  "writes", TMEM),

    # Weight-stationary: b may stay in one of four collector buffers.
    Row("tcgen05.mma.ws.cta_group::1<kind><keep><|#zero_columns> [{d}], {a}, {b}, {idesc}, {enable_d}, {zero_columns};",
        "d:tmem a:b64 b:b64 idesc:b32 enable_d:pred zero_columns:b64?zero_columns",   "writes", TMEM),
    Row("tcgen05.mma.ws.cta_group::1<kind><keep><tag=#a_tmem><|#zero_columns> [{d}], [{a}], {b}, {idesc}, {enable_d}, "
        "{zero_columns};",
        "d:tmem a:tmem b:b64 idesc:b32 enable_d:pred zero_columns:b64?zero_columns",  "writes", TMEM),
    Row("tcgen05.mma.ws.cta_group::1.kind::i8<keep> [{d}], {a}, {b}, {idesc}, {enable_d};",
        "d:tmem a:b64 b:b64 idesc:b32 enable_d:pred",                                 "writes", SM100A),
)
