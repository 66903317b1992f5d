"""Deletion: what is removed, what must stay, and that no save in between loses a chunk.

Deleting is two commits: records first, then the chunks that no record names, as of the moment
of that lookup. A save may come at any point in between.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from outlive.backend import (
    NEXT,
    TOMBSTONE,
    CheckpointRecord,
    EntryRecord,
    ReadResult,
    ReencryptedBodies,
    Removal,
    ThreadQuery,
    WriteRecord,
)
from outlive.errors import StaleBase
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe, chunk, copied, draft, live, write

ONE, TWO, THREE = chunk("one", 100), chunk("two", 200), chunk("three", 300)


# Every order of the four steps of a sweeper and the two of a saver.
ORDERS = [
    tuple("saver" if step in places else "sweeper" for step in range(6))
    for places in itertools.combinations(range(6), 2)
]


async def _sweeper(probe: Probe) -> AsyncIterator[None]:
    """Remove checkpoint "old", then unreferenced chunks, step by step, as another process would."""
    yield
    await probe.commit(removal=Removal(checkpoints=(("", "old"),)))
    yield
    inventory = await probe.backend.inventory(probe.thread)
    yield
    records, writes = await probe.records(), await probe.backend.writes(probe.thread, None)
    yield
    dead = tuple(inventory.chunks.keys() - live(records, writes))
    removal = Removal(chunks=dead, chunks_until=inventory.revision)
    with contextlib.suppress(StaleBase):
        await probe.commit(removal=removal, generation=inventory.generation)
    yield


async def _saver(probe: Probe, how: str) -> AsyncIterator[None]:
    """Look at the thread, then save something that holds the chunk of "old"."""
    yield
    reading = await probe.backend.read(probe.thread, "", "old")
    yield
    if how == "sends it again":
        await probe.commit(draft("new", ONE[0]), chunks=(ONE,))
    elif how == "sends it again in a write":
        await probe.commit(writes=(write("later", "task", chunks=(ONE[0],)),), chunks=(ONE,))
    elif reading.record is not None:
        with contextlib.suppress(StaleBase):  # a saver would read again; that is not tested here
            await probe.commit(draft("new", ONE[0]), **_NAMING[how](reading))
    yield


_NAMING: dict[str, Callable[[ReadResult], dict[str, Any]]] = {
    "names it as it saw it": lambda reading: {"generation": reading.generation},
    "names it and trusts": lambda reading: {},
    "names it in place of another": lambda reading: {"replace": True, "generation": reading.generation},
}


class DeletionContract(Contract):
    async def test_a_removed_checkpoint_is_gone_with_its_writes(self, probe: Probe) -> None:
        await probe.commit(draft("a"), writes=(write("a", "task"), write("b", "task")))
        await probe.commit(draft("b"), draft("a", namespace="sub"))
        receipt = await probe.commit(removal=Removal(checkpoints=(("", "a"), ("", "never there"))))
        assert receipt.removed == 1
        assert [(record.namespace, record.id) for record in await probe.records()] == [
            ("sub", "a"),
            ("", "b"),
        ]
        assert await probe.backend.writes(probe.thread, None) == [write("b", "task")]
        assert (await probe.backend.read(probe.thread, "", "a")).record is None

    async def test_writes_of_a_checkpoint_that_never_came_are_removed_by_its_name(self, probe: Probe) -> None:
        await probe.commit(writes=(write("never saved", "task"), write("b", "task")))
        await probe.commit(removal=Removal(checkpoints=(("", "never saved"),)))
        assert await probe.backend.writes(probe.thread, None) == [write("b", "task")]

    async def test_in_one_commit_removals_come_first(self, probe: Probe) -> None:
        await probe.commit(draft("a", ONE[0]), chunks=(ONE,), writes=(write("a", "task", 0, b"old"),))
        await probe.commit(
            chunks=(ONE,), writes=(write("a", "other", 0, b"new", chunks=(ONE[0],)),),
            removal=Removal(checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=1 << 40),
        )  # fmt: skip
        assert await probe.ids() == []
        assert [stored.body for stored in await probe.backend.writes(probe.thread, None)] == [b"new"]
        assert await probe.data() == dict((ONE,))

    async def test_removing_a_checkpoint_leaves_all_chunks(self, probe: Probe) -> None:
        await probe.save("a", ONE)
        receipt = await probe.commit(removal=Removal(checkpoints=(("", "a"),)))
        assert (receipt.removed, receipt.freed) == (1, 0)
        assert await probe.data() == dict((ONE,))

    async def test_removed_chunks_are_gone_and_counted(self, probe: Probe) -> None:
        await probe.commit(chunks=(ONE, TWO, THREE))
        receipt = await probe.commit(removal=Removal(chunks=(ONE[0], TWO[0], b"x" * 16), chunks_until=1))
        assert (receipt.removed, receipt.freed) == (0, 300)
        assert await probe.data() == dict((THREE,))

    async def test_chunks_stored_later_than_the_removal_knows_stay(self, probe: Probe) -> None:
        await probe.commit(chunks=(ONE,))
        await probe.commit(chunks=(TWO,))
        await probe.commit(removal=Removal(chunks=(ONE[0], TWO[0]), chunks_until=1))
        assert await probe.data() == dict((TWO,))

    async def test_a_chunk_that_the_same_commit_stores_is_not_removed(self, probe: Probe) -> None:
        await probe.commit(chunks=(ONE,))
        await probe.commit(
            draft("a", ONE[0]), chunks=(ONE,), removal=Removal(chunks=(ONE[0],), chunks_until=1)
        )
        assert await probe.missing() == set()
        assert list((await probe.backend.inventory(probe.thread)).chunks) == [ONE[0]]

    async def test_a_chunk_that_is_there_keeps_its_bytes(self, probe: Probe) -> None:
        await probe.commit(chunks=(ONE,))
        await probe.commit(chunks=((ONE[0], b"other bytes"),))
        assert await probe.data() == dict((ONE,))

    async def test_storing_a_chunk_again_renews_its_stamp_and_stores_it_once(self, probe: Probe) -> None:
        await probe.save("a", ONE, body=b"")
        receipt = await probe.commit(chunks=(ONE,))
        inventory = await probe.backend.inventory(probe.thread)
        assert inventory.chunks == {ONE[0]: (100, receipt.revision)}
        row = await probe.row()
        assert row is not None and row.stored == 100
        await probe.commit(removal=Removal(chunks=(ONE[0],), chunks_until=receipt.revision - 1))
        assert await probe.data() == dict((ONE,))

    async def test_removing_a_thread_leaves_nothing_of_it(self, probe: Probe) -> None:
        await probe.commit(
            draft("a", ONE[0]), draft("b", namespace="sub"), chunks=(ONE, TWO), metadata=b"metadata",
            writes=(write("a", "task"), write("none", "task")), entries=(EntryRecord("run", "r"), EntryRecord("step", "n")),
        )  # fmt: skip
        await probe.of("another").save("a", ONE)
        neighbour = await probe.of("another").dump()
        receipt = await probe.commit(removal=Removal(everything=True))
        assert receipt.removed == 2
        dump = await probe.dump()
        assert (dump["records"], dump["data"], dump["writes"], dump["row"]) == ([], {}, [], None)
        kinds = {kind for kind, entries in dump["entries"].items() if entries}
        assert kinds <= {TOMBSTONE}  # which a pair of stores leaves
        assert await probe.backend.fetch(probe.thread, [ONE[0], TWO[0]]) == {}
        assert [row.id for row in await probe.backend.threads(ThreadQuery(""))] == ["another"]
        assert await probe.of("another").dump() == neighbour
        assert await probe.backend.audit(probe.thread) == await probe.backend.audit(None) == []

    async def test_a_thread_made_again_has_nothing_of_the_old_one(self, probe: Probe) -> None:
        await probe.commit(
            draft("a", ONE[0]),
            chunks=(ONE,),
            metadata=b"metadata",
            entries=(EntryRecord("step", "n", fence=9),),
        )
        await probe.commit(removal=Removal(everything=True))
        await probe.commit(draft("a", TWO[0]), chunks=(TWO,), entries=(EntryRecord("step", "n", fence=1),))
        dump = await probe.dump()
        assert (dump["data"], dump["row"].metadata, dump["row"].checkpoints) == (dict((TWO,)), None, 1)
        assert [entry.fence for entry in dump["entries"]["step"]] == [1]

    async def test_one_commit_may_remove_everything_and_start_again(self, probe: Probe) -> None:
        await probe.save("a", ONE)
        receipt = await probe.commit(draft("b", TWO[0]), chunks=(TWO,), removal=Removal(everything=True))
        assert (receipt.removed, receipt.checkpoints[0].seq) == (1, 2)
        assert (await probe.ids(), await probe.data()) == (["b"], dict((TWO,)))

    async def test_removing_what_was_never_there_is_fine(self, probe: Probe) -> None:
        receipt = await probe.commit(removal=Removal(everything=True))
        assert (receipt.removed, receipt.freed) == (0, 0)
        assert await probe.backend.threads(ThreadQuery("")) == []
        await probe.commit(removal=Removal(checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=9))

    async def test_the_space_of_what_is_removed_is_counted_off(self, probe: Probe) -> None:
        await probe.save("a", ONE, body=b"12345")
        await probe.save("b", TWO, body=b"123")
        await probe.commit(removal=Removal(checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=9))
        row = await probe.row()
        assert row is not None and (row.checkpoints, row.stored) == (1, 203)

    # Generations

    async def test_every_removal_replaces_the_generation_and_nothing_else_does(self, probe: Probe) -> None:
        async def changed(*drafts: CheckpointRecord, **fields: Any) -> bool:
            before = await probe.generation()
            receipt = await probe.commit(*drafts, **fields)
            after = await probe.generation()
            assert receipt.generation == after
            return before != after

        await probe.commit(draft("a", ONE[0]), draft("b", ONE[0]), chunks=(ONE, TWO))
        assert not await changed(draft("c"))
        assert not await changed(draft("d", ONE[0]), generation=await probe.generation())
        assert not await changed(chunks=(ONE, THREE), writes=(write("a", "task"),))
        assert not await changed(entries=(EntryRecord("step", "n"),), metadata=b"metadata")
        assert not await changed(entries=(EntryRecord("step", "n", gone=True),))
        assert await changed(removal=Removal(checkpoints=(("", "a"),)))
        assert await changed(removal=Removal(chunks=(TWO[0],), chunks_until=1 << 40))
        assert await changed(rewrites=(draft("b", THREE[0]),))
        # What could name a chunk again after the sweep looked
        assert await changed(draft("c", body=b"new"), replace=True)
        assert await changed(copied(draft("copy"), seq=90))
        assert await changed(draft("e", THREE[0]))
        assert await changed(writes=(write("a", "late", chunks=(THREE[0],)),))
        assert await changed(removal=Removal(everything=True))

    async def test_generations_are_random(self, probe: Probe) -> None:
        """A counter would start again in a store that was restored or a thread that was erased."""
        tokens = []
        for number in range(8):
            other = probe.of(f"thread {number}")
            await other.save("a")
            tokens.append(await other.generation())
            tokens.append((await other.commit(removal=Removal(everything=True))).generation)
        assert len(set(tokens)) == 16
        assert sorted(tokens) != tokens
        assert max(tokens) > 1 << 40

    async def test_a_save_that_builds_on_what_is_going_is_refused(self, probe: Probe) -> None:
        await probe.save("a", ONE)
        generation = await probe.generation()
        await probe.commit(removal=Removal(checkpoints=(("", "a"),)))
        with pytest.raises(StaleBase):
            await probe.commit(draft("b", ONE[0]), generation=generation)
        assert await probe.records() == []

    # Rewriting

    async def test_a_rewrite_changes_where_the_content_is_and_nothing_else(self, probe: Probe) -> None:
        old = await probe.save("a", ONE, parent="p", run="r", step=3, source="final", projection="{}")
        await probe.save("b", ONE)
        generation = await probe.generation()
        other = draft("a", TWO[0], body=b"moved", step=99, source="loop", size=77, created_at=5)
        await probe.commit(rewrites=(other,), chunks=(TWO,), generation=generation)
        record = (await probe.records())[1]
        assert (record.chunks, record.body) == ((TWO[0],), b"moved")
        assert (record.order, record.created_at, record.parent) == (old.order, old.created_at, "p")
        assert (record.run, record.step, record.source, record.size) == ("r", 3, "final", 1)
        assert await probe.ids() == ["b", "a"]

    # Two steps, and a save between them

    async def test_no_save_between_the_steps_of_a_deletion_loses_a_chunk(self, probe: Probe) -> None:
        for how, order in itertools.product(
            ("sends it again", "sends it again in a write", *_NAMING), ORDERS
        ):
            case = probe.of(f"{how}: {order}")
            await case.save("old", ONE)
            await case.save("kept", TWO)
            await case.save("new" if how == "names it in place of another" else "another")
            processes = {"sweeper": _sweeper(case), "saver": _saver(case, how)}
            for process in processes.values():
                await anext(process)
            for name in order:
                await anext(processes[name], None)
            for process in processes.values():
                await process.aclose()  # type: ignore[attr-defined]
            assert await case.missing() == set(), case.thread.id
            assert TWO[0] in await case.data(), case.thread.id

    async def test_a_deletion_that_nobody_disturbs_frees_the_chunk(self, probe: Probe) -> None:
        await probe.save("old", ONE)
        await probe.save("kept", TWO)
        async for _ in _sweeper(probe):
            pass
        assert await probe.data() == dict((TWO,))

    async def test_a_busy_thread_does_not_starve_a_sweep(self, probe: Probe) -> None:
        await probe.save("old", ONE)
        step = 0
        async for _ in _sweeper(probe):
            step += 1
            await probe.save(f"busy {step}", TWO)
        assert await probe.data() == dict((TWO,))

    async def test_a_chunk_that_is_removed_and_put_at_once_has_the_new_bytes_for_all_who_name_it(
        self, probe: Probe
    ) -> None:
        await probe.commit(draft("a", ONE[0], TWO[0]), chunks=(ONE, TWO), writes=(pending := _write(ONE[0]),))
        before = await probe.backend.inventory(probe.thread)
        await probe.commit(
            chunks=((ONE[0], b"other bytes"),),
            removal=Removal(chunks=(ONE[0],), chunks_until=before.revision),
            generation=before.generation,
        )
        reading = await probe.backend.read(probe.thread, "", "a")
        assert reading.chunks == {ONE[0]: b"other bytes", TWO[0]: TWO[1]}
        assert (await probe.records())[0].chunks == (ONE[0], TWO[0])
        assert await probe.backend.writes(probe.thread, None) == [pending]
        after = await probe.backend.inventory(probe.thread)
        assert after.chunks == {ONE[0]: (11, after.revision), TWO[0]: (200, before.chunks[TWO[0]][1])}
        assert after.generation != before.generation
        assert await probe.backend.audit(probe.thread) == []

    async def test_a_chunk_that_came_back_in_between_keeps_its_bytes(self, probe: Probe) -> None:
        await probe.commit(draft("a", ONE[0]), chunks=(ONE,))
        before = await probe.backend.inventory(probe.thread)
        await probe.commit(draft("b", ONE[0]), chunks=(ONE,))
        removal = Removal(chunks=(ONE[0],), chunks_until=before.revision)
        await probe.commit(chunks=((ONE[0], b"other bytes"),), removal=removal, generation=before.generation)
        assert (await probe.data())[ONE[0]] == ONE[1]

    async def test_what_is_encrypted_again_changes_its_bytes_and_nothing_else(self, probe: Probe) -> None:
        lease = EntryRecord("run", "r", b"old", "running", fence=NEXT, lease_s=100)
        await probe.commit(
            draft("a"),
            writes=(write("a", "task", 0, b"old"), write("a", "task", -1, b"old")),
            entries=(lease,),
        )
        await probe.commit(metadata=b"old")
        (note,), row = await probe.entries("run"), await probe.row()
        writes = await probe.backend.writes(probe.thread, None)
        assert row is not None
        await probe.commit(
            reencrypted=ReencryptedBodies(
                tuple((pending, b"new") for pending in writes), ((note, b"new"),), (b"old", b"new")
            )
        )
        assert await probe.backend.writes(probe.thread, None) == [
            replace(pending, body=b"new") for pending in writes
        ]
        assert await probe.entries("run") == [replace(note, body=b"new")]
        now = await probe.row()
        assert now is not None
        assert (now.metadata, now.metadata_version, now.generation) == (
            b"new",
            row.metadata_version,
            row.generation,
        )
        assert await probe.backend.audit(probe.thread) == []

    async def test_what_was_changed_since_it_was_read_is_not_encrypted_again(self, probe: Probe) -> None:
        await probe.commit(
            draft("a"),
            writes=(write("a", "task", -1, b"second"),),
            entries=(EntryRecord("run", "r", b"second"),),
            metadata=b"second",
        )
        first = EntryRecord("run", "r", b"first")
        gone = write("a", "other", 0, b"first")
        await probe.commit(
            reencrypted=ReencryptedBodies(
                ((write("a", "task", -1, b"first"), b"x"), (gone, b"x")), ((first, b"x"),), (b"first", b"x")
            )
        )
        assert [record.body for record in await probe.backend.writes(probe.thread, None)] == [b"second"]
        assert [record.body for record in await probe.entries("run")] == [b"second"]
        row = await probe.row()
        assert row is not None
        assert row.metadata == b"second"

    async def test_a_thread_goes_only_when_nothing_at_all_was_committed_since(self, probe: Probe) -> None:
        await probe.commit(draft("a"))
        row = await probe.row()
        assert row is not None
        await probe.commit(entries=(EntryRecord("run", "r"),))
        everything = Removal(everything=True)
        with pytest.raises(StaleBase):
            await probe.commit(removal=everything, revision=row.revision)
        row = await probe.row()
        assert row is not None
        await probe.commit(removal=everything, revision=row.revision)
        assert await probe.row() is None


def _write(name: bytes) -> WriteRecord:
    return write("a", "task", chunks=(name,))
