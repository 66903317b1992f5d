"""Commands that move threads between stores and files: copy, export, import."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.command import argument, command, flag, option, thread_argument, yes_option
from outlive.cli.commands.maintenance import count_threads
from outlive.cli.context import Call
from outlive.cli.key_files import read_key_ring
from outlive.cli.lookup import find_thread
from outlive.cli.output.files import write_file
from outlive.cli.output.table import progress
from outlive.cli.stores import open_store
from outlive.errors import BadArgument, Corrupt
from outlive.urls import local_path
from outlive.view.escape import escape_json, escape_terminal
from outlive.view.units import format_count, parse_time

if TYPE_CHECKING:
    from outlive.view.opened_store import OpenedStore

# copy


@command(
    "copy",
    argument("TARGET_URL"),
    option("--thread", "--threads", "threads", multiple=True, metavar="THREAD", help="Only this thread; can be repeated."),
    option("--since", metavar="TIME", help="Only threads that changed since: 2026-05-01T12:00, local unless it has a zone."),
    option("--target-key-file", metavar="PATH", type=click.Path(), help="The keys of the target. Default: those of the source."),
    option("--target-secondary", metavar="URL", help="The second store of the target, if that is a pair."),
    flag("--decrypt", help="Do not encrypt the target."),
    flag("--verify", help="Check the target afterwards."),
)  # fmt: skip
def copy(
    call: Call,
    target_url: str,
    threads: tuple[str, ...],
    since: str | None,
    target_key_file: str | None,
    target_secondary: str | None,
    decrypt: bool,
    verify: bool,
) -> None:
    """Copy the store into another one of any kind, which is created if needed: a backup, or a move.

    Other processes can save meanwhile. Run it again to copy what is new; nothing in the target is
    deleted. Each state is read back from the target. Runs are copied if all threads are.
    """
    changed_since = None if since is None else parse_time("--since", since)
    options = _target_options(call, target_key_file, decrypt)
    with call.open() as store:
        options["tenant"] = call.tenant
        names = [find_thread(store, text) for text in threads] or None
        if target_secondary is not None:
            options |= {"secondary": target_secondary, "auto_failover": False}
        with open_store(target_url, options, create=True) as target:
            call.check_unpaired(target)
            if _is_same(store, call.url, target, target_url):
                raise BadArgument("source and target are the same store; name another target")
            count = _copy_threads(call, store, target, threads=names, since=changed_since)
            problems = [str(problem) for problem in target.verify().problems] if verify else []
            if target_secondary is not None:
                from outlive.cli.commands.replication import wait_until_complete

                wait_until_complete(target)
            target_name = target.url
    item = {"threads": count, "target": target_name, "verified": verify, "problems": problems}
    sentence = f"copied {format_count(count, 'thread')} to {target_name}"
    if verify:
        listed = "".join(f"\n{escape_terminal(problem)}" for problem in problems)
        sentence += listed or "; the target has no damage"
    call.answer([item], lambda: print(sentence), brief=map(escape_terminal, problems), is_ok=not problems)


def _target_options(call: Call, key_file: str | None, decrypt: bool) -> dict[str, Any]:
    if decrypt and key_file is not None:
        raise BadArgument("give either --decrypt or --target-key-file, not both")
    ring = None if decrypt else read_key_ring(key_file if key_file is not None else call.key_file)
    return {} if ring is None else {"key": ring}


def _is_same(store: OpenedStore, url: str, target: OpenedStore, target_url: str) -> bool:
    """Tell whether two URLs lead to the same store. A copy of the file of a store is another store."""
    path, target_path = local_path(url), local_path(target_url)
    if path is not None and target_path is not None:
        return os.path.samefile(path, target_path)
    urls = {opened.url for opened in (store, target)}
    keys = {opened.engine.namer.key for opened in (store, target)}
    return len(urls) == len(keys) == 1


def _copy_threads(call: Call, store: OpenedStore, target: OpenedStore, **selection: Any) -> int:
    names = selection["threads"]
    total = len(names) if names else count_threads(store)
    with progress("copying", total, is_quiet=call.hides_progress) as update:
        try:
            return store.copy_to(target, **selection, progress=update)
        except Corrupt as error:
            error.add_note("undamaged threads were copied")
            raise


# export, import


@command("export", thread_argument(), argument("FILE", required=False, type=click.Path()), yes_option())
def export(call: Call, thread: str, file: str | None) -> None:
    """Write a thread with all its checkpoints as JSON, into a file or to standard output (also named -).

    The JSON is not encrypted, even if the store is. Runs are not included.
    """
    with call.open() as store:
        id = find_thread(store, thread)
        text = store.thread(id).export()
    if file in (None, "-"):
        _print_export(call, text)
        return
    if os.path.isdir(file):
        raise BadArgument(f"{file!r} is a folder; name a file in it")
    if os.path.exists(file) and not os.path.isfile(file):
        raise BadArgument(f"{file!r} is not a regular file; use - for standard output")
    if os.path.exists(file):
        call.confirm(f"overwrite {escape_terminal(file)}")
    data = f"{text}\n".encode()
    write_file(file, data)
    call.report(
        f"exported thread {escape_terminal(id)} to {escape_terminal(file)}",
        thread=id,
        file=file,
        bytes=len(data),
    )


def _print_export(call: Call, text: str) -> None:
    if call.is_json or sys.stdout.isatty():
        document = json.loads(text)
        call.answer([document], lambda: print(escape_json(json.dumps(document, indent=1))))
    else:
        sys.stdout.buffer.write(f"{text}\n".encode())


@command(
    "import",
    argument("FILE", type=click.Path()),
    option("--as", "name", metavar="THREAD", help="The id of the new thread."),
)
def import_(call: Call, file: str, name: str | None) -> None:
    """Create a thread from the JSON that `export` wrote; - reads standard input.

    The store is created if needed. The thread must not exist yet.
    """
    text = _read(file)
    with open_store(call.url, call.store_options(), create=call.secondary is None, knows_types=True) as store:
        call.use(store)
        call.check_unpaired(store)
        thread = store.import_thread(text, id=name)
        info = thread.info()
    count = 0 if info is None else info.checkpoints
    call.report(
        f"imported thread {escape_terminal(thread.id)} with {format_count(count, 'checkpoint')} into {call.store_name}",
        thread=thread.id,
        checkpoints=count,
    )


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError as error:
        raise BadArgument(f"cannot read {file!r}: {error.strerror}") from None
