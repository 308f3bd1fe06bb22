"""Barriers, fences and scheduling: mbarrier, bar, fence, griddepcontrol, setmaxnreg, trap."""

from ..row import ARCH, SM80, SM90, SM100, Row

TITLE = "Barriers, fences and scheduling"

ROWS = (
    # mbarrier. A phase is waited for by its parity, or by the state that an arrive returned.
    Row("mbarrier.init.shared::cta.b64 [{bar}], {count};",                "bar:shared count:u32",   "syncs", SM80),
    Row("mbarrier.inval.shared::cta.b64 [{bar}];",                        "bar:shared",             "syncs", SM80),
    Row("mbarrier.arrive.shared::cta.b64 {state}, [{bar}];",              "=state:b64 bar:shared",  "syncs", SM80),
    Row("mbarrier.arrive.shared::cta.b64<tag=#count> {state}, [{bar}], {count};",
        "=state:b64 bar:shared count:u32",                                                          "syncs", SM90),
    Row("mbarrier.arrive.release.cta.shared::cta.b64 {state}, [{bar}];",  "=state:b64 bar:shared",  "syncs", SM80),
    Row("mbarrier.arrive.release.cta.shared::cta.b64<tag=#count> {state}, [{bar}], {count};",
        "=state:b64 bar:shared count:u32",                                                          "syncs", SM90),
    Row("mbarrier.arrive<.release.cluster|.relaxed.cta|.relaxed.cluster>.shared::cta.b64<|#count> {state}, [{bar}], "
        "{count};",
        "=state:b64 bar:shared count:u32?count",                                                    "syncs", SM90),
    Row("mbarrier.arrive<|.release.cluster|.relaxed.cluster>.shared::cluster.b64<|#count> _, [{bar}], {count};",
        "bar:cluster count:u32?count",                                                              "syncs", SM90),
    Row("mbarrier.arrive.noComplete.shared::cta.b64 {state}, [{bar}], {count};",
        "=state:b64 bar:shared count:u32",                                                          "syncs", SM80),
    Row("mbarrier.arrive.expect_tx<|.release.cta|.relaxed.cta|.release.cluster|.relaxed.cluster>.shared::cta.b64 "
        "{state}, [{bar}], {tx_count};",
        "=state:b64 bar:shared tx_count:u32",                                                       "syncs", SM90),
    Row("mbarrier.arrive.expect_tx<|.release.cluster|.relaxed.cluster>.shared::cluster.b64 _, [{bar}], {tx_count};",
        "bar:cluster tx_count:u32",                                                                 "syncs", SM90),
    Row("mbarrier.arrive_drop.shared::cta.b64 {state}, [{bar}];",         "=state:b64 bar:shared",  "syncs", SM80),
    Row("mbarrier.arrive_drop.shared::cta.b64<tag=#count> {state}, [{bar}], {count};",
        "=state:b64 bar:shared count:u32",                                                          "syncs", SM90),
    Row("mbarrier.arrive_drop<|.release.cluster|.relaxed.cluster>.shared::cluster.b64<|#count> _, [{bar}], {count};",
        "bar:cluster count:u32?count",                                                              "syncs", SM90),
    Row("mbarrier.arrive_drop.noComplete.shared::cta.b64 {state}, [{bar}], {count};",
        "=state:b64 bar:shared count:u32",                                                          "syncs", SM80),
    Row("mbarrier.arrive_drop.expect_tx.shared::cta.b64 {state}, [{bar}], {tx_count};",
        "=state:b64 bar:shared tx_count:u32",                                                       "syncs", SM90),
    Row("mbarrier.arrive_drop.expect_tx<|.release.cluster|.relaxed.cluster>.shared::cluster.b64 _, [{bar}], "
        "{tx_count};",
        "bar:cluster tx_count:u32",                                                                 "syncs", SM90),
    Row("mbarrier.expect_tx.relaxed<.cta|.cluster>.shared::cta.b64 [{bar}], {tx_count};",
        "bar:shared tx_count:u32",                                                                  "syncs", SM90),
    Row("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [{bar}], {tx_count};",
        "bar:cluster tx_count:u32",                                                                 "syncs", SM90),
    Row("mbarrier.complete_tx.relaxed<.cta|.cluster>.shared::cta.b64 [{bar}], {tx_count};",
        "bar:shared tx_count:u32",                                                                  "syncs", SM90),
    Row("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [{bar}], {tx_count};",
        "bar:cluster tx_count:u32",                                                                 "syncs", SM90),
    Row("mbarrier.test_wait<|.acquire.cta>.shared::cta.b64 {done}, [{bar}], {state};",
        "=done:pred bar:shared state:b64",                                                          "syncs", SM80),
    Row("mbarrier.test_wait.parity<|.acquire.cta>.shared::cta.b64 {done}, [{bar}], {parity};",
        "=done:pred bar:shared parity:u32",                                                         "syncs", SM80),
    Row("mbarrier.test_wait<.acquire.cluster|.relaxed.cta|.relaxed.cluster>.shared::cta.b64 {done}, [{bar}], {state};",
        "=done:pred bar:shared state:b64",                                                          "syncs", SM90),
    Row("mbarrier.test_wait.parity<.acquire.cluster|.relaxed.cta|.relaxed.cluster>.shared::cta.b64 {done}, [{bar}], "
        "{parity};",
        "=done:pred bar:shared parity:u32",                                                         "syncs", SM90),
    Row("mbarrier.try_wait<|.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster>.shared::cta.b64<|#hint> "
        "{done}, [{bar}], {state}, {nanoseconds};",
        "=done:pred bar:shared state:b64 nanoseconds:u32?hint",                                     "syncs", SM90),
    Row("mbarrier.try_wait.parity<|.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster>.shared::cta.b64"
        "<|#hint> {done}, [{bar}], {parity}, {nanoseconds};",
        "=done:pred bar:shared parity:u32 nanoseconds:u32?hint",                                    "syncs", SM90),
    Row("mbarrier.pending_count.b64 {count}, {state};",                   "=count:u32 state:b64",   "pure",  SM80),

    # CTA barriers: 16 of them, the number of threads a multiple of 32. `bar` is `barrier` with .aligned.
    Row("bar.sync {id};",                                          "id:u32",              "syncs", SM80),
    Row("bar.sync<tag=#threads> {id}, {threads};",                 "id:u32 threads:u32",  "syncs", SM80),
    Row("bar.arrive {id}, {threads};",                             "id:u32 threads:u32",  "syncs", SM80),
    Row("bar.red.popc.u32<|#threads> {d}, {id}, {threads}, {p};",
        "=d:u32 id:u32 threads:u32?threads p:pred",                                       "syncs", SM80),
    Row("bar.red<.and|.or>.pred<|#threads> {d}, {id}, {threads}, {p};",
        "=d:pred id:u32 threads:u32?threads p:pred",                                      "syncs", SM80),
    Row("barrier.sync<|.aligned> {id};",                           "id:u32",              "syncs", SM80),
    Row("barrier.sync<|.aligned><tag=#threads> {id}, {threads};",  "id:u32 threads:u32",  "syncs", SM80),
    Row("barrier.arrive<|.aligned> {id}, {threads};",              "id:u32 threads:u32",  "syncs", SM80),
    Row("barrier.red.popc<|.aligned>.u32<|#threads> {d}, {id}, {threads}, {p};",
        "=d:u32 id:u32 threads:u32?threads p:pred",                                       "syncs", SM80),
    Row("barrier.red<.and|.or><|.aligned>.pred<|#threads> {d}, {id}, {threads}, {p};",
        "=d:pred id:u32 threads:u32?threads p:pred",                                      "syncs", SM80),
    Row("bar.warp.sync {membermask};",                             "membermask:b32",      "syncs", SM80),
    Row("barrier.cluster.arrive<|.release|.relaxed><|.aligned>;",  "",                    "syncs", SM90),
    Row("barrier.cluster.wait<|.acquire><|.aligned>;",             "",                    "syncs", SM90),

    # Fences.
    Row("membar<.cta|.gl|.sys>;",                                                      "",  "syncs", SM80),
    Row("fence<|.sc|.acq_rel><scope>;",                                                "",  "syncs", SM80),
    Row("fence<.acquire|.release><scope>;",                                            "",  "syncs", SM90),
    Row("fence.acquire.sync_restrict::shared::cluster.cluster;",                       "",  "syncs", SM90),
    Row("fence.release.sync_restrict::shared::cta.cluster;",                           "",  "syncs", SM90),
    Row("fence.mbarrier_init.release.cluster;",                                        "",  "syncs", SM90),
    Row("fence.proxy.alias;",                                                          "",  "syncs", SM80),
    Row("fence.proxy.async<|.global|.shared::cta|.shared::cluster>;",                  "",  "syncs", SM90),
    Row("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",  "",  "syncs", SM90),
    Row("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",      "",  "syncs", SM90),
    Row("fence.proxy.tensormap::generic.acquire<scope> [{map}], {size};",
        "map:generic size:imm(128)",                                                        "syncs", SM90),
    Row("fence.proxy.tensormap::generic.release<scope>;",                              "",  "syncs", SM90),

    # Scheduling.
    Row("griddepcontrol<.launch_dependents|.wait>;",        "",                      "syncs",    SM90),
    Row("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes<|.multicast::cluster::all>"
        ".b128 [{dst}], [{bar}];",
        "dst:shared/w bar:shared",                                                   "writes",   SM100),
    Row("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 {d}, {response};",
        "=d:pred response:b128",                                                     "pure",     SM100),
    Row("clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {d}, {response};",
        "=d:b32*4 response:b128",                                                    "pure",     SM100),
    Row("clusterlaunchcontrol.query_cancel<.get_first_ctaid::x|.get_first_ctaid::y|.get_first_ctaid::z>.b32.b128 {d}, "
        "{response};",
        "=d:b32 response:b128",                                                      "pure",     SM100),
    Row("setmaxnreg<.inc|.dec>.sync.aligned.u32 {count};",  "count:imm(24..256/8)",  "syncs",    ARCH),
    Row("nanosleep.u32 {nanoseconds};",                     "nanoseconds:u32",       "volatile", SM80),
    Row("trap;",                                            "",                      "volatile", SM80),
    Row("brkpt;",                                           "",                      "volatile", SM80),
)
