"""Every form of ld, st, atom, red, st.async and red.async, called in kernels and compared with NumPy.

Each of 32 threads has its own cells in a row for each form: in an array, in shared memory, or for ``shared::cluster`` in the
shared memory of the other CTA in a cluster of two, which does the same with the same values.
"""

from __future__ import annotations

import re

import numpy as np
import tilejit as tile
from reduced import combined
from tilejit import ptx
from tilejit.ops.ptx.calls import DTYPES
from tilejit.ops.ptx.meanings import meaning

LANES, CELLS = 32, 256
ARRAYS = {"f16x2": "uint32", "bf16x2": "uint32"}     # dtype of the array's elements where it is not the first of DTYPES
ADDED = {"f16x2": "float16", "bf16x2": "bfloat16"}   # the type as which a pair is added
IN_A_KERNEL = 48


def forms_of(kind: str) -> list:
    """Every form of ld, st, atom, red or of the "async" instructions that Hopper has."""
    chosen = [f for f in ptx.forms() if f.exists_on("sm_90a") and f.name.startswith(("st.", "red.") if kind == "async" else kind + ".")]
    return [f for f in chosen if f.name.startswith(("st.async", "red.async")) == (kind == "async")]


def is_simulated(form) -> bool:
    return meaning(form) is not None


def value_of(form):
    """The operand with the type of the cells: the result of a load or an atomic, or the stored value."""
    return next(o for o in (*form.results, *form.inputs) if o.name in ("d", "value", "b"))


def dtype_of(form) -> str:
    kind = value_of(form).type
    return ARRAYS.get(kind) or DTYPES[kind][0].name


def parts_of(form) -> int:
    """Number of array elements in a thread's cell."""
    value = value_of(form)
    return (value.count or 1) * (2 if value.type == "b128" else 1)


def arrays_of(form, n: int) -> dict[str, np.ndarray]:
    """The initial cells of a form, and its operands."""
    made, rng = tile.dtypes.dtype_of(dtype_of(form)).np, np.random.default_rng(n)
    added = ADDED.get(value_of(form).type)
    if added or made.kind not in "iu":
        narrow = tile.dtypes.dtype_of(added).np if added else made
        draw = lambda: np.ascontiguousarray(rng.integers(-60, 60, CELLS * made.itemsize // narrow.itemsize).astype(narrow)).view(made)
    else:
        draw = lambda: rng.integers(np.iinfo(made).min, np.iinfo(made).max, CELLS, made, endpoint=True)
    found = {"a": draw(), "b": draw(), "c": draw()}
    if ".cas" in form.name:
        mine = np.arange(CELLS) // parts_of(form) % 2 == 0    # compare-and-swap succeeds in every other thread
        found["b"] = np.where(mine, found["a"], found["b"])
    if re.search(r"\.(inc|dec)\.", form.name):
        found["a"][::3] = found["b"][::3]
    return found


def after(form, a, b, c):
    """The cells after all threads have executed the form."""
    reached, kind = np.arange(CELLS) < LANES * parts_of(form), form.name.split(".")[0]
    if kind == "ld":
        return a
    if kind == "st":
        return np.where(reached, b, a)
    what = re.search(r"\.(add|min|max|and|or|xor|exch|cas|inc|dec)\b", form.name)[1]
    added = ADDED.get(value_of(form).type)
    seen = lambda x: x.view(tile.dtypes.dtype_of(added).np) if added else x
    if what == "cas":
        same = (a == b).reshape(-1, parts_of(form)).all(axis=1).repeat(parts_of(form))
        new = np.where(same, c, a)
    else:
        with np.errstate(all="ignore"):
            new = b if what == "exch" else np.ascontiguousarray(combined(what, [seen(b)], seen(a))).view(a.dtype)
    return np.where(reached, new, a)


def text_of(form, n: int) -> list[str]:
    """The lines that call a form. Forms that complete on a barrier use its phase `n`."""
    d, parts = dtype_of(form), parts_of(form)
    address = next(o for o in form.inputs if o.kind == "address")
    shared, peer = address.space in ("shared", "cluster"), "shared::cluster" in form.name
    place = f"s_{d}{'.peer(1 - me)' if peer else ''}[i * {parts}]" if shared else f"a_{d}[me, {n}, i * {parts}]"

    def operand(o):
        if o.name == "bar":
            return "bar.peer(1 - me)"
        if o.kind == "address":
            return place
        if o.name == "hint":
            return "0x12F0000000000000"  # evict_first
        array = "c" if o.name == "c" else "b"
        cells = [f"tile.load({array}_{d}[{n}, i * {parts} + {k}])" for k in range(parts)]
        if o.type == "b128":
            cells = [f"({low}, {high})" for low, high in zip(cells[::2], cells[1::2])]
        return f"({', '.join(cells)},)" if o.count is not None else cells[0]

    call = f"tile.ptx.{ptx.python_name(form)}({', '.join(map(operand, form.inputs))})"
    lines = ["tile.sync()", f"tile.store(s_{d}, tile.load(a_{d}[me, {n}, 0:{CELLS}]))"] if shared else []
    if ".async" in form.name:
        lines += ["with tile.elect():", "    tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(bar, "
                                        f"{LANES * parts * tile.dtypes.dtype_of(d).nbytes})"]
    lines += ["tile.cluster_sync()"] if shared else []
    if form.results:
        result = form.results[0]
        got = [f"r{f'[{k}]' if result.count is not None else ''}" for k in range(result.count or 1)]
        got = [f"{g}[{half}]" for g in got for half in range(2)] if result.type == "b128" else got
        lines += [f"r = {call}", *(f"tile.store(o_{d}[me, {n}, i * {parts} + {k}], {g})" for k, g in enumerate(got))]
    else:
        lines += [call]
    lines += [f"bar.wait(phase={n})"] if ".async" in form.name else []
    if shared:
        lines += ["tile.cluster_sync()", f"tile.store(a_{d}[me, {n}, 0:{CELLS}], tile.load(s_{d}))"][:1 if form.name.startswith("ld") else 2]
    return lines


def kernel_of(forms):
    """(kernel, its arrays by name, their expected final values)."""
    dtypes = sorted({dtype_of(f) for f in forms})
    shared = sorted({dtype_of(f) for f in forms if any(o.kind == "address" and o.space in ("shared", "cluster") for o in f.inputs)})
    head = [f"def cells({', '.join(f'{x}_{d}' for d in dtypes for x in 'abco')}):", "i, me = tile.thread_id(), tile.cta_rank()",
            *(f"s_{d} = tile.alloc(({CELLS},), tile.{d})" for d in shared)]
    head += ["bar = tile.mbarrier()"] if any(".async" in f.name for f in forms) else []
    body = [line for n, form in enumerate(forms) for line in text_of(form, n)]
    kernel = tile.jit(source="\n    ".join([*head, *body]) + "\n", num_warps=1, cluster=(2, 1, 1))
    rows = [arrays_of(form, n) for n, form in enumerate(forms)]
    given, wants = {}, {}
    for d in dtypes:
        made = tile.dtypes.dtype_of(d).np
        row = lambda x: np.stack([r[x] if dtype_of(f) == d else np.zeros(CELLS, made) for f, r in zip(forms, rows)])
        both = lambda x: np.stack([x, x])
        given |= {f"a_{d}": both(row("a")), f"b_{d}": row("b"), f"c_{d}": row("c"), f"o_{d}": np.zeros((2, len(forms), CELLS), made)}
        new, old = np.zeros((len(forms), CELLS), made), np.zeros((len(forms), CELLS), made)
        for n, (form, r) in enumerate(zip(forms, rows)):
            if dtype_of(form) == d:
                new[n] = after(form, **r)
                old[n] = np.where(np.arange(CELLS) < LANES * parts_of(form), r["a"], np.zeros((), made)) if form.results else 0
        wants |= {f"a_{d}": both(new), f"o_{d}": both(old)}
    return kernel, given, wants


def batches(forms):
    """The forms, in batches of a few dozen per kernel and kind of memory."""
    return [forms[n:n + IN_A_KERNEL] for n in range(0, len(forms), IN_A_KERNEL)]


def problems(forms, got: dict, wants: dict) -> list[str]:
    """The forms that left or returned wrong values."""
    found = []
    for n, form in enumerate(forms):
        for x, what in (("a", "leaves"), ("o", "returns")):
            one, want = (np.ascontiguousarray(arrays[f"{x}_{dtype_of(form)}"][:, n]) for arrays in (got, wants))
            bad = (one.view(np.uint8) != want.view(np.uint8)).reshape(2, CELLS, -1).any(axis=2)
            if bad.any():
                at = tuple(map(int, np.argwhere(bad)[0]))
                found.append(f"{form.name} {what} {one[at]!r} at {at}, not {want[at]!r}")
    return found
