"""Streams: what a run emits reaches its followers in order, once, and never from a run that is lost."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from typing import Any

import pytest

from outlive.errors import (
    BadArgument,
    LeaseLost,
    OutcomeUnknown,
    RunEnded,
    RunMissing,
    StoreUnavailable,
    Unencodable,
)
from outlive.retention.policy import Retain
from outlive.runs import stream
from outlive.runs.stream_entry import StreamChunk
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.patience import PATIENCE_S, eventually_async
from outlive.testing.trial import ROUNDS, Trial


async def _all(items: Any) -> list[StreamChunk]:
    return [item async for item in items]


async def _stored(store: AsyncStore, run_id: str, after: str | None = None) -> list[Any]:
    return [chunk.value for chunk in await _all(store.follow(run_id, after=after, wait=False))]


class StreamContract(Contract):
    async def test_chunks_are_stored_with_the_next_write_of_the_run(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "FLUSH_S", 3600.0)
        backend, store = await trial.interposed()
        other = await trial.store()
        run = await store.run("t", run_id="r").start()
        writes: tuple[tuple[str, Any], ...] = (
            ("step", lambda: run.step("s", int)),
            ("save", lambda: run.save({"n": 1})),
            ("flush", run.flush),
            ("end", lambda: run.complete("done")),
        )
        for name, write in writes:
            await run.emit({"from": name, "set": {1, 2}})
            await run.emit(name)
            before = backend.counted("commit_all")
            await write()
            assert backend.counted("commit_all") == before + 1, name
        chunks = await _all(other.follow("r"))
        assert [chunk.value for chunk in chunks] == [
            value for name, _ in writes for value in ({"from": name, "set": {1, 2}}, name)
        ]
        assert [chunk.number for chunk in chunks] == list(range(1, 9))
        assert {chunk.attempt for chunk in chunks} == {1}
        with pytest.raises(RunEnded):
            await run.emit("late")

    async def test_a_timer_stores_chunks_of_a_run_that_writes_nothing(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        run = await store.run("t", run_id="r").start()
        for n in range(3):
            await run.emit(n)

        async def is_stored() -> bool:
            return await _stored(other, "r") == [0, 1, 2]

        assert await eventually_async(is_stored, trial.sleep)
        await run.release()

    async def test_many_chunks_do_not_wait_for_the_timer(
        self, store: AsyncStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "FLUSH_S", 3600.0)
        run = await store.run("t", run_id="r").start()
        text = "x" * 1000
        for _ in range(100):
            await run.emit(text)
        assert 60 <= len(await _stored(store, "r")) < 100
        await run.flush()
        assert await _stored(store, "r") == [text] * 100
        await run.complete()

    async def test_a_follower_gets_what_comes_until_the_run_ends(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        run = await store.run("t", run_id="r").start()

        async def read() -> list[Any]:
            return [chunk.value for chunk in await _all(other.follow("r", idle_s=PATIENCE_S))]

        async def work() -> None:
            for n in range(10):
                await run.emit(n)
                await trial.sleep(0.03)
            await run.complete()

        assert await trial.together(read, work) == [list(range(10)), None]
        assert await _stored(other, "r") == list(range(10))

    async def test_a_client_rejoins_after_any_chunk(self, store: AsyncStore) -> None:
        run = await store.run("t", run_id="r").start()
        for n in range(6):
            await run.emit(n)
            if n % 2:
                await run.flush()
        await run.complete()
        chunks = await _all(store.follow("r"))
        assert len({chunk.cursor for chunk in chunks}) == 6
        for n, chunk in enumerate(chunks):
            assert await _stored(store, "r", chunk.cursor) == list(range(n + 1, 6))
            assert [late.value async for late in store.follow("r", after=chunk.cursor)] == list(
                range(n + 1, 6)
            )

    async def test_the_chunks_of_a_lost_run_are_refused(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        lost = await store.run("t", run_id="r", lease_s=0.2).start()
        await lost.emit("first")
        await lost.flush()
        store._heart._stop()  # as a process that hangs
        lost._stream.stop()
        await lost.emit("never stored")
        lost._stream.stop()
        await trial.sleep(0.5)
        successor = await other.run("t", run_id="r").start()
        await successor.emit("second")
        with pytest.raises(LeaseLost):
            await lost.flush()
        with pytest.raises(LeaseLost):
            await lost.emit("known to be lost")
        await successor.complete()
        chunks = await _all(other.follow("r"))
        assert [(chunk.value, chunk.attempt, chunk.number) for chunk in chunks] == [
            ("first", 1, 1),
            ("second", 2, 2),
        ]
        assert await _stored(other, "r", chunks[0].cursor) == ["second"]

    async def test_a_run_that_waits_is_followed_until_it_has_ended(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        async with store.run("t", run_id="r") as run:
            await run.emit("before")
            await run.ask("continue?")
        chunks = await _all(other.follow("r", idle_s=0.1))
        assert [chunk.value for chunk in chunks] == ["before"]
        await other.answer("r", "continue?", True)

        async def read() -> list[Any]:
            return await _all(other.follow("r", after=chunks[0].cursor, idle_s=PATIENCE_S))

        async def work() -> None:
            async with store.run("t", run_id="r") as run:
                assert await run.ask("continue?") is True
                await run.emit("after")

        seen, nothing = await trial.together(read, work)
        assert (nothing, [(chunk.value, chunk.attempt) for chunk in seen]) == (None, [("after", 1)])

    async def test_a_commit_whose_answer_is_lost_stores_its_chunks_once(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "FLUSH_S", 3600.0)
        backend, store = await trial.interposed()
        run = await store.run("t", run_id="r").start()
        await run.emit("a")

        async def lose(receipts: Any) -> None:
            raise OutcomeUnknown("t", "", 1.0, "the answer was lost")

        backend.after("commit_all", lose)
        with pytest.raises(OutcomeUnknown):
            await run.flush()
        before = await _all(store.follow("r", wait=False))
        await run.emit("b")
        await run.complete()
        chunks = await _all(store.follow("r"))
        assert [chunk.value for chunk in chunks] == ["a", "b"]
        assert chunks[:1] == before

    async def test_a_store_that_fails_loses_and_repeats_no_chunk(self, trial: Trial) -> None:
        seed = int(os.environ.get("OUTLIVE_SEED", "1"))
        chance = random.Random(seed)
        backend, store = await trial.interposed()
        other = await trial.store()

        async def lose(receipts: Any) -> None:
            raise OutcomeUnknown("t", "", 1.0, "the answer was lost")

        for round in range(3 * ROUNDS):
            id, emitted, seen = f"r{round}", list[int](), list[StreamChunk]()
            run = await store.run(id, run_id=id).start()
            writes = (run.flush, lambda run=run: run.step("s", int), lambda run=run: run.save({"n": 1}))
            for n in range(30):
                await run.emit(n)
                emitted.append(n)
                if chance.random() < 0.3:
                    backend.refuse("commit_all")
                elif chance.random() < 0.3:
                    backend.after("commit_all", lose)
                if chance.random() < 0.5:
                    with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
                        await chance.choice(writes)()
                if chance.random() < 0.3:  # a client that comes back
                    cursor = seen[-1].cursor if seen else None
                    seen += await _all(other.follow(id, after=cursor, wait=False))
            backend.forget()
            await run.complete()
            seen += await _all(other.follow(id, after=seen[-1].cursor if seen else None))
            assert [chunk.value for chunk in seen] == emitted, seed
            assert [chunk.number for chunk in seen] == list(range(1, len(emitted) + 1))

    async def test_branches_that_emit_at_once_lose_nothing(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "FLUSH_S", 0.001)
        monkeypatch.setattr(stream, "FLUSH_BYTES", 100)
        store = await trial.store()
        run = await store.run("t", run_id="r").start()

        async def branch(name: int) -> None:
            for n in range(40):
                await run.emit([name, n])
                if n % 10 == 0:
                    await run.step("s", key=f"{name} {n}")(int)()

        branches = [functools.partial(branch, name) for name in range(4)]
        assert await trial.together(*branches) == [None] * 4
        await run.complete()
        values = await _stored(store, "r")
        for name in range(4):
            assert [n for emitter, n in values if emitter == name] == list(range(40))
        assert len(values) == 160

    async def test_a_save_that_is_repeated_does_not_swallow_chunks(self, store: AsyncStore) -> None:
        run = await store.run("t", run_id="r").start()
        await run.save({"n": 1}, id="c")
        await run.emit("a")
        await run.save({"n": 1}, id="c")
        await run.complete()
        assert await _stored(store, "r") == ["a"]

    async def test_a_stream_keeps_its_newest_chunks(
        self, store: AsyncStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "MAX_ENTRIES", 3)
        for attempt in range(2):
            run = await store.run("t", run_id="r").start()
            for n in range(4):
                await run.emit((attempt, n))
                await run.flush()
            await run.release()
        chunks = await _all(store.follow("r", wait=False))
        assert [(chunk.value, chunk.number) for chunk in chunks] == [((1, 1), 6), ((1, 2), 7), ((1, 3), 8)]
        monkeypatch.setattr(stream, "MAX_BYTES", 250)
        run = await store.run("t", run_id="r").start()
        for n in range(4):
            await run.emit(str(n) * 100)
            await run.flush()
        await run.complete()
        assert await _stored(store, "r") == ["2" * 100, "3" * 100]

    async def test_chunks_are_checked_when_they_are_emitted(self, store: AsyncStore) -> None:
        run = await store.run("t", run_id="r").start()
        with pytest.raises(Unencodable, match="a chunk of run 'r'"):
            await run.emit(object())
        with pytest.raises(BadArgument, match="at most 1,048,576"):
            await run.emit("x" * (1 << 20))
        text = ["kept as it was"]
        await run.emit(text)
        text.append("changed later")
        await run.complete()
        assert await _stored(store, "r") == [["kept as it was"]]
        for cursor in ("", "1.2.3", 7, "0.1.1.0 ", "a.b.c.d"):
            with pytest.raises(BadArgument, match="cursor of a chunk"):
                await _all(store.follow("r", after=cursor))  # type: ignore[arg-type]
        with pytest.raises(RunMissing):
            await _all(store.follow("other"))

    async def test_ids_that_begin_alike_have_streams_of_their_own(self, store: AsyncStore) -> None:
        ids = ["r", "r\n", "r\n0", "r\n~", "r2"]
        runs = [await store.run("t", run_id=id, namespace=str(n)).start() for n, id in enumerate(ids)]
        for run in runs:
            await run.emit(run.id)
            await run.flush()
        for run in runs:
            await run.emit("end")
            await run.complete()
        for id in ids:
            chunks = await _all(store.follow(id))
            assert [chunk.value for chunk in chunks] == [id, "end"]
            assert await _stored(store, id, chunks[0].cursor) == ["end"]

    async def test_a_stream_is_deleted_with_its_thread(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        run = await store.run("t", run_id="r").start()
        await run.emit("a")
        await run.complete()
        await store.delete("t")
        with pytest.raises(RunMissing):
            await _all(other.follow("r"))
        run = await store.run("t", run_id="r").start()
        await run.emit("b")
        await run.complete()
        assert await _stored(other, "r") == ["b"]

    async def test_a_sweep_deletes_the_streams_of_runs_that_ended_long_ago(self, trial: Trial) -> None:
        store = await trial.store()
        for id in ("ended", "released", "open"):
            run = await store.run(id, run_id=id).start()
            for n in range(3):
                await run.emit(n)
                await run.flush()
            if id == "open":
                continue
            await (run.complete("kept") if id == "ended" else run.release())
        await trial.sleep(0.05)
        young, old = Retain(max_age_s=3600, every_s=None), Retain(max_age_s=3600, stream_s=0.01, every_s=None)
        assert (await store.sweep(retain=young)).streams.freed_bytes == 0
        planned = await store.sweep(retain=old, dry_run=True)
        assert (planned.streams.threads, planned.streams.freed_bytes > 0) == (1, True)
        assert await _stored(store, "ended") == [0, 1, 2]
        swept = await store.sweep(retain=old)
        assert swept.streams == planned.streams
        assert await _stored(store, "ended") == []
        assert await _stored(store, "released") == await _stored(store, "open") == [0, 1, 2]
        assert (await store.sweep(retain=old)).streams.threads == 0
        info = await store.find_run("ended")
        assert info is not None
        assert info.result == "kept"
