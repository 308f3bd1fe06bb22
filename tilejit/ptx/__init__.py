"""The instruction table: every PTX instruction form that a kernel can contain.

It has one row of data for each family of forms.

A form's **name is its PTX mnemonic** with all modifiers, spelled and ordered as in the ISA manual:

    mapa.shared::cluster.u32
    cp.async.bulk.commit_group
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32

Forms that have the same mnemonic but differ in their operands get a distinguishing last word:

    cp.async.cg.shared.global.16, …16.zfill, …16.ignore_src      the size; a source size or a predicate follows
    mbarrier.arrive.shared::cta.b64, ….count                     an optional operand: count, threads, hint, mask, pred
    wgmma.….f32.bf16.bf16, ….a_regs; tcgen05.mma.…, ….a_tmem     where the A operand is
    mov.u32.laneid, mov.u64.globaltimer                          the special register
    mov.b64.pack, mov.b64.unpack                                 to and from two halves

Look-ups compare words only, and `.`, `::` and `_` all separate words. In Python, `::` is written `_`, and a word that
starts with a digit or is a keyword gets an underscore before or after it:
`tile.ptx.cp_async.bulk.tensor._2d.global_.shared_cta.bulk_group` is
`cp.async.bulk.tensor.2d.global.shared::cta.bulk_group`.
"""

from .form import Attributes, Form
from .lookup import form, forms, is_prefix, key, rows
from .names import Name, python_name
from .operand_checks import check
from .operands import Operand
from .probe import ISA, example, probe_module, probe_ptx, refused_forms
from .row import EFFECTS, TARGETS, Row, expand
from .table_report import coverage_markdown, to_json

__all__ = [
    "Attributes", "EFFECTS", "Form", "ISA", "Name", "Operand", "Row", "TARGETS", "check", "coverage_markdown",
    "example", "expand", "form", "forms", "is_prefix", "key", "probe_module", "probe_ptx", "python_name",
    "refused_forms", "rows", "to_json",
]


def __getattr__(word: str) -> Name:
    """`ptx.mbarrier`, `ptx.cp_async`, …: the first word of a form's name."""
    if word.startswith("__") or not is_prefix(word):
        raise AttributeError(f"no PTX instruction form starts with {word!r}")
    return Name(word)


def __dir__() -> list[str]:
    return sorted({*__all__, *(python_name(f).partition(".")[0] for f in forms())})
