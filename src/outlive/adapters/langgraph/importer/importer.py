"""Moving a database of LangGraph's into a store: every checkpoint and write of every thread, read-only on the source.

    from outlive.adapters.langgraph.moving import import_langgraph

    print(import_langgraph("sqlite:///old.db", "sqlite:///new.db"))

How it works. Threads are moved one after the other (`thread_move.py`). Rows are read page by page (`source.py`), decoded by the
strict serializer (`decoding.py`), and stored as the saver stores checkpoints, so that they share what they have in common; a
thread arrives whole, in one commit (`cargo.py`). Then it is read back and compared. Repeating it brings what is new in the source.

Without the command line: `python -m outlive.adapters.langgraph.importer.importer SOURCE TARGET`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from outlive.adapters.langgraph.importer.decoder import Decoder, RowSerializer
from outlive.adapters.langgraph.importer.dotted_names import named_serde, named_types
from outlive.adapters.langgraph.importer.source import Source, open_source
from outlive.adapters.langgraph.importer.thread import Done, Problem, ThreadMove, Unmovable
from outlive.adapters.langgraph.operations import CheckpointOperations
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.adapters.langgraph.values.user_types import Name, listed
from outlive.errors import BadArgument, CallerError, Corrupt, OutliveError, StoreError
from outlive.factory import open as open_store
from outlive.runtime.runtime import run_now
from outlive.sync.facades import Store

Progress = Callable[[int, int | None], None]  # (checkpoints done, all of them)


@dataclass(slots=True)
class Moved:
    """What was moved; with `dry_run`, what would be."""

    threads: int = 0
    checkpoints: int = 0  # brought this time
    writes: int = 0
    present: int = 0  # checkpoints that were in the target already
    renewed: int = 0  # of these, were brought up to date
    ahead: int = 0  # threads that went on in the target since they were moved, and are left alone
    verified: int = 0  # checkpoints that were read back from the target and are what the source says
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def unknown(self) -> tuple[str, ...]:
        """The classes that nobody named."""
        return tuple(sorted({one.unknown for one in self.problems if one.unknown is not None}))

    def __str__(self) -> str:
        there = f" ({self.present:,} were there already)" if self.present else ""
        said = f"{_count(self.threads, 'thread')}, {_count(self.checkpoints, 'checkpoint')}{there}, {_count(self.writes, 'write')}"
        checked = f"; {_count(self.verified, 'checkpoint')} compared with the source" if self.verified else ""
        return f"{said}{checked}" + (f"; {_count(len(self.problems), 'problem')}" if self.problems else "")

    def add(self, done: Done) -> None:
        self.threads += 1
        self.checkpoints += done.checkpoints
        self.writes += done.writes
        self.present += done.present
        self.renewed += done.renewed
        self.ahead += done.is_ahead
        self.verified += done.compared


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class CannotMove(CallerError):
    """A thread cannot be moved. `problem` says which and why, `moved` what was done before."""

    def __init__(self, problem: Problem, moved: Moved) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.moved = moved


def import_langgraph(
    source_url: str,
    target: Store | str,
    *,
    types: Iterable[type | Name] = (),
    serde: SerializerProtocol | None = None,
    threads: Iterable[str] | None = None,
    progress: Progress | None = None,
    on_problem: Literal["stop", "skip"] = "stop",
    verify: bool = True,
    dry_run: bool = False,
) -> Moved:
    """Move all threads (or some) of a database of LangGraph's into a store. It can be repeated at any time.

    `types` are the classes of your own that states hold; `serde` is the serializer of the source when it is not LangGraph's own
    (EncryptedSerializer), and then that of the target too. A thread arrives whole or not at all, also when the process is killed.
    With on_problem="stop" the first thread that cannot be moved raises CannotMove; with "skip" the others are moved, and the result
    says what was left. `dry_run` reads and decodes everything, stores nothing, and lists all problems. Raises StoreError for
    a source or target that cannot be reached.
    """
    if on_problem not in ("stop", "skip"):
        raise BadArgument(f'on_problem must be "stop" or "skip", not {on_problem!r}')
    types = listed(types)
    if types and serde is not None:
        raise BadArgument("give types= or serde=, not both: a serde of your own decides what it reads")
    if isinstance(threads, str):
        raise BadArgument(f"threads must be thread ids, such as [{threads!r}], not a single str")
    if isinstance(target, str):
        check_apart(source_url, target)
    with contextlib.closing(open_source(source_url)) as source, _opened(target, dry_run) as store:
        keeper = CheckpointOperations(store._store, serde or StrictSerializer(types))
        reader = RowSerializer(types) if serde is None else maybe_add_typed_methods(serde)
        mover = _Mover(source, keeper, reader, progress, verify=verify, dry_run=dry_run)
        return mover.run(threads, stops=on_problem == "stop" and not dry_run)


class _Mover:
    """All threads, one after the other."""

    def __init__(
        self,
        source: Source,
        keeper: CheckpointOperations,
        serde: SerializerProtocol,
        progress: Progress | None,
        *,
        verify: bool,
        dry_run: bool,
    ) -> None:
        self._source = source
        self._keeper = keeper
        self._serde = serde
        self._progress = progress
        self._verify = verify
        self._dry_run = dry_run
        self._done = 0
        self._total: int | None = None

    def run(self, threads: Iterable[str] | None, *, stops: bool) -> Moved:
        moved = Moved()
        is_asked = threads is not None
        if threads is None:
            self._total = self._source.count()
            for sentence in self._source.unreadable():
                self._meet(Problem(None, None, sentence), moved, stops)
            threads = self._source.threads()
        for id in threads:
            try:
                moved.add(self._move(id, is_asked))
            except Unmovable as error:
                self._meet(error.problem, moved, stops)
            except Corrupt as error:
                if error.thread != id:
                    raise
                self._meet(Problem(id, error.checkpoint, error.what), moved, stops)
        return moved

    def _meet(self, problem: Problem, moved: Moved, stops: bool) -> None:
        moved.problems += (problem,)
        if stops:
            raise CannotMove(problem, moved)

    def _move(self, id: str, is_asked: bool) -> Done:
        begin = self._done

        def tell(number: int) -> None:
            self._done = begin + number
            if self._progress is not None:
                self._progress(self._done, self._total)

        with self._source.thread(id) as view:
            move = ThreadMove(
                self._keeper, Decoder(self._serde), view, id, tell, verify=self._verify, dry_run=self._dry_run
            )
            done = run_now(move.run())
        if is_asked and done.is_absent:
            raise Unmovable(Problem(id, None, "there is no such thread in the source"))
        tell(done.present + done.checkpoints)
        if isinstance(self._serde, RowSerializer):
            self._serde.forget()
        return done


@contextlib.contextmanager
def _opened(target: Store | str, dry_run: bool) -> Iterator[Store]:
    if isinstance(target, Store):
        yield target
        return
    if not isinstance(target, str):
        raise BadArgument(
            f"the target is a URL or a store that outlive.open gave, not {type(target).__name__}"
        )
    if dry_run and is_absent(target):
        target = "memory:"  # a dry run leaves nothing behind
    with open_store(target) as store:
        yield store


def is_absent(url: str) -> bool:
    """Tell whether a URL names a local store that is not there yet."""
    path = _local_path(url)
    return path is not None and not os.path.exists(path)


def check_apart(source_url: str, target_url: str) -> None:
    """Refuse a target in the file that is the source, however it is spelled."""
    paths = [_local_path(unquote(url)) for url in (source_url, target_url)]
    if None not in paths and len({os.path.realpath(str(path)) for path in paths}) == 1:
        raise BadArgument("the source cannot be its own target; name another file for the store")


def _local_path(url: str) -> str | None:
    scheme, _, rest = url.partition("?")[0].partition(":")
    path = rest[3:] if scheme == "sqlite" and rest.startswith("///") else rest.removeprefix("//")
    return path if scheme in ("sqlite", "file") else None


# The command without a command line ---------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Move what the arguments name; return the exit code: 0 done, 1 problems, 2 a wrong call, 3 a store in the way."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m outlive.adapters.langgraph.importer.importer", description=_HELP
    )
    parser.add_argument("source", metavar="SOURCE_URL")
    parser.add_argument("target", metavar="TARGET_URL")
    parser.add_argument(
        "--type", action="append", default=[], metavar="MODULE.CLASS", help="a class that states hold"
    )
    parser.add_argument(
        "--serde", metavar="MODULE.NAME", help="the serializer of the source, or a function that returns it"
    )
    parser.add_argument("--thread", action="append", metavar="ID", help="only this thread; can be repeated")
    parser.add_argument(
        "--skip", action="store_true", help="leave out threads that cannot be moved, and go on"
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the target with the source")
    parser.add_argument(
        "--dry-run", action="store_true", help="read everything, store nothing, list all problems"
    )
    said = parser.parse_args(arguments)
    try:
        moved = import_langgraph(
            said.source,
            said.target,
            types=named_types(said.type),
            serde=named_serde(said.serde),
            threads=said.thread,
            progress=Lines(lambda line: _say(line, sys.stderr)),
            on_problem="skip" if said.skip else "stop",
            verify=not said.no_verify,
            dry_run=said.dry_run,
        )
    except OutliveError as error:
        _say(f"outlive: {error}", sys.stderr)
        return 3 if isinstance(error, StoreError) else 1 if isinstance(error, CannotMove) else 2
    for problem in moved.problems:
        _say(str(problem), sys.stdout)
    _say(f"{'would move' if said.dry_run else 'moved'} {moved}", sys.stdout)
    return 0 if moved.ok else 1


_HELP = (
    "Move a database of LangGraph's (sqlite:///old.db, postgresql://host/database) into a store of outlive's."
)


class Lines:
    """Progress as plain lines: one for every tenth of the way."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._tenth = 0

    def __call__(self, done: int, total: int | None) -> None:
        if total and done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            self._say(f"{done:,} of {total:,} checkpoints")


def _say(line: str, stream: object) -> None:
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    stream.write(shown.encode(errors="backslashreplace").decode() + "\n")  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
