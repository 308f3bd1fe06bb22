"""Integers of which only a divisor is known."""

from __future__ import annotations

from math import gcd


class Multiple:
    """An integer of which only the divisor `of` is known."""

    def __init__(self, of: int):
        self.of = of

    def __add__(self, other):
        return Multiple(gcd(self.of, other.of if isinstance(other, Multiple) else other))

    __radd__ = __add__

    def __mul__(self, n: int):
        return Multiple(self.of * n) if n else 0

    def __mod__(self, n: int):
        return 0 if self.of % n == 0 else Multiple(gcd(self.of, n))

    def __floordiv__(self, n: int):
        return Multiple(self.of // n if self.of % n == 0 else 1)
