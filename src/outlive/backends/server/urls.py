"""URLs of stores: their options, and what messages may show of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from outlive.arguments import check_count, check_flag, check_seconds
from outlive.backend import Backend
from outlive.dataclass import dataclass
from outlive.errors import BadURL


@dataclass(frozen=True, slots=True)
class BackendFactory:
    """How to open a backend, sync or async, with the timeout of calls that name none.

    `shown` is the URL without anything secret.
    """

    shown: str
    sync: Callable[[float | None], Backend]
    asynchronous: Callable[[float | None], Awaitable[Backend]]
    # Of a store on this machine, which opening would create.
    is_missing: Callable[[], bool] | None = None


def hide_secrets(text: str, secrets: Iterable[str | None] = ()) -> str:
    """Remove user, password and query from every URL in a text, and the given words everywhere."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"(\w+://)\S*@", r"\1", text)
    return re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", text)


def query_of(url: str) -> list[tuple[str, str]]:
    """Return the options in a URL. What may be part of a password is refused, not repeated."""
    rest, _, query = url.partition("?")
    location = rest.partition("://")[2]
    pairs = parse_qsl(query.partition("#")[0], keep_blank_values=True)
    has_host = bool(location) and not location.startswith("/")
    if (has_host and "@" in query) or any(set(name) & set("@/:") for name, _ in pairs):
        raise BadURL(
            "the options of this URL cannot be read; inside a password or a value write %3F for '?', %40 for '@', %2F for '/'"
        )
    return pairs


def take_options(
    url: str, options: dict[str, Any], known: Iterable[str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Move the known options in the query of a URL to those beside it; without `known`, all of them."""
    rest, mark, _ = url.partition("?")
    pairs = query_of(url)
    known = {name for name, _ in pairs} if known is None else set(known)
    taken = {name: value for name, value in pairs if name in known}
    if twice := taken.keys() & options.keys():
        raise BadURL(f"option {min(twice)!r} is in the URL and beside it; give it once")
    others = urlencode([pair for pair in pairs if pair[0] not in known], quote_via=quote)
    return rest + (mark + others if others else ""), {**taken, **options}


class Options:
    """The options of a scheme, read and checked by name; a value from a URL is text."""

    def __init__(self, scheme: str, values: dict[str, Any]) -> None:
        self._scheme = scheme
        self._values = values

    def count(self, name: str, default: int | None, *, least: int = 0) -> int | None:
        """Return a whole number."""
        value = self._values.get(name, default)
        return None if value is None else check_count(self._named(name), value, least, BadURL, is_text=True)

    def seconds(self, name: str, default: float | None) -> float | None:
        """Return a duration."""
        value = self._values.get(name, default)
        return None if value is None else check_seconds(self._named(name), value, None, BadURL, is_text=True)

    def switch(self, name: str, default: bool) -> bool:
        """Return yes or no."""
        return check_flag(self._named(name), self._values.get(name, default), BadURL, is_text=True)

    def _named(self, name: str) -> str:
        return f"{self._scheme}: {name}"

    def word(self, name: str, default: str) -> str:
        """Return a str."""
        value = self._values.get(name, default)
        if isinstance(value, str):
            return value
        raise BadURL(f"{self._scheme}: {name} must be a str, not {type(value).__name__}")
