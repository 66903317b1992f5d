"""What another process does between two calls of an operation: nothing is lost, and nothing reports
damage.

The second process acts at an exact point, by a hook between two calls of the backend.
"""

from __future__ import annotations

import itertools
from typing import Any

from outlive.errors import Corrupt, OutliveError
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.store.pruning import noise
from outlive.testing.trial import ROUNDS, Trial


def _messages(start: int, stop: int) -> dict[str, Any]:
    return {"messages": [noise(n, 1500) for n in range(start, stop)]}


async def _shared_line(store: AsyncStore, id: str = "t") -> None:
    """Three checkpoints, the last of which reads a small part of the first one's chunk."""
    await store.thread(id).save(_messages(0, 40), id="first")
    await store.thread(id).save(_messages(0, 20), id="second")
    await store.thread(id).save(_messages(0, 5), id="third")


async def _pruned_after(method: str, trial: Trial) -> AsyncStore:
    """Return a store with a line, whose first checkpoint is deleted after the next call of a method."""
    (backend, store), other = await trial.interposed(), await trial.store()
    await _shared_line(other)
    await other.thread("t").write("task", [("c", _messages(50, 60))], checkpoint="first")

    async def prune(result: Any) -> None:
        await other.thread("t").prune(keep_last=1)

    backend.after(method, prune)
    return store


PRUNING = ("inventory", "history", "writes", "fetch")  # calls of a prune after which another process acts


class RaceContract(Contract):
    async def test_a_save_in_the_middle_of_a_prune_is_kept(self, trial: Trial) -> None:
        (backend, store), other = await trial.interposed(), await trial.store()
        for point, erase in itertools.product(PRUNING, (False, True)):
            id = f"{point} {erase}"
            await _shared_line(other, id)

            async def save(result: Any, id: str = id) -> None:
                await other.thread(id).save(_messages(0, 40), id="late")

            backend.after(point, save)
            await store.thread(id).prune(keep_last=1, erase=erase)
            assert "late" in [item.id async for item in store.thread(id).history()], id
            assert await store.thread(id).load("late") == _messages(0, 40), id
            assert (await store.thread(id).verify()).problems == (), id

    async def test_a_checkpoint_replaced_in_the_middle_of_a_prune_keeps_its_new_content(
        self, trial: Trial
    ) -> None:
        (backend, store), other, looker = await trial.interposed(), await trial.store(), await trial.store()
        for point in PRUNING:
            await _shared_line(other, point)

            async def overwrite(result: Any, id: str = point) -> None:
                await other.thread(id).save(_messages(100, 120), id="third", replace=True)

            backend.after(point, overwrite)
            await store.thread(point).prune(keep_last=1, erase=True)
            assert await looker.thread(point).load("third") == _messages(100, 120), point
            assert (await store.thread(point).verify()).problems == (), point

    async def test_a_write_in_the_middle_of_a_prune_is_kept(self, trial: Trial) -> None:
        (backend, store), other = await trial.interposed(), await trial.store()
        for point in PRUNING:
            await _shared_line(other, point)

            async def write(result: Any, id: str = point) -> None:
                await other.thread(id).write("task", [("c", _messages(0, 40))], checkpoint="third")

            backend.after(point, write)
            await store.thread(point).prune(keep_last=1, erase=True)
            assert [pending.value for pending in await store.thread(point).writes("third")] == [
                _messages(0, 40)
            ], point
            assert (await store.thread(point).verify()).problems == (), point

    async def test_two_prunes_at_once_leave_what_both_keep(self, trial: Trial) -> None:
        (backend, store), other = await trial.interposed(), await trial.store()
        for point in PRUNING:
            await _shared_line(other, point)

            async def prune(result: Any, id: str = point) -> None:
                await other.thread(id).prune(keep_last=2, erase=True)

            backend.after(point, prune)
            await store.thread(point).prune(keep_last=1, erase=True)
            assert [item.id async for item in store.thread(point).history()] == ["third"], point
            assert await store.thread(point).load() == _messages(0, 5), point
            assert (await store.thread(point).verify()).problems == (), point

    async def test_a_prune_in_the_middle_of_a_save_does_not_hurt_it(self, trial: Trial) -> None:
        (backend, store), other = await trial.interposed(), await trial.store()
        for point in ("read", "commit_all"):
            await _shared_line(other, point)
            if point == "commit_all":
                await store.thread(point).load()

            async def prune(*args: Any, id: str = point) -> None:
                await other.thread(id).save("unrelated")
                await other.thread(id).prune(keep_last=1, erase=True)

            (backend.after if point == "read" else backend.before)(point, prune)
            await store.thread(point).save({**_messages(0, 5), "more": 1}, id="late")
            assert await other.thread(point).load("late") == {**_messages(0, 5), "more": 1}, point
            assert (await store.thread(point).verify()).problems == (), point

    # Reading while somebody prunes

    async def test_a_prune_in_the_middle_of_verify_is_no_damage(self, trial: Trial) -> None:
        (backend, store), other = await trial.interposed(), await trial.store()
        for point in ("audit", "history", "writes", "inventory"):
            await _shared_line(other, point)

            async def prune(result: Any, id: str = point) -> None:
                await other.thread(id).prune(keep_last=1, erase=True)

            backend.after(point, prune)
            assert (await store.thread(point).verify()).problems == (), point

    async def test_a_prune_in_the_middle_of_a_copy_is_no_damage(self, trial: Trial) -> None:
        for point in ("threads", "history", "writes"):
            backend, store = await trial.interposed(tenant=point)
            source, target = await trial.store(tenant=point), await trial.other_store(tenant=point)
            await _shared_line(source)

            async def prune(result: Any, source: AsyncStore = source) -> None:
                await source.thread("t").prune(keep_last=1, erase=True)

            backend.after(point, prune)
            await store.copy_to(target)
            assert await target.thread("t").load() == _messages(0, 5), point
            assert (await target.verify()).problems == (), point

    async def test_a_prune_in_the_middle_of_a_fork_is_no_damage(self, trial: Trial) -> None:
        """The checkpoint may have gone: then that is what the caller is told."""
        (backend, store), other = await trial.interposed(), await trial.store()
        for how in ("fork", "copy"):
            await _shared_line(other, how)

            async def prune(result: Any, id: str = how) -> None:
                await other.thread(id).prune(keep_last=1, erase=True)

            backend.after("read" if how == "fork" else "history", prune)
            thread = store.thread(how)
            try:
                await (
                    thread.fork("of a fork", checkpoint="first")
                    if how == "fork"
                    else thread.copy("of a copy")
                )
            except OutliveError as error:
                assert not isinstance(error, Corrupt), error
            assert (await store.verify()).problems == (), how

    async def test_a_prune_while_a_checkpoint_is_read_is_no_damage(self, trial: Trial) -> None:
        store = await _pruned_after("read", trial)
        checkpoint = await store.thread("t").checkpoint("first")
        assert checkpoint is not None and checkpoint.state == _messages(0, 40)
        assert [write.value for write in checkpoint.pending_writes] == [_messages(50, 60)]

    async def test_a_prune_while_writes_are_read_is_no_damage(self, trial: Trial) -> None:
        store = await _pruned_after("writes", trial)
        values = [write.value for write in await store.thread("t").writes("first")]
        assert values in ([], [_messages(50, 60)])

    # All at once, wherever it falls

    async def test_savers_and_a_pruner_at_once_lose_nothing(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]

        async def save(number: int) -> None:
            messages: list[str] = []
            for turn in range(12 * ROUNDS):
                messages = [*messages, noise(number * 1000 + turn, 700)][-8:]
                await (
                    stores[number]
                    .thread("t")
                    .save({"messages": messages, "turn": turn}, id=f"{number}-{turn}")
                )

        async def prune() -> None:
            for turn in range(8 * ROUNDS):
                await stores[2].thread("t").prune(keep_last=3, erase=turn % 2 == 0)

        assert await trial.together(lambda: save(0), lambda: save(1), prune) == [None] * 3
        thread = stores[2].thread("t")
        kept = [item.id async for item in thread.history()]
        assert kept[0] in {f"{number}-{12 * ROUNDS - 1}" for number in (0, 1)}
        for id in kept:
            number, turn = map(int, id.split("-"))
            expected = [noise(number * 1000 + n, 700) for n in range(turn + 1)][-8:]
            assert await thread.load(id) == {"messages": expected, "turn": turn}
        assert (await thread.verify()).problems == ()

    async def test_threads_saved_and_deleted_at_once_are_whole_or_gone(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(2)]

        async def save() -> None:
            for turn in range(15 * ROUNDS):
                await stores[0].thread("t").save({**_messages(0, 4), "turn": turn})

        async def delete() -> None:
            for _ in range(6 * ROUNDS):
                await stores[1].delete("t")

        assert await trial.together(save, delete) == [None, None]
        thread = stores[1].thread("t")
        listed = [item async for item in thread.history()]
        assert [item.seq for item in listed] == sorted([item.seq or 0 for item in listed], reverse=True)
        for item in listed:
            assert (await thread.load(item.id) or {})["messages"] == _messages(0, 4)["messages"]
        assert (await thread.verify()).problems == ()
