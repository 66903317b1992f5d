"""The file backend: what its files hold, and what becomes of damage, strangers, full disks and other processes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import ormsgpack
import pytest

import outlive
from outlive import testing
from outlive.backend import (
    CachedHead,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Receipt,
    Removal,
    ThreadKey,
    ThreadQuery,
    WriteRecord,
)
from outlive.backend.clock import Clock
from outlive.backends.file import effects as effects_module
from outlive.backends.file import group_writer as batch_module
from outlive.backends.file.backend import FileBackend
from outlive.backends.file.disk import Disk
from outlive.backends.file.index import Index
from outlive.backends.file.log import START, Log
from outlive.backends.local import memory as memory_module
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.backends.rules import decide as decide_module
from outlive.backends.rules.view import Counters, Effect
from outlive.errors import (
    BadArgument,
    BadURL,
    Corrupt,
    HeadMoved,
    NewerFormat,
    NotErased,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S

SEED = int(os.environ.get("OUTLIVE_SEED", "20261115"))
LONG = bool(os.environ.get("OUTLIVE_LONG"))
ROUNDS = 400 if LONG else 12
T = ThreadKey.of("", "trip-42")
U = ThreadKey.of("", "other")


class QuickDisk(Disk):
    """A disk that need not be waited for."""

    def sync(self, fd: int) -> None:
        """Nothing in these tests outlives the machine."""

    def sync_folder(self, folder: str = "") -> None:
        """The same."""


def opened(folder: Path, **options: object) -> FileBackend:
    return FileBackend(str(folder), **{"disk": QuickDisk(str(folder)), **options})  # type: ignore[arg-type]


def chunk(text: str, size: int = 200) -> tuple[bytes, bytes]:
    data = (text.encode() * size)[:size]
    return hashlib.blake2b(data, digest_size=16).digest(), data


def record(name: str, *chunks: bytes, **more: object) -> CheckpointRecord:
    values = {"follows": True, **more}
    return CheckpointRecord(
        "", name, None, None, 1, "loop", 10, 10, chunks, f"body of {name}".encode(), **values
    )  # type: ignore[arg-type]


def saving(name: str, thread: ThreadKey = T, size: int = 200, **more: object) -> Commit:
    new = chunk(f"{thread.id!r} {name} ", size)
    return Commit(thread, (record(name, new[0]),), (new,), **more)  # type: ignore[arg-type]


def done(backend: MemoryBackend, commit: Commit) -> Receipt:
    (result,) = backend.commit_all([commit])
    if isinstance(result, Exception):
        raise result
    return result


def save(backend: MemoryBackend, *names: str, thread: ThreadKey = T, size: int = 200) -> None:
    for name in names:
        done(backend, saving(name, thread, size))


def ids(backend: MemoryBackend, thread: ThreadKey = T) -> list[str]:
    return [found.id for found in backend.history(HistoryQuery(thread, None, limit=10_000))[1]]


def read_all(backend: MemoryBackend, thread: ThreadKey = T) -> object:
    """Everything that a thread says."""
    inventory = backend.inventory(thread)
    head = backend.read(thread, "")
    return (
        head,
        backend.history(HistoryQuery(thread, None, limit=10_000)),
        backend.writes(thread, None),
        backend.entries(EntryQuery(thread.tenant, "run", thread=thread)),
        inventory,
        backend.fetch(thread, list(inventory.chunks)),
        [row for row in backend.threads(ThreadQuery("")) if row.id == thread.id],
    )


def log_of(folder: Path, thread: ThreadKey = T) -> Path:
    return folder / "threads" / f"{thread.digest.hex()}.log"


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


# What is kept ----------------------------------------------------------------------------------------------


def test_everything_that_was_committed_is_there_for_a_new_process(folder: Path) -> None:
    thread = ThreadKey.of("tenant\0", "lone \ud800 \\ surrogate")
    name = chunk(f"{thread.id!r} c1 ")[0]
    write = WriteRecord("n", "c1", "task", -1, "ch\udfff", "path", b"w", (name,), (1, 2, 3))
    first = opened(folder)
    done(
        first,
        saving(
            "c1",
            thread,
            writes=(write,),
            entries=(EntryRecord("run", "r", b"e", "running", 1, 2, 3, 4),),
            metadata=b"i",
        ),
    )
    seen = read_all(first, thread)
    first.close()
    second = opened(folder)
    assert read_all(second, thread) == seen
    assert [row.id for row in second.threads(ThreadQuery("tenant\0"))] == [thread.id]
    assert second.writes(thread, None) == [write]


def test_the_fields_on_disk_are_all_the_fields_there_are() -> None:
    """A new field of a record has to be given its place in the file, at the end of its list."""

    def fields(of: type) -> set[str]:
        return {field.name for field in dataclasses.fields(of)}

    assert set(effects_module._CHECKPOINT) == fields(CheckpointRecord) - {"follows"}
    assert set(effects_module._WRITE) == fields(WriteRecord)
    assert set(effects_module._ENTRY) == fields(EntryRecord) - {"lease_s", "expect", "expect_lapsed"}
    assert set(effects_module._ROW) == fields(Counters)
    assert fields(Effect) == {
        "thread", "counters", "at", "checkpoints", "rewrites", "replaced", "chunks", "writes", "entries", "removed",
        "removed_chunks", "everything", "erase", "metadata", "metadata_projection",
    }  # fmt: skip


def test_it_does_what_the_memory_backend_does_whatever_happens(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tuned: Callable[..., None]
) -> None:
    """Random commits to both, through two backends that take turns, with logs that are soon rewritten."""
    for module in (batch_module, memory_module):
        monkeypatch.setattr(module, "clock", lambda: Clock(5000, 1000, "boot"))
    monkeypatch.setattr(decide_module, "new_generation", lambda: 7)
    tuned(file_cached_tables=1, file_waste_bytes=1000)
    for number in range(ROUNDS):
        seed = f"{SEED} {number}"
        compare(folder / str(number), random.Random(seed), seed)


def compare(folder: Path, chance: random.Random, seed: str) -> None:
    folder.mkdir(parents=True)
    backends, memory = [opened(folder), opened(folder)], MemoryBackend()
    backends[0].identity(b"key")
    for _ in range(40):
        group = [any_commit(chance, memory) for _ in range(chance.choice((1, 1, 1, 3)))]
        results = chance.choice(backends).commit_all(group)
        wanted = memory.commit_all(group)
        assert [outcome(one) for one in results] == [outcome(one) for one in wanted], seed
        if chance.random() < 0.1:
            backends[0].close()
            backends[0] = opened(folder)
        thread = chance.choice((T, U))
        assert read_all(chance.choice(backends), thread) == read_all(memory, thread), seed
    assert [backends[0].audit(thread) for thread in (T, U, None)] == [[], [], []], seed
    assert not list(folder.rglob("*.tmp")), seed


def outcome(result: Receipt | Exception) -> object:
    return result if isinstance(result, Receipt) else (type(result), str(result))


def any_commit(chance: random.Random, backend: MemoryBackend) -> Commit:
    thread, name = chance.choice((T, U)), f"c{chance.randrange(12)}"
    there = [(one.namespace, one.id) for one in backend.history(HistoryQuery(thread, None))[1]]
    names = list(backend.inventory(thread).chunks)
    kind = chance.randrange(12)
    if kind == 0 and there:
        some = tuple(chance.sample(there, min(2, len(there))))
        return Commit(thread, removal=Removal(checkpoints=some, erase=chance.random() < 0.3))
    if kind == 1 and names:
        some = tuple(chance.sample(names, min(3, len(names))))
        again = (chunk("again"),) if chance.random() < 0.5 else ()
        return Commit(thread, chunks=again, removal=Removal(chunks=some, chunks_until=99))
    if kind == 2 and chance.random() < 0.3:
        again = (chunk("again"),) if chance.random() < 0.5 else ()
        return Commit(thread, chunks=again, removal=Removal(everything=True))
    if kind == 3 and there:
        return Commit(thread, rewrites=(replace(record(there[0][1]), namespace=there[0][0], body=b"moved"),))
    if kind == 4:
        return Commit(thread, (record(name, seq=chance.randrange(1, 99), epoch=chance.randrange(2)),))
    if kind == 5:
        return saving(name, thread, expect_head=("", f"c{chance.randrange(12)}"))
    if kind == 6:
        return saving(name, thread, metadata=name.encode(), replace=True)
    writes = (WriteRecord("", name, "task", chance.randrange(-2, 2), "channel", "path", name.encode()),)
    entries = (
        EntryRecord("run", name, b"x", fence=chance.randrange(3), lease_s=1, gone=chance.random() < 0.3),
    )
    return saving(name, thread, chance.choice((50, 200, 900)), writes=writes, entries=entries)


def test_a_chunk_that_is_there_is_stamped_again_and_not_written_again(folder: Path) -> None:
    backend = opened(folder)
    new = chunk("x", 5000)
    done(backend, Commit(T, chunks=(new,)))
    size = log_of(folder).stat().st_size
    done(backend, Commit(T, chunks=(new,)))
    assert backend.inventory(T).chunks == {new[0]: (5000, 2)}
    assert log_of(folder).stat().st_size < size + 200
    assert opened(folder).fetch(T, [new[0]]) == dict([new])


def test_a_reader_that_has_the_head_gets_no_chunks_again(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    head = backend.read(T, "").record
    assert head is not None
    assert backend.read(T, "", known=CachedHead("c1", head.chunks)).chunks == {}


def test_one_refusal_refuses_one(folder: Path) -> None:
    backend = opened(folder)
    results = backend.commit_all(
        [saving("c1"), saving("c2", expect_head=("", "nobody")), saving("c3"), saving("u1", U), saving("c1")]
    )
    assert [type(result) for result in results] == [Receipt, HeadMoved, Receipt, Receipt, Receipt]
    assert results[4].existing is not None  # type: ignore[union-attr]
    assert ids(opened(folder)) == ["c3", "c1"]


def test_what_cannot_be_encoded_refuses_one(folder: Path) -> None:
    backend = opened(folder)
    huge = Commit(T, (replace(record("c2"), step=2**70),))
    results = backend.commit_all([saving("c1"), huge, saving("c3")])
    assert [type(result) for result in results] == [Receipt, BadArgument, Receipt]
    assert ids(opened(folder)) == ["c3", "c1"]


def test_a_removal_that_names_things_twice_removes_them_once(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1", "c2")
    twice = Removal((("", "c1"),) * 2, (chunk("'trip-42' c1 ")[0],) * 2, 99)
    done(backend, Commit(T, removal=twice))
    assert ids(opened(folder)) == ["c2"]
    done(backend, Commit(T, removal=replace(twice, checkpoints=(("", "c2"),), everything=True)))
    assert ids(opened(folder)) == []


def test_a_group_of_more_threads_than_files_may_be_open_is_committed(folder: Path) -> None:
    script = """
import resource, sys
sys.path[:0] = sys.argv[2:]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from test_file import *
backend = opened(Path(sys.argv[1]))
threads = [ThreadKey.of("", f"t{i}") for i in range(300)]
for name in ("c1", "c2"):
    results = backend.commit_all([saving(name, thread) for thread in threads])
    assert all(isinstance(result, Receipt) for result in results), results
assert len(backend.threads(ThreadQuery("", limit=1000))) == 300
backend.close()
"""
    run_script(script, folder)


def run_script(script: str, folder: Path) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    found = subprocess.run(
        [sys.executable, "-c", script, str(folder), *paths], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_listings_go_by_tenant_prefix_and_page(folder: Path) -> None:
    backend = opened(folder)
    for name in ("b", "a/1", "a/2", "a/3", "\\", "é", "gone"):
        save(backend, "c1", thread=ThreadKey.of("x", name))
    save(backend, "c1", thread=ThreadKey.of("y", "a/9"))
    done(backend, Commit(ThreadKey.of("x", "gone"), removal=Removal(everything=True)))
    assert [row.id for row in backend.threads(ThreadQuery("x"))] == ["\\", "a/1", "a/2", "a/3", "b", "é"]
    assert [row.id for row in backend.threads(ThreadQuery("x", prefix="a/", after="a/1", limit=1))] == ["a/2"]
    assert [row.id for row in opened(folder).threads(ThreadQuery("y"))] == ["a/9"]


def test_entries_of_all_threads_are_found_without_keeping_all_threads(
    folder: Path, tuned: Callable[..., None]
) -> None:
    tuned(file_cached_tables=2)
    backend = opened(folder)
    for name in "dbca":
        run = EntryRecord("run", name, status="running" if name != "c" else "done")
        done(backend, saving("c1", ThreadKey.of("", name), entries=(run,)))
    found = opened(folder).entries(
        EntryQuery("", "run", statuses=["running"], after=("a", ThreadKey.of("", "a").digest), limit=2)
    )
    assert [(key.id, entry.key) for key, entry in found] == [("b", "b"), ("d", "d")]
    assert len(backend._cache) == 2


def test_chunks_are_shared_from_thread_to_thread(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    name = next(iter(backend.inventory(T).chunks))
    assert backend.share(T, U, [name, b"no such chunk..."]) == backend.inventory(U).generation
    assert opened(folder).fetch(U, [name]) == backend.fetch(T, [name])


# Identity ----------------------------------------------------------------------------------------------------


def test_the_first_naming_key_that_was_offered_stays(folder: Path) -> None:
    assert opened(folder).identity(b"first") == b"first"
    assert opened(folder).identity(b"second") == b"first"


def test_a_store_file_that_is_gone_or_damaged_is_noticed(folder: Path) -> None:
    backend = opened(folder)
    backend.identity(b"key")
    save(backend, "c1")
    whole = (folder / "store").read_bytes()
    for at in range(len(whole)):
        (folder / "store").write_bytes(flipped(whole, at, at % 8))
        with pytest.raises(Corrupt):
            opened(folder).identity(b"other")
    (folder / "store").unlink()
    with pytest.raises(Corrupt):
        opened(folder).identity(b"other")
    assert len(opened(folder).audit(None)) == 1


def test_a_newer_format_is_refused_with_both_versions_named(folder: Path) -> None:
    with testing.tuned(file_frame_format=9):
        backend = opened(folder)
        backend.identity(b"key")
        save(backend, "c1")  # a frame of a newer format
    with testing.tuned(file_log_format=8):
        done(MemoryBackend(), saving("u1", U))
        log = Log(QuickDisk(str(folder)), f"threads/{U.digest.hex()}.log", U.digest)
        log.begin()
        with log.aside():
            pass
    with pytest.raises(NewerFormat, match=r"format 9.* up to 1"):
        opened(folder).identity(b"key")
    with pytest.raises(NewerFormat, match=r"format 9.* up to 1"):
        opened(folder).read(T, "")
    with pytest.raises(NewerFormat, match=r"format 8.* up to 1"):
        opened(folder).read(U, "")


def test_wrong_wiring_fails_at_the_constructor(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("not yours")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for name in ("full", "file", "link", "no/parent"):
        with pytest.raises(BadURL):
            FileBackend(str(tmp_path / name))
    with pytest.raises(BadURL):
        FileBackend(str(tmp_path / "new"), fsync="sometimes")
    assert sorted(os.listdir(tmp_path / "full")) == ["thesis.txt"]


# Torn tails and damage ---------------------------------------------------------------------------------------


def unmarked(folder: Path, *names: str) -> None:
    """Save so that the marks stay behind, as after a power cut."""
    marks = (folder / "lock").read_bytes()
    with log_of(folder).open("r+b") as file:
        before = file.read(START)
        save(opened(folder), *names)
        file.seek(0)
        file.write(before)
    (folder / "lock").write_bytes(marks)


@pytest.mark.parametrize("tail", [b"x", bytes(500), b"\xff" * 40, b"half"])
def test_a_torn_tail_is_ignored_by_readers_and_cut_by_the_next_writer(folder: Path, tail: bytes) -> None:
    save(opened(folder), "c1")
    whole = log_of(folder).read_bytes()
    unmarked(folder, "c2")
    torn = log_of(folder).read_bytes()[len(whole) : -7] if tail == b"half" else tail
    log_of(folder).write_bytes(whole + torn)
    reader = opened(folder)
    assert ids(reader) == ["c1"]
    assert reader.audit(T) == []
    assert log_of(folder).read_bytes() == whole + torn
    save(opened(folder), "c3")
    assert ids(reader) == ["c3", "c1"]
    assert log_of(folder).stat().st_size == reader._table(T).log.end


def test_a_whole_frame_behind_the_marks_counts(folder: Path) -> None:
    save(opened(folder), "c1")
    unmarked(folder, "c2", "c3")
    assert ids(opened(folder)) == ["c3", "c2", "c1"]
    save(opened(folder), "c4")
    assert ids(opened(folder)) == ["c4", "c3", "c2", "c1"]


def test_a_torn_chunk_behind_the_marks_tears_its_frame(folder: Path) -> None:
    save(opened(folder), "c1")
    unmarked(folder, "c2")
    data = log_of(folder).read_bytes()
    log_of(folder).write_bytes(flipped(data, len(data) - 1, 0))
    assert ids(opened(folder)) == ["c1"]


def test_every_flipped_bit_is_noticed_and_named(folder: Path) -> None:
    """Any bit of a log: a typed error that names the thread, or, in a mark that has a twin, no harm."""
    first = opened(folder)
    save(first, "c1", "c2")
    seen = read_all(first)
    whole = log_of(folder).read_bytes()
    bits = range(8) if LONG else (SEED % 8,)
    for at in range(len(whole)):
        for bit in bits:
            log_of(folder).write_bytes(flipped(whole, at, bit))
            check_flip(folder, at, seen)


def check_flip(folder: Path, at: int, seen: object) -> None:
    backend = opened(folder)
    problems = backend.audit(T)
    assert problems, f"byte {at}"
    assert {problem.thread for problem in problems} == {T.id}
    if 64 <= at < START:
        assert read_all(backend) == seen
        return
    with pytest.raises(Corrupt) as caught:
        read_all(backend)
    assert caught.value.thread == T.id, f"byte {at}"


def test_a_damaged_chunk_names_the_checkpoint_and_spares_the_others(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1", "c2")
    data = log_of(folder).read_bytes()
    log_of(folder).write_bytes(flipped(data, data.index(chunk("'trip-42' c1 ")[1]) + 9, 3))
    with pytest.raises(Corrupt) as caught:
        backend.read(T, "", "c1")
    assert (caught.value.thread, caught.value.checkpoint) == (T.id, "c1")
    assert [problem.checkpoint for problem in backend.audit(T)] == ["c1"]
    assert backend.read(T, "").record == backend.history(HistoryQuery(T, ""))[1][0]


def test_damage_stays_noticed_when_the_log_is_written_anew(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1", "c2", "c3")
    data = log_of(folder).read_bytes()
    log_of(folder).write_bytes(flipped(data, data.index(chunk("'trip-42' c1 ")[1]) + 9, 3))
    done(backend, Commit(T, removal=Removal(checkpoints=(("", "c3"),), erase=True)))
    assert b"body of c3" not in all_bytes(folder)
    with pytest.raises(Corrupt):
        backend.read(T, "", "c1")


def test_every_truncation_is_noticed_and_named(folder: Path) -> None:
    save(opened(folder), "c1", "c2", "c3")
    whole = log_of(folder).read_bytes()
    for size in range(0, len(whole), 1 if LONG else 7):
        log_of(folder).write_bytes(whole[:size])
        for act in (lambda b: b.read(T, ""), lambda b: save(b, "c4")):
            with pytest.raises(Corrupt) as caught:
                act(opened(folder))
            assert caught.value.thread == T.id
        assert log_of(folder).stat().st_size == size, "a writer must not cut what was acknowledged"


def test_a_deleted_log_is_missed_on_every_access(folder: Path) -> None:
    warm = opened(folder)
    save(warm, "c1")
    save(warm, "c1", thread=U)
    log_of(folder).unlink()
    acts: list[Callable[[FileBackend], object]] = [
        lambda b: b.read(T, ""),
        lambda b: b.history(HistoryQuery(T, "")),
        lambda b: b.inventory(T),
        lambda b: b.threads(ThreadQuery("")),
        lambda b: b.entries(EntryQuery("", "run")),
        lambda b: save(b, "c2"),
    ]
    for backend in (warm, opened(folder)):
        for act in acts:
            with pytest.raises(Corrupt) as caught:
                act(backend)
            assert caught.value.thread == T.id
        assert [problem.thread for problem in backend.audit(T)] == [T.id]
        assert ids(backend, U) == ["c1"]


def test_a_damaged_thread_is_listed_for_whoever_looks_for_damage(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    save(backend, "c1", thread=U)
    log_of(folder).write_bytes(b"")
    with pytest.raises(Corrupt):
        backend.threads(ThreadQuery(""))
    assert [(row.id, row.checkpoints) for row in backend.threads(ThreadQuery("", heads=False))] == [
        (U.id, 1),
        (T.id, 0),
    ]
    assert [row.id for row in backend.threads(ThreadQuery("", only=T.id, heads=False))] == [T.id]


def test_swapped_logs_are_noticed(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    save(backend, "c1", thread=U)
    one, other = log_of(folder).read_bytes(), log_of(folder, U).read_bytes()
    log_of(folder).write_bytes(other)
    log_of(folder, U).write_bytes(one)
    for thread in (T, U):
        for found in (backend, opened(folder)):
            with pytest.raises(Corrupt) as caught:
                found.read(thread, "")
            assert caught.value.thread == thread.id


def test_frames_that_were_moved_doubled_or_dropped_are_noticed(folder: Path) -> None:
    backend = opened(folder)
    ends = []
    for name in ("c1", "c2", "c3"):
        save(backend, name)
        ends.append(log_of(folder).stat().st_size)
    data = log_of(folder).read_bytes()
    frames = [data[start:end] for start, end in zip([START, *ends], ends, strict=False)]
    for order in ((0, 2, 1), (0, 1, 1), (0, 2), (1, 2), (1, 0, 2), (0, 1, 2, 2)):
        log_of(folder).write_bytes(data[:START] + b"".join(frames[i] for i in order))
        if order == (0, 1, 2, 2):  # behind the marks, where it is no more than a torn tail
            assert ids(opened(folder)) == ["c3", "c2", "c1"]
            continue
        with pytest.raises(Corrupt):
            opened(folder).read(T, "")


def test_an_index_that_is_gone_or_damaged_is_noticed(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    backend.close()
    whole = (folder / "index").read_bytes()
    for at in range(len(whole)):
        (folder / "index").write_bytes(flipped(whole, at, at % 8))
        if 64 <= at < START:
            assert [row.id for row in opened(folder).threads(ThreadQuery(""))] == [T.id]
            continue
        with pytest.raises(Corrupt):
            opened(folder).threads(ThreadQuery(""))
        assert opened(folder).audit(None), f"byte {at}"
    (folder / "index").unlink()
    with pytest.raises(Corrupt):
        opened(folder).threads(ThreadQuery(""))
    with pytest.raises(Corrupt):
        save(opened(folder), "c1", thread=U)


def test_audit_tells_of_files_that_belong_to_nobody(folder: Path) -> None:
    backend = opened(folder)
    backend.identity(b"key")
    save(backend, "c1")
    assert backend.audit(None) == []
    (folder / "threads" / "README").write_text("")
    (folder / "threads" / f"{'0' * 32}.log").write_text("")
    assert len(backend.audit(None)) == 2


# Strangers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log", "lock", "index", "store"])
@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "dangling"])
def test_only_regular_files_are_opened_and_nothing_hangs(folder: Path, name: str, kind: str) -> None:
    backend = opened(folder)
    backend.identity(b"key")
    save(backend, "c1")
    path = log_of(folder) if name == "log" else folder / name
    victim = folder.parent / "victim"
    data = path.read_bytes()
    victim.write_bytes(data)
    path.unlink()
    plant(path, kind, victim)
    with time_limit(30):
        for found in (backend, opened(folder)):
            with pytest.raises(Corrupt) as caught:
                touch(found, T if name != "index" else ThreadKey.of("", "new"))
            assert caught.value.thread == (T.id if name == "log" else None)
    assert victim.read_bytes() == data


def touch(backend: FileBackend, thread: ThreadKey) -> None:
    backend.identity(b"key")
    save(backend, "c2", thread=thread)


def plant(path: Path, kind: str, victim: Path) -> None:
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(victim.parent / "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_link_in_place_of_the_folder_of_logs_is_not_followed(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    (folder / "threads").rename(folder.parent / "elsewhere")
    (folder / "threads").symlink_to(folder.parent / "elsewhere")
    with pytest.raises(StoreError):
        save(backend, "c2")
    with pytest.raises(StoreError):
        backend.read(T, "")


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_files_are_for_their_owner_alone_whatever_the_umask(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        backend = opened(folder)
        backend.identity(b"key")
        save(backend, "c1", "c2")
        done(backend, Commit(T, removal=Removal(everything=True)))
        backend.close()
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_ids_reach_nothing_outside(folder: Path) -> None:
    backend = opened(folder)
    strange = [
        "../../x",
        "/etc/x",
        "..",
        ".",
        "a/b",
        "C:\\x",
        "a\0b",
        "CON",
        "é",
        "e\u0301",
        "A",
        "a",
        "",
        "x" * 9999,
    ]
    for name in strange:
        save(backend, "c1", thread=ThreadKey.of("", name))
    assert {row.id for row in opened(folder).threads(ThreadQuery(""))} == set(strange)
    assert sorted(os.listdir(folder.parent)) == ["store"]
    assert len(os.listdir(folder / "threads")) == len(strange)


# Rewriting and erasing ---------------------------------------------------------------------------------------------


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_deleted_thread_leaves_its_seq_and_no_bytes(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1", "c2", "c3")
    generation = backend.inventory(T).generation
    done(backend, Commit(T, removal=Removal(everything=True)))
    assert b"body of" not in all_bytes(folder)
    assert chunk("'trip-42' c1 ")[1] not in all_bytes(folder)
    assert backend.threads(ThreadQuery("")) == []
    backend = opened(folder)
    assert backend.inventory(T).generation != generation
    assert done(backend, saving("c1")).checkpoints[0].seq == 4


@pytest.mark.parametrize("size", [200, 2_000_000])
def test_what_is_erased_leaves_no_bytes_whatever_the_size_of_the_log(folder: Path, size: int) -> None:
    backend = opened(folder)
    save(backend, "c1", "c3", size=size)
    save(backend, "c2")
    name, data = chunk("'trip-42' c2 ")
    done(backend, Commit(T, removal=Removal(checkpoints=(("", "c2"),), erase=True)))
    assert b"body of c2" not in all_bytes(folder)
    done(backend, Commit(T, removal=Removal(chunks=(name,), chunks_until=99, erase=True)))
    assert data not in all_bytes(folder)
    for found in (backend, opened(folder)):
        assert ids(found) == ["c3", "c1"]
        assert found.audit(T) == []


def test_an_erasure_that_a_crash_cut_short_is_done_with_the_next_commit(folder: Path) -> None:
    class Refusing(QuickDisk):
        def rename(self, old: str, new: str) -> None:
            raise OSError(errno.EIO, "refused")

    save(opened(folder), "c1", "c2")
    erase = Commit(T, removal=Removal(checkpoints=(("", "c1"),), erase=True))
    with pytest.raises(NotErased):
        done(opened(folder, disk=Refusing(str(folder))), erase)
    assert ids(opened(folder)) == ["c2"]
    assert b"body of c1" in all_bytes(folder)
    save(opened(folder), "c3")
    assert b"body of c1" not in all_bytes(folder)


def test_blocks_are_given_back_in_place_only_when_the_mark_behind_them_is_on_disk(folder: Path) -> None:
    """Else a power cut could leave an older mark, and a frame behind that with a hole would pass for a torn tail."""

    class Full(Disk):
        is_full, told = False, ()

        def create(self, name: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "full")
            return super().create(name)

        def write(self, fd: int, data: bytes, at: int) -> None:
            super().write(fd, data, at)
            self.told = (*self.told, "write")

        def sync(self, fd: int) -> None:
            self.told = (*self.told, "sync")

        def punch(self, fd: int, at: int, size: int) -> bool:
            self.told = (*self.told, "punch")
            return super().punch(fd, at, size)

    disk = Full(str(folder))
    backend = opened(folder, disk=disk)
    for name in range(4):
        save(backend, f"c{name}", size=100_000)
    used = log_of(folder).stat().st_blocks
    disk.is_full, disk.told = True, ()
    gone = tuple(chunk(f"'trip-42' c{name} ", 100_000)[0] for name in range(3))
    pairs = tuple(("", f"c{name}") for name in range(3))
    done(backend, Commit(T, removal=Removal(checkpoints=pairs, chunks=gone, chunks_until=99)))
    at = disk.told.index("punch")
    assert disk.told[at - 1] == "sync"
    assert "write" in disk.told[:at]
    assert log_of(folder).stat().st_blocks < used - 3 * 90_000 // 512
    for found in (backend, opened(folder)):
        assert ids(found) == ["c3"]
        assert found.read(T, "", "c3").chunks
        assert found.audit(T) == []
    disk.is_full = False
    save(backend, "c4")
    assert log_of(folder).stat().st_size < 110_000


def test_removal_without_erasure_rewrites_a_log_only_when_a_quarter_of_it_is_dead(folder: Path) -> None:
    backend = opened(folder)
    for name in range(10):
        save(backend, f"c{name}", size=100_000)
    sizes = []
    for name in range(4):
        gone = (chunk(f"'trip-42' c{name} ", 100_000)[0],)
        done(backend, Commit(T, removal=Removal(chunks=gone, chunks_until=99)))
        sizes.append(log_of(folder).stat().st_size // 100_000)
    assert sizes == [10, 10, 7, 7]
    assert opened(folder).audit(T) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_reader_is_not_misled_by_a_write_that_is_taken_back_under_its_eyes(
    folder: Path, is_late: bool
) -> None:
    """Another process appends, a reader sees the frame, the fsync fails and the frame is cut off again."""
    save(opened(folder), "c1")
    reader = opened(folder)

    class Failing(QuickDisk):
        def sync(self, fd: int) -> None:
            assert ids(reader) == ["c2", "c1"]
            raise OSError(errno.EIO, "refused")

    with pytest.raises(StoreUnavailable):
        save(opened(folder, disk=Failing(str(folder))), "c2")
    if is_late:  # by then there is another frame in its place, of the same length
        save(opened(folder), "c3")
    assert ids(reader) == (["c3", "c1"] if is_late else ["c1"])


def test_a_reader_looks_again_before_it_says_corrupt(folder: Path) -> None:
    """Between its look for the log and its look at the index, another process makes the thread."""

    class Late(QuickDisk):
        def open(self, name: str, *, write: bool = False, create: bool = False) -> int:
            if name.endswith(".log") and not log_of(folder).exists():
                save(opened(folder), "c1")
                raise FileNotFoundError(errno.ENOENT, "not there yet")
            return super().open(name, write=write, create=create)

    assert ids(opened(folder, disk=Late(str(folder)))) == ["c1"]


def test_a_log_does_not_grow_with_what_is_overwritten(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    for revision in range(2000):
        done(backend, Commit(T, entries=(EntryRecord("run", "r", bytes(200), revision=revision),)))
    assert log_of(folder).stat().st_size < 200_000
    assert opened(folder).entries(EntryQuery("", "run", thread=T))[0][1].revision == 1999
    assert ids(backend) == ["c1"]


def test_stamps_and_times_survive_a_rewrite(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1", "c2", "c3")
    done(backend, Commit(T, metadata=b"title", writes=(WriteRecord("", "c1", "t", 0, "c", "p", b"w"),)))
    before = backend.inventory(T), backend.threads(ThreadQuery(""))[0]
    done(backend, Commit(T, removal=Removal(checkpoints=(("", "c2"),), erase=True)))
    fresh = opened(folder)
    after = fresh.inventory(T), fresh.threads(ThreadQuery(""))[0]
    assert after[0].chunks == before[0].chunks
    assert after[0].revision == before[0].revision + 1
    assert (after[1].created_at, after[1].metadata, after[1].seq) == (before[1].created_at, b"title", 3)
    assert after == (backend.inventory(T), backend.threads(ThreadQuery(""))[0])
    assert len(fresh.writes(T, None)) == 1


def test_a_rewrite_is_seen_by_another_process_even_with_the_same_inode_number(folder: Path) -> None:
    one, other = opened(folder), opened(folder)
    save(one, "c1", "c2", "c3", "c4")
    inodes = set()
    for name in ("c1", "c2", "c3"):
        assert read_all(other) == read_all(one)
        inodes.add(log_of(folder).stat().st_ino)
        done(one, Commit(T, removal=Removal(checkpoints=(("", name),), erase=True)))
    assert read_all(other) == read_all(one)
    assert len(inodes) > 1
    save(other, "c5")
    assert ids(one) == ["c5", "c4"]


def test_a_crash_in_a_rewrite_leaves_a_file_that_the_next_writer_sweeps(folder: Path) -> None:
    save(opened(folder), "c1")
    for name in (f"threads/{T.digest.hex()}.log.tmp", "index.tmp", "store.tmp"):
        (folder / name).write_bytes(b"secret of a removed checkpoint")
    save(opened(folder), "c2")
    assert b"secret" not in all_bytes(folder)


# Several processes -----------------------------------------------------------------------------------------------


def save_many(folder: Path, name: str, count: int) -> None:
    backend = opened(folder)
    for number in range(count):
        save(backend, f"{name}{number}")
        assert ids(backend)[0] is not None
    backend.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_write_one_thread_get_dense_seqs(folder: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=save_many, args=(folder, name, 25)) for name in "xyz"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
        assert worker.exitcode == 0
    history = opened(folder).history(HistoryQuery(T, "", limit=1000))[1]
    assert [found.seq for found in history] == list(range(75, 0, -1))
    assert [found.parent for found in history] == [*[found.id for found in history[1:]], None]
    assert opened(folder).audit(T) == []


def test_a_child_goes_on_with_the_backend_of_its_parent(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    child = multiprocessing.get_context("fork").Process(target=save, args=(backend, "c2"))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    save(backend, "c3")
    assert ids(backend) == ["c3", "c2", "c1"]


def test_no_file_stays_open_between_two_calls(folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    backend = opened(folder)
    backend.identity(b"key")
    save(backend, "c1", "c2")
    backend.read(T, "")
    with pytest.raises(HeadMoved):
        done(backend, saving("c3", expect_head=("", "x")))
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_lock_that_others_hold_is_waited_for_no_longer_than_asked(folder: Path) -> None:
    backend = opened(folder)
    save(backend, "c1")
    with (folder / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        start = time.monotonic()
        with pytest.raises(StoreBusy):
            done(backend, saving("c2", timeout_s=0.1))
        assert 0.1 <= time.monotonic() - start < PATIENCE_S
        assert ids(opened(folder)) == ["c1"], "readers need no lock"
    save(backend, "c2")


def test_whatever_needs_the_lock_waits_no_longer_than_the_store_was_opened_for(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    new.mkdir()
    backend = opened(old)
    backend.identity(b"key")
    save(backend, "c1")
    data = log_of(old).read_bytes()
    log_of(old).write_bytes(
        flipped(data, data.index(chunk("'trip-42' c1 ")[1]) + 9, 3)
    )  # in motion, or damaged?
    with (new / "lock").open("wb") as one, (old / "lock").open("rb") as two:
        for file in (one, two):
            fcntl.flock(file, fcntl.LOCK_EX)
        for call in (
            lambda: outlive.open(f"file://{new}", timeout_s=0.1),
            lambda: opened(old, timeout_s=0.1).read(T, ""),
            lambda: opened(old, timeout_s=0.1).audit(T),
            lambda: done(opened(old, timeout_s=0.1), saving("c2")),
            lambda: opened(old).read(T, "", timeout_s=0.1),
            lambda: opened(old).fetch(T, [chunk("'trip-42' c1 ")[0]], timeout_s=0.1),
        ):
            with pytest.raises(StoreBusy, match=r"for 0\.1 s"):
                call()


def test_a_commit_that_waited_too_long_in_a_group_is_refused_and_the_patient_ones_are_not(
    folder: Path,
) -> None:
    backend = opened(folder)
    with (folder / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        release = threading.Timer(1.5, fcntl.flock, (file, fcntl.LOCK_UN))
        release.start()
        commits = [saving("c1", timeout_s=0.05), saving("c2", timeout_s=PATIENCE_S), saving("c3")]
        results = run_now(SyncLocal(backend).commit_all(commits))
        release.join()
    assert [type(result) for result in results] == [StoreBusy, Receipt, Receipt]
    assert ids(opened(folder)) == ["c3", "c2"]


def test_a_lock_file_that_was_removed_does_not_let_two_writers_in(folder: Path) -> None:
    class Racing(QuickDisk):
        is_removed = False

        def open(self, name: str, *, write: bool = False, create: bool = False) -> int:
            fd = super().open(name, write=write, create=create)
            if name == "lock" and not self.is_removed:
                self.is_removed = True
                (folder / "lock").unlink()
                (folder / "lock").touch()
            return fd

    guard = opened(folder, disk=Racing(str(folder)))._guard
    with guard.held():
        assert os.path.samestat(os.fstat(guard._fd), (folder / "lock").stat())


def test_a_child_that_was_forked_under_the_lock_does_not_keep_it(folder: Path) -> None:
    guard = opened(folder)._guard
    with guard.held():
        inherited = os.dup(guard._fd)  # the same open file, as a child has it
    done(opened(folder), saving("c1", timeout_s=PATIENCE_S))
    os.close(inherited)


# A disk that refuses -----------------------------------------------------------------------------------------------


class FailingDisk(QuickDisk):
    """Fails the k-th call that changes something, once or from then on."""

    def __init__(self, root: str, at: int, forever: bool, code: int = errno.EIO) -> None:
        super().__init__(root)
        self.left = at
        self.forever = forever
        self.code = code
        self.calls = 0

    def _count(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.forever):
            raise OSError(self.code, os.strerror(self.code))

    def create(self, name: str) -> int:
        self._count()
        return super().create(name)

    def write(self, fd: int, data: bytes, at: int) -> None:
        try:
            self._count()
        except OSError:
            super().write(fd, data[: len(data) // 2], at)  # a disk that fills up takes what it can
            raise
        super().write(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        self._count()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._count()

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, name: str) -> None:
        self._count()
        super().remove(name)

    def sync_folder(self, folder: str = "") -> None:
        self._count()


def work() -> list[list[Commit]]:
    return [
        [saving("c1")],
        [saving("c2"), saving("u1", U)],
        [saving("c3"), saving("u2", U)],
        [Commit(T, removal=Removal(checkpoints=(("", "c1"),)))],
        [Commit(T, removal=Removal(chunks=(chunk("'trip-42' c1 ")[0],), chunks_until=99, erase=True))],
        [Commit(U, removal=Removal(everything=True))],
        [saving("c4"), saving("u3", U)],
    ]


class Promises:
    """What a caller was told: kept saves that nobody tried to remove, and the greatest seq."""

    def __init__(self) -> None:
        self.kept: dict[ThreadKey, set[str]] = {T: set(), U: set()}
        self.refused: dict[ThreadKey, set[str]] = {T: set(), U: set()}
        self.seq = {T: 0, U: 0}

    def add(self, commit: Commit, result: Receipt | Exception) -> None:
        if commit.removal is not None:
            gone = {pair[1] for pair in commit.removal.checkpoints}
            self.kept[commit.thread] -= self.kept[commit.thread] if commit.removal.everything else gone
        elif isinstance(result, Receipt):
            self.kept[commit.thread].add(commit.checkpoints[0].id)
            stored = result.existing or result.checkpoints[0]
            self.seq[commit.thread] = max(self.seq[commit.thread], stored.seq)
        else:
            self.refused[commit.thread].add(commit.checkpoints[0].id)

    def check(self, backend: FileBackend) -> None:
        for thread in (T, U):
            assert self.kept[thread] <= set(ids(backend, thread))
            for found in backend.history(HistoryQuery(thread, ""))[1]:
                backend.read(thread, "", found.id)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "from then on"])
def test_an_error_of_any_call_is_typed_loses_nothing_and_lets_the_store_go_on(
    tmp_path: Path, forever: bool, code: int
) -> None:
    at, step = (
        (1, 1) if LONG else (1 + (code == errno.ENOSPC), 2)
    )  # in short each code fails every other call
    while fail_at(tmp_path / str(at), at, forever, code):
        at += step
    assert at > 60


def fail_at(folder: Path, at: int, forever: bool, code: int) -> bool:
    """Fail the k-th call; tell whether there was one."""
    opened(folder).identity(b"key")
    disk = FailingDisk(str(folder), at, forever, code)
    backend = FileBackend(str(folder), disk=disk)
    promises = Promises()
    for group in work():
        before = {thread: ids(opened(folder), thread) for thread in (T, U)}
        for commit, result in zip(group, backend.commit_all(group), strict=True):
            promises.add(commit, result)
            wanted = StoreFull if code == errno.ENOSPC else StoreUnavailable
            erases = commit.removal is not None and commit.removal.erase
            assert isinstance(result, Receipt | wanted | (NotErased if erases else wanted)), (
                f"call {at}: {result!r}"
            )
            if not forever:  # the disk let the rest of a failed save be cut
                assert not promises.refused[commit.thread] & set(ids(backend, commit.thread)), f"call {at}"
                if commit.removal is not None and isinstance(result, wanted):
                    assert ids(backend, commit.thread) == before[commit.thread], f"call {at}: not removed"
    promises.check(opened(folder))
    reached = disk.calls >= at
    disk.left, disk.forever = -1, False  # the disk is well again
    for found in (backend, opened(folder)):
        promises.check(found)
        for thread in (T, U):
            seq = done(found, saving(f"new {found is backend}", thread)).checkpoints[0].seq
            assert seq > promises.seq[thread]
            promises.seq[thread] = seq
            assert found.audit(thread) == []
    assert opened(folder).audit(None) == []
    assert not list(folder.rglob("*.tmp"))
    backend.close()
    return reached


def test_a_file_size_limit_is_a_full_store_that_goes_on_when_it_is_lifted(folder: Path) -> None:
    script = """
import resource, sys
sys.path[:0] = sys.argv[2:]
from test_file import *
backend = opened(Path(sys.argv[1]))
save(backend, "c1")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
results = [backend.commit_all([saving(f"d{i}", size=700)])[0] for i in range(8)]
stored = [f"d{i}" for i in range(8) if isinstance(results[i], Receipt)]
assert 0 < len(stored) < 8, results
assert all(isinstance(result, Receipt | StoreFull) for result in results), results
assert isinstance(backend.commit_all([saving("u1", U, size=5000)])[0], StoreFull)
assert ids(backend) == [*reversed(stored), "c1"]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
save(backend, "e1", size=5000)
save(backend, "u1", thread=U, size=5000)
for found in (backend, opened(Path(sys.argv[1]))):
    assert ids(found) == ["e1", *reversed(stored), "c1"]
    assert found.audit(T) == found.audit(U) == []
"""
    run_script(script, folder)


def test_an_interrupt_in_the_middle_of_a_commit_leaves_nothing_wrong_in_memory(folder: Path) -> None:
    class Interrupted(QuickDisk):
        at = 0

        def _step(self) -> None:
            self.at -= 1
            if self.at == 0:
                raise KeyboardInterrupt

        def write(self, fd: int, data: bytes, at: int) -> None:
            self._step()
            super().write(fd, data, at)
            self._step()

        def sync(self, fd: int) -> None:
            self._step()

    disk = Interrupted(str(folder))
    backend = opened(folder, disk=disk)
    save(backend, "c0")
    for at in range(1, 6):
        disk.at = at
        with pytest.raises(KeyboardInterrupt):
            save_and_erase(backend, f"lost{at}")
        disk.at = 0
        assert read_all(backend) == read_all(opened(folder))
        save(backend, f"c{at}")
        assert read_all(backend) == read_all(opened(folder))


def save_and_erase(backend: FileBackend, name: str) -> None:
    backend.commit_all([saving(name)])
    backend.commit_all([Commit(T, removal=Removal(checkpoints=(("", "c0"),), erase=True))])


# How often it is synced ----------------------------------------------------------------------------------------------


class CountingDisk(QuickDisk):
    syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1


def test_a_group_costs_one_fsync_for_each_log(folder: Path) -> None:
    disk = CountingDisk(str(folder))
    backend = opened(folder, disk=disk)
    save(backend, "c1")
    save(backend, "u1", thread=U)
    disk.syncs = 0
    backend.commit_all([saving(f"d{i}", thread) for i in range(10) for thread in (T, U)])
    assert disk.syncs == 2


def test_normal_does_not_sync_every_save_and_catches_up_at_close(folder: Path) -> None:
    disk = CountingDisk(str(folder))
    backend = opened(folder, disk=disk, fsync="normal")
    save(backend, "c1", "c2")
    disk.syncs = 0
    save(backend, *[f"d{i}" for i in range(50)])
    assert disk.syncs <= 2
    backend.close()
    assert disk.syncs >= 2
    data = log_of(folder).read_bytes()
    log_of(folder).write_bytes(data[:-1])
    with pytest.raises(Corrupt):  # the marks say that all of it was on disk
        opened(folder).read(T, "")


def test_frames_are_as_they_were_written_first(folder: Path) -> None:
    """The bytes of format 1 stay readable: this is one of its frames."""
    backend = opened(folder)
    done(backend, Commit(T, metadata=b"x"))
    log = Log(QuickDisk(str(folder)), f"threads/{T.digest.hex()}.log", T.digest)
    fd = log.open()
    assert log.resume(fd)
    (frame,) = log.frames(fd)
    os.close(fd)
    version, is_escaped, fields = ormsgpack.unpackb(frame.meta)
    assert (version, is_escaped, len(fields)) == (1, False, 12)
    assert fields[0] == ["", "trip-42"]
    assert fields[3:] == [[], [], [], [], [], [], False, False, b"x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")])
@pytest.mark.parametrize("call", range(6))
def test_an_index_that_cannot_be_read_at_a_moment_stays_as_it_is(tmp_path, monkeypatch, error, call):
    url = f"file://{tmp_path}/store"
    with outlive.open(url) as store:
        for name in "abc":
            store.thread(name).save({"by": name})
    before = (tmp_path / "store" / "index").read_bytes()
    with outlive.open(url) as store:
        calls, real = itertools.count(), Index._read_on

        def read_on(index, fd):
            if next(calls) == call:
                index._forget()
                raise error
            return real(index, fd)

        monkeypatch.setattr(Index, "_read_on", read_on)
        with contextlib.suppress(KeyboardInterrupt, outlive.StoreError):
            store.thread("new").save({"by": "new"})
        monkeypatch.undo()
        assert (tmp_path / "store" / "index").read_bytes()[96:].startswith(before[96:])  # behind the marks
        store.thread("new").save({"by": "new"})
        assert [info.id for info in store.threads()] == ["a", "b", "c", "new"]
        assert store.verify().problems == ()
