"""Copies by TMA: tensor maps, the boxes of a copy, rows and patches that an index selects."""
