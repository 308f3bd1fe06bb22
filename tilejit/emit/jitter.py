"""Perturbs the timing of a kernel's PTX, to expose races.

It adds idle time and pressure on shared memory around memory accesses and synchronisation. The kernel's results
change only if it has a race.

A *site* is an instruction that accesses memory, copies, arrives, waits or synchronises. The seed chooses at compile
time which sites are perturbed, before or after, and how; at run time a hash of the site, the warp, the CTA and, at
most sites, the clock decides whether and for how long. All lanes of a warp that are active together decide alike, so
that converged warps stay converged.

Nothing else can show some races. A load of shared memory that is issued in time may read late: it waits in the queue
of the load and store unit behind others, and what refills its memory need not wait for it. Loads with bank conflicts
fill that queue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

PRESSURE_BYTES = 4096  # loads with conflicts among 32 lanes read one word in each of 32 rows of all 32 banks
MOST = 160             # perturbations per kernel; more would only make it slow to assemble
LONGEST = 14           # log2 of the longest sleep in nanoseconds: longer than any copy, 16 us

# The kinds of sites, by the instruction. The first one that fits counts.
_SITES = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("commit",  r"cp\.async(?:\.bulk)?\.commit_group|tcgen05\.commit|wgmma\.commit_group"),
    ("wait",
     r"(?:try|test)_wait|\bwait_group|\.wait_group|barrier\.cluster\.wait|tcgen05\.wait|griddepcontrol\.wait"),
    ("arrive",
     r"mbarrier\.(?:arrive|expect_tx|complete_tx)|barrier\.cluster\.arrive|\bbar(?:rier)?(?:\.cta)?\.arrive"),
    ("barrier", r"\bbar(?:rier)?(?:\.cta|\.warp)?\.(?:sync|red)\b"),
    ("fence",   r"(?<!wgmma\.)\bfence\.|\bmembar\."),
    ("copy",    r"\bcp\.(?:reduce\.)?async\.|\b(?:st|red)\.async\.|\btcgen05\.(?:cp|mma|shift)\b"),
    ("shared",  r"\b(?:ld|st|atom|red)\.[\w.:]*shared|\b(?:ld|st)matrix\."),
    ("global",
     r"\b(?:ld|st|atom|red)\.[\w.:]*global|\b(?:ld|st|atom|red)\.(?:acquire|release|relaxed|acq_rel|volatile)\."),
    ("tensor",  r"\btcgen05\.(?:ld|st)\."),
))
KINDS = ("entry", *(kind for kind, _ in _SITES))


@dataclass(frozen=True)
class Site:
    """A place between two lines of PTX: before line `line`, and that is before or after an instruction of a kind."""

    line: int
    kind: str
    after: bool


def add_jitter(ptx: str, seed: int) -> str:
    """The PTX with perturbations, each of which is one line that begins with ``/* jitter``."""
    lines = ptx.split("\n")
    random = Random(f"jitter {seed}")
    style = _Style(random, presses="smem[]" in ptx)
    chosen = [(site, how) for site in sites(lines) for how in style.perturbations(site)]
    if len(chosen) > MOST:
        chosen = [chosen[n] for n in sorted(random.sample(range(len(chosen)), MOST))]
    inserted: dict[int, list[str]] = {}
    for number, (site, how) in enumerate(chosen):
        inserted.setdefault(site.line, []).append(f"\t/* jitter {number}, {site.kind} */ {how}")
    return "\n".join(part for n, line in enumerate(lines) for part in (*inserted.get(n, ()), line))


def sites(lines: list[str]) -> list[Site]:
    """The sites of a PTX text. An inline asm statement counts as one instruction. There is none between
    ``wgmma.fence`` and the commit of its products: ptxas would serialise them."""
    found, begin, text, products = [], None, "", False
    for n, line in enumerate(lines):
        word = line.strip()
        if word.startswith("$L__func_begin"):
            found.append(Site(n + 1, "entry", True))
        elif word == "// begin inline asm":
            begin, text = n, ""
        elif begin is not None and word != "// end inline asm":
            text += word
        elif begin is not None or word[:1] not in ("", ".", "/", "$"):
            first, text, begin = (begin, text, None) if begin is not None else (n, word, None)
            products |= "wgmma.fence" in text
            kind = next((kind for kind, pattern in _SITES if pattern.search(text)), None)
            if kind is not None and not products:
                found += [Site(first, kind, False)]
            products &= "wgmma.commit_group" not in text
            if kind is not None and not products:
                found += [Site(n + 1, kind, True)]
    return found


class _Style:
    """What one seed does to a kernel: which kinds of sites it perturbs and how often, by what, and for how long.
    Styles differ a lot on purpose: a race may need many late warps, or a single one, or that nothing at all happens
    in some other place."""

    def __init__(self, random: Random, presses: bool):
        self.random = random
        self.idle = {(kind, after): random.choice((0, 0, 0.1, 0.3, 1)) for kind in KINDS for after in (False, True)}
        self.pressure = {(kind, after): random.choice((0, 0.3, 1)) if presses else 0
                         for kind, after in (("shared", False), ("wait", False), ("barrier", True), ("copy", True),
                                             ("arrive", True))}
        if random.random() < 0.5:
            self._hand_over_at_once()
        self.longest = random.randint(6, LONGEST)
        self.fresh = random.choice((0, 0.5, 1, 1))

    def _hand_over_at_once(self) -> None:
        """Perturb nothing from the accesses to the copy that is issued behind them: to show that a load reads late,
        it must not take long. A branch there also makes ptxas wait for the loads ahead of the barrier, not behind
        it."""
        for kind in ("barrier", "arrive", "fence", "copy"):
            for after in (False, True):
                self.idle[kind, after] = 0
                self.pressure.pop((kind, after), None)
        self.idle["shared", True] = 0

    def perturbations(self, site: Site) -> list[str]:
        """The PTX of the perturbations at a site, in order: idle time, then pressure,
        which must be close to what follows."""
        chance, found = self.random.random, []
        if chance() < self.idle[site.kind, site.after]:
            found.append(self._delay())
        if chance() < self.pressure.get((site.kind, site.after), 0):
            found.append(self._pressure(rounds=site.kind != "shared"))
        return found

    def _delay(self) -> str:
        """Sleep, or a loop that reads the clock. Both are behind a branch:
        ptxas moves loads across a mere ``nanosleep``."""
        random = self.random
        length = random.randint(4, self.longest)
        if random.random() < 0.5:
            return _block(random, self.fresh, f"and.b32 ja, ja, {(1 << length) - 1}; nanosleep.u32 ja;")
        return _block(random, self.fresh, f"and.b32 ja, ja, {(1 << min(length, 12)) - 1}; mov.u32 jb, %clock;",
                      "AGAIN: mov.u32 jc, %clock; sub.u32 jc, jc, jb; setp.lt.u32 jp, jc, ja; @jp bra.uni AGAIN;")

    def _pressure(self, rounds: bool) -> str:
        """Loads of shared memory whose lanes all hit one bank. ptxas keeps those that are volatile and have a
        register each, and nothing waits for their results. Ahead of accesses their number is fixed, and at most a
        branch stands before them; elsewhere it is a random number of rounds. The store at the end never happens,
        since every kernel with these loads has dynamic shared memory; without it, ptxas would move the accesses that
        follow ahead of the loads."""
        random = self.random
        address = "mov.u32 jb, %laneid; shl.b32 jb, jb, 7; mov.u32 jc, smem; add.u32 jb, jb, jc;"
        address += f" add.u32 jb, jb, {4 * random.randrange(32)};"
        loads = " ".join("{ .reg .b32 jd; ld.volatile.shared.b32 jd, [jb]; }"
                         for _ in range(random.choice((2, 4, 8, 16))))
        behind = "mov.u32 jc, %dynamic_smem_size; setp.eq.u32 jp, jc, 0; @jp st.shared.b32 [jb], jc;"
        if not rounds and random.random() < 0.5:
            return f"{{ .reg .pred jp; .reg .b32 jb, jc; {address} {loads} {behind} }}"
        if not rounds:
            return _block(random, self.fresh, address, loads, behind)
        most = (1 << random.randint(1, 5)) - 1
        return _block(random, self.fresh, f"and.b32 ja, ja, {most}; {address}",
                      f"AGAIN: {loads} setp.ne.u32 jp, ja, 0; sub.u32 ja, ja, 1; @jp bra.uni AGAIN;")


def _block(random: Random, fresh: float, *body: str) -> str:
    """PTX that runs `body` or not, as a hash decides, whose other bits `body` finds in ``ja``. A `fresh` hash takes
    in the clock; otherwise the same warps (or CTAs) are perturbed each time. Branches are uniform: the hash is the
    same in all active lanes."""
    number = random.getrandbits(32)
    if random.random() < fresh:
        parts = ["mov.u32 ja, %clock;", f"xor.b32 ja, ja, {number};"]
    else:
        parts = [f"mov.u32 ja, {number};"]
    who = random.choice(("warp", "cta", "both"))
    if who != "cta":
        parts.append("mov.u32 jb, %tid.x; shr.u32 jb, jb, 5; mad.lo.u32 ja, jb, 0x9E3779B9, ja;")
    if who != "warp":
        parts.append("mov.u32 jb, %ctaid.x; mad.lo.u32 ja, jb, 0x85EBCA6B, ja;")
    for factor, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        parts.append(f"mul.lo.u32 ja, ja, {factor}; shr.u32 jb, ja, {shift}; xor.b32 ja, ja, jb;")
    parts.append(f"shr.u32 jb, ja, 24; setp.ge.u32 jp, jb, {random.choice((16, 64, 128, 255))}; @jp bra.uni DONE;")
    return f"{{ .reg .pred jp; .reg .b32 ja, jb, jc; {' '.join((*parts, *body))} DONE: }}"
