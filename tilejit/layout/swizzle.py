"""Swizzles: an XOR of address bits that spreads the rows of a shared tile over the memory banks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import CompilationError
from .axes import as_whole_number

if TYPE_CHECKING:
    from .algebra import TileLayout


@dataclass(frozen=True)
class Swizzle:
    """A permutation of addresses: `swizzle_len` bits of the address are XORed into lower ones.

    With M = `per_element`, B = `swizzle_len` and S = `atom_len`, an address a (in elements) becomes
    ``a ^ ((a >> S) & ((2**B - 1) << M))``: chunks of 2**M elements stay together and are permuted within
    blocks of 2**(M + B). With ``inner=False``, the low bits are XORed into the high ones instead, which no
    copy or tensor core hardware does. In the modes that TMA and the tensor cores support, 2**M elements are
    16 bytes, S is 3, and B is 1, 2 or 3 for 32, 64 or 128 bytes. A swizzle is its own inverse.
    """

    per_element: int
    swizzle_len: int
    atom_len: int
    inner: bool = True

    def __post_init__(self) -> None:
        for name in ("per_element", "swizzle_len", "atom_len"):
            value = as_whole_number(getattr(self, name))
            if not isinstance(value, int) or value < 0:
                raise CompilationError(f"{name} of a swizzle counts address bits, found {getattr(self, name)!r}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "inner", bool(self.inner))
        if self.atom_len < self.swizzle_len:
            raise CompilationError(
                f"a swizzle of {self.swizzle_len} bits needs them at least {self.swizzle_len} bits apart, "
                f"found atom_len={self.atom_len}")

    def apply(self, address: Any) -> Any:
        """The swizzled address of element `address`, an int, a NumPy array or an emitted value."""
        if not self.swizzle_len:
            return address
        chunk_bits = ((1 << self.swizzle_len) - 1) << self.per_element
        if self.inner:
            return address ^ ((address >> self.atom_len) & chunk_bits)
        return address ^ ((address & chunk_bits) << self.atom_len)

    @property
    def chunk(self) -> int:
        """The number of elements that stay together."""
        return 1 << self.per_element

    @property
    def block(self) -> int:
        """The number of elements in the smallest aligned block that the permutation maps to itself."""
        return 1 << (self.per_element + self.swizzle_len) if self.inner else self.period

    @property
    def period(self) -> int:
        """The number of elements after which the pattern repeats."""
        return 1 << (self.per_element + self.swizzle_len + self.atom_len)

    def __matmul__(self, layout: TileLayout) -> TileLayout:
        """``Swizzle(3, 3, 3) @ S[...]``: the layout with this swizzle on its memory offsets."""
        if not hasattr(layout, "with_swizzle"):
            return NotImplemented
        return layout.with_swizzle(self)

    def __repr__(self) -> str:
        flipped = "" if self.inner else ", inner=False"
        return f"Swizzle({self.per_element}, {self.swizzle_len}, {self.atom_len}{flipped})"
