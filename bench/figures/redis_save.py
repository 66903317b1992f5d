"""One save at the end of a long conversation in Valkey, `appendonly` with `appendfsync everysec`, alone and in a cluster.

Two lanes take turns in random order at each of the last steps: the save; and a bare SET of the new message alone
(redis-py with hiredis). Two `packb` of the state, timed with a warm buffer, are added to the SET. The median of the
rounds counts. The cluster has three masters and three replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import redis
from redis.cluster import ClusterNode

import ours
import servers
import yardstick
from measure import Race, settled
from races import SaveRace
from scale import Scale
from servers import ClusterServers
from table import Row, at_most, milliseconds
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
    races = [_round(states, scale.tail, url, client(), n) for n in range(scale.server_rounds)]
    save, least = median(race.wall("save") for race in races), median(map(yardstick.least, races))
    ratio = median(race.wall("save") / yardstick.least(race) for race in races)
    note = f"{milliseconds(save)} / {milliseconds(least)}"
    return at_most(f"{name}: save at step {scale.steps:,} / (bare SET + 2 packb)", ratio, bar, note)


def _round(
    states: list[State], tail: int, url: str, client: redis.Redis | redis.RedisCluster, number: int
) -> Race:
    thread_id = f"talk-{number}"
    with settled(), yardstick.BareRedis(client) as bare, ours.open_store(url) as store:
        race = SaveRace(store.thread(thread_id), lambda _, new: bare.insert(new), seed=number).run(
            states, tail
        )
    ours.expect(url, states[-1], thread_id)
    return race
