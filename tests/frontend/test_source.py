"""The source text of a kernel, its parameters, and the values that it captures."""

import linecache
import math
import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent
from typing import NamedTuple

import future_annotations
import numpy as np
import pytest
import tilejit as tile
from graphs import body, built, error, marked
from tilejit.errors import CompilationError
from tilejit.frontend import Source

SIZE = 16
TABLE = [object()]
ARRAY = np.zeros(3)
COUNT = np.int64(5)


class Pair(NamedTuple):
    first: object
    second: object


@dataclass(frozen=True)
class Config:
    block: int = 16


CONFIG = Config()


class Knobs:
    block = 8


def test_parameters_annotated_constexpr_are_constants():
    def kernel(x, BLOCK: tile.constexpr, n: tile.int32, flag: tile.constexpr = True): ...

    params = Source.of(kernel).params
    assert [(p.name, p.constexpr) for p in params] == [("x", False), ("BLOCK", True), ("n", False), ("flag", True)]
    assert params[2].annotation is tile.int32 and params[3].default is True


def test_annotations_may_be_strings():
    source = future_annotations.scaled.source
    assert [p.constexpr for p in source.params] == [False, True, False]
    assert source.params[2].default == 3
    y = np.zeros(8, np.float32)
    future_annotations.scaled[1](y, BLOCK=8)
    assert (y == 3).all()


def test_double_star_parameters_are_refused():
    def kernel(x, **rest): ...

    with pytest.raises(CompilationError, match=r"parameters that are given by keyword are named one by one, and `\*\*rest` is not supported: name them"):
        Source.of(kernel).params


def test_only_helpers_may_take_star_args():
    def kernel(x, *rest): ...

    made, x = tile.jit(kernel), np.zeros(8, np.float32)
    for start in (lambda: made[1,](x, x), lambda: made.compile(x), lambda: made.simulate((1,), x, x)):
        with pytest.raises(CompilationError, match=r"a kernel's parameters are named one by one, and `\*rest` takes any number"):
            start()


def test_locations_refer_to_the_source_file():
    def kernel(y):
        tile.store(y[0], é_missing)  # a column after a wide character: 漢

    text = error(kernel)
    line = kernel.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}:26, in kernel" in text and marked(text) == "é_missing"


def test_the_text_of_a_method_with_lines_at_column_0_is_parsed():
    def kernel(y):
        """A docstring
with a line at the margin."""
        tile.store(y[0], 1.0)

    assert "store" in body(kernel)


def test_a_lambda_cannot_be_a_kernel():
    with pytest.raises(CompilationError, match="a lambda cannot be a kernel; write a def"):
        Source.of(lambda x: None)


def test_a_function_without_source_is_an_error_that_suggests_passing_the_text():
    namespace = {"tile": tile}
    exec("def kernel(y): tile.store(y[0], 1.0)", namespace)
    with pytest.raises(CompilationError, match=r"the source of kernel cannot be read .* tile.jit\(source="):
        Source.of(namespace["kernel"])


def test_the_source_of_a_notebook_cell_is_found():
    text = "def kernel(y):\n    tile.store(y[0], missing)\n"
    linecache.cache["<ipython-input-1>"] = (len(text), None, text.splitlines(True), "<ipython-input-1>")
    namespace = {"tile": tile}
    exec(compile(text, "<ipython-input-1>", "exec"), namespace)
    assert "<ipython-input-1>:2:22, in kernel" in error(namespace["kernel"])


KERNEL = "import tilejit as tile\ndef make():\n    def kernel(y):\n        tile.store(y[0], 1.0)\n    return kernel\n"


@pytest.mark.parametrize("changed, told", [
    ("x = 1\ndef other(y): pass\n", "the text of kernel has changed"), (KERNEL.replace("1.0", "2.0"), "the text of kernel has changed"),
    ("\n" + KERNEL, "the text of kernel has changed"), (KERNEL.replace("store", "load"), "the text of kernel has changed"),
    (KERNEL + "x = 3\n", "fine"), (KERNEL.replace("return kernel", "return  kernel"), "fine")])
def test_a_file_that_changed_since_its_import_is_detected(tmp_path, changed, told):
    """If the change affects the function."""
    path = tmp_path / "changing.py"
    path.write_text(KERNEL)
    code = dedent(f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        import changing, os, pathlib, time
        from tilejit.frontend import Source
        pathlib.Path(changing.__file__).write_text({changed!r})
        os.utime(changing.__file__, (time.time() + 1,) * 2)
        try:
            Source.of(changing.make())
            print("fine")
        except Exception as error:
            print(error)
        """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert told in done.stdout, done.stdout + done.stderr


def test_a_kernel_may_be_given_as_text():
    source = Source.from_text("@tile.jit\ndef kernel(y, k=2 * SIZE):\n    tile.store(y[0], k)\n", {"tile": tile, "SIZE": 4})
    assert source.name == "kernel" and source.params[1].default == 8
    assert "store(%region, 8.0," in body(source)


def test_text_that_is_not_exactly_one_function_is_refused():
    with pytest.raises(CompilationError, match="the text must define one function, and defines 0"):
        Source.from_text("x = 1")
    with pytest.raises(CompilationError, match="the text is not Python"):
        Source.from_text("def f(:")


def test_the_fingerprint_depends_only_on_the_text():
    one = Source.from_text("def kernel(y):\n    pass\n")
    same = Source.from_text("\n\ndef kernel(y):\n    pass\n")
    other = Source.from_text("def kernel(y):\n    return\n")
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


# -- captured values -------------------------------------------------------------------------------------------------------

def captured(kernel) -> dict:
    return {".".join(c.path): c for c in built(kernel).captured}


def test_captured_globals_closures_and_module_attributes_are_recorded_by_value():
    width = 3

    def kernel(y):
        tile.store(y[width], SIZE + math.pi + COUNT + CONFIG.block + Knobs.block)

    found = captured(kernel)
    assert set(found) == {"tile", "width", "SIZE", "math", "math.pi", "COUNT", "CONFIG", "CONFIG.block", "Knobs", "Knobs.block"}
    assert all(c.current() == c.token for c in found.values())


def test_a_changed_captured_value_is_detected(monkeypatch):
    def kernel(y):
        tile.store(y[0], SIZE + Knobs.block)

    found = captured(kernel)
    monkeypatch.setitem(globals(), "SIZE", 17)
    monkeypatch.setattr(Knobs, "block", 9)
    assert found["SIZE"].current() != found["SIZE"].token
    assert found["Knobs.block"].current() != found["Knobs.block"].token


def test_a_changed_helper_is_detected(monkeypatch):
    def kernel(y):
        tile.store(y[0], halved(1.0))

    found = captured(kernel)["halved"]
    monkeypatch.setitem(globals(), "halved", tile.jit(source="def halved(x):\n    return x / 2.5\n"))
    assert found.current() != found.token


@tile.jit
def halved(x):
    return x / 2


@pytest.mark.parametrize("name, words", [
    ("TABLE", "TABLE is a list, and not all that it holds is a constant"),
    ("ARRAY", "ARRAY is an array of the code around the kernel; pass it as an argument of the kernel"),
    ("sys.path_importer_cache", "sys.path_importer_cache is a dict, and not all that it holds is a constant"),
    ("sys.stdout", "which a kernel cannot read from the code around it; pass it as a tile.constexpr argument"),
])
def test_mutable_objects_whose_changes_cannot_be_detected_cannot_be_captured(name, words):
    source = Source.from_text(f"def kernel(y):\n    value = {name}\n", globals())
    assert words in error(source)


def test_user_defined_records_are_aggregates():
    def kernel(y, n):
        pair = Pair(n, second=(1.0, Config(4)))
        tile.store(y[pair.first], pair.second[0] + pair.second[1].block)

    assert "store(%region, 5.0," in body(kernel)


def test_an_unknown_name_suggests_a_similar_one():
    def kernel(y):
        block = 3
        tile.store(y[blok], 1.0)

    def attribute(y):
        tile.stor(y[0], 1.0)

    text = error(kernel)
    assert text.startswith("the name 'blok' is not defined (did you mean 'block'?)") and marked(text) == "blok"
    assert error(attribute).startswith("tile has no attribute 'stor' (did you mean 'store'?)")


def test_reading_a_name_before_its_assignment_is_an_error():
    def kernel(y):
        tile.store(y[0], SIZE)
        SIZE = 3  # noqa: F841 - makes the name local, as in Python

    assert error(kernel).startswith("SIZE is read before it is assigned")
