"""One connection to a Redis server, sync or async, that never waits past a deadline.

hiredis writes and parses the protocol (RESP2); the socket never blocks, and only the waiting for it
differs between sync and async. A connection that missed a deadline or was cancelled has a late
reply on its way, which nobody must read: it is closed and never used again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

import hiredis

from outlive.backends.redis.io_modes import IOMode
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.backends.server.sockets import look_up
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, StoreFull, StoreUnavailable
from outlive.runtime.platform import READ, WRITE, system

_TRANSIENT = ("LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "BUSY")
# A script that fails passes the code of its cause on, somewhere inside its message.
_code = re.compile(rf"\b({'|'.join((*_TRANSIENT, 'OOM'))})\b|max number of clients")
_credentials = re.compile(
    r"(WRONGPASS|NOAUTH|NOPERM)\b|ERR (invalid password|Client sent AUTH|AUTH <password> called)"
)
_no_command = re.compile(r"NOAUTH\b|LOADING\b|ERR max number of clients")


class ErrorReply(hiredis.ReplyError):
    """An error that a server sent as the reply to a command. It starts with a code."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]

    @property
    def is_refused_connection(self) -> bool:
        """Whether the server executes no command on this connection, or none yet."""
        return _no_command.match(str(self)) is not None

    @property
    def redirection(self) -> tuple[int, str, int]:
        """Slot, host and port that a MOVED or ASK names. No host: that of the sender."""
        _, slot, address = str(self).split(" ")[:3]
        host, _, port = address.rpartition(":")
        return int(slot), host.strip("[]"), int(port)


def refusal(error: ErrorReply) -> Exception:
    """Return what to raise for an error reply: `AttemptFailed` when a later attempt may succeed."""
    text = str(error)
    if _credentials.match(text):
        return StoreUnavailable(f"the server refused the credentials: {text}")
    code = _code.search(text)
    if code is not None and code[0] == "OOM":
        return StoreFull(
            "Redis has reached its maxmemory and stores nothing more; raise it (CONFIG SET maxmemory ...) or "
            "delete threads: deletions still work"
        )
    if code is not None:
        return AttemptFailed(text, sent=False)
    if "WRONGTYPE" in text:
        return Corrupt("a key holds a value of another type")
    if "user_script" in text:
        return Corrupt(f"a script failed on a stored value: {text}")
    return StoreUnavailable(f"Redis refused the command: {text}")


T = TypeVar("T")
Address = tuple[str, int]
Command = tuple[Any, ...]
Reply = Any  # bytes, int, list, None, or an ErrorReply
Answer = Callable[[Reply], object]
_SEND_BYTES, _RECEIVE_BYTES = 1 << 18, 1 << 16
_INCOMPLETE = object()
# Probes on an idle connection, so that no router forgets it. Platforms have some of these.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_KEEPALIVE = {getattr(socket, name): value for name, value in _PROBES.items() if hasattr(socket, name)}


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Where to connect, who logs in, and how long each part may take."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""  # of a Unix socket, instead of host and port
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    credential_provider: Any = field(default=None, repr=False)  # of redis-py, instead of the two
    db: int = 0
    client_name: str | None = None
    tls: ssl.SSLContext | None = None
    keepalive_options: Mapping[int, int | bytes] = field(default_factory=lambda: _KEEPALIVE)
    pool_size: int = 10
    dial_s: float = float("inf")
    read_s: float = float("inf")
    write_s: float = float("inf")

    def at(self, address: Address) -> ConnectionSettings:
        """Return the same settings for another server."""
        return replace(self, host=address[0], port=address[1])


class Connection:
    """A connection. Used by one call at a time."""

    def __init__(self, settings: ConnectionSettings, io_mode: IOMode) -> None:
        self._settings = settings
        self._io_mode = io_mode
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_INCOMPLETE)
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._socket: socket.socket

    @classmethod
    async def open(cls, settings: ConnectionSettings, io_mode: IOMode, deadline: Deadline) -> Connection:
        """Connect to the first address of the host that accepts; each has its share of the time."""
        if settings.path and not system.has_unix_sockets:
            raise StoreUnavailable(f"Python has no Unix sockets on {system.name}; use redis://host:port")
        limit = Deadline(min(deadline.remaining_s(), settings.dial_s))
        addresses = [""] if settings.path else await look_up(settings.host, io_mode.wait, limit)
        failed = AttemptFailed(f"host {settings.host!r} cannot be found", sent=False)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            connection = cls(settings, io_mode)
            try:
                await connection._connect(address, Deadline(limit.remaining_s() / left))
            except AttemptFailed as error:
                failed = error
            else:
                deadline.note_progress()
                return connection
        raise failed

    async def call(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]:
        """Send commands and return their replies, errors among them."""
        replies: list[Reply] = []
        data = b"".join(map(hiredis.pack_command, commands))
        await self.exchange(data, [replies.append] * len(commands), deadline)
        return replies

    def send_now(self, data: bytes) -> int:
        """Send what the socket takes at once, and return how many bytes that is; `exchange` sends the rest."""
        try:
            return self._socket.send(data[:_SEND_BYTES])
        except OSError:  # not now, or not any more: then `exchange` says why
            return 0

    async def exchange(
        self, data: bytes, answers: Sequence[Answer], deadline: Deadline, *, sent: int = 0
    ) -> None:
        """Send packed commands, and hand the reply of each over as soon as it is there.

        `sent`: how many bytes of them were sent before.
        """
        with self._closing_on_failure(sent=True):
            await self._send(data, deadline, sent)
            for answer in answers:
                reply = await self._next_reply(deadline)
                if isinstance(reply, ErrorReply) and reply.is_refused_connection:
                    raise refusal(reply)
                answer(reply)

    async def next_message(self, deadline: Deadline) -> Reply:
        """Return what the server sends by itself to a subscriber; None when the time is over."""
        with self._closing_on_failure(sent=False):
            while (message := self._reader.gets()) is _INCOMPLETE:
                try:
                    count = self._socket.recv_into(self._buffer)
                except (BlockingIOError, ssl.SSLWantReadError):
                    if not await self._io_mode.wait(self._socket.fileno(), READ, deadline):
                        return None
                    continue
                if not count:
                    raise OSError("the server closed the connection")
                self._reader.feed(self._buffer, 0, count)  # type: ignore[arg-type]
            return message

    def close(self) -> None:
        """Close at once, without a goodbye that could wait."""
        self._socket.close()

    # Connecting

    async def _connect(self, address: str, deadline: Deadline) -> None:
        settings = self._settings
        is_ipv6 = ":" in address
        family = socket.AF_UNIX if settings.path else socket.AF_INET6 if is_ipv6 else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        with self._closing_on_failure(sent=False):
            self._socket.setblocking(False)
            if not settings.path:
                self._set_tcp_options()
            target: Any = settings.path or (address, settings.port)
            code = self._socket.connect_ex(target)
            if code in system.connecting:
                if not await self._io_mode.wait(self._socket.fileno(), WRITE, deadline):
                    raise TimeoutError("no connection in time")
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            if settings.tls is not None:
                await self._start_tls(settings.tls, deadline)
            await self._log_in(deadline)

    def _set_tcp_options(self) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in self._settings.keepalive_options.items():
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    async def _start_tls(self, context: ssl.SSLContext, deadline: Deadline) -> None:
        # The certificate is checked against the host's name, not against the address.
        tls = context.wrap_socket(
            self._socket, server_hostname=self._settings.host, do_handshake_on_connect=False
        )
        self._socket = tls
        await self._until_ready(tls.do_handshake, READ, deadline)

    async def _log_in(self, deadline: Deadline) -> None:
        settings = self._settings
        credentials: Sequence[str] = [settings.username or "", settings.password or ""]
        if settings.credential_provider is not None:
            credentials = await self._io_mode.credentials(settings.credential_provider)
        *username, password = credentials
        commands: list[Command] = []
        if any(credentials):
            commands.append(("AUTH", *filter(None, username), password))
        if settings.client_name:
            commands.append(("CLIENT", "SETNAME", settings.client_name))
        if settings.db:
            commands.append(("SELECT", settings.db))
        await self._send(b"".join(map(hiredis.pack_command, commands)), deadline)
        for _ in commands:
            reply = await self._next_reply(deadline)
            if isinstance(reply, ErrorReply):
                raise refusal(reply)

    # Sending and receiving

    async def _next_reply(self, deadline: Deadline) -> Reply:
        while (reply := self._reader.gets()) is _INCOMPLETE:
            await self._receive(deadline)
        return reply

    async def _send(self, data: bytes, deadline: Deadline, sent: int = 0) -> None:
        """Send piece by piece: a slow connection that makes progress is not given up."""
        rest = memoryview(data)[sent:]
        while rest:
            send = functools.partial(self._socket.send, rest[:_SEND_BYTES])
            count = await self._until_ready(send, WRITE, deadline)
            rest = rest[count:]
            deadline.note_progress()

    async def _receive(self, deadline: Deadline) -> None:
        count = await self._until_ready(lambda: self._socket.recv_into(self._buffer), READ, deadline)
        if not count:
            raise OSError("the server closed the connection")
        self._reader.feed(self._buffer, 0, count)  # type: ignore[arg-type]
        deadline.note_progress()

    async def _until_ready(self, operation: Callable[[], T], want: int, deadline: Deadline) -> T:
        """Do an operation of the socket as soon as the socket is ready for it."""
        limit_s = self._settings.write_s if want == WRITE else self._settings.read_s
        while True:
            try:
                return operation()
            except ssl.SSLWantReadError:
                want = READ
            except ssl.SSLWantWriteError:
                want = WRITE
            except BlockingIOError:
                pass
            limit = deadline if limit_s == float("inf") else Deadline(min(deadline.remaining_s(), limit_s))
            if not await self._io_mode.wait(self._socket.fileno(), want, limit):
                raise TimeoutError("no answer in time")

    @contextlib.contextmanager
    def _closing_on_failure(self, *, sent: bool) -> Iterator[None]:
        """Close on failure and cancellation; raise AttemptFailed for what a retry may fix."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise StoreUnavailable(
                    f"the server's certificate is not trusted: {error}; "
                    "name its authority with ssl_ca_certs=/path/ca.pem"
                ) from error
            if isinstance(error, OSError | hiredis.ProtocolError):
                raise AttemptFailed(str(error) or type(error).__name__, sent=sent) from error
            raise
