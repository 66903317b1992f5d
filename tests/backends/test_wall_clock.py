"""Wall times of entries, on backends of this machine: what reboots and set clocks do to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlive.backend import WALL, Commit, EntryQuery, EntryRecord, Receipt, ThreadKey
from outlive.backend import clock as clock_module
from outlive.backends.file.backend import FileBackend
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.protocol import Local
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.errors import EntryHeld

T = ThreadKey.of("", "t")
HOUR = 3600 * 10**9
MAKERS: dict[str, Callable[[Path], Local]] = {
    "memory": lambda folder: MemoryBackend(),
    "file": lambda folder: FileBackend(str(folder / "store"), fsync="normal"),
    "sqlite": lambda folder: SQLiteBackend(str(folder / "store.db"), fsync="normal"),
}


@pytest.fixture(params=MAKERS)
def backend(request: pytest.FixtureRequest, tmp_path: Path):
    local = MAKERS[request.param](tmp_path)
    local.identity(b"k" * 32)
    yield local
    local.close()


def keys(backend: Local, *, lapsed: bool) -> list[str]:
    return [entry.key for _, entry in backend.entries(EntryQuery("", "lock", lapsed=lapsed))]


def put(backend: Local, *entries: EntryRecord) -> Receipt:
    (result,) = backend.commit_all([Commit(T, entries=entries)])
    if isinstance(result, Receipt):
        return result
    raise result


def test_a_reboot_ends_leases_and_no_timer(backend: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    put(backend, EntryRecord("lock", "lease", lease_s=3600))
    put(backend, EntryRecord("lock", "timer", lease_s=3600, clock=WALL))
    assert keys(backend, lapsed=False) == ["lease", "timer"]
    monkeypatch.setattr(clock_module, "boot_id", lambda: "another boot")
    assert keys(backend, lapsed=True) == ["lease"]
    assert keys(backend, lapsed=False) == ["timer"]
    with pytest.raises(EntryHeld):
        put(backend, EntryRecord("lock", "timer", gone=True, expect_lapsed=True))


def test_a_clock_set_by_an_hour_moves_timers_and_no_lease(
    backend: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(backend, EntryRecord("lock", "lease", lease_s=1800))
    put(backend, EntryRecord("lock", "timer", lease_s=1800, clock=WALL))
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR)
    assert (keys(backend, lapsed=False), keys(backend, lapsed=True)) == (["lease"], ["timer"])
    monkeypatch.setattr(time, "time_ns", lambda: real() - HOUR)
    assert (keys(backend, lapsed=False), keys(backend, lapsed=True)) == (["lease", "timer"], [])
