"""One call of the program: which store it is about, and how its answer is shown.

Every command is a function whose first argument is the call. It answers once: with items, which are the same for
`--json` and for people, and with functions that show them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.output.escape import shown, shown_json, shown_lines
from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.errors import Corrupt
    from outlive.sync.facades import Store

FORMAT = 1  # of what --json prints
OK, FINDINGS, USAGE, STORE = 0, 1, 2, 3
_PATIENCE_S = 2.0  # before a person is told what is waited for


@dataclass(slots=True)
class Call:
    """What every command has to go on."""

    command: str
    store_url: str | None = None
    tenant: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    is_debug: bool = False
    is_yes: bool = False
    secondary_url: str | None = None
    key_file: str | None = None
    timeout: str | None = None
    replication: str | None = None
    found_url: str | None = None
    shown_store: str | None = None
    shown_tenant: str | None = None  # it may also stand in the URL
    code: int = OK

    # The store

    @property
    def url(self) -> str:
        """The URL of the store that is meant; says which one was found when none was named."""
        named = self.store_url or os.environ.get("OUTLIVE_STORE") or self.found_url
        if named:
            return named
        from outlive.cli.stores import find_store

        self.found_url = found = find_store()
        if not self.is_json:
            self.note(f"using {found}, found in this folder")
        return found

    @property
    def secondary(self) -> str | None:
        """The URL of the second store of a pair. OUTLIVE_SECONDARY belongs to OUTLIVE_STORE, not to another that --store names."""
        if self.replication == "none":
            return None
        return self.secondary_url or (None if self.store_url else os.environ.get("OUTLIVE_SECONDARY")) or None

    def options(self) -> dict[str, Any]:
        """Return what the store is opened with beside its URL."""
        from outlive.cli.key_files import read_ring

        found = {
            "tenant": self.tenant,
            "key": read_ring(self.key_file),
            "secondary": self.secondary,
            "timeout_s": self.timeout_s,
            **self._way(),
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def timeout_s(self) -> float | None:
        from outlive.cli.output.units import seconds

        return None if self.timeout is None else seconds("--timeout", self.timeout)

    def _way(self) -> dict[str, str]:
        """Return how a pair is written."""
        if self.replication not in (None, "none") and self.secondary is None:
            raise BadArgument("--replication is for two stores; name the second one: --secondary URL")
        return {"queue": {"on_secondary_down": "queue"}, "async": {"mode": "async"}}.get(
            self.replication or "", {}
        )

    @contextlib.contextmanager
    def open(
        self,
        *,
        writes: bool = False,
        knows_types: bool = False,
        needs_key: bool = True,
        takes_over: bool = False,
    ) -> Iterator[Store]:
        """Open the store for this command. `takes_over` says that a primary which cannot be reached, or is empty, may be left."""
        from outlive.cli.stores import opened

        warnings.showwarning = lambda message, *_, **__: self.note(
            str(message)
        )  # of a pair: what is still queued
        url, options = self.url, self.options()
        if writes and self.replication == "none":
            options["single"] = True  # the other store of a pair gets it when both are opened again
        with contextlib.ExitStack() as stack:
            with self._impatience(url):
                store = stack.enter_context(
                    opened(url, options, knows_types=knows_types, needs_key=needs_key, takes_over=takes_over)
                )
            settings = store._store._settings
            self.shown_store, self.shown_tenant = settings.url, settings.tenant
            if writes:
                self.check_alone(store)
            yield store

    @contextlib.contextmanager
    def _impatience(self, url: str) -> Iterator[None]:
        """Tell a person who waits for a store what for."""
        if self.is_quiet or not sys.stderr.isatty():
            yield
            return
        import threading

        from outlive.backends.server.urls import hide_secrets

        said = f"still trying to open {hide_secrets(url)}; --timeout says for how long, Ctrl-C ends it"
        timer = threading.Timer(_PATIENCE_S, self.note, [said])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def check_alone(self, store: Store) -> None:
        """Refuse to change one store of a pair behind the back of the other, which would bring back what is deleted."""
        from outlive.cli.lookup import side_of
        from outlive.layers.replication.pair import ROLES

        if (side := side_of(store)) is not None and not side.ended and self.replication != "none":
            raise BadArgument(
                f"this store is the {ROLES[side.role]} of a pair, and the other one would not learn of it; name both by --store PRIMARY --secondary "
                "SECONDARY, or say --replication none"
            )

    # The answer

    def answer(
        self,
        items: Sequence[dict[str, Any]],
        show: Callable[[], None],
        *,
        brief: Iterable[str] | Callable[[], Iterable[str]] = (),
        next: str | None = None,
        is_ok: bool = True,
    ) -> None:
        """Print items as JSON, or let `show` print them; with --quiet only `brief`, a line for each."""
        if not is_ok:
            self.code = FINDINGS
        if self.is_json:
            print(self._json(items, next, is_ok))
        elif self.is_quiet:
            for line in brief() if callable(brief) else brief:
                print(line)
        else:
            show()

    def _json(self, items: Sequence[dict[str, Any]], next: str | None, is_ok: bool) -> str:
        said = {
            "format": FORMAT,
            "command": self.command,
            "store": self.shown_store,
            "tenant": self.shown_tenant if self.shown_tenant is not None else self.tenant or "",
            "ok": is_ok,
            "items": list(items),
            "next": next,
        }
        return shown_json(json.dumps(said, indent=2))  # ASCII: nothing in it can steer a terminal

    def did(self, sentence: str, **item: Any) -> None:
        """Say what was done."""
        self.answer([item], lambda: print(shown_lines(sentence)))

    def note(self, sentence: str) -> None:
        """Say something beside the answer, to whoever watches."""
        if not self.is_quiet:
            sys.stdout.flush()  # what was printed before stands before, also where both go into one file
            print(f"outlive: {shown(sentence)}", file=sys.stderr)

    def tell_damaged(self, errors: Iterable[Corrupt]) -> None:
        """Say which threads were left out of a list."""
        from outlive.cli.output.advice import mended

        for error in errors:
            self.note(mended(error))

    def confirm(self, what: str) -> None:
        """Say what will be done and ask; without a terminal nobody can answer, and --yes is needed."""
        if self.is_yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadArgument(f"this would {what}; add --yes to do it without being asked")
        print(f"This will {what}.", file=sys.stderr)
        if not click.confirm("Go on?", err=True):
            raise Declined


class Unread(Exception):
    """Whoever read the output has closed it."""


class Declined(Exception):
    """The person at the terminal said no."""
