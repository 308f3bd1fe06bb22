"""The tests that ``pytest -m quick`` runs: a few of every folder of the package and of the docs, in a minute.

`tests/conftest.py` gives them the marker, and with exactly ``-m quick`` imports no other test files. A new folder of
`tilejit/` needs an entry (`tests/test_quick_tier.py`); files that take more than two or three seconds have none.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent

# Folders of tilejit/ ("." has its files): files of tests/, single tests, or cases of them.
QUICK = {
    ".": (
        "copy/test_copy_options.py", "runtime/test_bench.py",
        "language/test_constants.py::test_a_frozen_dataclass_can_be_a_constant", "cache/test_cache_keys.py",
        "test_quick_tier.py", "test_chosen_cases.py", "mutants/test_compiler_mutants.py",
    ),
    "cli": (
        "test_command_line.py::test_cache_lists_each_compiled_kernel_with_its_target_size_age_and_arguments",
        "test_command_line.py::test_version_is_that_of_the_package",
    ),
    "export": (
        "runtime/test_export.py::test_a_constant_comes_back_from_json",
        "runtime/test_export.py::test_equal_exports_give_equal_files",
    ),
    "frontend": (
        "frontend/test_branches.py", "frontend/test_cells.py", "frontend/test_leaving_loops.py",
        "frontend/test_loops.py", "frontend/test_prune.py", "frontend/test_scopes.py", "frontend/test_source.py",
        "frontend/test_unrolled_loops.py",
    ),
    "interop": ("runtime/test_operator_results.py",),
    "ir": ("ir/test_check.py", "golden/test_graph_text.py::test_a_kernel_lowers_to_its_golden_graph"),
    "layout": (
        "layout/test_layout_algebra.py", "layout/test_layout_draw.py", "layout/test_layout_fragments.py",
        "layout/test_layout_reference.py",
    ),
    "ops/language": ("language/test_stack.py", "language/test_weak_numbers.py", "language/test_counterparts.py"),
    "ops/memory": ("ops/test_atomics.py", "ops/test_bounds.py"),
    "ops/mma": ("mma/test_descriptor.py", "mma/test_multicast.py"),
    "ops/moves": ("copy/test_copy_kernels.py", "copy/test_streaming_copies.py"),
    "ops/moves/copy_async": ("copy/test_cluster_shapes.py", "copy/test_hints.py"),
    "ops/moves/copy_async/tma": (
        "copy/test_program_tma.py", "copy/test_tensor_copy_plans.py", "copy/test_map_refusals.py",
    ),
    "ops/order": (
        "ops/test_sort.py::test_invalid_operands_of_a_sort_are_refused",
        "ops/test_sort.py::test_methods_and_tiles_without_elements_sort_too",
    ),
    "ops/ptx": ("language/test_escape.py",),
    "ops/ptx/meanings": ("ptx/test_ptx_meanings.py",),
    "ops/reduce": ("ops/test_reduce_combine.py", "ops/test_reduce_plan.py"),
    "ops/structure": ("language/test_buffer_views.py", "mma/test_ring_slots.py"),
    "ops/sync": ("language/test_named_barriers.py",),
    "ops/tiles": ("ops/test_layout_change.py", "ops/test_shape_layouts.py"),
    "ops/tmem": ("tmem/test_product_by_hand.py",),
    "passes/analysis": ("language/test_assume.py",),
    "passes/checks": ("ops/test_bounds.py",),
    "passes/layouts": ("language/test_places.py",),
    "passes/pipelining": ("copy/test_map_fences.py", "mma/test_bulk_store_waits.py"),
    "passes/placement": ("tmem/test_tensor_views.py",),
    "passes/products": ("mma/test_pinned_registers.py",),
    "emit": ("ops/test_words.py",),
    "ptx": ("ptx/test_ptx_catalogue.py",),
    "ptx/table": ("ptx/test_ptx_catalogue.py",),
    "testing": ("runtime/test_tolerances.py",),
    "tuning": ("runtime/test_autotune.py", "runtime/test_tuning.py"),
    "toolchain": (
        "toolchain/test_assembler.py", "toolchain/test_files.py", "toolchain/test_host_code.py",
        "toolchain/test_packages.py",
    ),
    "runtime": (
        "runtime/test_device_array.py", "runtime/test_facts.py", "runtime/test_launcher.py",
        "runtime/test_packed_arrays.py", "runtime/test_recipe.py", "runtime/test_tensormap.py",
    ),
    "sim": (
        "sim/test_causes.py", "sim/test_control_flow.py", "sim/test_load_modes.py", "sim/test_proxy_pairs.py",
        "sim/test_regions_out_of_bounds.py", "sim/test_registers.py", "sim/test_shadow.py",
        "sim/test_shared_races.py", "sim/test_tensor_copies.py", "sim/test_tensor_memory.py",
    ),
    "kernels": ("mma/test_multicast.py",),
    "kernels/attention/backward": ("mma/test_attention_backward.py::test_no_rows_and_no_keys_are_right",),
    "kernels/attention": ("mma/test_attention_call.py::test_no_rows_and_no_keys_are_right",),
    "kernels/grouped": (
        "mma/test_grouped.py::test_memory_between_the_elements_of_a_result_is_unchanged",
        "mma/test_grouped.py::test_the_chosen_tile_depends_on_the_groups",
    ),
    "kernels/matmul": ("mma/test_multicast.py",),
    "kernels/matmul/blackwell": (
        "mma/test_matmul_blackwell.py::test_the_chosen_tile_depends_on_the_waves",
        "mma/test_matmul_blackwell.py::test_prefetched_epilogue_tiles_work_and_block_scales_are_hopper_s",
    ),
    "kernels/matmul/hopper": ("mma/test_multicast.py",),
    "docs": (
        "docs/test_docs.py::test_every_example_of_a_page_runs_and_prints_the_output_shown_below_it[README.md]",
        "docs/test_docs.py::test_every_example_of_a_page_runs_and_prints_the_output_shown_below_it[simulator.md]",
        "docs/test_docs.py::test_every_link_of_a_page_has_a_target",
        "docs/test_docs.py::test_every_launch_option_is_documented_on_the_page_of_launch_options",
    ),
}
NAMED = frozenset(name for names in QUICK.values() for name in names)
FILES = frozenset(TESTS / name.partition("::")[0] for name in NAMED)


def is_quick(file: Path, test: str) -> bool:
    """Whether a test of a file, by its id without the file, is quick: the file, the test or this case is named."""
    if file not in FILES:
        return False
    name = file.relative_to(TESTS).as_posix()
    return not NAMED.isdisjoint((name, f"{name}::{test}", f"{name}::{test.partition('[')[0]}"))
