"""One checkpoint in one file at a path: for a program that needs no store. Sync only; for threads and processes.

The file is a log of the file backend (`backends/log.py`): frames with a chained checksum over every byte. A `save` writes the whole
file aside, syncs it, renames it and syncs the folder: after a crash there is the old value or the new one. An update of one model
appends one frame and syncs it: the cost follows the update, not the file, and a crash tears nothing but an end that nobody was
told about. When updates have made the file several times as large as its value, it is written anew.

Writers take turns by a lock file beside it (`.NAME.lock`), which every one of them holds for the whole of its read and write; the
system lets go of it when a process dies. Readers need no lock. Both files are for their owner alone (0600).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlive.backends.file.disk import BUSY_S, Disk, translated
from outlive.backends.file.log import Log
from outlive.backends.server.urls import hide_secrets
from outlive.errors import BadArgument, Corrupt, StoreBusy
from outlive.format.codec import Codec
from outlive.runs.response_values import (
    INTERRUPTED,
    RUNNING,
    FanOut,
    ModelResponse,
    PartialResponse,
    Record,
    Usage,
    as_partial,
    as_response,
    check_model,
    ending,
    not_started,
    numbered,
)

_DIGEST = hashlib.blake2b(b"single file", digest_size=16, person=b"outlive.file").digest()
_VALUE, _RESPONSE = "value", "response"
_GROWTH = 4  # the file may be this many times as large as after it was last written as a whole
_SMALL = 64 << 10
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|(sqlite|file|memory|null|postgres|postgresql|redis|rediss):")
Place = tuple[str, int]


def checkpoint_file(path: str | os.PathLike[str], *, timeout_s: float = BUSY_S) -> CheckpointFile:
    """Return a handle on a checkpoint in a file, which need not exist yet. `timeout_s` is for waiting for other writers."""
    return CheckpointFile(path, timeout_s=timeout_s)


class CheckpointFile:
    """One value in one file. Made by `outlive.checkpoint_file(path)`; costs nothing until used, and holds nothing open."""

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = BUSY_S) -> None:
        said = os.fsdecode(path)
        if _URL.match(said):
            raise BadArgument(
                f"checkpoint_file takes the path of a file, not a URL such as {hide_secrets(said)[:200]!r}; "
                "outlive.open(url) opens a store"
            )
        self.path = os.path.abspath(said)
        folder, self._name = os.path.split(self.path)
        if not self._name:
            raise BadArgument(f"{self.path!r} is not the path of a file")
        self._folder = folder
        self._timeout_s = timeout_s
        self._codec = Codec()
        self._begun: set[Place] = set()  # models whose attempt is this handle's
        self._lasting = b""  # the file whose name is known to be on disk

    def __repr__(self) -> str:
        return f"<CheckpointFile {self.path!r}>"

    # The value as a whole

    def save(self, value: Any) -> None:
        """Put a value in place of what is there, whole or not at all; it may be any that a state may hold."""
        frame = self._codec.pack([_VALUE, value], "value")
        with translated():
            self._make_folder()
            with self._held() as disk:
                self._rewrite(disk, frame)
                self._begun.clear()

    def load(self) -> Any:
        """Return the value; None when there is no file. A file that is damaged raises Corrupt."""
        with translated():
            held = self._read(self._disk())
        return None if held is None else held.value()

    def clear(self) -> None:
        """Remove the file, if there is one; it does not come back after a power cut."""
        if not os.path.isdir(self._folder):
            return
        with translated(), self._held() as disk:
            for name in (self._name, f"{self._name}.tmp", self._lock_name):
                with contextlib.suppress(FileNotFoundError):
                    disk.remove(
                        name
                    )  # the lock too: whoever waits for it sees that it is gone, and makes another
            disk.sync_folder()
            self._begun.clear()

    # A fan-out, model by model

    def open(self, model_ids: Sequence[str], *, prompt: Any = None, verbose: bool = False) -> FanOut:
        """Note down that these models will be asked; or go on with what is there, and add the models that are missing.

        Another prompt than the one that was answered is refused: `clear()` comes first.
        """
        places = numbered(model_ids)
        with translated():
            self._make_folder()
            with self._held() as disk:
                held = self._read(disk)
                if held is None:
                    fan_out = FanOut.start(model_ids, prompt=prompt, verbose=verbose)
                else:
                    fan_out = self._with(held.fan_out(self.path), places, prompt)
                if held is None or fan_out != held.value():
                    self._rewrite(disk, self._pack_all(fan_out, held))
        return fan_out

    def _with(self, fan_out: FanOut, places: Sequence[Place], prompt: Any) -> FanOut:
        if prompt is not None and prompt != fan_out.prompt:
            raise BadArgument(f"{self.path!r} answers another prompt: call clear() first to give that up")
        known = {(one.model_id, one.ordinal) for one in fan_out.responses}
        return _and_of(fan_out, [place for place in places if place not in known])

    def update(
        self, model_id: str, partial: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store how far a model has got: all that it did in this attempt. Until it ends, it counts as interrupted.

        The first update by this handle is a new attempt: the usage of earlier ones is added.
        """
        said = as_partial(partial)
        return self._change(model_id, ordinal, lambda record: record.update(said))

    def mark_completed(
        self, model_id: str, response: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store a model's whole answer. One with an error is failed and one that was interrupted is that, not completed."""
        said = as_response(model_id, ordinal, response)
        status, error = ending(said)
        return self._change(model_id, ordinal, lambda record: record.end(status, said, error))

    def _change(self, model_id: str, ordinal: int, change: Callable[[Record], Record]) -> ModelResponse:
        place = check_model(model_id, ordinal)
        with translated():
            self._make_folder()
            with self._held() as disk:
                held = self._read(disk) or _Held(FanOut((), created_at=None))
                held.fan_out(self.path)
                before = replace(held.record(place), is_open=place in self._begun)
                record = change(before)
                if record.response.status == RUNNING:  # no lease tells whether it still does
                    record = replace(record, response=replace(record.response, status=INTERRUPTED))
                if record != before:
                    self._append(disk, held, record)
                if record.is_open:
                    self._begun.add(place)
                else:
                    self._begun.discard(place)
        return record.response

    # The file

    def _append(self, disk: Disk, held: _Held, record: Record) -> None:
        """Put one frame behind the others, or write the file anew when it has grown too large or is not there."""
        held.put(record)
        frame = self._codec.pack([_RESPONSE, record.response, record.earlier], "response")
        if held.log is None or held.log.end + len(frame) > max(_SMALL, _GROWTH * held.first_end):
            self._rewrite(disk, self._pack_all(held.value(), held))
            return
        log = held.log
        if log.incarnation != self._lasting:  # whoever renamed it may have died before the folder was synced
            disk.sync_folder()
            self._lasting = log.incarnation
        fd = log.open(write=True)
        try:
            log.cut(fd)
            log.add(frame)
            log.write(fd)
            disk.sync(fd)  # a crash before leaves a torn end, which the next writer cuts
            log.acknowledge(fd)
        except BaseException:
            log.retreat(fd)
            raise
        finally:
            disk.close(fd)

    def _rewrite(self, disk: Disk, *frames: bytes) -> None:
        log = self._log(disk)
        log.begin()
        for frame in frames:
            log.add(frame)
        with log.aside():
            pass
        disk.sync_folder()
        self._lasting = log.incarnation

    def _pack_all(self, value: Any, held: _Held | None) -> bytes:
        earlier = [] if held is None else [[*place, usage] for place, usage in held.earlier.items()]
        return self._codec.pack([_VALUE, value, earlier], "value")

    def _read(self, disk: Disk) -> _Held | None:
        log = self._log(disk)
        try:
            fd = log.open()
        except FileNotFoundError:
            return None
        try:
            return self._replay(log, fd)
        finally:
            disk.close(fd)

    def _replay(self, log: Log, fd: int) -> _Held:
        log.resume(fd)
        held: _Held | None = None
        for frame in log.frames(fd):
            kind, value, *rest = self._codec.unpack(frame.meta)
            if kind == _VALUE:
                held = _Held(value, log, log.end)
                for model_id, ordinal, usage in rest[0] if rest else ():
                    held.earlier[model_id, ordinal] = usage
            elif held is not None:
                held.put(Record(value, *rest))
        if held is None:
            raise Corrupt(f"{self.path} holds no value")
        return held

    def _disk(self) -> Disk:
        return Disk(os.path.realpath(self._folder))

    def _log(self, disk: Disk) -> Log:
        return Log(disk, self._name, _DIGEST)

    def _make_folder(self) -> None:
        """Make the folders that are missing, each lasting before the next."""
        missing, folder = [], self._folder
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            Disk(os.path.realpath(os.path.dirname(folder))).sync_folder()

    # The lock

    @property
    def _lock_name(self) -> str:
        return f".{self._name}.lock"

    @contextlib.contextmanager
    def _held(self) -> Iterator[Disk]:
        """Hold the lock. Every call opens the lock file anew, so that threads exclude each other as processes do."""
        disk, deadline = self._disk(), time.monotonic() + self._timeout_s
        while True:
            fd = disk.open(self._lock_name, create=True)
            try:
                self._wait(fd, deadline)
                if disk.is_at(fd, self._lock_name):  # else it was removed by `clear`, and others hold another
                    yield disk
                    return
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)  # said aloud: a child that was forked just now has it too
                disk.close(fd)

    def _wait(self, fd: int, deadline: float) -> None:
        pause_s = 0.0002
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"others held {self._lock_name} for {self._timeout_s} s; give timeout_s more room"
                    ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)


class _Held:
    """What is in the file."""

    def __init__(self, value: Any, log: Log | None = None, first_end: int = 0) -> None:
        self._value = value
        self.log = log
        self.first_end = first_end  # where the frames of single models begin
        self.earlier: dict[Place, Usage] = {}
        self._changed: dict[Place, ModelResponse] = {}

    def fan_out(self, path: str) -> FanOut:
        value = self.value()
        if not isinstance(value, FanOut):
            raise BadArgument(
                f"{path!r} holds a {type(value).__name__}, and only a FanOut has models to update"
            )
        return value

    def record(self, place: Place) -> Record:
        for one in self.value().responses:
            if (one.model_id, one.ordinal) == place:
                return Record(one, self.earlier.get(place, Usage()))
        return Record(not_started(*place))

    def put(self, record: Record) -> None:
        place = (record.response.model_id, record.response.ordinal)
        self._changed[place] = record.response
        self.earlier[place] = record.earlier

    def value(self) -> Any:
        if self._changed:
            places = {(one.model_id, one.ordinal) for one in self._value.responses}
            whole = _and_of(self._value, [place for place in self._changed if place not in places])
            responses = (self._changed.get((one.model_id, one.ordinal), one) for one in whole.responses)
            self._value, self._changed = replace(whole, responses=tuple(responses)), {}
        return self._value


def _and_of(fan_out: FanOut, missing: Sequence[Place]) -> FanOut:
    """Return a fan-out to more models."""
    return replace(fan_out, responses=(*fan_out.responses, *(not_started(*place) for place in missing)))
