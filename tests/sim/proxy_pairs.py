"""What orders two accesses to the same bytes, for every pair of proxies, of reads and writes, and for every memory: the
table of docs/internals/simulator.md. A cell is (first access, second access, memory), and belongs to the first of the RULES that
fits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

PROXIES, WAYS = ("generic", "async", "tensormap"), ("read", "write")
ACCESSES = tuple(f"{proxy} {way}" for proxy in PROXIES for way in WAYS)
MEMORIES = ("shared", "peer", "global", "tensor")
CELLS = tuple(product(ACCESSES, ACCESSES, MEMORIES))


@dataclass(frozen=True)
class Rule:
    """Cells with one answer. `first` and `second` are accesses, or words that the accesses begin or end with; `memory`
    lists memories. `tests` show the fault and the repaired twin on the simulator, `chip` on a GPU; they are named
    ``folder/module::function``."""

    first: str
    second: str
    memory: str
    order: str                    # what orders the first access before the second (PTX ISA, "Memory Consistency Model")
    made: str = ""                # the constructs of the compiler that contain it
    finding: str = ""             # names its absence behind barriers of the kernel's own
    tests: tuple[str, ...] = ()
    chip: tuple[str, ...] = ()

    def fits(self, first: str, second: str, memory: str) -> bool:
        return memory in self.memory.split() and _among(first, self.first) and _among(second, self.second)

    @property
    def occurs(self) -> bool:
        return not self.order.startswith("cannot occur")


def _among(access: str, words: str) -> bool:
    return any(w == "any" or w == access or w in access.split() for w in words.split(", "))


ANYWHERE = "shared peer global tensor"
FENCE = ("`fence_proxy_async()` in each thread of the first access after it, then the barrier or arrival that hands the "
         "bytes over")

RULES = (
    # -- what cannot occur, and what needs no order ------------------------------------------------------------------
    Rule("tensormap write", "any", ANYWHERE,
         "cannot occur, because no instruction writes through the tensormap proxy: `tensormap.replace` and stores "
         "write a map through the generic one"),
    Rule("any", "tensormap write", ANYWHERE,
         "cannot occur, as above"),
    Rule("tensormap", "any", "shared peer tensor",
         "cannot occur, because TMA reads maps in global, constant and parameter memory only: a map edited in "
         "shared memory is published to global memory"),
    Rule("any", "tensormap", "shared peer tensor",
         "cannot occur, as above"),
    Rule("read", "read", ANYWHERE,
         "nothing: reads need no order",
         finding="none",
         tests=("sim/test_refills::test_reads_need_no_order",)),

    # -- shared memory of the CTA ------------------------------------------------------------------------------------
    Rule("generic", "generic", "shared",
         "a barrier, or an arrival and its wait; for `cp.async`, `st.async` and `red.async`, which are in the "
         "generic proxy too, also the wait for them",
         made="reductions, scans, changes of layout; `cp.async` in pipelined loops; staged operands of `mma_sync`; "
              "rings filled by stores",
         finding="`race`, `missing-wait`",
         tests=("sim/test_shared_races::test_a_read_of_another_thread_s_write_needs_a_barrier",
                "sim/test_shared_races::test_a_buffer_may_be_overwritten_only_after_a_second_barrier",
                "sim/test_async_copies::test_cp_async_needs_a_wait_and_then_a_barrier")),
    Rule("generic read", "async write", "shared",
         FENCE,
         made="pipelined loops with and without roles, rings, tokens: slots that threads read by loads, `ldmatrix`, "
              "atomics or `mma_sync`",
         finding="`missing-proxy-fence`",
         tests=("sim/test_refills::test_a_barrier_of_the_cta_does_not_order_loads_before_a_refill",
                "sim/test_refills::test_an_mbarrier_does_not_order_loads_before_a_refill",
                "sim/test_refills::test_turns_and_named_barriers_do_not_order_loads_before_a_refill",
                "sim/test_refills::test_every_ordinary_access_needs_a_fence_before_a_refill",
                "copy/test_slot_fences::test_a_role_that_reads_slots_executes_the_fence_between_its_reads_and_the_release"),
         chip=("copy/test_slot_fences_gpu::test_no_launch_reads_a_slot_s_next_content",)),
    Rule("generic write", "async read", "shared",
         FENCE,
         made="operands that `dot` stages for wgmma and tcgen05; rings filled by stores or `cp.async`; results "
              "stored by TMA",
         finding="`missing-proxy-fence`",
         tests=("sim/test_async_copies::test_a_tensor_store_needs_a_fence_a_barrier_and_a_wait",
                "sim/test_async_copies::test_tensor_core_operands_in_shared_memory_need_a_fence_and_stay_in_use_until_the_wait",
                "tmem/test_copies::test_missing_synchronisation_around_a_copy_is_found")),
    Rule("generic write", "async write", "shared",
         FENCE,
         made="slots that one loop fills by `cp.async` and the next by TMA",
         finding="`missing-proxy-fence`",
         tests=("sim/test_refills::test_every_ordinary_access_needs_a_fence_before_a_refill",
                "sim/test_refills::test_asynchronous_writes_of_the_generic_proxy_need_a_fence_before_a_refill",
                "sim/test_refills::test_an_atomic_does_not_hide_that_of_another_warp")),
    Rule("async read", "generic write", "shared",
         "the wait for the reader (`bulk_wait(read=True)`, `mma_wait`, a commit's mbarrier), then a barrier; no "
         "fence",
         made="rings, staged operands, results stored by TMA",
         finding="`missing-wait`",
         tests=("sim/test_async_copies::test_the_source_of_a_store_may_be_reused_after_the_read_side_wait",
                "sim/test_refills::test_a_wait_alone_orders_what_the_async_proxy_did_before_ordinary_accesses")),
    Rule("async write", "generic", "shared",
         "the wait on the mbarrier of the copy, in the accessing thread or before a barrier with it; no fence",
         made="pipelined loops, rings, tokens",
         finding="`missing-wait`",
         tests=("sim/test_async_copies::test_a_tensor_load_is_complete_after_a_wait_on_its_barrier",
                "sim/test_refills::test_a_wait_alone_orders_what_the_async_proxy_did_before_ordinary_accesses")),
    Rule("async", "async", "shared",
         "the wait for the first, and a barrier or arrival if another thread issues the second; no fence",
         made="pipelined loops and rings whose slots tensor cores read; results stored by TMA",
         finding="`missing-wait`",
         tests=("sim/test_refills::test_copies_of_one_slot_need_the_wait_for_the_first_and_no_fence",
                "sim/test_refills::test_reads_of_the_async_proxy_need_no_fence_and_hide_no_load")),

    # -- shared memory of a peer -------------------------------------------------------------------------------------
    Rule("generic", "generic", "peer",
         "the cluster's barrier, or an arrival at a peer's mbarrier and its wait; for `st.async` and `red.async` "
         "the wait for them",
         made="none: only the kernel's own instructions access a peer's memory so",
         finding="`race`, `missing-wait`",
         tests=("sim/test_clusters::test_a_peer_s_shared_memory_may_be_read_after_the_cluster_barrier",
                "sim/test_clusters::test_asynchronous_reductions_into_a_peer_s_memory_need_a_wait_as_copies_do"),
         chip=("copy/test_remote_gpu::test_ptx_instructions_read_write_and_reduce_into_a_peer_s_shared_memory_on_the_gpu",)),
    Rule("generic read", "async write", "peer",
         FENCE + " (to another CTA); after accesses to a peer's memory the fence is "
                 "`tile.ptx.fence.proxy.async_.shared_cluster()`, or the one of all memory: that of `shared::cta` is restricted "
                 "to the CTA's own",
         made="rings and tokens with multicasts, rings filled by a peer",
         finding="`missing-proxy-fence`",
         tests=("sim/test_refills::test_every_cta_of_a_multicast_needs_the_fence",
                "sim/test_refills::test_a_copy_or_reduction_from_a_peer_may_overtake_the_reads_before_a_remote_arrival",
                "sim/test_refills::test_loads_of_a_peer_s_memory_need_the_fence_before_its_owner_fills_it",
                "sim/test_refills::test_a_fence_of_the_cta_s_own_memory_does_not_order_accesses_to_a_peer_s",
                "copy/test_slot_fences::test_a_slot_that_several_ctas_fill_is_fenced_before_it_is_released_to_all_of_them")),
    Rule("generic write", "async", "peer",
         "as the row above; for what `st.async` brought, in the receiving CTA after its wait",
         made="none",
         finding="`missing-proxy-fence`",
         tests=("sim/test_clusters::test_the_async_proxy_may_read_what_st_async_wrote_after_the_wait_and_a_fence",
                "sim/test_refills::test_asynchronous_writes_of_the_generic_proxy_need_a_fence_before_a_refill")),
    Rule("async read", "write", "peer",
         "the wait for the reader, a tcgen05.mma of a CTA pair, on the mbarrier of its commit, which is multicast "
         "to the pair",
         made="rings of products of CTA pairs",
         finding="`missing-wait`",
         tests=("tmem/test_product_by_hand::test_a_cta_pair_shares_its_operands",)),
    Rule("async write", "any", "peer",
         "the wait on the mbarrier of the receiving CTA; before the next write an arrival at the sender's mbarrier",
         made="rings and tokens with multicasts",
         finding="`missing-wait`, `race`",
         tests=("sim/test_clusters::test_a_bulk_copy_to_a_peer_signals_the_peer_s_barrier",
                "sim/test_clusters::test_a_multicast_slot_may_be_refilled_only_after_every_cta_has_released_it"),
         chip=("copy/test_tma_forms_gpu::test_a_multicast_ring_advances_in_all_ctas_of_a_cluster_together_on_the_gpu",)),

    # -- global memory -----------------------------------------------------------------------------------------------
    Rule("generic", "generic", "global",
         "a barrier within a CTA; between CTAs a release and an acquire by atomics or fences",
         made="shared rounds of persistent products",
         finding="`race`, `missing-wait`",
         tests=("sim/test_global_thread_races::test_a_thread_that_reads_another_thread_s_write_needs_a_barrier",
                "sim/test_global_races::test_ctas_that_access_the_same_element_without_atomics_race",
                "sim/test_load_sources::test_the_source_of_a_cp_async_is_not_overwritten_before_its_wait",
                "sim/test_random_order::test_a_race_is_found_exactly_where_single_threads_have_one"),
         chip=("sim/test_grid_order::test_the_right_kernels_give_on_the_gpu_what_the_simulator_says",)),
    Rule("generic write", "async", "global",
         'the barrier, or between CTAs the release and acquire, with `fence_proxy_async(space="global")` in the '
         "writing threads or in the thread that issues the copy; if another CTA wrote, in the CTA of the copy, "
         "after the acquire",
         made="tokens; pipelined loops without roles (with roles, a store before the loop to what it loads is refused)",
         finding="`missing-proxy-fence`",
         tests=("sim/test_global_proxy_fences::test_a_copy_reads_what_threads_of_its_cta_stored_after_a_proxy_fence_of_global_memory",
                "sim/test_global_proxy_fences::test_a_copy_overwrites_what_threads_stored_after_a_proxy_fence_of_global_memory",
                "sim/test_global_proxy_fences::test_a_copy_of_what_another_cta_wrote_needs_a_proxy_fence_in_its_own_cta",
                "sim/test_global_proxy_fences::test_pipelined_loops_and_tokens_contain_the_proxy_fence_of_arrays_that_the_kernel_stores",
                "sim/test_global_proxy_fences::test_a_producer_does_not_run_ahead_of_stores_to_what_it_loads")),
    Rule("generic read", "async write", "global",
         '`fence_proxy_async(space="global")` in each thread that has loaded, after its load, then the barrier, or between '
         "CTAs the release and acquire; a fence in the thread that issues the copy does not wait for the loads of others. "
         "What `cp.async` has read needs its wait instead",
         made="tokens; results stored by TMA over an operand of their epilogue, by the fence of their staging buffer",
         finding="`missing-proxy-fence`",
         tests=("sim/test_loaded_then_overwritten::test_a_copy_overwrites_what_threads_loaded_after_a_proxy_fence_in_their_own_threads",
                "sim/test_loaded_then_overwritten::test_every_warp_that_loads_needs_the_fence_before_its_arrival",
                "sim/test_loaded_then_overwritten::test_a_copy_of_another_cta_of_the_cluster_needs_the_fence_in_the_loading_threads",
                "sim/test_loaded_then_overwritten::test_a_copy_of_another_cta_needs_the_fence_in_the_threads_that_have_loaded",
                "sim/test_loaded_then_overwritten::test_kernels_that_work_in_place_with_the_fence_of_their_staging_buffer_have_no_finding",
                "sim/test_loaded_then_overwritten::test_tokens_contain_the_fence_after_loads_of_what_their_copy_overwrites")),
    Rule("async write", "generic, async", "global",
         "`bulk_wait(0)`, without `read=True`, in the issuing thread, then the barrier or release",
         made="tokens of stores",
         finding="`missing-wait`, `race`",
         tests=("sim/test_global_async::test_the_read_side_wait_does_not_complete_what_a_copy_writes",
                "sim/test_global_async::test_a_destination_is_not_overwritten_before_the_copy_is_over",
                "sim/test_global_async::test_a_copy_may_load_what_a_copy_of_the_same_cta_stored_once_that_is_over",
                "sim/test_global_async::test_stores_of_two_warps_to_one_place_race")),
    Rule("async read", "write", "global",
         "the wait on the mbarrier of the load",
         made="tokens",
         finding="`missing-wait`",
         tests=("sim/test_load_sources::test_the_source_of_a_load_is_not_overwritten_before_its_wait",
                "sim/test_load_sources::test_a_copy_does_not_overwrite_the_source_of_a_load_before_its_wait")),
    Rule("generic write", "tensormap read", "global",
         "`fence_release` in the editing thread and `fence_acquire` in the copying CTA, both wide enough, and the "
         "barrier, flag or launch between them; `publish` contains the release",
         made="`publish`",
         finding="`missing-proxy-fence`",
         tests=("copy/test_named_maps::test_an_unfenced_or_wrong_use_is_a_finding",
                "copy/test_map_fences::test_another_cta_of_the_cluster_needs_cluster_scope_or_wider",
                "copy/test_map_fences::test_the_next_kernel_must_acquire_too"),
         chip=("copy/test_named_maps_gpu::test_a_flag_publishes_a_map_to_the_grid_on_the_gpu",)),
    Rule("tensormap read", "generic write", "global",
         "the wait for the copy that reads the map, then a barrier",
         made="none",
         finding="`missing-wait`",
         tests=("copy/test_named_maps::test_an_unfenced_or_wrong_use_is_a_finding",)),
    Rule("async write", "tensormap read", "global",
         "the same as for a generic write, after `bulk_wait(0)`; the simulator has no bytes of maps, so that it "
         "takes what a copy wrote for no map",
         made="none",
         finding="`descriptor`",
         tests=("copy/test_map_fences::test_a_map_overwritten_between_two_kernels_is_invalid",)),
    Rule("tensormap read", "async write", "global",
         "the wait for the copy that reads the map",
         made="none",
         finding="`descriptor`, at the next use of the map",
         tests=("copy/test_map_fences::test_a_map_overwritten_between_two_kernels_is_invalid",)),

    # -- tensor memory -----------------------------------------------------------------------------------------------
    Rule("generic", "generic", "tensor",
         "`tcgen05_wait`, and between threads `tcgen05_fence` on both sides of the barrier. Tensor memory has no "
         "proxies: here, generic accesses are tcgen05.ld and tcgen05.st, asynchronous ones tcgen05.mma and "
         "tcgen05.cp",
         made="moves of results, `tmem` copies",
         finding="`missing-wait`, `tmem`",
         tests=("tmem/test_moves::test_missing_waits_for_moves_are_found",
                "tmem/test_moves::test_threads_that_synchronise_their_tensor_memory_accesses_need_both_fences")),
    Rule("generic", "async", "tensor",
         "the same",
         made="accumulators that are set or scaled by threads",
         finding="`tmem`, `missing-wait`",
         tests=("tmem/test_products::test_missing_synchronisation_around_a_product_is_found",)),
    Rule("async", "generic", "tensor",
         "`tcgen05_commit`, the wait on its mbarrier, and the fence after the wait",
         made="`dot`, rings of products",
         finding="`missing-wait`, `tmem`",
         tests=("sim/test_tensor_memory::test_an_accumulator_may_be_read_after_waiting_for_the_commit",
                "tmem/test_products::test_missing_synchronisation_around_a_product_is_found")),
    Rule("async", "async", "tensor",
         "the issue order of one thread; otherwise as for generic accesses after asynchronous ones",
         made="`dot`",
         finding="`tmem`",
         tests=("tmem/test_products::test_accumulators_that_overwrite_the_product_s_own_operand_are_found",
                "tmem/test_copies::test_missing_synchronisation_around_a_copy_is_found")),
)


def rule_of(first: str, second: str, memory: str) -> Rule | None:
    """The rule of a cell; None if there is none."""
    return next((r for r in RULES if r.fits(first, second, memory)), None)


NAMES = {"shared": "shared", "peer": "a peer's shared", "global": "global", "tensor": "tensor memory"}


def _memory(rule: Rule) -> str:
    return "every memory" if rule.memory == ANYWHERE else ", ".join(NAMES[m] for m in rule.memory.split())


def rows() -> list[tuple[str, ...]]:
    """The rows of the table: number, first access, second access, memory, order, constructs, finding."""
    return [(str(n), r.first, r.second, _memory(r), r.order, r.made or "none", r.finding or "none")
            for n, r in enumerate(RULES, 1)]


def shown() -> list[tuple[str, str]]:
    """The tests of each row: (number, names)."""
    return [(str(n), ", ".join(f"`{t}`" for t in (*r.tests, *r.chip)))
            for n, r in enumerate(RULES, 1) if r.tests or r.chip]
