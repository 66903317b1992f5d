"""Damage is a named error, never a wrong state; `verify` finds it and says where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlive.backend import ReadResult, Removal
from outlive.errors import Corrupt
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.store.pruning import noise
from outlive.testing.thread_records import copied
from outlive.testing.trial import Trial


def _state(n: int) -> dict[str, Any]:
    return {"messages": [noise(i, 500) for i in range(20 + n)], "n": n}


class DamageContract(Contract):
    async def test_a_whole_store_verifies_clean_and_is_counted(self, store: AsyncStore) -> None:
        for id in ("a", "b"):
            for n in range(5):
                await store.thread(id).save(_state(n), metadata={"n": n})
            await store.thread(id).write("task", [("c", noise(1, 3000))])
            await store.thread(id).set_metadata({"title": id})
            await store.thread(id).prune(keep_last=3)
        single, whole = await store.thread("a").verify(), await store.verify()
        assert (single.ok, single.threads, single.checkpoints, single.problems) == (True, 1, 3, ())
        assert (whole.ok, whole.threads, whole.checkpoints, whole.chunks) == (True, 2, 6, 2 * single.chunks)
        assert single.chunks > 0

    async def test_a_missing_chunk_is_found_and_named(self, trial: Trial) -> None:
        store, probe = await trial.store(), await trial.probe("t")
        saved = await store.thread("t").save(_state(1))
        name = next(iter(await probe.data()))
        await probe.commit(removal=Removal(chunks=(name,), chunks_until=1 << 40))
        reader = await trial.store()
        with pytest.raises(Corrupt) as corrupt:
            await reader.thread("t").load()
        assert (corrupt.value.thread, corrupt.value.checkpoint) == ("t", saved.id)
        report = await reader.thread("t").verify()
        assert not report.ok
        assert any(saved.id in str(problem) for problem in report.problems)
        assert not (await reader.verify()).ok

    async def test_a_flipped_bit_is_never_a_wrong_state(self, trial: Trial) -> None:
        backend, store = await trial.interposed(cache_bytes=0)
        saved = await store.thread("t").save(_state(1))
        for place in (0, 1, 3, 9, 100, -1):

            async def flip(reading: ReadResult, place: int = place) -> ReadResult:
                (name, data), *rest = reading.chunks.items()
                damaged = bytearray(data)
                damaged[place] ^= 4
                return replace(reading, chunks={name: bytes(damaged), **dict(rest)})

            backend.after("read", flip)
            with pytest.raises(Corrupt) as corrupt:
                await store.thread("t").load()
            assert (corrupt.value.thread, corrupt.value.checkpoint) == ("t", saved.id)
        assert await store.thread("t").load() == _state(1)

    async def test_exchanged_chunks_are_found(self, trial: Trial) -> None:
        backend, store = await trial.interposed(cache_bytes=0)
        await store.thread("t").save({"a": noise(1, 100_000), "b": noise(2, 100_000)})

        async def exchange(reading: ReadResult) -> ReadResult:
            names = list(reading.chunks)
            return replace(
                reading, chunks=dict(zip(names, reversed(list(reading.chunks.values())), strict=True))
            )

        backend.after("read", exchange)
        with pytest.raises(Corrupt):
            await store.thread("t").load()

    async def test_a_damaged_chunk_is_found_by_verify(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        await store.thread("t").save(_state(1))

        async def cut(report: dict[bytes, bytes]) -> dict[bytes, bytes]:
            return {name: data[:-1] for name, data in report.items()}

        backend.after("fetch", cut)
        report = await store.thread("t").verify()
        assert report.problems
        assert all("'t'" in str(problem) for problem in report.problems)

    async def test_a_body_of_another_checkpoint_is_found(self, trial: Trial) -> None:
        store, probe = await trial.store(), await trial.probe("t")
        await store.thread("t").save(_state(1))
        await store.thread("t").save({"other": noise(3, 9000)})
        second, first = await probe.records()
        await probe.commit(copied(first, id="mixed", seq=9, body=second.body))
        with pytest.raises(Corrupt):
            await store.thread("t").load("mixed")
        assert any("mixed" in str(problem) for problem in (await store.thread("t").verify()).problems)

    async def test_damage_of_one_thread_does_not_hide_the_others(self, trial: Trial) -> None:
        store, probe = await trial.store(), await trial.probe("b")
        for id in "abc":
            await store.thread(id).save(_state(1))
        await probe.commit(removal=Removal(chunks=tuple(await probe.data()), chunks_until=1 << 40))
        report = await (await trial.store()).verify()
        assert (report.threads, report.checkpoints) == (3, 3)
        assert report.problems
        assert all("'b'" in str(problem) for problem in report.problems)
        assert await store.thread("c").load() == _state(1)

    async def test_a_damaged_head_does_not_stop_the_thread(self, trial: Trial) -> None:
        """Older states stay readable, and the damaged one can be removed."""
        store, probe = await trial.store(), await trial.probe("t")
        first = await store.thread("t").save({"n": noise(1, 5000)})
        await store.thread("t").save({"m": noise(2, 5000)})
        record = (await probe.records())[0]
        lost = tuple(set(record.chunks) - set((await probe.records())[1].chunks))
        await probe.commit(removal=Removal(chunks=lost, chunks_until=1 << 40))
        thread = (await trial.store()).thread("t")
        assert await thread.load(first.id) == {"n": noise(1, 5000)}
        assert (await thread.delete_checkpoints([record.id])).checkpoints == 1
        assert await thread.load() == {"n": noise(1, 5000)}
        assert (await thread.verify()).ok
