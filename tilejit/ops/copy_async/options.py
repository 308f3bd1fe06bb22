"""The options of copy_async and copy: what each may be. CompilationError says what a call got wrong."""

from __future__ import annotations

from ...errors import CompilationError
from ...names import nearest
from .reductions import KINDS

# 64-bit cache policies, as ``createpolicy.fractional`` makes them for a fraction of 1.
POLICIES = {"evict_normal": 0x1000000000000000, "evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}
PREFETCH = (64, 128, 256)              # bytes of L2 that a cp.async may fetch around its own (PTX ISA, .level::prefetch_size)
L2_PROMOTION = {0: 0, 64: 1, 128: 2, 256: 3}  # bytes -> CUtensorMapL2promotion

#           option          what it may be                                   words
CHOICES = {
    "cache":        (("ca", "cg", *POLICIES),                       '"ca", "cg", "evict_first", "evict_last" or "evict_normal"'),
    "reduce":       (KINDS,                                         '"' + '", "'.join(KINDS) + '"'),
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
        if name == "multicast":
            if isinstance(value, int) and not 0 < value < 1 << 16:
                raise CompilationError(f"multicast is a mask of the cluster's ranks, 1 to 65535, not {value!r}")
            kept[name] = value if isinstance(value, int) else True
            continue
        if name != "variant" and name not in CHOICES:
            raise CompilationError(f"a copy has no option {name!r}{nearest(name, ('variant', 'mbar', *CHOICES))}")
        allowed, words = CHOICES.get(name) or (variants, f"one of {', '.join(variants)}")
        if isinstance(value, bool) or value not in allowed:
            raise CompilationError(f"{name} is {words}, not {value!r}")
        kept[name] = value
    return kept
