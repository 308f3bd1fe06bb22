"""How CTAs of a persistent kernel take programs in turn: the PTX of `take_program`, run by threads in random order; orders of
programs."""

import math
import random
import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.ir.builtin import builtin
from tilejit.ops.language import programs
from tilejit.ops.language.programs import SLOTS, ProgramOrder, program_in_order, simulated_number

from tests.emitted_code import run_emitted

WORDS = 2 + 2 * SLOTS  # of the module's counters
MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def instructions():
    """The instructions of `take_program` as (guard, opcode, operands), and where labels are among them."""
    made, labels = [], {}
    for text in re.split(r"(?<=[;:])\s+", programs._TAKE.strip("{} ")):
        if text.endswith(":"):
            labels[text[:-1]] = len(made)
        elif not text.startswith(".reg"):
            guard, opcode, rest = re.fullmatch(r"(@p )?(\S+) (.*);", text).groups()
            made.append((guard, opcode, [part.strip() for part in re.split(r",(?![^{]*})", rest)]))
    return made, labels


TEXT, LABELS = instructions()


class Thread:
    """A producer that takes programs: each `step` runs one instruction on `memory`, which all threads share."""

    def __init__(self, memory, number, total, ctas):
        self.memory, self.at, self.taken = memory, 0, []
        self.inputs = {"$1": 0, "$2": total, "$3": ctas, "%gridid": number}
        self.registers, self.ended = {}, False

    def value(self, x):
        if x.startswith("["):
            base, _, offset = x.strip("[]").partition("+")
            return self.value(base) + int(offset or 0)
        return self.inputs[x] if x in self.inputs else self.registers[x] if x in self.registers else int(x, 0)

    def read(self, place, bits):
        at = place // 4
        return self.memory[at] | (self.memory[at + 1] << 32 if bits == 64 else 0)

    def write(self, place, value, bits):
        for n in range(bits // 32):
            self.memory[place // 4 + n] = value >> 32 * n & MASK32

    def step(self):
        if self.at == len(TEXT):
            self.taken.append(self.registers["$0"])
            self.ended, self.at = self.registers["$0"] >= self.inputs["$2"], 0
            return
        guard, opcode, operands = TEXT[self.at]
        self.at += 1
        if guard and not self.registers["p"]:
            return
        name, kind = opcode.split(".")[0], opcode.split(".")[-1]
        bits = 64 if kind.endswith("64") else 32
        if name == "bra":
            self.at = LABELS[operands[0]]
        elif name == "st":
            self.write(self.value(operands[0]), self.value(operands[1]), bits)
        elif operands[0].startswith("{"):
            for n, register in enumerate(operands[0].strip("{}").split(",")):
                self.registers[register.strip()] = self.value(operands[1]) >> 32 * n & MASK32
        else:
            self.registers[operands[0]] = self.result(name, opcode, operands[1:], bits)

    def result(self, name, opcode, operands, bits):
        if operands[0].startswith("{"):
            low, high = (self.value(x.strip()) for x in operands[0].strip("{}").split(","))
            return low | high << 32
        x, *others = map(self.value, operands)
        if name == "ld":
            return self.read(x, bits)
        if name == "atom":
            old = self.read(x, bits)
            compared = ".cas." in opcode
            new = others[-1] if compared and old == others[0] else old if compared else old + others[0]
            self.write(x, new & (MASK64 if bits == 64 else MASK32), bits)
            return old
        if name == "mad":
            return x * others[0] + others[1]
        if name == "setp":
            return {"eq": x == others[0], "ne": x != others[0], "lt": x < others[0]}[opcode.split(".")[1]] if others else 0
        return {"mov": lambda: x, "add": lambda: x + others[0] & (MASK64 if bits == 64 else MASK32),
                "and": lambda: x & others[0], "or": lambda: x | others[0]}[name]()


@pytest.mark.parametrize("seed", range(4))
def test_each_program_is_taken_once_by_launches_that_run_at_the_same_time(seed):
    """Their numbers share slots. Afterwards the counters are as they were before, so the next launches count from 0."""
    rng, memory = random.Random(seed), [0] * WORDS
    shapes = [(1 + SLOTS, 7, 3), (1 + 2 * SLOTS, 5, 4), (1, 9, 2), (2, 6, 5), (2 + SLOTS, 4, 4), (1 + 5 * SLOTS, 40, 8)]
    waiting = [shapes[rng.randrange(len(shapes))] for _ in range(4)] + shapes
    running = {}
    while waiting or running:
        if waiting and (len(running) < 5 and rng.random() < 0.02 or not running):
            number, total, ctas = waiting.pop()
            if number not in running:
                running[number] = total, ctas, [Thread(memory, number, total, ctas) for _ in range(ctas)]
            else:
                waiting.insert(0, (number, total, ctas))
        for number, (total, ctas, threads) in list(running.items()):
            for thread in threads:
                if not thread.ended and rng.random() < 0.5:
                    thread.step()
            if all(thread.ended for thread in threads):
                taken = sorted(p for thread in threads for p in thread.taken if p < total)
                assert taken == list(range(ctas, total))
                del running[number]
    assert memory == [0] * WORDS


def test_the_order_in_which_one_cta_takes_programs_is_that_of_their_numbers():
    memory = [0] * WORDS
    thread = Thread(memory, 3, 6, 1)
    while not thread.ended:
        thread.step()
    assert thread.taken == [1, 2, 3, 4, 5, 6]


ORDERS = [ProgramOrder(axis, last) for axis in range(3) for last in (False, True)]


def by_sorting(order, extents, ctas):
    """The order of programs: slices one after the other, the last ones, with 3 programs for each CTA, as one; with a CTA for each
    program, that of their numbers."""
    x, y, z = extents
    if ctas == x * y * z:
        return list(range(ctas))
    slices = {0: y * z, 1: z, 2: 1}[order.axis]
    together = min(-(-3 * ctas * slices // (x * y * z)), slices)

    def key(number):
        ids = number % x, number // x % y, number // (x * y)
        of_slice = {0: ids[1] + ids[2] * y, 1: ids[2], 2: 0}[order.axis]
        return min(of_slice, slices - together), (-1 if order.last else 1) * ids[order.axis], number
    return sorted(range(x * y * z), key=key)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ORDERS), st.tuples(*[st.integers(1, 7)] * 3), st.integers(1, 400))
def test_each_program_has_one_place_in_an_order_and_the_longest_come_first(order, extents, ctas):
    total = math.prod(extents)
    ctas = min(ctas, total)
    found = simulated_number(order, np.arange(total), extents, ctas)
    assert found.tolist() == by_sorting(order, extents, ctas)


@builtin
def in_order(g, position, axis, last):
    return g.call(program_in_order, position, order=ProgramOrder(axis, last))


@tile.jit
def numbers(OUT, AXIS: tile.constexpr, LAST: tile.constexpr):
    n = tile.thread_id()
    tile.store(OUT[n], in_order(n, AXIS, LAST))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("grid", [(2, 8, 8), (8, 2, 8), (1, 128, 1), (3, 9, 5)])
def test_emitted_code_gives_the_numbers_in_order(order, grid):
    """There are as many CTAs as programs along x, in this kernel without roles."""
    made = numbers.compile(tile.ArraySpec((128,), "int32"), order.axis, order.last, num_warps=4, target="sm_90a")
    out = np.zeros(128, np.int32)
    run_emitted(made, [out], threads=128, grid=grid)
    assert out.tolist() == simulated_number(order, np.arange(math.prod(grid)), grid, grid[0])[:128].tolist()
