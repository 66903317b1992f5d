"""Deleting checkpoints: what stays readable, that space is freed, and that erased means erased."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from outlive.errors import BadArgument
from outlive.format.chunk import decode
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.thread_records import Probe
from outlive.testing.trial import Trial
from outlive.threads.thread import AsyncThread
from outlive.values import Interrupt

SECRET = "the secret of nobody"  # noqa: S105


@functools.lru_cache(maxsize=4096)
def noise(seed: int, size: int) -> str:
    """Return text that does not compress to nothing."""
    return random.Random(seed).randbytes(size // 2).hex()


async def _ids(thread: AsyncThread, **options: Any) -> list[str]:
    return [item.id async for item in thread.history(**options)]


async def _line(thread: AsyncThread, count: int) -> None:
    for n in range(count):
        await thread.save({"n": n, "text": noise(n, 20_000)}, id=f"{n}")


async def _bytes(probe: Probe) -> bytes:
    """Return every byte that a thread holds, uncompressed."""
    dump = await probe.dump()
    bodies = [record.body for record in (*dump["records"], *dump["writes"])]
    metadata = dump["row"].metadata or b"" if dump["row"] else b""
    return b"|".join([*map(decode, dump["data"].values()), *bodies, metadata])


class PruningContract(Contract):
    async def test_a_line_of_five_pruned_to_two_leaves_two_and_frees_the_space(
        self, store: AsyncStore
    ) -> None:
        thread = store.thread("t")
        await _line(thread, 5)
        before = await thread.size()
        pruned = await thread.prune(keep_last=2)
        after = await thread.size()
        assert await _ids(thread) == ["4", "3"]
        assert (pruned.checkpoints, after.checkpoints) == (3, 2)
        assert after.stored_bytes < before.stored_bytes * 0.45
        assert 0 < pruned.freed_bytes <= before.stored_bytes - after.stored_bytes
        assert [await thread.load(id) for id in "34"] == [{"n": n, "text": noise(n, 20_000)} for n in (3, 4)]
        assert await thread.load("2") is None

    async def test_what_is_kept_is_readable_however_much_it_shared(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread, states = store.thread("t"), {}
        messages = [noise(n, 600) for n in range(10)]
        for n in range(25):
            messages = [*messages[n % 3 :], noise(100 + n, 600)]
            states[f"{n}"] = {"messages": messages, "n": n}
            await thread.save(states[f"{n}"], id=f"{n}")
        for keep in (20, 9, 1):
            await thread.prune(keep_last=keep)
            kept = await _ids(thread)
            assert kept == [f"{n}" for n in range(24, 24 - keep, -1)]
            for id in kept:
                assert await other.thread("t").load(id) == states[id]
            assert (await thread.verify()).ok

    async def test_removing_from_a_thread_that_never_was_removes_nothing(self, store: AsyncStore) -> None:
        chosen: list[dict[str, Any]] = [{"ids": ["a", "b"]}, {"run": "r"}, {"ids": ["a"], "erase": True}]
        for options in chosen:
            assert (await store.thread("never").delete_checkpoints(**options)).checkpoints == 0
        assert [info async for info in store.threads()] == []
        await store.thread("t").save(1)
        assert (await store.thread("t").delete_checkpoints(["never"])).checkpoints == 0

    async def test_checkpoints_of_several_namespaces_are_removed_by_one_call(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        saved = [await thread.save({"n": n}, id=f"{n}") for n in range(5) for thread in (root, sub)]
        assert (
            await root.delete_checkpoints([saved[0], ("sub", "1"), "2", ("sub", "never")])
        ).checkpoints == 3
        assert (await _ids(root), await _ids(sub)) == (["4", "3", "1"], ["4", "3", "2", "0"])
        assert (await sub.delete_checkpoints(["3", "1", "2"], all_namespaces=True)).checkpoints == 4
        assert (await _ids(root), await _ids(sub)) == (["4"], ["4", "0"])
        with pytest.raises(BadArgument, match="thread 't'"):
            await store.thread("another").delete_checkpoints([saved[0]])

    async def test_a_namespace_is_listed_and_deleted_as_a_whole(self, store: AsyncStore) -> None:
        thread, sub = store.thread("t"), store.thread("t", namespace="a/b")
        assert await thread.namespaces() == []
        assert (await sub.delete_namespace()).checkpoints == 0
        await thread.save({"n": 0})
        await store.thread("t", namespace="a").save({"n": 1})
        for n in range(3):
            await sub.save({"n": n, "text": "of the deleted namespace " * 99})
        await sub.write("task", [("c", 1)], checkpoint="never saved")
        run = await store.run("t", run_id="r").start()
        assert await sub.namespaces() == ["", "a", "a/b"]
        pruned = await sub.delete_namespace(erase=True)
        assert (pruned.checkpoints, pruned.erased) == (3, True)
        assert await thread.namespaces() == ["", "a"]
        assert (await sub.load(), await sub.writes("never saved")) == (None, ())
        assert (await thread.load(), await store.thread("t", namespace="a").load()) == ({"n": 0}, {"n": 1})
        assert (await thread.verify()).problems == ()
        await run.complete()
        saved = await sub.save({"n": 9})
        assert [info.id async for info in sub.history()] == [saved.id]

    async def test_an_unsaved_id_with_pending_writes_is_no_checkpoint(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({"n": 1}, id="one")
        await thread.write("task", [("c", noise(1, 3000))], checkpoint="unsaved")
        assert (await thread.delete_checkpoints(["unsaved", "one"])).checkpoints == 1
        assert await thread.writes("unsaved") == ()
        await thread.write("task", [("c", 1)], checkpoint="unsaved")
        assert (await thread.delete_checkpoints(["unsaved"], all_namespaces=True)).checkpoints == 0
        assert await thread.writes("unsaved") == ()
        assert (await store.verify()).ok

    async def test_every_namespace_keeps_its_newest(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        for n in range(3):
            await root.save(n, id=f"root {n}")
        for n in range(3):
            await sub.save(n, id=f"sub {n}")
        await root.prune(keep_last=2)
        assert await _ids(root, all_namespaces=True) == ["sub 2", "sub 1", "root 2", "root 1"]
        await sub.prune(keep_last=1, all_namespaces=False)
        assert await _ids(root, all_namespaces=True) == ["sub 2", "root 2", "root 1"]

    async def test_an_open_interrupt_is_kept_until_it_is_answered(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first = await thread.save(0, id="0")
        await thread.save(1, id="asked", interrupts=[Interrupt("i", "n")])
        for n in range(3):
            await thread.save(n, id=f"branch {n}", parent=first.id if n == 0 else f"branch {n - 1}")
        await thread.prune(keep_last=1)
        assert await _ids(thread) == ["branch 2", "asked"]
        await thread.resume("i", "yes", checkpoint="asked")
        await thread.prune(keep_last=1)
        assert await _ids(thread) == ["branch 2"]

    async def test_lineage_is_kept_on_request(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        for id, parent in (("a", None), ("b", "a"), ("x", "a"), ("c", "b"), ("y", "x"), ("d", "c")):
            await thread.save(id, id=id, parent=parent)
        await thread.prune(keep_last=1, keep_lineage=True)
        assert await _ids(thread) == ["d", "c", "b", "a"]
        assert [item.id for item in await thread.lineage()] == ["d", "c", "b", "a"]

    async def test_a_dry_run_changes_nothing_and_tells_what_would_go(self, trial: Trial) -> None:
        store = await trial.store()
        thread, probe = store.thread("t"), await trial.probe("t")
        await _line(thread, 5)
        before = await probe.content()
        report = await thread.prune(keep_last=2, dry_run=True)
        assert await probe.content() == before
        done = await thread.prune(keep_last=2)
        assert (report.checkpoints, report.chunks, report.freed_bytes) == (
            done.checkpoints,
            done.chunks,
            done.freed_bytes,
        )

    async def test_pruning_what_needs_none_changes_nothing(self, trial: Trial) -> None:
        store = await trial.store()
        assert (await store.thread("absent").prune(keep_last=1)).checkpoints == 0
        await store.thread("t").save(1)
        probe = await trial.probe("t")
        before = await probe.content()
        assert (await store.thread("t").prune(keep_last=1)).checkpoints == 0
        assert await probe.content() == before
        assert [info.id async for info in store.threads()] == ["t"]

    async def test_something_is_always_kept(self, store: AsyncStore) -> None:
        await store.thread("t").save(1)
        for keep in (0, -1, True, 1.0, "1", None):
            with pytest.raises(BadArgument):
                await store.thread("t").prune(keep_last=keep)  # type: ignore[arg-type]
        assert await store.thread("t").exists()

    # By id and by run

    async def test_checkpoints_are_removed_by_id(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 4)
        done = await thread.delete_checkpoints(["1", "3", "never there"])
        assert (done.checkpoints, await _ids(thread)) == (2, ["2", "0"])
        assert (await thread.delete_checkpoints("2")).checkpoints == 1
        assert (await thread.load(), (await thread.delete_checkpoints([])).checkpoints) == (
            {"n": 0, "text": noise(0, 20_000)},
            0,
        )

    async def test_removing_by_id_stays_in_the_namespace(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        await root.save("root", id="same")
        await sub.save("sub", id="same")
        await sub.delete_checkpoints(["same"])
        assert (await root.load(), await sub.load()) == ("root", None)

    async def test_checkpoints_are_removed_by_run(self, store: AsyncStore) -> None:
        thread, sub = store.thread("t"), store.thread("t", namespace="sub")
        text = noise(1, 30_000)
        for n, run in enumerate(["one", "two", "one", None, "two"]):
            await thread.save({"text": text, "n": n}, id=f"{n}", run=run)
        await sub.save("sub", run="one")
        assert (await thread.delete_checkpoints(run="one")).checkpoints == 3
        assert await _ids(thread, all_namespaces=True) == ["4", "3", "1"]
        for n in (1, 3, 4):
            assert await thread.load(f"{n}") == {"text": text, "n": n}
        assert (await thread.verify()).ok

    async def test_chunks_that_others_use_stay(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread, shared = store.thread("t"), [noise(n, 4000) for n in range(10)]
        for n in range(4):
            await thread.save({"shared": shared, "n": n}, id=f"{n}")
        await thread.delete_checkpoints(["0"])  # the one that brought the chunks
        for n in (1, 2, 3):
            assert await other.thread("t").load(f"{n}") == {"shared": shared, "n": n}

    # Saves that built on what went

    @pytest.mark.parametrize("erase", [False, True])
    async def test_a_save_continues_after_the_prune_of_another_process(
        self, trial: Trial, erase: bool
    ) -> None:
        first, second = await trial.store(), await trial.store()
        messages = [noise(n, 900) for n in range(30)]
        for n in range(6):
            messages = [*messages[2:], noise(50 + n, 900)]
            await first.thread("t").save({"messages": messages})
        await second.thread("t").prune(keep_last=1, erase=erase)
        messages = [*messages[1:], noise(99, 900)]
        await first.thread("t").save({"messages": messages})
        for store in (first, second):
            assert await store.thread("t").load() == {"messages": messages}
            assert (await store.verify()).ok

    async def test_a_save_continues_after_another_process_deleted_the_thread(self, trial: Trial) -> None:
        first, second = await trial.store(), await trial.store()
        state = {"messages": [noise(n, 900) for n in range(30)]}
        await first.thread("t").save(state)
        await second.delete("t")
        saved = await first.thread("t").save({**state, "more": 1})
        assert (saved.parent, saved.seq) == (None, 2)
        assert await second.thread("t").load() == {**state, "more": 1}

    # Erasing

    async def test_erasing_leaves_no_byte_of_what_nobody_holds(self, trial: Trial) -> None:
        store = await trial.store()
        thread, probe = store.thread("t"), await trial.probe("t")
        messages = [{"role": "user", "text": f"{n} {noise(n, 300)}"} for n in range(40)]
        messages[17]["text"] = SECRET
        await thread.save({"messages": messages}, metadata={"about": SECRET})
        await thread.write("task", [("c", SECRET * 100)])
        await thread.save({"messages": messages[:10]})
        messages = [message for message in messages if message["text"] != SECRET]
        await thread.save({"messages": messages, "n": 1})
        await thread.save({"messages": messages, "n": 2})
        assert SECRET.encode() in await _bytes(probe)
        pruned = await thread.prune(keep_last=2, erase=True)
        assert pruned.erased
        assert SECRET.encode() not in await _bytes(probe)
        assert [item.metadata async for item in thread.history()] == [{}, {}]
        assert await thread.load() == {"messages": messages, "n": 2}
        assert (await thread.verify()).ok

    async def test_erasing_keeps_what_somebody_holds(self, trial: Trial) -> None:
        store = await trial.store()
        thread, probe = store.thread("t"), await trial.probe("t")
        first = await thread.save({"list": [SECRET, *(noise(n, 500) for n in range(20))]})
        await thread.save({"list": [noise(n, 500) for n in range(20)]})
        await thread.write("task", [("c", {"held": SECRET, "more": noise(5, 3000)})])
        await thread.delete_checkpoints([first.id], erase=True)
        assert SECRET.encode() in await _bytes(probe)
        assert [write.value["held"] for write in await thread.writes()] == [SECRET]
        assert (await thread.verify()).ok

    async def test_a_removed_checkpoint_is_erased_on_request(self, trial: Trial) -> None:
        store = await trial.store()
        thread, probe = store.thread("t"), await trial.probe("t")
        plain = [noise(n, 500) for n in range(20)]
        await thread.save({"list": [*plain, SECRET]}, id="with")
        await thread.save({"list": plain}, id="without")
        assert (await thread.delete_checkpoints(["with"], erase=True)).erased
        assert SECRET.encode() not in await _bytes(probe)
        assert await thread.load() == {"list": plain}

    async def test_a_deleted_thread_leaves_no_byte(self, trial: Trial) -> None:
        store = await trial.store()
        thread, probe = store.thread("t"), await trial.probe("t")
        await thread.save({"text": SECRET * 50}, metadata={"about": SECRET})
        await thread.write("task", [("c", SECRET)])
        await thread.set_metadata({"about": SECRET})
        names = list(await probe.data())
        await thread.delete()
        assert await _bytes(probe) == b""
        assert await probe.backend.fetch(probe.thread, names) == {}

    async def test_a_chunk_of_which_less_than_half_is_read_is_written_again(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        messages = [noise(n, 2000) for n in range(60)]
        await thread.save({"messages": messages})
        await thread.save({"messages": messages[:6]})
        before = (await thread.size()).stored_bytes
        pruned = await thread.prune(keep_last=1)
        assert pruned.rewritten > 0
        assert (await thread.size()).stored_bytes < before / 4
        assert await thread.load() == {"messages": messages[:6]}
