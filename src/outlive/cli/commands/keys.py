"""`new-key`: a key for an encrypted store, in a file that only its owner reads."""

from __future__ import annotations

import os

import click

from outlive.cli.command import argument, command, flag, option
from outlive.cli.context import Call
from outlive.cli.output.escape import shown
from outlive.errors import BadArgument


@command(
    "new-key",
    "Make a key for an encrypted store.",
    argument("FILE", type=click.Path()),
    option("--id", metavar="NAME", help="Its name, which is no secret; default: the date."),
    flag("--first", help="Put it before the others: the newest, which seals, stays the one that it is."),
)
def new_key(call: Call, file: str, id: str | None, first: bool) -> None:
    """Make a random key and add it to a key file, which is made if there is none; - prints it instead.

    The last key of a file is the newest, which seals what is saved. Whoever loses all keys has lost the store: keep the file also
    elsewhere, and not beside the store.
    """
    import base64

    from outlive.cli.key_files import ring_of
    from outlive.cli.output.files import put
    from outlive.layers.encryption.keyring import KeyRing

    lines = _lines(file)
    known = ring_of(" ".join(lines)).ids
    name = _name(id, known)
    line = f"{name}:{base64.b64encode(KeyRing.new_key()).decode()}"
    lines = [line, *lines] if first else [*lines, line]
    KeyRing.parse(" ".join(lines))  # refuses an id that is none
    if file == "-":
        print(line)
        return
    put(file, "".join(f"{one}\n" for one in lines).encode())
    keys = [one.partition(":")[0] for one in lines]
    call.did(
        f"made key {shown(name)} in {shown(file)}; the newest is {shown(keys[-1])}",
        key=name,
        file=file,
        keys=keys,
    )


def _lines(file: str) -> list[str]:
    if file == "-" or not os.path.exists(file):
        return []
    try:
        with open(file, encoding="ascii") as found:
            return found.read().split()
    except (OSError, UnicodeDecodeError):
        raise BadArgument(f"{file!r} is there, and is no key file that can be read; name another") from None


def _name(said: str | None, known: tuple[str, ...]) -> str:
    import datetime as dt
    import itertools

    if said is not None:
        if said in known or ":" in said or len(said.split()) != 1:
            raise BadArgument(
                f"the name of a key is one word without a colon that no other has, not {said!r}"
            )
        return said
    today = dt.datetime.now(dt.UTC).date().isoformat()
    names = itertools.chain((today,), (f"{today}-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in known)
