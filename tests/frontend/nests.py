"""Random kernels of nested loops, for tests of loop-carried values."""

from random import Random

NUMBERS = ("a", "b", "c")
TUPLE = "t"
LENGTH = 3


def nest(random: Random, depth: int = 3) -> str:
    """A kernel of nested loops that change three numbers and a tuple, whose initial values are constants or runtime values."""
    start = [random.choice(("0", "1", "n", "m", "tile.program_id(0)")) for _ in range(len(NUMBERS) + LENGTH)]
    lines = ["def kernel(y, n, m):", *(f"    {name} = {value}" for name, value in zip(NUMBERS, start)),
             f"    {TUPLE} = ({', '.join(start[len(NUMBERS):])})", *_block(random, depth, "    ")]
    held = [*NUMBERS, *(f"{TUPLE}[{i}]" for i in range(LENGTH))]
    return "\n".join(lines + [f"    tile.store(y[{i}], tile.cast({x}, tile.float32))" for i, x in enumerate(held)])


def _block(random: Random, depth: int, indent: str, in_loop: bool = False) -> list[str]:
    lines = []
    for _ in range(random.randint(1, 3)):
        lines += _statement(random, depth, indent, in_loop)
    return lines


def _statement(random: Random, depth: int, indent: str, in_loop: bool) -> list[str]:
    kind = random.choice(("loop", "loop", "if", "leave", "number", "tuple") if depth else ("number", "tuple"))
    if kind == "loop":
        head = random.choice((f"for i{depth} in range({random.choice(('n', '2', 'a'))}):", f"while {_condition(random)}:"))
        return [indent + head, *_block(random, depth - 1, indent + "    ", True)]
    if kind == "if":
        then = [f"{indent}if {_condition(random)}:", *_block(random, depth - 1, indent + "    ", in_loop)]
        return then + ([f"{indent}else:", *_block(random, depth - 1, indent + "    ", in_loop)] if random.random() < 0.4 else [])
    if kind == "leave" and in_loop:
        return [f"{indent}if {_condition(random)}:", f"{indent}    {random.choice(('break', 'continue'))}"]
    if kind == "tuple":
        return [f"{indent}{TUPLE} = ({', '.join(_value(random) if random.random() < 0.4 else f'{TUPLE}[{i}]' for i in range(LENGTH))})"]
    return [f"{indent}{random.choice(NUMBERS)} = {_value(random)}"]


def _name(random: Random) -> str:
    return random.choice((*NUMBERS, f"{TUPLE}[{random.randrange(LENGTH)}]"))


def _value(random: Random) -> str:
    return random.choice((_name(random), f"{_name(random)} + {_name(random)}", f"{_name(random)} + 1", "0", "tile.warp_id()"))


def _condition(random: Random) -> str:
    return f"{_name(random)} {random.choice(('<', '>', '=='))} {random.choice(('0', '1', 'n', _name(random)))}"
