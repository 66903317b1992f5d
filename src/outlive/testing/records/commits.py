"""What a commit stores, and that doing it again stores nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from outlive.backend import EntryQuery, EntryRecord, Fence, Removal, ThreadQuery
from outlive.errors import StoreClosed
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, draft, write
from outlive.testing.trial import Trial

ONE, TWO = chunk("one"), chunk("two")

# A retry of a stored id, each time with something that no longer holds.
STALE: dict[str, dict[str, Any]] = {
    "expectation of the head": {"expect_head": ("", "long ago")},
    "expectation of no head": {"expect_head": ("", None)},
    "fence": {"fence": Fence("run", "run", 0, 1)},
    "fence of a run that is gone": {"fence": Fence("run", "gone", 0, 1)},
    "generation": {"generation": 12345},
    "expectation of an empty thread": {"expect_empty": True},
    "version of the metadata": {"metadata": b"metadata", "metadata_version": 17},
    "expectation of an entry": {"entries": (EntryRecord("run", "run", fence=9, expect=(0, 1, 0)),)},
    "removal": {"removal": Removal(everything=True)},
}


class CommitContract(Contract):
    async def test_the_first_naming_key_that_is_offered_is_kept(self, trial: Trial) -> None:
        first, second = await trial.backend(), await trial.backend()
        assert await first.identity(b"") == b""  # which only looks
        assert await first.identity(b"a" * 32) == b"a" * 32
        assert await first.identity(b"") == b"a" * 32
        assert await first.identity(b"b" * 32) == b"a" * 32
        assert await second.identity(b"c" * 32) == b"a" * 32

    async def test_the_facts_name_the_backend_and_the_clock_that_times_leases(self, trial: Trial) -> None:
        backend = await trial.backend()
        await backend.identity(b"a" * 32)
        first, second = await backend.facts(), await backend.facts()
        # A pair answers for its active store.
        assert first["backend"] in backend.name.split("+")
        assert first.get("format") == first.get("format_written")
        assert first.get("lease_clock") == second.get("lease_clock")
        assert int(str(first["lease_clock_us"])) <= int(str(second["lease_clock_us"]))

    async def test_an_absent_thread_reads_as_nothing(self, probe: Probe) -> None:
        backend, thread = probe.backend, probe.thread
        reading = await backend.read(thread, "")
        assert (reading.record, reading.chunks, reading.writes) == (None, {}, ())
        assert (await backend.read(thread, "", "id")).record is None
        assert (await backend.read(thread, "", at=1)).record is None
        assert await probe.records() == []
        assert await backend.writes(thread, None) == await backend.writes(thread, [("", "id")]) == []
        assert await backend.fetch(thread, [ONE[0]]) == {}
        assert (await backend.inventory(thread)).chunks == {}
        assert (
            await backend.entries(EntryQuery("", "run", thread=thread))
            == await backend.entries(EntryQuery("", "run"))
            == []
        )
        assert (
            await backend.threads(ThreadQuery(""))
            == await backend.threads(ThreadQuery("", only="thread"))
            == []
        )
        assert await backend.audit(thread) == await backend.audit(None) == []

    async def test_reading_creates_nothing(self, probe: Probe) -> None:
        await probe.dump()
        await probe.backend.read(probe.thread, "")
        receipt = await probe.commit(draft("a"))
        assert (receipt.revision, receipt.checkpoints[0].seq) == (1, 1)

    async def test_a_record_comes_back_as_it_was_sent(self, probe: Probe) -> None:
        sent = draft(
            "id", TWO[0], ONE[0], namespace="sub", parent="of another time", run="run", step=-7, source="update",
            size=1 << 40, added=1 << 39, body=bytes(range(256)), projection='{"a": [1, "ü"]}', created_at=1_700_000_000_000_001,
        )  # fmt: skip
        receipt = await probe.commit(sent, chunks=(ONE, TWO))
        expected = replace(sent, seq=1)
        assert receipt.checkpoints == (expected,)
        reading = await probe.backend.read(probe.thread, "sub", "id")
        assert reading.record == expected
        assert reading.chunks == dict((ONE, TWO))
        assert reading.generation == receipt.generation

    async def test_a_record_of_a_newer_format_is_kept_as_it_is(self, probe: Probe) -> None:
        await probe.commit(draft("new", format=1_000_000))
        assert [record.format for record in await probe.records()] == [1_000_000]

    async def test_the_store_stamps_a_checkpoint_with_place_and_moment(self, probe: Probe) -> None:
        before = time.time_ns() // 1000
        record = await probe.save("a")
        assert (record.epoch, record.seq, record.follows) == (0, 1, False)
        # A store has a clock of its own: a minute is what no well-kept server is off.
        assert abs(record.created_at - before) < 60_000_000

    async def test_a_commit_stores_all_that_it_carries(self, probe: Probe) -> None:
        receipt = await probe.commit(
            draft("a", ONE[0]),
            chunks=(ONE, TWO),
            writes=(write("a", "task"),),
            entries=(EntryRecord("step", "n", b"body", status="open"),),
            metadata=b"metadata",
        )
        dump = await probe.dump()
        assert dump["records"] == list(receipt.checkpoints)
        assert dump["data"] == dict((ONE, TWO))
        assert dump["inventory"] == {name: (len(data), receipt.revision) for name, data in (ONE, TWO)}
        assert dump["writes"] == [write("a", "task")]
        assert (
            dump["entries"]["step"]
            == list(receipt.entries)
            == [EntryRecord("step", "n", b"body", status="open")]
        )
        assert (dump["row"].metadata, dump["row"].metadata_version, dump["row"].checkpoints) == (
            b"metadata",
            1,
            1,
        )
        assert dump["row"].head == receipt.checkpoints[0]

    async def test_every_commit_raises_the_revision_by_one(self, probe: Probe) -> None:
        receipts = [
            await probe.commit(draft("a")),
            await probe.commit(chunks=(ONE,)),
            await probe.commit(writes=(write("a", "task"),)),
            await probe.commit(metadata=b"metadata"),
            await probe.commit(removal=Removal(checkpoints=(("", "a"),))),
        ]
        assert [receipt.revision for receipt in receipts] == [1, 2, 3, 4, 5]
        assert (await probe.backend.inventory(probe.thread)).revision == 5

    async def test_empty_bodies_chunks_and_metadata_are_kept(self, probe: Probe) -> None:
        nothing = (b"\0" * 16, b"")
        await probe.commit(draft("a", nothing[0], body=b""), chunks=(nothing,), metadata=b"")
        reading = await probe.backend.read(probe.thread, "")
        row = await probe.row()
        assert reading.record is not None and row is not None
        assert (reading.record.body, reading.chunks, row.metadata) == (b"", dict((nothing,)), b"")

    async def test_a_chunk_of_a_megabyte_and_many_chunks_are_kept(self, probe: Probe) -> None:
        chunks = [chunk(f"chunk {number} ", 200) for number in range(300)] + [chunk("large ", 1 << 20)]
        await probe.save("a", *chunks)
        reading = await probe.backend.read(probe.thread, "")
        assert reading.record is not None
        assert reading.record.chunks == tuple(name for name, _ in chunks)
        assert reading.chunks == dict(chunks)

    async def test_the_answer_is_a_copy_of_what_is_stored(self, probe: Probe) -> None:
        await probe.save("a", ONE)
        for _ in range(2):
            inventory = await probe.backend.inventory(probe.thread)
            reading = await probe.backend.read(probe.thread, "")
            assert list(inventory.chunks) == list(reading.chunks) == [ONE[0]]
            inventory.chunks.clear()
            reading.chunks.clear()
            (await probe.records()).clear()

    # Idempotency first

    async def test_a_retry_of_a_stored_id_is_answered_by_the_stored_record(self, probe: Probe) -> None:
        stored = await probe.save("a", ONE)
        await probe.save("b", TWO)
        before = await probe.dump()
        receipt = await probe.commit(draft("a", ONE[0]), chunks=(ONE,))
        assert receipt.existing == stored
        assert (receipt.checkpoints, receipt.generation) == ((), before["generation"])
        assert await probe.dump() == before

    async def test_a_retry_is_answered_whatever_else_no_longer_holds(self, probe: Probe) -> None:
        """The reply to a save may be lost: its repetition must not fail its own compare-and-set."""
        running = EntryRecord("run", "run", status="running", fence=2)
        for what, stale in STALE.items():
            case = probe.of(what)
            stored = await case.save("a", ONE)
            await case.commit(draft("b"), entries=(running,), metadata=b"old")
            before = await case.dump()
            receipt = await case.commit(draft("a"), chunks=(TWO,), writes=(write("a", "task"),), **stale)
            assert receipt.existing == stored, what
            assert await case.dump() == before, what

    async def test_a_retry_is_answered_after_a_failover(self, probe: Probe) -> None:
        stored = await probe.save("a")
        await probe.commit(draft("b"), epoch=5)
        assert (await probe.commit(draft("a"), epoch=1)).existing == stored

    async def test_an_id_is_one_only_within_its_thread_and_namespace(self, probe: Probe) -> None:
        await probe.save("a")
        assert (await probe.commit(draft("a", namespace="sub"))).existing is None
        assert (await probe.of("another").commit(draft("a"))).existing is None
        assert (await probe.of(probe.thread.id, "tenant").commit(draft("a"))).existing is None
        assert len(await probe.records()) == 2

    async def test_an_id_that_was_removed_is_free_again(self, probe: Probe) -> None:
        await probe.save("a")
        await probe.commit(removal=Removal(checkpoints=(("", "a"),)))
        receipt = await probe.commit(draft("a"))
        assert (receipt.existing, receipt.checkpoints[0].seq) == (None, 2)

    async def test_of_many_who_commit_one_id_at_once_one_stores_it(self, trial: Trial) -> None:
        probe = await trial.probe()
        receipts = await trial.together(*[lambda: probe.commit(draft("a", ONE[0]), chunks=(ONE,))] * 6)
        assert sum(receipt.existing is None for receipt in receipts) == 1
        (stored,) = await probe.records()
        assert all(stored == (receipt.existing or receipt.checkpoints[0]) for receipt in receipts)

    # The end

    async def test_what_is_stored_survives_closing_and_opening(self, trial: Trial) -> None:
        if not trial.opener.survives:
            pytest.skip("this backend keeps nothing when it is closed")
        probe = await trial.probe()
        await probe.commit(
            draft("a", ONE[0]), chunks=(ONE, TWO), writes=(write("a", "task"),), metadata=b"metadata",
            entries=(EntryRecord("step", "n", b"body"),),
        )  # fmt: skip
        await probe.commit(draft("b"), removal=Removal(chunks=(TWO[0],), chunks_until=1))
        before = await probe.dump()
        await probe.backend.close()
        assert await (await trial.probe()).dump() == before

    async def test_two_handles_see_what_the_other_stored(self, trial: Trial) -> None:
        first, second = await trial.probe(), await trial.probe()
        for number in range(3):
            await first.save(f"one {number}", ONE)
            await second.save(f"two {number}", TWO)
            assert await first.dump() == await second.dump()
        assert await first.ids() == ["two 2", "one 2", "two 1", "one 1", "two 0", "one 0"]

    async def test_a_closed_backend_refuses_every_call(self, probe: Probe) -> None:
        await probe.save("a")
        await probe.backend.close()
        await probe.backend.close()  # twice is fine
        with pytest.raises(StoreClosed):
            await probe.save("b")
        with pytest.raises(StoreClosed):
            await probe.backend.read(probe.thread, "")
        with pytest.raises(StoreClosed):
            await probe.records()
