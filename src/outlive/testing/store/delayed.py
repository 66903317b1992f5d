"""Saves with durability="async": in order, told when they fail, and never half a thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from outlive.errors import (
    BadArgument,
    CheckpointExists,
    DelayedSaveFailed,
    SeveralFailed,
    StoreUnavailable,
    Unencodable,
)
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.store.pruning import noise
from outlive.testing.trial import Trial


class Pause:
    """Stops one save in the middle of its planning, when it has read its base, and reports that."""

    def __init__(self, store: AsyncStore) -> None:
        self._namer = store._engine.namer
        self._thread: int | None = None
        self._is_there = threading.Event()
        store._engine.namer = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namer, name)

    def name(self, data: bytes) -> bytes:
        if threading.get_ident() == self._thread:
            self._thread = None
            self._is_there.set()
            time.sleep(0.05)  # time enough for a waiting thread to finish
        return self._namer.name(data)

    def next_save(self) -> None:
        """Hold up the next save of this thread of execution."""
        self._thread = threading.get_ident()

    async def reached(self, trial: Trial) -> None:
        while not self._is_there.is_set():
            await trial.sleep(0.001)


class DelayedContract(Contract):
    async def test_a_delayed_save_has_no_place_until_it_is_stored(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        saved = await thread.save({"n": 1}, durability="async", step=3)
        assert (saved.seq, saved.created_at, saved.step) == (None, None, 3)
        assert saved.state_bytes > 0
        await thread.flush()
        checkpoint = await thread.checkpoint(saved.id)
        assert checkpoint is not None and (checkpoint.seq, checkpoint.state) == (1, {"n": 1})

    async def test_delayed_saves_are_stored_in_order(self, trial: Trial) -> None:
        store, other = await trial.store(durability="async"), await trial.store()
        thread, messages = store.thread("t"), []
        for n in range(20):
            messages.append(noise(n, 400))
            await thread.save({"messages": messages, "n": n}, id=f"{n}")
        await store.flush()
        line = [item async for item in other.thread("t").history()][::-1]
        assert [item.id for item in line] == [f"{n}" for n in range(20)]
        assert [item.parent for item in line] == [None, *(f"{n}" for n in range(19))]
        for n in (0, 7, 19):
            expected = {"messages": [noise(i, 400) for i in range(n + 1)], "n": n}
            assert await other.thread("t").load(f"{n}") == expected
        assert (await other.verify()).ok

    async def test_what_is_stored_is_what_the_caller_had(self, store: AsyncStore) -> None:
        thread, state = store.thread("t"), {"list": [1]}
        await thread.save(state, durability="async")
        state["list"].append(2)
        assert await thread.load() == {"list": [1]}

    async def test_the_next_read_sees_what_was_delayed(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        for n in range(3):
            await thread.save({"n": n}, durability="async")
            assert await thread.load() == {"n": n}
        await thread.save({"n": 3}, durability="async")
        assert (await thread.save({"n": 4})).seq == 5
        await thread.save({"n": 5}, durability="async")
        assert (await thread.size()).checkpoints == len([item async for item in thread.history()]) == 6

    async def test_whatever_comes_next_comes_after_what_was_delayed(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        saved = await thread.save({"n": 1}, durability="async")
        await thread.write("task", [("c", 1)])
        assert [write.value for write in await thread.writes(saved.id)] == [1]
        await thread.save({"n": 2}, durability="async")
        assert await (await thread.fork("fork")).load() == {"n": 2}
        await thread.save({"n": 3}, durability="async")
        assert len([item async for item in (await thread.copy("copy")).history()]) == 3
        await thread.save({"n": 4}, durability="async")
        assert (await thread.prune(keep_last=1)).checkpoints == 3
        await thread.save({"n": 5}, durability="async")
        assert await thread.delete()
        await store.flush()
        assert await thread.load() is None

    async def test_the_next_call_tells_of_a_failure(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        thread = store.thread("t")
        await thread.save({"n": 0})
        backend.refuse("commit_all")
        lost = await thread.save({"n": 1}, durability="async")
        with pytest.raises(DelayedSaveFailed) as failed:
            await thread.load()
        assert failed.value.checkpoints == [lost.id]
        assert isinstance(failed.value.__cause__, StoreUnavailable)
        assert await thread.load() == {"n": 0}  # told once
        await thread.save({"n": 2}, durability="async")
        await thread.flush()
        assert await thread.load() == {"n": 2}
        assert (await store.verify()).ok

    async def test_what_stands_behind_a_failure_is_lost_with_it(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        thread = store.thread("t")
        backend.refuse("commit_all", after=2)
        ids = []
        with pytest.raises(DelayedSaveFailed) as failed:
            for n in range(6):
                saved = await thread.save({"n": n, "text": noise(n, 3000)}, durability="async")
                ids.append(saved.id)
            await thread.flush()
        assert failed.value.checkpoints == ids[2:]
        assert [item.id async for item in thread.history()] == ids[1::-1]
        assert await thread.load() == {"n": 1, "text": noise(1, 3000)}
        assert (await thread.verify()).ok

    async def test_a_delayed_save_cannot_expect_a_head(self, store: AsyncStore) -> None:
        first = await store.thread("t").save(1)
        with pytest.raises(BadArgument):
            await store.thread("t").save(2, expect=first.id, durability="async")
        assert await store.thread("t").load() == 1

    async def test_a_state_that_cannot_be_stored_is_refused_at_once(self, store: AsyncStore) -> None:
        with pytest.raises(Unencodable):
            await store.thread("t").save({"x": object()}, durability="async")
        await store.flush()

    async def test_closing_stores_what_is_delayed(self, trial: Trial) -> None:
        store, other = await trial.store(durability="async"), await trial.store()
        for n in range(5):
            await store.thread("t").save({"n": n})
        if trial.opener.survives:
            await store.close()
        else:
            await store.flush()
        assert await other.thread("t").load() == {"n": 4}

    @pytest.mark.parametrize("failing", [1, 2])
    async def test_closing_stores_what_is_delayed_in_a_thread_beside_one_that_fails(
        self, trial: Trial, failing: int
    ) -> None:
        store, other = await trial.store(), await trial.store()
        for n in range(failing):
            await store.thread(f"bad {n}").save({"n": 1}, id="one")
            await store.thread(f"bad {n}").save({"n": 2}, id="one", durability="async")
        for n in range(30):
            await store.thread("good").save({"n": n}, durability="async")
        with pytest.raises(DelayedSaveFailed if failing == 1 else SeveralFailed) as failed:
            await (store.close() if trial.opener.survives else store.flush())
        assert await other.thread("good").load() == {"n": 29}
        if isinstance(failed.value, SeveralFailed):
            assert set(failed.value.threads) == {"bad 0", "bad 1"}
            assert {type(error) for error in failed.value.exceptions} == {DelayedSaveFailed}

    async def test_closing_stores_what_is_delayed_beside_a_run_that_cannot_end(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        await store.run("busy").start()
        close = store._heart.close

        async def refuse() -> None:
            await close()
            raise StoreUnavailable("unreachable")

        store._heart.close = refuse  # type: ignore[method-assign]
        for n in range(30):
            await store.thread("good").save({"n": n}, durability="async")
        if trial.opener.survives:
            with pytest.raises(StoreUnavailable):
                await store.close()
            assert await other.thread("good").load() == {"n": 29}

    @pytest.mark.parametrize("end", ["fail", "cancel", "release", "close"])
    async def test_a_run_whose_delayed_saves_were_lost_ends_all_the_same(
        self, trial: Trial, end: str
    ) -> None:
        store, other = await trial.store(), await trial.store()
        await store.thread("t").save({"n": 0}, id="one")
        run = await store.run("t", run_id="r", durability="async").start()
        await run.save({"n": 1}, durability="exit")
        # Refused: the id is taken.
        await store.thread("t").save({"n": 2}, id="one", durability="async")
        if end == "close" and not trial.opener.survives:
            return
        ends = {
            "fail": lambda: run.fail("why"),
            "cancel": run.cancel,
            "release": run.release,
            "close": store.close,
        }
        with pytest.raises(DelayedSaveFailed):
            await ends[end]()
        stored = await other.find_run("r")
        status = {"fail": "failed", "cancel": "cancelled"}.get(end, "released")
        assert stored is not None and stored.status == status
        assert await other.thread("t").load() == {"n": 1}  # what the run held back

    async def test_a_run_whose_delayed_saves_were_lost_is_not_completed(self, store: AsyncStore) -> None:
        await store.thread("t").save({"n": 0}, id="one")
        run = await store.run("t", run_id="r", durability="async").start()
        await run.save({"n": 1}, id="one")
        with pytest.raises(DelayedSaveFailed):
            await run.complete("done")
        assert run.status == "running"
        await run.save({"n": 1})
        await run.complete("done")  # told once
        assert (await store.thread("t").load(), run.status) == ({"n": 1}, "completed")

    async def test_a_delayed_retry_of_the_same_content_is_safe(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({"n": 1}, id="one")
        await thread.save({"n": 1}, id="one", durability="async")
        await thread.save({"n": 2}, id="two", durability="async")
        await thread.flush()
        assert [item.id async for item in thread.history()] == ["two", "one"]

    async def test_a_delayed_save_under_a_taken_id_is_told(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({"n": 1}, id="one")
        await thread.save({"n": 2}, id="one", durability="async")
        with pytest.raises(DelayedSaveFailed) as failed:
            await thread.flush()
        assert isinstance(failed.value.__cause__, CheckpointExists)
        assert await thread.load() == {"n": 1}

    async def test_delayed_saves_continue_after_the_prune_of_another_process(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread, messages = store.thread("t"), [noise(n, 700) for n in range(20)]
        for n in range(4):
            messages = [*messages[1:], noise(40 + n, 700)]
            await thread.save({"messages": messages}, durability="async")
        await thread.flush()
        await other.thread("t").prune(keep_last=1, erase=True)
        for n in range(3):
            messages = [*messages[1:], noise(80 + n, 700)]
            await thread.save({"messages": messages}, durability="async")
        await store.flush()
        assert await other.thread("t").load() == {"messages": messages}
        assert (await other.verify()).problems == ()

    async def test_a_prune_between_a_delayed_save_and_its_commit_does_not_hurt_it(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        other, messages = await trial.store(), [noise(n, 700) for n in range(20)]
        await store.thread("t").save({"messages": messages})
        await store.thread("t").save({"messages": messages[:10]})

        async def prune(*args: Any) -> None:
            await other.thread("t").prune(keep_last=1, erase=True)

        backend.before("commit_all", prune)
        for n in range(3):
            await store.thread("t").save({"messages": messages[:10], "n": n}, durability="async")
        await store.flush()
        assert await other.thread("t").load() == {"messages": messages[:10], "n": 2}
        assert (await other.thread("t").size()).checkpoints >= 4
        assert (await other.verify()).problems == ()

    async def test_a_save_that_is_planned_while_another_fails_is_whole_or_refused(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        thread, other, pause = store.thread("t"), await trial.store(), Pause(store)
        messages = [noise(n, 700) for n in range(30)]
        await thread.save({"messages": messages[:10]})

        async def refuse(*args: Any) -> None:
            await pause.reached(trial)
            raise StoreUnavailable("unreachable")

        backend.before("commit_all", refuse)
        with pytest.raises(DelayedSaveFailed):
            await thread.save({"messages": messages[:20]}, durability="async")
            pause.next_save()
            await thread.save({"messages": messages}, durability="async")
            await thread.flush()
        await store.flush()
        for item in [item async for item in other.thread("t").history()]:
            assert (await other.thread("t").load(item.id) or {})["messages"] in (messages[:10], messages)
        assert (await other.verify()).problems == ()

    async def test_a_save_that_is_planned_while_another_finds_its_base_gone_is_whole(
        self, trial: Trial
    ) -> None:
        backend, store = await trial.interposed()
        thread, other, pause = store.thread("t"), await trial.store(), Pause(store)
        messages = [noise(n, 700) for n in range(30)]
        await thread.save({"messages": messages[:20]}, durability="async")
        await thread.save({"messages": messages[:10]}, durability="async")
        await thread.flush()
        await other.thread("t").prune(keep_last=1, erase=True)

        async def wait(*args: Any) -> None:
            await pause.reached(trial)

        backend.before("commit_all", wait)
        await thread.save({"messages": messages[:15]}, durability="async")
        pause.next_save()
        await thread.save({"messages": messages}, durability="async")
        await thread.flush()
        assert (await other.verify()).problems == ()
        assert await other.thread("t").load() == {"messages": messages}

    async def test_namespaces_share_one_queue(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        await root.save({"n": 1}, durability="async")
        await sub.save({"n": 2}, durability="async")
        await root.save({"n": 3}, durability="async")
        await store.flush()
        places = [(item.namespace, item.seq) async for item in root.history(all_namespaces=True)]
        assert places == [("", 3), ("sub", 2), ("", 1)]

    async def test_delayed_savers_at_once_lose_nothing(self, trial: Trial) -> None:
        store = await trial.store(durability="async")

        async def save(number: int) -> None:
            for turn in range(10):
                state = {"of": number, "list": [noise(n, 300) for n in range(10 + turn)]}
                await store.thread("t").save(state, id=f"{number}-{turn}")

        assert await trial.together(*(lambda n=n: save(n) for n in range(4))) == [None] * 4
        await store.flush()
        other = (await trial.store()).thread("t")
        line = [item.id async for item in other.history()][::-1]
        assert len(line) == 40
        for number in range(4):
            assert [id for id in line if id[0] == f"{number}"] == [f"{number}-{turn}" for turn in range(10)]
        assert (await other.load("2-9") or {})["of"] == 2
        assert (await other.verify()).problems == ()
