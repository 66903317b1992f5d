"""Saves of one moment that share an exchange with Redis: whatever happens to one, the others are stored once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time

import pytest

import outlive
from outlive.backends.redis.exchanges import Exchanges
from outlive.errors import HeadMoved, StoreError
from outlive.runtime.runtime import Deadline
from outlive.testing.patience import PATIENCE_S
from rig.proxy import FaultProxy

CROWD = 32


@pytest.fixture
def proxy(valkey_server):
    with FaultProxy("127.0.0.1", valkey_server.port) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def crowded(url, **options):
    """Give threads that have a first checkpoint each, so that a save is one call."""
    async with outlive.open_async(url, timeout_s=PATIENCE_S, **options) as store:
        threads = [store.thread(f"t{n}") for n in range(CROWD)]
        await asyncio.gather(*(thread.save({"n": 0}) for thread in threads))
        yield threads


async def save_all(threads, number=1, **options):
    saves = (thread.save({"n": number}, **options) for thread in threads)
    return await asyncio.gather(*saves, return_exceptions=True)


async def histories(threads):
    """Return the states of each thread, oldest first."""
    return [
        [checkpoint.state["n"] async for checkpoint in thread.history(states=True)][::-1]
        for thread in threads
    ]


def errors(results):
    return [result for result in results if isinstance(result, BaseException)]


def test_saves_of_one_moment_share_one_exchange(proxy, valkey_url):
    async def main():
        async with crowded(proxy.through(valkey_url)) as threads:
            before = proxy.round_trips
            assert errors(await save_all(threads)) == []
            # The first alone, then all others. On a slow machine the proxy meets them in pieces.
            assert proxy.round_trips - before <= CROWD // 4
            assert await histories(threads) == [[0, 1]] * CROWD

    asyncio.run(main())


def test_enough_saves_leave_before_the_turn_of_the_loop_ends(valkey_server, valkey_url):
    def scripts_run():
        return int(re.search(rb"cmdstat_evalsha:calls=(\d+)", valkey_server.call("INFO", "commandstats"))[1])

    async def main():
        async with crowded(valkey_url) as threads:
            await save_all(threads)  # there is a connection for the group now
            before = scripts_run()
            saves = [asyncio.create_task(thread.save({"n": 2})) for thread in threads]

            async def block_the_loop():
                until = time.monotonic() + PATIENCE_S
                while scripts_run() - before < 17 and time.monotonic() < until:  # the lone one, and a group
                    time.sleep(0.01)
                return scripts_run() - before

            assert await asyncio.create_task(block_the_loop()) >= 17
            await asyncio.gather(*saves)
            assert await histories(threads) == [[0, 1, 2]] * CROWD

    asyncio.run(main())


def test_a_group_whose_task_never_ran_gives_its_connection_up():
    class Begun:
        is_abandoned = False

        def abandon(self):
            self.is_abandoned = True

    begun = Begun()

    async def send(group, deadline, begun):
        raise AssertionError("its task was cancelled before it began")

    async def main():
        exchanges = Exchanges(lambda group: begun, send, 4)
        calls = [asyncio.create_task(exchanges.call(("PING",), Deadline(PATIENCE_S))) for _ in range(16)]
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await asyncio.sleep(0)
        assert begun.is_abandoned

    asyncio.run(main())


def test_a_lone_save_is_sent_at_once(proxy, valkey_url):
    async def main():
        async with crowded(proxy.through(valkey_url)) as threads:
            before = proxy.round_trips
            for number in range(5):
                await threads[0].save({"n": number})
            assert proxy.round_trips - before == 5

    asyncio.run(main())


def test_a_refusal_touches_no_other_save_of_its_group(valkey_url):
    async def main():
        async with crowded(valkey_url) as threads:
            saves = [
                thread.save({"n": 1}, **({"expect": "another"} if number % 3 == 1 else {}))
                for number, thread in enumerate(threads)
            ]
            results = await asyncio.gather(*saves, return_exceptions=True)
            for number, result in enumerate(results):
                assert isinstance(result, HeadMoved) == (number % 3 == 1)
            expected = [[0] if number % 3 == 1 else [0, 1] for number in range(CROWD)]
            assert await histories(threads) == expected

    asyncio.run(main())


@pytest.mark.parametrize("skip", [0, 1])
def test_saves_whose_reply_is_lost_are_stored_once(skip, proxy, valkey_url):
    async def main():
        async with crowded(proxy.through(valkey_url)) as threads:
            proxy.lose_reply(skip=skip)  # of the lone one, or of the group
            assert errors(await save_all(threads)) == []
            assert proxy.replies_lost == 1
            assert await histories(threads) == [[0, 1]] * CROWD

    asyncio.run(main())


@pytest.mark.parametrize("way, after_bytes", [("request", 5_000), ("reply", 900)])
def test_a_connection_that_breaks_in_the_middle_of_a_group_loses_and_repeats_nothing(
    way, after_bytes, proxy, valkey_url
):
    async def main():
        async with crowded(proxy.through(valkey_url)) as threads:
            proxy.cut(after_bytes, of=way)
            assert errors(await save_all(threads)) == []
            assert proxy.cuts == 1
            assert await histories(threads) == [[0, 1]] * CROWD

    asyncio.run(main())


def test_a_server_that_has_forgotten_its_scripts_stores_the_whole_group(valkey_server, valkey_url):
    async def main():
        async with crowded(valkey_url) as threads:
            await asyncio.to_thread(valkey_server.call, "SCRIPT", "FLUSH")
            assert errors(await save_all(threads)) == []
            assert await histories(threads) == [[0, 1]] * CROWD

    asyncio.run(main())


def test_a_cancelled_save_takes_no_other_along_and_is_not_stored_after_a_later_one(proxy, valkey_url):
    async def main():
        async with crowded(proxy.through(valkey_url)) as threads:
            proxy.mode = "stall"
            tasks = [asyncio.create_task(thread.save({"n": 1})) for thread in threads]
            await asyncio.sleep(0.05)  # all are sent, or wait to be
            for task in tasks[1::4]:
                task.cancel()
            await asyncio.sleep(0)
            proxy.mode = "pass"
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(result, asyncio.CancelledError) for result in results] == [
                number % 4 == 1 for number in range(CROWD)
            ]
            assert errors(await save_all(threads, 2)) == []
            for number, states in enumerate(await histories(threads)):
                assert states in ([[0, 1, 2], [0, 2]] if number % 4 == 1 else [[0, 1, 2]])

    asyncio.run(main())


def test_each_save_of_a_group_has_its_own_deadline(proxy, valkey_url):
    async def main():
        async with crowded(proxy.through(valkey_url)) as threads:
            proxy.mode = "stall"
            tasks = [
                asyncio.create_task(thread.save({"n": 1}, timeout_s=0.2 if number % 2 else PATIENCE_S))
                for number, thread in enumerate(threads)
            ]
            await asyncio.wait(tasks[1::2], timeout=PATIENCE_S / 4)
            assert all(task.done() for task in tasks[1::2])
            assert not any(task.done() for task in tasks[::2])
            proxy.mode = "pass"
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert errors(results[::2]) == []
            assert all(isinstance(result, StoreError) for result in results[1::2])
            assert errors(await save_all(threads, 2)) == []
            for number, states in enumerate(await histories(threads)):
                assert states in ([[0, 1, 2], [0, 2]] if number % 2 else [[0, 1, 2]])

    asyncio.run(main())


def test_a_pool_of_one_connection_serves_groups_and_other_calls(valkey_url):
    async def main():
        async with crowded(valkey_url, pool_size=1) as threads:
            saves = [thread.save({"n": 1}) for thread in threads]
            loads = [thread.load() for thread in threads]
            assert errors(await asyncio.gather(*saves, *loads, return_exceptions=True)) == []
            assert await histories(threads) == [[0, 1]] * CROWD

    asyncio.run(main())


def test_saves_of_one_thread_at_one_moment_are_all_stored(valkey_url):
    async def main():
        async with crowded(valkey_url) as threads:
            saved = await asyncio.gather(*(threads[0].save({"n": number}) for number in range(1, 40)))
            assert sorted(checkpoint.seq for checkpoint in saved) == list(range(2, 41))
            assert sorted((await histories(threads[:1]))[0]) == list(range(40))

    asyncio.run(main())


def test_large_saves_are_sent_in_several_groups(proxy, valkey_url):
    async def main():
        noise = random.Random(1)
        async with crowded(proxy.through(valkey_url)) as threads:
            states = [{"n": number, "data": noise.randbytes(60_000)} for number in range(CROWD)]
            saves = (thread.save(state) for thread, state in zip(threads, states, strict=True))
            before = proxy.round_trips
            await asyncio.gather(*saves)
            assert 4 < proxy.round_trips - before < CROWD
            assert [await thread.load() for thread in threads] == states

    asyncio.run(main())


def test_a_loop_that_ends_in_the_middle_of_a_group_leaves_the_store_usable_in_the_next(proxy, valkey_url):
    async def begin():
        store = await outlive.open_async(proxy.through(valkey_url), timeout_s=PATIENCE_S)
        threads = [store.thread(f"t{n}") for n in range(CROWD)]
        await save_all(threads, 0)
        proxy.mode = "stall"
        for thread in threads:
            asyncio.ensure_future(thread.save({"n": 1}))  # noqa: RUF006  # the loop ends them
        await asyncio.sleep(0.05)
        return store, threads

    async def finish(store, threads):
        assert errors(await save_all(threads, 2)) == []
        for states in await histories(threads):
            assert states in ([0, 1, 2], [0, 2])
        await store.close()

    store, threads = asyncio.run(begin())
    proxy.mode = "pass"
    asyncio.run(finish(store, threads))


def test_a_slot_that_moves_in_the_middle_of_groups_loses_nothing(cluster):
    async def main():
        async with crowded(cluster.url) as threads:
            slot = cluster.slot_of(threads[0]._engine.backend.session.keys(threads[0]._key).row)
            is_over = asyncio.Event()
            numbers = []

            async def save_on():
                while not is_over.is_set():
                    numbers.append(len(numbers) + 1)
                    assert errors(await save_all(threads, numbers[-1])) == []

            saver = asyncio.create_task(save_on())

            def move():
                target = next(server for server in cluster.masters() if server is not cluster.master_of(slot))
                with cluster.moving(slot, target) as step:
                    step(3)

            await asyncio.to_thread(move)
            is_over.set()
            await saver
            assert await histories(threads) == [[0, *numbers]] * CROWD

    asyncio.run(main())


def test_a_failover_of_sentinels_in_the_middle_of_groups_fails_no_save_for_good(sentinels):
    async def main():
        async with crowded(sentinels.url) as threads:
            is_over = asyncio.Event()
            acknowledged = 0

            async def save_on():
                nonlocal acknowledged
                number = 0
                while not is_over.is_set() or acknowledged < number:
                    number += 1
                    results = await save_all(threads, number)
                    assert all(isinstance(error, StoreError) for error in errors(results))
                    if not errors(results):
                        acknowledged = number

            saver = asyncio.create_task(save_on())
            await asyncio.to_thread(sentinels.kill_master)
            await asyncio.to_thread(sentinels.start)
            is_over.set()
            await saver
            for states in await histories(threads):
                assert states == sorted(set(states))  # none twice, none after a later one
                assert states[-1] == acknowledged

    asyncio.run(main())
