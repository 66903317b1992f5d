"""The command new-key: creates a key for an encrypted store, in a file that only its owner can read."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import os

import click

from outlive.cli.command import argument, command, flag, option
from outlive.cli.context import Call
from outlive.cli.key_files import parse_key_ring
from outlive.cli.output.files import write_file
from outlive.errors import BadArgument
from outlive.layers.encryption.keyring import KeyRing
from outlive.view.escape import escape_terminal


@command(
    "new-key",
    argument("FILE", type=click.Path()),
    option("--id", metavar="NAME", help="The id of the key, which is not secret. Default: the date."),
    flag("--first", help="Put it before the others, so that another key stays the newest."),
)
def new_key(call: Call, file: str, id: str | None, first: bool) -> None:
    """Create a random key and add it to a key file, which is created if needed; - prints the key instead.

    The last key of a file is the newest: it encrypts what is saved. Without the keys the store
    cannot be read: keep a second copy of the file, away from the store.
    """
    lines = _read_lines(file)
    key_id = _choose_id(id, parse_key_ring(" ".join(lines)).ids)
    line = f"{key_id}:{base64.b64encode(KeyRing.new_key()).decode()}"
    lines = [line, *lines] if first else [*lines, line]
    KeyRing.parse(" ".join(lines))  # refuses an invalid id
    if file == "-":
        print(line)
        return
    write_file(file, "".join(f"{line}\n" for line in lines).encode())
    keys = [line.partition(":")[0] for line in lines]
    call.report(
        f"created key {escape_terminal(key_id)} in {escape_terminal(file)}; the newest key is {escape_terminal(keys[-1])}",
        key=key_id,
        file=file,
        keys=keys,
    )


def _read_lines(file: str) -> list[str]:
    if file == "-" or not os.path.exists(file):
        return []
    try:
        with open(file, encoding="ascii") as keys:
            return keys.read().split()
    except (OSError, UnicodeDecodeError):
        raise BadArgument(f"{file!r} exists but is not a readable key file; choose another name") from None


def _choose_id(id: str | None, used: tuple[str, ...]) -> str:
    if id is not None:
        if id in used or ":" in id or len(id.split()) != 1:
            raise BadArgument(f"the id of a key must be one unused word without a colon, not {id!r}")
        return id
    today = dt.datetime.now(dt.UTC).date().isoformat()
    ids = itertools.chain((today,), (f"{today}-{number}" for number in itertools.count(2)))
    return next(id for id in ids if id not in used)
