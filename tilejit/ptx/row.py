"""A row of the instruction table, and its expansion into concrete forms.

A row is pure data. Its text is spelled as in the PTX ISA manual, with

    {x}          the operand x, described in the operand column
    <a|b|c>      a modifier slot with alternatives; an empty one leaves the modifier off
    <n=a|b|c>    the same, under the name n
    <sem>        a slot with the name sem and the alternatives LISTS["sem"]
    <n>          after the slot n: the alternative that was chosen there
    #tag         an alternative that appears only in the form's name, for forms that differ in their operands

The operand column holds one token for each operand, `role name:type/access*count?word`:

    role         empty for an input, = for an output, + for a register that is read and written
    type         a PTX type (b32, f16x2, v4.f32, pred), the state space that an address points to (shared, cluster,
                 tmem, global, generic, map), or imm(...) with the immediates allowed: 0..4, 24..256/8, 128, 1,-1
    /access      of an address: r if the instruction only reads the memory there, w if it writes it. Left out of
                 instructions that name one place in memory
    *count       the number of registers of a vector in braces: 4, <dim>-2, <n>/2
    ?word        the operand exists only in forms whose name contains this word (?!word: does not contain it).
                 If it does not exist, the comma before it is removed too
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from .form import Form
from .operands import parse_operand

SM80 = ("sm_80", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
TARGETS = SM80
SM90 = ("sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
ARCH = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")           # architecture-specific features that later targets kept
SM90A = ("sm_90a",)                                          # wgmma
SM100 = ("sm_100a", "sm_103a", "sm_120a")
TMEM = ("sm_100a", "sm_103a")                                # the targets with tensor memory
SM100A = ("sm_100a",)
SM103A = ("sm_103a",)
SM120A = ("sm_120a",)

# Modifiers that fewer targets support than the instructions that have them.
MODIFIER_TARGETS = {
    "cluster":         SM90,     # as a scope
    "shared::cluster": SM90,
    "cta_group::1":    TMEM,
    "cta_group::2":    TMEM,
    "im2col::w::128":  TMEM,
    "xorsign":         SM90,
}

_SEM = ("relaxed", "acquire", "release", "acq_rel")
_SCOPE = ("cta", "cluster", "gpu", "sys")

LISTS = {
    "dim":         ("1d", "2d", "3d", "4d", "5d"),
    "scope":       tuple(f".{s}" for s in _SCOPE),
    # the scopes of shared memory
    "near":        (".cta", ".cluster"),
    "order":       ("", *(f".{sem}.{s}" for sem in _SEM for s in _SCOPE)),  # of atom
    "near_order":  ("", *(f".{sem}.{s}" for sem in _SEM for s in _SCOPE[:2])),
    "red_order":   ("", *(f".{sem}.{s}" for sem in _SEM[::2] for s in _SCOPE)),  # of red
    "near_red":    ("", *(f".{sem}.{s}" for sem in _SEM[::2] for s in _SCOPE[:2])),
    "relaxed":     ("", *(f".relaxed.{s}" for s in _SCOPE)),  # of vectors
    "shared":      (".shared", ".shared::cta", ".shared::cluster"),
    "width":       ("b8", "b16", "b32", "b64", "b128", "v2.b8", "v2.b16", "v2.b32", "v2.b64", "v4.b8", "v4.b16",
                    "v4.b32"),
    "word":        ("b32", "b64", "b128", "v2.b32", "v2.b64", "v4.b32"),
    "evict":       (".L1::evict_normal", ".L1::evict_unchanged", ".L1::evict_first", ".L1::evict_last",
                    ".L1::no_allocate"),
    "hint":        ("", ".L2::cache_hint"),
    "n8":          tuple(str(n) for n in range(8, 257, 8)),  # the N of wgmma
    "n16":         tuple(str(n) for n in (8, 16, 24, *range(32, 257, 16))),  # the same on integers
    "kind":        (".kind::f16", ".kind::tf32", ".kind::f8f6f4"),
    "scaled":      (".kind::mxf8f6f4.block_scale.scale_vec::1X", ".kind::mxf8f6f4.block_scale.block32",
                    ".kind::mxf4.block_scale.scale_vec::2X", ".kind::mxf4.block_scale.block32",
                    ".kind::mxf4nvf4.block_scale.scale_vec::2X", ".kind::mxf4nvf4.block_scale.block32",
                    ".kind::mxf4nvf4.block_scale.scale_vec::4X", ".kind::mxf4nvf4.block_scale.block16"),
    "collect":     ("", ".collector::a::fill", ".collector::a::use", ".collector::a::lastuse",
                    ".collector::a::discard"),
    "keep":        ("",
                    *(f".collector::b{i}::{use}" for i in range(4) for use in ("fill", "use", "lastuse", "discard"))),
    "fetch":       ("", ".L2::64B", ".L2::128B", ".L2::256B"),
}

EFFECTS = {
    "pure":     "depends on its operands only: may be removed, repeated and moved",
    "volatile": "reads or changes the state of the machine, not memory: kept, in order",
    "warp":     "exchanges values among the lanes of a warp: kept, in order",
    "reads":    "reads memory",
    "writes":   "writes memory, or starts something that will",
    "syncs":    "orders threads or memory accesses",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A family of instruction forms. ``isa`` is the PTX version that it needs;
    ``name`` replaces the name that its text gives."""

    text: str
    operands: str
    effect: str
    targets: tuple[str, ...]
    isa: str = "8.8"
    name: str = ""

    @property
    def pattern(self) -> str:
        """The pattern of its forms' names: the text before the operands, with the slots."""
        return self.name or self.text.partition(" ")[0].partition(";")[0]

    @property
    def heads(self) -> tuple[str, ...]:
        """The first words of its forms' names."""
        word = re.match(r"\w+", self.pattern)
        return (word[0],) if word else tuple(self.pattern[1:self.pattern.index(">")].rpartition("=")[2].split("|"))


_SLOT = re.compile(r"<([^>]*)>")

Piece = str | tuple[str, bool]  # literal text, or a slot and whether this is its first occurrence


class _Slots(dict[str, tuple[str, ...]]):
    """The slots of a row in order, name -> alternatives. A slot without a name is named by its position."""

    def cut(self, text: str) -> list[Piece]:
        """`text` as a list of literal pieces and pairs (slot, whether this is its first occurrence). Adds new slots."""
        pieces: list[Piece] = []
        for index, piece in enumerate(_SLOT.split(text)):
            if index % 2 == 0:
                pieces.append(piece)
                continue
            name, equals, listed = piece.partition("=")
            if not equals and "|" in piece:
                name, listed = f"slot {len(self)}", piece
            first = name not in self
            if first:
                listed = listed or name
                assert "|" in listed or listed in LISTS or equals, f"unknown slot <{piece}> in {text!r}"
                self[name] = LISTS.get(listed) or tuple(listed.split("|"))
            pieces.append((name, first))
        return pieces


def _join(pieces: Iterable[Piece], chosen: dict[str, str]) -> str:
    """The pieces with the slots filled in. A #tag is empty at a slot's first occurrence, and its word at later ones."""
    text = []
    for piece in pieces:
        if isinstance(piece, str):
            text.append(piece)
            continue
        choice, first = chosen[piece[0]], piece[1]
        if not choice.startswith("#"):
            text.append(choice)
        elif not first:
            text.append(choice[1:])
    return "".join(text)


@cache
def expand(row: Row) -> tuple[Form, ...]:
    """Every concrete form of a row, in the order of its alternatives."""
    return tuple(forms_of(row))


def forms_of(row: Row, fits: Callable[[str], bool] | None = None) -> Iterator[Form]:
    """The concrete forms of a row. With `fits`, forms are skipped as soon as it is false for a beginning
    of their mnemonic."""
    slots, name, text, _ = _cut(row)
    for chosen in _choices(tuple(slots.items()), name if row.name else text, {}, fits):
        form = _make_form(row, tuple(chosen.values()))
        if form.targets:
            yield form


@cache
def _cut(row: Row) -> tuple[_Slots, list[Piece], list[Piece], list[list[Piece]]]:
    """A row's slots, and the pieces of its name, text and operands."""
    slots = _Slots()
    return slots, slots.cut(row.name), slots.cut(row.text), [slots.cut(token) for token in row.operands.split()]


def _choices(slots: tuple[tuple[str, tuple[str, ...]], ...], mnemonic: list[Piece], chosen: dict[str, str],
             fits: Callable[[str], bool] | None) -> Iterator[dict[str, str]]:
    """All ways to fill the slots that are not in `chosen` yet, without those that `fits` rules out."""
    if len(chosen) == len(slots):
        yield dict(chosen)
        return
    slot, options = slots[len(chosen)]
    for option in options:
        chosen[slot] = option
        known = takewhile(lambda piece: isinstance(piece, str) or piece[0] in chosen, mnemonic)
        if fits is None or fits(_mnemonic(_join(known, chosen))):
            yield from _choices(slots, mnemonic, chosen, fits)
        del chosen[slot]


def _mnemonic(text: str) -> str:
    """An instruction's text up to its operands."""
    return text.rstrip(";").split(" ")[0]


@cache
def _make_form(row: Row, choices: tuple[str, ...]) -> Form:
    slots, name_pieces, text_pieces, tokens = _cut(row)
    chosen = dict(zip(slots, choices))
    text = _join(text_pieces, chosen)
    mnemonic = _join(name_pieces, chosen) or _mnemonic(text)
    name = mnemonic + "".join(f".{choice[1:]}" for choice in chosen.values() if choice.startswith("#"))
    operands, absent = [], []
    for token in tokens:
        operand, word = parse_operand(_join(token, chosen))
        if word is None or (word.lstrip("!") in name) != word.startswith("!"):
            operands.append(operand)
        else:
            absent.append(operand.name)
    for missing in set(absent) - {o.name for o in operands}:
        text = re.sub(r"\s*[,|]\s*\{" + missing + r"\}", "", text)
    words = set(mnemonic.split("."))
    targets = row.targets
    for modifier, having in MODIFIER_TARGETS.items():
        if modifier in words:
            targets = tuple(t for t in targets if t in having)
    return Form(name, mnemonic, text, tuple(operands), row.effect, targets, row.isa)
