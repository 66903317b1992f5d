"""Merging what another store has: in whichever order and however often, all stores end up the same."""

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
from outlive.testing.thread_records import Waist, chunk, copied, draft, write

ONE, TWO = chunk("one"), chunk("two")


def _foreign(id: str, seq: int, **fields: Any) -> Any:
    return copied(draft(id, parent=None, created_at=7), seq=seq, **fields)


async def _merged(waist: Waist, commits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for fields in commits:
        await commit_one(waist.backend, Commit(waist.thread, merge=True, **fields))
    dump = await waist.dump()
    row = dump.pop("row")
    for local in ("generation", "revision", "inventory"):  # these count in one store alone
        del dump[local]
    return {**dump, "info": None if row is None else (row.info, row.info_version)}


async def _agrees(waist: Waist, commits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge in every order, and each twice; return what all of them come to."""
    orders = list(itertools.permutations(commits))
    found = [await _merged(waist.of(f"order {number}"), order) for number, order in enumerate(orders)]
    found.append(await _merged(waist.of("twice"), [one for one in commits for _ in range(2)]))
    assert all(one == found[0] for one in found)
    return found[0]


class MergeContract(Contract):
    async def test_checkpoints_and_chunks_are_united(self, waist: Waist) -> None:
        merged = await _agrees(
            waist,
            [
                {"checkpoints": (_foreign("a", 1, chunks=(ONE[0],)), _foreign("b", 2)), "chunks": (ONE,)},
                {"checkpoints": (_foreign("a", 1, chunks=(ONE[0],)), _foreign("c", 2)), "chunks": (ONE,)},
                {"checkpoints": (_foreign("d", 1, epoch=1, chunks=(TWO[0],)),), "chunks": (TWO,)},
            ],
        )
        assert [record.id for record in merged["records"]] == ["d", "c", "b", "a"]
        assert merged["data"] == dict((ONE, TWO))

    async def test_the_greater_version_of_a_checkpoint_wins(self, waist: Waist) -> None:
        merged = await _agrees(
            waist,
            [{"checkpoints": (_foreign("a", 1, version=n, body=b"version %d" % n),)} for n in (2, 0, 1)],
        )
        assert [record.body for record in merged["records"]] == [b"version 2"]

    async def test_two_contents_of_one_version_are_decided_by_their_bytes(self, waist: Waist) -> None:
        merged = await _agrees(
            waist, [{"checkpoints": (_foreign("a", 1, body=body),)} for body in (b"x", b"z", b"y")]
        )
        assert [record.body for record in merged["records"]] == [b"z"]

    async def test_a_replaced_checkpoint_wins_over_its_older_copy(self, waist: Waist) -> None:
        await waist.save("a", body=b"old")
        old = (await waist.records())[0]
        await waist.commit(draft("a", body=b"new"), replace=True)
        await waist.commit(old, merge=True)
        (kept,) = await waist.records()
        assert (kept.body, kept.version) == (b"new", 1)

    async def test_writes_are_united_and_the_greater_rank_of_a_control_write_wins(self, waist: Waist) -> None:
        merged = await _agrees(
            waist,
            [
                {"writes": (write("a", "one"), write("a", "task", -1, b"low", rank=(0, 0, 5)))},
                {"writes": (write("a", "two"), write("a", "task", -1, b"high", rank=(1, 0, 1)))},
                {"writes": (write("a", "one"), write("a", "task", -1, b"tie", rank=(1, 0, 1)))},
            ],
        )
        assert [held.body for held in merged["writes"]] == [b"value", b"tie", b"value"]

    async def test_two_first_writes_of_an_index_are_decided_by_their_bytes(self, waist: Waist) -> None:
        await _agrees(waist, [{"writes": (write("a", "task", 0, body),)} for body in (b"x", b"z", b"y")])

    async def test_the_greater_rank_of_an_entry_wins(self, waist: Waist) -> None:
        merged = await _agrees(
            waist,
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
        assert [(held.body, held.status) for held in merged["entries"]["run"]] == [(b"high", "running")]
        assert [held.body for held in merged["entries"]["step"]] == [b"c"]

    async def test_the_greater_version_of_the_metadata_wins(self, waist: Waist) -> None:
        commits = [{"info": b"a", "info_version": 2}, {"info": b"c", "info_version": 1}]
        merged = await _agrees(waist, [*commits, {"info": b"b", "info_version": 2}])
        assert merged["info"] == (b"b", 2)

    async def test_a_merge_expects_nothing_and_keeps_what_is_here(self, waist: Waist) -> None:
        await waist.commit(
            draft("a"), entries=(EntryRecord("run", "r", b"here", fence=9),), info=b"here", epoch=4,
            writes=(write("a", "task", -1, b"here", rank=(4, 1, 1)),),
        )  # fmt: skip
        await waist.commit(
            _foreign("old", 1), merge=True, epoch=1, info=b"there", info_version=0,
            entries=(EntryRecord("run", "r", b"there", fence=2, expect=(0, 1, 0), expect_lapsed=True),),
            writes=(write("a", "task", -1, b"there", rank=(1, 1, 1)),),
        )  # fmt: skip
        dump = await waist.dump()
        assert [record.id for record in dump["records"]] == ["a", "old"]
        assert [held.body for held in (*dump["entries"]["run"], *dump["writes"])] == [b"here", b"here"]
        assert (dump["row"].info, dump["row"].epoch) == (b"here", 4)

    async def test_a_save_that_was_repeated_after_a_failover_counts_in_the_later_epoch(
        self, waist: Waist
    ) -> None:
        copies = (_foreign("a", 9, body=b"z"), _foreign("a", 2, epoch=1, body=b"x"))
        merged = await _agrees(waist, [{"checkpoints": (copy,)} for copy in copies])
        assert [(record.epoch, record.seq, record.body) for record in merged["records"]] == [(1, 2, b"x")]

    async def test_a_strict_merge_is_refused_by_a_thread_in_a_later_epoch(self, waist: Waist) -> None:
        await waist.commit(_foreign("a", 1), merge=True, strict=True, epoch=3)
        await waist.commit(draft("b"), epoch=4)
        with pytest.raises(EpochPassed):
            await waist.commit(_foreign("c", 9), merge=True, strict=True, epoch=3)
        await waist.commit(_foreign("d", 9), merge=True, strict=True, epoch=4)
        assert {record.id for record in await waist.records()} == {"a", "b", "d"}

    async def test_a_commit_of_nothing_moves_a_thread_to_its_epoch(self, waist: Waist) -> None:
        for thread in (waist, waist.of("another")):
            if thread is waist:
                await thread.save("a")
            await thread.commit(epoch=5)
            with pytest.raises(EpochPassed):
                await thread.commit(_foreign("late", 9), merge=True, strict=True, epoch=4)
            with pytest.raises(EpochPassed):
                await thread.commit(draft("late"), epoch=4)
        assert await waist.ids() == ["a"]
        assert [row.id for row in await waist.backend.threads(ThreadQuery(waist.thread.tenant))] == [
            waist.thread.id
        ]

    async def test_a_merge_that_overrules_replaces_what_is_here(self, waist: Waist) -> None:
        for n in (0, 1):
            await waist.commit(draft("a", body=b"%d" % n), replace=True, info=b"%d" % n)
        await waist.commit(
            draft("orphan", ONE[0]), chunks=(ONE,), writes=(write("orphan", "task"),),
            entries=(EntryRecord("run", "r", b"here", "running", fence=9), EntryRecord("run", "alone", b"x", fence=1)),
        )  # fmt: skip
        seen = await waist.backend.inventory(waist.thread)
        line = Commit(
            waist.thread,
            checkpoints=(_foreign("a", 1, body=b"line", chunks=(TWO[0],)),),
            chunks=(TWO,),
            entries=(
                EntryRecord("run", "r", b"line", "running", fence=2),
                EntryRecord("run", "alone", gone=True),
            ),
            info=b"line",
            info_version=1,
            removal=Removal(checkpoints=(("", "orphan"),)),
            merge=True,
            overrules=True,
            strict=True,
            epoch=3,
            revision=seen.revision,
        )
        await commit_one(waist.backend, line)
        dump = await waist.dump()
        assert [(record.id, record.body) for record in dump["records"]] == [("a", b"line")]
        assert [(held.key, held.body, held.fence) for held in dump["entries"]["run"]] == [("r", b"line", 2)]
        assert (dump["row"].info, dump["row"].info_version, dump["row"].epoch) == (b"line", 1, 3)
        assert dump["writes"] == []
        assert await waist.backend.audit(waist.thread) == []
        with pytest.raises(StaleBase):  # somebody has written to it since it was read
            await commit_one(waist.backend, replace(line, token=b"another!"))

    async def test_what_was_removed_and_buried_is_not_merged_in_again(self, waist: Waist) -> None:
        await waist.save("a")
        await waist.save("b")
        _, a = await waist.records()
        await waist.commit(removal=Removal(checkpoints=(("", "a"),), leaves_tombstones=True))
        await waist.commit(a, merge=True)
        assert await waist.ids() == ["b"]
        await waist.save("a")  # the same id in a new save is another checkpoint
        new = (await waist.records())[0]
        await waist.commit(new, merge=True)
        assert await waist.ids() == ["a", "b"]

    async def test_chunks_of_what_a_merge_refuses_are_not_stored(self, waist: Waist) -> None:
        await waist.commit(draft("a", ONE[0]), chunks=(ONE,))
        (a,) = await waist.records()
        await waist.commit(
            removal=Removal(
                checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=1, erase=True, leaves_tombstones=True
            )
        )
        await waist.commit(a, _foreign("b", 9, chunks=(TWO[0],)), merge=True, chunks=(ONE, TWO))
        assert (await waist.dump())["data"] == dict((TWO,))

    async def test_a_thread_that_was_deleted_and_buried_stays_deleted(self, waist: Waist) -> None:
        await waist.commit(draft("a"), entries=(EntryRecord("run", "r", b"x", "running", fence=NEXT),))
        (a,) = await waist.records()
        (run,) = (await waist.dump())["entries"]["run"]
        await waist.commit(removal=Removal(everything=True, leaves_tombstones=True))
        await waist.commit(a, _foreign("later", 9), merge=True, entries=(run,))
        dump = await waist.dump()
        assert [record.id for record in dump["records"]] == ["later"]
        assert not dump["entries"].get("run")
        found = await waist.backend.entries(EntryQuery(waist.thread.tenant, TOMBSTONE, thread=waist.thread))
        assert [(grave.key, grave.until) for _, grave in found] == [("", 1)]
        await waist.commit(draft("a"), entries=(EntryRecord("run", "r", b"y", "running", fence=NEXT),))
        assert [held.body for held in (await waist.dump())["entries"]["run"]] == [b"y"]

    async def test_records_with_places_of_their_own_go_behind_the_tombstone_that_would_hold_them(
        self, waist: Waist
    ) -> None:
        for id in ("a", "b"):
            await waist.save(id)
        rows = (await waist.records())[::-1]
        await waist.commit(removal=Removal(everything=True, leaves_tombstones=True))
        await waist.commit(*rows, expect_empty=True)  # as a fork or an import does
        back = await waist.records()
        assert [(record.id, record.seq) for record in back] == [("b", 4), ("a", 3)]
        await waist.commit(removal=Removal(checkpoints=(("", "a"),), leaves_tombstones=True))
        await waist.commit(back[1])
        await waist.commit(
            *await waist.records(), merge=True
        )  # nor would the other store of a pair leave them out
        assert [(record.id, record.seq) for record in await waist.records()] == [("a", 7), ("b", 4)]

    async def test_a_fence_that_is_given_after_a_merge_is_greater_than_all_that_came(
        self, waist: Waist
    ) -> None:
        run, step = (EntryRecord(kind, "r", b"x", "running", fence=40) for kind in ("run", "step"))
        await waist.commit(merge=True, entries=(run, step))
        await waist.commit(merge=True, writes=(write("a", "t", index=-1, rank=(0, 0, 60)),))
        taken = EntryRecord("run", "r", b"y", "running", fence=NEXT, expect=run.rank)
        await waist.commit(entries=(taken,), writes=(write("a", "t", index=-1, body=b"newer"),))
        await waist.commit(merge=True, entries=(run,), writes=(write("a", "t", index=-1, rank=(0, 0, 60)),))
        dump = await waist.dump()
        (held,) = dump["entries"]["run"]
        assert (held.body, held.fence > 60) == (b"y", True)
        assert [one.body for one in dump["writes"]] == [b"newer"]

    async def test_a_merge_that_is_to_be_in_turn_is_refused_when_it_is_not(self, waist: Waist) -> None:
        run = EntryRecord("run", "r", b"x", fence=4)
        await waist.commit(_foreign("a", 1), merge=True, requires_next_seq=True, entries=(run,))
        for other in (
            {"checkpoints": (_foreign("late", 1),)},
            {"checkpoints": (_foreign("early", 3),)},
            {"entries": (EntryRecord("run", "r", b"y", fence=3),)},
        ):
            with pytest.raises(OutOfTurn):
                await commit_one(
                    waist.backend, Commit(waist.thread, merge=True, requires_next_seq=True, **other)
                )
        await waist.commit(_foreign("a", 1), merge=True, requires_next_seq=True, entries=(run,))
        await waist.commit(
            _foreign("b", 2), merge=True, requires_next_seq=True, entries=(replace(run, fence=5),)
        )
        assert await waist.ids() == ["b", "a"]
        with pytest.raises(OutOfTurn):
            await waist.of("another").commit(_foreign("a", 2), merge=True, requires_next_seq=True)
