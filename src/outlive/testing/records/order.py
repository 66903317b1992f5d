"""The order of checkpoints: (epoch, seq, escaped id), never a clock; and who is whose parent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlive.backend import Removal, escape
from outlive.errors import EpochPassed
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, copied, draft, write
from outlive.testing.trial import Trial

ONE, TWO = chunk("one"), chunk("two")


class OrderContract(Contract):
    async def test_seq_counts_the_checkpoints_of_a_thread_over_all_namespaces(self, probe: Probe) -> None:
        records = [await probe.save("a"), await probe.save("a", namespace="sub"), await probe.save("b")]
        assert [record.seq for record in records] == [1, 2, 3]
        assert (await probe.of("another").save("a")).seq == 1

    async def test_commits_of_a_moment_long_ago_are_still_newest(self, probe: Probe) -> None:
        await probe.save("a", created_at=2_000_000_000_000_000)
        await probe.save("b", created_at=1_000_000_000_000_000)
        assert (await probe.ids(), await probe.head()) == (["b", "a"], "b")

    async def test_checkpoints_of_one_commit_take_successive_places(self, probe: Probe) -> None:
        receipt = await probe.commit(draft("a"), draft("b", namespace="sub"), draft("c"))
        assert [(record.id, record.seq) for record in receipt.checkpoints] == [("a", 1), ("b", 2), ("c", 3)]
        assert await probe.ids() == ["c", "b", "a"]

    async def test_a_copy_keeps_the_place_that_it_was_born_with(self, probe: Probe) -> None:
        born = copied(draft("a"), epoch=3, seq=40, parent="gone", follows=False, created_at=5)
        assert (await probe.commit(born)).checkpoints == (born,)
        assert await probe.records() == [born]

    async def test_a_copy_of_what_is_there_changes_nothing(self, probe: Probe) -> None:
        record = await probe.save("a", ONE)
        receipt = await probe.commit(copied(record, size=99, step=5), copied(record, id="b", seq=7))
        assert [stored.id for stored in receipt.checkpoints] == ["b"]
        assert await probe.records() == [copied(record, id="b", seq=7), record]

    async def test_a_copy_of_a_greater_version_takes_the_place(self, probe: Probe) -> None:
        record = await probe.save("a", ONE)
        await probe.save("b")
        newer = copied(record, version=2, body=b"replaced elsewhere")
        await probe.commit(newer)
        assert (await probe.records())[1] == newer

    async def test_a_place_is_never_given_twice(self, probe: Probe) -> None:
        await probe.commit(copied(draft("copy"), seq=10))
        assert (await probe.save("a")).seq == 11
        await probe.commit(copied(draft("older copy"), seq=5))
        assert (await probe.save("b")).seq == 12

    @pytest.mark.parametrize("everything", [True, False])
    async def test_a_place_is_not_used_again_after_a_deletion(self, probe: Probe, everything: bool) -> None:
        for id in ("a", "b", "c"):
            await probe.save(id)
        pairs = (("", "a"), ("", "b"), ("", "c"))
        await probe.commit(removal=Removal(() if everything else pairs, everything=everything))
        assert await probe.records() == []
        assert (await probe.save("a")).seq == 4

    async def test_the_head_is_the_greatest_not_the_last_committed(self, probe: Probe) -> None:
        for id, epoch, seq in (("a", 0, 5), ("b", 0, 9), ("c", 0, 7), ("d", 1, 1), ("e", 0, 30)):
            await probe.commit(copied(draft(id), epoch=epoch, seq=seq))
        assert await probe.ids() == ["d", "e", "b", "c", "a"]
        assert await probe.head() == "d"
        row = await probe.row()
        assert row is not None and row.head is not None and row.head.id == "d"

    async def test_equal_places_are_ordered_by_id(self, probe: Probe) -> None:
        """Two stores that diverged may both have assigned a place: all must agree on the head."""
        ids = [
            "a",
            "B",
            "ab",
            "\0",
            "\\",
            "\x7f",
            "é",
            "\uffff",
            "\U0001f600",
            "\ud800",
            "~",
            "_",
            "\\0",
            "]",
        ]
        await probe.commit(*(copied(draft(id), seq=1) for id in ids))
        assert await probe.ids() == sorted(ids, key=escape, reverse=True)
        assert await probe.head() == max(ids, key=escape)

    async def test_the_head_follows_when_the_newest_is_removed(self, probe: Probe) -> None:
        for id in ("a", "b", "c"):
            await probe.save(id)
        await probe.commit(removal=Removal(checkpoints=(("", "c"),)))
        assert await probe.head() == "b"
        assert (await probe.save("d")).parent == "b"

    async def test_an_epoch_once_raised_holds_for_all_that_follows(self, probe: Probe) -> None:
        await probe.save("a")
        assert (await probe.commit(draft("b"), epoch=2)).checkpoints[0].order == (2, 2, "b")
        with pytest.raises(EpochPassed):
            await probe.commit(draft("c"), epoch=1)
        with pytest.raises(EpochPassed):
            await probe.commit(chunks=(ONE,), epoch=0)
        assert (await probe.commit(draft("c"), epoch=2)).checkpoints[0].order == (2, 3, "c")
        assert (await probe.save("d")).order == (2, 4, "d")

    async def test_a_copy_from_an_older_epoch_is_welcome(self, probe: Probe) -> None:
        await probe.commit(draft("a"), epoch=2)
        await probe.commit(copied(draft("late"), epoch=1, seq=9))
        assert await probe.ids() == ["a", "late"]
        assert (await probe.commit(draft("b"), epoch=2)).checkpoints[0].order == (2, 10, "b")

    async def test_a_copy_raises_the_epoch(self, probe: Probe) -> None:
        await probe.commit(copied(draft("copy"), epoch=3, seq=1))
        with pytest.raises(EpochPassed):
            await probe.commit(draft("a"), epoch=2)

    # Parents

    async def test_a_draft_that_follows_gets_the_head_at_commit(self, probe: Probe) -> None:
        assert (await probe.save("a")).parent is None
        assert (await probe.save("b")).parent == "a"
        await probe.commit(copied(draft("ahead"), seq=50))
        assert (await probe.save("c")).parent == "ahead"

    async def test_drafts_follow_the_head_of_their_own_namespace(self, probe: Probe) -> None:
        await probe.commit(draft("a"), draft("s", namespace="sub"))
        receipt = await probe.commit(draft("b"), draft("t", namespace="sub"), draft("c"))
        assert [record.parent for record in receipt.checkpoints] == ["a", "s", "b"]

    async def test_a_draft_follows_the_head_and_not_an_older_copy_beside_it(self, probe: Probe) -> None:
        await probe.commit(copied(draft("a"), seq=5))
        receipt = await probe.commit(copied(draft("older"), seq=2), draft("b"))
        assert receipt.checkpoints[1].parent == "a"

    async def test_a_named_parent_is_kept_even_when_it_is_gone(self, probe: Probe) -> None:
        await probe.save("a")
        await probe.commit(draft("b", parent="never there"), draft("c", parent=None))
        assert [record.parent for record in await probe.records()] == [None, "never there", None]

    async def test_savers_at_once_make_one_line_without_gaps(self, trial: Trial) -> None:
        handles = [await trial.probe() for _ in range(3)]

        async def saver(number: int) -> None:
            for turn in range(4):
                await handles[number % 3].save(f"{number}-{turn}")

        errors = await trial.together(*(lambda n=n: saver(n) for n in range(6)))
        assert errors == [None] * 6
        line = (await handles[0].records())[::-1]
        assert [record.seq for record in line] == list(range(1, 25))
        assert [record.parent for record in line] == [None, *(record.id for record in line[:-1])]
        for number in range(6):
            own = [record.id for record in line if record.id.startswith(f"{number}-")]
            assert own == [f"{number}-{turn}" for turn in range(4)]

    # Replacing

    async def test_a_replaced_checkpoint_keeps_its_place(self, probe: Probe) -> None:
        first = await probe.save("a", ONE)
        await probe.save("b")
        receipt = await probe.commit(draft("a", TWO[0], body=b"new"), chunks=(TWO,), replace=True)
        assert receipt.existing is None
        assert receipt.checkpoints == (replace(first, chunks=(TWO[0],), body=b"new", version=1),)
        assert await probe.ids() == ["b", "a"]
        reading = await probe.backend.read(probe.thread, "", "a")
        assert (reading.record, reading.chunks) == (receipt.checkpoints[0], dict((TWO,)))
        assert (await probe.save("c")).seq == 3

    async def test_a_replacement_of_nothing_is_a_checkpoint_like_any_other(self, probe: Probe) -> None:
        await probe.save("a")
        record = (await probe.commit(draft("b"), replace=True)).checkpoints[0]
        assert (record.seq, record.parent, record.version) == (2, "a", 0)

    async def test_a_replacement_keeps_writes_and_may_name_a_parent(self, probe: Probe) -> None:
        await probe.commit(draft("a"), writes=(write("a", "task"),))
        await probe.commit(draft("a", parent="other"), replace=True)
        reading = await probe.backend.read(probe.thread, "", "a")
        assert reading.record is not None and reading.record.parent == "other"
        assert reading.writes == (write("a", "task"),)

    async def test_replacing_counts_a_checkpoint_once(self, probe: Probe) -> None:
        await probe.save("a", body=b"12345")
        await probe.commit(draft("a", body=b"1"), replace=True)
        row = await probe.row()
        assert row is not None and (row.checkpoints, row.stored) == (1, 1)
        assert await probe.backend.audit(probe.thread) == []
