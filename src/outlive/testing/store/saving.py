"""Saving and loading: what comes back, which one is newest, and what a retry does."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import uuid
from typing import Any

import pytest

from outlive.errors import BadArgument, StoreClosed, Unencodable
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.records.odd_ids import IDS
from outlive.testing.trial import Trial
from outlive.values import SOURCES, Interrupt

UTC = dt.UTC

STATES: dict[str, Any] = {
    "nothing": None,
    "a number": 2**80,
    "text": "text",
    "lone surrogates": "\ud800",
    "bytes": b"\0\xff",
    "an empty dict": {},
    "keys that are not text": {1: "a", (2, 3): "b", None: "c", "1": "d"},
    "tuples and sets": {"tuple": (1, (2,)), "set": {1, 2}, "frozen": frozenset(("a",))},
    "moments": [dt.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), dt.date(2026, 1, 2), dt.timedelta(seconds=1.5)],
    "numbers": [1, 1.0, True, decimal.Decimal("1.10"), 1e300, -0.0, 2**63],
    "an id": uuid.UUID(int=7),
    "a large text": "long " * 40_000,
    "many elements": {"list": list(range(5_000)), "dict": {f"key {n}": n for n in range(500)}},
    "messages": {"messages": [{"role": "user", "content": f"message {n} " * 20} for n in range(200)]},
}


class SavingContract(Contract):
    async def test_a_thread_that_nobody_saved_is_empty(self, store: AsyncStore) -> None:
        thread = store.thread("absent")
        assert await thread.load() is await thread.load("id") is await thread.checkpoint() is None
        assert await thread.load(at=dt.datetime.now(UTC)) is None
        assert (await thread.exists(), await thread.exists("id"), await thread.delete()) == (
            False,
            False,
            False,
        )
        assert (
            [item async for item in thread.history()] == await thread.lineage() == await thread.tips() == []
        )
        assert (await thread.info(), await thread.metadata(), await thread.interrupts()) == (None, {}, ())
        assert (await thread.size()).checkpoints == 0
        assert [item async for item in store.threads()] == []
        assert not await store.delete("absent")

    async def test_a_state_comes_back_equal_and_of_the_same_type(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        for what, state in STATES.items():
            thread = store.thread(what)
            await thread.save(state)
            await thread.save({"something": "else"})
            await thread.save(state)  # against another state, and against itself
            await thread.save(state)
            for loaded in (await thread.load(), await other.thread(what).load()):
                assert loaded == state
                assert repr(loaded) == repr(state)  # 1, 1.0 and True are equal and not the same

    async def test_the_newest_state_is_loaded_and_every_older_one_stays(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        saved = [await thread.save({"turn": turn}) for turn in range(5)]
        assert await thread.load() == {"turn": 4}
        for turn, checkpoint in enumerate(saved):
            assert await thread.load(checkpoint.id) == {"turn": turn}
            assert await thread.exists(checkpoint.id)

    async def test_the_newest_is_the_last_saved_whatever_its_step(self, store: AsyncStore) -> None:
        """A second run that is shorter than the first one is not hidden by it."""
        thread = store.thread("t")
        for step in (0, 1, 2, 3):
            await thread.save({"run": 1, "step": step}, step=step)
        await thread.save({"run": 2, "step": 0}, step=0)
        assert await thread.load() == {"run": 2, "step": 0}

    async def test_a_step_has_62_bits(self, trial: Trial) -> None:
        store = await trial.store()
        most = (1 << 62) - 1
        for step in (most, -most, 1 << 53, (1 << 53) + 1):
            saved = await store.thread("t").save({"step": step}, step=step)
            await store.thread("t").save({"step": step}, id=saved.id, step=step, replace=True)
            checkpoint = await (await trial.store()).thread("t").checkpoint(saved.id)
            assert saved.step == step and checkpoint is not None and checkpoint.step == step

    async def test_a_state_is_stored_as_it_was_when_it_was_saved(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        state: dict[str, Any] = {"list": [1], "deep": {"list": ["x" * 3000, "y" * 3000]}}
        first = await thread.save(state)
        state["list"].append(2)
        state["deep"]["list"][0] = "changed"
        assert await thread.load() == {"list": [1], "deep": {"list": ["x" * 3000, "y" * 3000]}}
        await thread.save(state)
        assert (await thread.load(first.id) or {})["list"] == [1]
        assert await thread.load() == state

    async def test_a_loaded_state_is_the_callers_own(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({"list": [1]})
        (await thread.load() or {})["list"].append(2)
        checkpoint = await thread.checkpoint()
        assert checkpoint is not None
        checkpoint.state["list"].append(3)
        assert await thread.load() == {"list": [1]}

    async def test_a_state_is_loaded_as_of_a_moment(self, trial: Trial) -> None:
        store = await trial.store()
        thread, saved = store.thread("t"), []
        for turn in range(3):
            saved.append(await thread.save({"turn": turn}))
            await trial.sleep(0.002)
        moments = [checkpoint.created_at for checkpoint in saved]
        for turn, moment in enumerate(moments):
            assert moment is not None and moment.tzinfo is not None
            assert await thread.load(at=moment) == {"turn": turn}
            before = await thread.load(at=moment - dt.timedelta(microseconds=1))
            assert before == ({"turn": turn - 1} if turn else None)
            elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=-9)))
            assert await thread.load(at=elsewhere) == {"turn": turn}
        loaded = await thread.checkpoint(at=moments[1])
        assert loaded is not None and loaded.id == saved[1].id

    async def test_a_checkpoint_tells_all_that_was_said_about_it(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        parent = await thread.save({})
        fields: dict[str, Any] = {
            "step": 7,
            "source": "interrupt",
            "metadata": {"last_node": "plan", "path": ("a", "b"), "at": dt.datetime(2026, 1, 1, tzinfo=UTC)},
            "next_nodes": ("act", "reflect"),
            "completed_tasks": ("t1", "t2"),
            "interrupts": (Interrupt("i1", "ask", {"question": "sure?"}),),
            "run": "run-1",
        }
        saved = await thread.save({"a": 1}, id="own", **fields)
        checkpoint = await other.thread("t").checkpoint("own")
        assert checkpoint is not None
        (listed, _) = [item async for item in other.thread("t").history()]
        for info in (saved, checkpoint, listed):
            assert {name: getattr(info, name) for name in fields} == fields
            assert (info.thread, info.id, info.namespace, info.parent, info.seq) == (
                "t",
                "own",
                "",
                parent.id,
                2,
            )
            assert (info.epoch, info.state_bytes, info.created_at) == (0, saved.state_bytes, saved.created_at)
        assert (checkpoint.state, checkpoint.pending_writes) == ({"a": 1}, ())
        assert saved.state_bytes > 0

    async def test_a_checkpoint_cannot_be_changed(self, store: AsyncStore) -> None:
        saved: Any = await store.thread("t").save({})
        with pytest.raises(dataclasses.FrozenInstanceError):
            saved.step = 3

    async def test_every_source_is_kept(self, store: AsyncStore) -> None:
        for source in sorted(SOURCES):
            await store.thread("t").save({}, source=source)
            checkpoint = await store.thread("t").checkpoint()
            assert checkpoint is not None and checkpoint.source == source

    async def test_ids_that_outlive_gives_sort_as_they_were_made(self, store: AsyncStore) -> None:
        ids = [(await store.thread("t").save(turn)).id for turn in range(5)]
        assert ids == sorted(set(ids))

    # Namespaces

    async def test_the_newest_is_that_of_the_namespace(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub|1")
        first = await root.save("root")
        second = await sub.save("sub")
        assert (await root.load(), await sub.load()) == ("root", "sub")
        assert (first.parent, second.parent, second.namespace) == (None, None, "sub|1")
        assert (
            await root.load(second.id) is await sub.load(first.id) is await root.checkpoint(second.id) is None
        )
        assert not await root.exists(second.id)
        assert (await sub.save("sub 2")).parent == second.id
        assert await store.thread("t", namespace="sub").load() is None

    async def test_one_id_may_stand_in_two_namespaces(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        await root.save("root", id="same")
        await sub.save("sub", id="same")
        assert (await root.load("same"), await sub.load("same")) == ("root", "sub")

    async def test_any_text_is_an_id_of_its_own(self, trial: Trial) -> None:
        """A thread `lock:x` is no lock, `x.writes` no ledger, and `../x` no way out."""
        store, other = await trial.store(), await trial.store()
        for number, id in enumerate(IDS):
            await store.thread(id).save({"number": number})
        for number, id in enumerate(IDS):
            assert await other.thread(id).load() == {"number": number}, repr(id)
        assert sorted([info.id async for info in other.threads()]) == sorted(IDS)
        await store.thread("ids", namespace="\0").save(1, id="\ud800", run="\\", parent="漢" * 1000)
        checkpoint = await other.thread("ids", namespace="\0").checkpoint("\ud800")
        assert checkpoint is not None and (checkpoint.run, checkpoint.parent) == ("\\", "漢" * 1000)

    async def test_a_state_that_cannot_be_stored_is_refused_by_its_path(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({"ok": 1})
        with pytest.raises(Unencodable) as refused:
            await thread.save({"plan": {"steps": [1, {"tool": object()}]}})
        assert refused.value.path == "state.plan.steps[1].tool"
        with pytest.raises(Unencodable, match="metadata"):
            await thread.save({}, metadata={"f": print})
        assert (await thread.size()).checkpoints == 1
        assert (await thread.save({"ok": 2})).seq == 2

    # Deleting and closing

    async def test_a_deleted_thread_is_gone_in_all_namespaces(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread, sub = store.thread("t"), store.thread("t", namespace="sub")
        await thread.save(1)
        await sub.save(2)
        await thread.set_metadata({"title": "x"})
        await other.thread("t").load()
        assert await thread.delete()
        for handle in (store, other):
            assert await handle.thread("t").load() is await handle.thread("t", namespace="sub").load() is None
            assert await handle.thread("t").metadata() == {}
            assert [info.id async for info in handle.threads()] == []
        assert not await thread.delete()

    async def test_a_thread_made_again_continues_the_count(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        await store.thread("t").save({"old": "x" * 5000}, id="same")
        await other.thread("t").load()
        await store.delete("t")
        assert (await other.thread("t").save({"old": "x" * 5000}, id="same")).seq == 2
        assert await store.thread("t").load() == {"old": "x" * 5000}
        assert (await store.verify()).ok

    async def test_what_was_saved_survives_the_store(self, trial: Trial) -> None:
        store = await trial.store()
        await store.thread("t").save({"n": 1})
        await store.thread("t").set_metadata({"title": "x"})
        store = await trial.reopened(store)
        assert await store.thread("t").load() == {"n": 1}
        assert await store.thread("t").metadata() == {"title": "x"}
        assert (await store.thread("t").save({"n": 2})).seq == 2

    async def test_a_closed_store_refuses_every_call(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save(1)
        await store.close()
        await store.close()
        for call in (
            thread.load,
            thread.exists,
            lambda: thread.save(2),
            thread.delete,
            store.verify,
            thread.size,
        ):
            with pytest.raises(StoreClosed):
                await call()

    async def test_a_moment_and_an_id_exclude_each_other(self, store: AsyncStore) -> None:
        with pytest.raises(BadArgument):
            await store.thread("t").load("id", at=dt.datetime.now(UTC))
