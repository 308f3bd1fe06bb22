"""The options of copy_async and copy: what each may be. CompilationError says what a call got wrong."""

from __future__ import annotations

from ...errors import CompilationError

# 64-bit cache policies, as ``createpolicy.fractional`` makes them for a fraction of 1.
POLICIES = {"evict_normal": 0x1000000000000000, "evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}
PREFETCH = (64, 128, 256)              # bytes of L2 that a cp.async may fetch around its own (PTX ISA, .level::prefetch_size)
L2_PROMOTION = {0: 0, 64: 1, 128: 2, 256: 3}  # bytes -> CUtensorMapL2promotion

#           option          what it may be                                   words
CHOICES = {
    "cache":        (("ca", "cg", *POLICIES),                       '"ca", "cg", "evict_first", "evict_last" or "evict_normal"'),
    "fill":         ((0, "nan"),                                    '0 or "nan"'),
    "prefetch":     (PREFETCH,                                      "64, 128 or 256 bytes of L2"),
    "l2_promotion": (tuple(L2_PROMOTION),                           "0, 64, 128 or 256 bytes"),
}


def checked_options(given: dict, variants: tuple[str, ...]) -> dict:
    """The options that differ from their defaults. CompilationError names the one that is wrong, and what it may be."""
    kept = {}
    for name, value in given.items():
        if name == "fill" and isinstance(value, float) and (value == 0 or value != value):
            value = 0 if value == 0 else "nan"
        if value is None or (name == "fill" and value == 0 and not isinstance(value, bool)):
            continue
        allowed, words = CHOICES.get(name) or (variants, f"one of {', '.join(variants)}")
        if isinstance(value, bool) or value not in allowed:
            raise CompilationError(f"{name} is {words}, not {value!r}")
        kept[name] = value
    return kept
