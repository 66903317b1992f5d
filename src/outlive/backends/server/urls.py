"""URLs of stores: the options in them, and what may be shown of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from outlive.backend import Backend
from outlive.errors import BadURL


@dataclass(frozen=True, slots=True)
class BackendFactory:
    """How to open a backend, in each io_mode, with the time that a call has when it does not say.

    `shown` is the URL without anything secret.
    """

    shown: str
    sync: Callable[[float | None], Backend]
    asynchronous: Callable[[float | None], Awaitable[Backend]]


def hide_secrets(text: str, secrets: Iterable[str | None] = ()) -> str:
    """Take user, password and query out of every URL in a text, and the given words wherever they stand."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"(\w+://)\S*@", r"\1", text)
    return re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", text)


def query_of(url: str) -> list[tuple[str, str]]:
    """Return the options in a URL. What may be the rest of a password is no option, and is not repeated."""
    rest, _, query = url.partition("?")
    place = rest.partition("://")[2]
    pairs = parse_qsl(query.partition("#")[0], keep_blank_values=True)
    has_host = bool(place) and not place.startswith("/")
    if (has_host and "@" in query) or any(set(name) & set("@/:") for name, _ in pairs):
        raise BadURL(
            "the options of this URL cannot be read; inside a password or a value '?' is written %3F, '@' %40, '/' %2F"
        )
    return pairs


def take_options(url: str, options: dict[str, Any], known: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Move what stands in the query of a URL under a known name to the options beside it."""
    rest, mark, _ = url.partition("?")
    pairs = query_of(url)
    known = set(known)
    ours = {name: value for name, value in pairs if name in known}
    if twice := ours.keys() & options.keys():
        raise BadURL(f"option {min(twice)!r} stands in the URL and beside it; give it once")
    others = urlencode([pair for pair in pairs if pair[0] not in known], quote_via=quote)
    return rest + (mark + others if others else ""), {**ours, **options}


class Options:
    """The options of a scheme, each read once under its name; a value from a URL is text."""

    def __init__(self, scheme: str, given: dict[str, Any]) -> None:
        self._scheme = scheme
        self._given = given

    def count(self, name: str, default: int | None, *, least: int = 0) -> int | None:
        """Return a whole number."""
        value = self._given.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            return value
        raise BadURL(f"{self._scheme}: {name} must be a whole number, {least} or more, not {value!r:.100}")

    def seconds(self, name: str, default: float | None) -> float | None:
        """Return a duration."""
        value = self._given.get(name, default)
        try:
            found = None if value is None or isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            found = None
        if value is None or (found is not None and 0 < found < 1e9):
            return found
        raise BadURL(f"{self._scheme}: {name} must be a number of seconds, more than 0, not {value!r:.100}")

    def switch(self, name: str, default: bool) -> bool:
        """Return yes or no."""
        value = self._given.get(name, default)
        if isinstance(value, str):
            value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
                value.lower()
            )
        if isinstance(value, bool):
            return value
        raise BadURL(f"{self._scheme}: {name} must be True or False, not {self._given[name]!r:.100}")

    def word(self, name: str, default: str) -> str:
        """Return a text."""
        value = self._given.get(name, default)
        if isinstance(value, str):
            return value
        raise BadURL(f"{self._scheme}: {name} must be a str, not {type(value).__name__}")
