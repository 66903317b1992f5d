"""redis-py's connections, made ours: no timeouts and retries of their own, and hosts that are found in time.

redis-py would look names up without any deadline, and give every address of a host the whole time.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import suppress
from typing import Any

import redis.asyncio.connection
import redis.connection

from outlive.backends.server.attempts import Deadline, is_address, look_up

_SHORTEST_S = 0.001


def bounded(deadline: Deadline, limit_s: float) -> float | None:
    """Return the time that is left, as a socket takes it."""
    seconds = min(deadline.left_s(), limit_s)
    return None if seconds == float("inf") else max(seconds, _SHORTEST_S)


def own_options(family: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a connection, without timeouts and retries of its own and without small talk."""
    fixed: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "retry_on_timeout": False,
        "retry_on_error": [],
        "retry": None,
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
        "socket_keepalive": True,
    }
    if "path" in options:
        del fixed["socket_keepalive"]
    known = _parameters(family)
    quiet = {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}
    return {**options, **fixed, **quiet}


@functools.cache
def _parameters(family: type) -> frozenset[str]:
    return frozenset(
        name
        for base in family.__mro__
        for name in inspect.signature(base.__init__).parameters  # type: ignore[misc]
    )


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
