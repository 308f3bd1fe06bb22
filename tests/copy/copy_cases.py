"""Reference plans, converted to specs for the tests of copies."""

from __future__ import annotations

import json
from pathlib import Path

from tilejit.layout import Swizzle, TileLayout
from tilejit.plan import BufferSpec, plan_copy

DATA = Path(__file__).parent / "data"


def cases(name: str) -> list[dict]:
    return json.loads((DATA / f"{name}_cases.json").read_text())


def layout_of(side: dict) -> TileLayout:
    swizzle = Swizzle(*side["swizzle"]) if side["swizzle"] else None
    return TileLayout([tuple(s) for s in side["shards"]], offset={"m": side["offset"]}, swizzle=swizzle)


def specs(case: dict) -> tuple[BufferSpec, BufferSpec]:
    """The specs of the array and the shared buffer of a reference case."""
    a_start, a_extent, s_start, s_extent = case["region"]
    box = lambda start, extent: tuple(slice(s, s + n) for s, n in zip(start, extent))
    return (BufferSpec(tuple(case["array"]["shape"]), case["dtype"], "global", layout=layout_of(case["array"]), region=box(a_start, a_extent)),
            BufferSpec(tuple(case["shared"]["shape"]), case["dtype"], "shared", layout=layout_of(case["shared"]), region=box(s_start, s_extent)))


def planned(case: dict) -> tuple:
    """Both sides of a tma reference case, and a function that plans it."""
    array, shared = specs(case)
    dst, src = (shared, array) if case["direction"] == "g2s" else (array, shared)
    fill = {"zero": 0, None: 0}.get(case["fill"], case["fill"])
    return dst, src, lambda: plan_copy(dst, src, target=case["target"], variant="tma", fill=fill, **case.get("options", {}))
