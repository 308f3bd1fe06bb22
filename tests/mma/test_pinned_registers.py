"""Accumulators in pinned registers, followed along random paths through random kernels: every use of a tile finds it in its registers.

The simulator works on tile values and knows no registers; here the contents of register sets are followed instead.
"""

import random

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.ir.graph import Call, For, If, Scope, Value, While
from tilejit.passes.products.accumulators import PinnedRegisters, is_product

BEGIN = """def kernel(A, B, C, n, m):
    a, b = tile.alloc((64, 16), A.dtype, layout=tile.auto), tile.alloc((16, 8), B.dtype, layout=tile.auto)
    tile.copy(a, A[0:64, 0:16])
    tile.copy(b, B[0:16, 0:8])
    tile.sync()
    p, q, r = tile.zeros((64, 8)), tile.load(C[0:64, 0:8]), tile.zeros((64, 8))
"""
END = "    tile.store(C[0:64, 0:8], p + q * 2.0 + r * 4.0)\n"
A, B = np.ones((64, 16), np.float16), np.ones((16, 8), np.float16)


def kernel(lines):
    return tile.jit(source=BEGIN + "".join(f"    {line}\n" for line in lines) + END, num_warps=4)


class Way:
    """One path through a graph. Values and register sets hold tokens, a new one for each computed value."""

    def __init__(self, graph, seed):
        self.sets, self.choose = PinnedRegisters(graph).sets, random.Random(seed)
        self.tokens, self.held = {}, {}
        self.block(graph.body)

    def made(self, value):
        self.tokens[value] = object()
        if value in self.sets:
            self.held[self.sets[value]] = self.tokens[value]

    def read(self, operands):
        for o in operands:
            if isinstance(o, Value) and o in self.sets:
                assert self.held[self.sets[o]] is self.tokens[o], f"{o.name} is not in its registers"

    def handed(self, operands, targets):
        """A parallel assignment: all are read before any is written, and values that stay in their registers are not read."""
        tokens = [self.tokens.setdefault(o, object()) if isinstance(o, Value) else o for o in operands]
        self.read(o for o, t in zip(operands, targets) if t not in self.sets or self.sets.get(o) != self.sets[t])
        for o, t, token in zip(operands, targets, tokens):
            self.tokens[t] = token
            if t in self.sets and self.sets.get(o) != self.sets[t]:
                self.held[self.sets[t]] = token

    def block(self, block):
        for node in block.nodes:
            match node:
                case Call(args=args, results=results):
                    self.read(args)
                    if is_product(node) and isinstance(args[0], Value):
                        self.handed(args[:1], results)
                    for result in results:
                        self.made(result)
                case If(then=then, orelse=orelse, results=results):
                    way = self.choose.choice((then, orelse))
                    self.block(way)
                    self.handed(way.yields, results)
                case For(carried=carried, body=body) | While(carried=carried, body=body):
                    inner = [c.inner for c in carried]
                    self.handed([c.init for c in carried], inner)
                    for trips in range(self.choose.randrange(4), -1, -1):
                        if isinstance(node, While):
                            self.block(node.test)
                        if trips:
                            self.block(body)
                            self.handed(body.yields, inner)
                    self.tokens.update((c.result, self.tokens[c.inner]) for c in carried)
                case Scope(body=body):
                    self.block(body)


def follow_registers(lines):
    """Follow the kernel's graph along several paths."""
    made = kernel(lines)
    bound, options, _ = made._bind((A, B, np.ones((64, 8), np.float32), 3, 1), {})
    graph = made.version(bound, options, "sm_90a").lowered.graph
    for seed in range(25):
        Way(graph, seed)


TILES = st.sampled_from("pqr")


@st.composite
def statements(draw, depth=0):
    """One to three statements that multiply, copy and add three tiles, in branches and loops."""
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        x, y = draw(TILES), draw(st.sampled_from(("p", "q", "r", "None")))
        inner = lambda: [f"    {line}" for line in draw(statements(depth + 1))]
        match draw(st.sampled_from("pppcsatfw" if depth < 3 else "pppcsa")):
            case "p":
                lines.append(f"{x} = tile.dot(a, b, {y})")
            case "c":
                lines.append(f"{x} = {draw(TILES)}")
            case "s":
                lines.append(draw(st.sampled_from(("p, q = q, p", "p, q, r = q, r, p"))))
            case "a":
                lines.append(f"{x} = {draw(TILES)} + {draw(TILES)} * 0.5")
            case "t":
                lines += [f"if {draw(st.sampled_from(('n > 2', 'm > 0')))}:", *inner(), *(["else:", *inner()] if draw(st.booleans()) else [])]
            case "f":
                lines += [f"for i{depth} in range({draw(st.sampled_from(('n', 'm', '2')))}):", *inner()]
            case "w":
                lines += [f"w{depth} = 0", f"while w{depth} < m:", *inner(), f"    w{depth} += 1"]
    return lines


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(statements())
def test_every_use_of_an_accumulator_finds_it_in_its_registers(lines):
    follow_registers(lines)


@pytest.mark.parametrize("lines", [
    ["q = tile.dot(a, b, q)", "for i in range(m):", "    q = q", "    r = q", "q = p + q * 0.5"],                    # r, if there was no iteration
    ["p = tile.dot(a, b, p)", "for i in range(2):", "    p, q, r = q, r, p", "    q = r", "p = q"],      # p and r at once
    ["q = tile.dot(a, b, r)", "w = 0", "while w < m:", "    p = q", "    p, q = q, p", "    w += 1", "q = tile.dot(a, b, r)"],
    ["for i in range(3):", "    p = r", "    for j in range(2):", "        if n > 2:", "            p = tile.dot(a, b, p)", "        else:",
     "            p, q, r = q, r, p", "    r = tile.dot(a, b, r)", "r = tile.dot(a, b, p)"],
])
def test_values_that_a_loop_passes_on_together_have_separate_registers(lines):
    """Including a tile that no iteration reads: it is the result if there is no iteration."""
    follow_registers(lines)
