"""Drawings of layouts."""

from xml.etree import ElementTree

import pytest
from tilejit.errors import CompilationError
from tilejit.layout import S, Swizzle, axis, mma_fragment, row_major, standard_layout, tmem_datapath, wgmma_accumulator

NAMESPACE = "{http://www.w3.org/2000/svg}"


def cells(svg: str) -> list[tuple[str, str]]:
    """(label, colour) of each cell, row by row."""
    groups = ElementTree.fromstring(svg).findall(f"{NAMESPACE}g")
    drawn = [(g.find(f"{NAMESPACE}text"), g.find(f"{NAMESPACE}rect")) for g in groups]
    return [(text.text, rect.get("fill")) for text, rect in drawn if text is not None and rect is not None]


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


def test_a_layout_made_for_a_tile_draws_its_rows_and_columns():
    drawn = cells(standard_layout(16, (64, 64), 128)._repr_svg_())
    assert len(drawn) == 64 * 8 and drawn[0][0] == "0\u20137" and drawn[8][0] == "72\u201379"  # row 1, column 0: chunk 1
    assert "Swizzle(3, 3, 3) @ S[4096:1] of 64 x 64" in standard_layout(16, (64, 64), 128).draw()
    assert len(cells(mma_fragment("m16n8k16", "c", (16, 8))[0].draw())) == 16 * 8
    assert len(cells(wgmma_accumulator(64, 16)[0].draw())) == 64 * 16
    assert len(cells(tmem_datapath("F", 4).draw())) == 64 * 4


def test_the_tile_that_a_layout_is_made_for_takes_no_part_in_comparisons():
    plain = Swizzle(3, 3, 3) @ S[4096:1]
    made = standard_layout(16, (64, 64), 128)
    assert plain == made and hash(plain) == hash(made) and repr(plain) == repr(made)
    assert plain.made_for is None and made.with_swizzle(None).made_for is None


def places(svg: str) -> dict[str, tuple[int, int, int]]:
    """label -> (line, first bank, number of banks) of each cell of a bank map."""
    found, groups = {}, ElementTree.fromstring(svg).findall(f"{NAMESPACE}g")
    line = next(g for g in groups if g.find(f"{NAMESPACE}rect") is not None)  # the ground of the first line: all banks
    bank = float(line.find(f"{NAMESPACE}rect").get("width")) / 32
    for g in groups:
        text, rect = g.find(f"{NAMESPACE}text"), g.find(f"{NAMESPACE}rect")
        if text is not None and rect is not None:
            x, y, width = (float(rect.get(name)) for name in ("x", "y", "width"))
            found[text.text] = round(y - 40) // 20, round((x - 40) / bank), round(width / bank)
    return found


def test_a_bank_map_shows_which_elements_lie_in_each_bank():
    assert places(row_major((4, 32)).draw_banks(bits=32))["2,4\u20137"] == (2, 4, 4)
    swizzled = places(standard_layout(16, (16, 64), 128).draw_banks())
    assert [swizzled[f"{row},0\u20137"][1] for row in range(8)] == list(range(0, 32, 4))    # 8 rows, all banks
    straight = places(row_major((16, 64)).draw_banks(bits=16))
    assert {straight[f"{row},0\u20137"][1] for row in range(8)} == {0}                        # the same 4 banks


def test_a_bank_map_shows_padding_and_elements_that_share_a_bank():
    padded = places(S[(4, 32):(33, 1)].draw_banks(bits=32))
    assert padded["0,0"] == (0, 0, 1) and padded["1,0"] == (1, 1, 1) and padded["3,31"] == (4, 2, 1)
    assert places(S[(2, 6):(7, 1)].draw_banks(bits=16))["1,1\u20132"] == (0, 4, 1)           # row 1 begins in half a bank


def test_only_memory_with_a_known_width_has_a_bank_map():
    with pytest.raises(CompilationError, match="needs the width of an element"):
        row_major((4, 32)).draw_banks()
    with pytest.raises(CompilationError, match="only a layout of memory has banks"):
        S[4 : 1 @ axis.laneid].draw_banks(bits=32)
    with pytest.raises(CompilationError, match="width of an element in bits, found 'float16'"):
        row_major((4, 32)).draw(bits="float16")


@pytest.mark.parametrize("picture", [standard_layout(16, (8, 64), 128).draw(), row_major((4, 32)).draw_banks(bits=16),
                                     mma_fragment("m16n8k16", "a", (16, 16))[0].draw()])
def test_pictures_need_no_style_sheet_and_paint_their_background(picture):
    assert "hsl(" not in picture and "<style" not in picture
    first = ElementTree.fromstring(picture)[0]
    assert first.tag == f"{NAMESPACE}rect" and first.get("fill") == "#ffffff"
    assert all(e.get("fill", "#").startswith("#") for e in ElementTree.fromstring(picture).iter())
