"""Waiting for work in Redis, by SUBSCRIBE on a connection of its own.

The script of a commit that stores a waking entry publishes to the channel of its store and tenant.
Replicas and the nodes of a Cluster pass that on, so one subscription, to any primary, hears of all
threads. A user without the right to the channel (`&outlive:*` in its ACL) publishes nothing and
hears nothing: then workers find work at their own interval.
"""

from __future__ import annotations

from outlive.backends.redis.connection import Connection, ErrorReply
from outlive.backends.redis.keys import wake_channel
from outlive.backends.redis.session import Session
from outlive.backends.redis.topology import Pool
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.errors import StoreError

_CONNECT_S = 2.0  # at least, however short the wait is
_PAUSE_S = 1.0  # before the next attempt to connect


class RedisWatch:
    """Subscribes to the channel of a tenant; connects again when the server was lost."""

    def __init__(self, session: Session, tenant: str) -> None:
        self._session = session
        self._io_mode = session.client.io_mode
        self._channel = wake_channel(session.prefix, tenant)
        self._connection: Connection | None = None
        self._pool: Pool | None = None
        self._owner: object = None

    async def listen(self, timeout_s: float) -> bool:
        """Connect and subscribe; tell whether that was possible."""
        deadline, nodes = Deadline(max(_CONNECT_S, timeout_s)), self._session.client.nodes
        try:
            self._pool = await nodes.pool(0, deadline)
            connection = await self._pool.connect(deadline)
            (reply,) = await connection.call([("SUBSCRIBE", self._channel)], deadline)
        except (AttemptFailed, StoreError):  # the next call of the caller says what is wrong
            self._distrust()
            return False
        if isinstance(reply, ErrorReply):
            connection.close()
            return False
        self._connection, self._owner = connection, self._io_mode.owner()
        return True

    async def wait(self, timeout_s: float) -> bool:
        """Return True when work was stored or may have been, False when the time is over."""
        deadline = Deadline(timeout_s)
        if self._connection is not None and self._owner != self._io_mode.owner():
            self._connection.close()  # this process's copy of what its parent uses
            self._connection = None
        while True:
            if self._connection is None and await self.listen(deadline.remaining_s()):
                return True
            if self._connection is not None:
                try:
                    return await self._message(self._connection, deadline)
                except AttemptFailed:
                    self._connection = None
                    self._distrust()
                    continue
                except BaseException:  # cancelled: the connection was closed
                    self._connection = None
                    raise
            if not deadline.remaining_s():
                return False
            await self._io_mode.pause(min(_PAUSE_S, deadline.remaining_s()))

    async def _message(self, connection: Connection, deadline: Deadline) -> bool:
        """Wait for one message, and take those that came with it."""
        if await connection.next_message(deadline) is None:
            return False
        over = Deadline(0)
        while await connection.next_message(over) is not None:
            pass
        return True

    def _distrust(self) -> None:
        if self._pool is not None:
            self._session.client.nodes.distrust(self._pool)
            self._pool = None

    async def close(self) -> None:
        """Stop listening."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
