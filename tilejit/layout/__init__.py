"""Layouts: where each element of a tile is, in memory, in tensor memory or in registers."""

from .algebra import S, TileLayout, row_major, strided
from .auto import Auto, auto
from .axes import Axis, OnAxis, R, Replicas, axis
from .fragments import (
    blocked_layout,
    collapse,
    drop_dim,
    exchange_registers,
    insert_dim,
    mma_fragment,
    owner_table,
    reg_count,
    row_lanes,
    row_numbers,
    tcgen05_registers,
    thread_table,
    tmem_datapath,
    wgmma_a_registers,
    wgmma_accumulator,
)
from .registers import dimension_shards, register_table
from .standard import standard_layout
from .swizzle import Swizzle

__all__ = [
    "Auto", "Axis", "OnAxis", "R", "Replicas", "S", "Swizzle", "TileLayout", "auto", "axis", "blocked_layout",
    "collapse", "dimension_shards", "drop_dim", "exchange_registers", "insert_dim", "mma_fragment", "owner_table",
    "reg_count", "register_table", "row_lanes", "row_major", "row_numbers", "standard_layout", "strided",
    "tcgen05_registers", "thread_table", "tmem_datapath", "wgmma_a_registers", "wgmma_accumulator"]
