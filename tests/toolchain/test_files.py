"""Sealed files are either complete or absent, and damage is detected."""

import os

from hypothesis import given, strategies as st
from tilejit.toolchain.files import read_sealed, seal, unseal, write_sealed


@given(st.binary(max_size=300))
def test_sealed_content_is_read_back(data):
    assert unseal(seal(data)) == data


@given(st.binary(min_size=1, max_size=100), st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_is_detected(data, place, change):
    sealed = bytearray(seal(data))
    sealed[place % len(sealed)] ^= change
    assert unseal(bytes(sealed)) is None


@given(st.binary(max_size=100), st.integers(0, 200))
def test_any_truncation_is_detected(data, length):
    sealed = seal(data)
    if length < len(sealed):
        assert unseal(sealed[:length]) is None


def test_a_damaged_file_reads_as_absent_and_is_deleted(tmp_path):
    path = tmp_path / "a" / "b"
    write_sealed(path, b"hello")
    assert read_sealed(path) == b"hello"
    path.write_bytes(path.read_bytes()[:-1])
    assert read_sealed(path) is None and not path.exists()


def test_an_absent_file_reads_as_none(tmp_path):
    assert read_sealed(tmp_path / "x") is None


def test_writing_leaves_no_temporary_file(tmp_path):
    for _ in range(3):
        write_sealed(tmp_path / "a", b"x" * 1000)
    assert os.listdir(tmp_path) == ["a"]
