"""Refuses requests that a browser was tricked into, before any page sees them.

- The name in `Host` must be one that is allowed. Otherwise a page of the Internet whose name was pointed at this
  machine (DNS rebinding) could read the store.
- The token of the address that `outlive ui` prints works once, and becomes a cookie. So it stays out of the history
  of the browser, and other users of the machine cannot use the port.
- What changes the store must come from a page of this server: `Sec-Fetch-Site` or `Origin` say so, and the form has
  a token that no other site can read.
- Every answer has headers that forbid scripts and requests which are not the inspector's own.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
_NO_STORE = (b"cache-control", b"no-store")


class Guard:
    """An ASGI app around the inspector's. `hosts` None: the program that mounts it checks the host."""

    def __init__(self, app: App, *, hosts: Iterable[str] | None, token: str | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._token = token  # None once it was used
        self._session = secrets.token_urlsafe(24) if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # there is none here
            return
        send = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, *refusal)
        elif self._has_session(scope):
            await self._app(scope, receive, send)
        else:
            await self._admit(scope, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        host = _header(scope, b"host")
        if self._hosts is not None and _name(host) not in self._hosts:
            return 421, "This address is not allowed; outlive ui --allow-host NAME allows another."
        if not self._allows_origin(scope):
            return 403, "This request was sent by a page of another site."
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "Only GET and POST are known here."
        if scope["method"] == "POST" and not _is_same_origin(scope, host):
            return 403, "This form was not sent by the inspector itself."
        return None

    def _allows_origin(self, scope: Scope) -> bool:
        # A form of our own has the origin "null", since our pages send no referrer; then the
        # browser says so.
        origin = _header(scope, b"origin")
        if self._hosts is None or not origin or _header(scope, b"sec-fetch-site") == "same-origin":
            return True
        return _name(urlsplit(origin).netloc) in self._hosts

    # The session

    def _has_session(self, scope: Scope) -> bool:
        if self._session is None:
            return True
        name, session = _cookie_name(scope), self._session.encode()
        return any(
            key == name and hmac.compare_digest(value.encode(), session) for key, value in _cookies(scope)
        )

    async def _admit(self, scope: Scope, send: Send) -> None:
        """Exchange the token of the address for a cookie."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token", "")
        token = self._token
        if token is None or not hmac.compare_digest(given.encode(), token.encode()):
            await _answer(
                send, 403, "Open the address that outlive ui printed. It works once; restart it for another."
            )
            return
        self._token = None
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        place = "/" + quote(scope["path"].lstrip("/")) + (f"?{rest}" if rest else "")  # never //another.site
        cookie = f"{_cookie_name(scope)}={self._session}; HttpOnly; SameSite=Strict; Path={scope.get('root_path') or '/'}"
        headers = [(b"location", place.encode()), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, "", headers)


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            names = {name.lower() for name, _ in own}
            added = [header for header in (*_HEADERS, _NO_STORE) if header[0] not in names]
            message = {**message, "headers": [*own, *added]}
        await send(message)

    return wrapped


async def _answer(
    send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    body = f"{text}\n".encode() if text else b""
    own = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


def _header(scope: Scope, name: bytes) -> str:
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""


def _cookies(scope: Scope) -> Iterator[tuple[str, str]]:
    """Iterate over the cookies. Other servers of this machine set some too: one that is odd must not hide ours."""
    for key, value in scope["headers"]:
        if key.lower() == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                name, _, text = pair.strip().partition("=")
                yield name, text


def _name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _is_same_origin(scope: Scope, host: str) -> bool:
    site, origin = _header(scope, b"sec-fetch-site"), _header(scope, b"origin")
    if site:  # set by the browser itself; behind a proxy the host differs from the origin
        return site == "same-origin"
    return bool(host) and urlsplit(origin).netloc.lower() == host.lower()


def _cookie_name(scope: Scope) -> str:
    """Return the name of the cookie; it has the port, since cookies know no ports."""
    server = scope.get("server") or ("", 0)
    return f"outlive-{server[1] or 0}"
