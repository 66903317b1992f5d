"""Each expectation alone refuses a commit, and a refused commit leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlive.backend import ABSENT, Commit, EntryRecord, Fence, Inventory, Removal
from outlive.errors import (
    BadArgument,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    MetadataMoved,
    OutliveError,
    StaleBase,
    ThreadNotEmpty,
)
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, expected, write
from outlive.testing.trial import Trial

ONE, TWO, NEW = chunk("one"), chunk("two"), chunk("new")
EPOCH = 2
Fields = Callable[[Inventory], dict[str, Any]]


def _entry(key: str, **fields: Any) -> dict[str, Any]:
    rank = {"epoch": EPOCH, "fence": 100}
    return {"entries": (EntryRecord("lock", key, b"mine", **{**rank, **fields}),)}


FAILING: dict[str, tuple[Fields, type[OutliveError]]] = {
    "another generation": (lambda now: {"generation": now.generation ^ 1}, StaleBase),
    "a head that moved on": (lambda now: {"expect_head": ("", "a")}, HeadMoved),
    "no head where one is": (lambda now: {"expect_head": ("", None)}, HeadMoved),
    "a head where none is": (lambda now: {"expect_head": ("empty", "b")}, HeadMoved),
    "an empty thread": (lambda now: {"expect_empty": True}, ThreadNotEmpty),
    "a lower fence": (lambda now: {"fence": Fence("run", "run", 1, 2)}, LeaseLost),
    "a higher fence": (lambda now: {"fence": Fence("run", "run", 1, 4)}, LeaseLost),
    "the fence of another epoch": (lambda now: {"fence": Fence("run", "run", 0, 3)}, LeaseLost),
    "the fence of a finished run": (lambda now: {"fence": Fence("run", "finished", 0, 1)}, LeaseLost),
    "the fence of no run": (lambda now: {"fence": Fence("run", "nobody", 0, 0)}, LeaseLost),
    "the fence of another kind": (lambda now: {"fence": Fence("lock", "run", 1, 3)}, LeaseLost),
    "an epoch that has passed": (lambda now: {"epoch": EPOCH - 1}, EpochPassed),
    "an older version of the metadata": (lambda now: {"metadata_version": 0}, MetadataMoved),
    "a newer version of the metadata": (lambda now: {"metadata_version": 2}, MetadataMoved),
    "another rank of an entry": (lambda now: _entry("held", expect=(0, 4, 0)), EntryHeld),
    "the absence of an entry": (lambda now: _entry("held", expect=ABSENT), EntryHeld),
    "the presence of an entry": (lambda now: _entry("absent", expect=(0, 1, 0)), EntryHeld),
    "a lapsed lease": (lambda now: _entry("held", expect_lapsed=True), EntryHeld),
    "a lower rank of an entry": (lambda now: _entry("held", epoch=0, fence=4), EntryHeld),
    "a record to rewrite": (lambda now: {"rewrites": (draft("gone"),)}, BadArgument),
    "a chunk that is not there": (lambda now: {"writes": (write("b", "t", chunks=(b"x" * 16,)),)}, StaleBase),
}

HOLDING: dict[str, Fields] = {
    "the generation": lambda now: {"generation": now.generation},
    "the head": lambda now: {"expect_head": ("", "b")},
    "no head": lambda now: {"expect_head": ("empty", None)},
    "the fence": lambda now: {"fence": Fence("run", "run", 1, 3)},
    "the epoch": lambda now: {"epoch": EPOCH},
    "a later epoch": lambda now: {"epoch": EPOCH + 1},
    "no epoch": lambda now: {"epoch": None},
    "the version of the metadata": lambda now: {"metadata_version": 1},
    "the rank of an entry": lambda now: _entry("held", expect=(0, 5, 0)),
    "the absence of an entry": lambda now: _entry("absent", expect=ABSENT, expect_lapsed=True),
    "a lapsed lease": lambda now: _entry("lapsed", expect_lapsed=True),
    "an equal rank": lambda now: _entry("held", epoch=0, fence=5),
}

ON_NOTHING: dict[str, tuple[dict[str, Any], type[OutliveError]]] = {
    "a generation": ({"generation": 0}, StaleBase),
    "a head": ({"expect_head": ("", "a")}, HeadMoved),
    "a fence": ({"fence": Fence("run", "run", 0, 1)}, LeaseLost),
    "a version of the metadata": ({"metadata_version": 1}, MetadataMoved),
    "an entry": (_entry("lock", expect=(0, 1, 0)), EntryHeld),
    "a chunk": ({"writes": (write("a", "t", chunks=(ONE[0],)),)}, StaleBase),
}


async def _furnish(probe: Probe) -> None:
    """Give the thread something of everything."""
    await probe.commit(draft("a", ONE[0]), chunks=(ONE,), epoch=EPOCH)
    await probe.commit(
        draft("b", ONE[0]),
        chunks=(ONE, TWO),
        writes=(write("b", "task", body=b"first"), write("b", "task", -1, body=b"control")),
        entries=(
            EntryRecord("run", "run", status="running", epoch=1, fence=3),
            EntryRecord("run", "finished", status="completed", fence=1),
            EntryRecord("lock", "held", b"theirs", fence=5, lease_s=3600),
            EntryRecord("lock", "lapsed", b"theirs", fence=5, lease_s=0),
        ),
        metadata=b"metadata",
    )


def _everything(**expectation: Any) -> dict[str, Any]:
    """A commit that would change every table."""
    writes = (write("b", "late"), write("b", "task", -1, body=b"overwritten"))
    plain: dict[str, Any] = {
        "chunks": (NEW, ONE),
        "metadata": b"other",
        "removal": Removal(checkpoints=(("", "a"),), chunks=(TWO[0],), chunks_until=1 << 40),
    }
    return {
        **plain,
        **expectation,
        "writes": (*writes, *expectation.get("writes", ())),
        "entries": (EntryRecord("step", "n", b"step"), *expectation.get("entries", ())),
    }


class ExpectationContract(Contract):
    async def test_one_failed_expectation_leaves_every_table_untouched(self, probe: Probe) -> None:
        neighbour = probe.of("neighbour")
        await _furnish(neighbour)
        untouched = await neighbour.dump()
        for what, (expectation, error) in FAILING.items():
            case = probe.of(what)
            await _furnish(case)
            before = await case.dump()
            now = await case.backend.inventory(case.thread)
            with expected(error, what):
                await case.commit(draft("c", NEW[0]), **_everything(**expectation(now)))
            assert await case.dump() == before, what
        assert await neighbour.dump() == untouched

    async def test_an_expectation_that_holds_lets_a_commit_through(self, probe: Probe) -> None:
        for what, expectation in HOLDING.items():
            case = probe.of(what)
            await _furnish(case)
            now = await case.backend.inventory(case.thread)
            await case.commit(draft("c", NEW[0]), **_everything(**expectation(now)))
            dump = await case.dump()
            assert [record.id for record in dump["records"]] == ["c", "b"], what
            assert dump["data"] == dict((ONE, NEW))
            assert [pending.body for pending in dump["writes"]] == [b"value", b"overwritten", b"first"]
            assert dump["entries"]["step"] == [EntryRecord("step", "n", b"step")]
            assert (dump["row"].metadata, dump["row"].metadata_version) == (b"other", 2)

    async def test_a_refused_commit_does_not_make_a_thread(self, probe: Probe) -> None:
        for what, (fields, error) in ON_NOTHING.items():
            case = probe.of(what)
            before = await case.dump()
            with expected(error, what):
                await case.commit(draft("a", NEW[0]), chunks=(NEW,), **fields)
            assert await case.dump() == before, what
            assert (await case.save("a")).seq == 1

    async def test_a_thread_without_a_checkpoint_is_empty(self, probe: Probe) -> None:
        await probe.commit(
            writes=(write("later", "task"),), entries=(EntryRecord("step", "n"),), metadata=b"metadata"
        )
        await probe.commit(draft("a"), expect_empty=True)
        await probe.commit(removal=Removal(checkpoints=(("", "a"),)))
        await probe.commit(draft("b"), expect_empty=True)
        with pytest.raises(ThreadNotEmpty):
            await probe.commit(draft("c", namespace="sub"), expect_empty=True)

    async def test_a_removed_thread_is_empty_but_not_of_the_old_generation(self, probe: Probe) -> None:
        await probe.save("a", ONE)
        generation = await probe.generation()
        await probe.commit(removal=Removal(everything=True))
        with pytest.raises(StaleBase):
            await probe.commit(draft("b", ONE[0]), generation=generation)
        await probe.commit(
            draft("b"), expect_empty=True, expect_head=("", None), metadata=b"new", metadata_version=0
        )

    async def test_refusals_say_what_is_there_instead(self, probe: Probe) -> None:
        await _furnish(probe)
        with pytest.raises(HeadMoved) as moved:
            await probe.commit(draft("c"), expect_head=("", "a"))
        assert (moved.value.thread, moved.value.expected, moved.value.head) == ("thread", "a", "b")
        with pytest.raises(LeaseLost) as lost:
            await probe.commit(draft("c"), fence=Fence("run", "run", 1, 2))
        assert (lost.value.kind, lost.value.key, lost.value.fence, lost.value.current) == ("run", "run", 2, 3)
        with pytest.raises(EpochPassed) as passed:
            await probe.commit(draft("c"), epoch=1)
        assert (passed.value.epoch, passed.value.current) == (1, EPOCH)
        with pytest.raises(EntryHeld) as refusal:
            await probe.commit(**_entry("held", expect_lapsed=True))
        assert (refusal.value.kind, refusal.value.key) == ("lock", "held")
        assert refusal.value.stored in await probe.entries("lock")

    async def test_a_zombie_learns_that_its_lease_is_lost_whatever_else_fails(self, probe: Probe) -> None:
        await _furnish(probe)
        with pytest.raises(LeaseLost):
            await probe.commit(
                draft("c"), fence=Fence("run", "run", 1, 2), generation=1, expect_head=("", "a"), expect_empty=True,
                metadata_version=9, epoch=1,
            )  # fmt: skip

    async def test_a_repeated_replacement_does_not_fail_its_own_compare_and_set(self, probe: Probe) -> None:
        await probe.save("a")
        first = await probe.commit(draft("b", body=b"new"), replace=True, expect_head=("", "a"))
        await probe.save("c")
        again = await probe.commit(draft("b", body=b"new"), replace=True, expect_head=("", "a"))
        assert again.existing == first.checkpoints[0]

    async def test_a_replacement_is_refused_when_the_head_is_another(self, probe: Probe) -> None:
        await probe.save("a")
        await probe.save("b", body=b"old")
        before = await probe.dump()
        for id in ("a", "b", "c"):
            with expected(HeadMoved, id):
                await probe.commit(draft(id, body=b"new"), replace=True, expect_head=("", "a"))
        assert await probe.dump() == before
        receipt = await probe.commit(draft("b", body=b"new"), replace=True, expect_head=("", "b"))
        assert [(record.seq, record.version) for record in receipt.checkpoints] == [(2, 1)]

    # Many at once

    async def test_one_refusal_in_a_group_refuses_one(self, probe: Probe) -> None:
        other = probe.of("other")
        await probe.save("a")
        results = await probe.backend.commit_all(
            [
                Commit(probe.thread, (draft("b"),)),
                Commit(probe.thread, (draft("c"),), expect_head=("", "a")),  # "b" came before it
                Commit(other.thread, (draft("x", NEW[0]),), (NEW,)),
                Commit(other.thread, (draft("y"),), generation=1),
                Commit(probe.thread, (draft("a"),)),
                Commit(probe.thread, (draft("d"),), expect_head=("", "b")),
                Commit(other.thread, rewrites=(draft("gone"),)),
                Commit(other.thread, (draft("z"),), metadata=b"metadata"),
            ]
        )
        kinds = [type(result).__name__ for result in results]
        assert kinds == [
            "Receipt", "HeadMoved", "Receipt", "StaleBase", "Receipt", "Receipt", "BadArgument", "Receipt",
        ]  # fmt: skip
        retried: Any = results[4]
        assert retried.existing.id == "a"
        assert (await probe.ids(), await other.ids()) == (["d", "b", "a"], ["z", "x"])
        assert await probe.backend.commit_all([]) == []

    async def test_refusals_among_commits_at_once_refuse_only_themselves(self, trial: Trial) -> None:
        probe = await trial.probe()
        await probe.save("a")

        def work(number: int) -> Any:
            stale = {"expect_head": ("", "gone")} if number % 2 else {}
            return lambda: probe.commit(draft(f"{number}", NEW[0]), chunks=(NEW,), **stale)

        results = await trial.together(*(work(number) for number in range(8)))
        assert [isinstance(result, HeadMoved) for result in results] == [False, True] * 4
        assert set(await probe.ids()) == {"a", "0", "2", "4", "6"}

    async def test_of_many_who_expect_the_same_head_one_wins(self, trial: Trial) -> None:
        probe = await trial.probe()
        await probe.save("a")
        works = [lambda n=n: probe.commit(draft(f"{n}"), expect_head=("", "a")) for n in range(8)]
        results = await trial.together(*works)
        assert sum(not isinstance(result, Exception) for result in results) == 1
        assert sum(isinstance(result, HeadMoved) for result in results) == 7
        assert len(await probe.records()) == 2

    async def test_of_many_handles_that_take_one_entry_one_wins(self, trial: Trial) -> None:
        handles = [await trial.probe() for _ in range(5)]

        def work(number: int) -> Any:
            taken = EntryRecord("lock", "l", b"%d" % number, fence=1, expect=ABSENT)
            return lambda: handles[number].commit(entries=(taken,))

        results = await trial.together(*(work(number) for number in range(5)))
        assert sum(isinstance(result, EntryHeld) for result in results) == 4
        (winner,) = await handles[0].entries("lock")
        assert not isinstance(results[int(winner.body or b"")], Exception)

    async def test_of_many_who_change_one_version_of_the_metadata_one_wins(self, trial: Trial) -> None:
        probe = await trial.probe()
        works = [lambda n=n: probe.commit(metadata=b"%d" % n, metadata_version=0) for n in range(6)]
        results = await trial.together(*works)
        assert sum(isinstance(result, MetadataMoved) for result in results) == 5
        row = await probe.row()
        assert row is not None and row.metadata_version == 1
