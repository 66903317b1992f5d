"""The message of an error, and what to do about it at a terminal."""

from __future__ import annotations

from outlive.cli.output.escape import escape_terminal, quote_argument
from outlive.errors import (
    AmbiguousRun,
    Corrupt,
    KeyMissing,
    NotEncrypted,
    OutliveError,
    RunBusy,
    RunEnded,
    StoreBusy,
    StoreMissing,
    StoreUnavailable,
    ThreadBusy,
    WrongKey,
)

_GIVE_KEY = "pass the key file with --key-file PATH, or the keys in OUTLIVE_KEYS"
_ENCRYPT = (
    "remove --key-file and OUTLIVE_KEYS, or make an encrypted copy: "
    "outlive copy TARGET_URL --target-key-file PATH"
)
# What SQLite reports → what to do.
_SQLITE = {
    "file is not a database": "this file is not a store; check the path",
    "malformed": "restore the file from a backup, or save what is left with the .recover command of sqlite3",
    "readonly database": "SQLite needs lock files even to read: give this user write access to the file and its folder, "
    "or copy the file to a folder that is writable",
    "unable to open database file": "check that this user may read and write the file and its folder",
    "disk I/O error": "check the disk, its free space and its mount",
}


def message_with_advice(error: OutliveError) -> str:
    """Return what went wrong, and what to do."""
    return "; ".join(filter(None, split_advice(error)))


def split_advice(error: OutliveError) -> tuple[str, str]:
    """Return what went wrong, and what to do, or "" if nothing is known."""
    message = str(error).replace("\n", " ")
    if isinstance(error, KeyMissing):
        if error.id is None:
            return "this store is encrypted and no key was given", _GIVE_KEY
        return f"this store is encrypted under key {error.id!r}, which was not given", _GIVE_KEY
    if isinstance(error, NotEncrypted):
        return "this store is not encrypted", _ENCRYPT
    if isinstance(error, StoreMissing):
        return f"no store at {error.url}", "check the URL, or save something first"
    if isinstance(error, RunEnded):
        can_retry = error.status not in ("completed", "deleted")
        advice = (
            f"outlive retry {quote_argument(error.run)} resumes it" if can_retry else "nothing is left to do"
        )
        return f"run '{escape_terminal(error.run)}' is {error.status}", advice
    if isinstance(error, ThreadBusy) and error.holder is not None:
        return message.removesuffix("; wait for it, or use exclusive=False"), _take_over(error.holder)
    if isinstance(error, AmbiguousRun):
        return message.partition(": say")[0], "choose one: --thread THREAD"
    if isinstance(error, RunBusy):
        return message.rpartition("; ")[0], _take_over(error.run)
    if isinstance(error, StoreUnavailable) and "enabled=False" in message:
        return message.partition(". Bring it back")[0], (
            "bring it back, or continue without it: outlive replication --pause"
        )
    advice = _advice(error, message)
    if not advice and isinstance(error, StoreUnavailable) and "; " in message and not message.endswith("?"):
        message, _, advice = message.rpartition("; ")
    return message, advice


def _take_over(run: str) -> str:
    return f"wait for it, or stop it: outlive park {quote_argument(run)}"


def _advice(error: OutliveError, message: str) -> str:
    if isinstance(error, WrongKey):
        return _GIVE_KEY
    if "SQLite: " in message:
        return next((advice for words, advice in _SQLITE.items() if words in message), "")
    if isinstance(error, StoreBusy):
        return "try again, or wait longer: --timeout 5min"
    if isinstance(error, Corrupt) and error.thread is not None:
        delete = ", or delete it with outlive rm" if error.checkpoint is not None else ""
        return f"outlive verify lists all damage; restore the thread from a backup{delete}"
    return ""
