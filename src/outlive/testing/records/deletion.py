"""Removing: what goes, what must stay, and that no save in between loses a chunk.

Deleting is two commits: records first, then the chunks that nobody reads, as of the moment when that was
looked up. A save may come at any point between.
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
from outlive.testing.thread_records import Waist, chunk, copied, draft, live, write

ONE, TWO, THREE = chunk("one", 100), chunk("two", 200), chunk("three", 300)


# Every order of the four steps of a sweeper and the two of a saver.
ORDERS = [
    tuple("saver" if step in places else "sweeper" for step in range(6))
    for places in itertools.combinations(range(6), 2)
]


async def _sweeper(waist: Waist) -> AsyncIterator[None]:
    """Remove checkpoint "old", then the chunks that nobody reads: step by step, as another process would."""
    yield
    await waist.commit(removal=Removal(checkpoints=(("", "old"),)))
    yield
    inventory = await waist.backend.inventory(waist.thread)
    yield
    records, writes = await waist.records(), await waist.backend.writes(waist.thread, None)
    yield
    dead = tuple(inventory.chunks.keys() - live(records, writes))
    removal = Removal(chunks=dead, chunks_until=inventory.revision)
    with contextlib.suppress(StaleBase):
        await waist.commit(removal=removal, generation=inventory.generation)
    yield


async def _saver(waist: Waist, how: str) -> AsyncIterator[None]:
    """Look at the thread, then save something that holds the chunk of "old"."""
    yield
    reading = await waist.backend.read(waist.thread, "", "old")
    yield
    if how == "sends it again":
        await waist.commit(draft("new", ONE[0]), chunks=(ONE,))
    elif how == "sends it again in a write":
        await waist.commit(writes=(write("later", "task", chunks=(ONE[0],)),), chunks=(ONE,))
    elif reading.record is not None:
        with contextlib.suppress(StaleBase):  # and it reads anew, which is not the matter here
            await waist.commit(draft("new", ONE[0]), **_NAMING[how](reading))
    yield


_NAMING: dict[str, Callable[[ReadResult], dict[str, Any]]] = {
    "names it as it saw it": lambda reading: {"generation": reading.generation},
    "names it and trusts": lambda reading: {},
    "names it in place of another": lambda reading: {"replace": True, "generation": reading.generation},
}


class DeletionContract(Contract):
    async def test_a_removed_checkpoint_is_gone_with_its_writes(self, waist: Waist) -> None:
        await waist.commit(draft("a"), writes=(write("a", "task"), write("b", "task")))
        await waist.commit(draft("b"), draft("a", namespace="sub"))
        receipt = await waist.commit(removal=Removal(checkpoints=(("", "a"), ("", "never there"))))
        assert receipt.removed == 1
        assert [(record.namespace, record.id) for record in await waist.records()] == [
            ("sub", "a"),
            ("", "b"),
        ]
        assert await waist.backend.writes(waist.thread, None) == [write("b", "task")]
        assert (await waist.backend.read(waist.thread, "", "a")).record is None

    async def test_writes_of_a_checkpoint_that_never_came_are_removed_by_its_name(self, waist: Waist) -> None:
        await waist.commit(writes=(write("never saved", "task"), write("b", "task")))
        await waist.commit(removal=Removal(checkpoints=(("", "never saved"),)))
        assert await waist.backend.writes(waist.thread, None) == [write("b", "task")]

    async def test_in_one_commit_removals_come_first(self, waist: Waist) -> None:
        await waist.commit(draft("a", ONE[0]), chunks=(ONE,), writes=(write("a", "task", 0, b"old"),))
        await waist.commit(
            chunks=(ONE,), writes=(write("a", "other", 0, b"new", chunks=(ONE[0],)),),
            removal=Removal(checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=1 << 40),
        )  # fmt: skip
        assert await waist.ids() == []
        assert [held.body for held in await waist.backend.writes(waist.thread, None)] == [b"new"]
        assert await waist.data() == dict((ONE,))

    async def test_removing_a_checkpoint_leaves_all_chunks(self, waist: Waist) -> None:
        await waist.save("a", ONE)
        receipt = await waist.commit(removal=Removal(checkpoints=(("", "a"),)))
        assert (receipt.removed, receipt.freed) == (1, 0)
        assert await waist.data() == dict((ONE,))

    async def test_removed_chunks_are_gone_and_counted(self, waist: Waist) -> None:
        await waist.commit(chunks=(ONE, TWO, THREE))
        receipt = await waist.commit(removal=Removal(chunks=(ONE[0], TWO[0], b"x" * 16), chunks_until=1))
        assert (receipt.removed, receipt.freed) == (0, 300)
        assert await waist.data() == dict((THREE,))

    async def test_chunks_stored_later_than_the_removal_knows_stay(self, waist: Waist) -> None:
        await waist.commit(chunks=(ONE,))
        await waist.commit(chunks=(TWO,))
        await waist.commit(removal=Removal(chunks=(ONE[0], TWO[0]), chunks_until=1))
        assert await waist.data() == dict((TWO,))

    async def test_a_chunk_that_the_same_commit_stores_is_not_removed(self, waist: Waist) -> None:
        await waist.commit(chunks=(ONE,))
        await waist.commit(
            draft("a", ONE[0]), chunks=(ONE,), removal=Removal(chunks=(ONE[0],), chunks_until=1)
        )
        assert await waist.missing() == set()
        assert list((await waist.backend.inventory(waist.thread)).chunks) == [ONE[0]]

    async def test_a_chunk_that_is_there_keeps_its_bytes(self, waist: Waist) -> None:
        await waist.commit(chunks=(ONE,))
        await waist.commit(chunks=((ONE[0], b"other bytes"),))
        assert await waist.data() == dict((ONE,))

    async def test_storing_a_chunk_again_stamps_it_anew_and_stores_it_once(self, waist: Waist) -> None:
        await waist.save("a", ONE, body=b"")
        receipt = await waist.commit(chunks=(ONE,))
        inventory = await waist.backend.inventory(waist.thread)
        assert inventory.chunks == {ONE[0]: (100, receipt.revision)}
        row = await waist.row()
        assert row is not None and row.stored == 100
        await waist.commit(removal=Removal(chunks=(ONE[0],), chunks_until=receipt.revision - 1))
        assert await waist.data() == dict((ONE,))

    async def test_removing_a_thread_leaves_nothing_of_it(self, waist: Waist) -> None:
        await waist.commit(
            draft("a", ONE[0]), draft("b", namespace="sub"), chunks=(ONE, TWO), info=b"info",
            writes=(write("a", "task"), write("none", "task")), entries=(EntryRecord("run", "r"), EntryRecord("step", "n")),
        )  # fmt: skip
        await waist.of("another").save("a", ONE)
        neighbour = await waist.of("another").dump()
        receipt = await waist.commit(removal=Removal(everything=True))
        assert receipt.removed == 2
        dump = await waist.dump()
        assert (dump["records"], dump["data"], dump["writes"], dump["row"]) == ([], {}, [], None)
        assert not any(dump["entries"].values())
        assert await waist.backend.fetch(waist.thread, [ONE[0], TWO[0]]) == {}
        assert [row.id for row in await waist.backend.threads(ThreadQuery(""))] == ["another"]
        assert await waist.of("another").dump() == neighbour
        assert await waist.backend.audit(waist.thread) == await waist.backend.audit(None) == []

    async def test_a_thread_made_again_has_nothing_of_the_old_one(self, waist: Waist) -> None:
        await waist.commit(
            draft("a", ONE[0]), chunks=(ONE,), info=b"info", entries=(EntryRecord("step", "n", fence=9),)
        )
        await waist.commit(removal=Removal(everything=True))
        await waist.commit(draft("a", TWO[0]), chunks=(TWO,), entries=(EntryRecord("step", "n", fence=1),))
        dump = await waist.dump()
        assert (dump["data"], dump["row"].info, dump["row"].checkpoints) == (dict((TWO,)), None, 1)
        assert [entry.fence for entry in dump["entries"]["step"]] == [1]

    async def test_one_commit_may_remove_everything_and_begin_anew(self, waist: Waist) -> None:
        await waist.save("a", ONE)
        receipt = await waist.commit(draft("b", TWO[0]), chunks=(TWO,), removal=Removal(everything=True))
        assert (receipt.removed, receipt.checkpoints[0].seq) == (1, 2)
        assert (await waist.ids(), await waist.data()) == (["b"], dict((TWO,)))

    async def test_removing_what_was_never_there_is_fine(self, waist: Waist) -> None:
        receipt = await waist.commit(removal=Removal(everything=True))
        assert (receipt.removed, receipt.freed) == (0, 0)
        assert await waist.backend.threads(ThreadQuery("")) == []
        await waist.commit(removal=Removal(checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=9))

    async def test_the_space_of_what_is_removed_is_counted_off(self, waist: Waist) -> None:
        await waist.save("a", ONE, body=b"12345")
        await waist.save("b", TWO, body=b"123")
        await waist.commit(removal=Removal(checkpoints=(("", "a"),), chunks=(ONE[0],), chunks_until=9))
        row = await waist.row()
        assert row is not None and (row.checkpoints, row.stored) == (1, 203)

    # Generations

    async def test_every_removal_replaces_the_generation_and_nothing_else_does(self, waist: Waist) -> None:
        async def changed(*drafts: CheckpointRecord, **fields: Any) -> bool:
            before = await waist.generation()
            receipt = await waist.commit(*drafts, **fields)
            after = await waist.generation()
            assert receipt.generation == after
            return before != after

        await waist.commit(draft("a", ONE[0]), draft("b", ONE[0]), chunks=(ONE, TWO))
        assert not await changed(draft("c"))
        assert not await changed(draft("d", ONE[0]), generation=await waist.generation())
        assert not await changed(chunks=(ONE, THREE), writes=(write("a", "task"),))
        assert not await changed(entries=(EntryRecord("step", "n"),), info=b"info")
        assert not await changed(entries=(EntryRecord("step", "n", gone=True),))
        assert await changed(removal=Removal(checkpoints=(("", "a"),)))
        assert await changed(removal=Removal(chunks=(TWO[0],), chunks_until=1 << 40))
        assert await changed(rewrites=(draft("b", THREE[0]),))
        # What could give a chunk back its life behind a sweep's back
        assert await changed(draft("c", body=b"new"), replace=True)
        assert await changed(copied(draft("copy"), seq=90))
        assert await changed(draft("e", THREE[0]))
        assert await changed(writes=(write("a", "late", chunks=(THREE[0],)),))
        assert await changed(removal=Removal(everything=True))

    async def test_generations_are_random(self, waist: Waist) -> None:
        """A counter would start anew with a store that was restored or a thread that was erased."""
        tokens = []
        for number in range(8):
            other = waist.of(f"thread {number}")
            await other.save("a")
            tokens.append(await other.generation())
            tokens.append((await other.commit(removal=Removal(everything=True))).generation)
        assert len(set(tokens)) == 16
        assert sorted(tokens) != tokens
        assert max(tokens) > 1 << 40

    async def test_a_save_that_builds_on_what_is_going_is_refused(self, waist: Waist) -> None:
        await waist.save("a", ONE)
        generation = await waist.generation()
        await waist.commit(removal=Removal(checkpoints=(("", "a"),)))
        with pytest.raises(StaleBase):
            await waist.commit(draft("b", ONE[0]), generation=generation)
        assert await waist.records() == []

    # Rewriting

    async def test_a_rewrite_changes_where_the_content_is_and_nothing_else(self, waist: Waist) -> None:
        old = await waist.save("a", ONE, parent="p", run="r", step=3, source="final", projection="{}")
        await waist.save("b", ONE)
        generation = await waist.generation()
        other = draft("a", TWO[0], body=b"moved", step=99, source="loop", size=77, created_at=5)
        await waist.commit(rewrites=(other,), chunks=(TWO,), generation=generation)
        record = (await waist.records())[1]
        assert (record.chunks, record.body) == ((TWO[0],), b"moved")
        assert (record.order, record.created_at, record.parent) == (old.order, old.created_at, "p")
        assert (record.run, record.step, record.source, record.size) == ("r", 3, "final", 1)
        assert await waist.ids() == ["b", "a"]

    # Two steps, and a save between them

    async def test_no_save_between_the_steps_of_a_deletion_loses_a_chunk(self, waist: Waist) -> None:
        for how, order in itertools.product(
            ("sends it again", "sends it again in a write", *_NAMING), ORDERS
        ):
            one = waist.of(f"{how}: {order}")
            await one.save("old", ONE)
            await one.save("kept", TWO)
            await one.save("new" if how == "names it in place of another" else "another")
            processes = {"sweeper": _sweeper(one), "saver": _saver(one, how)}
            for process in processes.values():
                await anext(process)
            for name in order:
                await anext(processes[name], None)
            for process in processes.values():
                await process.aclose()  # type: ignore[attr-defined]
            assert await one.missing() == set(), one.thread.id
            assert TWO[0] in await one.data(), one.thread.id

    async def test_a_deletion_that_nobody_disturbs_frees_the_chunk(self, waist: Waist) -> None:
        await waist.save("old", ONE)
        await waist.save("kept", TWO)
        async for _ in _sweeper(waist):
            pass
        assert await waist.data() == dict((TWO,))

    async def test_a_busy_thread_does_not_starve_a_sweep(self, waist: Waist) -> None:
        await waist.save("old", ONE)
        step = 0
        async for _ in _sweeper(waist):
            step += 1
            await waist.save(f"busy {step}", TWO)
        assert await waist.data() == dict((TWO,))

    async def test_a_chunk_that_is_removed_and_put_at_once_has_the_new_bytes_for_all_who_name_it(
        self, waist: Waist
    ) -> None:
        await waist.commit(draft("a", ONE[0], TWO[0]), chunks=(ONE, TWO), writes=(held := _write(ONE[0]),))
        before = await waist.backend.inventory(waist.thread)
        await waist.commit(
            chunks=((ONE[0], b"sealed anew"),),
            removal=Removal(chunks=(ONE[0],), chunks_until=before.revision),
            generation=before.generation,
        )
        reading = await waist.backend.read(waist.thread, "", "a")
        assert reading.chunks == {ONE[0]: b"sealed anew", TWO[0]: TWO[1]}
        assert (await waist.records())[0].chunks == (ONE[0], TWO[0])
        assert await waist.backend.writes(waist.thread, None) == [held]
        after = await waist.backend.inventory(waist.thread)
        assert after.chunks == {ONE[0]: (11, after.revision), TWO[0]: (200, before.chunks[TWO[0]][1])}
        assert after.generation != before.generation
        assert await waist.backend.audit(waist.thread) == []

    async def test_a_chunk_that_came_back_in_between_keeps_its_bytes(self, waist: Waist) -> None:
        await waist.commit(draft("a", ONE[0]), chunks=(ONE,))
        before = await waist.backend.inventory(waist.thread)
        await waist.commit(draft("b", ONE[0]), chunks=(ONE,))
        removal = Removal(chunks=(ONE[0],), chunks_until=before.revision)
        await waist.commit(chunks=((ONE[0], b"sealed anew"),), removal=removal, generation=before.generation)
        assert (await waist.data())[ONE[0]] == ONE[1]

    async def test_what_is_sealed_anew_changes_its_bytes_and_nothing_else(self, waist: Waist) -> None:
        lease = EntryRecord("run", "r", b"old", "running", fence=NEXT, lease_s=100)
        await waist.commit(
            draft("a"),
            writes=(write("a", "task", 0, b"old"), write("a", "task", -1, b"old")),
            entries=(lease,),
        )
        await waist.commit(info=b"old")
        (note,), row = await waist.entries("run"), await waist.row()
        writes = await waist.backend.writes(waist.thread, None)
        assert row is not None
        await waist.commit(
            reencrypted=ReencryptedBodies(
                tuple((one, b"new") for one in writes), ((note, b"new"),), (b"old", b"new")
            )
        )
        assert await waist.backend.writes(waist.thread, None) == [replace(one, body=b"new") for one in writes]
        assert await waist.entries("run") == [replace(note, body=b"new")]
        now = await waist.row()
        assert now is not None
        assert (now.info, now.info_version, now.generation) == (b"new", row.info_version, row.generation)
        assert await waist.backend.audit(waist.thread) == []

    async def test_what_was_changed_since_it_was_read_is_not_sealed_anew(self, waist: Waist) -> None:
        await waist.commit(
            draft("a"),
            writes=(write("a", "task", -1, b"second"),),
            entries=(EntryRecord("run", "r", b"second"),),
            info=b"second",
        )
        first = EntryRecord("run", "r", b"first")
        gone = write("a", "other", 0, b"first")
        await waist.commit(
            reencrypted=ReencryptedBodies(
                ((write("a", "task", -1, b"first"), b"x"), (gone, b"x")), ((first, b"x"),), (b"first", b"x")
            )
        )
        assert [one.body for one in await waist.backend.writes(waist.thread, None)] == [b"second"]
        assert [one.body for one in await waist.entries("run")] == [b"second"]
        row = await waist.row()
        assert row is not None
        assert row.info == b"second"

    async def test_a_thread_goes_only_when_nothing_at_all_was_committed_since(self, waist: Waist) -> None:
        await waist.commit(draft("a"))
        row = await waist.row()
        assert row is not None
        await waist.commit(entries=(EntryRecord("run", "r"),))
        everything = Removal(everything=True)
        with pytest.raises(StaleBase):
            await waist.commit(removal=everything, revision=row.revision)
        row = await waist.row()
        assert row is not None
        await waist.commit(removal=everything, revision=row.revision)
        assert await waist.row() is None


def _write(name: bytes) -> WriteRecord:
    return write("a", "task", chunks=(name,))
