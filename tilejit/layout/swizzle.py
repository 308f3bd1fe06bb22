"""The XOR of address bits that spreads the rows of a shared tile over the memory banks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import CompilationError
from .axes import whole


@dataclass(frozen=True)
class Swizzle:
    """An address permutation: `swizzle_len` bits of the address are XORed into lower ones.

    With M = `per_element`, B = `swizzle_len`, S = `atom_len`, an address a (in elements) becomes
    ``a ^ ((a >> S) & ((2**B - 1) << M))``: chunks of 2**M elements stay together and trade places
    within rows of 2**(M + S). With ``inner=False`` the low bits go into the high ones instead, which
    no copy or tensor-core hardware does. 2**M elements are 16 bytes and S is 3 in the modes that TMA
    and the tensor cores know: B is 1, 2, 3 for 32, 64, 128 bytes. Applying it twice gives the address
    back.
    """

    per_element: int
    swizzle_len: int
    atom_len: int
    inner: bool = True

    def __post_init__(self):
        for name in ("per_element", "swizzle_len", "atom_len"):
            value = whole(getattr(self, name))
            if not isinstance(value, int) or value < 0:
                raise CompilationError(f"{name} of a swizzle counts address bits, found {getattr(self, name)!r}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "inner", bool(self.inner))
        if self.atom_len < self.swizzle_len:
            raise CompilationError(
                f"a swizzle of {self.swizzle_len} bits needs them at least {self.swizzle_len} bits apart, "
                f"found atom_len={self.atom_len}")

    def apply(self, address: Any) -> Any:
        """Where element `address` of the plain layout lies. Runs on ints, NumPy arrays and emitted values."""
        if not self.swizzle_len:
            return address
        chunk_bits = ((1 << self.swizzle_len) - 1) << self.per_element
        if self.inner:
            return address ^ ((address >> self.atom_len) & chunk_bits)
        return address ^ ((address & chunk_bits) << self.atom_len)

    @property
    def chunk(self) -> int:
        """Elements that stay together."""
        return 1 << self.per_element

    @property
    def block(self) -> int:
        """Elements of the smallest aligned run that the permutation maps to itself."""
        return 1 << (self.per_element + self.swizzle_len) if self.inner else self.period

    @property
    def period(self) -> int:
        """Elements after which the pattern repeats."""
        return 1 << (self.per_element + self.swizzle_len + self.atom_len)

    def __matmul__(self, layout):
        """``Swizzle(3, 3, 3) @ S[...]``: the layout's memory offsets, then the swizzle."""
        if not hasattr(layout, "with_swizzle"):
            return NotImplemented
        return layout.with_swizzle(self)

    def __repr__(self) -> str:
        flipped = "" if self.inner else ", inner=False"
        return f"Swizzle({self.per_element}, {self.swizzle_len}, {self.atom_len}{flipped})"
