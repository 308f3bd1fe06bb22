"""Random kernels in which some threads write, meet, arrive, wait, release and acquire: races are found where vector clocks of single threads have them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import tilejit as tile

from tests.chosen_cases import all_cases

THREADS = 64
KERNELS, RUNS = (40, 12) if all_cases() else (8, 6)


@dataclass
class Plan:
    """The steps of CTA 0 and of CTA 1, and a kernel that takes them. Each step names rows of a table that says which threads take part."""

    steps: tuple[list, list] = field(default_factory=lambda: ([], []))
    lines: tuple[list, list] = field(default_factory=lambda: ([], []))
    rows: int = 0
    barriers: int = 0

    def row(self) -> int:
        self.rows += 1
        return self.rows - 1

    def add(self, cta: int, step: tuple, *lines: str) -> None:
        self.steps[cta].append(step)
        self.lines[cta].extend(lines)

    def meet(self, cta: int, rng) -> None:
        kind = rng.choice(["warp", "cta", "mbarrier", "nothing"])
        if kind == "warp":
            self.add(cta, ("meet", 32), "tile.ptx.bar.warp.sync(0xffffffff)")
        elif kind == "cta":
            self.add(cta, ("meet", THREADS), "tile.sync()")
        elif kind == "mbarrier":
            arrives, waits, b = self.row(), self.row(), self.barriers
            self.barriers += 1
            self.add(cta, ("hand over", arrives, waits), f"if tile.load(WHO[{arrives}, i]) != 0:", f"    tile.ptx.mbarrier.arrive.shared_cta.b64(b{b})",
                     f"if tile.load(WHO[{waits}, i]) != 0:", f"    b{b}.wait(phase=0)")


def plan(rng, fences: bool) -> Plan:
    """CTA 0 writes arrays and releases flags; CTA 1 acquires them, and reads or overwrites what the flags guard."""
    p, flags = Plan(), int(rng.integers(1, 3))
    for f in range(flags):
        writes, releases = p.row(), p.row()
        what = rng.choice(["write", "read"])
        access = f"tile.store(S[{THREADS * f} + i], i)" if what == "write" else f"t += tile.load(S[{THREADS * f} + i])"
        p.add(0, (what, f, writes, 0), f"if tile.load(WHO[{writes}, i]) != 0:", f"    {access}")
        for _ in range(rng.integers(1, 3)):
            p.meet(0, rng)
        add = f"tile.atomic_add(flags[{f}], 1{'' if fences else ', sem=' + repr('release')})"
        p.add(0, ("release", f, releases), f"if tile.load(WHO[{releases}, i]) != 0:", *(["    tile.threadfence()"] if fences else []), f"    {add}")
    for f in range(flags) if rng.random() < 0.7 else [0]:
        acquires = p.row()
        sem = "relaxed" if fences else "acquire"
        p.add(1, ("acquire", f, acquires), f"if tile.load(WHO[{acquires}, i]) != 0:", f"    while tile.load(flags[{f}], sem='{sem}') < N{f}:", "        pass",
              *(["    tile.threadfence()"] if fences else []))
        for _ in range(rng.integers(1, 3)):
            p.meet(1, rng)
    takes, f, shift = p.row(), int(rng.integers(flags)), int(rng.choice([0, 1, 32]))
    if p.steps[0][0][0] == "write" and rng.random() < 0.7:
        p.add(1, ("read", f, takes, shift), f"if tile.load(WHO[{takes}, i]) != 0:", f"    t += tile.load(S[{THREADS * f} + (i ^ {shift})])")
    else:
        p.add(1, ("write", f, takes, shift), f"if tile.load(WHO[{takes}, i]) != 0:", f"    tile.store(S[{THREADS * f} + (i ^ {shift})], 1)")
    return p


def kernel_of(p: Plan):
    names = "".join(f", C{b}: tile.constexpr" for b in range(p.barriers)) + ", N0: tile.constexpr, N1: tile.constexpr"
    made = "".join(f"    b{b} = tile.mbarrier(count=C{b})\n" for b in range(p.barriers))
    parts = ["\n".join("        " + line for line in lines) for lines in p.lines]
    return tile.jit(num_warps=2, source=f"def k(B, S, WHO, flags{names}):\n    i, t = tile.thread_id(), 0\n{made}    if tile.program_id(0) == 0:\n"
                    f"{parts[0]}\n    else:\n{parts[1]}\n    tile.store(B[tile.program_id(0), i], t)\n")


def some_threads(rng) -> np.ndarray:
    """Mostly few different shapes: all, one, a warp, lanes, or any."""
    i = np.arange(THREADS)
    return [i >= 0, i == rng.integers(THREADS), i // 32 == rng.integers(2), i % 32 == 0, rng.random(THREADS) < 0.5, i < rng.integers(1, THREADS)][rng.integers(6)]


def has_race(p: Plan, who: np.ndarray) -> bool:
    """By a vector clock for each of the 128 threads."""
    known = np.eye(2 * THREADS, dtype=int)
    written, read, released = {}, {}, {}
    for cta, steps in enumerate(p.steps):
        base = THREADS * cta
        def taking(row, base=base):
            return base + np.flatnonzero(who[row])
        for step in steps:
            match step:
                case "meet", n:
                    for first in range(base, base + THREADS, n):
                        known[first:first + n] = known[first:first + n].max(axis=0)
                        known[range(first, first + n), range(first, first + n)] += 1
                case "hand over", arrives, waits:
                    mine = taking(arrives)
                    clock = known[mine].max(axis=0)
                    known[mine, mine] += 1
                    known[taking(waits)] = np.maximum(known[taking(waits)], clock)
                case "release", f, row:
                    for t in taking(row):
                        released[f] = np.maximum(released.get(f, 0), known[t])
                        known[t, t] += 1
                case "acquire", f, row:
                    known[taking(row)] = np.maximum(known[taking(row)], released.get(f, 0))
                case ("read" | "write") as what, f, row, shift:
                    for t in taking(row):
                        at = THREADS * f + (t - base ^ shift)
                        before = written.get(at, []) + (read.get(at, []) if what == "write" else [])
                        if any(known[t, other] < epoch for other, epoch in before if other != t):
                            return True
                        (written if what == "write" else read).setdefault(at, []).append((t, known[t, t]))
    return False


@pytest.mark.parametrize("fences", [False, True])
def test_a_race_is_found_exactly_where_single_threads_have_one(fences):
    rng, races = np.random.default_rng([20, fences]), 0
    for _ in range(KERNELS):
        p = plan(rng, fences)
        kernel = kernel_of(p)
        for run in range(RUNS):
            who = np.array([some_threads(rng) for _ in range(p.rows)])
            steps = [s for steps in p.steps for s in steps]
            counts = [int(who[s[1]].sum()) for s in steps if s[0] == "hand over"]
            if not all(counts):
                continue
            constants = {f"C{b}": n for b, n in enumerate(counts)}
            constants |= {f"N{f}": sum(int(who[s[2]].sum()) for s in steps if s[:2] == ("release", f)) for f in range(2)}
            wanted = has_race(p, who)
            report = kernel.simulate((2,), np.zeros((2, THREADS), np.int32), np.zeros(128, np.int32), who.astype(np.int32), np.zeros(2, np.int32),
                                     seed=run, **constants)
            assert {f.kind for f in report.findings} == ({"race"} if wanted else set()), (p.steps, who.astype(int), kernel.source.text, str(report))
            races += wanted
    assert races > KERNELS * RUNS // 8
