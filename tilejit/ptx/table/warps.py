"""Exchanges among the lanes of a warp, special registers, and address conversions."""

from ..row import SM80, SM90, TMEM, Row

TITLE = "Warps, special registers and addresses"

ROWS = (
    # Exchanges among the lanes in membermask; `pred` also returns whether the source lane was in range.
    Row("shfl.sync<.up|.down|.bfly|.idx>.b32<|#pred> {d}|{p}, {a}, {b}, {c}, {membermask};",
        "=d:b32 =p:pred?pred a:b32 b:b32 c:b32 membermask:b32",                                           "warp", SM80),
    Row("vote.sync<.all|.any|.uni>.pred {d}, {p}, {membermask};",  "=d:pred p:pred membermask:b32",       "warp", SM80),
    Row("vote.sync.ballot.b32 {d}, {p}, {membermask};",            "=d:b32 p:pred membermask:b32",        "warp", SM80),
    Row("match.any.sync<t=.b32|.b64> {d}, {a}, {membermask};",     "=d:b32 a:<t> membermask:b32",         "warp", SM80),
    Row("match.all.sync<t=.b32|.b64><|#pred> {d}|{p}, {a}, {membermask};",
        "=d:b32 =p:pred?pred a:<t> membermask:b32",                                                       "warp", SM80),
    Row("redux.sync<.add|.min|.max><t=.u32|.s32> {d}, {a}, {membermask};",
        "=d:<t> a:<t> membermask:b32",                                                                    "warp", SM80),
    Row("redux.sync<.and|.or|.xor>.b32 {d}, {a}, {membermask};",   "=d:b32 a:b32 membermask:b32",         "warp", SM80),
    Row("redux.sync<.min|.max><|.abs><|.NaN>.f32 {d}, {a}, {membermask};",
        "=d:f32 a:f32 membermask:b32",                                                                    "warp", TMEM),
    Row("activemask.b32 {d};",                                     "=d:b32",                              "warp", SM80),
    Row("elect.sync {leader}|{p}, {membermask};",                  "=leader:b32 =p:pred membermask:b32",  "warp", SM90),

    # Special registers.
    Row("mov.u32"
        "<s=#tid.x|#tid.y|#tid.z|#ntid.x|#ntid.y|#ntid.z|#ctaid.x|#ctaid.y|#ctaid.z|#nctaid.x|#nctaid.y|#nctaid.z> "
        "{d}, %<s>;",
        "=d:u32",                                                   "pure",     SM80),
    Row("mov.u32<s=#laneid|#nwarpid|#nsmid|#total_smem_size|#dynamic_smem_size> {d}, %<s>;",
        "=d:u32",                                                   "pure",     SM80),
    Row("mov.u32<s=#lanemask_eq|#lanemask_le|#lanemask_lt|#lanemask_ge|#lanemask_gt> {d}, %<s>;",
        "=d:u32",                                                   "pure",     SM80),
    Row("mov.u32<s=#cluster_ctaid.x|#cluster_ctaid.y|#cluster_ctaid.z|#cluster_nctaid.x|#cluster_nctaid.y|"
        "#cluster_nctaid.z|#cluster_ctarank|#cluster_nctarank> {d}, %<s>;",
        "=d:u32",                                                   "pure",     SM90),
    Row("mov.u32<s=#clusterid.x|#clusterid.y|#clusterid.z|#nclusterid.x|#nclusterid.y|#nclusterid.z|#aggr_smem_size> "
        "{d}, %<s>;",
        "=d:u32",                                                   "pure",     SM90),
    Row("mov.pred<s=#is_explicit_cluster> {d}, %<s>;",  "=d:pred",  "pure",     SM90),
    Row("mov.u64<s=#gridid> {d}, %<s>;",                "=d:u64",   "pure",     SM80),
    Row("mov.u32<s=#warpid|#smid|#clock|#clock_hi|#globaltimer_lo|#globaltimer_hi> {d}, %<s>;",
        "=d:u32",                                                   "volatile", SM80),
    Row("mov.u64<s=#clock64|#globaltimer> {d}, %<s>;",  "=d:u64",   "volatile", SM80),

    # Addresses.
    Row("mapa.shared::cluster.u32 {d}, {a}, {rank};",  "=d:u32 a:shared rank:u32",   "pure", SM90),
    Row("mapa.u64 {d}, {a}, {rank};",                  "=d:u64 a:generic rank:u32",  "pure", SM90),
    Row("getctarank.shared::cluster.u32 {d}, {a};",    "=d:u32 a:cluster",           "pure", SM90),
    Row("getctarank.u64 {d}, {a};",                    "=d:u32 a:generic",           "pure", SM90),
    Row("isspacep<.const|.global|.local|.shared|.shared::cta|.param> {d}, {a};",
        "=d:pred a:generic",                                                         "pure", SM80),
    Row("isspacep.shared::cluster {d}, {a};",          "=d:pred a:generic",          "pure", SM90),
    Row("cvta<.global|.const|.local|.shared|.shared::cta|.shared::cluster>.u64 {d}, {a};",
        "=d:u64 a:b64",                                                              "pure", SM80),
    Row("cvta.to<.global|.const|.local|.shared|.shared::cta|.shared::cluster>.u64 {d}, {a};",
        "=d:u64 a:generic",                                                          "pure", SM80),
)
