"""Continuing from a head, branching, compare-and-set, and saving the same thing twice."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.backend import Commit
from outlive.errors import CheckpointExists, HeadMoved, OutcomeUnknown, StoreUnavailable
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.trial import Trial
from outlive.values import NEW, Interrupt

# Each says something else than what was saved.
OTHERS: list[dict[str, Any]] = [
    {"state": {"a": 2}},
    {"state": {"a": 1.0}},
    {"state": {"a": True}},
    {"step": 2},
    {"source": "update"},
    {"metadata": {"m": 2}},
    {"metadata": {}},
    {"next_nodes": ("x",)},
    {"completed_tasks": ("x",)},
    {"interrupts": (Interrupt("i", "n"),)},
    {"run": "r"},
    {"parent": "p"},
]


class HeadContract(Contract):
    # Parents, branches and compare-and-set

    async def test_a_save_continues_from_the_head(self, trial: Trial) -> None:
        here, there = (await trial.store()).thread("t"), (await trial.store()).thread("t")
        first = await here.save(1)
        second = await there.save(2)
        third = await here.save(3)
        assert (second.parent, third.parent) == (first.id, second.id)

    async def test_a_branch_from_an_old_checkpoint_is_legal(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first, second = await thread.save({"n": 1}), await thread.save({"n": 2})
        branch = await thread.save({"n": 3}, parent=first.id)
        assert (branch.parent, await thread.load()) == (first.id, {"n": 3})
        assert {head.id for head in await thread.tips()} == {second.id, branch.id}
        dangling = await thread.save({"n": 4}, parent="pruned long ago")
        assert dangling.parent == "pruned long ago"

    async def test_a_save_that_expects_the_head_succeeds_when_it_is_so(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first = await thread.save(1)
        second = await thread.save(2, expect=first.id)
        assert second.parent == first.id

    async def test_a_save_that_expects_another_head_is_refused(self, trial: Trial) -> None:
        store = await trial.store()
        thread, other = store.thread("t"), (await trial.store()).thread("t")
        first = await thread.save(1)
        faster = await other.save(2)
        with pytest.raises(HeadMoved) as moved:
            await thread.save(3, expect=first.id)
        assert (moved.value.expected, moved.value.head) == (first.id, faster.id)
        assert await thread.load() == 2
        assert (await thread.save(3, expect=faster.id)).seq == 3
        with pytest.raises(HeadMoved):
            await store.thread("nothing here").save(1, expect="x")
        assert not await store.thread("nothing here").exists()

    async def test_a_save_that_expects_a_new_thread_is_refused_once_there_is_a_checkpoint(
        self, trial: Trial
    ) -> None:
        thread, other = (await trial.store()).thread("t"), (await trial.store()).thread("t")
        first = await thread.save(1, expect=NEW)
        assert (first.parent, first.seq) == (None, 1)
        with pytest.raises(HeadMoved) as moved:
            await other.save(2, expect=NEW)
        assert (moved.value.expected, moved.value.head) == (None, first.id)

    async def test_of_writers_who_expect_the_same_head_one_wins(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]
        head = await stores[0].thread("t").save({"n": 0})
        works = [lambda n=n: stores[n % 3].thread("t").save({"n": n}, expect=head.id) for n in range(1, 7)]
        results = await trial.together(*works)
        won = [result for result in results if not isinstance(result, Exception)]
        assert len(won) == 1
        assert all(isinstance(result, HeadMoved) for result in results if isinstance(result, Exception))
        assert (await stores[1].thread("t").checkpoint()).id == won[0].id  # type: ignore[union-attr]

    async def test_increments_by_compare_and_set_are_never_lost(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(2)]
        await stores[0].thread("t").save(0)

        async def count(thread: Any) -> None:
            for _ in range(3):
                while True:
                    current = await thread.checkpoint()
                    try:
                        await thread.save(current.state + 1, expect=current.id)
                        break
                    except HeadMoved:
                        await trial.sleep(0.001)

        works = [lambda n=n: count(stores[n % 2].thread("t")) for n in range(4)]
        assert await trial.together(*works) == [None] * 4
        assert await stores[0].thread("t").load() == 12

    # Retries

    async def test_saving_the_same_under_one_id_again_stores_nothing(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        state = {"list": [1, {"a": 2.0}], "text": "x" * 5000}
        first = await store.thread("t").save(state, id="one", step=1, metadata={"m": (1,)})
        await store.thread("t").save("another")
        before = await store.size()
        for handle in (store, other):
            again = await handle.thread("t").save(state, id="one", step=1, metadata={"m": (1,)})
            assert (again.seq, again.created_at, again.parent) == (first.seq, first.created_at, first.parent)
        assert await store.size() == before
        assert await store.thread("t").load() == "another"

    async def test_a_retry_does_not_fail_its_own_compare_and_set(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first = await thread.save(1)
        second = await thread.save(2, id="two", expect=first.id)
        await thread.save(3)
        again = await thread.save(2, id="two", expect=first.id)
        assert again.seq == second.seq

    async def test_an_id_is_not_taken_twice_for_other_content(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        fields: dict[str, Any] = {"state": {"a": 1}, "id": "one", "step": 1, "metadata": {"m": 1}}
        await thread.save(**fields)
        for other in OTHERS:
            with pytest.raises(CheckpointExists) as exists:
                await thread.save(**{**fields, **other})
            assert exists.value.checkpoint == "one"
        assert await thread.load() == {"a": 1}
        assert (await thread.size()).checkpoints == 1

    async def test_a_lost_answer_is_repaired_by_the_same_save_again(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        thread = store.thread("t")
        await thread.save({"n": 0})

        async def lose(receipts: list[Any]) -> None:
            raise OutcomeUnknown("t", receipts[0].checkpoints[0].id, 1.0)

        backend.after("commit_all", lose)
        with pytest.raises(OutcomeUnknown) as unknown:
            await thread.save({"n": 1})
        again = await thread.save({"n": 1}, id=unknown.value.checkpoint)
        assert (again.seq, (await thread.size()).checkpoints) == (2, 2)
        assert (await thread.save({"n": 2})).parent == again.id

    async def test_a_save_that_was_never_sent_is_repaired_by_the_same_save_again(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        thread = store.thread("t")
        await thread.save({"n": 0})

        async def refuse(commits: list[Commit]) -> None:
            raise OutcomeUnknown("t", commits[0].checkpoints[0].id, 1.0)

        backend.before("commit_all", refuse)
        with pytest.raises(OutcomeUnknown) as unknown:
            await thread.save({"n": 1})
        assert await thread.load() == {"n": 0}
        assert (await thread.save({"n": 1}, id=unknown.value.checkpoint)).seq == 2
        assert (await store.verify()).ok

    async def test_a_store_that_cannot_be_read_is_an_error_and_not_an_empty_thread(
        self, trial: Trial
    ) -> None:
        """Else a short outage would restart the thread over what is stored."""
        backend, store = await trial.interposed()
        await (await trial.store()).thread("t").save({"precious": True})
        for call in (store.thread("t").load, store.thread("t").exists, lambda: store.thread("t").save({})):
            backend.refuse("read")
            with pytest.raises(StoreUnavailable):
                await call()
        assert await store.thread("t").load() == {"precious": True}

    async def test_replacing_a_checkpoint_keeps_its_place(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        first = await thread.save({"n": 1, "text": "x" * 3000}, id="one", metadata={"old": 1})
        second = await thread.save({"n": 2, "text": "x" * 3000})
        assert await other.thread("t").load("one") == {"n": 1, "text": "x" * 3000}
        replaced = await thread.save({"n": 9}, id="one", replace=True, metadata={"new": 1})
        assert (replaced.seq, replaced.parent, replaced.metadata) == (first.seq, first.parent, {"new": 1})
        for handle in (store, other):
            assert await handle.thread("t").load("one") == {"n": 9}
            ids = [item.id async for item in handle.thread("t").history()]
            assert ids == [second.id, "one"]

    async def test_a_replaced_head_is_seen_by_everybody(self, trial: Trial) -> None:
        first, second = await trial.store(), await trial.store()
        await first.thread("t").save({"n": 1}, id="head")
        assert await second.thread("t").load() == {"n": 1}
        await first.thread("t").save({"n": 2}, id="head", replace=True)
        assert await second.thread("t").load() == await second.thread("t").load("head") == {"n": 2}
        await second.thread("t").save({"n": 3})
        assert await first.thread("t").load("head") == {"n": 2}

    async def test_a_replacement_expects_the_head_as_any_save_does(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        first = await thread.save({"n": 1}, id="one")
        second = await thread.save({"n": 2}, id="two")
        for id in ("one", "two", "three"):
            with pytest.raises(HeadMoved):
                await thread.save({"n": 9}, id=id, replace=True, expect="one")
        assert [item.id async for item in thread.history()] == ["two", "one"]
        assert (await thread.load("one"), await thread.load()) == ({"n": 1}, {"n": 2})
        replaced = await thread.save({"n": 9}, id="one", replace=True, expect="two")
        assert (replaced.seq, replaced.parent) == (first.seq, None)
        new = await thread.save({"n": 3}, id="three", replace=True, expect="two")
        assert new.parent == second.id
        await other.thread("t").save({"n": 4})

    @pytest.mark.parametrize("id", ["one", "two", "new"])
    async def test_the_retry_of_a_replacement_does_not_fail_its_own_expectation(
        self, trial: Trial, id: str
    ) -> None:
        store, other = await trial.store(), await trial.store()
        # Laid out in another way by a process that has no base.
        text = [f"{n}" * 300 for n in range(20)]
        for name in ("one", "two"):
            await store.thread("t").save({"name": name, "text": text}, id=name)
        fields: dict[str, Any] = {"state": {"n": 9, "text": text}, "id": id, "replace": True, "expect": "two"}
        stored = await store.thread("t").save(**fields)
        await other.thread("t").save({"n": 10})
        for handle in (store, other, await trial.store()):
            again = await handle.thread("t").save(**fields)
            assert (again.id, again.seq, again.parent) == (stored.id, stored.seq, stored.parent)
        with pytest.raises(HeadMoved):
            await store.thread("t").save(**{**fields, "state": {"n": 8}})
        assert await other.thread("t").load() == {"n": 10}
