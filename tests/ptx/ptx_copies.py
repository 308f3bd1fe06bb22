"""Every form of cp.async, bulk and tensor copies that Hopper has, called as PTX instructions, and tensor maps built field by field.

Each form moves its own row, from or to the arrays of its kernel. If it reaches another CTA, both CTAs of a cluster do the
same with the same values.
"""

from __future__ import annotations

import re

import numpy as np
import tilejit as tile
from patch_kernels import reference_patches
from reduced import combined
from tilejit import ptx

from tests.cases import Case

EVICT_FIRST = "0x12F0000000000000"
CELLS = 256       # elements of a row
BOX = {1: (64,), 2: (2, 32), 3: (2, 2, 16), 4: (2, 2, 2, 8), 5: (2, 2, 2, 2, 4)}


def forms(pattern: str) -> list:
    return [f for f in ptx.forms() if f.exists_on("sm_90a") and re.fullmatch(pattern, f.name)]


def called(form, **operands: str) -> str:
    """The call of a form, with the given operand texts."""
    return f"tile.ptx.{ptx.python_name(form)}({', '.join(operands[o.name] for o in form.inputs)})"


def kernel(head: str, lines, **options):
    return tile.jit(source="\n    ".join([head, *lines]) + "\n", **{"num_warps": 1, **options})


# -- cp.async ----------------------------------------------------------------------------------------------------------------

#: How threads wait for the copies: for all, for a group, or on a barrier at which the copies arrive (with or without noinc).
WAITS = (["tile.ptx.cp_async.wait_all()"], ["tile.ptx.cp_async.commit_group()", "tile.ptx.cp_async.wait_group(0)"],
         ["tile.ptx.cp_async.commit_group()", "tile.ptx.cp_async.wait_all()"], ["tile.ptx.cp_async.mbarrier.arrive.noinc.shared_cta.b64(bar)"],
         ["tile.ptx.cp_async.mbarrier.arrive.shared_cta.b64(bar)", "tile.ptx.mbarrier.arrive.shared_cta.b64(bar)"])


def cp_async_cases() -> Case:
    """cp.async of 4, 8 and 16 bytes per thread: part of the source, all of it or none, awaited in each way."""
    chosen, phase = forms(r"cp\.async\.c[ag]\..*"), 0
    x = np.random.default_rng(1).integers(0, 256, (len(chosen), 512)).astype(np.uint8)
    want = np.full_like(x, 0xff)
    lines = ["i = tile.thread_id()", "s = tile.alloc((512,), tile.uint8)", "bar = tile.mbarrier(count=32)"]
    for n, form in enumerate(chosen):
        size = int(re.search(r"\.(4|8|16)\b", form.name)[1])
        wait = WAITS[n % len(WAITS)]
        lines += ["tile.store(s, 255)", "tile.sync()",
                  called(form, dst="s[16 * i]", src=f"x[{n}, 16 * i]", src_size=f"i % {size + 1}", ignore_src="i % 2 == 0", hint=EVICT_FIRST), *wait]
        if "bar" in wait[0]:
            lines, phase = [*lines, f"bar.wait(phase={phase})"], phase + 1
        lines += ["tile.sync()", f"tile.store(y[{n}, 0:512], tile.load(s))", "tile.sync()"]
        for i in range(32):
            some = i % (size + 1) if "zfill" in form.name else 0 if "ignore_src" in form.name and i % 2 == 0 else size
            want[n, 16 * i:16 * i + size] = 0
            want[n, 16 * i:16 * i + some] = x[n, 16 * i:16 * i + some]
    return Case("cp.async", kernel("def copied(x, y):", lines), (1,), (x, np.zeros_like(x)), {1: want})


# -- bulk --------------------------------------------------------------------------------------------------------------------

def dtype_of(form) -> str:
    kind = form.name.split(".")[-1]
    return {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "s32": "int32", "s64": "int64", "u64": "uint64",
            "b64": "uint64"}.get(kind, "uint32")


def bulk_cases(pattern: str, shift: int) -> Case:
    """Bulk copies and reductions in a cluster of two CTAs: to shared memory, to an array, to the other CTA."""
    chosen = forms(pattern)
    dtypes = sorted({dtype_of(f) for f in chosen})
    lines = ["me = tile.cta_rank()", "bar = tile.mbarrier()", *(f"{s}_{d} = tile.alloc(({CELLS},), tile.{d})" for d in dtypes for s in "st")]
    given = {f"{x}_{d}": [] for d in dtypes for x in "xyz"}
    phase = 0
    for form in chosen:
        d = dtype_of(form)
        n, rows, nbytes = len(given[f"x_{d}"]), rows_of(form, d, shift), CELLS * tile.dtypes.dtype_of(d).nbytes
        x, y = rows["b"], rows["a"]
        given[f"x_{d}"].append(x)
        given[f"y_{d}"].append(np.stack([y, y]))
        reduces, brings, peer = "reduce" in form.name, "global.mbarrier" in form.name, "shared::cluster.shared::cta" in form.name
        operands = dict(size=str(nbytes), hint=EVICT_FIRST, mask="3", bar="bar.peer(1 - me)" if peer else "bar",
                        dst=f"t_{d}.peer(1 - me)" if peer else f"t_{d}" if brings else f"y_{d}[{n}, me, 0]",
                        src=f"x_{d}[{n}, 0]" if brings else f"s_{d}")
        lines += ["tile.sync()", f"tile.store(s_{d}, tile.load(x_{d}[{n}, 0:{CELLS}]))", f"tile.store(t_{d}, tile.load(y_{d}[{n}, me, 0:{CELLS}]))",
                  "tile.fence_proxy_async()", "tile.sync()"]
        if brings or peer:
            lines += ["with tile.elect():", f"    tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, {nbytes})", "tile.cluster_sync()"]
            lines += [*(["if me == 1:"] if "multicast" in form.name else ["if me < 2:"]), "    with tile.elect():",
                      f"        {called(form, **operands)}",
                      f"bar.wait(phase={phase})", f"tile.store(y_{d}[{n}, me, 0:{CELLS}], tile.load(t_{d}))", "tile.cluster_sync()"]
            phase += 1
        else:
            lines += ["with tile.elect():", f"    {called(form, **operands)}", "    tile.ptx.cp_async.bulk.commit_group()",
                      f"    tile.ptx.cp_async.bulk.wait_group{'.read' if n % 4 == 3 else ''}(0)", "tile.sync()"]
        what = re.search(r"\.(add|min|max|and|or|xor|inc|dec)\b", form.name) if reduces else None
        with np.errstate(all="ignore"):
            new = combined(what[1], [x], y).astype(y.dtype) if what else x
        given[f"z_{d}"].append(np.stack([new, new]))
    lines += ["tile.sync()", "with tile.elect():", "    tile.ptx.cp_async.bulk.wait_group(0)"]
    names = [f"{x}_{d}" for d in dtypes for x in "xy"]
    wants = {names.index(f"y_{d}"): np.stack(given[f"z_{d}"]) for d in dtypes}
    return Case(pattern, kernel(f"def moved({', '.join(names)}):", lines, cluster=(2, 1, 1)), (2,),
                tuple(np.stack(given[name]) for name in names), wants)


def rows_of(form, dtype: str, seed: int) -> dict[str, np.ndarray]:
    """Two rows of values: small integers for floats, any for integers."""
    made, rng = tile.dtypes.dtype_of(dtype).np, np.random.default_rng(seed + len(form.name))
    draw = lambda: (rng.integers(np.iinfo(made).min, np.iinfo(made).max, CELLS, made, endpoint=True) if made.kind in "iu"
                    else rng.integers(-60, 60, CELLS).astype(made))
    return {"a": draw(), "b": draw()}


def prefetch_cases() -> Case:
    """Prefetches, priorities and cache policies do not change what is read; a discarded line is written again first."""
    chosen = forms(r"cp\.async\.bulk\.prefetch\.L2\..*|prefetch\.global\..*|prefetchu\..*|applypriority\..*")
    policies = forms(r"createpolicy\..*")
    x = np.random.default_rng(2).integers(0, 1 << 32, (len(chosen) + len(policies), 128)).astype(np.uint32)
    lines = ["i = tile.thread_id()"]
    for n, form in enumerate(chosen):
        size = "128" if form.inputs[1:] and form.inputs[1].kind == "imm" else "512"
        lines += ["with tile.elect():", "    " + called(form, src=f"x[{n}, 0]", a=f"x[{n}, 0]", size=size, hint=EVICT_FIRST)]
    lines += [f"tile.store(y[0:{len(chosen)}, 0:128], tile.load(x[0:{len(chosen)}, 0:128]))",
              "tile.sync()", "with tile.elect():", "    tile.ptx.discard.global_.L2(y[0, 0], 128)", "tile.sync()",
              "tile.store(y[0, 0:128], tile.load(x[0, 0:128]))"]
    for n, form in enumerate(policies, len(chosen)):
        lines += ["p = " + called(form, fraction="0.5", a="x[0, 0]", primary="256", total="1024", access_property="1"),
                  f"tile.store(y[{n}, i], tile.ptx.ld.global_.L2_cache_hint.b32(x[{n}, i], p))"]
    want = np.zeros_like(x)
    want[:len(chosen)], want[len(chosen):, :32] = x[:len(chosen)], x[len(chosen):, :32]
    return Case("prefetches and policies", kernel("def fetched(x, y):", lines), (1,), (x, np.zeros_like(x)), {0: x, 1: want})


# -- tensor copies -----------------------------------------------------------------------------------------------------------

def tensor_copy_cases(rank: int) -> Case:
    """Loads, stores, reductions and prefetches of a rank, with tensor maps encoded at launch."""
    dims = f"{rank}d"
    loads = forms(rf"cp\.async\.bulk\.tensor\.{dims}\.shared::(cluster|cta)\.global(\.tile)?\.mbarrier.*")
    stores = forms(rf"cp\.async\.bulk\.tensor\.{dims}\.global\.shared::cta(\.tile)?\.bulk_group.*|"
                   rf"cp\.reduce\.async\.bulk\.tensor\.{dims}\.global\.shared::cta\.\w+\.tile\.bulk_group.*")
    fetches = forms(rf"cp\.async\.bulk\.prefetch\.tensor\.{dims}\.L2\.global\.tile.*")
    box, rows = BOX[rank], len(loads) + len(stores)
    shape = (box[0] * rows, *box[1:])
    part = ", ".join(f"0:{n}" for n in box)
    at = lambda n: "(" + ", ".join(["0"] * (rank - 1) + [str(n * box[0])]) + ",)"
    rng = np.random.default_rng(rank)
    x, y = (rng.integers(0, 1 << 32, (rows, 64)).astype(np.uint32) for _ in range(2))
    want = y.copy()
    lines = ["s = tile.alloc((64,), tile.uint32)", "bar = tile.mbarrier()", f"mx, my = tile.tensor_map(x[{part}]), tile.tensor_map(y[{part}])",
             "with tile.elect():", "    tile.ptx.prefetch.tensormap(mx)"]
    lines += [f"    {called(f, map='mx', coords=at(n), hint=EVICT_FIRST)}" for n, f in enumerate(fetches)]
    for n, form in enumerate(loads):
        lines += ["with tile.elect():", "    tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, 256)",
                  f"    {called(form, dst='s', map='mx', coords=at(n), bar='bar', mask='1', hint=EVICT_FIRST)}", f"bar.wait(phase={n})",
                  f"tile.store(z[{n}, 0:64], tile.load(s))", "tile.fence_proxy_async()", "tile.sync()"]
    for n, form in enumerate(stores, len(loads)):
        lines += [f"tile.store(s, tile.load(w[{n}, 0:64]))", "tile.fence_proxy_async()", "tile.sync()", "with tile.elect():",
                  f"    {called(form, map='my', coords=at(n), src='s', hint=EVICT_FIRST)}", "    tile.ptx.cp_async.bulk.commit_group()",
                  "    tile.ptx.cp_async.bulk.wait_group(0)", "tile.sync()"]
        what = re.search(r"shared::cta\.(add|min|max|and|or|xor|inc|dec)\.", form.name)
        want[n] = combined(what[1], [x[n]], y[n]) if what else x[n]
    z = np.zeros_like(x)
    z[:len(loads)] = x[:len(loads)]
    return Case(f"tensor copies of {rank} dimensions", kernel("def boxes(x, y, w, z):", lines, cluster=(1, 1, 1)), (1,),
                (x.reshape(shape), y.reshape(shape), x, np.zeros_like(x)), {1: want.reshape(shape), 3: z})


# -- im2col ------------------------------------------------------------------------------------------------------------------

PIXELS, CHANNELS = 16, 8
#: For each rank: images, and a filter with its padding; a filter of the second kind covers 16 positions of each image.
IMAGES = {3: ((3, 9, 16), (3,), 1, (17, 8), (2,)), 4: ((2, 5, 6, 16), (2, 3), (1, 2), (5, 5, 8), (2, 2)),
          5: ((2, 3, 4, 5, 16), (2, 1, 2), (1, 0, 1), (3, 3, 5, 8), (2, 2, 2))}


def text_of(values) -> str:
    return f"({', '.join(map(str, values))},)"


def zeros(n: int) -> str:
    return ", ".join(["0"] * n)


def im2col_cases(rank: int) -> Case:
    """im2col loads, stores, reductions and prefetches of a rank, with tensor maps encoded at launch. Each load uses another offset
    in the filter, pixel and channel; each store goes to its own images."""
    loads = forms(rf"cp\.async\.bulk\.tensor\.{rank}d\.shared::(cluster|cta)\.global\.im2col\.mbarrier.*")
    stores = forms(rf"cp\.(reduce\.)?async\.bulk\.tensor\.{rank}d\.global\.shared::cta(\.\w+)?\.im2col_no_offs\.bulk_group.*")
    fetches = forms(rf"cp\.async\.bulk\.prefetch\.tensor\.{rank}d\.L2\.global\.im2col(\.L2::cache_hint)?")
    shape, filter, padding, image, reach = IMAGES[rank]
    rng = np.random.default_rng(rank)
    draw = lambda *shape: rng.integers(0, 1 << 32, shape).astype(np.uint32)
    x, w, y = draw(*shape), draw(len(stores), PIXELS, CHANNELS), draw(len(stores), *image)
    pads = padding if isinstance(padding, tuple) else (padding,)
    counts = [n + 2 * p - (f - 1) for n, p, f in zip(shape[1:], pads, filter)]
    all_patches = reference_patches(x, filter, 1, pads, 1)
    patch = f"0:{PIXELS}, {zeros(rank - 2)}, 0:{CHANNELS}"
    layout = f"tile.swizzled(tile.uint32, ({PIXELS}, {CHANNELS}), 32)"
    lines = [f"s = tile.alloc(({PIXELS}, {CHANNELS}), tile.uint32, layout={layout})", "bar = tile.mbarrier()",
             f"mx = tile.tensor_map(tile.im2col(x, {text_of(filter)}, padding={text_of(pads)})[{patch}], swizzle=32)",
             f"my = tile.tensor_map(tile.im2col(y, {text_of(reach)})[{patch}], swizzle=32)"]
    z = np.zeros((len(loads), PIXELS, CHANNELS), np.uint32)
    for n, form in enumerate((*loads, *fetches)):
        first, place, channel = 5 * n % all_patches.shape[1], n % len(all_patches), 4 * (n % 3)
        at = [*np.unravel_index(first, (shape[0], *counts))]
        coords = text_of([channel, *(int(i) - p for i, p in zip(at[:0:-1], pads[::-1])), int(at[0])])
        given = dict(dst="s", map="mx", coords=coords, offsets=text_of(np.unravel_index(place, filter)[::-1]), bar="bar", mask="1", hint=EVICT_FIRST)
        if form in fetches:
            lines += ["with tile.elect():", f"    {called(form, **given)}"]
            continue
        lines += ["with tile.elect():", f"    tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, {4 * PIXELS * CHANNELS})",
                  f"    {called(form, **given)}",
                  f"bar.wait(phase={n})", f"tile.store(z[{n}, 0:{PIXELS}, 0:{CHANNELS}], tile.load(s))",
                  "tile.fence_proxy_async()", "tile.sync()"]
        found = all_patches[place, first:first + PIXELS, channel:channel + CHANNELS]
        z[n, :len(found)] = found
    want = y.copy()
    met = reference_patches(np.arange(y.size).reshape(y.shape), reach, 1, 0, 1)[0].reshape(len(stores), PIXELS, CHANNELS)
    for n, form in enumerate(stores):
        lines += [f"tile.store(s, tile.load(w[{n}, 0:{PIXELS}, 0:{CHANNELS}]))", "tile.fence_proxy_async()", "tile.sync()", "with tile.elect():",
                  f"    {called(form, map='my', coords=text_of([0] * (rank - 1) + [n]), src='s', hint=EVICT_FIRST)}",
                  "    tile.ptx.cp_async.bulk.commit_group()", "    tile.ptx.cp_async.bulk.wait_group(0)", "tile.sync()"]
        what = re.search(r"shared::cta\.(add|min|max|and|or|xor|inc|dec)\.", form.name)
        want.reshape(-1)[met[n]] = combined(what[1], [w[n]], y.reshape(-1)[met[n]]) if what else w[n]
    return Case(f"patches of {rank - 2} dimensions", kernel("def walks(x, y, w, z):", lines, cluster=(1, 1, 1)), (1,), (x, y, w, np.zeros_like(z)),
                {1: want, 3: z})


def im2col_w_cases():
    """im2col loads and prefetches in W mode (and with 128 pixels), which only Blackwell has: the pixels follow W, then the next image."""
    images, filter = (9, 3, 40, 16), (3, 3)
    x = np.random.default_rng(5).integers(0, 1 << 32, images).astype(np.uint32)
    every = reference_patches(x, filter, 1, 1, 1).reshape(9, *images)
    for along, pixels in (("w", 32), ("w128", 128)):
        word = along.replace("w1", "w::1")
        chosen = [f for f in ptx.forms() if f.exists_on("sm_100a") and re.fullmatch(
            rf"cp\.async\.bulk\.(prefetch\.)?tensor\.4d\.(shared::(cluster|cta)|L2)\.global\.im2col::{word}(\.mbarrier::complete_tx::bytes(\.multicast::cluster)?"
            r"(\.cta_group::1)?)?(\.L2::cache_hint)?", f.name)]
        layout = f"tile.swizzled(tile.uint32, ({pixels}, {CHANNELS}), 32)"
        lines = [f"s = tile.alloc(({pixels}, {CHANNELS}), tile.uint32, layout={layout})", "bar = tile.mbarrier()",
                 f"m = tile.tensor_map(tile.im2col(x, {filter}, padding=1, along={along!r})[0:{pixels}, 0, 0, 0, 0:{CHANNELS}], swizzle=32)"]
        want, phase = np.zeros((len(chosen), pixels, CHANNELS), np.uint32), 0
        for n, form in enumerate(chosen):
            first, line, place, channel = 37 * n % 200, n % 3, n % 9, 4 * (n % 3)
            coords = text_of([channel, first % 40 - 1, line + place // 3 - 1, first // 40])
            given = dict(dst="s", map="m", coords=coords, offsets=f"(0, {place % 3})", bar="bar", mask="1", hint=EVICT_FIRST)
            if "prefetch" in form.name:
                lines += ["with tile.elect():", f"    {called(form, **given)}"]
                continue
            lines += ["with tile.elect():", f"    tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, {4 * pixels * CHANNELS})",
                      f"    {called(form, **given)}",
                      f"bar.wait(phase={phase})", f"tile.store(z[{n}, 0:{pixels}, 0:{CHANNELS}], tile.load(s))",
                      "tile.fence_proxy_async()", "tile.sync()"]
            phase += 1
            found = every[place, :, line].reshape(-1, 16)[first:first + pixels, channel:channel + CHANNELS]
            want[n, :len(found)] = found
        yield Case(f"pixels along {along}", kernel("def walks(x, z):", lines, cluster=(1, 1, 1)), (1,), (x, np.zeros_like(want)), {1: want})


# -- maps made field by field ------------------------------------------------------------------------------------------------

def replace_cases(space: str, fields) -> list[str]:
    """Replacement of a map's fields, in global or in shared memory."""
    place, word = ("slots[0, 0]", "global_") if space == "global" else ("made", "shared_cta")
    bits = lambda name: "b64" if name in ("global_address", "global_stride") else "b32"
    return [f"    tile.ptx.tensormap.replace.tile.{name}.{word}.b1024.{bits(name)}({place}, {', '.join(map(str, values))})" for name,
            *values in fields]


def built_map_cases(space: str) -> Case:
    """A map built from 128 zero bytes: every field; then a narrower box, NaN fill, another type, a swizzle, element strides."""
    x = np.random.default_rng(9).standard_normal((20, 32)).astype(np.float32)
    scopes = ("cta", "cluster", "gpu", "sys")
    whole = [("rank", 1), ("elemtype", 7), ("interleave_layout", 0), ("swizzle_mode", 0), ("fill_mode", 0), ("global_address", "address"),
             ("global_dim", 0, 32), ("global_dim", 1, 20), ("global_stride", 0, 128), ("box_dim", 0, 32), ("box_dim", 1, 8),
             ("element_stride", 0, 1), ("element_stride", 1, 1)]
    # what changes                                     row   bytes
    edits = [(whole,                                           4,    1024),
             ([("fill_mode", 1)],                              16,   1024),
             ([("box_dim", 1, 3), ("fill_mode", 0)],           18,   384),
             ([("elemtype", 2)],                               1,    384),     # uint32
             ([("swizzle_mode", 3), ("box_dim", 1, 8)],        2,    1024),
             ([("swizzle_mode", 0), ("element_stride", 1, 2)], 0,    512)]     # every other row
    lines = ["s = tile.alloc((256,), tile.float32, align=1024)", "bar = tile.mbarrier()",
             "address, map_ = tile.ptx.cvta.to.global_.u64(x[0, 0]), tile.ptx.cvta.to.global_.u64(slots[0, 0])"]
    lines += ["made = tile.alloc((128,), tile.uint8, align=128)", "tile.store(made, 0)", "tile.sync()"] if space == "shared" else []
    for n, (fields, row, nbytes) in enumerate(edits):
        scope = scopes[n % 4]
        lines += ["with tile.elect():", *replace_cases(space, fields)]
        if space == "shared":
            lines += ["tile.sync()", f"tile.ptx.tensormap.cp_fenceproxy.global_.shared_cta.tensormap_generic.release.{scope}.sync.aligned(slots[0, "
                                     "0], made, 128)"]
        else:
            lines += [f"    tile.ptx.fence.proxy.tensormap_generic.release.{scope}()"]
        lines += ["tile.sync()", "tile.store(s, 0.0)", "tile.fence_proxy_async()", "tile.sync()", "with tile.elect():",
                  f"    tile.ptx.fence.proxy.tensormap_generic.acquire.{scope}(slots[0, 0], 128)",
                  f"    tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, {nbytes})",
                  f"    tile.ptx.cp_async.bulk.tensor._2d.shared_cta.global_.tile.mbarrier_complete_tx_bytes(s, map_, (0, {row}), bar)",
                  f"bar.wait(phase={n})", f"tile.store(y[{n}, 0:256], tile.load(s))", "tile.sync()"]
    want = np.zeros((len(edits), 256), np.float32)
    want[0] = x[4:12].ravel()
    want[1] = np.array(0x7ff77ff7, np.uint32).view(np.float32)
    want[1, :128] = x[16:].ravel()
    want[2, :64] = x[18:].ravel()
    want[3, :96] = x[1:4].ravel()
    unit = np.arange(64)                                       # of 16 bytes
    want[4].reshape(64, 4)[unit ^ (unit >> 3 & 7)] = x[2:10].reshape(64, 4)
    want[5, :128] = x[0:8:2].ravel()
    return Case(f"maps by hand, {space}", kernel("def fields(x, y, slots):", lines), (1,),
                (x, np.ones_like(want), np.zeros((1, 128), np.uint8)), {1: want})


def simulated():
    """All forms except those with integers as addresses."""
    yield cp_async_cases()
    yield bulk_cases(r"cp\.async\.bulk\.(shared::\w+\.(global|shared::cta)|global\.shared::cta)\..*", 1)
    yield bulk_cases(r"cp\.reduce\.async\.bulk\.global\..*", 2)
    yield bulk_cases(r"cp\.reduce\.async\.bulk\.shared::cluster\..*", 3)
    yield prefetch_cases()
    yield from map(tensor_copy_cases, BOX)
    yield from map(im2col_cases, IMAGES)


def every_copy():
    yield from simulated()
    yield from map(built_map_cases, ("global", "shared"))
