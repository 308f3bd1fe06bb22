"""``tile.autotune``: chooses among a kernel's configurations by timing them, once for each kind of call.

    @tile.autotune(dict(BLOCK=tile.choice(512, 1024, 2048), num_warps=tile.choice(4, 8)), key=("n",),
                   where=lambda BLOCK, num_warps: BLOCK >= 128 * num_warps)
    @tile.jit
    def add(x, y, out, n, BLOCK: tile.constexpr): ...

    add[lambda meta: (tile.cdiv(meta["n"], meta["BLOCK"]),)](x, y, out, n)
    print(add.report())
"""

from .reporting import TunedCall, TuningReport
from .space import Choices, choice
from .trials import Resources, Trial
from .tuned import Tuned, autotune

__all__ = ["Choices", "Resources", "Trial", "Tuned", "TunedCall", "TuningReport", "autotune", "choice"]
