"""Emits bulk copies without a tensor map. PTX ISA, ``cp.async.bulk``, ``cp.reduce.async.bulk``, ``mapa``."""

from __future__ import annotations

from ..dtypes import DType, float32, int16, int32, int64
from .barriers import EBarrier
from .component import Component
from .value import V

HINT = ".L2::cache_hint"
BYTES = "mbarrier::complete_tx::bytes"


class BulkCopies(Component):
    """The part of the emitter that issues bulk copies. A place is (address, constant byte offset)."""

    def load(self, to: tuple[V, int], source: V, nbytes: int, barrier: EBarrier, *, mask=None,
             policy=None) -> None:
        """Global to shared memory. With a `mask` of ranks it is a multicast, to the same offset in each of those CTAs
        and to their barriers."""
        multicast, hint = ".multicast::cluster" if mask is not None else "", HINT if policy is not None else ""
        text = f"cp.async.bulk.shared::cluster.global.{BYTES}{multicast}{hint} "
        text += f"{_place(0, to[1])}, [$1], {nbytes}, {_place(2, barrier.offset)}"
        inputs = [to[0], source, barrier.address]
        if mask is not None:
            inputs.append(self.half_word(mask))
            text += f", ${len(inputs) - 1}"
        self.emit_with_policy(text, inputs, policy)

    def store(self, to: V, source: tuple[V, int], nbytes: int, *, policy=None,
              reduce: tuple[str, str] | None = None) -> None:
        """Shared to global memory, or a reduction there, as part of the thread's current bulk group."""
        hint = HINT if policy is not None else ""
        head = f"cp{'.reduce' if reduce else ''}.async.bulk.global.shared::cta.bulk_group{hint}"
        self.emit_with_policy(f"{head}{_suffix(reduce)} [$0], {_place(1, source[1])}, {nbytes}", [to, source[0]],
                              policy)

    def to_peer(self, to: tuple[V, int], source: tuple[V, int], nbytes: int, barrier: V, *,
                reduce: tuple[str, str] | None = None) -> None:
        """Shared memory to that of another CTA of the cluster, or a reduction there. `to` and `barrier` are
        shared::cluster addresses."""
        head = f"cp{'.reduce' if reduce else ''}.async.bulk.shared::cluster.shared::cta.{BYTES}{_suffix(reduce)}"
        self.e.asm(f"{head} {_place(0, to[1])}, {_place(1, source[1])}, {nbytes}, [$2];", [],
                   [to[0], source[0], barrier])

    def store_remote(self, to: tuple[V, int], dtype: DType, values: list[V], barrier: V, predicate: V | None,
                     kind: str | None, type_: str | None) -> None:
        """``st.async`` of consecutive elements to the shared memory of a peer CTA, or with a reduction `kind`
        ``red.async`` of one element. `to` and `barrier` are shared::cluster addresses."""
        if kind is None:
            units = self.e.to_units(values, dtype)
            count, _, name = self.e.units(dtype, len(values))
            head = f"st.async.weak.shared::cluster.{BYTES}{f'.v{count}' if count > 1 else ''}.{name}"
        else:
            units, head = values, f"red.async.relaxed.cluster.shared::cluster.{BYTES}.{kind}.{type_}"
        names = ", ".join(f"${n + 2}" for n in range(len(units)))
        text = f"{head} {_place(0, to[1])}, {'{' + names + '}' if len(units) > 1 else names}, [$1];"
        guard = [] if predicate is None else [predicate]
        self.e.asm(f"@${len(units) + 2} {text}" if guard else text, [], [to[0], barrier, *units, *guard])

    def prefetch(self, source: V, nbytes: int, *, policy=None) -> None:
        """Prefetch `nbytes` of global memory to L2."""
        self.emit_with_policy(f"cp.async.bulk.prefetch.L2.global{HINT if policy is not None else ''} [$0], {nbytes}",
                              [source], policy)

    def prefetch_line(self, source: V, test: V | None) -> None:
        """Prefetch the cache line of an address to L2, where `test` is true."""
        if test is None:
            self.e.asm("prefetch.global.L2 [$0];", [], [source])
        else:
            self.e.asm("{ .reg .pred p; setp.ne.u32 p, $1, 0; @p prefetch.global.L2 [$0]; }", [],
                       [source, self.flag(test)])

    def flag(self, test: V) -> V:
        """A bool as 0 or 1 of 32 bits."""
        return self.e.ins(f"zext i1 {test.text} to i32", int32)

    def map_to_rank(self, address: V, offset: int, rank) -> V:
        """The shared::cluster address in CTA `rank` that corresponds to this CTA's ``address + offset``."""
        return self.e.asm("mapa.shared::cluster.u32 $0, $1, $2;", [int32], [address + offset, self.e.word(rank)],
                          pure=True)[0]

    def peer_barrier(self, barrier: EBarrier, rank) -> EBarrier:
        """The barrier of CTA `rank` at the same offset as a barrier of this CTA."""
        return EBarrier(self.map_to_rank(barrier.address, barrier.offset, rank), 0, remote=True)

    def half_word(self, x) -> V:
        """An integer truncated to a 16-bit value."""
        if isinstance(x, int) or x.text.lstrip("-").isdigit():
            return self.e.const(int(x if isinstance(x, int) else x.text), int16)
        return self.e.ins(f"trunc {x.typed_text} to i16", int16)

    def emit_with_policy(self, text: str, inputs: list[V], policy) -> None:
        """Issue an instruction, with the L2 cache policy as its last operand if there is one."""
        if policy is not None:
            text += f", ${len(inputs)}"
            inputs = [*inputs, self.policy(policy)]
        self.e.asm(text + ";", [], inputs)

    def policy(self, policy) -> V:
        """An L2 cache policy as a value: from its 64 bits, or from (primary, fraction, secondary) by
        ``createpolicy``, once at entry."""
        if isinstance(policy, int):
            return self.e.const(policy, int64)
        primary, fraction, secondary = policy
        text = f"createpolicy.fractional.L2::{primary}.L2::{secondary}.b64 $0, $1;"
        return self.e.entry(("policy", policy),
                            lambda: self.e.asm(text, [int64], [self.e.const(fraction, float32)], pure=True)[0])


def _suffix(reduce: tuple[str, str] | None) -> str:
    return "" if reduce is None else f".{reduce[0]}.{reduce[1]}"


def _place(operand: int, offset: int) -> str:
    return f"[${operand} + {offset}]" if offset else f"[${operand}]"
