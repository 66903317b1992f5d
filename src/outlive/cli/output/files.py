"""Files that this program writes."""

from __future__ import annotations

import os

from outlive.errors import BadArgument


def put(path: str, data: bytes) -> None:
    """Put a file in its place as a whole, or not at all. Only its owner reads it: states and keys are nobody else's."""
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, path)
    except OSError as error:
        if os.path.exists(beside):
            os.unlink(beside)
        raise BadArgument(f"{path!r} cannot be written: {error.strerror}") from error
