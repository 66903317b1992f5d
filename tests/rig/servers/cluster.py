"""A cluster of Valkey servers: slots spread over masters, each with a replica, and slots on the move."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST
from rig.servers.resp import Refused
from rig.servers.server import ServerFailed, wait_until
from rig.servers.valkey import ValkeyServer

SLOTS = 16_384


@dataclass(frozen=True)
class Node:
    """A line of CLUSTER NODES: what one node thinks of another."""

    id: str
    port: int
    flags: frozenset[str]
    master: str
    linked: bool
    slots: tuple[range, ...]

    @classmethod
    def parse(cls, line: str) -> Node:
        id, address, flags, master, _, _, _, link, *slots = line.split()
        port = int(address.partition("@")[0].rpartition(":")[2])
        spans = [span.partition("-") for span in slots if not span.startswith("[")]  # [ tells of a move
        ranges = tuple(range(int(first), int(last or first) + 1) for first, _, last in spans)
        return cls(id, port, frozenset(flags.split(",")), master, link == "connected", ranges)

    @property
    def is_master(self) -> bool:
        return "master" in self.flags and not self.flags & {"fail", "fail?"}

    def has(self, slot: int) -> bool:
        return any(slot in span for span in self.slots)


class ClusterServers:
    """3 masters and 3 replicas by default. `url` names all of them."""

    def __init__(
        self,
        *,
        masters: int = 3,
        appendonly: bool = False,
        node_timeout_ms: int = 1_000,
        ram: bool = False,
    ) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(node_timeout_ms),
            # A replica whose master was only just lost is good enough here, however long they were apart.
            "cluster-replica-validity-factor": "0",
        }
        self.servers = [
            ValkeyServer(appendonly=appendonly, settings=settings, ram=ram) for _ in range(2 * masters)
        ]
        self._masters = masters
        self._is_formed = False

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(server.address for server in self.servers)}"

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start what does not run, and wait until all nodes agree that all slots are served and replicated."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_until_ready()
        if not self._is_formed:
            self._form()
            self._is_formed = True
        wait_until(self._is_whole, PATIENCE_S, "the cluster is not whole", alive=self.servers[0])
        return self

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ClusterServers {self.url}>"

    # Looks ------------------------------------------------------------------------------------------------------

    def nodes(self, seen_by: ValkeyServer | None = None) -> list[Node]:
        """Return the nodes as one of the servers sees them."""
        server = seen_by or next(server for server in self.servers if server.is_running)
        return [Node.parse(line) for line in self._lines(server)]

    def master_of(self, slot: int) -> ValkeyServer:
        """Return the server that serves a slot."""
        for node in self.nodes():
            if node.is_master and node.has(slot):
                return self._server(node)
        raise ServerFailed(f"nobody serves slot {slot}")

    def slot_of(self, key: str | bytes) -> int:
        return int(self.servers[0].call("CLUSTER", "KEYSLOT", key))

    def masters(self) -> list[ValkeyServer]:
        return [self._server(node) for node in self.nodes() if node.is_master]

    # Trouble ----------------------------------------------------------------------------------------------------

    def kill_master_of(self, slot: int, *, wait: bool = True) -> ValkeyServer:
        """Kill the master of a slot and return it; wait until a replica serves in its place. `start` brings it back."""
        dead = self.master_of(slot)
        dead.kill()
        if wait:
            self.wait_for_failover(slot, dead)
        return dead

    def wait_for_failover(self, slot: int, old: ValkeyServer, timeout_s: float = PATIENCE_S) -> None:
        wait_until(lambda: self._has_left(slot, old), timeout_s, f"nobody took over slot {slot}")

    def move_slot(self, slot: int, to: ValkeyServer) -> None:
        """Move a slot with its keys to another master, while clients continue to read and write."""
        with self.moving(slot, to):
            pass

    @contextlib.contextmanager
    def moving(self, slot: int, to: ValkeyServer) -> Iterator[Callable[[int], int]]:
        """Hold a slot in the middle of its move; the end of the block finishes it.

        Yields a function that moves some of its keys now and returns how many. A key that is gone already is asked for with
        ASK; a command on keys of both sides gets TRYAGAIN.
        """
        source, ids = self.master_of(slot), {node.port: node.id for node in self.nodes()}
        if source is to:
            raise ServerFailed(f"slot {slot} is already there")
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to.port])

        def move_keys(count: int) -> int:
            keys: list[bytes] = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
            if keys:
                source.call("MIGRATE", HOST, to.port, "", 0, 5_000, "KEYS", *keys)
            return len(keys)

        try:
            yield move_keys
        finally:
            while move_keys(100):
                pass
            self._settle(slot, to, ids[to.port])

    def abandon_moves(self) -> None:
        """Leave slots where they are that a failed test has left on the move; keys that went ahead are out of reach."""
        for server in self.masters():
            own = next(line for line in self._lines(server) if "myself" in line)
            for slot in re.findall(r"\[(\d+)-", own):
                server.call("CLUSTER", "SETSLOT", slot, "STABLE")

    # ------------------------------------------------------------------------------------------------------------

    def _lines(self, server: ValkeyServer) -> list[str]:
        return list(server.call("CLUSTER", "NODES").decode().splitlines())

    def _server(self, node: Node) -> ValkeyServer:
        return next(server for server in self.servers if server.port == node.port)

    def _settle(self, slot: int, owner: ValkeyServer, id: str) -> None:
        # The new owner first: between two calls the old one alone would send clients to somebody who sends them back.
        others = [server for server in self.masters() if server is not owner]
        for server in (owner, *others):
            server.call("CLUSTER", "SETSLOT", slot, "NODE", id)
        wait_until(
            lambda: self._all_see(slot, owner), PATIENCE_S, f"not all nodes see the move of slot {slot}"
        )

    def _form(self) -> None:
        masters, replicas = self.servers[: self._masters], self.servers[self._masters :]
        for number, server in enumerate(masters):
            first, last = SLOTS * number // self._masters, SLOTS * (number + 1) // self._masters - 1
            server.call("CLUSTER", "ADDSLOTS", *range(first, last + 1))
        for epoch, server in enumerate(self.servers, 1):
            server.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        # Each meets each, instead of waiting for gossip to spread.
        for number, server in enumerate(self.servers):
            for other in self.servers[:number]:
                server.call("CLUSTER", "MEET", HOST, other.port)
        wait_until(self._all_met, PATIENCE_S, "the nodes have not met", alive=self.servers[0])
        for master, replica in zip(masters, replicas, strict=True):
            replica.call("CLUSTER", "REPLICATE", self._id(master))

    def _id(self, server: ValkeyServer) -> str:
        return str(server.call("CLUSTER", "MYID").decode())

    def _all_met(self) -> bool:
        views = [self.nodes(server) for server in self.servers]
        return all(
            len(nodes) == len(self.servers)
            and all(node.linked and not node.flags & {"handshake"} for node in nodes)
            for nodes in views
        )

    def _is_whole(self) -> bool:
        return all(map(self._is_content, self.servers))

    def _is_content(self, server: ValkeyServer) -> bool:
        """Tell whether a node sees all others alive, with all slots, and half of them as replicas that follow."""
        if b"cluster_state:ok" not in server.call("CLUSTER", "INFO"):
            return False
        nodes = self.nodes(server)
        masters = [node for node in nodes if node.is_master and node.slots]
        role = server.info("replication")
        return (
            len(masters) == self._masters
            and all(node.linked and not node.flags & {"fail", "fail?"} for node in nodes)
            and (role["role"] == "master" or role["master_link_status"] == "up")
            and (role["role"] == "slave" or role["connected_slaves"] == "1")
        )

    def _has_left(self, slot: int, old: ValkeyServer) -> bool:
        """Tell whether all that live see another master of a slot, and it serves."""
        living = [server for server in self.servers if server is not old and server.is_running]
        owners = {
            node.port for server in living for node in self.nodes(server) if node.is_master and node.has(slot)
        }
        if len(owners) != 1 or old.port in owners:
            return False
        try:
            return all(b"cluster_state:ok" in server.call("CLUSTER", "INFO") for server in living)
        except (OSError, Refused):
            return False

    def _all_see(self, slot: int, owner: ValkeyServer) -> bool:
        running = [server for server in self.servers if server.is_running]
        return all(
            node.has(slot) == (node.port == owner.port)
            for server in running
            for node in self.nodes(server)
            if node.is_master
        )
