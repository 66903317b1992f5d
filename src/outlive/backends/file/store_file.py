"""The folder of a store, and the file in it that holds the naming key."""

from __future__ import annotations

import contextlib
import os
import struct
from hashlib import blake2b

from outlive.backends.file.disk import THREADS, Disk, WriteLock
from outlive.backends.file.log import FORMAT
from outlive.errors import BadURL, Corrupt, FolderMissing, NewerFormat

_MAGIC = b"outlive\0"
_HEAD = struct.Struct("<8sII")  # magic, format, bytes of the key


def make_folders(disk: Disk) -> None:
    """Create the missing folders. A folder with other files in it is not a store."""
    if os.path.islink(disk.root):
        raise BadURL(f"{disk.root!r} is a symbolic link; name the folder that it leads to")
    if not os.path.isdir(disk.root):
        _make_root(disk)
    names = set(disk.names())
    if THREADS in names:
        return
    if others := {name for name in names if not name.startswith(".")} - {"lock", "lost+found"}:
        raise BadURL(
            f"{disk.root!r} contains {min(others)!r}, which is not outlive's; choose an empty folder"
        )
    with contextlib.suppress(FileExistsError):  # of several first openers one makes it
        disk.make_folder(THREADS)
    disk.sync_folder("")


def _make_root(disk: Disk) -> None:
    try:
        disk.make_folder()
    except FileExistsError:
        if not os.path.isdir(disk.root):
            raise BadURL(f"{disk.root!r} is not a folder; give the path of one, or of nothing yet") from None
    except FileNotFoundError:
        raise FolderMissing(
            f"the folder that should hold {disk.root!r} does not exist; create it first"
        ) from None
    Disk(os.path.dirname(os.path.abspath(disk.root))).sync_folder("")


def read_key(disk: Disk) -> bytes | None:
    """Return the naming key; None when there is none yet."""
    try:
        return _unpack(_read(disk), f"{disk.root}/store")
    except FileNotFoundError:
        return None


def read_format(disk: Disk) -> int:
    """Return the version of the format in which a store is."""
    return int(_HEAD.unpack_from(_read(disk))[1])


def _read(disk: Disk) -> bytes:
    fd = disk.open("store")
    try:
        return disk.read(fd, 4096, 0)
    finally:
        disk.close(fd)


def write_key(disk: Disk, guard: WriteLock, key: bytes) -> None:
    """Write the file under another name and rename it: a crash leaves the whole file or none."""
    with guard.renaming(""):
        fd = disk.create("store.tmp")
        try:
            disk.write(fd, _pack(key), 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename("store.tmp", "store")


def _pack(key: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, FORMAT, len(key)) + key
    return head + _checksum(head)


def _unpack(data: bytes, path: str) -> bytes:
    if len(data) < _HEAD.size + 16 or data[-16:] != _checksum(data[:-16]):
        raise Corrupt(f"the file {path} with the naming key is damaged; put it back from a backup")
    magic, version, size = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise Corrupt(f"the file {path} is not of outlive; check the path of the store")
    if version > FORMAT:
        raise NewerFormat("the store", version, FORMAT)
    return data[_HEAD.size : _HEAD.size + size]


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=16, person=b"outlive.store").digest()
