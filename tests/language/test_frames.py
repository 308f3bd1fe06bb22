"""What a user sees of an error that leaves the package: his own lines, and a message in short lines."""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError, Loc, fold_lines
from tilejit.frames import hide_own_frames

PACKAGE = str(Path(tile.__file__).parent)
x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)


@tile.jit
def copied(x, y, BLOCK: tile.constexpr = 64):
    tile.store(y[0:BLOCK], tile.load(x[0:BLOCK]))


def raised(call, kind=tile.TileError) -> Exception:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def names(error: BaseException) -> list[str]:
    """The functions in a traceback, from the test on."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.name != "raised"]


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_the_traceback_ends_at_the_users_call():
    assert names(raised(lambda: copied[1](x))) == ["<lambda>"]
    assert names(raised(lambda: copied(x, y))) == ["<lambda>"]
    assert names(raised(lambda: tile.autotune([{"BLOCK": 64}])(copied)[1](x))) == ["<lambda>"]


def test_a_function_of_the_user_that_the_package_calls_keeps_its_frame():
    def grid(arguments):
        return arguments["BLOK"]

    error = raised(lambda: copied[grid](x, y))
    assert names(error) == ["<lambda>"] and names(error.__cause__) == ["grid"]
    assert PACKAGE not in printed(error) and "KeyError: 'BLOK'" in printed(error)

    def reference(x, y):
        return copied[1](x)

    error = raised(lambda: tile.verify(copied, 1, x, y, reference=reference))
    assert names(error) == ["<lambda>", "reference"] and PACKAGE not in printed(error)


def test_an_error_in_a_handler_of_the_user_shows_what_was_handled_and_nothing_from_within_the_package():
    def fails():
        try:
            {}["key"]
        except KeyError:
            copied[1](x, y, BLOCK=[64])

    text = printed(raised(fails))
    assert "KeyError: 'key'" in text and text.count("During handling of the above exception") == 1 and PACKAGE not in text
    deep = raised(lambda: tile.jit(source="def k(x:\n"))  # the compiler handled Python's own error
    assert "During handling" not in printed(deep)


def test_a_call_that_does_not_fit_a_signature_ends_at_the_call_too():
    error = raised(lambda: tile.verify(copied), TypeError)
    assert names(error) == ["<lambda>"] and "missing 1 required" in str(error)

    def fails():
        raise TypeError("of the user")

    tile_error = raised(lambda: tile.verify(copied, 1, x, y, reference=lambda x, y: fails()), TypeError)
    assert names(tile_error)[-1] == "fails" and len(names(tile_error)) > 3  # a fault inside is shown whole


def test_an_assertion_about_arrays_ends_at_the_users_call():
    assert names(raised(lambda: tile.testing.assert_close(x, x + 1), AssertionError)) == ["<lambda>"]
    assert names(raised(lambda: tile.testing.assert_close(x, x[1:]))) == ["<lambda>"]


def test_the_log_shows_the_packages_frames(monkeypatch):
    monkeypatch.setenv("TILEJIT_LOG", "1")
    assert PACKAGE in printed(raised(lambda: copied[1](x)))


def test_long_lines_are_folded_at_blanks_and_words_and_shapes_stay_whole(monkeypatch):
    monkeypatch.delenv("TILEJIT_COLUMNS", raising=False)
    words = " ".join(["word"] * 50)
    assert max(map(len, fold_lines(words).split("\n"))) <= 100 and fold_lines(words).replace("\n ", "") == words
    first, *rest = fold_lines(f"  {words}", "x" * 90).split("\n")
    assert first == "  word" and all(line.startswith("    word") for line in rest)
    path = "/" + "a" * 120
    assert fold_lines(f"the file {path} is not there") == f"the file\n  {path}\n  is not there"
    assert fold_lines("a" * 85 + " b[128, 256, 64] c") == "a" * 85 + "\n  b[128, 256, 64] c"
    monkeypatch.setenv("TILEJIT_COLUMNS", "0")
    assert fold_lines(words) == words
    monkeypatch.setenv("TILEJIT_COLUMNS", "40")
    assert max(map(len, fold_lines(words).split("\n"))) <= 40


def test_an_error_is_folded_when_it_leaves_the_package_and_its_message_is_not(monkeypatch):
    monkeypatch.delenv("TILEJIT_COLUMNS", raising=False)
    long = "a message of many words " * 8
    inside = LaunchError(long, Loc("kernel.py", 3, 4, 3, 8, "kernel", "    tile.load(x)\n"))
    assert str(inside).startswith(long + "\n  kernel.py:3:5, in kernel")

    @hide_own_frames
    def fails():
        raise inside

    error = raised(fails)
    assert error.message == long and str(error).split("\n")[1].startswith("  ") and "\n  kernel.py:3:5, in kernel\n    tile" in str(error)
    assert max(len(line) for line in printed(error).splitlines() if "message" in line) <= 100
