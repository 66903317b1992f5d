"""Waiting for work in PostgreSQL, by LISTEN on a connection of its own.

A commit that stores a waking entry notifies the channel of its store and tenant inside its own
transaction, so the notification comes when the entry can be read, and never without it. Other
commits notify nothing. PgBouncer in transaction mode accepts LISTEN and delivers no notification:
then every wait takes its full time, and workers find work at their own interval.
"""

from __future__ import annotations

import hashlib
import os

from outlive.backends.postgres.connection import Connection
from outlive.backends.postgres.pool import Pool
from outlive.backends.postgres.rows import digest
from outlive.backends.server.attempts import AttemptFailed
from outlive.errors import StoreClosed, StoreError
from outlive.runtime.runtime import Deadline

_CONNECT_S = 2.0  # at least, however short the wait is
_PAUSE_S = 1.0  # before the next attempt to connect


def channel(schema: str, tenant: str) -> str:
    """Return the name of the channel of a tenant, as the function `channel_1` does."""
    return f"outlive_{hashlib.sha256(schema.encode() + digest(tenant)).hexdigest()[:32]}"


class PostgresWatch:
    """Listens to the channel of a tenant; connects again when the server was lost."""

    def __init__(self, pool: Pool, channel: str) -> None:
        self._pool = pool
        self._channel = channel
        self._connection: Connection | None = None
        self._pid = os.getpid()

    async def listen(self, timeout_s: float) -> bool:
        """Connect and listen; tell whether that was possible."""
        deadline = Deadline(max(_CONNECT_S, timeout_s))
        try:
            self._connection = await self._pool.connect(deadline)
            await self._connection.run(f"listen {self._channel}", deadline)
        except StoreClosed:
            raise
        except (AttemptFailed, StoreError):  # the next call of the caller says what is wrong
            await self.close()
            return False
        except BaseException:
            await self.close()
            raise
        return True

    async def wait(self, timeout_s: float) -> bool:
        """Return True when work was stored or may have been, False when the time is over."""
        deadline = Deadline(timeout_s)
        if self._pid != os.getpid():  # a forked child: the connection is the parent's
            self._pid, self._connection = os.getpid(), None
        while True:
            if self._connection is None and await self.listen(deadline.remaining_s()):
                return True
            if self._connection is not None:
                try:
                    return await self._connection.notified(deadline)
                except AttemptFailed:
                    await self.close()
                    continue
            if not deadline.remaining_s():
                return False
            await self._pool.pause(min(_PAUSE_S, deadline.remaining_s()))

    async def close(self) -> None:
        """Stop listening."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
