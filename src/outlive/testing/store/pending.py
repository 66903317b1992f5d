"""Pending writes, interrupts and their answers."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.errors import (
    BadArgument,
    CheckpointExists,
    CheckpointMissing,
    HeadMoved,
    StoreUnavailable,
    Unencodable,
)
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.trial import Trial
from outlive.values import Interrupt, PendingWrite


class PendingContract(Contract):
    async def test_writes_come_with_their_checkpoint(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        await thread.save({}, id="a")
        await thread.write("task", [("messages", {"n": (1,)}), ("done", True)], path="pull, node")
        expected = (
            PendingWrite("task", 0, "messages", {"n": (1,)}, "pull, node"),
            PendingWrite("task", 1, "done", True, "pull, node"),
        )
        checkpoint = await other.thread("t").checkpoint()
        assert checkpoint is not None and checkpoint.pending_writes == expected
        assert await other.thread("t").writes() == await thread.writes("a") == expected

    async def test_writes_that_are_saved_with_their_checkpoint_are_those_of_write(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        writes = [("a", "c", "x" * 5000), ("b", "__resume__", 1), ("a", "__error__", "no"), ("a", "d", (2,))]
        saved = await store.thread("t").save({"n": 1}, id="one", writes=writes)
        await store.thread("u").save({"n": 1}, id="one")
        for task in ("a", "b"):
            pairs = [(channel, value) for writer, channel, value in writes if writer == task]
            await store.thread("u").write(task, pairs)
        checkpoint = await other.thread("t").checkpoint()
        assert checkpoint is not None and (checkpoint.id, checkpoint.seq) == (saved.id, saved.seq)
        assert checkpoint.pending_writes == await other.thread("u").writes()
        copied = await store.thread("v").save({"n": 1}, id="two", writes=checkpoint.pending_writes)
        assert await other.thread("v").writes(copied.id) == checkpoint.pending_writes
        text = await other.thread("t").export()
        imported = await other.import_thread(text, id="imported")
        assert await imported.writes() == checkpoint.pending_writes
        assert (await imported.save({"n": 1}, id="one", writes=writes)).seq == saved.seq
        assert (await other.verify()).problems == ()

    @pytest.mark.parametrize("durability", ["sync", "async"])
    async def test_the_retry_of_a_save_with_writes_stores_nothing(
        self, trial: Trial, durability: str
    ) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        fields: dict[str, Any] = {
            "state": {"n": 1, "text": "y" * 3000},
            "id": "one",
            "writes": [("a", "c", "x" * 5000), ("b", "d", {1})],
            "durability": durability,
        }
        # The first write wins, also over that of the save.
        await thread.write("a", [("c", "earlier")], checkpoint="one")
        for handle in (thread, thread, other.thread("t")):
            await handle.save(**fields)
            await handle.flush()
        assert [write.value for write in await thread.writes()] == ["earlier", {1}]
        assert (await thread.size()).checkpoints == 1
        for writes in ([("a", "c", "x" * 5000)], [*fields["writes"], ("c", "c", 1)], []):
            with pytest.raises(CheckpointExists):
                await thread.save(**{**fields, "writes": writes, "durability": "sync"})
        assert (await store.verify()).problems == ()

    async def test_a_save_with_writes_is_stored_whole_or_not_at_all(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({"n": 1}, id="one")
        with pytest.raises(HeadMoved):
            await thread.save({"n": 2}, id="two", expect="other", writes=[("a", "c", "x" * 5000)])
        with pytest.raises(Unencodable):
            await thread.save({"n": 2}, id="two", writes=[("a", "c", object())])
        assert (await thread.writes("two"), (await thread.size()).checkpoints) == ((), 1)

    async def test_a_replacement_brings_its_own_writes(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        await thread.save({"n": 1}, id="one", writes=[("a", "c", "x" * 5000), ("b", "c", 1)])
        for _ in range(2):
            await thread.save({"n": 1}, id="one", replace=True, writes=[("a", "c", "y" * 5000)])
        assert [write.value for write in await other.thread("t").writes("one")] == ["y" * 5000, 1]
        assert (await store.verify()).problems == ()

    async def test_a_task_may_write_before_its_checkpoint_is_saved(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.write("task", [("c", 1)], checkpoint="later")
        assert [write.value for write in await thread.writes("later")] == [1]
        assert not await thread.exists("later")
        await thread.save({}, id="later")
        checkpoint = await thread.checkpoint("later")
        assert checkpoint is not None and [write.value for write in checkpoint.pending_writes] == [1]

    async def test_writes_without_any_checkpoint_need_its_name(self, store: AsyncStore) -> None:
        with pytest.raises(CheckpointMissing):
            await store.thread("t").write("task", [("c", 1)])

    async def test_the_first_write_of_a_task_wins_and_the_last_control_write(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({})
        for value in ("first", "second"):
            await thread.write("task", [("c", value), ("__error__", value)])
        values = {write.channel: write.value for write in await thread.writes()}
        assert values == {"c": "first", "__error__": "second"}

    async def test_writes_of_tasks_are_ordered_by_path_task_and_index(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({})
        await thread.write("b", [("c", n) for n in range(12)], path="1")
        await thread.write("a", [("c", 0)], path="2")
        await thread.write("a2", [("c", 0)], path="1")
        order = [(write.path, write.task, write.index) for write in await thread.writes()]
        assert order == sorted(order)
        assert len(order) == 14

    async def test_writes_hold_any_value(self, store: AsyncStore) -> None:
        values: list[Any] = [None, "x" * 100_000, b"\0" * 70_000, {"list": list(range(3000))}, (1, 2)]
        thread = store.thread("t")
        await thread.save({})
        await thread.write("task", [("c", value) for value in values])
        assert [write.value for write in await thread.writes()] == values

    async def test_writes_keep_to_their_namespace(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        await root.save(1, id="same")
        await sub.save(1, id="same")
        await sub.write("task", [("c", "sub")])
        assert (await root.writes(), [write.value for write in await sub.writes()]) == ((), ["sub"])

    async def test_writes_of_tasks_at_once_are_all_kept(self, trial: Trial) -> None:
        store = await trial.store()
        await store.thread("t").save({})
        works = [lambda n=n: store.thread("t").write(f"task {n:02}", [("c", n)]) for n in range(12)]
        assert await trial.together(*works) == [None] * 12
        assert [write.value for write in await store.thread("t").writes()] == list(range(12))

    async def test_a_refused_write_leaves_nothing_and_is_told(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        thread = store.thread("t")
        await thread.save({})
        backend.refuse("commit_all")
        with pytest.raises(StoreUnavailable):
            await thread.write("task", [("c", 1)])
        with pytest.raises(Unencodable):
            await thread.write("task", [("c", 1), ("d", object())])
        assert await thread.writes() == ()
        await thread.write("task", [("c", 2)])
        assert [write.value for write in await thread.writes()] == [2]

    async def test_writes_go_with_their_checkpoint(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save(1, id="a")
        await thread.write("task", [("c", "x" * 5000)])
        await thread.save(2, id="b")
        await thread.write("task", [("c", "y" * 5000)])
        await thread.delete_checkpoints(["a"])
        assert await thread.writes("a") == ()
        assert [write.value for write in await thread.writes("b")] == ["y" * 5000]
        assert (await thread.verify()).ok

    # Interrupts

    async def test_an_interrupt_is_open_until_it_is_answered(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        asked = (Interrupt("i1", "ask", {"q": "sure?"}), Interrupt("i2", "ask", None))
        await thread.save({}, source="interrupt", interrupts=asked)
        assert await other.thread("t").interrupts() == asked
        await thread.resume("i1", {"answer": True})
        assert await other.thread("t").interrupts() == asked[1:]
        checkpoint = await other.thread("t").checkpoint()
        assert checkpoint is not None and checkpoint.resume_values == {"i1": {"answer": True}}
        assert checkpoint.interrupts == asked

    async def test_the_last_answer_counts(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({}, id="a", interrupts=[Interrupt("i", "ask")])
        await thread.save({}, id="b")
        for answer in ("no", "yes"):
            await thread.resume("i", answer, checkpoint="a")
        checkpoint = await thread.checkpoint("a")
        assert checkpoint is not None and checkpoint.resume_values == {"i": "yes"}

    async def test_only_an_interrupt_can_be_answered(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        with pytest.raises(BadArgument):
            await thread.resume("i", 1)
        await thread.save({}, interrupts=[Interrupt("i", "ask")])
        with pytest.raises(BadArgument):
            await thread.resume("other", 1)
