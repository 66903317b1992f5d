"""Waiting for sockets and looking up hosts, sync and async, never past a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from outlive.backends.server.socket_thread import SocketThread
from outlive.runtime.platform import READ, WRITE, system
from outlive.runtime.runtime import Deadline


class Wait(Protocol):
    """Waits until a socket is ready. Returns what it is ready for, 0 when the time is over."""

    async def __call__(self, fileno: int, want: int, deadline: Deadline) -> int: ...


async def wait_blocking(fileno: int, want: int, deadline: Deadline) -> int:
    """Wait in this thread, without suspending."""
    left_s = deadline.remaining_s()
    return system.wait_for_socket(fileno, want, None if left_s == float("inf") else left_s)


async def wait_suspended(fileno: int, want: int, deadline: Deadline) -> int:
    """Wait in the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    left_s = deadline.remaining_s()
    timer = None if left_s == float("inf") else loop.call_later(left_s, _settle, future, 0)
    end = _watch(loop, fileno, want, future)
    try:
        return await future
    finally:
        if timer is not None:
            timer.cancel()
        end()


def _watch(
    loop: asyncio.AbstractEventLoop, fileno: int, want: int, future: asyncio.Future[int]
) -> Callable[[], object]:
    """Let a future have what a socket is ready for, and return how to end that."""
    try:
        if want & READ:
            loop.add_reader(fileno, _settle, future, READ)
        if want & WRITE:
            loop.add_writer(fileno, _settle, future, WRITE)
    except NotImplementedError:  # the default loop of Windows waits for no sockets
        return _socket_thread.watch(fileno, want, lambda ready: _hand_over(loop, future, ready))
    return lambda: (loop.remove_reader(fileno), loop.remove_writer(fileno))


def _hand_over(loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], ready: int) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits any more
        loop.call_soon_threadsafe(_settle, future, ready)


_socket_thread = SocketThread()


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
