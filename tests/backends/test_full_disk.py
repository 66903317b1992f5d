"""A disk that is full, broken or not ours: a typed error, nothing acknowledged lost, and it continues."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import apsw
import pytest

import outlive
from outlive.testing.patience import eventually
from rig.crash import BACKENDS, LONG, ram_folder, url_of

STRACE = shutil.which("strace")


@pytest.fixture
def server(workers):
    return workers


@pytest.fixture
def folder():
    with ram_folder() as folder:
        yield folder


def noise(step: int, size: int = 20_000) -> dict:
    """A state that grows by what does not compress."""
    return {"messages": [random.Random(number).randbytes(size) for number in range(step)], "step": step}


def check(store: outlive.Store, saved: dict[int, str]) -> None:
    """Make sure that everything acknowledged is there, and nothing half."""
    thread = store.thread("t")
    past = {old.step: old.id for old in thread.history()}
    assert {step: past[step] for step in saved} == saved
    for step, checkpoint in past.items():
        assert thread.load(checkpoint) == noise(step)
    assert store.verify().problems == ()


def save_until_refused(thread: outlive.Thread, saved: dict[int, str], most: int = 1000) -> outlive.StoreError:
    """Save until the store raises; note what it acknowledged, return what it raised."""
    first = max(saved, default=0) + 1
    for step in range(first, first + most):
        try:
            saved[step] = thread.save(noise(step), step=step).id
        except outlive.StoreError as error:
            return error
    raise AssertionError("the store never refused")


# No space left ------------------------------------------------------------------------------------------

_NEWNS, _NEWUSER, _REC_PRIVATE = 0x20000, 0x10000000, 0x4000 | 0x40000


def mount_small_disk(folder: Path, size_bytes: int) -> None:
    """Mount a small tmpfs that only this process sees and that goes with it. Raises OSError where one may not."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function, *args) -> None:
        if function(*args) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    user, group = os.getuid(), os.getgid()
    call(libc.unshare, _NEWNS if user == 0 else _NEWNS | _NEWUSER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    call(libc.mount, b"none", b"/", None, _REC_PRIVATE, None)
    call(libc.mount, b"none", bytes(folder), b"tmpfs", 0, f"size={size_bytes}".encode())


def fill_disk(report, backend, folder):
    try:
        mount_small_disk(folder, 3 << 20)
    except OSError as error:
        report("refused", str(error))
        return
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    url, saved = url_of(backend, folder), {}
    with outlive.open(url) as store:
        thread = store.thread("t")
        for _ in range(3):
            error = save_until_refused(thread, saved)
            assert type(error) is outlive.errors.StoreFull, repr(error)
            assert thread.load() == noise(max(saved))
        check(store, saved)
        with outlive.open(url) as second:  # a full store can be opened and read
            check(second, saved)
        assert shutil.disk_usage(folder).free < 100_000, "the disk was full"
        ballast.unlink()
        for _ in range(3):
            step = max(saved) + 1
            saved[step] = thread.save(noise(step), step=step).id
        check(store, saved)
        save_until_refused(thread, saved)
        with contextlib.suppress(
            *[outlive.errors.StoreFull] * (backend == "sqlite")
        ):  # its log needs room too
            thread.prune(keep_last=1)
        saved = {max(saved): saved[max(saved)]}
        check(store, saved)
    with outlive.open(url) as store:
        check(store, saved)
    report("survived", len(saved))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_disk_refuses_saves_with_a_typed_error_and_takes_them_again_when_there_is_room(
    backend, server, folder
):
    with server.spawn(fill_disk, backend, folder) as worker:
        ((said, detail),) = worker.finish()
    if said == "refused":
        pytest.skip(f"no tmpfs can be mounted here ({detail}); the limit of file sizes stands in for it")


DELETIONS = {
    "delete": lambda thread: thread.delete(),
    "delete and erase": lambda thread: thread.delete(erase=True),
    "prune": lambda thread: thread.prune(keep_last=1).checkpoints,
    "remove": lambda thread: thread.delete_checkpoints([old.id for old in thread.history()][1:]).checkpoints,
}


def delete_on_full_disk(report, backend, folder):
    """Fill the disk to the last byte, then delete; the answer is true, and in a folder space is free again."""
    for how, delete in DELETIONS.items():
        place = folder / how.replace(" ", "_")
        place.mkdir()
        try:
            mount_small_disk(place, 2 << 20)
        except OSError as error:
            report("refused", str(error))
            return
        with (
            open(place / "ballast", "wb", buffering=0) as ballast,
            outlive.open(url_of(backend, place)) as store,
        ):
            saved: dict[int, str] = {}
            store.thread("other").save({"n": 1})
            thread = store.thread("t")
            save_until_refused(thread, saved)
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(b"x")
            assert shutil.disk_usage(place).free == 0
            try:
                gone = delete(thread)
            except outlive.errors.StoreFull:
                assert backend == "sqlite"  # which writes a deletion into its log first
                check(store, saved)
                continue
            assert gone == (True if "delete" in how else len(saved) - 1)
            assert shutil.disk_usage(place).free > 300_000, how
            last = max(saved)
            check(store, {} if "delete" in how else {last: saved[last]})
            assert not thread.delete() or "delete" not in how
            assert thread.save(noise(1), step=1).seq == last + 1
            assert store.thread("other").load() == {"n": 1}
            if backend == "file":
                assert (place / "store" / "reserve").stat().st_size == 64 << 10
    report("deleted", len(DELETIONS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_disk_lets_something_be_deleted_or_says_truly_that_it_was_not(backend, server, folder):
    with server.spawn(delete_on_full_disk, backend, folder) as worker:
        ((said, detail),) = worker.finish()
    if said == "refused":
        pytest.skip(f"no tmpfs can be mounted here ({detail})")


def limit_file_size(report, backend, folder):
    """The same by a limit of this process, which cuts a write in the middle."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    url, saved = url_of(backend, folder), {}
    with outlive.open(url) as store:
        thread = store.thread("t")
        saved[1] = thread.save(noise(1), step=1).id
        for limit in (400_000, 700_001, 1_000_003):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
            for _ in range(2):
                error = save_until_refused(thread, saved)
                assert isinstance(error, outlive.errors.StoreUnavailable), repr(error)
            check(store, saved)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            step = max(saved) + 1
            saved[step] = thread.save(noise(step), step=step).id
            check(store, saved)
    with outlive.open(url) as store:
        check(store, saved)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_that_is_cut_in_the_middle_is_refused_and_nothing_else_is_lost(backend, server, folder):
    with server.spawn(limit_file_size, backend, folder) as worker:
        worker.finish()


def limit_file_size_async(report, backend, folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    url = url_of(backend, folder)

    async def main():
        async with outlive.open_async(url) as store:
            threads = [store.thread(f"t{number}") for number in range(4)]
            await asyncio.gather(*(thread.save(noise(1)) for thread in threads))
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, most))
            outcomes = await asyncio.gather(
                *(thread.save(noise(30)) for thread in threads), return_exceptions=True
            )
            assert all(isinstance(outcome, outlive.errors.StoreUnavailable) for outcome in outcomes), outcomes
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            assert [await thread.load() for thread in threads] == [noise(1)] * 4
            await asyncio.gather(*(thread.save(noise(30)) for thread in threads))
            assert (await store.verify()).problems == ()

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_get_the_typed_error_too_and_go_on_when_there_is_room(backend, server, folder):
    with server.spawn(limit_file_size_async, backend, folder) as worker:
        worker.finish()


@contextlib.contextmanager
def noted(errors: list[BaseException]):
    try:
        yield
    except BaseException as error:
        errors.append(error)
        raise


def limit_file_size_delayed(report, backend, folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with outlive.open(url_of(backend, folder), durability="async") as store:
        thread = store.thread("t")
        for step in range(1, 4):
            thread.save(noise(step), step=step)
        store.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, most))
        queued, failures = [], []
        for step in range(20, 40):
            with contextlib.suppress(outlive.errors.DelayedSaveFailed), noted(failures):
                queued.append(thread.save(noise(step), step=step).id)
        with contextlib.suppress(outlive.errors.DelayedSaveFailed), noted(failures):
            store.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert failures
        assert all(isinstance(error.__cause__, outlive.errors.StoreUnavailable) for error in failures)
        missing = [checkpoint for checkpoint in queued if not thread.exists(checkpoint)]
        named = [checkpoint for error in failures for checkpoint in error.checkpoints]
        assert missing == named, (missing, named)
        thread.save(noise(40), step=40)
        store.flush()
        check(store, {40: thread.checkpoint().id})


@pytest.mark.parametrize("backend", BACKENDS)
def test_delayed_saves_that_found_no_room_are_named_and_leave_no_trace(backend, server, folder):
    with server.spawn(limit_file_size_delayed, backend, folder) as worker:
        worker.finish()


# A broken disk ----------------------------------------------------------------------------------------


def save_beside_strace(report, backend, folder):
    """Save while strace makes system calls fail; `folder/fail` and `folder/fix` tell when."""
    url, saved = url_of(backend, folder), {}
    with outlive.open(url) as store:
        thread = store.thread("t")
        for step in (1, 2, 3):
            saved[step] = thread.save(noise(step), step=step).id
        report("ready")
        wait_for(folder / "fail")
        error = save_until_refused(thread, saved, 60)
        report("refused", type(error).__name__, str(error))
        wait_for(folder / "fix")
        check(store, saved)
        step = max(saved) + 1
        saved[step] = thread.save(noise(step), step=step).id
        check(store, saved)
    with outlive.open(url) as store:
        check(store, saved)


def wait_for(path: Path) -> None:
    eventually(path.exists, f"nobody made {path.name}")


SYNCS, WRITES = "fsync,fdatasync", "write,pwrite64,pwritev,writev"
FAULTS = [
    f"{SYNCS}:error=EIO:when=1",
    f"{SYNCS}:error=EIO:when=2+2",
    f"{WRITES}:error=EIO:when=2+3",
    f"{WRITES}:error=ENOSPC:when=1",
    *(f"{calls}:error=EIO:when={n}+{n}" for calls in (SYNCS, WRITES) for n in range(3, 12) if LONG),
]


@pytest.mark.skipif(STRACE is None, reason="strace is not installed: nothing else makes a system call fail")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_disk_that_fails_is_a_typed_error_and_loses_nothing_acknowledged(fault, backend, server, folder):
    with server.spawn(save_beside_strace, backend, folder) as worker:
        assert worker.receive() == ("ready",)
        paths = [f"--trace-path={path}" for path in sorted(folder.rglob("*"))]
        command = [STRACE, "-f", "-p", str(worker.pid), "-o", "/dev/null", *paths, "-e", f"inject={fault}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            try:
                attached = strace.stderr.readline()
                if "attached" not in attached:
                    pytest.skip(f"strace may not look at processes here: {attached.strip()}")
                (folder / "fail").touch()
                said = worker.receive()
            finally:
                strace.terminate()
        (folder / "fix").touch()
        worker.finish()
    assert said is not None, "nothing failed"
    assert said[:2] == ("refused", "StoreFull" if "ENOSPC" in fault else "StoreUnavailable")


# Not ours -------------------------------------------------------------------------------------------------


def drop_capabilities() -> None:
    """Let the permissions of files hold for root too, in this process."""
    header = struct.pack("Ii", 0x20080522, 0)  # version 3, this process
    if ctypes.CDLL(None).capset(header, bytes(24)) != 0:
        raise OSError("capset")


def without_privileges(report, work, *args):
    """Do something as one who may not write everywhere."""
    if os.getuid() == 0:
        drop_capabilities()
    try:
        work(*args)
    except outlive.OutliveError as error:
        report(type(error).__name__, str(error))
    else:
        report("no error", "")


def open_and_save(url):
    with outlive.open(url) as store:
        store.thread("t").save({"n": 2})


def open_and_load(url):
    with outlive.open(url) as store:
        assert store.thread("t").load() == {"n": 1}


@pytest.mark.parametrize("work", [open_and_save, open_and_load])
@pytest.mark.parametrize("locks", ["files", "folders", "files and folders"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_that_may_not_be_written_says_so(backend, locks, work, server, folder):
    url = url_of(backend, folder)
    with outlive.open(url) as store:
        store.thread("t").save({"n": 1})
    for path in (folder, *folder.rglob("*")):
        kind = "folders" if path.is_dir() else "files"
        writable = kind not in locks
        path.chmod((0o777 if writable else 0o555) if path.is_dir() else (0o666 if writable else 0o444))
    with server.spawn(without_privileges, work, url) as worker:
        ((kind, text),) = worker.finish()
    print(kind, text)
    if kind != "no error":
        assert kind == "StoreUnavailable"
        assert any(word in text.lower() for word in ("read-only", "readonly", "permission", "not be written"))
    else:  # reading may work, and what needs no new file
        assert work is open_and_load or locks == "folders"
    with outlive.open(url) as store:
        assert store.thread("t").load() in ({"n": 1}, {"n": 2})
        assert store.verify().problems == ()


def refusal(url: str) -> outlive.OutliveError:
    with pytest.raises(outlive.OutliveError) as caught:
        outlive.open(url)
    return caught.value


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_in_a_folder_that_is_not_there_is_refused_by_name(backend, folder):
    error = refusal(url_of(backend, folder / "missing"))
    assert isinstance(error, outlive.errors.BadURL)
    assert "missing" in str(error)
    assert list(folder.iterdir()) == []


def test_a_folder_in_place_of_a_sqlite_file_is_refused(folder):
    (folder / "store.db").mkdir()
    assert "store.db" in str(refusal(url_of("sqlite", folder)))


def test_a_file_in_place_of_a_folder_is_refused_and_left_as_it_was(folder):
    (folder / "store").write_text("mine")
    assert "store" in str(refusal(url_of("file", folder)))
    assert (folder / "store").read_text() == "mine"


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_sqlite_file_of_another_program_is_refused_and_left_as_it_was(version, folder):
    path = folder / "store.db"
    db = apsw.Connection(str(path))
    db.execute(f"create table notes(text); insert into notes values('mine'); pragma user_version = {version}")
    db.close()
    before = path.read_bytes()
    error = refusal(url_of("sqlite", folder))
    assert isinstance(error, outlive.errors.BadURL), repr(error)
    assert path.read_bytes() == before
    assert [entry.name for entry in folder.iterdir()] == ["store.db"]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(folder):
    (folder / "store.db").write_text("Dear diary, " * 1000)
    assert isinstance(refusal(url_of("sqlite", folder)), outlive.StoreError | outlive.errors.BadURL)
    assert (folder / "store.db").read_text() == "Dear diary, " * 1000


def test_a_folder_of_something_else_is_refused_and_left_as_it_was(folder):
    (folder / "store").mkdir()
    (folder / "store" / "diary.txt").write_text("mine")
    assert isinstance(refusal(url_of("file", folder)), outlive.errors.BadURL)
    assert [entry.name for entry in (folder / "store").iterdir()] == ["diary.txt"]


def test_a_sqlite_store_of_a_newer_outlive_is_refused_with_both_versions(folder):
    url = url_of("sqlite", folder)
    with outlive.open(url) as store:
        store.thread("t").save({"n": 1})
    db = apsw.Connection(str(folder / "store.db"))
    ((ours,),) = db.execute("pragma user_version").fetchall()
    db.execute(f"pragma user_version = {ours + 3}")
    db.close()
    error = refusal(url)
    assert isinstance(error, outlive.errors.NewerFormat)
    assert (error.found, error.known) == (ours + 3, ours)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_async_store_that_cannot_be_opened_raises_the_same_and_leaves_nothing_behind(backend, folder):
    (folder / "store").write_text("mine")
    (folder / "store.db").write_text("mine")

    async def main():
        with pytest.raises(outlive.OutliveError):
            await outlive.open_async(url_of(backend, folder))

    asyncio.run(main())
    assert {entry.name: entry.read_text() for entry in folder.iterdir()} == {
        "store": "mine",
        "store.db": "mine",
    }
