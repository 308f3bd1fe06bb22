"""Every form of mbarrier, barrier and fence that Hopper has, called as PTX instructions; also warp matrices and addresses."""

from __future__ import annotations

import re
from collections import Counter

import ml_dtypes
import numpy as np
from ptx_copies import called, forms, kernel
from tilejit import ptx
from tilejit.ops.ptx.meanings import meaning

from tests.cases import Case

LANES = 32


# -- mbarrier ----------------------------------------------------------------------------------------------------------------

class Phases:
    """The text of a kernel that takes barriers through successive phases with different forms."""

    def __init__(self, barriers: int, forms):
        self.lines = ["i, me = tile.thread_id(), tile.cta_rank()", f"s = tile.alloc(({barriers},), tile.uint64)"]
        self.waits = forms(r"mbarrier\.(test|try)_wait.*")
        self.turn, self.stored, self.barriers, self.waited = {}, 0, barriers, Counter()

    def init(self, counts: list[int]) -> None:
        self.lines += ["with tile.elect():", *(f"    tile.ptx.mbarrier.init.shared_cta.b64(s[{k}], {n})" for k, n in enumerate(counts)),
                       "tile.ptx.fence.mbarrier_init.release.cluster()", "tile.cluster_sync()"]

    def phase(self, k: int, arrivals: list[str], state: bool = False) -> None:
        """One phase of barrier `k`: not complete before the arrivals and complete after them, tested with the least used form of wait."""
        parity = self.turn.get(k, 0)
        self.turn[k] = parity ^ 1
        form = min((f for f in self.waits if state or ".parity" in f.name), key=lambda f: (self.waited[f.name], ".parity" in f.name))
        self.waited[form.name] += 1
        wait = called(form, bar=f"s[{k}]", state="state", parity=str(parity), nanoseconds="1000")
        self.lines += [f"early = tile.ptx.mbarrier.test_wait.parity.shared_cta.b64(s[{k}], {parity})", "tile.cluster_sync()", *arrivals,
                       f"while not {wait}:", "    pass", f"tile.store(y[me, {self.stored}, i], tile.where(early, 1000, 1))", "tile.cluster_sync()"]
        self.stored += 1


def arrivals(forms=forms) -> Case:
    """Both CTAs do the same: arrive at their own barriers, and with forms that allow it, at each other's."""
    plain = forms(r"mbarrier\.arrive(\.(release|relaxed)\.(cta|cluster))?\.shared::(cta|cluster)\.b64(\.count)?")
    bytes_ = forms(r"mbarrier\.arrive\.expect_tx.*")
    drops = forms(r"mbarrier\.arrive_drop.*")
    expects, completes = forms(r"mbarrier\.expect_tx.*"), forms(r"mbarrier\.complete_tx.*")
    made = Phases(4 + len(drops), forms)
    place = lambda f, k: f"s.peer(1 - me)[{k}]" if "shared::cluster" in f.name else f"s[{k}]"
    counts = [64 if ".count" in f.name else 32 for f in drops]
    made.init([32, 64, 32, 32, *counts])
    for form in plain:
        k = int(".count" in form.name)
        call = called(form, bar=place(form, k), count="2")
        made.phase(k, [f"state = {call}" if form.results else call], state=bool(form.results))
    while any(not made.waited[f.name] for f in made.waits if ".parity" not in f.name):
        made.phase(0, ["state = tile.ptx.mbarrier.arrive.shared_cta.b64(s[0])"], state=True)
    for n, form in enumerate(bytes_):
        complete = completes[n % len(completes)]
        made.phase(2, [called(form, bar=place(form, 2), tx_count="16"), called(complete, bar=place(complete, 2), tx_count="16")])
    for n, form in enumerate(expects):
        complete = completes[n % len(completes)]
        made.phase(2, [called(form, bar=place(form, 2), tx_count="48"), "tile.cluster_sync()",
                       "tile.ptx.mbarrier.arrive.shared_cta.b64(s[2])", "tile.cluster_sync()",
                       called(complete, bar=place(complete, 2), tx_count="48")])
    made.phase(3, ["if i > 0:", "    tile.ptx.mbarrier.arrive.noComplete.shared_cta.b64(s[3], 1)", "tile.sync()", "if i == 0:",
                   "    tile.ptx.mbarrier.arrive.shared_cta.b64(s[3])"])
    for n, form in enumerate(drops, 4):
        each = 2 if ".count" in form.name else 1
        mine = place(form, n)
        other = f"tile.ptx.mbarrier.arrive.shared_cta.b64.count(s[{n}], {each})"
        # Half of the threads drop out (arrive_drop): they count as arrivals in this phase, but not in the next.
        late = ["tile.cluster_sync()"] if "noComplete" in form.name else []
        complete = completes[-1] if "shared::cluster" in form.name else completes[0]
        done = ["if i >= 16:", "    " + called(complete, bar=mine, tx_count="16")] if "expect_tx" in form.name else []
        made.phase(n, ["if i >= 16:", "    " + called(form, bar=mine, count=str(each), tx_count="16"), *late, "if i < 16:", "    " + other, *done])
        made.phase(n, ["if i < 16:", "    " + other])
    made.lines += ["with tile.elect():", "    tile.ptx.mbarrier.inval.shared_cta.b64(s[0])", "    tile.ptx.mbarrier.init.shared_cta.b64(s[0], 5)",
                   "    first = tile.ptx.mbarrier.arrive.shared_cta.b64(s[0])", "    second = tile.ptx.mbarrier.arrive.shared_cta.b64.count(s[0], 2)",
                   "    third = tile.ptx.mbarrier.arrive.shared_cta.b64(s[0])",
                   *(f"    tile.store(y[me, {made.stored}, {k}], tile.ptx.mbarrier.pending_count.b64({name}))" for k, name in enumerate(("first", "second", "third")))]
    want = np.ones((2, made.stored + 1, LANES), np.uint32)
    want[:, -1] = 0
    want[:, -1, :3] = 5, 4, 2
    return Case("mbarrier", kernel("def phases(y):", made.lines, cluster=(2, 1, 1)), (2,), (np.zeros_like(want),), {0: want})


# -- barriers and fences -----------------------------------------------------------------------------------------------------

class Rounds:
    """Lines of rounds in which two warps of each of two CTAs write, synchronise and read what another thread wrote; and the
    expected values."""

    def __init__(self, rows: int, between: str) -> None:
        self.lines, self.between, self.row = ["i, me = tile.thread_id(), tile.program_id(0)", "s = tile.alloc((64,), tile.uint32)", "p = i % 3 == 0"], between, 0
        self.want = np.zeros((2, rows, 64), np.uint32)

    def round(self, by: list[str], across: bool = False, result: str = "0", adds: int = 0) -> None:
        """One round: `by` are the lines that synchronise the threads. If they synchronise across CTAs, the peer's memory is read."""
        within = by[0].startswith("tile.ptx.bar.warp")
        source = "shared_cluster.b32(s.peer(1 - me)[i])" if across else "shared.b32(s[i ^ 31])" if within else "shared.b32(s[63 - i])"
        self.lines += [f"tile.ptx.st.shared.b32(s[i], {self.row * 100} + i + 7 * me)", *by, f"r = tile.ptx.ld.{source}",
                       f"tile.store(y[me, {self.row}, i], r + {result})", self.between]
        other = np.arange(64) if across else np.arange(64) ^ 31 if within else 63 - np.arange(64)
        for me in range(2):
            self.want[me, self.row] = self.row * 100 + other + 7 * (1 - me if across else me) + adds
        self.row += 1

    def case(self, name: str, **options) -> Case:
        assert self.row == self.want.shape[1]
        return Case(name, kernel("def meetings(y):", self.lines, num_warps=2, **options), (2,), (np.zeros_like(self.want),), {0: self.want})


def barriers(forms=forms) -> Case:
    """What one thread writes before a barrier, another reads after it; barriers that reduce combine predicates."""
    chosen = forms(r"bar(rier)?\.sync.*|bar(rier)?\.red.*|bar\.warp\.sync")
    joins = forms(r"barrier\.arrive.*|bar\.arrive")
    cluster_arrive, cluster_wait = forms(r"barrier\.cluster\.arrive.*"), forms(r"barrier\.cluster\.wait.*")
    made = Rounds(len(chosen) + len(joins) + len(cluster_arrive) * len(cluster_wait), "tile.cluster_sync()")
    for n, form in enumerate(chosen):
        call = called(form, id=str(1 + n % 7), threads="64", p="p", membermask="-1")
        if ".red" in form.name:
            made.round([f"got = {call}"], result="1000 * tile.uint32(got)",
                       adds=1000 * {"popc": 22, "and": 0, "or": 1}[form.name.split("red.")[1].split(".")[0]])
        else:
            made.round([call])
    for form in joins:
        made.round(["with tile.warp(0):", "    " + called(form, id="9", threads="64"), "with tile.warp(1):",
                    "    tile.ptx.bar.sync.threads(9, 64)", "tile.sync()"])
    for arrive in cluster_arrive:
        for wait in cluster_wait:
            made.round(["tile.ptx.fence.acq_rel.cluster()", called(arrive), called(wait)], across=True)
    return made.case("barriers", cluster=(2, 1, 1))


def fences(forms=forms) -> Case:
    """A fence before a barrier."""
    chosen = forms(r"membar.*|fence\.(?!proxy\.tensormap).*")
    made = Rounds(len(chosen), "tile.sync()")
    for form in chosen:
        made.round([called(form), "tile.sync()"])
    return made.case("fences")


# -- matrices ----------------------------------------------------------------------------------------------------------------

def fragment(matrix: np.ndarray) -> np.ndarray:
    """The elements of an 8x8 matrix of 16-bit elements that each lane holds: two adjacent elements of a row."""
    return np.ascontiguousarray(matrix.reshape(LANES, 2)).view(np.uint32).ravel()


def matrices() -> Case:
    """ldmatrix, stmatrix and movmatrix of one, two and four matrices, normal and transposed."""
    loads, stores = forms(r"ldmatrix\..*"), forms(r"stmatrix\..*")
    rng = np.random.default_rng(3)
    x = rng.integers(0, 1 << 16, 256).astype(np.uint16)
    v = rng.integers(0, 1 << 32, (4, LANES)).astype(np.uint32)
    z, w = np.zeros((len(loads) + 1, 4, LANES), np.uint32), np.zeros((len(stores), 256), np.uint16)
    lines = ["i = tile.thread_id()", "s = tile.alloc((256,), tile.uint16)", "tile.store(s, tile.load(x[0:256]))", "tile.sync()"]
    count = lambda form: int(re.search(r"\.x(\d)", form.name)[1])
    for n, form in enumerate(loads):
        lines += [f"r = {called(form, a=f's[i % {8 * count(form)} * 8]')}", *(f"tile.store(z[{n}, {k}, i], r[{k}])" for k in range(count(form)))]
        for k in range(count(form)):
            m = x[64 * k:64 * k + 64].reshape(8, 8)
            z[n, k] = fragment(m.T if ".trans" in form.name else m)
    lines += [f"tile.store(z[{len(loads)}, 0, i], tile.ptx.movmatrix.sync.aligned.m8n8.trans.b16(tile.load(v[0, i])))"]
    z[-1, 0] = fragment(v[0].view(np.uint16).reshape(8, 8).T)
    for n, form in enumerate(stores):
        values = "(" + "".join(f"tile.load(v[{k}, i]), " for k in range(count(form))) + ")"
        lines += ["tile.sync()", "tile.store(s, 0)", "tile.sync()", called(form, a=f"s[i % {8 * count(form)} * 8]", value=values), "tile.sync()",
                  f"tile.store(w[{n}, 0:256], tile.load(s))"]
        for k in range(count(form)):
            m = v[k].view(np.uint16).reshape(8, 8)
            w[n, 64 * k:64 * k + 64] = (m.T if ".trans" in form.name else m).ravel()
    return Case("matrices", kernel("def matrices(x, v, z, w):", lines), (1,), (x, v, np.zeros_like(z), np.zeros_like(w)), {2: z, 3: w})


PRODUCTS = {"m16n8k16.row.col.f32.f16.f16.f32": np.float16, "m16n8k16.row.col.f32.bf16.bf16.f32": ml_dtypes.bfloat16,
            "m16n8k8.row.col.f32.tf32.tf32.f32": np.float32,
            "m16n8k32.row.col.s32.s8.s8.s32": np.int8, "m16n8k32.row.col.s32.u8.u8.s32": np.uint8,
            "m16n8k32.row.col.f32.e4m3.e4m3.f32": ml_dtypes.float8_e4m3fn,
            "m16n8k32.row.col.f32.e5m2.e5m2.f32": ml_dtypes.float8_e5m2}


def products() -> Case:
    """mma.sync of one tile for each type, with integer values."""
    lines = ["i = tile.thread_id()"]
    want = np.zeros((len(PRODUCTS), 4, LANES), np.float32)
    registers = np.zeros((len(PRODUCTS), 6, LANES), np.uint32)
    g, t = np.arange(LANES) // 4, np.arange(LANES) % 4
    for n, (name, kind) in enumerate(PRODUCTS.items()):
        per = 4 // np.dtype(kind).itemsize               # elements per register
        k, rng = 8 * per, np.random.default_rng(n)
        a, b = (rng.integers(0 if kind == np.uint8 else -3, 4, shape).astype(kind) for shape in ((16, k), (8, k)))
        cut = lambda m, row, half: np.ascontiguousarray(m.reshape(len(m), 2, 4, per)[row, half, t]).view(np.uint32).ravel()
        registers[n] = [cut(a, g, 0), cut(a, g + 8, 0), cut(a, g, 1), cut(a, g + 8, 1), cut(b, g, 0), cut(b, g, 1)]
        d = a.astype(np.float32) @ b.astype(np.float32).T
        want[n] = [d[g, 2 * t], d[g, 2 * t + 1], d[g + 8, 2 * t], d[g + 8, 2 * t + 1]]
        form = ptx.form("mma.sync.aligned." + name)
        zero = "0" if "s32" in name else "0.0"
        part = lambda first, last: "(" + ", ".join(f"tile.load(x[{n}, {r}, i])" for r in range(first, last)) + ",)"
        lines += [f"r = {called(form, a=part(0, 4), b=part(4, 6), c=f'({zero}, {zero}, {zero}, {zero})')}",
                  *(f"tile.store(y[{n}, {r}, i], tile.cast({f'tile.int32(r[{r}])' if 's32' in name else f'r[{r}]'}, tile.float32))" for r in range(4))]
    return Case("mma.sync", kernel("def products(x, y):", lines), (1,), (registers, np.zeros_like(want)), {1: want})


# -- addresses, clocks -------------------------------------------------------------------------------------------------------

def addresses() -> Case:
    """Queries of an address's state space and owner, accesses through each way to write it, and clocks that increase."""
    facts = {
        "tile.ptx.isspacep.global_(x[0])": 1, "tile.ptx.isspacep.global_(s[0])": 0, "tile.ptx.isspacep.shared(s[0])": 1,
        "tile.ptx.isspacep.shared_cta(s[0])": 1,
        "tile.ptx.isspacep.shared_cta(there)": 0, "tile.ptx.isspacep.shared_cluster(there)": 1, "tile.ptx.isspacep.shared_cluster(s[0])": 1,
        "tile.ptx.isspacep.local(s[0])": 0, "tile.ptx.isspacep.const(x[0])": 0,
        "tile.ptx.getctarank.u64(there) == 1 - me": 1, "tile.ptx.getctarank.shared_cluster.u32(near) == 1 - me": 1,
        "tile.ptx.getctarank.u64(s[0]) == me": 1,
        "tile.ptx.ld.b32(there) == 51 - me": 1, "tile.ptx.ld.shared_cluster.b32(near) == 51 - me": 1, "tile.ptx.ld.b32(s[0]) == 50 + me": 1,
        "tile.ptx.ld.b32(tile.ptx.cvta.shared.u64(tile.ptx.cvta.to.shared.u64(s[0]))) == 50 + me": 1,
        "tile.ptx.ld.b32(tile.ptx.cvta.shared_cta.u64(tile.ptx.cvta.to.shared_cta.u64(s[0]))) == 50 + me": 1,
        "tile.ptx.ld.b32(tile.ptx.cvta.shared_cluster.u64(tile.ptx.cvta.to.shared_cluster.u64(there))) == 51 - me": 1,
        "tile.ptx.ld.b32(tile.ptx.cvta.global_.u64(tile.ptx.cvta.to.global_.u64(x[3]))) == 13": 1,
        "tile.ptx.ld.global_.b32(tile.ptx.cvta.to.global_.u64(x[4])) == 14": 1,
        "tile.ptx.mov.u64.clock64() > clock": 1, "tile.ptx.mov.u64.globaltimer() > timer": 1, "tile.ptx.mov.u32.smid() < tile.ptx.mov.u32.nsmid()": 1,
        "tile.ptx.mov.u32.dynamic_smem_size() >= 128": 1, "tile.ptx.mov.pred.is_explicit_cluster()": 1, "tile.ptx.mov.u32.cluster_nctarank() == 2": 1,
        "tile.ptx.mov.u32.cluster_ctarank() == me": 1,
    }
    lines = ["me = tile.cta_rank()", "s = tile.alloc((32,), tile.uint32)", "tile.store(s, 50 + me)",
             "clock, timer = tile.ptx.mov.u64.clock64(), tile.ptx.mov.u64.globaltimer()",
             "tile.ptx.nanosleep.u32(5000)", "tile.cluster_sync()", "there, near = tile.ptx.mapa.u64(s[0], 1 - me), "
                                                                    "tile.ptx.mapa.shared_cluster.u32(s[0], 1 - me)"]
    lines += [f"tile.store(y[me, {n}], tile.where({text}, 1, 0))" for n, text in enumerate(facts)]
    want = np.array([list(facts.values())] * 2, np.uint32)
    return Case("addresses and clocks", kernel("def places(x, y):", lines, cluster=(2, 1, 1)), (2,),
                (np.arange(10, 42).astype(np.uint32), 7 + np.zeros_like(want)), {1: want})


def simulated():
    """The cases of barriers and fences, with the forms that the simulator implements."""
    return [make(lambda pattern: [f for f in forms(pattern) if meaning(f)]) for make in (arrivals, barriers, fences)]


def every_meeting():
    yield from (arrivals(), barriers(), fences(), matrices(), products(), addresses())
