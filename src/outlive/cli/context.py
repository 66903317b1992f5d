"""One call of the program: the store that it uses, and how it prints its answer.

Every command is a function whose first argument is the call. It answers once, with items for
`--json` and a function that shows the same items to people.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from outlive.dataclass import dataclass
from outlive.errors import BadArgument
from outlive.view.escape import escape_json, escape_lines, escape_terminal

if TYPE_CHECKING:
    from outlive.errors import Corrupt
    from outlive.view.opened_store import OpenedStore

FORMAT = 1  # of what --json prints
OK, FINDINGS, USAGE, STORE = 0, 1, 2, 3
_PATIENCE_S = 2.0  # before a note says what the program is waiting for


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The options that every command has, by the names of their parameters."""

    store: str | None = None
    secondary: str | None = None
    replication: str | None = None
    single: bool = False
    key_file: str | None = None
    tenant: str | None = None
    timeout: str | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False

    @classmethod
    def take(cls, params: dict[str, Any], before: SharedOptions | None) -> SharedOptions:
        """Remove the shared options from a command's parameters; those before the command's name are defaults."""
        taken = {field.name: params.pop(field.name) for field in fields(cls)}
        return cls(**{name: value or getattr(before, name, value) for name, value in taken.items()})


class Call:
    """What a command needs: the options of every command, the store, and ways to answer."""

    def __init__(self, command: str, options: SharedOptions, *, is_confirmed: bool = False) -> None:
        self.command = command
        self.options = options
        self.store_url = options.store
        self.key_file = options.key_file
        self.is_confirmed = is_confirmed
        self.is_json = options.json
        self.is_quiet = options.quiet
        self.is_debug = options.debug
        self.is_single = options.single
        self.store_name: str | None = None  # the URL without secrets, once the store is open
        self.tenant = options.tenant or ""  # the URL may name it too
        self.code = OK
        self._found_url: str | None = None

    @property
    def hides_progress(self) -> bool:
        return self.is_quiet or self.is_json

    # The store

    @property
    def url(self) -> str:
        """The URL of the store. If none was given, a note says which file was found."""
        url = self.store_url or os.environ.get("OUTLIVE_STORE") or self._found_url
        if url:
            return url
        from outlive.cli.stores import find_store

        self._found_url = url = find_store()
        if not self.is_json:
            self.note(f"using {url}, found in this folder")
        return url

    @property
    def secondary(self) -> str | None:
        """The URL of the second store. OUTLIVE_SECONDARY belongs to OUTLIVE_STORE, not to --store."""
        if self.is_single:
            return None
        default = None if self.store_url else os.environ.get("OUTLIVE_SECONDARY")
        return self.options.secondary or default or None

    def store_options(self) -> dict[str, Any]:
        """Return the options for `outlive.open`."""
        from outlive.cli.key_files import read_key_ring

        options = {
            "tenant": self.options.tenant,
            "key": read_key_ring(self.key_file),
            "secondary": self.secondary,
            "timeout_s": self._timeout_s(),
            **self._replication(),
        }
        return {name: value for name, value in options.items() if value is not None}

    def _timeout_s(self) -> float | None:
        from outlive.view.units import parse_duration

        timeout = self.options.timeout
        return None if timeout is None else parse_duration("--timeout", timeout)

    def _replication(self) -> dict[str, str]:
        mode = self.options.replication
        if mode is not None and self.secondary is None:
            raise BadArgument("--replication needs a second store; name it with --secondary URL")
        modes = {"queue": {"on_secondary_down": "queue"}, "async": {"mode": "async"}}
        return modes.get(mode or "", {})

    @contextlib.contextmanager
    def open(
        self,
        *,
        writes: bool = False,
        creates: bool = False,
        knows_types: bool = False,
        needs_key: bool = True,
        takes_over: bool = False,
    ) -> Iterator[OpenedStore]:
        """Open the store for this command.

        `creates`: one that does not exist is created, unless it is of a pair. `takes_over`: the
        primary may be unreachable or empty.
        """
        from outlive.cli.stores import open_store

        # A pair warns about commits that are still queued when it closes.
        warnings.showwarning = lambda message, *_, **__: self.note(str(message))
        url, options = self.url, self.store_options()
        if writes and self.is_single:
            # The other store of the pair gets the changes when both are opened again.
            options["single"] = True
        with contextlib.ExitStack() as stack:
            with self._waiting_note(url):
                store = stack.enter_context(
                    open_store(
                        url,
                        options,
                        create=creates and "secondary" not in options,
                        knows_types=knows_types,
                        needs_key=needs_key,
                        takes_over=takes_over,
                    )
                )
            self.use(store)
            if writes:
                self.check_unpaired(store)
            yield store

    def use(self, store: OpenedStore) -> None:
        """Name a store in the answer."""
        self.store_name, self.tenant = store.url, store.tenant

    @contextlib.contextmanager
    def _waiting_note(self, url: str) -> Iterator[None]:
        """Tell a person at a terminal what the program is waiting for."""
        if self.is_quiet or not sys.stderr.isatty():
            yield
            return
        import threading

        from outlive.backends.server.urls import hide_secrets

        note = f"still trying to open {hide_secrets(url)}; --timeout limits the wait, Ctrl-C ends it"
        timer = threading.Timer(_PATIENCE_S, self.note, [note])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def check_unpaired(self, store: OpenedStore) -> None:
        """Refuse to change one store of a pair alone: the other one would bring back what is deleted."""
        from outlive.layers.replication.pair import ROLES

        record = store.pair_record()
        if record is not None and not record.ended and not self.is_single:
            raise BadArgument(
                f"this store is the {ROLES[record.role]} of a pair; name both stores with --store PRIMARY "
                "--secondary SECONDARY, or change only this one with --single"
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
        """Print items as JSON, or let `show` print them; with --quiet print only the lines of `brief`."""
        if not is_ok:
            self.code = FINDINGS
        if self.is_json:
            print(escape_json(json.dumps(self.envelope(items, next, is_ok=is_ok), indent=2)))
        elif self.is_quiet:
            for line in brief() if callable(brief) else brief:
                print(line)
        else:
            show()

    def envelope(
        self, items: Sequence[dict[str, Any]], next: str | None, *, is_ok: bool, command: str | None = None
    ) -> dict[str, Any]:
        """Return what --json prints: the items, and what they are an answer to."""
        return {
            "format": FORMAT,
            "command": command or self.command,
            "store": self.store_name,
            "tenant": self.tenant,
            "ok": is_ok,
            "items": list(items),
            "next": next,
        }

    def report(self, sentence: str, *, is_ok: bool = True, **item: Any) -> None:
        """Answer with one sentence about what was done, and one item."""
        self.answer([item], lambda: print(escape_lines(sentence)), is_ok=is_ok)

    def note(self, sentence: str) -> None:
        """Print a line to standard error, unless --quiet was given."""
        if not self.is_quiet:
            sys.stdout.flush()  # keeps the order where both streams go into one file
            print(f"outlive: {escape_terminal(sentence)}", file=sys.stderr)

    def note_damaged(self, errors: Iterable[Corrupt]) -> None:
        """Name the threads that were left out of a list."""
        from outlive.view.advice import message_with_advice

        for error in errors:
            self.note(message_with_advice(error))

    def confirm(self, action: str) -> None:
        """Ask before an action. Without a terminal nobody can answer: then --yes is required."""
        if self.is_confirmed:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadArgument(f"this would {action}; add --yes to confirm")
        print(f"This will {action}.", file=sys.stderr)
        if not click.confirm("Continue?", err=True):
            raise Declined


class OutputClosed(Exception):
    """The reader of the output has closed it."""


class Declined(Exception):
    """The user answered no."""
