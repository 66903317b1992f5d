"""Serves the inspector on this machine, until it is stopped."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence

import uvicorn

from outlive.errors import BadArgument
from outlive.inspector.application import app
from outlive.inspector.guard import LOOPBACK
from outlive.sync.store import Store

_TOKEN_BYTES = 24


def serve(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = 7788,
    write: bool = False,
    redact: Sequence[str] = (),
    allow_hosts: Sequence[str] = (),
    needs_token: bool = True,
    on_ready: Callable[[str], None],
) -> None:
    """Serve a store until Ctrl-C; `on_ready` gets the address, with its token."""
    is_local = host in ("127.0.0.1", "::1", "localhost")
    if not is_local and not allow_hosts:
        raise BadArgument(f"--host {host} is not this machine alone; name it with --allow-host NAME")
    if not is_local and not needs_token:
        raise BadArgument("--no-token is for this machine alone; remove --host or --no-token")
    token = secrets.token_urlsafe(_TOKEN_BYTES) if needs_token else None
    application = app(store, write=write, redact=redact, hosts=[*LOOPBACK, *allow_hosts], token=token)
    listener = _listen(host, port)
    place = f"[{host}]" if ":" in host else host
    address = f"http://{place}:{listener.getsockname()[1]}/"
    # No access log: addresses have ids of threads. No server header: nobody needs it.
    config = uvicorn.Config(
        application, log_level="critical", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1,
        limit_concurrency=200, h11_max_incomplete_event_size=64 << 10,
    )  # fmt: skip
    on_ready(address if token is None else f"{address}?token={token}")
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadArgument(
            f"cannot listen on port {port}: {error.strerror}; choose another with --port, 0 for any"
        ) from error
    listener.listen(128)  # before the address is printed: a browser may open it at once
    return listener
