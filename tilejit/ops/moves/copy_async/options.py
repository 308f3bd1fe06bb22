"""The options of copy_async and copy, and the values that each accepts."""

from __future__ import annotations

from ....errors import CompilationError
from ....names import suggest_nearest
from ...sync.masks import check_mask
from .reductions import KINDS
from .shapes import MULTICASTS, NAMES

# An L2 cache policy. If it applies to all accesses, its 64 bits, as ``createpolicy.fractional`` makes them for a
# fraction of 1; otherwise (primary, fraction, secondary), from which the kernel creates it by that instruction.
Policy = int | tuple[str, float, str]
POLICIES: dict[str | None, int] = {"evict_normal": 0x1000000000000000, "evict_first": 0x12F0000000000000,
                                   "evict_last": 0x14F0000000000000}
PREFETCH = (64, 128, 256)              # bytes that a cp.async may prefetch into L2 (PTX ISA, .level::prefetch_size)
L2_PROMOTION: dict[int | None, int] = {0: 0, 64: 1, 128: 2, 256: 3}  # bytes -> CUtensorMapL2promotion

SELECTIVE = ("multicast", "reduce", "precision", "cta_group", "shape")  # options that only some variants take

# hint, which does not influence the choice -> variant that uses it
HINTS = {"prefetch": "ldgsts", "l2_promotion": "tma", "prefetch_map": "tma"}

PRIMARY, SECONDARY = (*POLICIES, "evict_unchanged"), ("evict_unchanged", "evict_first")  # PTX ISA, createpolicy

#           option          accepted values                                  in words
CHOICES = {
    "cache":        (("ca", "cg", *POLICIES),
                     '"ca", "cg", "evict_first", "evict_last", "evict_normal", or a share as in ("evict_last", 0.5)'),
    "reduce":       (KINDS,                                         '"' + '", "'.join(KINDS) + '"'),
    "fill":         ((0, "nan"),                                    '0 or "nan"'),
    "prefetch":     (PREFETCH,                                      "64, 128 or 256 bytes of L2"),
    "l2_promotion": (tuple(L2_PROMOTION),                           "0, 64, 128 or 256 bytes"),
    "cta_group":    ((1, 2),                                        "1 or 2"),
    "precision":    (("tf32",),                                     '"tf32"'),
    "prefetch_map": ((True,),                                       "True or False"),
    "shape":        (NAMES,                                         '"' + '", "'.join(NAMES) + '"'),
    "multicast":    (MULTICASTS,
                     'a mask of ranks, or "' + '", "'.join(MULTICASTS) + '"'),
}


def checked_options(given: dict, variants: tuple[str, ...]) -> dict:
    """The options that differ from their defaults. CompilationError for an unknown option or value."""
    given= {name: _fill(value) if name == "fill" else value for name, value in given.items()}
    return {name: _checked_option(name, value, variants) for name, value in given.items()
            if value is not None and not (name == "prefetch_map" and value is False)}


def _fill(value):
    """The option `fill` with 0, the default, as None, and with "nan" for NaN."""
    if not isinstance(value, bool) and value == 0:
        return None
    return "nan" if isinstance(value, float) and value != value else value


def _checked_option(name: str, value, variants: tuple[str, ...]):
    """The value of an option as `checked_options` returns it. A mask of `multicast` that is known only at run time
    becomes True."""
    if name == "multicast" and not isinstance(value, str):
        if not isinstance(value, int):
            return True
        check_mask(value)
        return value
    if name == "cache" and isinstance(value, tuple):
        return _share(value)
    if name != "variant" and name not in CHOICES:
        raise CompilationError(f"a copy has no option {name!r}{suggest_nearest(name, ('variant', 'mbar', *CHOICES))}")
    allowed, words = CHOICES.get(name) or (variants, f"one of {', '.join(variants)}")
    if (isinstance(value, float)
        or not any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in allowed)):
        raise CompilationError(f"{name} is {words}, not {value!r}")
    return value


def unused_hints(options: dict, variant: str, map_=None) -> tuple[tuple[str, str], ...]:
    """The hints of a call that its lowering does not use, each with what does use it: a variant or, for a copy by the
    named tensor map `map_`, what makes that map."""
    users = dict(HINTS)
    if map_ is not None and L2_PROMOTION.get(options.get("l2_promotion")) != map_.l2_promotion:
        users["l2_promotion"] = "tile.tensor_map"
    if map_ is not None and map_.slot is not None:
        users["prefetch_map"] = "a map of the launch"
    return tuple((name, user) for name, user in users.items() if name in options and user != variant)


def _share(value: tuple) -> str | tuple[str, float, str]:
    """Check a fractional policy, (primary, fraction) or (primary, fraction, secondary).
    A fraction of 1 gives the plain policy."""
    primary, fraction, secondary = (*value, "evict_unchanged")[:3] if 2 <= len(value) <= 3 else (None,) * 3
    right = (primary in PRIMARY and secondary in SECONDARY
             and isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0 < fraction <= 1)
    if not right:
        raise CompilationError(f"a share of a cache policy is (one of {', '.join(map(str, PRIMARY))}; a fraction above "
                               f"0 and at most 1; and for the others {' or '.join(SECONDARY)}), not {value!r}")
    return primary if fraction == 1 and primary in POLICIES else (primary, float(fraction), secondary)


def policy_of(options: dict) -> Policy | None:
    """The L2 policy that the cache option names; None for none, "ca" and "cg"."""
    cache = options.get("cache")
    return cache if isinstance(cache, tuple) else POLICIES.get(cache)


def is_policy(site) -> bool | str:
    """Whether a site's cache option, if it is given, is an L2 policy."""
    cache = site.options.get("cache")
    return cache is None or policy_of(site.options) is not None or f"cache={cache!r}"
