"""A list in a thread: what every session of every framework is made of."""

import asyncio
import contextlib
import os
import threading

import pytest

import outlive
from outlive.adapters.common.current import working_on
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.thread_list import ThreadList
from outlive.backends.local.async_local import AsyncLocal
from outlive.errors import BadArgument, HeadMoved, LeaseLost, StoreClosed, Unencodable
from rig.adapters import APPENDS, PROCESSES, append_at_once

pytestmark = pytest.mark.each_engine


class Handle:
    """A list by plain calls."""

    def __init__(self, store, **options):
        self._home = StoreHome(store, {}, "Handle")
        self.list = ThreadList("t", **options)

    def __getattr__(self, name):
        method = getattr(self.list, name)
        return lambda *args, **options: self._home.call(lambda store: method(store, *args, **options))


def message(n):
    return {"role": "user", "content": f"message {n}"}


def test_items_come_back_in_order_and_in_part(each_store):
    handle = Handle(each_store)
    assert (handle.read(), handle.append([]), handle.pop()) == ([], None, None)
    for n in range(0, 30, 3):
        handle.append([message(n), message(n + 1), message(n + 2)])
    everything = [message(n) for n in range(30)]
    for reader in (handle, Handle(each_store)):
        assert reader.read() == everything
        assert reader.read(4) == everything[-4:]
        assert (reader.read(0), reader.read(-1), reader.read(99)) == ([], everything, everything)
    first = list(each_store.thread("t").history())[-1]
    assert (handle.read(at=first.id), first.metadata) == (everything[:3], {"items": 3})
    assert each_store.thread("t").load() == {"items": everything}


def test_what_a_caller_does_with_its_items_changes_nothing_stored(each_store):
    handle, mine = Handle(each_store), message(0)
    handle.append([mine])
    mine["content"] = "changed"
    handle.read()[0]["content"] = "changed"
    handle.append([message(1)])
    assert handle.read() == Handle(each_store).read() == [message(0), message(1)]


def test_two_handles_append_by_turns_and_lose_nothing(each_store):
    one, other = Handle(each_store), Handle(each_store)
    for n in range(0, 20, 2):
        one.append([message(n)])
        other.append([message(n + 1)])
    assert one.read() == other.read() == [message(n) for n in range(20)]


def test_threads_append_at_once_and_lose_nothing(each_store):
    handles = [Handle(each_store), Handle(each_store)]

    def work(number):
        for n in range(8):
            handles[number % 2].append([[number, n]])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = handles[0].read()
    assert len(items) == 32
    assert all([n for number, n in items if number == which] == list(range(8)) for which in range(4))


def append_many(report, url, number, wait):
    with outlive.open(url) as store:
        handle = Handle(store)
        handle.read()
        wait(report)
        for n in range(APPENDS):
            handle.append([[number, n, "first"], [number, n, "second"]])


def test_processes_append_at_once_and_lose_nothing(workers, shared_url, folder):
    append_at_once(workers, append_many, shared_url, folder)
    with outlive.open(shared_url) as store:
        items = Handle(store).read()
        assert len(list(store.thread("t").history())) == PROCESSES * APPENDS
    assert len(items) == PROCESSES * APPENDS * 2
    pairs = list(zip(items[::2], items[1::2], strict=True))
    assert all(first[:2] == second[:2] for first, second in pairs), "an append is stored as a whole"
    assert all(
        [n for number, n, _ in items[::2] if number == which] == list(range(APPENDS)) for which in range(2)
    )


def test_a_guard_refuses_to_append_to_what_this_handle_has_not_seen(each_store):
    guarded, other = Handle(each_store, guard="head"), Handle(each_store)
    guarded.append([message(0)])
    guarded.append([message(1)])
    other.append([message(2)])
    for _ in range(2):
        with pytest.raises(HeadMoved):
            guarded.append([message(3)])
    assert guarded.read() == [message(n) for n in range(3)]
    guarded.append([message(3)])
    assert other.read() == [message(n) for n in range(4)]
    fresh = Handle(each_store, guard="head")
    fresh.append([message(4)])
    with pytest.raises(HeadMoved):
        guarded.append([message(5)])
    with pytest.raises(BadArgument, match="guard"):
        ThreadList("t", guard="tail")


def texts_in(store, word):
    """Tell whether any checkpoint has a word."""
    return [
        checkpoint.id
        for checkpoint in store.thread("t").history(states=True)
        if word in str(checkpoint.state)
    ]


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_popped_is_gone_from_the_history_unless_it_is_kept(each_store, keeps):
    handle = Handle(each_store, keep_history=keeps)
    handle.append([message(0)])
    handle.append([message(1), {"content": "secret"}])
    assert handle.pop() == {"content": "secret"}
    assert bool(texts_in(each_store, "secret")) is keeps
    assert handle.read() == [message(0), message(1)]
    first = list(each_store.thread("t").history())[-1]
    assert handle.read(at=first.id) == [message(0)], "what never had it is kept"
    handle.append([message(2)])
    assert [handle.pop(), handle.pop(), handle.pop(), handle.pop()] == [
        message(2),
        message(1),
        message(0),
        None,
    ]
    assert (handle.read(), Handle(each_store).read()) == ([], [])
    handle.append([message(3)])
    assert handle.read() == [message(3)]


def test_a_pop_deletes_nothing_that_others_have_added_since(each_store):
    handle, other = Handle(each_store), Handle(each_store)
    handle.append([message(0), {"content": "secret"}])
    forget = handle.list._forget

    async def after_another(store, saved, count):
        other.append([message(1), message(2)])
        await forget(store, saved, count)

    handle.list._forget = after_another
    handle.pop()
    assert handle.read() == [message(0), message(1), message(2)]
    assert not texts_in(each_store, "secret")


def test_two_processes_pop_at_once_and_none_fails(shared_url):
    with outlive.open(shared_url) as store, outlive.open(shared_url) as another_store:
        handle, other = Handle(store), Handle(another_store)
        handle.append([message(0)])
        handle.append([message(1), {"content": "another secret"}, {"content": "secret"}])
        forget, popped = handle.list._forget, []

        async def after_another(store, saved, count):
            popped.append(other.pop())  # which erases `saved` too
            await forget(store, saved, count)

        handle.list._forget = after_another
        assert handle.pop() == {"content": "secret"}
        assert popped == [{"content": "another secret"}]
        assert handle.read() == other.read() == [message(0), message(1)]
        assert not texts_in(store, "secret")


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_erased_or_replaced_is_gone_from_the_history_unless_it_is_kept(each_store, keeps):
    handle = Handle(each_store, keep_history=keeps)
    handle.append([message(0), {"content": "secret"}])
    handle.append([message(1)])
    handle.replace(
        lambda items: [{"content": "redacted"} if "secret" in str(item) else item for item in items]
    )
    assert handle.read() == [message(0), {"content": "redacted"}, message(1)]
    assert bool(texts_in(each_store, "secret")) is keeps
    handle.erase()
    assert (handle.read(), bool(texts_in(each_store, "redacted"))) == ([], keeps)
    handle.append([message(2)])
    assert Handle(each_store).read() == [message(2)]


def test_no_byte_of_an_erased_list_stays_in_the_file(folder):
    path = folder / "store.db"
    with outlive.open(f"sqlite:///{path}") as store:
        handle = Handle(store)
        handle.append([{"content": "0123456789-secret"}])
        handle.append([message(1)])
        handle.erase()
    assert b"0123456789-secret" not in path.read_bytes()


def test_an_append_under_an_id_is_done_once(each_store):
    handle = Handle(each_store)
    handle.append([message(0)], id="a")
    handle.append([message(1)], id="b")
    for again in (handle, Handle(each_store)):
        again.append([message(0)], id="a")
        again.append([message(1)], id="b")
        assert again.read() == [message(0), message(1)]


def test_what_cannot_be_stored_is_refused_and_nothing_is_changed(each_store):
    handle = Handle(each_store)
    handle.append([message(0)])
    with pytest.raises(Unencodable, match=r"items\[1\]"):
        handle.append([message(1), object()])
    handle.append([message(1)])
    assert handle.read() == [message(0), message(1)]
    each_store.thread("other").save({"plan": 1})
    with pytest.raises(BadArgument, match="id of its own"):
        StoreHome(each_store, {}, "x").call(lambda store: ThreadList("other").read(store))


def test_inside_a_run_a_list_carries_its_fence(each_store):
    handle, elsewhere = Handle(each_store), ThreadList("elsewhere")
    run = each_store.run("t", run_id="r").start()
    with working_on(run._run):
        handle.append([message(0)])
        handle._home.call(lambda store: elsewhere.append(store, [message(0)]))
    assert next(each_store.thread("t").history()).run == "r"
    assert next(each_store.thread("elsewhere").history()).run is None
    each_store.cancel("r")

    def swallow():
        """As a framework does that makes a message for the model of an error."""
        with working_on(run._run):
            for n in (1, 2):
                with pytest.raises(LeaseLost):
                    handle.append([message(n)])

    with pytest.raises(LeaseLost):
        swallow()
    assert handle.read() == [message(0)]


def test_a_cancelled_append_has_happened_or_not(each_store):
    async def scenario():
        home, items = StoreHome(each_store, {}, "x"), ThreadList("t")
        for n in range(40):
            task = asyncio.create_task(home.acall(lambda store, n=n: items.append(store, [n, n])))
            for _ in range(n % 4):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            stored = await home.acall(items.read)
            assert stored[::2] == stored[1::2], "whole appends"
        await home.acall(lambda store: items.append(store, ["last"]))
        assert (await home.acall(items.read))[-1] == "last"
        home.close()

    asyncio.run(scenario())


def test_a_list_on_a_store_of_a_loop_and_from_other_loops(shared_url):
    items = ThreadList("t")

    async def here():
        store = await outlive.open_async(shared_url)
        async with store:
            home = StoreHome(store, {}, "x")
            await asyncio.gather(*(home.acall(lambda s, n=n: items.append(s, [n])) for n in range(8)))
            assert sorted(await home.acall(items.read)) == list(range(8))
            # another loop, in another thread, while this one is at work
            await asyncio.to_thread(asyncio.run, home.acall(lambda s: items.append(s, [8])))
            assert (await home.acall(items.read))[-1] == 8
            await asyncio.to_thread(home.close)

    asyncio.run(here())
    home = StoreHome.of(shared_url, {}, "x")
    for n in (9, 10):  # a loop for each call, as some frameworks have it
        asyncio.run(home.acall(lambda s, n=n: items.append(s, [n])))
    assert home.call(items.read)[-2:] == [9, 10]
    home.close()


@pytest.mark.parametrize("kind", ["memory:", "sqlite:///{}/s.db", "file:///{}/s"])
def test_lists_that_grow_in_one_turn_of_a_loop_share_a_commit(kind, folder, monkeypatch):
    groups, options = [], {"key": outlive.KeyRing({"k": outlive.KeyRing.new_key()})}
    commit_group = AsyncLocal._commit_group
    monkeypatch.setattr(
        AsyncLocal,
        "_commit_group",
        lambda self, commits: groups.append(commits) or commit_group(self, commits),
    )
    home = StoreHome.of(kind.format(folder), options, "x")
    lists = [ThreadList(f"t{number}") for number in range(20)]

    async def scenario():
        for number in range(3):
            await asyncio.gather(
                *(home.acall(lambda s, i=items, n=number: i.append(s, [n])) for items in lists)
            )
        return [await home.acall(items.read) for items in lists]

    assert asyncio.run(scenario()) == [[0, 1, 2]] * 20
    # The lists are read first, which may take several turns.
    assert [len(group) for group in groups][-2:] == [20, 20]
    assert [home.call(items.read) for items in lists] == [[0, 1, 2]] * 20
    home.close()


def test_one_list_from_loops_in_several_threads_and_from_plain_calls(each_url):
    home, items, each = StoreHome.of(each_url, {}, "x"), ThreadList("t"), 12

    def on_a_loop(number):
        async def scenario():
            for n in range(each):
                await home.acall(lambda s, n=n: items.append(s, [[number, n]]))

        asyncio.run(scenario())

    def plainly(number):
        for n in range(each):
            home.call(lambda s, n=n: items.append(s, [[number, n]]))

    threads = [threading.Thread(target=work, args=(n,)) for n, work in enumerate([on_a_loop] * 3 + [plainly])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = home.call(items.read)
    home.close()
    assert [pair for number in range(4) for pair in stored if pair[0] == number] == [
        [number, n] for number in range(4) for n in range(each)
    ]
    assert len(stored) == 4 * each


@pytest.mark.parametrize("kind", ["memory:", "sqlite:///{}/s.db", "file:///{}/s"])
def test_an_append_under_way_while_its_store_is_closed_ends(kind, folder):
    async def scenario():
        home, items = StoreHome.of(kind.format(folder), {}, "x"), ThreadList("t")
        await home.acall(lambda s: items.append(s, [0]))
        appending = asyncio.create_task(home.acall(lambda s: items.append(s, [1])))
        for _ in range(2):
            await asyncio.sleep(0)
        home.close()
        with contextlib.suppress(StoreClosed):
            await appending
        for work in (items.read, lambda s: items.append(s, [2])):
            with pytest.raises(StoreClosed):
                await home.acall(work)

    asyncio.run(scenario())


def test_a_forked_child_appends_on_a_loop_of_its_own(folder):
    home, items = StoreHome.of(f"sqlite:///{folder}/s.db", {}, "x"), ThreadList("t")

    def append(number):
        asyncio.run(home.acall(lambda s: items.append(s, [number])))

    append(0)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            append(1)
            append(2)
        os._exit(0)
    os.waitpid(child, 0)
    append(3)
    assert home.call(items.read) == [0, 1, 2, 3]
    home.close()


def test_a_relative_url_means_the_folder_that_the_program_is_in(tmp_path, monkeypatch):
    homes = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        homes.append(StoreHome.of("sqlite:///s.db", {}, "x"))
    homes[0].call(lambda store: ThreadList("t").append(store, [1]))
    assert homes[1].call(ThreadList("t").read) == []
    for home in homes:
        home.close()


def test_sessions_of_a_url_share_one_store_until_the_last_is_closed(folder):
    url = f"sqlite:///{folder}/s.db"
    one, other = StoreHome.of(url, {}, "x"), StoreHome.of(url, {}, "x")
    assert one.sync is other.sync
    of_tenant = StoreHome.of(url, {"tenant": "acme"}, "x")
    assert of_tenant.sync is not one.sync
    of_tenant.close()
    for _ in range(2):  # twice: it must not close the store of the other
        one.close()
    other.call(lambda store: ThreadList("t").append(store, [1]))
    other.close()
    with pytest.raises(StoreClosed):
        other.call(lambda store: ThreadList("t").read(store))
    again = StoreHome.of(url, {}, "x")
    assert again.call(lambda store: ThreadList("t").read(store)) == [1]
    shared = again.share()
    again.close()
    assert shared.call(ThreadList("t").read) == [1]
    shared.close()
    assert StoreHome.of("memory:", {}, "x").sync is not StoreHome.of("memory:", {}, "x").sync
