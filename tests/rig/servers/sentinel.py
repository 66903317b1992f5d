"""A Valkey master with replicas, watched by sentinels that make a replica the master when it dies."""

from __future__ import annotations

import contextlib
from typing import Self

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST
from rig.servers.resp import Refused
from rig.servers.server import wait_until
from rig.servers.valkey import ValkeyServer

SERVICE = "outlive"


class Sentinel(ValkeyServer):
    """One that watches. It rewrites its own configuration, so that it needs a file."""

    kind = "sentinel"

    def __init__(self, master: ValkeyServer, *, quorum: int, down_after_ms: int, ram: bool) -> None:
        super().__init__(ram=ram)
        self._text = (
            f"sentinel monitor {SERVICE} {HOST} {master.port} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
            f"sentinel parallel-syncs {SERVICE} 2\n"
        )

    def _prepare(self) -> None:
        path = self.folder / "sentinel.conf"
        if not path.exists():
            path.write_text(f"port {self.port}\nbind {HOST}\ndir {self.folder}\n{self._text}")

    def _command(self) -> list[str]:
        return [str(self.program), str(self.folder / "sentinel.conf"), "--sentinel"]

    def hurry(self) -> None:
        """Connect, ping and ask more often; older sentinels cannot.

        By default a sentinel connects to a new master after up to 1 s and, with a short `down_after_ms`, takes it for dead
        before that: one failover would bring on the next. No less than 200 ms, though: a replica of which it has not
        heard for 5 of these periods is no candidate, and while a master is down it asks them once a second.
        """
        with contextlib.suppress(Refused):
            self.call("SENTINEL", "DEBUG", "PING-PERIOD", 400, "INFO-PERIOD", 500, "PUBLISH-PERIOD", 500)

    def master_port(self) -> int:
        return int(self.call("SENTINEL", "get-master-addr-by-name", SERVICE)[1])

    def is_failing_over(self) -> bool:
        return "failover_in_progress" in _pairs(self.call("SENTINEL", "master", SERVICE))["flags"]

    def seen(self) -> tuple[int, int]:
        """Return how many replicas that are in order, and how many other sentinels, it knows."""
        replicas = [_pairs(found) for found in self.call("SENTINEL", "replicas", SERVICE)]
        others = self.call("SENTINEL", "sentinels", SERVICE)
        return sum(_is_in_order(found) for found in replicas), len(others)


class Sentinels:
    """1 master, 2 replicas, 3 sentinels. `url` names the sentinels and the service that they watch."""

    def __init__(self, *, appendonly: bool = False, down_after_ms: int = 1_000, ram: bool = False) -> None:
        first = ValkeyServer(appendonly=appendonly, ram=ram)
        self.servers = [first]
        self.servers += [ValkeyServer(appendonly=appendonly, replica_of=first, ram=ram) for _ in range(2)]
        self.sentinels = [Sentinel(first, quorum=2, down_after_ms=down_after_ms, ram=ram) for _ in range(3)]
        self.service = SERVICE

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(one.address for one in self.sentinels)}/{self.service}"

    @property
    def master(self) -> ValkeyServer:
        """The server that the sentinels call master."""
        port = next(one for one in self.sentinels if one.is_running).master_port()
        return next(server for server in self.servers if server.port == port)

    def start(self) -> Self:
        """Start what does not run, and wait until every sentinel knows of all the others."""
        self._redirect()
        for servers in (self.servers, self.sentinels):
            for server in servers:
                server.start(wait=False)
            for server in servers:
                server.wait_until_ready()
        for sentinel in self.sentinels:
            sentinel.hurry()
        wait_until(self._is_whole, PATIENCE_S, "the sentinels do not agree", alive=self.sentinels[0])
        return self

    def kill_master(self) -> ValkeyServer:
        """Kill the master, wait until another has taken its place, and return the dead one; `start` brings it back."""
        dead = self.master
        dead.kill()
        self.wait_for_failover(dead)
        return dead

    def wait_for_failover(self, old: ValkeyServer, timeout_s: float = PATIENCE_S) -> ValkeyServer:
        """Wait until all sentinels name another master than the old one, it takes writes, and the others follow it."""
        wait_until(lambda: self._has_left(old), timeout_s, "no failover", alive=self.sentinels[0])
        return self.master

    def close(self) -> None:
        for server in (*self.sentinels, *self.servers):
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
        return f"<Sentinels {self.url}>"

    # ------------------------------------------------------------------------------------------------------------

    def _redirect(self) -> None:
        """Let a dead master come back as a replica at once; the sentinels would take their time."""
        if any(sentinel.is_running for sentinel in self.sentinels):
            master = self.master
            for server in self.servers:
                server.replica_of = None if server is master else master

    def _is_whole(self) -> bool:
        return all(sentinel.seen() == (len(self.servers) - 1, 2) for sentinel in self.sentinels)

    def _has_left(self, old: ValkeyServer) -> bool:
        ports = {sentinel.master_port() for sentinel in self.sentinels}
        busy = any(sentinel.is_failing_over() for sentinel in self.sentinels)
        if busy or len(ports) > 1 or old.port in ports:
            return False
        try:
            return self.master.info("replication")["role"] == "master"
        except (OSError, Refused):
            return False


def _pairs(flat: list[bytes]) -> dict[str, str]:
    texts = [part.decode() for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _is_in_order(replica: dict[str, str]) -> bool:
    return replica["flags"] == "slave" and replica["master-link-status"] == "ok"
