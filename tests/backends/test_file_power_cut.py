"""The file backend against power cuts: every prefix of its system calls, with what was not synced lost.

A `Recorder` stands between the backend and the disk and notes every call that changes something. For every
prefix of the calls, and for many subsets of those that no fsync covers yet, the folder is built as a power
cut could leave it, and a new backend must find in it all that was acknowledged, and nothing by half.

The model is harsher than most file systems: calls that were not synced may reach the disk in any combination,
the last write may be torn in the middle, and a name lasts only when its folder was synced.

OUTLIVE_LONG=1 tries more subsets. A failure prints what is needed to see it again.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from outlive.backend import (
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
from outlive.backends.file.backend import FileBackend
from outlive.backends.file.disk import Disk
from outlive.backends.local.memory import MemoryBackend
from outlive.errors import HeadMoved

pytestmark = pytest.mark.heavy

SEED = int(os.environ.get("OUTLIVE_SEED", "20261115"))
LONG = bool(os.environ.get("OUTLIVE_LONG"))
SUBSETS = 60 if LONG else 1
STRIDE = 1 if LONG else 7  # between the calls after which the power goes
DEATHS = 1 if LONG else 20  # between the calls after which a process dies
PARTS = 4  # of the recording, each in a test of its own
A, B, C = (ThreadKey.of("", name) for name in ("a", "b", "ç\ud800"))


# The disk that is recorded -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """One call that changes the disk. `file` is the inode's number in the record, `name` a path below the root."""

    kind: str
    file: int = -1
    name: str = ""
    at: int = 0
    data: bytes = b""

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


class QuickDisk(Disk):
    """A disk that need not be waited for."""

    def sync(self, fd: int) -> None:
        """Nothing in these tests outlives the machine."""

    def sync_folder(self, folder: str = "") -> None:
        """The same."""


class Recorder(QuickDisk):
    """Does what is asked, and notes it."""

    def __init__(self, root: str, ops: list[Op] | None = None) -> None:
        super().__init__(root)
        self.ops = list(ops or [])
        self._names = _names(self.ops)
        self._files: dict[int, int] = {}

    def make_folder(self, name: str = "") -> None:
        super().make_folder(name)
        if name:
            self.ops.append(Op("make_folder", name=name))

    def open(self, name: str, *, write: bool = False, create: bool = False) -> int:
        fd = super().open(name, write=write, create=create)
        self._files[fd] = self._names[name]
        return fd

    def create(self, name: str) -> int:
        fd = super().create(name)
        self._files[fd] = self._names[name] = 1 + max((op.file for op in self.ops), default=0)
        self.ops.append(Op("create", self._names[name], name))
        return fd

    def write(self, fd: int, data: bytes, at: int) -> None:
        super().write(fd, data, at)
        self.ops.append(Op("write", self._files[fd], at=at, data=data))

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self.ops.append(Op("truncate", self._files[fd], at=size))

    def sync(self, fd: int) -> None:
        self.ops.append(Op("sync", self._files[fd]))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._names[new] = self._names.pop(old)
        self.ops.append(Op("rename", self._names[new], new, data=old.encode()))

    def remove(self, name: str) -> None:
        super().remove(name)
        self.ops.append(Op("remove", self._names.pop(name), name))

    def sync_folder(self, folder: str = "") -> None:
        self.ops.append(Op("sync_folder", name=folder))


def _names(ops: list[Op]) -> dict[str, int]:
    return {name: file for name, (file, _) in _state(ops).items()}


# What a power cut leaves ---------------------------------------------------------------------------------


State = dict[str, tuple[int, bytes]]  # name → (file, contents); a folder is (-1, b"")


def _state(ops: list[Op]) -> State:
    """Apply calls to an empty disk."""
    names: dict[str, int] = {}
    contents: dict[int, bytearray] = {}
    for op in ops:
        data = contents.setdefault(op.file, bytearray())
        if op.kind == "write":
            data.extend(bytes(max(0, op.at - len(data))))
            data[op.at : op.at + len(op.data)] = op.data
        elif op.kind == "truncate":
            del data[op.at :]
            data.extend(bytes(op.at - len(data)))
        elif op.kind in ("create", "rename", "make_folder"):
            names.pop(op.data.decode(), None)
            names[op.name] = op.file
        elif op.kind == "remove":
            names.pop(op.name, None)
    return {name: (file, bytes(contents[file])) for name, file in names.items()}


def _pending(ops: list[Op]) -> list[int]:
    """Return the places of the calls that no fsync covers."""
    pending: list[int] = []
    for place, op in enumerate(ops):
        if op.kind == "sync":
            pending = [
                i for i in pending if not (ops[i].file == op.file and ops[i].kind in ("write", "truncate"))
            ]
        elif op.kind == "sync_folder":
            pending = [i for i in pending if ops[i].kind in ("write", "truncate") or ops[i].folder != op.name]
        elif op.kind != "ack":
            pending.append(place)
    return pending


def _cuts(ops: list[Op], chance: random.Random, subsets: int) -> Iterator[list[Op]]:
    """Yield what may have reached the disk when the power went after these calls."""
    pending = _pending(ops)
    lost: list[set[int]] = [set(), set(pending)]
    lost += [{one} for one in pending]
    lost += [set(pending) - {one} for one in pending]
    lost += [
        {one for one in pending if chance.random() < 0.5} for _ in range(subsets if len(pending) > 2 else 0)
    ]
    for gone in lost:
        yield [op for place, op in enumerate(ops) if place not in gone]
    writes = [place for place in pending if ops[place].kind == "write"]
    if writes:
        torn = writes[-1]
        half = replace(ops[torn], data=ops[torn].data[: len(ops[torn].data) // 2])
        yield [*ops[:torn], half, *ops[torn + 1 :]]
        yield [
            half if place == torn else op
            for place, op in enumerate(ops)
            if place == torn or place not in pending
        ]


def _build(state: State, root: Path) -> None:
    """Lay a state out on a real folder."""
    root.mkdir(mode=0o700)
    if "threads" in state:
        (root / "threads").mkdir(mode=0o700)
    for name, (file, data) in state.items():
        if file >= 0 and ("/" not in name or "threads" in state):
            (root / name).write_bytes(data)


# What is done, and what it should give ---------------------------------------------------------------------


def _chunk(text: str) -> tuple[bytes, bytes]:
    data = text.encode() * 20
    return hashlib.blake2b(data, digest_size=16).digest(), data


def _save(thread: ThreadKey, name: str, **more: object) -> Commit:
    chunk = _chunk(f"{thread.id!r} {name}")
    record = CheckpointRecord(
        "", name, None, None, 1, "loop", 20, 20, (chunk[0],), f"body of {name}".encode(), follows=True
    )
    return Commit(thread, (record,), (chunk,), **more)  # type: ignore[arg-type]


def _steps() -> list[list[Commit]]:
    """Groups of commits: first saves, saves, groups, removal, erasure, deletion of a thread and its return."""
    write = WriteRecord("", "a2", "task", 0, "channel", "path", b"written")
    return [
        [_save(A, "a1")],
        [
            _save(
                A,
                "a2",
                writes=(write,),
                entries=(EntryRecord("run", "r", b"1", "running", fence=1),),
                metadata=b"title",
            )
        ],
        [_save(B, "b1"), _save(C, "c1"), _save(A, "a3")],
        [_save(A, "a4"), _save(B, "b2"), _save(A, "a5")],
        [Commit(A, removal=Removal(checkpoints=(("", "a1"),)))],
        [Commit(A, removal=Removal(chunks=(_chunk("'a' a1")[0],), chunks_until=99, erase=True))],
        [_save(A, "a6", entries=(EntryRecord("run", "r", b"2", "running", fence=1, revision=1),))],
        [Commit(B, removal=Removal(everything=True))],
        [_save(B, "b3"), _save(A, "a7")],
    ]


def _seen(backend: MemoryBackend, thread: ThreadKey) -> object:
    """All that a thread says, but for tokens and times."""
    inventory = backend.inventory(thread)
    rows = [row for row in backend.threads(ThreadQuery("")) if row.id == thread.id]
    return (
        [(row.seq, row.metadata) for row in rows],
        [replace(record, created_at=0) for record in backend.history(HistoryQuery(thread, None))[1]],
        backend.writes(thread, None),
        [entry for _, entry in backend.entries(EntryQuery("", "run", thread=thread))],
        inventory.revision,
        sorted(inventory.chunks.items()),
        sorted(backend.fetch(thread, list(inventory.chunks)).items()),
    )


class Expected:
    """What each thread says after each commit, as the memory backend has it."""

    def __init__(self, steps: list[list[Commit]]) -> None:
        self.backend = MemoryBackend()
        self.after = [self._look()]
        self.ends = [0]
        for group in steps:
            for commit in group:
                _done(self.backend, commit)
                self.after.append(self._look())
            self.ends.append(len(self.after) - 1)

    def _look(self) -> dict[ThreadKey, object]:
        return {thread: _seen(self.backend, thread) for thread in (A, B, C)}

    def allowed(self, thread: ThreadKey, acked: int) -> list[object]:
        """After `acked` groups, and perhaps some commits of the next."""
        last = self.ends[min(acked + 1, len(self.ends) - 1)]
        return [self.after[i][thread] for i in range(self.ends[acked], last + 1)]

    def seq(self, thread: ThreadKey, acked: int) -> int:
        """The greatest seq that anyone was told."""
        seen = [self.after[i][thread][0] for i in range(self.ends[acked] + 1)]  # type: ignore[index]
        return max((rows[0][0] for rows in seen if rows), default=0)


def _done(backend: MemoryBackend, commit: Commit) -> Receipt:
    (result,) = backend.commit_all([commit])
    assert isinstance(result, Receipt), result
    return result


def _record(root: Path, steps: list[list[Commit]], disk: type[Recorder] = Recorder) -> list[Op]:
    """Do the steps, and return the calls, with an `ack` wherever a caller got the answer."""
    recorder = disk(str(root))
    backend = FileBackend(str(root), disk=recorder)
    backend.identity(b"k" * 32)
    recorder.ops.append(Op("ack"))
    for group in steps:
        assert all(isinstance(result, Receipt) for result in backend.commit_all(group))
        recorder.ops.append(Op("ack"))
    backend.close()
    return recorder.ops


# The judge -------------------------------------------------------------------------------------------------


class AttemptFailed(AssertionError):
    """A promise that was not kept."""


def _judge(root: Path, expected: Expected, acks: int) -> None:
    """Open what is left, and check every promise."""
    backend = FileBackend(str(root), disk=QuickDisk(str(root)))
    key = backend.identity(b"other")
    _check(acks == 0 or key == b"k" * 32, "the naming key is lost")
    acked = max(0, acks - 1)
    for thread in (A, B, C):
        seen = _seen(backend, thread)
        _check(seen in expected.allowed(thread, acked), f"thread {thread.id!r} says {seen}")
    listed = {row.id for row in backend.threads(ThreadQuery(""))}
    for thread in (A, B, C):
        before = expected.seq(thread, acked)
        receipt = _done(backend, _save(thread, "new"))
        _check(receipt.checkpoints[0].seq > before, "a seq was used again")
        _check(backend.read(thread, "").record == receipt.checkpoints[0], "a new save is not the head")
        _check(thread.id in listed or not _said(expected, thread, acked), "a thread is not listed")
    problems = [problem for thread in (A, B, C, None) for problem in backend.audit(thread)]
    _check(not problems, f"audit: {problems}")
    _check(not list(root.rglob("*.tmp")), "a temporary file stays")
    backend.close()


def _said(expected: Expected, thread: ThreadKey, acked: int) -> bool:
    """A thread is to be listed when it is, whatever happened to the commits in flight."""
    return all(seen[0] for seen in expected.allowed(thread, acked))  # type: ignore[index]


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AttemptFailed(otherwise)


def _try_cuts(
    ops: list[Op], expected: Expected, acks: int, tried: set[bytes], subsets: int, where: str
) -> None:
    chance = random.Random(f"{SEED} {where}")
    for number, left in enumerate(_cuts(ops, chance, subsets)):
        state = _state(left)
        name = hashlib.sha256(repr((acks, sorted(state.items()))).encode()).digest()
        if name in tried:
            continue
        tried.add(name)
        with _folder() as root:
            _build(state, root)
            try:
                _judge(root, expected, acks)
            except Exception as error:
                raise AttemptFailed(
                    f"OUTLIVE_SEED={SEED}, {where}, cut {number}, {acks} acks: {error!r}"
                ) from error


class _folder:
    """A folder in memory, gone afterwards."""

    def __enter__(self) -> Path:
        self._root = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        return Path(self._root, "store")

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._root)


def _cut_everywhere(
    tmp_path: Path,
    disk: type[Recorder] = Recorder,
    subsets: int = SUBSETS,
    parts: Container[int] = range(PARTS),
    stride: int = 1,
) -> int:
    """Cut after each call of some parts of the recording; return how many states that left."""
    steps = _steps()
    expected = Expected(steps)
    ops = _record(tmp_path / "store", steps, disk)
    tried: set[bytes] = set()
    acks = 0
    for end in range(len(ops) + 1):
        acks += end > 0 and ops[end - 1].kind == "ack"
        if end * PARTS // (len(ops) + 1) not in parts or end % stride:
            continue
        _try_cuts(
            [op for op in ops[:end] if op.kind != "ack"], expected, acks, tried, subsets, f"prefix {end}"
        )
    return len(tried)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_cut_anywhere_loses_nothing_acknowledged(tmp_path: Path, part: int) -> None:
    states = _cut_everywhere(tmp_path, parts=[part], stride=STRIDE)
    print(f"{states} states, seed {SEED}")
    assert states > 20


class NoFolderSync(Recorder):
    def sync_folder(self, folder: str = "") -> None:
        """The mistake: names are never made to last."""


class NoFileSync(Recorder):
    def sync(self, fd: int) -> None:
        """The mistake: contents are never made to last."""


class EarlyMark(Recorder):
    """The mistake: the mark is on disk before the frames that it covers."""

    def write(self, fd: int, data: bytes, at: int) -> None:
        super().write(fd, data, at)
        if len(data) == 16:
            sync = max(i for i, op in enumerate(self.ops) if op.kind == "sync" and op.file == self._files[fd])
            self.ops.append(self.ops.pop(sync))


@pytest.mark.parametrize("mistake", [NoFolderSync, NoFileSync, EarlyMark])
def test_the_judge_notices_a_missing_fsync(tmp_path: Path, mistake: type[Recorder]) -> None:
    with pytest.raises(AttemptFailed):
        _cut_everywhere(tmp_path, mistake, subsets=0)


@pytest.mark.parametrize("is_new", [True, False], ids=["new process", "old process"])
def test_what_a_killed_process_left_is_made_to_last_before_another_builds_on_it(
    tmp_path: Path, is_new: bool
) -> None:
    """Process one dies after any call; process two retries and is answered; then the power goes."""
    steps = _steps()
    expected = Expected(steps)
    calls = _record(tmp_path / "store", steps)
    tried: set[bytes] = set()
    acks = 0
    for end in range(len(calls)):
        acks += end > 0 and calls[end - 1].kind == "ack"
        if acks == 0 or acks > len(steps):
            continue
        if (end + is_new * DEATHS // 2) % DEATHS:  # the two kinds of process die after different calls
            continue
        before = [op for op in calls[:end] if op.kind != "ack"]
        with _folder() as root:
            _build(_state(before), root)
            after = _retry(root, before, steps[acks - 1], is_new)
        _try_cuts(after, expected, acks + 1, tried, 0, f"killed at {end}")
    assert len(tried) > 30


def _retry(root: Path, before: list[Op], group: list[Commit], is_new: bool) -> list[Op]:
    """Do again in a second process what the first was killed in."""
    recorder = Recorder(str(root), before)
    backend = FileBackend(str(root), disk=recorder)
    backend._guard._is_repaired = not is_new  # a new one repairs in any case
    backend.identity(b"another")
    results = backend.commit_all([_again(backend, commit) for commit in group])
    assert all(isinstance(result, Receipt | HeadMoved) for result in results), results
    return recorder.ops


def _again(backend: FileBackend, commit: Commit) -> Commit:
    """A save is retried as it is: that is what its id is for. After a removal that is seen to be done, any commit
    that gets an answer, be it a refusal, builds on it.
    """
    removal = commit.removal
    if removal is None:
        return commit
    gone = all(backend.read(commit.thread, *pair).record is None for pair in removal.checkpoints)
    names = backend.inventory(commit.thread).chunks
    left = names if removal.everything else set(removal.chunks) & set(names)
    return Commit(commit.thread, expect_head=("", "another")) if gone and not left else commit
