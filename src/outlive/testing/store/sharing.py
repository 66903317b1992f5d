"""Cost follows the change, not the state. Measured in bytes that a save adds, never in time."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.store.pruning import noise
from outlive.testing.store.typed import NESTED, registered
from outlive.testing.trial import Trial

MESSAGE = 600


def _messages(start: int, stop: int) -> list[dict[str, str]]:
    return [{"role": "user", "text": noise(n, MESSAGE)} for n in range(start, stop)]


class SharingContract(Contract):
    async def test_an_unchanged_state_brings_nothing(self, trial: Trial) -> None:
        store, cold = await trial.store(), await trial.store()
        state = {"messages": _messages(0, 100)}
        first = await store.thread("t").save(state)
        assert first.new_bytes > 0
        for handle in (store, cold):
            assert (await handle.thread("t").save(copy.deepcopy(state))).new_bytes == 0

    async def test_an_appended_message_brings_about_itself(self, store: AsyncStore) -> None:
        thread, messages = store.thread("t"), _messages(0, 300)
        first = await thread.save({"messages": messages, "n": 0})
        added = []
        for n in range(40):
            messages = [*messages, *_messages(300 + n, 301 + n)]
            added.append((await thread.save({"messages": messages, "n": n})).new_bytes)
        # Short chunks at the end are merged now and then; each byte is so rewritten a few times.
        assert sum(added) < 6 * 40 * MESSAGE < first.state_bytes
        assert sorted(added)[20] < 2 * MESSAGE
        assert await thread.load() == {"messages": messages, "n": 39}

    async def test_a_sliding_window_brings_about_what_is_new(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first = await thread.save({"messages": _messages(0, 200)})
        added = [(await thread.save({"messages": _messages(n, 200 + n)})).new_bytes for n in range(1, 20)]
        assert sum(added) < 6 * 20 * MESSAGE < first.state_bytes
        assert await thread.load() == {"messages": _messages(19, 219)}

    async def test_an_edit_in_the_middle_does_not_bring_the_rest(self, store: AsyncStore) -> None:
        thread, messages = store.thread("t"), _messages(0, 200)
        first = await thread.save({"messages": messages})
        edited = [*messages[:100], {"role": "user", "text": "edited"}, *messages[101:]]
        assert (await thread.save({"messages": edited})).new_bytes < first.new_bytes / 4
        assert await thread.load() == {"messages": edited}

    async def test_a_save_after_a_load_shares_with_what_was_loaded(self, trial: Trial) -> None:
        await (await trial.store()).thread("t").save({"messages": _messages(0, 200)})
        thread = (await trial.store()).thread("t")
        state: Any = await thread.load()
        state["messages"].append({"role": "user", "text": "new"})
        assert (await thread.save(state)).new_bytes < 3 * MESSAGE

    async def test_a_branch_shares_with_its_thread(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first = await thread.save({"messages": _messages(0, 200)})
        await thread.save({"messages": _messages(0, 205)})
        branch = await thread.save({"messages": _messages(0, 200), "edited": True}, parent=first.id)
        assert branch.new_bytes < first.new_bytes / 4

    async def test_a_store_without_a_cache_shares_too(self, trial: Trial) -> None:
        thread = (await trial.store(cache_bytes=0)).thread("t")
        first = await thread.save({"messages": _messages(0, 200)})
        second = await thread.save({"messages": _messages(0, 201)})
        assert second.new_bytes < first.new_bytes / 10
        assert await thread.load(first.id) == {"messages": _messages(0, 200)}

    @pytest.mark.parametrize("kind", NESTED)
    async def test_an_append_three_levels_down_brings_about_itself(self, trial: Trial, kind: str) -> None:
        make, grow, types = NESTED[kind]()
        thread = (await trial.store(registry=registered(types))).thread("t")
        lines = [noise(n, MESSAGE) for n in range(200)]
        first = await thread.save(make(lines))
        state, total = await thread.load(), 0
        for n in range(200, 220):
            lines = [*lines, noise(n, MESSAGE)]
            grow(state, lines[-1])
            total += (await thread.save(state)).new_bytes
        assert total < 6 * 20 * MESSAGE < first.state_bytes
        assert await thread.load() == make(lines)

    async def test_the_same_large_text_is_not_encoded_again(self, trial: Trial, monkeypatch: Any) -> None:
        store = await trial.store()
        codec, packed = store._engine.codec, []

        def counted(pack: Any) -> Any:
            def call(value: Any, *args: Any) -> bytes:
                data: bytes = pack(value, *args)
                packed.append(len(data))
                return data

            return call

        monkeypatch.setattr(codec, "pack", counted(codec.pack))
        monkeypatch.setattr(codec, "pack_native", counted(codec.pack_native))
        text, thread = "0123456789abcdef" * (20 << 16), store.thread("t")
        first = await thread.save({"document": text, "n": 0})
        assert first.state_bytes > 20 << 20
        packed.clear()
        second = await thread.save({"document": text, "n": 1})
        assert (second.new_bytes, sum(packed) < 10_000) == (0, True)
        moved = await thread.save({"n": 2, "list": [1, text]})
        assert moved.new_bytes < 10_000
        assert await thread.load() == {"n": 2, "list": [1, text]}

    async def test_threads_share_nothing(self, trial: Trial) -> None:
        """The unit of deletion is the thread: no other thread can keep its bytes alive."""
        store, state = await trial.store(), {"messages": _messages(0, 50)}
        added = [(await store.thread(id).save(state)).new_bytes for id in ("a", "b")]
        assert added[0] == added[1] > 0
        await store.delete("a")
        assert await store.thread("b").load() == state

    async def test_a_checkpoint_has_few_chunks_however_it_grew(self, trial: Trial) -> None:
        store = await trial.store()
        thread, messages = store.thread("t"), []
        for n in range(60):
            messages.append({"role": "user", "text": noise(n, MESSAGE)})
            messages[n // 2] = {"role": "user", "text": noise(1000 + n, MESSAGE)}
            await thread.save({"messages": messages})
        probe = await trial.probe("t")
        assert max(len(record.chunks) for record in await probe.records()) <= 64
        assert dataclasses.asdict(await thread.size())["stored_bytes"] < (await thread.size()).state_bytes
