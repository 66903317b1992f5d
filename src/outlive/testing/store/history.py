"""Looking back: history page by page, metadata, lineage and heads."""

from __future__ import annotations

import pytest

from outlive.errors import BadArgument, CheckpointMissing
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.store.pruning import noise
from outlive.testing.thread_records import copied
from outlive.testing.trial import Trial
from outlive.testing.tuning import tuned
from outlive.threads.thread import AsyncThread
from outlive.values import CheckpointInfo


async def _ids(thread: AsyncThread, **options: object) -> list[str]:
    return [item.id async for item in thread.history(**options)]  # type: ignore[call-overload]


async def _line(thread: AsyncThread, count: int, **options: object) -> list[CheckpointInfo]:
    return [await thread.save({"n": n}, id=f"{n}", **options) for n in range(count)]  # type: ignore[arg-type]


class HistoryContract(Contract):
    async def test_history_is_newest_first(self, store: AsyncStore) -> None:
        await _line(store.thread("t"), 4)
        assert await _ids(store.thread("t")) == ["3", "2", "1", "0"]

    async def test_history_is_cut_and_continued(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 6)
        assert await _ids(thread, limit=2) == ["5", "4"]
        assert await _ids(thread, limit=2, before="4") == ["3", "2"]
        assert await _ids(thread, before="0") == await _ids(thread, limit=0) == []
        with pytest.raises(CheckpointMissing):
            await _ids(thread, before="never there")

    async def test_a_history_of_many_pages_is_whole(self, trial: Trial) -> None:
        store = await trial.store()
        thread = store.thread("t")
        await thread.save({"n": 0}, metadata={"kind": "first"})
        probe = await trial.probe("t")
        record = (await probe.records())[0]
        copies = tuple(copied(record, id=f"{seq:03}", seq=seq) for seq in range(2, 251))
        await probe.commit(*copies)
        assert [item.seq async for item in thread.history()] == list(range(250, 0, -1))
        assert [item.seq async for item in thread.history(limit=120)] == list(range(250, 130, -1))
        assert len(await thread.lineage("250")) == 1

    async def test_a_thread_of_more_than_a_thousand_checkpoints_is_handled_whole(self, trial: Trial) -> None:
        store, probe = await trial.store(), await trial.probe("t")
        thread = store.thread("t")
        await thread.save({"n": 0}, id="0001")
        (record,) = await probe.records()
        ids = [f"{seq:04}" for seq in range(1, 1051)]
        copies = [copied(record, id=id, seq=seq, parent=ids[seq - 2]) for seq, id in enumerate(ids[1:], 2)]
        await probe.commit(*copies)
        assert len(await thread.lineage()) == (await thread.size()).checkpoints == 1050
        assert [head.id for head in await thread.tips()] == ["1050"]
        assert (await thread.verify()).checkpoints == 1050
        assert (await thread.prune(keep_last=1020)).checkpoints == 30
        assert len([item async for item in thread.history()]) == 1020
        assert await thread.load("0031") == {"n": 0}

    async def test_history_continues_while_it_is_pruned(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 5)
        seen = []
        async for item in thread.history():
            seen.append(item.id)
            if item.id == "3":
                await thread.delete_checkpoints(["3"])
        assert seen == ["4", "3", "2", "1", "0"]

    async def test_a_cursor_survives_the_deletion_of_its_checkpoint(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        await _line(thread, 8)
        page = [item async for item in thread.history(limit=3)]
        await other.thread("t").delete_checkpoints(["5", "4"])
        # This process listed it.
        assert await _ids(thread, before=page[-1].id) == ["3", "2", "1", "0"]
        # This one deleted it.
        assert await _ids(other.thread("t"), before="5") == ["3", "2", "1", "0"]
        third = (await trial.store()).thread("t")
        for before in (page[-1], page[-1].cursor):
            assert await _ids(third, before=before, limit=2) == ["3", "2"]
        with pytest.raises(CheckpointMissing, match="cursor"):
            await _ids(third, before="5")
        await thread.save("again", id="5")
        assert await _ids(thread, before="5", limit=2) == ["7", "6"]  # what is stored comes first
        await thread.delete()
        await thread.save("new", id="new")
        assert await _ids(thread, before=page[-1]) == []

    async def test_history_of_all_namespaces_continues_from_any_of_them(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        for n in range(3):
            await root.save(n, id=f"root {n}")
            await sub.save(n, id=f"sub {n}")
        assert await _ids(root, all_namespaces=True, before="sub 1") == ["root 1", "sub 0", "root 0"]
        (checkpoint,) = [item async for item in sub.history(limit=1)]
        assert await _ids(root, before=checkpoint) == ["root 2", "root 1", "root 0"]
        await sub.delete_checkpoints(["sub 1"])
        assert await _ids(root, all_namespaces=True, before="sub 1") == ["root 1", "sub 0", "root 0"]
        with pytest.raises(CheckpointMissing):
            await _ids(root, before="sub 1")
        with pytest.raises(BadArgument, match="thread 't'"):
            await _ids(store.thread("another"), before=checkpoint)

    async def test_history_reads_no_state(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        await _line((await trial.store()).thread("t"), 3)
        items = [item async for item in store.thread("t").history(before="2")]
        assert len(items) == 2
        assert backend.counted("fetch") == 0
        assert all(options.get("chunks") is False for name, _, options in backend.calls if name == "read")
        assert not hasattr(items[0], "state")
        assert items[0] == await store.thread("t").checkpoint("1")

    async def test_history_with_states_reads_a_page_by_one_call(self, trial: Trial) -> None:
        other = (await trial.store()).thread("t")
        texts = [noise(n, 900) for n in range(40)]
        states = [{"n": n, "texts": texts[:n]} for n in range(40)]
        for n, state in enumerate(states):
            await other.save(state, id=f"{n}", metadata={"even": n % 2 == 0})
        backend, store = await trial.interposed()
        loaded = [(item.id, item.state) async for item in store.thread("t").history(states=True)]
        assert loaded == [(f"{n}", states[n]) for n in reversed(range(40))]
        assert [name for name, _, _ in backend.calls if name != "identity"] == ["states"]
        chosen = store.thread("t").history(states=True, filter={"even": True}, limit=3, before="9")
        assert [item.state async for item in chosen] == [states[8], states[6], states[4]]
        (newest,) = [item async for item in store.thread("t").history(states=True, limit=1)]
        with pytest.raises(BadArgument):
            newest.pending_writes  # noqa: B018

    async def test_history_with_states_holds_no_more_than_a_page(self, trial: Trial) -> None:
        thread = (await trial.store()).thread("t")
        states = [{"n": n, "text": noise(n % 3, 6000)} for n in range(12)]
        for n, state in enumerate(states):
            await thread.save(state, id=f"{n}")
        backend, store = await trial.interposed()
        with tuned(history_page_bytes=7000, history_unpacked_bytes=7000):
            assert [item.state async for item in store.thread("t").history(states=True)] == states[::-1]
        assert 3 <= backend.counted("states") <= 12

    async def test_history_with_states_is_whole_while_it_is_pruned(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        states = [{"n": n, "text": noise(n, 3000)} for n in range(6)]
        for n, state in enumerate(states):
            await store.thread("t").save(state, id=f"{n}")
        seen = []
        async for item in store.thread("t").history(states=True):
            seen.append(item.state)
            await other.thread("t").prune(keep_last=1, erase=True)
        assert seen == states[::-1]

    async def test_history_is_that_of_the_namespace_unless_all_are_asked_for(self, store: AsyncStore) -> None:
        root, sub = store.thread("t"), store.thread("t", namespace="sub")
        await root.save(1, id="a")
        await sub.save(1, id="b")
        await root.save(1, id="c")
        assert (await _ids(root), await _ids(sub)) == (["c", "a"], ["b"])
        assert await _ids(sub, all_namespaces=True) == ["c", "b", "a"]

    async def test_history_of_a_run(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        for n in range(6):
            await thread.save(n, id=f"{n}", run="one" if n < 4 else "two")
        assert await _ids(thread, run="one", limit=3) == ["3", "2", "1"]
        assert await _ids(thread, run="none") == []

    # Metadata

    async def test_metadata_comes_back_exactly(self, trial: Trial) -> None:
        metadata = {
            "tuple": (1, 2),
            "float": 1.0,
            "bytes": b"\xff",
            "nested": {"set": {1}, "none": None},
            "\0": "NUL",
            "nan": float("inf"),
            "surrogate": "\ud800",
            "big": 2**70,
        }
        store = await trial.store()
        await store.thread("t").save({}, metadata=metadata)
        (info,) = [item async for item in (await trial.store()).thread("t").history()]
        assert info.metadata == metadata
        assert [type(value) for value in info.metadata.values()] == [
            type(value) for value in metadata.values()
        ]

    async def test_a_filter_compares_python_values(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        for id, value in (("a", (1, 2)), ("b", [1, 2]), ("c", 1), ("d", "1"), ("e", {"x": [1]})):
            await thread.save({}, id=id, metadata={"value": value, "all": True})
        for value, expected in (
            ((1, 2), ["a"]),
            ([1, 2], ["b"]),
            (1, ["c"]),
            ("1", ["d"]),
            ({"x": [1]}, ["e"]),
        ):
            assert await _ids(thread, filter={"value": value}) == expected
        assert await _ids(thread, filter={"value": 1, "all": True}) == ["c"]
        assert await _ids(thread, filter={"value": 1, "all": False}) == []

    async def test_a_filter_for_none_matches_none_and_not_what_is_absent(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save({}, id="without")
        await thread.save({}, id="none", metadata={"x": None})
        await thread.save({}, id="false", metadata={"x": False})
        assert await _ids(thread, filter={"x": None}) == ["none"]
        await thread.set_metadata({"title": "x"})
        assert [info.id async for info in store.threads(filter={"owner": None})] == []

    async def test_a_limit_counts_what_passes_the_filter(self, trial: Trial) -> None:
        thread = (await trial.store()).thread("t")
        for n in range(9):
            await thread.save(n, id=f"{n}", metadata={"even": n % 2 == 0})
        assert await _ids(thread, filter={"even": True}, limit=3) == ["8", "6", "4"]
        assert await _ids(thread, filter={"even": True}, limit=3, before="4") == ["2", "0"]

    # Lineage and heads

    async def test_lineage_walks_from_parent_to_parent(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 3)
        await thread.save("x", id="branch", parent="0")
        assert [item.id for item in await thread.lineage()] == ["branch", "0"]
        assert [item.id for item in await thread.lineage("2")] == ["2", "1", "0"]
        with pytest.raises(CheckpointMissing, match="has no checkpoint 'never there'"):
            await thread.lineage("never there")

    async def test_lineage_ends_where_a_parent_was_pruned(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 4)
        await thread.delete_checkpoints(["1"])
        assert [item.id for item in await thread.lineage()] == ["3", "2"]

    async def test_lineage_that_meets_itself_ends(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.save(1, id="a", parent="b")
        await thread.save(2, id="b", parent="a")
        assert [item.id for item in await thread.lineage()] == ["b", "a"]

    async def test_a_straight_line_has_one_head(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 3)
        assert [item.id for item in await thread.tips()] == ["2"]

    async def test_the_heads_of_a_thread_that_went_apart(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await _line(thread, 2)
        await thread.save("x", id="x", parent="0")
        await thread.save("y", id="y", parent="0")
        await thread.save("z", id="z", parent="x")
        assert [item.id for item in await thread.tips()] == ["z", "y", "1"]
