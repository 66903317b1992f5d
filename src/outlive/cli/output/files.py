"""Writes the files that commands create: exports and keys."""

from __future__ import annotations

import os

from outlive.errors import BadArgument
from outlive.runtime.platform import system


def write_file(path: str, data: bytes) -> None:
    """Replace a file atomically. Only its owner may read it: it holds states or keys."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.file_flags, 0o600), "wb"
        ) as file:
            file.write(data)
            file.flush()
            system.sync_file(file.fileno())
        system.replace(part, path)  # a crash before this line leaves the old file and a .part file
    except OSError as error:
        if os.path.exists(part):
            os.unlink(part)
        raise BadArgument(f"cannot write {path!r}: {error.strerror}") from error
