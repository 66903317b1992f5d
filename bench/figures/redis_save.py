"""One save at the end of a long conversation in Valkey, `appendonly` with `appendfsync everysec`, alone and in a cluster.

Two lanes take turns in random order at each step: the save; and a bare SET of the new message alone (redis-py with hiredis).
Two `packb` of the state, timed with a warm buffer, are added to the SET. The last steps count. The cluster has three masters
and three replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import redis
from redis.cluster import ClusterNode

import ours
import servers
import yardstick
from measure import Race, Rounds
from races import against_least, bare_lane, race_steps, save_lane
from scale import Scale
from servers import ClusterServers
from table import Row
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    with servers.valkey() as server:
        yield _row("Valkey", 2, scale, states, server.url, lambda: redis.Redis.from_url(server.url))
    with servers.cluster() as cluster:
        yield _row("Valkey Cluster", 2.5, scale, states, cluster.url, lambda: _client(cluster))


def _client(cluster: ClusterServers) -> redis.RedisCluster:
    nodes = [ClusterNode(server.host, server.port) for server in cluster.servers]
    return redis.RedisCluster(startup_nodes=nodes)


def _row(
    name: str,
    bar: float,
    scale: Scale,
    states: list[State],
    url: str,
    client: Callable[[], redis.Redis | redis.RedisCluster],
) -> Row:
    races = [_round(states, url, client(), n) for n in range(scale.server_rounds)]
    what = f"{name}: save at step {scale.steps:,} / (bare SET + 2 packb)"
    return against_least(what, Rounds(races), scale.window, bar)


def _round(states: list[State], url: str, client: redis.Redis | redis.RedisCluster, number: int) -> Race:
    thread_id = f"talk-{number}"
    with yardstick.BareRedis(client) as bare, ours.open_store(url) as store:
        lanes = {"save": save_lane(store.thread(thread_id)), "bare": bare_lane(bare.insert)}
        race = race_steps(lanes, states, number)
    ours.expect(url, states[-1], thread_id)
    return race
