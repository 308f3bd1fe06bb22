"""Tensor maps as kernel parameters, and the copies that read them. PTX ISA, ``cp.async.bulk.tensor``."""

from __future__ import annotations

from ..types import int64
from .barriers import EBarrier
from .value import V

HINT = ".L2::cache_hint"


class TmaMixin:
    """The part of the emitter that issues bulk tensor copies."""

    def tensor_map(self, tensor_map) -> V:
        """The address of a map: a parameter that stays where the launch put it (``grid_constant``), one for equal maps."""
        recipe = tensor_map.recipe()
        if recipe not in self.maps:
            self.maps.append(recipe)
        n = self.maps.index(recipe)
        parameter = self.param(("map", n), int64)
        return self.entry(("map", n), lambda: self.ins(f"ptrtoint ptr {parameter.text} to i64", int64))

    def tma_load(self, tensor_map, coordinates: list, address: V, offset: int, barrier: EBarrier, *, policy: int | None = None) -> None:
        """Global to shared: the box's bytes complete on the barrier."""
        base, at = self._operands([address, barrier.address, self.tensor_map(tensor_map)], coordinates)
        text = (f"cp.async.bulk.tensor.{len(coordinates)}d.shared::cluster.global.mbarrier::complete_tx::bytes{HINT if policy is not None else ''} "
                f"{_place(0, offset)}, [$2, {at}], {_place(1, barrier.offset)}")
        self._issue(text, base, policy)

    def tma_store(self, tensor_map, coordinates: list, address: V, offset: int, *, policy: int | None = None) -> None:
        """Shared to global: part of the thread's current bulk group."""
        base, at = self._operands([address, self.tensor_map(tensor_map)], coordinates)
        text = (f"cp.async.bulk.tensor.{len(coordinates)}d.global.shared::cta.tile.bulk_group{HINT if policy is not None else ''} "
                f"[$1, {at}], {_place(0, offset)}")
        self._issue(text, base, policy)

    def _operands(self, inputs: list[V], coordinates: list) -> tuple[list[V], str]:
        """The inputs with the coordinates behind them, and the coordinates' text; 32-bit, since a map's are."""
        names = []
        for c in coordinates:
            names.append(f"${len(inputs)}")
            inputs.append(self.word(c))
        return inputs, "{" + ", ".join(names) + "}"

    def _issue(self, text: str, inputs: list[V], policy: int | None) -> None:
        if policy is not None:
            text += f", ${len(inputs)}"
            inputs = [*inputs, self.const(policy, int64)]
        self.asm(text + ";", [], inputs)


def _place(operand: int, offset: int) -> str:
    return f"[${operand} + {offset}]" if offset else f"[${operand}]"
