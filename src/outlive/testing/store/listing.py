"""Listing threads, their own metadata, sizes, and tenants."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from outlive.errors import BadArgument
from outlive.retention.policy import Retain
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.trial import Trial
from outlive.testing.tuning import tuned


class ListingContract(Contract):
    async def test_threads_are_listed_with_what_they_hold(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        first = await thread.save({"n": 1})
        last = await thread.save({"n": 2})
        await store.thread("t", namespace="sub").save({"n": 3})
        await thread.set_metadata({"title": "x"})
        (info,) = [info async for info in store.threads()]
        assert info == await thread.info()
        assert (info.id, info.checkpoints, info.metadata, info.forked_from) == ("t", 3, {"title": "x"}, None)
        assert info.head is not None and (info.head.id, info.head.seq) == (last.id, 2)
        assert first.created_at is not None and info.created_at <= info.updated_at
        assert info.stored_bytes == (await thread.size()).stored_bytes > 0

    async def test_threads_are_listed_page_by_page(self, trial: Trial) -> None:
        store = await trial.store()
        ids = [f"{n:02}" for n in range(45)]
        await trial.together(*(lambda n=n: store.thread(ids[n]).set_metadata({"n": n}) for n in range(45)))
        with tuned(listing_page=10):
            assert [info.id async for info in store.threads()] == ids
            assert [info.id async for info in store.threads(limit=15)] == ids[:15]
            assert [info.id async for info in store.threads(limit=3, after="20")] == ["21", "22", "23"]
            assert [info.id async for info in store.threads(prefix="4")] == ["40", "41", "42", "43", "44"]
            assert [info.id async for info in store.threads(filter={"n": 37})] == ["37"]
            assert [info.id async for info in store.threads(limit=0)] == []

    async def test_a_listing_continues_while_its_threads_are_deleted(self, store: AsyncStore) -> None:
        for n in range(5):
            await store.thread(f"{n}").save(n)
        seen = []
        async for info in store.threads():
            seen.append(info.id)
            await store.delete(info.id)
        assert seen == ["0", "1", "2", "3", "4"]
        assert [info.id async for info in store.threads()] == []

    async def test_a_listing_continues_after_a_thread_that_is_gone(self, store: AsyncStore) -> None:
        for id in "abcd":
            await store.thread(id).save(1)
        await store.delete("b")
        assert [info.id async for info in store.threads(after="b")] == ["c", "d"]

    # Metadata of a thread

    async def test_metadata_of_a_thread_is_merged_removed_and_replaced(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        assert await thread.set_metadata({"title": "a", "tags": ["x"]}) == {"title": "a", "tags": ["x"]}
        assert await thread.set_metadata({"user": ("u", 1), "tags": None}) == {"title": "a", "user": ("u", 1)}
        assert await thread.metadata() == {"title": "a", "user": ("u", 1)}
        assert await thread.set_metadata({"only": 1}, replace=True) == await thread.metadata() == {"only": 1}

    async def test_metadata_may_come_before_and_stays_beside_the_checkpoints(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.set_metadata({"title": "a"})
        info = await thread.info()
        assert info is not None and (info.checkpoints, info.head) == (0, None)
        await thread.save(1)
        await thread.prune(keep_last=1)
        assert await thread.metadata() == {"title": "a"}

    async def test_threads_are_found_by_their_metadata(self, store: AsyncStore) -> None:
        for n in range(6):
            await store.thread(f"{n}").set_metadata({"user": "even" if n % 2 == 0 else "odd", "n": n})
        await store.thread("plain").save(1)
        listed = [info.id async for info in store.threads(filter={"user": "even"}, limit=2)]
        assert listed == ["0", "2"]
        assert [info.id async for info in store.threads(filter={"user": "odd", "n": 3})] == ["3"]
        assert [info.id async for info in store.threads(filter={"user": "nobody"})] == []

    async def test_nobodys_change_of_the_metadata_is_lost(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]

        async def update(number: int) -> None:
            thread = stores[number % 3].thread("t")
            for turn in range(3):
                await thread.set_metadata({f"{number}-{turn}": turn})

        assert await trial.together(*(lambda n=n: update(n) for n in range(6))) == [None] * 6
        metadata = await stores[0].thread("t").metadata()
        assert metadata == {f"{number}-{turn}": turn for number in range(6) for turn in range(3)}

    async def test_a_thread_of_metadata_alone_can_be_deleted(self, store: AsyncStore) -> None:
        thread = store.thread("t")
        await thread.set_metadata({"title": "a"})
        assert await thread.delete()
        assert [info.id async for info in store.threads()] == []

    async def test_threads_are_listed_by_their_last_change(self, store: AsyncStore) -> None:
        for id in "abcde":
            await store.thread(id).save(id)
        await store.thread("b").save("again")
        await store.thread("d").set_metadata({"kind": "trip"})
        await store.thread("b").set_metadata({"kind": "trip"})
        assert [info.id async for info in store.threads(order="updated")] == ["b", "d", "e", "c", "a"]
        trips = store.threads(order="updated", filter={"kind": "trip"}, limit=1)
        assert [info.id async for info in trips] == ["b"]
        seen, after = [], None
        while page := [info async for info in store.threads(order="updated", limit=2, after=after)]:
            seen += [info.id for info in page]
            after = page[-1].cursor
            await store.thread("a").save("moves to the front and is not met again")
        assert seen == ["b", "d", "e", "c"]
        misuses: tuple[dict[str, Any], ...] = (
            {"order": "size"},
            {"order": "updated", "prefix": "a"},
            {"order": "updated", "after": "a"},
        )
        for wrong in misuses:
            with pytest.raises(BadArgument):
                _ = [info async for info in store.threads(**wrong)]

    async def test_a_thread_whose_run_has_not_saved_yet_is_a_thread_as_any_other(self, trial: Trial) -> None:
        store = await trial.store()
        run = await store.submit("t", agent="planner")
        await store.thread("saved").save(1)
        assert [info.id async for info in store.threads()] == ["saved", "t"]
        assert [info.id async for info in store.threads(order="updated")] == ["saved", "t"]
        info = await store.thread("t").info()
        assert info is not None and (info.checkpoints, info.head, info.metadata) == (0, None, {})
        assert (await store.size()).threads == (await store.verify()).threads == 2
        keeps_little = Retain(ttl_s=0.01)
        await trial.sleep(0.1)
        swept = await store.sweep(retain=keeps_little)
        assert (swept.ttl.threads, swept.kept) == (1, {"unfinished run": 1})
        await store.cancel(run.id)
        await trial.sleep(0.1)
        assert (await store.sweep(retain=keeps_little)).ttl.threads == 1
        assert [info.id async for info in store.threads()] == [info.id async for info in store.runs()] == []
        await store.submit("t", agent="planner")
        assert await store.delete("t")
        assert not await store.delete("t")
        assert [info.id async for info in store.threads()] == [info.id async for info in store.runs()] == []
        assert (await store.verify()).ok
        assert (await store.size()).threads == 0

    async def test_a_lock_lists_its_thread_until_that_is_deleted(self, store: AsyncStore) -> None:
        async with store.lock("t"):
            assert [info.id async for info in store.threads()] == ["t"]
        assert [info.id async for info in store.threads()] == ["t"]
        assert await store.delete("t")
        assert [info.id async for info in store.threads()] == []

    # Tenants

    async def test_stores_of_two_tenants_never_see_each_other(self, trial: Trial) -> None:
        plain, first, second = [await trial.store(tenant=tenant) for tenant in ("", "one", "two")]
        for store, name in ((plain, "plain"), (first, "one"), (second, "two")):
            await store.thread("same").save(name, id="id")
            await store.thread("same").set_metadata({"of": name})
            await store.thread(f"only {name}").save(1)
        for store, name in ((plain, "plain"), (first, "one"), (second, "two")):
            assert await store.thread("same").load("id") == name
            assert [info.id async for info in store.threads()] == [f"only {name}", "same"]
            assert (await store.size()).threads == (await store.verify()).threads == 2
        await first.delete("same")
        assert await second.thread("same").load() == "two"
        assert await second.thread("same").metadata() == {"of": "two"}

    # Sizes

    async def test_sizes_add_up(self, store: AsyncStore) -> None:
        for n in range(3):
            await store.thread(f"{n}").save({"text": f"{n}" * 1000})
            await store.thread(f"{n}", namespace="sub").save({"text": f"{n}" * 1000})
        sizes = [await store.thread(f"{n}").size() for n in range(3)]
        total = await store.size()
        assert all((size.threads, size.checkpoints) == (1, 2) for size in sizes)
        assert (total.threads, total.checkpoints) == (3, 6)
        assert total.stored_bytes == sum(size.stored_bytes for size in sizes) > 0
        assert sum(size.state_bytes for size in sizes) > 6000

    async def test_a_deleted_thread_takes_no_space(self, store: AsyncStore) -> None:
        await store.thread("t").save({"n": list(range(1000))})
        await store.delete("t")
        assert dataclasses.astuple(await store.size()) == (0, 0, 0)
