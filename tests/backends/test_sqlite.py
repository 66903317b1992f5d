"""The files of a SQLite store: what a killed process leaves, what others do to them, and who may read them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import stat
import struct
import threading
import time
import zlib

import apsw
import pytest

import outlive
from backends.test_full_disk import without_privileges
from outlive import Corrupt
from outlive.backend import Commit, EntryRecord, ThreadKey
from outlive.backends.sqlite import connection as sqlite_connection
from outlive.backends.sqlite import wal as sqlite_wal
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.errors import BadURL, StoreBusy, StoreUnavailable
from rig.crash import LONG, ram_folder, rounds

SAVES = 20
FRAME = 24 + 4096


@pytest.fixture
def server(workers):
    return workers


@pytest.fixture
def folder():
    with ram_folder() as folder:
        yield folder


# Waiting for other processes -----------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path, seconds):
    """Hold the file as a process that writes, for a time or until the end of the block."""
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    is_over = threading.Event()

    def hold():
        is_over.wait(seconds)
        other.execute("rollback")

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        is_over.set()
        holder.join()
        other.close()


def commit_of(timeout_s):
    return Commit(
        ThreadKey.of("", "t"), entries=(EntryRecord("run", "r", status="completed"),), timeout_s=timeout_s
    )


def test_the_timeout_of_one_commit_is_not_that_of_later_calls(folder):
    backend = SQLiteBackend(str(folder / "a.db"))
    with writing(folder / "a.db", 0.5):
        (refusal,) = backend.commit_all([commit_of(0.05)])
        assert isinstance(refusal, StoreBusy)
        assert backend.identity(b"key") == b"key"  # it waits until the file is free
    backend.close()


def test_a_commit_without_a_timeout_waits_as_long_as_the_store_says(folder):
    backend = SQLiteBackend(str(folder / "a.db"), timeout_s=0.05)
    with writing(folder / "a.db", 10):
        (refusal,) = backend.commit_all([commit_of(None)])
    assert isinstance(refusal, StoreBusy)
    backend.close()


# The log of a killed process ------------------------------------------------------------------------------


def save_and_wait(report, url):
    store = outlive.open(url)
    for n in range(SAVES):
        store.thread("t").save({"n": n, "text": "x" * 300 * n}, id=f"c{n}")
    report("done")
    signal.pause()  # until it is killed


@pytest.fixture
def killed(server, folder):
    """The folder of a store whose process was killed after it acknowledged all saves."""
    killed = folder / "killed"
    killed.mkdir()
    with server.spawn(save_and_wait, f"sqlite:///{killed}/a.db") as worker:
        assert worker.receive() == ("done",)
        worker.kill()
    assert sorted(path.name for path in killed.iterdir()) == ["a.db", "a.db-ack", "a.db-shm", "a.db-wal"]
    return killed


def copied(source, target, *, without=()):
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target, ignore=lambda *_: without)
    return f"sqlite:///{target}/a.db"


def contents(folder):
    """What must be left as it is; SQLite makes the index of the log (-shm) again."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def flip(path, at, bit):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def last_state(url):
    with outlive.open(url) as store:
        report = store.verify()
        assert report.ok, report.problems
        state = store.thread("t").load()
        return None if state is None else state["n"]


def test_a_killed_process_loses_nothing(killed, folder):
    for without in ((), ("a.db-ack",), ("a.db-shm", "a.db-ack")):
        assert last_state(copied(killed, folder / "copy", without=without)) == SAVES - 1


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_flipped_bit_in_the_log_is_damage_and_not_an_older_state(has_mark, killed, folder):
    """Only without the mark, and only in the last frames, a flip looks like the torn end of a write."""
    size = (killed / "a.db-wal").stat().st_size
    headers = [32 + FRAME * n + at for n in (0, 7, size // FRAME - 1) for at in (0, 4, 8, 16, 20)]
    rng = random.Random(7)
    places = [*range(0, 32, 3), *headers, *(rng.randrange(size) for _ in range(rounds(10, 1000)))]
    without = () if has_mark else ("a.db-ack",)
    refused = lost = 0
    for at in places:
        url = copied(killed, folder / "copy", without=without)
        flip(folder / "copy" / "a.db-wal", at, rng.randrange(8))
        before = contents(folder / "copy")
        try:
            found, error = last_state(url), None
        except Corrupt as damage:
            found, error = None, str(damage)
        if error is not None:
            assert "a.db-wal" in error
            assert "accept_loss=True" in error
            assert contents(folder / "copy") == before, f"changed after a flip at {at}"
            with pytest.raises(Corrupt):
                outlive.open(url)
            refused += 1
            continue
        if found != SAVES - 1:
            is_torn_end = not has_mark and at > size - 2 * FRAME
            assert is_torn_end, f"a flip at {at} of {size} gives save {found}"
            lost += 1
    assert refused > len(places) // 3, (refused, lost)


def test_a_store_whose_log_is_damaged_can_be_opened_without_the_lost_saves(killed, folder):
    url = copied(killed, folder / "copy")
    log = folder / "copy" / "a.db-wal"
    flip(log, log.stat().st_size // 2, 3)
    damaged = log.read_bytes()
    for _ in range(2):
        with pytest.raises(Corrupt, match="accept_loss"):
            outlive.open(url)
    with outlive.open(url, accept_loss=True) as store:
        n = store.thread("t").load()["n"]
        assert 0 < n < SAVES - 1
        assert store.thread("t").save({"n": "next"}).seq == n + 2
    assert (folder / "copy" / "a.db-wal.damaged").read_bytes() == damaged
    assert last_state(url) == "next"
    with pytest.raises(BadURL, match="accept_loss must be True or False"):
        outlive.open(url + "?accept_loss=maybe")


def marked(path, *, boot=None, is_synced=None, frames=None):
    """Change what the mark says."""
    raw = path.read_bytes()[:-4]
    name, its_boot, salts, its_frames, synced = struct.unpack(">8s8s8sII", raw)
    raw = struct.pack(
        ">8s8s8sII",
        name,
        boot or its_boot,
        salts,
        its_frames if frames is None else frames,
        synced if is_synced is None else is_synced,
    )
    path.write_bytes(raw + zlib.crc32(raw).to_bytes(4))
    return its_frames


def commits(log):
    """The numbers of the frames that end a commit."""
    raw = log.read_bytes()
    count = (len(raw) - 32) // FRAME
    return [n + 1 for n in range(count) if any(raw[32 + n * FRAME + 4 : 32 + n * FRAME + 8])]


def test_a_write_that_was_torn_before_it_was_acknowledged_is_no_damage(killed, folder):
    """By a kill: cut anywhere after the acknowledged commits, or followed by what was there before."""
    *_, acknowledged, last = commits(killed / "a.db-wal")
    rng = random.Random(3)
    for round in range(rounds(12, 200)):
        url = copied(killed, folder / "copy")
        log = folder / "copy" / "a.db-wal"
        marked(folder / "copy" / "a.db-ack", frames=acknowledged)
        at = 32 + acknowledged * FRAME + rng.randrange((last - acknowledged) * FRAME)
        raw = log.read_bytes()
        log.write_bytes(raw[:at] + (b"" if round % 2 else rng.randbytes(len(raw) - at)))
        assert last_state(url) == SAVES - 2


@pytest.mark.parametrize("size", [1, 10, 31, 32, 50])
def test_a_log_that_is_cut_in_or_behind_its_header_is_damage(size, killed, folder):
    url = copied(killed, folder / "copy", without=("a.db-shm",))
    os.truncate(folder / "copy" / "a.db-wal", size)
    before = contents(folder / "copy")
    with pytest.raises(Corrupt, match="were acknowledged"):
        outlive.open(url)
    assert contents(folder / "copy") == before
    with outlive.open(url, accept_loss=True) as store:
        store.thread("t").save({"n": "next"})
    assert last_state(url) == "next"


def save_into_an_emptied_log(report, folder):
    store = outlive.open(f"sqlite:///{folder}/a.db")
    for n in range(SAVES):
        store.thread("t").save({"n": n})
        if n == SAVES // 2:
            os.truncate(f"{folder}/a.db-wal", 0)
    report("done")
    signal.pause()  # until it is killed


def test_a_log_that_was_emptied_under_an_open_store_is_damage(server, folder):
    """What is saved then is behind a hole, where SQLite finds no header."""
    with server.spawn(save_into_an_emptied_log, str(folder)) as worker:
        assert worker.receive() == ("done",)
        worker.kill()
    before = contents(folder)
    with pytest.raises(Corrupt, match=r"header is damaged.*were acknowledged"):
        outlive.open(f"sqlite:///{folder}/a.db")
    assert contents(folder) == before


def test_a_power_cut_is_no_damage(killed, folder):
    """Any part of the last commit may be missing; with fsync=normal, any part of all commits since the log was begun."""
    first, *_, acknowledged, last = commits(killed / "a.db-wal")
    rng = random.Random(4)
    for is_synced in (True, False):
        for _ in range(rounds(8, 100)):
            url = copied(killed, folder / "copy")
            log, mark = folder / "copy" / "a.db-wal", folder / "copy" / "a.db-ack"
            marked(mark, boot=b"formerly", is_synced=is_synced, frames=acknowledged if is_synced else None)
            start = acknowledged if is_synced else first
            raw = bytearray(log.read_bytes())
            for _ in range(rng.randrange(1, 4)):
                at = 32 + rng.randrange(start, last) * FRAME
                raw[at : at + FRAME] = bytes(FRAME)
            log.write_bytes(raw)
            found = last_state(url)
            assert found == SAVES - 2 if is_synced else (found is None or found < SAVES)


def test_verify_finds_damage_in_the_log_of_an_open_store(folder):
    with outlive.open(f"sqlite:///{folder}/a.db") as store:
        for n in range(5):
            store.thread("t").save({"n": n})
        assert store.verify().ok
        log = folder / "a.db-wal"
        with log.open("r+b") as file:
            file.seek(log.stat().st_size - 2 * FRAME)
            file.write(b"xxxx")
        report = store.verify()
        assert any("frames" in str(problem) and "a.db-wal" in str(problem) for problem in report.problems)


def test_the_mark_goes_with_the_log_and_several_processes_share_it(folder):
    url = f"sqlite:///{folder}/a.db"
    with outlive.open(url) as fetch_one:
        with outlive.open(url) as two:
            fetch_one.thread("t").save({"n": 1})
            two.thread("t").save({"n": 2})
        assert (folder / "a.db-ack").exists()
        fetch_one.thread("t").save({"n": 3})
        marks = sqlite_wal.MarkFile(f"{folder}/a.db", "boot", is_synced=True)
        mark = marks.read()
        marks.close()
        assert mark is not None
        assert mark.frames == commits(folder / "a.db-wal")[-1]
    assert [path.name for path in folder.iterdir()] == ["a.db"]


# Files that are gone --------------------------------------------------------------------------------------


def delete_all(folder):
    for path in folder.glob("a.db*"):
        path.unlink()


def replace_by_another(folder):
    with outlive.open(f"sqlite:///{folder}/b.db") as store:
        store.thread("t").save({"n": "another"})
    delete_all(folder)  # the log belongs to the file that was there
    os.replace(folder / "b.db", folder / "a.db")


def delete_the_log(folder):
    (folder / "a.db-wal").unlink()


def move_the_log(folder):
    os.rename(folder / "a.db-wal", folder / "moved-wal")


def replace_the_log_by_a_copy(folder):
    move_the_log(folder)
    shutil.copy2(folder / "moved-wal", folder / "a.db-wal")


def delete_the_index_of_the_log(folder):
    (folder / "a.db-shm").unlink()


@pytest.mark.parametrize(
    "remove",
    [
        delete_all,
        replace_by_another,
        delete_the_log,
        move_the_log,
        replace_the_log_by_a_copy,
        delete_the_index_of_the_log,
    ],
)
@pytest.mark.parametrize("age_s", [0, 3600], ids=["a new folder", "a folder that has not changed for long"])
def test_a_file_that_is_deleted_or_replaced_takes_no_saves(age_s, remove, folder):
    url = f"sqlite:///{folder}/a.db"
    with outlive.open(url) as store:
        thread = store.thread("t")
        thread.save({"n": 1})
        if age_s:
            os.utime(folder, (time.time() - age_s,) * 2)
            thread.save({"n": 1})
        remove(folder)
        calls = [
            lambda: thread.save({"n": 2}),
            thread.load,
            lambda: list(store.threads()),
            store.run("r").start,
        ]
        for call in calls:
            with pytest.raises(
                StoreUnavailable, match=r"a\.db.* was deleted, moved or replaced.*open the store again"
            ):
                call()
    with outlive.open(url) as store:
        expected = {delete_all: None, replace_by_another: {"n": "another"}}
        if remove in expected:
            assert store.thread("t").load() == expected[remove]
        store.thread("new").save({"n": 3})


def test_a_log_that_is_gone_before_the_first_save_takes_none(folder):
    url = f"sqlite:///{folder}/a.db"
    outlive.open(url).close()
    with outlive.open(url) as store:
        move_the_log(folder)
        with pytest.raises(StoreUnavailable, match="nothing of this call is stored"):
            store.thread("t").save({"n": 1})
    with outlive.open(url) as store:
        assert store.thread("t").load() is None


# Symbolic links -------------------------------------------------------------------------------------------


def test_a_store_is_opened_through_a_symbolic_link(folder):
    """SQLite has its log beside the file, and not beside the link."""
    (folder / "data").mkdir()
    os.symlink("data/a.db", folder / "link.db")  # which leads nowhere yet
    with umask(0), outlive.open(f"sqlite:///{folder}/link.db") as store:
        with outlive.open(f"sqlite:///{folder}/data/a.db") as other:
            assert store.thread("t").save({"n": 1}).seq == 1
            assert other.thread("t").save({"n": 2}).seq == 2
        names = ["a.db", "a.db-ack", "a.db-shm", "a.db-wal"]
        assert modes(folder / "data", "a.db") == dict.fromkeys(names, "0o600")
        assert sorted(path.name for path in folder.iterdir()) == ["data", "link.db"]
        assert store.verify().ok
        move_the_log(folder / "data")
        with pytest.raises(StoreUnavailable, match="moved"):
            store.thread("t").save({"n": 3})


def test_a_damaged_log_is_found_through_a_symbolic_link(killed, folder):
    os.symlink("killed/a.db", folder / "link.db")
    log = killed / "a.db-wal"
    flip(log, log.stat().st_size // 2, 3)
    with pytest.raises(Corrupt, match="accept_loss"):
        outlive.open(f"sqlite:///{folder}/link.db")


# Modes ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder, name):
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.glob(f"{name}*")}


def test_files_are_for_their_owner_alone(folder):
    names = ["a.db", "a.db-ack", "a.db-shm", "a.db-wal"]
    with umask(0), outlive.open(f"sqlite:///{folder}/a.db") as store:
        store.thread("t").save({"n": 1})
        assert modes(folder, "a.db") == dict.fromkeys(names, "0o600")
        store.backup(f"sqlite:///{folder}/b.db")
    assert modes(folder, "b.db") == {"b.db": "0o600"}


def test_a_file_that_exists_keeps_its_mode(folder):
    (folder / "a.db").touch()
    (folder / "a.db").chmod(0o660)
    with umask(0o077), outlive.open(f"sqlite:///{folder}/a.db") as store:
        store.thread("t").save({"n": 1})
        assert set(modes(folder, "a.db").values()) == {"0o660"}


# Rows that come back --------------------------------------------------------------------------------------


def test_verify_finds_a_checkpoint_that_comes_back_into_a_deleted_thread(folder):
    url = f"sqlite:///{folder}/a.db"
    with outlive.open(url) as store:
        store.thread("t").save({"n": 1})
    with contextlib.closing(apsw.Connection(f"{folder}/a.db")) as db:
        row = db.execute("select * from checkpoint").fetchall()[0]
    with outlive.open(url) as store:
        store.delete("t")
        assert store.verify().ok
    with contextlib.closing(apsw.Connection(f"{folder}/a.db")) as db:
        db.execute(f"insert into checkpoint values({', '.join('?' * len(row))})", row)
    with outlive.open(url) as store:
        with pytest.raises(Corrupt):
            store.thread("t").load()
        report = store.verify()
        assert any("1 checkpoints instead of 0" in str(problem) for problem in report.problems), (
            report.problems
        )


# What errors say ------------------------------------------------------------------------------------------


def just_open(url):
    outlive.open(url)


def test_a_folder_that_cannot_be_read_is_a_typed_error(server, folder):
    closed = folder / "closed"
    (closed / "in").mkdir(parents=True)
    closed.chmod(0)
    try:
        for path in (closed / "a.db", closed / "in" / "a.db"):
            with server.spawn(without_privileges, just_open, f"sqlite:///{path}") as worker:
                ((kind, text),) = worker.finish()
            assert kind == "StoreUnavailable"
            assert str(path) in text
    finally:
        closed.chmod(0o700)


def test_a_file_that_is_read_only_is_named(server, folder):
    path = folder / "a.db"
    with outlive.open(f"sqlite:///{path}") as store:
        store.thread("t").save({"n": 1})
    path.chmod(0o400)
    with server.spawn(without_privileges, save_one, f"sqlite:///{path}") as worker:
        ((kind, text),) = worker.finish()
    assert kind == "StoreUnavailable"
    assert str(path) in text


def save_one(url):
    with outlive.open(url) as store:
        store.thread("t").save({"n": 2})


def test_a_file_that_is_no_database_or_is_cut_is_named(folder):
    with outlive.open(f"sqlite:///{folder}/cut.db") as store:
        for n in range(20):
            store.thread(f"t{n}").save({"n": "x" * 5000})
    os.truncate(folder / "cut.db", 3 * 4096 + 100)
    (folder / "text.db").write_text("no database\n" * 1000)
    for name in ("cut.db", "text.db"):
        with pytest.raises(Corrupt) as caught, outlive.open(f"sqlite:///{folder}/{name}") as store:
            list(store.threads())
        assert str(folder / name) in str(caught.value)
        assert "no thread" not in str(caught.value)


def test_another_program_finds_its_file_as_it_was(folder):
    with contextlib.closing(apsw.Connection(f"{folder}/a.db")) as db:
        db.execute("create table mine(x)")
    before = contents(folder)
    with pytest.raises(BadURL, match="another program"):
        outlive.open(f"sqlite:///{folder}/a.db")
    assert contents(folder) == before


if LONG:

    @pytest.mark.long
    @pytest.mark.parametrize("round", range(20))
    def test_every_page_of_the_log_is_guarded(round, server, folder):
        """A log of thousands of frames: one flip at a time, anywhere."""
        url = f"sqlite:///{folder}/a.db"
        with server.spawn(save_and_wait, url) as worker:
            assert worker.receive() == ("done",)
            worker.kill()
        rng = random.Random(round)
        log = folder / "a.db-wal"
        flip(log, rng.randrange(log.stat().st_size), rng.randrange(8))
        with contextlib.suppress(Corrupt):
            assert last_state(url) == SAVES - 1


@pytest.mark.parametrize(
    "changed_ns, age_ns, is_settled",
    [
        (1_700_000_000_123_456_789, 200_000_000, True),
        (1_700_000_000_123_456_789, 20_000_000, False),
        (1_700_000_000_000_000_000, 1_500_000_000, False),  # a file system that counts in seconds
        (1_700_000_000_000_000_000, 2_500_000_000, True),
    ],
)
def test_a_folder_is_looked_at_until_a_change_must_give_it_another_time(
    monkeypatch, changed_ns, age_ns, is_settled
):
    monkeypatch.setattr(time, "time_ns", lambda: changed_ns + age_ns)
    assert sqlite_connection._is_settled(changed_ns) is is_settled
