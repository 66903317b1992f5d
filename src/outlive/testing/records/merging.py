"""Merging from another store: in any order and however often, all stores end up the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outlive.backend import NEXT, TOMBSTONE, Commit, EntryQuery, EntryRecord, Removal, ThreadQuery
from outlive.backend import commit as commit_one
from outlive.errors import EpochPassed, OutOfTurn, StaleBase
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, copied, draft, write

ONE, TWO = chunk("one"), chunk("two")


def _foreign(id: str, seq: int, **fields: Any) -> Any:
    return copied(draft(id, parent=None, created_at=7), seq=seq, **fields)


async def _merged(probe: Probe, commits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for fields in commits:
        await commit_one(probe.backend, Commit(probe.thread, merge=True, **fields))
    dump = await probe.dump()
    row = dump.pop("row")
    for local in ("generation", "revision", "inventory"):  # these count in one store alone
        del dump[local]
    return {**dump, "metadata": None if row is None else (row.metadata, row.metadata_version)}


async def _agrees(probe: Probe, commits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge in every order, and each twice; return what all of them come to."""
    orders = list(itertools.permutations(commits))
    results = [await _merged(probe.of(f"order {number}"), order) for number, order in enumerate(orders)]
    results.append(await _merged(probe.of("twice"), [result for result in commits for _ in range(2)]))
    assert all(result == results[0] for result in results)
    return results[0]


class MergeContract(Contract):
    async def test_checkpoints_and_chunks_are_united(self, probe: Probe) -> None:
        merged = await _agrees(
            probe,
            [
                {"checkpoints": (_foreign("a", 1, chunks=(ONE[0],)), _foreign("b", 2)), "chunks": (ONE,)},
                {"checkpoints": (_foreign("a", 1, chunks=(ONE[0],)), _foreign("c", 2)), "chunks": (ONE,)},
                {"checkpoints": (_foreign("d", 1, epoch=1, chunks=(TWO[0],)),), "chunks": (TWO,)},
            ],
        )
        assert [record.id for record in merged["records"]] == ["d", "c", "b", "a"]
        assert merged["data"] == dict((ONE, TWO))

    async def test_the_greater_version_of_a_checkpoint_wins(self, probe: Probe) -> None:
        merged = await _agrees(
            probe,
            [{"checkpoints": (_foreign("a", 1, version=n, body=b"version %d" % n),)} for n in (2, 0, 1)],
        )
        assert [record.body for record in merged["records"]] == [b"version 2"]

    async def test_two_contents_of_one_version_are_decided_by_their_bytes(self, probe: Probe) -> None:
        merged = await _agrees(
            probe, [{"checkpoints": (_foreign("a", 1, body=body),)} for body in (b"x", b"z", b"y")]
        )
        assert [record.body for record in merged["records"]] == [b"z"]

    async def test_a_replaced_checkpoint_wins_over_its_older_copy(self, probe: Probe) -> None:
        await probe.save("a", body=b"old")
        old = (await probe.records())[0]
        await probe.commit(draft("a", body=b"new"), replace=True)
        await probe.commit(old, merge=True)
        (kept,) = await probe.records()
        assert (kept.body, kept.version) == (b"new", 1)

    async def test_writes_are_united_and_the_greater_rank_of_a_control_write_wins(self, probe: Probe) -> None:
        merged = await _agrees(
            probe,
            [
                {"writes": (write("a", "one"), write("a", "task", -1, b"low", rank=(0, 0, 5)))},
                {"writes": (write("a", "two"), write("a", "task", -1, b"high", rank=(1, 0, 1)))},
                {"writes": (write("a", "one"), write("a", "task", -1, b"tie", rank=(1, 0, 1)))},
            ],
        )
        assert [pending.body for pending in merged["writes"]] == [b"value", b"tie", b"value"]

    async def test_two_first_writes_of_an_index_are_decided_by_their_bytes(self, probe: Probe) -> None:
        await _agrees(probe, [{"writes": (write("a", "task", 0, body),)} for body in (b"x", b"z", b"y")])

    async def test_the_greater_rank_of_an_entry_wins(self, probe: Probe) -> None:
        merged = await _agrees(
            probe,
            [
                {
                    "entries": (
                        EntryRecord("run", "r", b"low", "running", fence=1),
                        EntryRecord("step", "n", b"a"),
                    )
                },
                {
                    "entries": (
                        EntryRecord("run", "r", b"high", "running", fence=2),
                        EntryRecord("step", "n", b"c"),
                    )
                },
                {
                    "entries": (
                        EntryRecord("run", "r", b"high", "completed", fence=2),
                        EntryRecord("step", "n", b"b"),
                    )
                },
            ],
        )
        assert [(entry.body, entry.status) for entry in merged["entries"]["run"]] == [(b"high", "running")]
        assert [entry.body for entry in merged["entries"]["step"]] == [b"c"]

    async def test_a_merge_removes_an_entry_of_no_greater_rank(self, probe: Probe) -> None:
        stored = [EntryRecord("step", f"{n}", b"body", "here", fence=n) for n in range(4)]
        await probe.commit(entries=tuple(stored))
        gone = [EntryRecord("step", f"{n}", fence=2, gone=True) for n in range(5)]
        for _ in range(2):
            await probe.commit(entries=tuple(gone), merge=True)
            assert await probe.entries("step") == stored[3:]
        await probe.commit(entries=(EntryRecord("step", "3", gone=True),), merge=True, overrules=True)
        assert await probe.entries("step") == []
        assert await probe.backend.audit(probe.thread) == []

    async def test_the_greater_version_of_the_metadata_wins(self, probe: Probe) -> None:
        commits = [{"metadata": b"a", "metadata_version": 2}, {"metadata": b"c", "metadata_version": 1}]
        merged = await _agrees(probe, [*commits, {"metadata": b"b", "metadata_version": 2}])
        assert merged["metadata"] == (b"b", 2)

    async def test_a_merge_expects_nothing_and_keeps_what_is_here(self, probe: Probe) -> None:
        await probe.commit(
            draft("a"), entries=(EntryRecord("run", "r", b"here", fence=9),), metadata=b"here", epoch=4,
            writes=(write("a", "task", -1, b"here", rank=(4, 1, 1)),),
        )  # fmt: skip
        await probe.commit(
            _foreign("old", 1), merge=True, epoch=1, metadata=b"there", metadata_version=0,
            entries=(EntryRecord("run", "r", b"there", fence=2, expect=(0, 1, 0), expect_lapsed=True),),
            writes=(write("a", "task", -1, b"there", rank=(1, 1, 1)),),
        )  # fmt: skip
        dump = await probe.dump()
        assert [record.id for record in dump["records"]] == ["a", "old"]
        assert [kept.body for kept in (*dump["entries"]["run"], *dump["writes"])] == [b"here", b"here"]
        assert (dump["row"].metadata, dump["row"].epoch) == (b"here", 4)

    async def test_a_save_that_was_repeated_after_a_failover_counts_in_the_later_epoch(
        self, probe: Probe
    ) -> None:
        copies = (_foreign("a", 9, body=b"z"), _foreign("a", 2, epoch=1, body=b"x"))
        merged = await _agrees(probe, [{"checkpoints": (copy,)} for copy in copies])
        assert [(record.epoch, record.seq, record.body) for record in merged["records"]] == [(1, 2, b"x")]

    async def test_a_strict_merge_is_refused_by_a_thread_in_a_later_epoch(self, probe: Probe) -> None:
        await probe.commit(_foreign("a", 1), merge=True, strict=True, epoch=3)
        await probe.commit(draft("b"), epoch=4)
        with pytest.raises(EpochPassed):
            await probe.commit(_foreign("c", 9), merge=True, strict=True, epoch=3)
        await probe.commit(_foreign("d", 9), merge=True, strict=True, epoch=4)
        assert {record.id for record in await probe.records()} == {"a", "b", "d"}

    async def test_a_commit_of_nothing_moves_a_thread_to_its_epoch(self, probe: Probe) -> None:
        for thread in (probe, probe.of("another")):
            if thread is probe:
                await thread.save("a")
            await thread.commit(epoch=5)
            with pytest.raises(EpochPassed):
                await thread.commit(_foreign("late", 9), merge=True, strict=True, epoch=4)
            with pytest.raises(EpochPassed):
                await thread.commit(draft("late"), epoch=4)
        assert await probe.ids() == ["a"]
        assert [row.id for row in await probe.backend.threads(ThreadQuery(probe.thread.tenant))] == [
            probe.thread.id
        ]

    async def test_a_merge_that_overrules_replaces_what_is_here(self, probe: Probe) -> None:
        for n in (0, 1):
            await probe.commit(draft("a", body=b"%d" % n), replace=True, metadata=b"%d" % n)
        await probe.commit(
            draft("orphan", ONE[0]), chunks=(ONE,), writes=(write("orphan", "task"),),
            entries=(EntryRecord("run", "r", b"here", "running", fence=9), EntryRecord("run", "alone", b"x", fence=1)),
        )  # fmt: skip
        seen = await probe.backend.inventory(probe.thread)
        line = Commit(
            probe.thread,
            checkpoints=(_foreign("a", 1, body=b"line", chunks=(TWO[0],)),),
            chunks=(TWO,),
            entries=(
                EntryRecord("run", "r", b"line", "running", fence=2),
                EntryRecord("run", "alone", gone=True),
            ),
            metadata=b"line",
            metadata_version=1,
            removal=Removal(checkpoints=(("", "orphan"),)),
            merge=True,
            overrules=True,
            strict=True,
            epoch=3,
            revision=seen.revision,
        )
        await commit_one(probe.backend, line)
        dump = await probe.dump()
        assert [(record.id, record.body) for record in dump["records"]] == [("a", b"line")]
        assert [(entry.key, entry.body, entry.fence) for entry in dump["entries"]["run"]] == [
            ("r", b"line", 2)
        ]
        assert (dump["row"].metadata, dump["row"].metadata_version, dump["row"].epoch) == (b"line", 1, 3)
        assert dump["writes"] == []
        assert await probe.backend.audit(probe.thread) == []
        with pytest.raises(StaleBase):  # somebody has written to it since it was read
            await commit_one(probe.backend, replace(line, token=b"another!"))

    async def test_what_was_removed_and_buried_is_not_merged_in_again(self, probe: Probe) -> None:
        await probe.save("a")
        await probe.save("b")
        _, a = await probe.records()
        await probe.commit(removal=Removal(checkpoints=(("", "a"),), leaves_tombstones=True))
        await probe.commit(a, merge=True)
        assert await probe.ids() == ["b"]
        await probe.save("a")  # the same id in a new save is another checkpoint
        new = (await probe.records())[0]
        await probe.commit(new, merge=True)
        assert await probe.ids() == ["a", "b"]

    async def test_chunks_of_what_a_merge_refuses_are_not_stored(self, probe: Probe) -> None:
        await probe.commit(draft("a", ONE[0]), chunks=(ONE,))
        (a,) = await probe.records()
        await probe.commit(
            removal=Removal(
                checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=1, erase=True, leaves_tombstones=True
            )
        )
        await probe.commit(a, _foreign("b", 9, chunks=(TWO[0],)), merge=True, chunks=(ONE, TWO))
        assert (await probe.dump())["data"] == dict((TWO,))

    async def test_a_thread_that_was_deleted_and_buried_stays_deleted(self, probe: Probe) -> None:
        await probe.commit(draft("a"), entries=(EntryRecord("run", "r", b"x", "running", fence=NEXT),))
        (a,) = await probe.records()
        (run,) = (await probe.dump())["entries"]["run"]
        await probe.commit(removal=Removal(everything=True, leaves_tombstones=True))
        await probe.commit(a, _foreign("later", 9), merge=True, entries=(run,))
        dump = await probe.dump()
        assert [record.id for record in dump["records"]] == ["later"]
        assert not dump["entries"].get("run")
        tombstones = await probe.backend.entries(
            EntryQuery(probe.thread.tenant, TOMBSTONE, thread=probe.thread)
        )
        assert [(tombstone.key, tombstone.until) for _, tombstone in tombstones] == [("", 1)]
        await probe.commit(draft("a"), entries=(EntryRecord("run", "r", b"y", "running", fence=NEXT),))
        assert [entry.body for entry in (await probe.dump())["entries"]["run"]] == [b"y"]

    async def test_records_with_places_of_their_own_go_behind_the_tombstone_that_would_hold_them(
        self, probe: Probe
    ) -> None:
        for id in ("a", "b"):
            await probe.save(id)
        rows = (await probe.records())[::-1]
        await probe.commit(removal=Removal(everything=True, leaves_tombstones=True))
        await probe.commit(*rows, expect_empty=True)  # as a fork or an import does
        back = await probe.records()
        assert [(record.id, record.seq) for record in back] == [("b", 4), ("a", 3)]
        await probe.commit(removal=Removal(checkpoints=(("", "a"),), leaves_tombstones=True))
        await probe.commit(back[1])
        # The other store of a pair does not leave them out either.
        await probe.commit(*await probe.records(), merge=True)
        assert [(record.id, record.seq) for record in await probe.records()] == [("a", 7), ("b", 4)]

    async def test_a_fence_that_is_given_after_a_merge_is_greater_than_all_that_came(
        self, probe: Probe
    ) -> None:
        run, step = (EntryRecord(kind, "r", b"x", "running", fence=40) for kind in ("run", "step"))
        await probe.commit(merge=True, entries=(run, step))
        await probe.commit(merge=True, writes=(write("a", "t", index=-1, rank=(0, 0, 60)),))
        taken = EntryRecord("run", "r", b"y", "running", fence=NEXT, expect=run.rank)
        await probe.commit(entries=(taken,), writes=(write("a", "t", index=-1, body=b"newer"),))
        await probe.commit(merge=True, entries=(run,), writes=(write("a", "t", index=-1, rank=(0, 0, 60)),))
        dump = await probe.dump()
        (entry,) = dump["entries"]["run"]
        assert (entry.body, entry.fence > 60) == (b"y", True)
        assert [pending.body for pending in dump["writes"]] == [b"newer"]

    async def test_a_merge_that_is_to_be_in_turn_is_refused_when_it_is_not(self, probe: Probe) -> None:
        run = EntryRecord("run", "r", b"x", fence=4)
        await probe.commit(_foreign("a", 1), merge=True, requires_next_seq=True, entries=(run,))
        for other in (
            {"checkpoints": (_foreign("late", 1),)},
            {"checkpoints": (_foreign("early", 3),)},
            {"entries": (EntryRecord("run", "r", b"y", fence=3),)},
        ):
            with pytest.raises(OutOfTurn):
                await commit_one(
                    probe.backend, Commit(probe.thread, merge=True, requires_next_seq=True, **other)
                )
        await probe.commit(_foreign("a", 1), merge=True, requires_next_seq=True, entries=(run,))
        await probe.commit(
            _foreign("b", 2), merge=True, requires_next_seq=True, entries=(replace(run, fence=5),)
        )
        assert await probe.ids() == ["b", "a"]
        with pytest.raises(OutOfTurn):
            await probe.of("another").commit(_foreign("a", 2), merge=True, requires_next_seq=True)
