"""What an error says, with what mends it at a terminal rather than in a program."""

from __future__ import annotations

from outlive.cli.output.escape import as_argument, shown
from outlive.errors import (
    AmbiguousRun,
    Corrupt,
    KeyMissing,
    NotEncrypted,
    OutliveError,
    RunBusy,
    RunEnded,
    StoreBusy,
    StoreUnavailable,
    ThreadBusy,
    WrongKey,
)

_GIVE = "give the file that holds it by --key-file PATH, or the keys themselves in OUTLIVE_KEYS"
_COPY = (
    "leave --key-file and OUTLIVE_KEYS out, or copy it into a new one that is: "
    "outlive copy SOURCE_URL TARGET_URL --target-key-file PATH"
)
# What SQLite says → what helps.
_SQLITE = {
    "file is not a database": "this is no store; check the path",
    "malformed": "restore the file from a backup, or let sqlite3 save what it still can: .recover",
    "readonly database": "SQLite takes locks in files beside it even to read: let this user write to the file and its folder, "
    "or copy it to where that is allowed",
    "unable to open database file": "check that this user may read and write the file and its folder",
    "disk I/O error": "check the disk, its space and its mount",
}


def mended(error: OutliveError) -> str:
    """Return what an error says, and what to do."""
    return "; ".join(filter(None, parted(error)))


def parted(error: OutliveError) -> tuple[str, str]:
    """Return what an error says, and what to do as far as that is known."""
    said = str(error).replace("\n", " ")  # what is said of a checkpoint stands on a line of its own
    if isinstance(error, KeyMissing):
        which = (
            "a key is needed"
            if error.id is None
            else f"this is sealed under key {error.id!r}, which was not given"
        )
        return which, _GIVE
    if isinstance(error, NotEncrypted):
        return "this store is not encrypted", _COPY
    if isinstance(error, RunEnded):
        can_retry = error.status not in ("completed", "deleted")
        mend = (
            f"outlive retry {as_argument(error.run)} goes on with it"
            if can_retry
            else "there is nothing left to do"
        )
        return f"run '{shown(error.run)}' is {error.status}", mend
    if isinstance(error, ThreadBusy) and error.holder is not None:
        return said.removesuffix("; wait for it, or use exclusive=False"), _end(error.holder)
    if isinstance(error, AmbiguousRun):
        return said.partition(": say")[0], "say which: --thread THREAD"
    if isinstance(error, RunBusy):
        return said.rpartition("; ")[0], _end(error.run)
    if isinstance(error, StoreUnavailable) and "enabled=False" in said:
        said, _, _ = said.partition(". Bring it back")
        return said, "bring it back, or go on without it: outlive replication --pause"
    if mend := _mend(error, said):
        return said, mend
    if isinstance(error, StoreUnavailable) and "; " in said and not said.endswith("?"):
        said, _, mend = said.rpartition("; ")
    return said, mend


def _end(run: str) -> str:
    return f"wait for it, or take it from there: outlive park {as_argument(run)}"


def _mend(error: OutliveError, said: str) -> str:
    if isinstance(error, WrongKey):
        return _GIVE
    if "SQLite: " in said:
        return next((mend for words, mend in _SQLITE.items() if words in said), "")
    if isinstance(error, StoreBusy):
        return "try again, or let it wait longer: --timeout 5min"
    if isinstance(error, Corrupt) and error.thread is not None:
        goes = ", or delete it with outlive rm" if error.checkpoint is not None else ""
        return f"outlive verify lists all that is broken; restore the thread from a backup{goes}"
    return ""
