"""The instruction table: every row, in sections."""

from . import arithmetic, barriers, copies, matrices, memory, tcgen05, warps

SECTIONS = tuple((part.TITLE, part.ROWS) for part in (copies, barriers, tcgen05, matrices, memory, warps, arithmetic))
