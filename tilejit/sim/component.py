"""The base class of the machine's components."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine


class Component:
    """A part of the machine for one subject, such as TMA. The machine `m` owns it: ``m.tma``."""

    def __init__(self, m: Machine):
        self.m = m
