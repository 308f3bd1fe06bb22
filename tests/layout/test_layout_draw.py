"""Drawings of layouts."""

from xml.etree import ElementTree

import pytest
from tilejit.layout import S, axis, mma_fragment, row_major, standard_layout, tmem_datapath

NAMESPACE = "{http://www.w3.org/2000/svg}"


def cells(svg: str) -> list[tuple[str, str]]:
    """(label, colour) of each cell, row by row."""
    root = ElementTree.fromstring(svg)
    labels = [e.text for e in root.findall(f"{NAMESPACE}text")][1:]
    return list(zip(labels, [e.get("fill") for e in root.findall(f"{NAMESPACE}rect")], strict=True))


def test_a_memory_layout_shows_its_offsets():
    assert [label for label, _ in cells(S[(2, 3):(1, 2)].draw())] == ["0", "2", "4", "1", "3", "5"]
    assert [label for label, _ in cells(S[4:2]._repr_svg_())] == ["0", "2", "4", "6"]


def test_with_an_element_width_colours_show_banks():
    drawn = cells(standard_layout(32, (8, 32), 128).draw((8, 32), bits=32))
    rows = [[colour for _, colour in drawn[32 * i:32 * i + 32]] for i in range(8)]
    assert all(len(set(row)) == 32 for row in rows)                    # a row reaches every bank
    assert len({row[0] for row in rows}) == 8                          # a column spreads over banks


def test_a_register_layout_shows_threads_and_registers():
    layout, domain = mma_fragment("m16n8k16", "c", (16, 8))
    drawn = cells(layout.draw(domain))
    assert drawn[0][0] == "T0 r0" and drawn[1][0] == "T0 r1" and drawn[9 * 8 + 2][0] == "T5 r2"
    assert drawn[0][1] == drawn[1][1] != drawn[2][1]


def test_tensor_memory_shows_lanes_and_columns():
    assert cells(tmem_datapath("G", 8).draw((32, 8)))[2][0] == "32, 0"


def test_large_and_multidimensional_tiles_are_flattened_and_truncated_with_a_note():
    assert len(cells(row_major((2, 3, 4)).draw())) == 24
    svg = row_major((100, 300)).draw()
    assert len(cells(svg)) == 64 * 64 and "the first 64 x 64 of 100 x 300" in svg


@pytest.mark.parametrize("layout", [S[()], S[1:1], S[4 : 0 @ axis.reg]])
def test_degenerate_layouts_can_be_drawn(layout):
    assert cells(layout.draw())
