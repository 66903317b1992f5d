"""Error replies of a Redis server, and what they mean for a call."""

from __future__ import annotations

import re

import hiredis

from outlive.backends.server.attempts import AttemptFailed
from outlive.errors import Corrupt, StoreFull, StoreUnavailable

_TRANSIENT = ("LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "BUSY")
# A script that fails passes the code of its cause on, somewhere inside its message.
_code = re.compile(rf"\b({'|'.join((*_TRANSIENT, 'OOM'))})\b|max number of clients")
_credentials = re.compile(
    r"(WRONGPASS|NOAUTH|NOPERM)\b|ERR (invalid password|Client sent AUTH|AUTH <password> called)"
)
_no_command = re.compile(r"NOAUTH\b|LOADING\b|ERR max number of clients")


class ErrorReply(hiredis.ReplyError):
    """An error that a server sent as the reply to a command. It starts with a code."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]

    @property
    def is_refused_connection(self) -> bool:
        """Whether the server executes no command on this connection, or none yet."""
        return _no_command.match(str(self)) is not None

    @property
    def redirection(self) -> tuple[int, str, int]:
        """Slot, host and port that a MOVED or ASK names. No host: that of the sender."""
        _, slot, address = str(self).split(" ")[:3]
        host, _, port = address.rpartition(":")
        return int(slot), host.strip("[]"), int(port)


def refusal(error: ErrorReply) -> Exception:
    """Return what to raise for an error reply: `AttemptFailed` when a later attempt may succeed."""
    text = str(error)
    if _credentials.match(text):
        return StoreUnavailable(f"the server refused the credentials: {text}")
    code = _code.search(text)
    if code is not None and code[0] == "OOM":
        return StoreFull(
            "Redis has reached its maxmemory and stores nothing more; raise it (CONFIG SET maxmemory ...) or "
            "delete threads: deletions still work"
        )
    if code is not None:
        return AttemptFailed(text, sent=False)
    if "WRONGTYPE" in text:
        return Corrupt("a key holds a value of another type")
    if "user_script" in text:
        return Corrupt(f"a script failed on a stored value: {text}")
    return StoreUnavailable(f"Redis refused the command: {text}")
