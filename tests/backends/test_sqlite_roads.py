"""The fast path of SQLite and the general one leave the same rows and give the same answers.

Two backends on one file do a random sequence of commits, and two others the same sequence on
another file, where every commit takes the general path.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

import apsw
import pytest

from conftest import LONG, SEED
from outlive.backend import (
    NEXT,
    WALL,
    Commit,
    EntryQuery,
    EntryRecord,
    Fence,
    HistoryQuery,
    Receipt,
    Removal,
    ThreadKey,
    WriteRecord,
)
from outlive.backends.sqlite import backend as sqlite_backend
from outlive.backends.sqlite.append import append
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.backends.sqlite.tables import TABLES
from outlive.errors import OutliveError
from outlive.testing.thread_records import draft
from rig.general_road import GeneralRoad

THREADS = [ThreadKey.of("", id) for id in ("t", "u")]
NAMES = [bytes([number]) * 16 for number in range(6)]
ODD_ENTRIES = (
    {"gone": True}, {"fence": NEXT}, {"expect": (0, 0, 0)}, {"expect_lapsed": True}, {"kind": "response"}, {"kind": "?"},
    {"epoch": 1}, {},
)  # fmt: skip
NOW = 1_700_000_000_000_000_000


class World:
    """Two backends on one file, and the generations that they gave out."""

    def __init__(self, road, path):
        self._path = path
        self.backends = [road(str(path), fsync="normal") for _ in range(2)]
        self.generations = {thread: [] for thread in THREADS}
        self._labels = {0: 0}

    def commit_all(self, number, specs):
        """Return the answers of one backend to a group of commits, without what is random."""
        commits = [replace(spec, generation=self._generation(spec)) for spec in specs]
        answers = self.backends[number].commit_all(commits)
        for spec, answer in zip(specs, answers, strict=True):
            if isinstance(answer, Receipt) and answer.generation not in self.generations[spec.thread]:
                self.generations[spec.thread].append(answer.generation)
        return [self._shown(answer) for answer in answers]

    def _generation(self, spec):
        """Replace the index of a generation, which a spec has, by the generation."""
        known = self.generations[spec.thread]
        if spec.generation is None or not known:
            return None
        return known[max(spec.generation, -len(known))]

    def _shown(self, answer):
        if isinstance(answer, OutliveError):
            return type(answer), str(answer).replace(str(self._path), "")
        return replace(answer, generation=self._label(answer.generation))

    def _label(self, generation):
        return self._labels.setdefault(generation, len(self._labels))

    def read(self, number, thread):
        """Return a thread as one backend reads it."""
        backend = self.backends[number]
        try:
            reading = backend.read(thread, "")
            history = backend.history(HistoryQuery(thread, None, limit=1000))[1]
            entries = [
                backend.entries(EntryQuery(thread.tenant, kind, thread=thread))
                for kind in ("run", "lock", "step")
            ]
            return reading.record, reading.chunks, history, backend.writes(thread, None), entries
        except OutliveError as error:
            return type(error), str(error)

    def rows(self):
        """Return all rows; the generations are labels, and checksums over them are left out."""
        db = apsw.Connection(str(self._path))
        columns = [name for _, name, *_ in db.execute("pragma table_info(thread)")]
        columns = [name for name in columns if name != "checksum"]
        where = columns.index("generation")
        threads = [list(row) for row in db.execute(f"select {', '.join(columns)} from thread order by key")]
        for row in threads:
            row[where] = self._label(row[where])
        tables = {
            table: sorted(db.execute(f"select * from {table}"), key=repr)
            for table in (*TABLES, "head", "roster")
        }
        db.close()
        return {"thread": threads, **tables}

    def problems(self):
        """Say what is damaged: the script also removes chunks that are in use."""
        return [str(problem) for thread in THREADS for problem in self.backends[0].audit(thread)]

    def close(self):
        for backend in self.backends:
            backend.close()


class Script:
    """Random groups of commits; a generation is an index into those that are known."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._ids = [f"c{number}" for number in range(40)]
        self._revision = self._fence = 1

    def group(self):
        if self._random.random() < 0.2:
            thread = self._random.choice(THREADS)
            return [self._held(thread) for _ in range(4)]
        return [self._commit() for _ in range(self._random.choice((1, 1, 1, 1, 2, 3)))]

    def _commit(self):
        kinds = (*[self._save] * 3, *[self._write] * 2, self._save_and_write, *[self._held] * 6, self._odd)
        commit = self._random.choice(kinds)(self._random.choice(THREADS))
        if self._random.random() < 0.7:
            commit.generation = self._random.choice((-1, -1, -1, -1, -2))
        if self._random.random() < 0.15:
            commit.expect_head = ("", self._random.choice((None, *self._ids)))
        return commit

    def _names(self):
        return self._random.sample(NAMES, self._random.randint(0, 3))

    def _chunks(self, names):
        """Bring some chunks, mostly those that are named."""
        brought = [name for name in names if self._random.random() < 0.4]
        if self._random.random() < 0.1:
            brought.append(self._random.choice(NAMES))
        return tuple((name, name * 3) for name in brought)

    def _draft(self, names):
        fields = {} if self._random.random() < 0.7 else {"parent": self._random.choice((None, *self._ids))}
        namespace = self._random.choice(("", "", "", "", "", "n"))
        body = self._random.randbytes(self._random.randint(1, 9))
        return draft(self._random.choice(self._ids), *names, namespace=namespace, body=body, **fields)

    def _save(self, thread):
        names = self._names()
        return Commit(thread, (self._draft(names),), self._chunks(names))

    def _writes(self, names):
        target = ("", self._random.choice(self._ids))
        tasks = [self._random.choice("ab") for _ in range(self._random.randint(1, 3))]
        return tuple(
            WriteRecord(
                *target, task, self._random.choice((-1, 0, 1, 2, 3, 4)), "c", "", b"w", tuple(names[:1])
            )
            for task in tasks
        )

    def _write(self, thread):
        names = self._names()
        return Commit(thread, (), self._chunks(names), self._writes(names))

    def _save_and_write(self, thread):
        names = self._names()
        return Commit(thread, (self._draft(names),), self._chunks(names), self._writes(names))

    def _held(self, thread):
        """A write of a run: its entries, maybe with a checkpoint, mostly under its fence."""
        self._revision += self._random.choice((0, 1, 1, 1))
        self._fence += self._random.random() < 0.05
        fence = self._fence
        entries = [self._lease("run", fence), *[self._lease("lock", fence)] * (self._random.random() < 0.5)]
        if self._random.random() < 0.7:
            key, body = (
                self._random.choice(("a", "b", *[f"new {self._random.random()}"] * 4)),
                self._random.choice((b"", b"s" * 9000, b"step")),
            )
            status = self._random.choice(("done", "done", "started"))
            entries.insert(0, EntryRecord("step", key, body, status, fence=fence, revision=self._revision))
        if self._random.random() < 0.1:
            entries.append(replace(entries[0], **self._random.choice(ODD_ENTRIES)))
        names = self._names()
        drafts = (self._draft(names),) if self._random.random() < 0.4 else ()
        commit = Commit(thread, drafts, self._chunks(names) if drafts else (), entries=tuple(entries))
        if self._random.random() < 0.6:
            commit.fence = Fence("run", "r", 0, fence + (self._random.random() < 0.05))
        return commit

    def _lease(self, kind, fence):
        body = self._random.choice((None, None, b"body"))
        status = self._random.choice(("running",) * 30 + ("completed",))
        revision = self._revision - (self._random.random() < 0.05)
        return EntryRecord(
            kind, "r", body, status, fence=fence, revision=revision, clock=WALL, lease_s=self._random.choice((None, 9))
        )  # fmt: skip

    def _odd(self, thread):
        names = self._names()
        id = self._random.choice(self._ids)
        entry = EntryRecord("response", self._random.choice("xy"), b"e", fence=self._random.choice((0, -1)))
        drafts = (self._draft(names),)
        return self._random.choice(
            (
                Commit(thread, removal=Removal(everything=True)),
                Commit(thread, removal=Removal((("", id), ("", "c1"), ("n", id)))),
                Commit(thread, removal=Removal(chunks=tuple(names), chunks_until=1 << 40)),
                Commit(thread, removal=Removal((("", id),), tuple(names), 1 << 40, leaves_tombstones=True)),
                Commit(thread, drafts, self._chunks(names), replace=True),
                Commit(thread, drafts, self._chunks(names), entries=(entry,)),
                Commit(thread, (*drafts, replace(self._draft(names), id="last")), self._chunks(names)),
                Commit(thread, drafts, self._chunks(names), expect_empty=True),
                Commit(thread, drafts, self._chunks(names), epoch=self._random.randint(0, 3)),
                Commit(thread, metadata=b"m"),
            )
        )


@pytest.fixture
def fast_receipts(monkeypatch):
    """The receipts of the fast path; of a group that is refused, more than are stored."""
    receipts = []

    def counted(*arguments):
        receipt = append(*arguments)
        if receipt is not None:
            receipts.append(receipt)
        return receipt

    monkeypatch.setattr(sqlite_backend, "append", counted)
    return receipts


@pytest.mark.parametrize("number", range(60 if LONG else 2))
def test_both_paths_leave_the_same_rows(tmp_path, monkeypatch, fast_receipts, number):
    seed = SEED * 1000 + number
    print(f"seed {seed}")
    script, chooser = Script(seed), random.Random(-seed)
    fast, general = World(SQLiteBackend, tmp_path / "a.db"), World(GeneralRoad, tmp_path / "b.db")
    backend = 0
    for step in range(200 if LONG else 100):
        monkeypatch.setattr(time, "time_ns", lambda at=NOW + step * 300_000_000: at)
        backend = backend if chooser.random() < 0.7 else chooser.randrange(2)
        group = script.group()
        assert fast.commit_all(backend, group) == general.commit_all(backend, group), (step, group)
        if chooser.random() < 0.03:
            for world in (fast, general):
                world.backends[backend].before_fork()  # closes the connection; what is known stays
        if step % 10 == 0:
            thread = chooser.choice(THREADS)
            assert fast.read(1 - backend, thread) == general.read(1 - backend, thread), (step, group)
            assert fast.rows() == general.rows(), (step, group)
    assert fast.rows() == general.rows()
    assert fast.problems() == general.problems()
    assert len(fast_receipts) >= 10
    assert sum(bool(receipt.entries) for receipt in fast_receipts) >= 3
    for world in (fast, general):
        world.close()
