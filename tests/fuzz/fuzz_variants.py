"""Names the ways of copying, multiplying and looking at barriers that a compiled kernel uses, and those that sm_90a has."""

from __future__ import annotations

# What the PTX of a copy or of an access contains -> what it is called here.
_WORDS = {"cp.async.bulk.tensor.": {".im2col.mbarrier": "tma im2col", ".tile.bulk_group": "tma store", ".multicast::cluster": "tma multicast"},
          "cp.reduce.async.bulk.tensor.": {"": "tma reduce"}, "cp.reduce.async.bulk.global": {"": "bulk reduce"},
          "cp.reduce.async.bulk.shared::cluster": {"": "dsmem reduce"},
          "cp.async.bulk.shared::cluster.global": {".multicast::cluster": "bulk multicast", "": "bulk load"},
          "cp.async.bulk.global.shared::cta": {"": "bulk store"}, "cp.async.bulk.shared::cluster.shared::cta": {"": "dsmem copy"},
          "cp.async.bulk.prefetch.tensor": {"": "tma prefetch"}, "cp.async.bulk.prefetch.L2": {"": "bulk prefetch"},
          "prefetch.global.L2": {"": "line prefetch"},
          "st.async": {"": "st.async"}, "red.async": {"": "red.async"}, "tensormap.replace": {"": "map made by the kernel"},
          "cp.async.mbarrier.arrive": {"": "ldgsts on an mbarrier"}, "ldmatrix.": {"": "ldmatrix"}}

ALL = frozenset({"ldgsts", "ldgsts rows", "vector", "tma load", "tma named map", "fma", "mma_sync", "wgmma a in registers",
                 "wgmma a in shared memory", "peek",
                 *(name for names in _WORDS.values() for name in names.values())})


def used(compiled) -> set[str]:
    """The names of what a compiled kernel uses: from its records of copies and products, and the instructions of its PTX."""
    found = set()
    for copy in compiled.copies:
        if copy.op != "copy_async":
            continue
        if copy.variant in ("ldgsts", "vector"):
            found.add("ldgsts rows" if ".take(" in copy.source and copy.variant == "ldgsts" else copy.variant)
        elif copy.variant == "tma" and copy.dst_scope.startswith("shared") and "im2col" not in copy.source:
            found.add("tma load")
    for product in compiled.products:
        held = " a in registers" if "in registers" in product.a else " a in shared memory"
        found.add(product.variant + (held if product.variant == "wgmma" else ""))
    words = {word for word in compiled.ptx.split() if "async" in word or word.startswith(("prefetch", "tensormap", "ldmatrix", "red."))}
    for word in words:
        for start, names in _WORDS.items():
            if word.startswith(start):
                found.update(name for part, name in names.items() if part in word)
    if "tensor_map(" in compiled.graph:
        found.add("tma named map")
    if "mbarrier_peek(" in compiled.graph:
        found.add("peek")
    return found
