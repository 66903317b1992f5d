"""The addresses of a host: looked up in time, and each dialled in its share of the time.

redis-py would look names up without any deadline, and give every address the whole time.
"""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import Any

import redis.asyncio.connection
import redis.connection

from .server import Deadline, is_address, look_up

_SHORTEST_S = 0.001


def bounded(deadline: Deadline, limit_s: float) -> float | None:
    """Return the time that is left, as a socket takes it."""
    seconds = min(deadline.left_s(), limit_s)
    return None if seconds == float("inf") else max(seconds, _SHORTEST_S)


# Blocking -------------------------------------------------------------------------------------------------


class _EachAddress(redis.connection.Connection):
    """A connection that tries one address after the other."""

    deadline: Deadline
    limits: Any

    def _connect(self) -> Any:
        name, last = self.host, OSError(f"host {self.host!r} cannot be found")
        ends = Deadline(min(self.deadline.left_s(), self.limits.dial_s))
        addresses = _addresses(name, ends)
        try:
            for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
                self.host = address
                self.socket_connect_timeout = bounded(ends, ends.left_s() / left)
                try:
                    return super()._connect()  # type: ignore[no-untyped-call]
                except OSError as error:
                    last = error
            raise last
        finally:
            self.host = name  # which a certificate is checked against


@functools.cache
def each_address(family: type) -> type:
    """Return a family of connections that try each address of their host. A socket of Unix has none."""
    if family is redis.connection.Connection:
        return _EachAddress
    if not issubclass(family, redis.connection.Connection):
        return family
    return type(f"EachAddress{family.__name__}", (family, _EachAddress), {})  # it stands behind TLS


def _addresses(name: str, deadline: Deadline) -> list[str]:
    if not name or is_address(name):
        return [name]
    ours, found = look_up(name)
    with ours:
        ours.settimeout(bounded(deadline, float("inf")))
        with suppress(TimeoutError):
            ours.recv(1)
    return list(found)


# Awaiting ---------------------------------------------------------------------------------------------------


@functools.cache
def one_address(family: type) -> type:
    """Return a family of connections that go to one address of their host."""
    if not issubclass(family, redis.asyncio.connection.Connection):
        return family

    def arguments(self: Any) -> dict[str, Any]:
        given = dict(family._connection_arguments(self))
        if "ssl" in given:
            given.setdefault("server_hostname", given["host"])  # which a certificate is checked against
        return {**given, "host": self.address}

    return type(f"Addressed{family.__name__}", (family,), {"_connection_arguments": arguments})


async def addresses_awaited(name: str, deadline: Deadline) -> list[str]:
    """Return the addresses of a host; none when it could not be found in time."""
    if not name or is_address(name):
        return [name]
    ours, found = look_up(name)
    with ours:
        ours.setblocking(False)
        with suppress(TimeoutError):
            async with asyncio.timeout(bounded(deadline, float("inf"))):
                await asyncio.get_running_loop().sock_recv(ours, 1)
    return list(found)
