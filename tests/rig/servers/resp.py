"""The protocol of Redis and Valkey, as much as it takes to set up servers: no driver needs to be installed."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Self

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST


class Refused(RuntimeError):
    """The server answered with an error."""


class Resp:
    """One connection; `call` sends one command and returns its answer, bytes as they are."""

    def __init__(
        self,
        port: int,
        *,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        plain = socket.create_connection((HOST, port), timeout_s)
        self._socket = tls.wrap_socket(plain, server_hostname=HOST) if tls else plain
        self._replies = self._socket.makefile("rb")
        if password is not None:
            self.call("AUTH", password)

    def call(self, *arguments: str | bytes | int) -> Any:
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in arguments]
        request = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n%b" % (len(parts), request))
        return self._reply()

    def _reply(self) -> Any:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, value = line[:1], line[1:-2]
        if kind == b"-":
            raise Refused(value.decode(errors="replace"))
        if kind == b"+":
            return value
        if kind == b":":
            return int(value)
        if kind == b"$":
            return None if value == b"-1" else self._replies.read(int(value) + 2)[:-2]
        if kind == b"*":
            return None if value == b"-1" else [self._reply() for _ in range(int(value))]
        raise ConnectionError(f"no reply begins with {line!r}")

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
