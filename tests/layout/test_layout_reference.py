"""The algebra compared with reference data: standard shared layouts, swizzles, and results of operations."""

import json
from pathlib import Path

import numpy as np
import pytest
from tilejit.errors import CompilationError
from tilejit.layout import Swizzle, TileLayout, standard_layout

DATA = json.loads((Path(__file__).parent / "data" / "reference_layouts.json").read_text())


def layout_of(entry) -> TileLayout:
    swizzle = Swizzle(*entry["swizzle"]) if "swizzle" in entry else None
    return TileLayout([tuple(s) for s in entry["shards"]], offset=entry.get("offset"), swizzle=swizzle)


def region(args):
    return tuple(tuple(r) for r in args["region"])


OPERATIONS = {
    "canonicalize": lambda layout, args: layout.canonicalize(),
    "group": lambda layout, args: layout.group(args["shape"]),
    "group_many": lambda layout, args: layout.group_many(args["shapes"]),
    "slice": lambda layout, args: layout.slice(args["shape"], region(args)),
    "tile_to": lambda layout, args: layout.tile_to(args["to"], args["current"]),
    "tile": lambda layout, args: layout.tile(layout_of(args["outer"]), args["outer_shape"], args["inner_shape"]),
    "direct_sum": lambda layout, args: layout.direct_sum(layout_of(args["left"]), args["left_shape"],
                                                         args["right_shape"]),
    "permute_dims": lambda layout, args: layout.permute(args["perm"]),
    "unpack": lambda layout, args: layout.unpack(args["n"]),
    "broadcast": lambda layout, args: layout.broadcast(args["n"], args["position"]),
}


@pytest.mark.parametrize("case", DATA["standard"], ids=lambda c: f"{c['bits']}bit-{c['mode_bytes']}B-{c['shape']}")
def test_standard_shared_layouts_match_the_reference(case):
    layout = standard_layout(case["bits"], case["shape"], case["mode_bytes"])
    assert layout == layout_of(case["layout"])
    for coord, offset in case["samples"]:
        assert layout.offset_of(*coord, shape=case["shape"]) == offset
        assert layout.apply(*coord, shape=case["shape"]) == {"m": offset}
    columns = np.array([coord for coord, _ in case["samples"]]).T
    assert list(layout.offset_of(*columns, shape=case["shape"])) == [offset for _, offset in case["samples"]]


@pytest.mark.parametrize("case", DATA["swizzles"], ids=lambda c: str(c["swizzle"]))
def test_swizzles_match_the_reference_and_are_their_own_inverse(case):
    swizzle = Swizzle(*case["swizzle"])
    for address, swizzled in case["samples"]:
        assert swizzle.apply(address) == swizzled
        assert swizzle.apply(swizzled) == address


@pytest.mark.parametrize("case", DATA["maps"], ids=lambda c: c["name"])
def test_layouts_map_coordinates_as_in_the_reference(case):
    layout = layout_of(case["layout"])
    for coord, expected in case["samples"]:
        assert layout.apply(*coord, shape=case["shape"]) == expected


@pytest.mark.parametrize("case", DATA["algebra"], ids=lambda c: f"{c['op']}-{c['args']}"[:60])
def test_operations_give_the_results_of_the_reference(case):
    layout, expected = layout_of(case["input"]), case["result"]
    operation = OPERATIONS[case["op"]]
    if expected == "refused":
        with pytest.raises(CompilationError):
            operation(layout, case["args"])
    elif expected is None:
        assert operation(layout, case["args"]) is None
    elif "separators" in expected:
        result, separators = operation(layout, case["args"])
        assert result == layout_of(expected["layout"])
        assert json.loads(json.dumps(separators)) == expected["separators"]
    else:
        assert operation(layout, case["args"]) == layout_of(expected)


@pytest.mark.parametrize("case", DATA["size_span"])
def test_size_and_span_match_the_reference(case):
    layout = layout_of(case["layout"])
    assert layout.size() == case["size"]
    assert {name: layout.span(name) for name in case["span"]} == case["span"]
