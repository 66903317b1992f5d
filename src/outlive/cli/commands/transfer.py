"""Commands that carry threads from store to store, and into files and back."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.command import argument, command, flag, option, thread_argument, yes_option
from outlive.cli.context import Call
from outlive.cli.output.escape import shown, shown_json
from outlive.cli.output.files import put
from outlive.errors import BadArgument, Corrupt

if TYPE_CHECKING:
    from outlive.sync.facades import Store

# copy, backup -------------------------------------------------------------------------------------------------


def _copy_options() -> list[click.Parameter]:
    return [
        option("--thread", "--threads", "threads", multiple=True, metavar="THREAD", help="Only this thread; can be repeated."),
        option("--since", metavar="TIME", help="Only threads that changed since: 2026-05-01T12:00, local unless it has a zone."),
        option("--target-key-file", metavar="PATH", type=click.Path(), help="The keys of the target; default: those of the source."),
        option("--target-secondary", metavar="URL", help="The second store of the target, if that is a pair."),
        flag("--decrypt", help="Make the target one that is not encrypted."),
        flag("--verify", help="Check the target afterwards."),
    ]  # fmt: skip


@command(
    "copy",
    "Copy a store into another.",
    argument("SOURCE_URL"),
    argument("TARGET_URL"),
    *_copy_options(),
)
def copy(call: Call, source_url: str, target_url: str, **options: Any) -> None:
    """Copy threads from one store into another, of any kind. Can be repeated: what is there stays, what is new is brought.

    Each state is read back from the target. Runs come along when all threads do.
    """
    if call.store_url:
        raise BadArgument("copy names both of its stores: outlive copy SOURCE_URL TARGET_URL")
    call.store_url = source_url
    _copy(call, target_url, **options)


@command("backup", "Copy the store while it is in use.", argument("TARGET_URL"), *_copy_options())
def backup(call: Call, target_url: str, **options: Any) -> None:
    """Copy threads of the store into another, while others go on saving. Can be repeated.

    Each state is read back from the target. Runs come along when all threads do.
    """
    _copy(call, target_url, **options)


def _copy(
    call: Call,
    target_url: str,
    *,
    threads: tuple[str, ...],
    since: str | None,
    target_key_file: str | None,
    target_secondary: str | None,
    decrypt: bool,
    verify: bool,
) -> None:
    from outlive.cli.commands.replication import wait_until_whole
    from outlive.cli.output.units import counted, moment
    from outlive.cli.stores import opened

    moved_since = None if since is None else moment("--since", since)
    options = _target_options(call, target_key_file, decrypt)
    with call.open() as store:
        options["tenant"] = call.shown_tenant
        names = _named(store, threads)
        if target_secondary is not None:
            options |= {"secondary": target_secondary, "auto_failover": False}
        with opened(target_url, options, creates=True) as target:
            call.check_alone(target)
            if _is_same(store, call.url, target, target_url):
                raise BadArgument("source and target are the same store; name another target")
            count = _carry(call, store, target, {"threads": names, "since": moved_since})
            checked = target.verify() if verify else None
            if target_secondary is not None:
                wait_until_whole(target)
            shown_target = target._store._settings.url
    problems = [] if checked is None else list(map(str, checked.problems))
    item = {"threads": count, "target": shown_target, "verified": checked is not None, "problems": problems}
    sentence = f"copied {counted(count, 'thread')} to {shown_target}"
    call.answer(
        [item],
        lambda: print(sentence + _checked(problems) if verify else sentence),
        brief=map(shown, problems),
        is_ok=not problems,
    )


def _is_same(store: Store, url: str, target: Store, target_url: str) -> bool:
    """Tell whether two URLs lead to one store, which would be said to be copied. One that was copied as a file is another."""
    from outlive.cli.stores import local_path

    here, there = local_path(url), local_path(target_url)
    if here is not None and there is not None:
        return os.path.samefile(here, there)
    shown_urls = {one._store._settings.url for one in (store, target)}
    keys = {one._store._engine.namer.key for one in (store, target)}
    return len(shown_urls) == len(keys) == 1


def _target_options(call: Call, key_file: str | None, decrypt: bool) -> dict[str, Any]:
    from outlive.cli.key_files import read_ring

    if decrypt and key_file is not None:
        raise BadArgument("--decrypt and --target-key-file do not go together")
    ring = None if decrypt else read_ring(key_file if key_file is not None else call.key_file)
    return {} if ring is None else {"key": ring}


def _named(store: Store, said: tuple[str, ...]) -> list[str] | None:
    from outlive.cli.lookup import find_thread

    return [find_thread(store, one) for one in said] if said else None


def _carry(call: Call, store: Store, target: Store, chosen: dict[str, Any]) -> int:
    from outlive.cli.commands.maintenance import count_threads
    from outlive.cli.output.table import progress

    total = len(chosen["threads"]) if chosen["threads"] else count_threads(store)
    with progress("copying", total, is_quiet=call.is_quiet or call.is_json) as tell:
        try:
            return store.copy_to(target, **chosen, progress=tell)
        except Corrupt as error:
            error.add_note("the threads that are whole were copied")
            raise


def _checked(problems: list[str]) -> str:
    return "; the target is whole" if not problems else "".join(f"\n{shown(problem)}" for problem in problems)


# export, import -----------------------------------------------------------------------------------------------


@command(
    "export",
    "Write a thread as JSON.",
    thread_argument(),
    argument("FILE", required=False, type=click.Path()),
    yes_option(),
)
def export(call: Call, thread: str, file: str | None) -> None:
    """Write a thread with all its checkpoints as JSON: into a file, or to standard output (also named -).

    An encrypted store is written in the clear. Runs are not part of it.
    """
    with call.open() as store:
        from outlive.cli.lookup import find_thread

        id = find_thread(store, thread)
        text = store.thread(id).export()
    if file in (None, "-"):
        _print(call, text)
        return
    if os.path.isdir(file):
        raise BadArgument(f"{file!r} is a folder; name a file in it")
    if os.path.exists(file) and not os.path.isfile(file):
        raise BadArgument(f"{file!r} is no file; leave it out, or write -, for standard output")
    if os.path.exists(file):
        call.confirm(f"overwrite {shown(file)}")
    data = f"{text}\n".encode()
    put(file, data)
    call.did(f"exported thread {shown(id)} to {shown(file)}", thread=id, file=file, bytes=len(data))


def _print(call: Call, text: str) -> None:
    if call.is_json or sys.stdout.isatty():
        import json

        document = json.loads(text)
        ascii = shown_json(json.dumps(document, indent=1))  # steers no terminal
        call.answer([document], lambda: print(ascii))
    else:
        sys.stdout.buffer.write(f"{text}\n".encode())


@command(
    "import",
    "Make a thread of exported JSON.",
    argument("FILE", type=click.Path()),
    option("--as", "name", metavar="THREAD", help="Give the thread this id."),
)
def import_(call: Call, file: str, name: str | None) -> None:
    """Make a thread of what `export` wrote; - reads standard input. The store is made if there is none.

    A thread of that id must not be there yet.
    """
    from outlive.cli.output.units import counted
    from outlive.cli.stores import opened

    text = _read(file)
    with opened(call.url, call.options(), creates=call.secondary is None, knows_types=True) as store:
        settings = store._store._settings
        call.shown_store, call.shown_tenant = settings.url, settings.tenant
        call.check_alone(store)
        thread = store.import_thread(text, id=name)
        info = thread.info()
    count = 0 if info is None else info.checkpoints
    call.did(
        f"imported thread {shown(thread.id)} with {counted(count, 'checkpoint')} into {call.shown_store}",
        thread=thread.id,
        checkpoints=count,
    )


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        with open(file, "rb") as found:
            return found.read()
    except OSError as error:
        raise BadArgument(f"{file!r} cannot be read: {error.strerror}") from None
