"""The on-disk cache has complete entries or none, whatever other processes do."""

import multiprocessing
import os
import stat
import warnings

import pytest
import tilejit as tile
from tilejit.errors import CacheError
from tilejit.runtime import store as module
from tilejit.runtime.store import Store, open_store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def test_get_returns_what_was_put(store):
    assert store.get("cubin", "abcd") is None
    assert store.put("cubin", "abcd", b"\x7fELF") and store.put("manifest", "abcd", b"{}")
    assert store.get("cubin", "abcd") == b"\x7fELF" and store.get("manifest", "abcd") == b"{}"


def test_an_entry_can_be_replaced(store):
    store.put("cubin", "abcd", b"old")
    store.put("cubin", "abcd", b"new")
    assert store.get("cubin", "abcd") == b"new"


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"x",
                                    lambda data: data[:60] + b"?" + data[61:], lambda data: b"junk" * 50])
def test_a_damaged_entry_is_deleted_and_counts_as_absent(store, damage):
    store.put("cubin", "abcd", b"x" * 100)
    file, = store.path.rglob("abcd")
    file.write_bytes(damage(file.read_bytes()))
    assert store.get("cubin", "abcd") is None and not file.exists()
    assert store.put("cubin", "abcd", b"again") and store.get("cubin", "abcd") == b"again"


def test_entries_are_listed_with_their_sizes_and_cleared_by_kind(store):
    for key in ("aa1", "bb2"):
        store.put("cubin", key, b"x" * 1000)
    store.put("manifest", "aa1", b"{}")
    assert {(entry.kind, entry.key) for entry in store.entries()} == {("cubin", "aa1"), ("cubin", "bb2"), ("manifest", "aa1")}
    assert 2000 < store.nbytes() < 2300
    assert store.clear("cubin") == 2 and store.get("manifest", "aa1") == b"{}"
    assert store.clear() == 1 and store.entries() == []


def test_pruning_deletes_the_least_recently_used_entries(store):
    for age, key in enumerate(("new1", "mid1", "old1")):
        store.put("cubin", key, b"x" * 1000)
        file, = store.path.rglob(key)
        os.utime(file, (1e9 - 1000 * age,) * 2)
    assert store.prune(2200) == 1
    assert [entry.key for entry in store.entries()] == ["new1", "mid1"]


def test_partial_files_of_killed_writers_are_not_entries_and_are_removed(store):
    store.put("cubin", "abcd", b"x")
    left = store.path / "cubin" / "ab" / ".killed.tmp"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert len(store.entries()) == 1
    store.prune(10**9)
    assert not left.exists() and store.get("cubin", "abcd") == b"x"


def test_an_empty_or_missing_folder_is_an_empty_cache(tmp_path):
    store = Store(tmp_path / "nowhere")
    assert store.entries() == [] and store.clear() == 0 and store.nbytes() == 0


def test_names_cannot_escape_the_folder(store):
    for kind, key in (("../x", "a"), ("cubin", "../../x"), ("cubin", ".hidden"), ("", "a"), ("cubin", "a/b")):
        with pytest.raises(CacheError):
            store.put(kind, key, b"")


def test_an_unusable_folder_causes_one_warning_and_no_failed_launch(tmp_path):
    module._warned.clear()
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="TILEJIT_CACHE_DIR"):
        assert store.put("cubin", "abcd", b"x") is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.put("cubin", "abcd", b"x") is False
        assert store.get("cubin", "abcd") is None


def test_an_unknown_home_folder_causes_one_warning_and_no_failed_launch(monkeypatch):
    module._warned.clear()
    monkeypatch.setenv("TILEJIT_CACHE_DIR", "~no-such-user/cache")
    kernel = tile.jit(source="def k(x):\n    tile.store(x[0:32], tile.exp(tile.load(x[0:32])))\n")
    with pytest.warns(RuntimeWarning, match="no home folder is known for the cache ~no-such-user/cache; set TILEJIT_CACHE_DIR to a folder") as told:
        assert kernel.compile(tile.ArraySpec((32,), "float32")).cubin and kernel.compile(tile.ArraySpec((32,), "float64")).cubin
    assert len(told) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_can_still_be_read(store):
    module._warned.clear()
    store.put("cubin", "abcd", b"x")
    folder = store.path / "cubin" / "ab"
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert store.get("cubin", "abcd") == b"x"
        with pytest.warns(RuntimeWarning):
            assert store.put("cubin", "abce", b"y") is False
        with pytest.raises(CacheError):
            store.clear()
    finally:
        folder.chmod(stat.S_IRWXU)


def test_the_settings_select_the_folder_or_disable_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    assert open_store().path == tmp_path
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    assert open_store() is None


def hammer(path, seed, rounds):
    """Put, get, damage and clear the same few entries; every get must return None or a complete entry."""
    import random

    dice, store, wrong = random.Random(seed), Store(path), 0
    for _ in range(rounds):
        key = f"key{dice.randrange(4)}"
        action = dice.randrange(10)
        if action < 4:
            store.put("cubin", key, key.encode() * dice.randrange(1, 20000))
        elif action < 8:
            data = store.get("cubin", key)
            wrong += data is not None and data != key.encode() * (len(data) // len(key))
        elif action == 8:
            for file in store.path.glob(f"cubin/*/{key}"):
                try:
                    with open(file, "r+b") as handle:
                        handle.truncate(dice.randrange(100))
                except OSError:
                    pass
        else:
            store.clear()
            store.entries()
    os._exit(0 if wrong == 0 else 1)


def test_many_processes_may_write_read_damage_and_clear_concurrently(tmp_path):
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=hammer, args=(tmp_path, seed, 250)) for seed in range(8)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * 8
    Store(tmp_path).clear()
    assert not list(tmp_path.rglob("*.tmp"))


def give_away(path, monkeypatch):
    """Make another user the owner of a file or folder: by chown as root, otherwise by another answer for who this user is."""
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
    else:
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("fault", ["owner", "group", "others"])
def test_a_folder_or_entry_that_another_user_owns_or_can_write_is_not_used(store, monkeypatch, depth, fault):
    store.put("code", "abcd", b"machine code")
    place = [store.path, store.path / "code", store.path / "code" / "ab", store.path / "code" / "ab" / "abcd"][depth]
    if fault == "owner":
        give_away(place, monkeypatch)
    else:
        place.chmod(place.stat().st_mode | (stat.S_IWGRP if fault == "group" else stat.S_IWOTH))
    monkeypatch.setattr(module, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert store.get("code", "abcd") is None and store.get("code", "abcd") is None
        if depth < 3 and fault != "owner":
            assert not store.put("code", "abef", b"more") and not list(store.path.rglob("abef")) and not list(store.path.rglob("*.tmp"))
    assert len(caught) == 1 and str(place) in str(caught[0].message)


def test_folders_are_made_for_this_user_to_write_whatever_the_umask(store):
    before = os.umask(0)
    try:
        assert store.put("code", "abcd", b"x")
    finally:
        os.umask(before)
    assert store.get("code", "abcd") == b"x"


def test_an_entry_that_is_no_json_reads_as_none_where_json_is_needed(store):
    store.put("tuned", "abcd", b"\xff{")
    assert store.get_json("tuned", "abcd") is None and store.get_json("tuned", "none") is None
    store.put("tuned", "abcd", b"[1, 2]")
    assert store.get_json("tuned", "abcd") == [1, 2]
