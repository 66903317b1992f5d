"""Importing a LangGraph database: every checkpoint and write of every thread, read-only on the source.

    from outlive.adapters.langgraph import import_langgraph

    print(import_langgraph("sqlite:///old.db", "sqlite:///new.db"))

Threads are imported one after the other (`thread.py`). Rows are read page by page (`source.py`),
decoded by the strict serializer (`decoder.py`), and stored as the saver stores checkpoints
(`batch.py`), so that they share what they have in common. A thread arrives whole, in one commit;
then it is read back and compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from outlive.adapters.langgraph.importer.classes import ClassCount, ClassUse
from outlive.adapters.langgraph.importer.decoder import Decoder, RowSerializer
from outlive.adapters.langgraph.importer.source import Source
from outlive.adapters.langgraph.importer.thread import Problem, ThreadImport, ThreadRefused, ThreadResult
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.adapters.langgraph.values.user_types import Name, listed
from outlive.backends.server.urls import hide_secrets
from outlive.errors import BadArgument, BadURL, CallerError, Corrupt
from outlive.factory import open as open_store
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.urls import local_path

Progress = Callable[[int, int | None], None]  # (checkpoints done, all of them)


@dataclass(slots=True)
class ImportResult:
    """What was imported; with `dry_run`, what would be."""

    threads: int = 0
    checkpoints: int = 0  # imported this time
    writes: int = 0
    present: int = 0  # checkpoints that were in the target already
    again: int = 0  # threads that changed in the source since the last import, and were imported again
    ahead: int = 0  # threads that were used in the target since the last import, and are left alone
    verified: int = 0  # checkpoints that were read back from the target and equal those of the source
    problems: tuple[Problem, ...] = ()
    classes: tuple[ClassUse, ...] = ()  # of a dry run: all that the rows name

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def unknown(self) -> tuple[str, ...]:
        """The classes that are missing in `types`: after a dry run all of them, else those in `problems`."""
        names = {problem.unknown for problem in self.problems if problem.unknown is not None}
        return tuple(sorted(names | {use.name for use in self.classes if not use.is_known}))

    def __str__(self) -> str:
        present = f" ({self.present:,} were there already)" if self.present else ""
        text = f"{_count(self.threads, 'thread')}, {_count(self.checkpoints, 'checkpoint')}{present}, {_count(self.writes, 'write')}"
        text += f"; {_count(self.verified, 'checkpoint')} compared with the source" if self.verified else ""
        return text + (f"; {_count(len(self.problems), 'problem')}" if self.problems else "")

    def add(self, result: ThreadResult) -> None:
        self.threads += 1
        self.checkpoints += result.checkpoints
        self.writes += result.writes
        self.present += result.present
        self.again += result.is_again
        self.ahead += result.is_ahead
        self.verified += result.compared


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class ImportOptions(TypedDict, total=False):
    """The options of `import_langgraph`, besides `progress`."""

    types: Iterable[type | Name]
    serde: SerializerProtocol | None
    threads: Iterable[str] | None
    on_problem: Literal["stop", "skip"]
    verify: bool
    dry_run: bool


class CannotImport(CallerError):
    """A thread cannot be imported.

    `problem` says which and why, `result` what was imported before it.
    """

    def __init__(self, problem: Problem, result: ImportResult) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.result = result


def import_langgraph(
    source_url: str | os.PathLike[str],
    target: Store | str,
    *,
    types: Iterable[type | Name] = (),
    serde: SerializerProtocol | None = None,
    threads: Iterable[str] | None = None,
    progress: Progress | None = None,
    on_problem: Literal["stop", "skip"] = "stop",
    verify: bool = True,
    dry_run: bool = False,
) -> ImportResult:
    """Import all threads of a LangGraph database, or some, into a store.

    The source is a URL, or the path of a SQLite file. You can repeat it at any time.

    `types` are your own classes that states contain; those in their annotations are known with
    them, so the class of the state is usually enough. `serde` is the serializer of the source when
    it is not LangGraph's default (such as EncryptedSerializer); the target uses it too. A thread
    arrives whole or not at all, also when the process is killed. With on_problem="stop" the first
    thread that cannot be imported raises CannotImport; with "skip" the others are imported, and the
    result lists the problems. `dry_run` reads and decodes everything, stores nothing, and lists all
    problems and, without `serde`, all classes that the rows name. Raises StoreError for a source or
    target that cannot be reached.
    """
    if on_problem not in ("stop", "skip"):
        raise BadArgument(f'on_problem must be "stop" or "skip", not {on_problem!r}')
    types = listed(types)
    if types and serde is not None:
        raise BadArgument("pass types= or serde=, not both: your own serde decides what it reads")
    if isinstance(threads, str):
        raise BadArgument(f"threads must be a list of thread ids, such as [{threads!r}], not a single str")
    if isinstance(target, str):
        check_apart(source_url, target)
    with contextlib.closing(open_source(source_url)) as source, _opened(target, dry_run) as store:
        session = Session.of(store._store, serde or StrictSerializer(types))
        reader = RowSerializer(types) if serde is None else maybe_add_typed_methods(serde)
        classes = ClassCount(reader) if dry_run and isinstance(reader, RowSerializer) else None
        importer = _Importer(source, session, reader, progress, verify, dry_run, classes)
        return importer.run(threads, stops=on_problem == "stop" and not dry_run)


async def aimport_langgraph(
    source_url: str | os.PathLike[str],
    target: AsyncStore | Store | str,
    *,
    progress: Progress | None = None,
    **options: Unpack[ImportOptions],
) -> ImportResult:
    """Import a database as `import_langgraph` does, with its options, in a worker thread.

    `progress` is called in that thread. When it is cancelled, it stops at the next checkpoint and
    then raises CancelledError; threads that were imported stay, and you can repeat it.
    """
    is_cancelled = threading.Event()

    def report(done: int, total: int | None) -> None:
        if is_cancelled.is_set():
            raise _Cancelled
        if progress is not None:
            progress(done, total)

    def work() -> ImportResult:
        if not isinstance(target, AsyncStore):
            return import_langgraph(source_url, target, progress=report, **options)
        if target._sync_sibling is None:
            raise BadArgument("the target was not opened by outlive.open_async; pass its URL")
        with Store(target._sync_sibling()) as store:
            return import_langgraph(source_url, store, progress=report, **options)

    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        is_cancelled.set()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # marks it as retrieved
        raise


def open_source(url: str | os.PathLike[str]) -> Source:
    """Open a LangGraph database for reading: sqlite:///old.db, old.db, postgresql://host/database."""
    url = source_url_of(url)
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from outlive.adapters.langgraph.importer.sqlite import SQLiteSource

        return SQLiteSource(url)
    if scheme in ("postgresql", "postgres"):
        from outlive.adapters.langgraph.importer.postgres import PostgresSource

        return PostgresSource(url)
    raise BadURL(
        f"{hide_secrets(url)[:200]!r} is not a LangGraph database that can be read; "
        "use sqlite:///old.db, or postgresql://user@host/database"
    )


def source_url_of(location: str | os.PathLike[str]) -> str:
    """Return the URL of a source; a plain path is that of a SQLite file."""
    if isinstance(location, os.PathLike):
        location = os.fspath(location)
    if not isinstance(location, str):
        raise BadURL(
            "the source must be a URL or a path, such as sqlite:///old.db, "
            f"not {type(location).__name__} {location!r:.100}"
        )
    return location if ":" in location else f"sqlite:///{location.replace('%', '%25').replace('?', '%3F')}"


class _Cancelled(Exception):
    """The task that waited for the import was cancelled."""


@dataclass(slots=True)
class _Importer:
    """Imports threads, one after the other."""

    source: Source
    session: Session
    serde: SerializerProtocol
    progress: Progress | None
    verify: bool
    dry_run: bool
    classes: ClassCount | None  # of a dry run
    done: int = 0
    total: int | None = None

    def run(self, threads: Iterable[str] | None, *, stops: bool) -> ImportResult:
        result = ImportResult()
        is_chosen = threads is not None
        if threads is None:
            self.total = self.source.count()
            for sentence in self.source.unreadable():
                _add_problem(Problem(None, None, sentence), result, stops)
            threads = self.source.threads()
        for id in threads:
            try:
                result.add(self._import(id, is_chosen))
            except ThreadRefused as error:
                _add_problem(error.problem, result, stops)
            except Corrupt as error:
                if error.thread != id:
                    raise
                _add_problem(Problem(id, error.checkpoint, error.what), result, stops)
        if self.classes is not None:
            result.classes = self.classes.uses()
        return result

    def _import(self, id: str, is_chosen: bool) -> ThreadResult:
        begin = self.done

        def report(number: int) -> None:
            self.done = begin + number
            if self.progress is not None:
                self.progress(self.done, self.total)

        with self.source.thread(id) as view:
            if self.classes is not None:
                self.classes.add(view)
            thread = ThreadImport(
                self.session, Decoder(self.serde), view, id, report, self.verify, self.dry_run
            )
            result = run_now(thread.run())
        if is_chosen and result.is_absent:
            raise ThreadRefused(Problem(id, None, "there is no such thread in the source"))
        report(result.present + result.checkpoints)
        if isinstance(self.serde, RowSerializer):
            self.serde.forget()
        return result


def _add_problem(problem: Problem, result: ImportResult, stops: bool) -> None:
    result.problems += (problem,)
    if stops:
        raise CannotImport(problem, result)


@contextlib.contextmanager
def _opened(target: Store | str, dry_run: bool) -> Iterator[Store]:
    if isinstance(target, Store):
        yield target
        return
    if not isinstance(target, str):
        raise BadArgument(
            f"the target must be a URL or a store from outlive.open, not {type(target).__name__}"
        )
    if dry_run and is_absent(target):
        target = "memory:"  # a dry run creates no store
    with open_store(target) as store:
        yield store


def is_absent(url: str) -> bool:
    """Tell whether a URL names a local store that does not exist yet."""
    path = local_path(url)
    return path is not None and not os.path.exists(path)


def check_apart(source_url: str | os.PathLike[str], target_url: str) -> None:
    """Refuse a target in the file that is the source, however it is spelled."""
    source_url = source_url_of(source_url)
    if not source_url.startswith("sqlite:"):
        return
    source, target = local_path(source_url), local_path(target_url)
    if source and target and os.path.realpath(source) == os.path.realpath(target):
        raise BadArgument("the source cannot be its own target; name another file for the store")
