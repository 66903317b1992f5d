"""Waiting for sockets and looking up hosts, sync and async, never past a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import select
import socket
import threading
from typing import Protocol

from outlive.runtime.runtime import Deadline

READ, WRITE = 1, 2  # the values of psycopg's Wait and Ready


class Wait(Protocol):
    """Waits until a socket is ready. Returns what it is ready for, 0 when the time is over."""

    async def __call__(self, fileno: int, want: int, deadline: Deadline) -> int: ...


async def wait_blocking(fileno: int, want: int, deadline: Deadline) -> int:
    """Wait in this thread, without suspending."""
    poller = select.poll()
    poller.register(fileno, (select.POLLIN if want & READ else 0) | (select.POLLOUT if want & WRITE else 0))
    left_s = deadline.remaining_s()
    events = poller.poll(None if left_s == float("inf") else left_s * 1000)
    if not events:
        return 0
    event = events[0][1]
    ready = (READ if event & select.POLLIN else 0) | (WRITE if event & select.POLLOUT else 0)
    return ready or want  # hung up: the next operation fails with the reason


async def wait_suspended(fileno: int, want: int, deadline: Deadline) -> int:
    """Wait in the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    left_s = deadline.remaining_s()
    timer = None if left_s == float("inf") else loop.call_later(left_s, _settle, future, 0)
    if want & READ:
        loop.add_reader(fileno, _settle, future, READ)
    if want & WRITE:
        loop.add_writer(fileno, _settle, future, WRITE)
    try:
        return await future
    finally:
        if timer is not None:
            timer.cancel()
        if want & READ:
            loop.remove_reader(fileno)
        if want & WRITE:
            loop.remove_writer(fileno)


def _settle(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


async def look_up(host: str, wait: Wait, deadline: Deadline) -> list[str]:
    """Return the addresses of a host; none when it is unknown or the time is over.

    The system's lookup has no deadline. A thread does it, which may be stuck for minutes.
    """
    if _is_address(host):
        return [host]
    receiver, sender = socket.socketpair()
    addresses: list[str] = []

    def ask() -> None:
        with sender, contextlib.suppress(OSError):
            rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses.extend(dict.fromkeys(str(row[4][0]) for row in rows))

    threading.Thread(target=ask, name="outlive-resolver", daemon=True).start()
    with receiver:
        # The thread closes its end when it is done, which makes ours readable.
        await wait(receiver.fileno(), READ, deadline)
    return list(addresses)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
