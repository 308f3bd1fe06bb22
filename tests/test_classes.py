"""The package's dataclasses are those of the standard library, made in less time."""

import copy
import inspect
import pickle
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial

import pytest
from tilejit.classes import frozen, mutable

STANDARD = {frozen: partial(dataclass, frozen=True), mutable: dataclass}
SHAPES = {}


def shape(function):
    """A function that declares a class by a decorator with options, and returns it with arguments of instances."""
    SHAPES[function.__name__] = function
    return function


@shape
def plain(decorator):
    @decorator()
    class Pair:
        a: int
        b: tuple = ()
    return Pair, [(1,), (1, ()), (1, (2,)), (2,), (1.0,)]


@shape
def one_field(decorator):
    @decorator()
    class One:
        a: object
    return One, [(0,), (0.0,), (1,), ((),)]


@shape
def no_field(decorator):
    @decorator()
    class Empty:
        pass
    return Empty, [(), ()]


@shape
def chosen_fields(decorator):
    @decorator()
    class Chosen:
        """With words."""
        a: int
        b: list = field(default_factory=list, hash=False)
        c: int = field(default=3, compare=False)
        d: dict = field(default_factory=dict, repr=False, compare=False)
    return Chosen, [(1,), (1, [2]), (1, [2], 4), (1, [2], 4, {5: 6})]


@shape
def slots(decorator):
    @decorator(slots=True)
    class Slots:
        a: int
        b: str = "b"
    return Slots, [(1,), (1, "b"), (2, "c")]


@shape
def identity(decorator):
    @decorator(eq=False, slots=True)
    class Identity:
        a: int
    return Identity, [(1,), (1,)]


@shape
def derived(decorator):
    @decorator()
    class Base:
        a: int
        b: int = 2

    @decorator()
    class Derived(Base):
        c: int = 3
    return Derived, [(1,), (1, 2, 3), (1, 2, 4)]


@shape
def own_methods(decorator):
    @decorator()
    class Own:
        a: int

        def __post_init__(self):
            object.__setattr__(self, "twice", 2 * self.a)

        def __repr__(self):
            return f"<{self.a}>"

        def __eq__(self, other):
            return isinstance(other, Own) and self.a % 10 == other.a % 10

        @cached_property
        def thrice(self):
            return self.a + self.twice
    return Own, [(1,), (11,), (2,)]


@shape
def own_hash_and_init(decorator):
    @decorator()
    class Hashed:
        a: int

        def __init__(self, b):
            object.__setattr__(self, "a", b + 1)

        def __hash__(self):
            return 7
    return Hashed, [(1,), (2,)]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("ours", STANDARD)
def test_a_class_does_what_the_standard_one_does(name, ours):
    def told(decorator):
        cls, arguments = SHAPES[name](decorator)
        made = [cls(*a) for a in arguments]
        seen = [repr(made), [[x == y for y in made] for x in made], made[0] == object(), cls.__match_args__, is_dataclass(cls)]
        seen += [[(f.name, f.type) for f in fields(cls)], cls.__dataclass_params__.frozen, inspect.getdoc(cls.__init__)]
        seen += [str(inspect.signature(cls)).removesuffix(" -> None"), cls.__init__.__qualname__, cls.__init__.__module__]
        if name != "identity":
            seen += [[result(hash, x) for x in made], [asdict(x) for x in made]]
        if name != "own_hash_and_init":
            seen += [repr([replace(x) for x in made]), repr([copy.deepcopy(x) for x in made]), repr([copy.copy(x) for x in made])]
        seen += [getattr(x, "thrice", None) for x in made]
        seen += [result(setattr, x, "a", 5) for x in made if fields(cls)] + [repr(made)]
        return seen + [result(delattr, x, "a") for x in made if fields(cls)] + [hasattr(x, "a") for x in made]

    assert told(ours) == told(partial(partial, STANDARD[ours]))


def result(function, *args):
    """What a function returns, or its error."""
    try:
        return function(*args)
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ["one_field", "plain"])
def test_a_field_that_is_the_same_object_is_equal(name):
    """On every version of Python, as in tuples; of the standard classes, before 3.13."""
    nan, (cls, _) = float("nan"), SHAPES[name](frozen)
    assert cls(nan) == cls(nan) and hash(cls(nan)) == hash(cls(nan)) and cls(nan) != cls(0.0)


def test_wrong_arguments_are_refused_as_by_any_function():
    cls, _ = SHAPES["plain"](frozen)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        cls()
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        cls(1, c=2)


def test_arrays_and_layouts_go_through_pickle():
    import tilejit as tile
    spec = tile.ArraySpec((4, 8), "float16")
    layout = tile.swizzled("float16", (8, 64), 128)
    assert pickle.loads(pickle.dumps(spec)) == spec and pickle.loads(pickle.dumps(layout)) == layout
