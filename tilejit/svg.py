"""Parts of SVG pictures: colours, labels, pages.

Pictures are shown on light and dark pages and converted by tools that know little of CSS: so a page paints its own
background, colours are hexadecimal, and every property is an attribute, not a rule of a style sheet (which, in a
notebook, would hold for the other pictures of the page too).
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable

PAPER, INK, FAINT, EDGE = "#ffffff", "#1f2328", "#6e7781", "#ffffff"  # background, text, captions, borders of cells
CHARACTER = 6.1  # the width in pixels of a character of 10 px monospace


def escape(text: str) -> str:
    """Text as the content of an element or attribute."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def colour(hue: float, lightness: float, saturation: float = 0.7) -> str:
    """A colour as ``#rrggbb``: `hue` in degrees, the others from 0 to 1."""
    red, green, blue = colorsys.hls_to_rgb(hue % 360 / 360, lightness, saturation)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def label(x: float, y: float, text: str, anchor: str = "middle", fill: str = INK, size: int = 10) -> str:
    """A line of text at the baseline `y`."""
    return (f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">'
            f"{escape(text)}</text>")


def cell(x: float, y: float, width: float, height: float, fill: str, text: str = "", title: str = "") -> str:
    """A rectangle with a text in it and a title, which browsers show where the pointer is."""
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{EDGE}"/>']
    if text:
        parts.append(label(x + width / 2, y + height / 2 + 4, text))
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>" if title else f"<g>{''.join(parts)}</g>"


def page(parts: Iterable[str], width: float, height: float) -> str:
    """A picture of its own background."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" font-family="ui-monospace, Menlo, Consolas, monospace">'
            f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>{"".join(parts)}</svg>')
