"""Forks, copies, and copies into another store: complete, and sharing only what they should."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.errors import BadArgument, CheckpointMissing, StoreUnavailable, ThreadNotEmpty
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.trial import Trial
from outlive.values import Interrupt


def _state(n: int) -> dict[str, Any]:
    return {"messages": [f"message {i} " * 30 for i in range(20 + n)], "n": n}


async def _contents(store: AsyncStore, id: str, namespace: str = "") -> list[tuple[Any, ...]]:
    """Return all that a user can see of a thread's checkpoints."""
    thread, contents = store.thread(id, namespace=namespace), []
    for listed in [item async for item in thread.history()]:
        item = await thread.checkpoint(listed.id)
        assert item is not None
        place = (
            item.id,
            item.parent,
            item.seq,
            item.epoch,
            item.step,
            item.source,
            item.run,
            item.created_at,
        )
        contents.append((*place, item.metadata, item.interrupts, item.pending_writes, item.state))
    return contents


class CopyContract(Contract):
    async def test_a_fork_starts_with_one_checkpoint_and_knows_where_it_is_from(
        self, store: AsyncStore
    ) -> None:
        thread = store.thread("t")
        saved = [await thread.save(_state(n), metadata={"n": n}) for n in range(4)]
        await thread.write("task", [("c", 1)], checkpoint=saved[1].id)
        branch = await thread.fork("branch", checkpoint=saved[1].id)
        assert branch.id == "branch"
        (only,) = [item async for item in branch.history()]
        assert (only.id, only.parent, only.source) == (saved[1].id, saved[0].id, "fork")
        assert (only.metadata, await branch.load()) == ({"n": 1}, _state(1))
        assert [write.value for write in await branch.writes()] == [1]
        info = await branch.info()
        assert info is not None and info.forked_from == ("t", saved[1].id)
        assert len(await thread.lineage()) == 4

    async def test_a_fork_without_a_place_starts_at_the_head(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save(1)
        await thread.save(2)
        assert await (await thread.fork("branch")).load() == 2

    async def test_a_fork_and_its_source_go_their_own_ways(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        for n in range(4):
            await thread.save(_state(n))
        branch = await thread.fork("branch")
        await branch.save({**_state(3), "of": "branch"})
        await thread.save({**_state(3), "of": "source"})
        assert (await branch.load() or {})["of"] == "branch"
        await thread.delete()
        for handle in (store, other):
            assert [item.state["n"] for item in [await handle.thread("branch").checkpoint()] if item] == [3]
        assert len(await _contents(other, "branch")) == 2
        assert (await store.verify()).ok

    async def test_a_fork_takes_only_the_chunks_that_its_state_needs(self, trial: Trial) -> None:
        store = await trial.store()
        thread = store.thread("t")
        first = await thread.save({"text": [f"first {n} " * 100 for n in range(10)]})
        await thread.save({"text": [f"second {n} " * 100 for n in range(10)]})
        await thread.fork("branch", checkpoint=first.id)
        source, target = await trial.probe("t"), await trial.probe("branch")
        record = (await source.backend.read(source.thread, "", first.id)).record
        assert record is not None and set(await target.data()) == set(record.chunks)

    async def test_a_fork_of_a_namespace_is_returned_as_a_handle_that_loads_it(
        self, store: AsyncStore
    ) -> None:
        sub = store.thread("t", namespace="sub")
        await sub.save({"n": 1})
        branch = await sub.fork("branch")
        assert await branch.load() == {"n": 1}

    async def test_a_copy_has_the_whole_history(self, store: AsyncStore) -> None:
        thread, sub = store.thread("t"), store.thread("t", namespace="sub")
        for n in range(4):
            await thread.save(
                _state(n), step=n, run="r", metadata={"n": (n,)}, interrupts=[Interrupt("i", "x", n)]
            )
        await thread.save(_state(9), parent=(await thread.lineage())[2].id)
        await sub.save({"sub": 1})
        await thread.write("task", [("c", "x" * 3000)])
        await thread.write("task", [("c", "early")], checkpoint="not saved yet")
        await thread.set_metadata({"title": "x"})
        copy = await thread.copy("copy")
        for namespace in ("", "sub"):
            assert await _contents(store, "copy", namespace) == await _contents(store, "t", namespace)
        assert [write.value for write in await copy.writes("not saved yet")] == ["early"]
        assert await copy.metadata() == {"title": "x"}
        await thread.delete()
        assert await copy.load() == _state(9)
        assert (await copy.save(1)).seq == 7
        assert (await store.verify()).ok

    async def test_nothing_is_copied_over_a_thread_that_has_checkpoints(self, store: AsyncStore) -> None:
        thread, taken = store.thread("t"), store.thread("taken")
        await thread.save(_state(1))
        await taken.save({"mine": 1})
        await taken.set_metadata({"title": "mine"})
        before, size = await _contents(store, "taken"), await taken.size()
        for attempt in (thread.fork, thread.copy):
            for id in ("taken", "t"):
                with pytest.raises(ThreadNotEmpty):
                    await attempt(id)
        assert await _contents(store, "taken") == before
        assert (await taken.metadata(), await taken.size()) == ({"title": "mine"}, size)
        assert (await store.verify()).ok

    async def test_nothing_is_copied_over_a_thread_that_has_metadata(self, store: AsyncStore) -> None:
        thread, taken = store.thread("t"), store.thread("taken")
        await thread.save(_state(1))
        await thread.set_metadata({"title": "theirs"})
        await taken.set_metadata({"title": "mine"})
        exported = await thread.export()
        for attempt in (
            thread.fork("taken"),
            thread.copy("taken"),
            store.import_thread(exported, id="taken"),
        ):
            with pytest.raises(ThreadNotEmpty, match="metadata"):
                await attempt
        assert (await taken.metadata(), await taken.load()) == ({"title": "mine"}, None)
        await taken.set_metadata({"title": None})
        assert await (await thread.copy("taken")).metadata() == {"title": "theirs"}
        assert (await store.verify()).ok

    async def test_a_copy_into_a_deleted_thread_uses_no_place_again(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        for n in range(3):
            await thread.save(_state(n), id=f"{n}")
        exported = await thread.export()
        for kind in ("fork", "copy", "import"):
            target, used = store.thread(kind), 0
            for _ in range(2):
                for n in range(2):
                    used = (await target.save({"n": n})).seq or 0
                await target.delete()
                if kind == "fork":
                    await thread.fork(kind, checkpoint="1")
                elif kind == "copy":
                    await thread.copy(kind)
                else:
                    await store.import_thread(exported, id=kind)
                line = [item async for item in target.history()]
                assert [item.id for item in line] == (["1"] if kind == "fork" else ["2", "1", "0"])
                assert min(item.seq or 0 for item in line) > used, kind
                assert await target.load(line[-1].id) == await thread.load(line[-1].id)
                used = line[0].seq or 0
                assert (await target.save("next")).seq == used + 1
                await target.delete()
        assert (await store.verify()).ok

    async def test_a_copy_has_no_pending_writes_but_its_own(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save(_state(1), id="one")
        await thread.write("task", [("c", "own")], checkpoint="one")
        exported = await thread.export()
        for kind in ("fork", "copy", "import"):
            target = store.thread(kind)
            await target.write("task", [("c", "stray"), ("d", "stray")], checkpoint="one")
            await target.write("other", [("c", "x" * 3000)], checkpoint="one")
            if kind == "import":
                await store.import_thread(exported, id=kind)
            else:
                await (thread.fork(kind) if kind == "fork" else thread.copy(kind))
            assert [(write.task, write.value) for write in await target.writes("one")] == [("task", "own")]
        assert (await store.verify()).ok

    async def test_what_is_not_there_cannot_be_copied(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        with pytest.raises(CheckpointMissing):
            await thread.copy("copy")
        with pytest.raises(CheckpointMissing):
            await thread.fork("branch")
        await thread.save(1)
        with pytest.raises(CheckpointMissing):
            await thread.fork("branch", checkpoint="never there")
        assert [info.id async for info in store.threads()] == ["t"]

    async def test_a_copy_that_fails_half_way_leaves_no_thread(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        await store.thread("t").save(_state(1))
        backend.refuse("commit_all")
        with pytest.raises(StoreUnavailable):
            await store.thread("t").fork("branch")
        assert [info.id async for info in store.threads()] == ["t"]
        assert await store.thread("branch").load() is None
        assert await (await store.thread("t").fork("branch")).load() == _state(1)
        assert (await store.verify()).ok

    async def test_of_forks_into_one_thread_at_once_one_succeeds(self, trial: Trial) -> None:
        store = await trial.store()
        for id in ("a", "b", "c", "d"):
            await store.thread(id).save({"of": id, "list": list(range(500))})
        results = await trial.together(
            *(lambda source=source: store.thread(source).fork("target") for source in "abcd")
        )
        assert sum(isinstance(result, ThreadNotEmpty) for result in results) == 3
        winner = "abcd"[[isinstance(result, Exception) for result in results].index(False)]
        assert (await store.thread("target").load() or {})["of"] == winner
        assert (await store.verify()).ok

    # Another store

    async def test_a_store_is_copied_into_another_with_another_naming_key(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.other_store()
        for id in ("a", "b"):
            for n in range(4):
                await store.thread(id).save(_state(n), step=n, metadata={"n": (n,)}, run=id)
            await store.thread(id, namespace="sub").save(_state(9))
            await store.thread(id).write("task", [("c", "x" * 3000)])
            await store.thread(id).set_metadata({"title": id})
        done: list[int] = []
        assert await store.copy_to(other, progress=lambda count, total: done.append(count)) == 2
        assert done == [1, 2]
        for id in ("a", "b"):
            for namespace in ("", "sub"):
                assert await _contents(other, id, namespace) == await _contents(store, id, namespace)
            assert await other.thread(id).metadata() == {"title": id}
        assert (await other.verify()).ok
        for id in ("a", "b"):
            assert (await other.thread(id).size()).state_bytes == (await store.thread(id).size()).state_bytes

    async def test_a_store_takes_a_copy_of_another(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.other_store()
        for n in range(4):
            await other.thread("t").save(_state(n))
        await other.copy_to(store)
        assert await _contents(store, "t") == await _contents(other, "t")
        saved = await store.thread("t").save(_state(5))
        assert saved.seq == 5
        assert saved.new_bytes < saved.state_bytes / 4  # the copy serves as a base
        assert (await store.verify()).ok

    async def test_a_copy_can_be_repeated_and_brings_what_is_new(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.other_store()
        await store.thread("t").save(_state(1))
        for _ in range(2):
            await store.copy_to(other)
            await store.copy_to(other)
            assert await _contents(other, "t") == await _contents(store, "t")
            await store.thread("t").save(_state(2))
        assert len(await _contents(other, "t")) == 2

    async def test_a_repeated_copy_brings_what_was_replaced_and_keeps_what_is_newer(
        self, trial: Trial
    ) -> None:
        store, other = await trial.store(), await trial.other_store()
        for id in ("here", "there"):
            await store.thread(id).save({"n": 1}, id="x")
            await store.thread(id).set_metadata({"title": "old"})
        await store.copy_to(other)
        for owner, id in ((store, "here"), (other, "there")):
            await owner.thread(id).save({"n": 2}, id="x", replace=True)
            await owner.thread(id).set_metadata({"title": "new"})
        await store.copy_to(other)
        for id in ("here", "there"):
            assert await other.thread(id).load("x") == {"n": 2}
            assert await other.thread(id).metadata() == {"title": "new"}
        assert (await other.verify()).ok

    async def test_a_copy_does_not_take_away_what_only_the_other_has(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.other_store()
        await other.thread("t").save({"of": "the other"}, id="own")
        await other.thread("only there").save(1)
        await store.thread("t").save({"of": "this one"}, id="new")
        await store.copy_to(other)
        assert {item.id async for item in other.thread("t").history()} == {"own", "new"}
        assert await other.thread("t").load("own") == {"of": "the other"}
        assert await other.thread("only there").load() == 1

    async def test_copies_of_threads_that_went_apart_agree_on_the_head(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.other_store()
        base = await store.thread("t").save({"n": 0})
        await store.copy_to(other)
        here = await store.thread("t").save({"n": "here"})
        there = await other.thread("t").save({"n": "there"})
        await store.copy_to(other)
        await other.copy_to(store)
        heads = [[head.id for head in await owner.thread("t").tips()] for owner in (store, other)]
        assert heads[0] == heads[1] == sorted([here.id, there.id], reverse=True)
        assert await store.thread("t").load() == await other.thread("t").load()
        assert here.parent == there.parent == base.id

    async def test_a_store_is_copied_while_others_save(self, trial: Trial) -> None:
        store, saver, other = await trial.store(), await trial.store(), await trial.other_store()
        for n in range(3):
            await saver.thread("t").save(_state(n))

        async def save() -> None:
            for n in range(3, 12):
                await saver.thread("t").save(_state(n))

        async def backup() -> None:
            for _ in range(3):
                await store.copy_to(other)

        assert await trial.together(save, backup) == [None, None]
        copied = await _contents(other, "t")
        assert len(copied) >= 3
        whole = await _contents(store, "t")
        assert copied == whole[len(whole) - len(copied) :]
        assert (await other.verify()).ok

    async def test_a_store_is_not_copied_into_itself_or_another_tenant(self, trial: Trial) -> None:
        store = await trial.store()
        await store.thread("t").save(1)
        with pytest.raises(BadArgument):
            await store.copy_to(store)
        other = await trial.other_store()
        elsewhere = await trial.store(backend=other._engine.backend, tenant="tenant")
        with pytest.raises(BadArgument):
            await store.copy_to(elsewhere)
