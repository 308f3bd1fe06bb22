"""Asynchronous copies, tensor maps, and cache control."""

from ..row import ARCH, SM80, SM90, SM100, TMEM, Row

TITLE = "Asynchronous copies, tensor maps and caches"

ROWS = (
    # cp.async: 4, 8 or 16 bytes a thread, completed by groups or by an mbarrier. zfill:
    # bytes past src_size arrive as zeros.
    Row("cp.async.ca.shared.global<hint><fetch><size=#4|#8|#16> [{dst}], [{src}], <size>, {hint};",
        "dst:shared/w src:global/r hint:b64?cache_hint",                                        "writes", SM80),
    Row("cp.async.ca.shared.global<hint><fetch><size=#4|#8|#16><tag=#zfill> [{dst}], [{src}], <size>, {src_size}, "
        "{hint};",
        "dst:shared/w src:global/r src_size:u32 hint:b64?cache_hint",                           "writes", SM80),
    Row("cp.async.ca.shared.global<hint><fetch><size=#4|#8|#16><tag=#ignore_src> [{dst}], [{src}], <size>, "
        "{ignore_src}, {hint};",
        "dst:shared/w src:global/r ignore_src:pred hint:b64?cache_hint",                        "writes", SM80),
    Row("cp.async.cg.shared.global<hint><fetch><size=#16> [{dst}], [{src}], <size>, {hint};",
        "dst:shared/w src:global/r hint:b64?cache_hint",                                        "writes", SM80),
    Row("cp.async.cg.shared.global<hint><fetch><size=#16><tag=#zfill> [{dst}], [{src}], <size>, {src_size}, {hint};",
        "dst:shared/w src:global/r src_size:u32 hint:b64?cache_hint",                           "writes", SM80),
    Row("cp.async.cg.shared.global<hint><fetch><size=#16><tag=#ignore_src> [{dst}], [{src}], <size>, {ignore_src}, "
        "{hint};",
        "dst:shared/w src:global/r ignore_src:pred hint:b64?cache_hint",                        "writes", SM80),
    Row("cp.async.commit_group;",                                      "",                      "syncs",  SM80),
    Row("cp.async.wait_group {n};",                                    "n:imm(0..2147483647)",  "syncs",  SM80),
    Row("cp.async.wait_all;",                                          "",                      "syncs",  SM80),
    Row("cp.async.mbarrier.arrive<|.noinc>.shared::cta.b64 [{bar}];",  "bar:shared",            "syncs",  SM80),

    # Bulk copies of a contiguous range: a multiple of 16 bytes between 16-byte aligned addresses.
    Row("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes<|.multicast::cluster><hint> [{dst}], "
        "[{src}], {size}, [{bar}], {mask}, {hint};",
        "dst:cluster/w src:global/r size:u32 bar:shared mask:b16?multicast hint:b64?cache_hint",  "writes",   SM90),
    Row("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes<hint> [{dst}], [{src}], {size}, [{bar}], "
        "{hint};",
        "dst:shared/w src:global/r size:u32 bar:shared hint:b64?cache_hint",                      "writes",   SM90),
    Row("cp.async.bulk.global.shared::cta.bulk_group<hint> [{dst}], [{src}], {size}, {hint};",
        "dst:global/w src:shared/r size:u32 hint:b64?cache_hint",                                 "writes",   SM90),
    Row("cp.async.bulk.global.shared::cta.bulk_group<hint>.cp_mask [{dst}], [{src}], {size}, {hint}, {byte_mask};",
        "dst:global/w src:shared/r size:u32 hint:b64?cache_hint byte_mask:b16",                   "writes",   SM100),
    Row("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{dst}], [{src}], {size}, [{bar}];",
        "dst:cluster/w src:shared/r size:u32 bar:cluster",                                        "writes",   SM90),
    Row("cp.async.bulk.prefetch.L2.global<hint> [{src}], {size}, {hint};",
        "src:global/r size:u32 hint:b64?cache_hint",                                              "volatile", SM90),
    Row("cp.async.bulk.commit_group;",            "",                                             "syncs",    SM90),
    Row("cp.async.bulk.wait_group<|.read> {n};",  "n:imm(0..2147483647)",                         "syncs",    SM90),

    # Bulk reductions.
    Row("cp.reduce.async.bulk.global.shared::cta.bulk_group<hint>.add"
        "<.noftz.f16|.noftz.bf16|.u32|.s32|.u64|.f32|.f64> [{dst}], [{src}], {size}, {hint};",
        "dst:global/w src:shared/r size:u32 hint:b64?cache_hint",  "writes", SM90),
    Row("cp.reduce.async.bulk.global.shared::cta.bulk_group<hint><.min|.max><.u32|.s32|.u64|.s64|.f16|.bf16> [{dst}], "
        "[{src}], {size}, {hint};",
        "dst:global/w src:shared/r size:u32 hint:b64?cache_hint",  "writes", SM90),
    Row("cp.reduce.async.bulk.global.shared::cta.bulk_group<hint><.and|.or|.xor><.b32|.b64> [{dst}], [{src}], {size}, "
        "{hint};",
        "dst:global/w src:shared/r size:u32 hint:b64?cache_hint",  "writes", SM90),
    Row("cp.reduce.async.bulk.global.shared::cta.bulk_group<hint><.inc|.dec>.u32 [{dst}], [{src}], {size}, {hint};",
        "dst:global/w src:shared/r size:u32 hint:b64?cache_hint",  "writes", SM90),
    Row("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add<.u32|.s32|.u64> [{dst}], "
        "[{src}], {size}, [{bar}];",
        "dst:cluster/w src:shared/r size:u32 bar:cluster",         "writes", SM90),
    Row("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes<.min|.max><.u32|.s32> [{dst}], "
        "[{src}], {size}, [{bar}];",
        "dst:cluster/w src:shared/r size:u32 bar:cluster",         "writes", SM90),
    Row("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes<.and|.or|.xor>.b32 [{dst}], "
        "[{src}], {size}, [{bar}];",
        "dst:cluster/w src:shared/r size:u32 bar:cluster",         "writes", SM90),
    Row("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes<.inc|.dec>.u32 [{dst}], "
        "[{src}], {size}, [{bar}];",
        "dst:cluster/w src:shared/r size:u32 bar:cluster",         "writes", SM90),

    # Tensor copies, global to shared. The operands come in this order: destination, map and coordinates, barrier,
    # im2col offsets, mask, hint.
    Row("cp.async.bulk.tensor.<dim>.shared::cluster.global.mbarrier::complete_tx::bytes<|.multicast::cluster>"
        "<|.cta_group::1|.cta_group::2><hint> [{dst}], [{map}, {coords}], [{bar}], {mask}, {hint};",
        "dst:cluster/w map:map coords:s32*<dim> bar:shared mask:b16?multicast hint:b64?cache_hint",
        "writes", SM90),
    Row("cp.async.bulk.tensor.<dim=3d|4d|5d>.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        "<|.multicast::cluster><|.cta_group::1|.cta_group::2><hint> [{dst}], [{map}, {coords}], [{bar}], {offsets}, "
        "{mask}, {hint};",
        "dst:cluster/w map:map coords:s32*<dim> bar:shared offsets:u16*<dim>-2 mask:b16?multicast hint:b64?cache_hint",
        "writes", SM90),
    Row("cp.async.bulk.tensor.<dim=3d|4d|5d>.shared::cluster.global<.im2col::w|.im2col::w::128>"
        ".mbarrier::complete_tx::bytes<|.multicast::cluster><|.cta_group::1|.cta_group::2><hint> [{dst}], [{map}, "
        "{coords}], [{bar}], {offsets}, {mask}, {hint};",
        "dst:cluster/w map:map coords:s32*<dim> bar:shared offsets:u16*2 mask:b16?multicast hint:b64?cache_hint",
        "writes", TMEM),
    Row("cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
        "<|.multicast::cluster><|.cta_group::1|.cta_group::2><hint> [{dst}], [{map}, {coords}], [{bar}], {mask}, "
        "{hint};",
        "dst:cluster/w map:map coords:s32*5 bar:shared mask:b16?multicast hint:b64?cache_hint",
        "writes", TMEM),
    Row("cp.async.bulk.tensor.<dim>.shared::cta.global.tile.mbarrier::complete_tx::bytes<hint> [{dst}], [{map}, "
        "{coords}], [{bar}], {hint};",
        "dst:shared/w map:map coords:s32*<dim> bar:shared hint:b64?cache_hint",
        "writes", SM90),
    Row("cp.async.bulk.tensor.<dim=3d|4d|5d>.shared::cta.global.im2col.mbarrier::complete_tx::bytes<hint> [{dst}], "
        "[{map}, {coords}], [{bar}], {offsets}, {hint};",
        "dst:shared/w map:map coords:s32*<dim> bar:shared offsets:u16*<dim>-2 hint:b64?cache_hint",
        "writes", SM90),
    Row("cp.async.bulk.tensor.<dim=3d|4d|5d>.shared::cta.global<.im2col::w|.im2col::w::128>"
        ".mbarrier::complete_tx::bytes<hint> [{dst}], [{map}, {coords}], [{bar}], {offsets}, {hint};",
        "dst:shared/w map:map coords:s32*<dim> bar:shared offsets:u16*2 hint:b64?cache_hint",
        "writes", SM100),
    Row("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes<hint> [{dst}], [{map}, "
        "{coords}], [{bar}], {hint};",
        "dst:shared/w map:map coords:s32*5 bar:shared hint:b64?cache_hint",
        "writes", SM100),
    # the load mode may also stand first
    Row("cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes [{dst}], [{map}, "
        "{coords}], [{bar}];",
        "dst:shared/w map:map coords:s32*5 bar:shared",
        "writes", SM100),

    # Tensor copies, shared to global.
    Row("cp.async.bulk.tensor.<dim>.global.shared::cta<|.tile>.bulk_group<hint> [{map}, {coords}], [{src}], {hint};",
        "map:map coords:s32*<dim> src:shared/r hint:b64?cache_hint",  "writes", SM90),
    Row("cp.async.bulk.tensor.<dim=3d|4d|5d>.global.shared::cta.im2col_no_offs.bulk_group<hint> [{map}, {coords}], "
        "[{src}], {hint};",
        "map:map coords:s32*<dim> src:shared/r hint:b64?cache_hint",  "writes", SM90),
    Row("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group<hint> [{map}, {coords}], [{src}], "
        "{hint};",
        "map:map coords:s32*5 src:shared/r hint:b64?cache_hint",      "writes", TMEM),
    Row("cp.async.bulk.tensor.2d.tile::scatter4.global.shared::cta.bulk_group [{map}, {coords}], [{src}];",
        "map:map coords:s32*5 src:shared/r",                          "writes", TMEM),
    Row("cp.reduce.async.bulk.tensor.<dim>.global.shared::cta<op=.add|.min|.max|.inc|.dec|.and|.or|.xor>"
        ".tile.bulk_group<hint> [{map}, {coords}], [{src}], {hint};",
        "map:map coords:s32*<dim> src:shared/r hint:b64?cache_hint",  "writes", SM90),
    Row("cp.reduce.async.bulk.tensor.<dim=3d|4d|5d>.global.shared::cta<op=.add|.min|.max|.inc|.dec|.and|.or|.xor>"
        ".im2col_no_offs.bulk_group<hint> [{map}, {coords}], [{src}], {hint};",
        "map:map coords:s32*<dim> src:shared/r hint:b64?cache_hint",  "writes", SM90),

    # Tensor prefetches into L2.
    Row("cp.async.bulk.prefetch.tensor.<dim>.L2.global.tile<hint> [{map}, {coords}], {hint};",
        "map:map coords:s32*<dim> hint:b64?cache_hint",                      "volatile", SM90),
    Row("cp.async.bulk.prefetch.tensor.<dim=3d|4d|5d>.L2.global.im2col<hint> [{map}, {coords}], {offsets}, {hint};",
        "map:map coords:s32*<dim> offsets:u16*<dim>-2 hint:b64?cache_hint",  "volatile", SM90),
    Row("cp.async.bulk.prefetch.tensor.<dim=3d|4d|5d>.L2.global<.im2col::w|.im2col::w::128><hint> [{map}, {coords}], "
        "{offsets}, {hint};",
        "map:map coords:s32*<dim> offsets:u16*2 hint:b64?cache_hint",        "volatile", TMEM),
    Row("cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4<hint> [{map}, {coords}], {hint};",
        "map:map coords:s32*5 hint:b64?cache_hint",                          "volatile", TMEM),

    # Tensor maps. Indices and modes are immediates; strides are in bytes,
    # rank and the modes as the replaced field counts them.
    Row("tensormap.replace.tile.global_address.global.b1024.b64 [{map}], {value};",
        "map:global value:b64",                                                                     "writes",   ARCH),
    Row("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [{map}], {value};",
        "map:shared value:b64",                                                                     "writes",   ARCH),
    Row("tensormap.replace.tile<.global_dim|.box_dim|.element_stride>.global.b1024.b32 [{map}], {index}, {value};",
        "map:global index:imm(0..4) value:b32",                                                     "writes",   ARCH),
    Row("tensormap.replace.tile<.global_dim|.box_dim|.element_stride>.shared::cta.b1024.b32 [{map}], {index}, {value};",
        "map:shared index:imm(0..4) value:b32",                                                     "writes",   ARCH),
    Row("tensormap.replace.tile.global_stride.global.b1024.b64 [{map}], {index}, {value};",
        "map:global index:imm(0..3) value:b64",                                                     "writes",   ARCH),
    Row("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [{map}], {index}, {value};",
        "map:shared index:imm(0..3) value:b64",                                                     "writes",   ARCH),
    Row("tensormap.replace.tile.rank.global.b1024.b32 [{map}], {value};",  "map:global value:b32",  "writes",   ARCH),
    Row("tensormap.replace.tile.rank.shared::cta.b1024.b32 [{map}], {value};",
        "map:shared value:b32",                                                                     "writes",   ARCH),
    Row("tensormap.replace.tile.elemtype.global.b1024.b32 [{map}], {value};",
        "map:global value:imm(0..12)",                                                              "writes",   ARCH),
    Row("tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [{map}], {value};",
        "map:shared value:imm(0..12)",                                                              "writes",   ARCH),
    Row("tensormap.replace.tile.interleave_layout.global.b1024.b32 [{map}], {value};",
        "map:global value:imm(0..2)",                                                               "writes",   ARCH),
    Row("tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [{map}], {value};",
        "map:shared value:imm(0..2)",                                                               "writes",   ARCH),
    Row("tensormap.replace.tile.swizzle_mode.global.b1024.b32 [{map}], {value};",
        "map:global value:imm(0..3)",                                                               "writes",   ARCH),
    Row("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [{map}], {value};",
        "map:shared value:imm(0..3)",                                                               "writes",   ARCH),
    Row("tensormap.replace.tile.fill_mode.global.b1024.b32 [{map}], {value};",
        "map:global value:imm(0..1)",                                                               "writes",   ARCH),
    Row("tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [{map}], {value};",
        "map:shared value:imm(0..1)",                                                               "writes",   ARCH),
    Row("tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [{map}], {value};",
        "map:global value:imm(0..3)",                                                               "writes",   SM100),
    Row("tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [{map}], {value};",
        "map:shared value:imm(0..3)",                                                               "writes",   SM100),
    Row("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release<scope>.sync.aligned [{dst}], [{src}], "
        "{size};",
        "dst:global/w src:shared/r size:imm(128)",                                                  "syncs",    SM90),
    Row("prefetch.tensormap [{map}];",                                     "map:map",               "volatile", SM90),

    # Stores and reductions into the shared memory of the cluster that complete on an mbarrier there,
    # and multicast memory.
    Row("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes<t=.b32|.b64|.u32|.u64|.s32|.s64|.f32|.f64> "
        "[{dst}], {value}, [{bar}];",
        "dst:cluster/w value:<t> bar:cluster",      "writes", SM90),
    Row("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes<v=.v2|.v4><t=.b32|.u32|.s32|.f32> [{dst}], "
        "{value}, [{bar}];",
        "dst:cluster/w value:<t>*<v> bar:cluster",  "writes", SM90),
    Row("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2<t=.b64|.u64|.s64|.f64> [{dst}], {value}, "
        "[{bar}];",
        "dst:cluster/w value:<t>*2 bar:cluster",    "writes", SM90),
    Row("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes<.inc|.dec>.u32 [{dst}], {value}, "
        "[{bar}];",
        "dst:cluster/w value:u32 bar:cluster",      "writes", SM90),
    Row("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes<.min|.max><t=.u32|.s32> [{dst}], "
        "{value}, [{bar}];",
        "dst:cluster/w value:<t> bar:cluster",      "writes", SM90),
    Row("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add<t=.u32|.s32|.u64> [{dst}], "
        "{value}, [{bar}];",
        "dst:cluster/w value:<t> bar:cluster",      "writes", SM90),
    Row("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes<.and|.or|.xor>.b32 [{dst}], {value}, "
        "[{bar}];",
        "dst:cluster/w value:b32 bar:cluster",      "writes", SM90),
    Row("multimem.ld_reduce<.relaxed|.acquire><scope>.global.add<t=.u32|.s32|.u64|.f32|.f64> {d}, [{a}];",
        "=d:<t> a:global",                          "reads",  SM90),
    Row("multimem.ld_reduce<.relaxed|.acquire><scope>.global<.min|.max><t=.u32|.s32|.u64|.s64> {d}, [{a}];",
        "=d:<t> a:global",                          "reads",  SM90),
    Row("multimem.ld_reduce<.relaxed|.acquire><scope>.global<.and|.or|.xor><t=.b32|.b64> {d}, [{a}];",
        "=d:<t> a:global",                          "reads",  SM90),
    Row("multimem.ld_reduce<.relaxed|.acquire><scope>.global.add<v=.v2|.v4>.f32 {d}, [{a}];",
        "=d:f32*<v> a:global",                      "reads",  SM90),
    Row("multimem.ld_reduce<.relaxed|.acquire><scope>.global.add<|.acc::f32><v=|.v2|.v4><t=.f16x2|.bf16x2> {d}, [{a}];",
        "=d:<t>*<v> a:global",                      "reads",  SM90),
    Row("multimem.ld_reduce<.relaxed|.acquire><scope>.global<.min|.max><v=|.v2|.v4><t=.f16x2|.bf16x2> {d}, [{a}];",
        "=d:<t>*<v> a:global",                      "reads",  SM90),
    Row("multimem.st<.relaxed|.release><scope>.global<t=.b32|.b64|.u32|.s32|.f32|.f64> [{a}], {value};",
        "a:global value:<t>",                       "writes", SM90),
    Row("multimem.st<.relaxed|.release><scope>.global<v=.v2|.v4>.f32 [{a}], {value};",
        "a:global value:f32*<v>",                   "writes", SM90),
    Row("multimem.st<.relaxed|.release><scope>.global<v=|.v2|.v4><t=.f16x2|.bf16x2> [{a}], {value};",
        "a:global value:<t>*<v>",                   "writes", SM90),
    Row("multimem.red<.relaxed|.release><scope>.global.add<t=.u32|.s32|.u64|.f32|.f64> [{a}], {value};",
        "a:global value:<t>",                       "writes", SM90),
    Row("multimem.red<.relaxed|.release><scope>.global<.min|.max><t=.u32|.s32|.u64|.s64> [{a}], {value};",
        "a:global value:<t>",                       "writes", SM90),
    Row("multimem.red<.relaxed|.release><scope>.global<.and|.or|.xor><t=.b32|.b64> [{a}], {value};",
        "a:global value:<t>",                       "writes", SM90),
    Row("multimem.red<.relaxed|.release><scope>.global.add<v=|.v2|.v4><t=.f16x2|.bf16x2> [{a}], {value};",
        "a:global value:<t>*<v>",                   "writes", SM90),
    Row("multimem.red<.relaxed|.release><scope>.global.add<v=.v2|.v4>.f32 [{a}], {value};",
        "a:global value:f32*<v>",                   "writes", SM90),

    # Caches.
    Row("prefetch.global<.L1|.L2|.L2::evict_last|.L2::evict_normal> [{a}];",
        "a:global",                                                                             "volatile", SM80),
    Row("prefetchu.L1 [{a}];",                                   "a:generic",                   "volatile", SM80),
    Row("applypriority.global.L2::evict_normal [{a}], {size};",  "a:global size:imm(128)",      "volatile", SM80),
    Row("discard.global.L2 [{a}], {size};",                      "a:global size:imm(128)",      "writes",   SM80),
    Row("createpolicy.fractional<.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged>.b64 {d}, "
        "{fraction};",
        "=d:b64 fraction:f32",                                                                  "pure",     SM80),
    Row("createpolicy.fractional<.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged>"
        "<.L2::evict_first|.L2::evict_unchanged>.b64 {d}, {fraction};",
        "=d:b64 fraction:f32",                                                                  "pure",     SM80),
    Row("createpolicy.range.global<.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged>"
        "<|.L2::evict_first|.L2::evict_unchanged>.b64 {d}, [{a}], {primary}, {total};",
        "=d:b64 a:global primary:u32 total:u32",                                                "pure",     SM80),
    Row("createpolicy.cvt.L2.b64 {d}, {access_property};",       "=d:b64 access_property:b64",  "pure",     SM80),
)
