"""Every public call on every damaged store gives an `OutliveError` or the right answer.

One record of a store (a row, a column, a page, a key, a field, some bytes) is deleted, changed, cut, emptied, exchanged with another, or
put back as an older copy of itself. Then all calls that read are made, and one that changes something. Where less is promised,
`LIMITS` says so. `OUTLIVE_SEED` repeats a round, `OUTLIVE_LONG` does many with all changes.
"""

import os
import random
import re

import pytest

import outlive
from conftest import SEED
from outlive import OutliveError, StoreError
from rig.crash import ram_folder
from rig.damage import CHANGES, READS, FilePlace, PostgresPlace, RedisPlace, SQLitePlace, fill, fill_more

pytestmark = pytest.mark.heavy

LONG = bool(os.environ.get("OUTLIVE_LONG"))
ROUNDS = {"postgresql": 4, "sqlite": 6, "file": 6, "redis": 3}
# Rounds that once gave a wrong answer: a cut status hid a run; an older page of an index, a page of another index, and the records of
# another thread hid checkpoints or runs; a changed place hid the newest checkpoint; a name that is no bytes was an untyped error.
KNOWN = {
    "sqlite": (
        20127000029,
        77000028,
        911000049,
        7001000014,
        7001000249,
        7001000489,
        7001000654,
        7001000993,
    ),
    "redis": (911000132,),
}

# (backend, what was damaged, how, call): what the documentation does not promise. See "Damage" in docs/guarantees.md.
LIMITS = [
    # A list over threads knows no number of runs: a run that is gone is missed by its own thread, and by `verify`.
    ("postgresql", "entry", "delete|flip|cut|swap", "runs|recoverable|recover|copy to"),
    # A checkpoint whose place was changed is noticed on the page that it is on by now.
    ("postgresql", "checkpoint", "flip|cut|swap", "first page of .*"),
    ("sqlite", "thread", "flip|cut|swap|null", "runs|recoverable|recover|copy to"),
    # SQLite changes nothing in a file with a page that it cannot read.
    ("sqlite", "page", ".*", "delete.*"),
    # The history of a run goes by what the records say: one that is damaged may say another run. The whole history finds it.
    ("postgresql", "checkpoint", "flip|cut|swap|null", "history of a run of .*"),
    ("redis", ".*:r'", "flip|cut", "history of a run of .*"),
    # The index of many threads: deleting one of them does not repair it, and `verify` still says so.
    ("redis", r".*:(threads|roster)'", "swap", "delete.*"),
    # Counters of a thread's row, of a time when the thread had the same newest checkpoint, metadata and runs.
    ("postgresql", "thread", "older", "threads|info of .*|size of .*"),
    # A changed member of a sorted set is not missed by its number: `verify` finds it.
    ("redis", ".*:(o|threads|entries)'", "flip", ".*"),
]


def is_limit(place, what, call):
    return any(
        name == place.name
        and re.fullmatch(target, str(what[0]))
        and re.fullmatch(way, str(what[1]))
        and re.fullmatch(calls, call)
        for name, target, way, calls in LIMITS
    )


def ask(call, store):
    try:
        return call(store)
    except OutliveError as error:
        return error


def same(answer, expected):
    if isinstance(expected, OutliveError):
        return isinstance(answer, OutliveError)
    return isinstance(answer, OutliveError) or answer == expected


class Trial:
    """A sound store, its answers, and what is wrong with those of damaged ones."""

    def __init__(self, place):
        self.place = place
        place.fill(fill, fill_more)
        place.restore()
        with outlive.open(place.url) as store:
            self.reads = {name: ask(call, store) for name, call in READS.items()}
            assert store.verify().problems == ()
        self.changes = {}
        for name, answer in self.reads.items():
            assert not isinstance(answer, StoreError), (name, answer)
        self.failures = []

    def expected(self, name):
        """Return what a change answers on the sound store."""
        if name not in self.changes:
            self.place.restore()
            with outlive.open(self.place.url) as store:
                answer = self.changes[name] = ask(CHANGES[name], store)
            assert not isinstance(answer, StoreError), (name, answer)
        return self.changes[name]

    def round(self, seed):
        rng = random.Random(seed)
        self.place.restore()
        what = self.place.damage(rng)
        if what is None:
            return False
        changes = list(CHANGES) if LONG else [rng.choice(list(CHANGES))]
        self.guarded(seed, what, "open", lambda: self.read_all(seed, what))
        for name in changes:
            self.expected(name)
            self.place.restore()
            self.place.damage(random.Random(seed))
            self.guarded(seed, what, name, lambda name=name: self.change_one(seed, what, name))
        return True

    def guarded(self, seed, what, name, work):
        try:
            work()
        except OutliveError:
            pass  # the store does not open
        except Exception as error:
            self.fail(seed, what, name, f"an untyped error: {error!r}")

    def read_all(self, seed, what):
        with outlive.open(self.place.url) as store:
            answers = {}
            for name, call in READS.items():
                try:
                    answers[name] = ask(call, store)
                except Exception as error:
                    self.fail(seed, what, name, f"an untyped error: {error!r}")
            report = ask(lambda store: store.verify(), store)
        for name, answer in answers.items():
            if not same(answer, self.reads[name]):
                self.fail(
                    seed, what, name, f"a wrong answer: {answer!r:.300} and not {self.reads[name]!r:.300}"
                )
        errors = [answer for answer in answers.values() if isinstance(answer, StoreError)]
        if errors and not isinstance(report, OutliveError) and report.ok:
            self.fail(seed, what, "verify", f"not found: {errors[0]}")

    def change_one(self, seed, what, name):
        with outlive.open(self.place.url) as store:
            answer = ask(CHANGES[name], store)
            if name.startswith("delete") and isinstance(answer, OutliveError):
                self.fail(seed, what, name, f"a damaged thread cannot be deleted: {answer!r}")
        if not same(answer, self.changes[name]):
            self.fail(
                seed, what, name, f"a wrong answer: {answer!r:.300} and not {self.changes[name]!r:.300}"
            )

    def fail(self, seed, what, name, reason):
        if not is_limit(self.place, what, name):
            self.failures.append(f"OUTLIVE_SEED={seed} {what!r:.400}\n  {name}: {reason}")

    def conclude(self):
        shown = "\n".join(self.failures[:12])
        assert not self.failures, f"{len(self.failures)} failures of {self.place.name}:\n{shown}"


def run(place):
    try:
        trial = Trial(place)
        for known in KNOWN.get(place.name, ()):
            trial.round(known)
        left, seed = ROUNDS[place.name] * (80 if LONG else 1), SEED * 1_000_000
        while left:
            left -= trial.round(seed)
            seed += 1
        trial.conclude()
    finally:
        place.close()


@pytest.fixture
def ram():
    with ram_folder() as folder:
        yield folder


def test_damaged_rows_of_postgresql_are_an_error_or_make_no_difference(postgres_url):
    run(PostgresPlace(postgres_url))


def test_damaged_bytes_of_files_are_an_error_or_make_no_difference(ram):
    run(FilePlace(ram))


def test_damaged_rows_and_pages_of_sqlite_are_an_error_or_make_no_difference(ram):
    run(SQLitePlace(ram))


def test_damaged_keys_and_fields_of_redis_are_an_error_or_make_no_difference(valkey_server):
    run(RedisPlace(valkey_server))
