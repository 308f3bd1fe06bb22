"""Ops on register tiles: elementwise, casts, division, slicing, changes of layout."""
