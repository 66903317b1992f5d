"""One checkpoint in one file at a path, for a program that needs no store. Sync only.

The file is a log of the file backend (`backends/file/log.py`): frames with a chained checksum over
every byte. `save` writes the whole file under another name, syncs it, renames it and syncs the
folder: a crash leaves the old value or the new one. An update of one model appends one frame and
syncs it. So its cost depends on the update, not on the file, and a crash can only tear a frame that
was not acknowledged. When updates have made the file several times as large as its value, it is
written again as a whole.

Writers in threads and processes take turns by a lock file (`.NAME.lock`), which each holds during
its whole read and write. The system releases it when a process dies. Readers need no lock. Only the
owner can read both files (0600; on Windows, who may read the folder).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlive.backends.file.disk import BUSY_S, Disk, disk_at, translated
from outlive.backends.file.log import Log
from outlive.backends.server.urls import hide_secrets
from outlive.errors import BadArgument, Corrupt, StoreBusy
from outlive.format.codec import Codec
from outlive.runs.response_values import (
    INTERRUPTED,
    RUNNING,
    FanOut,
    ModelKey,
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
from outlive.runtime.platform import system

_DIGEST = hashlib.blake2b(b"single file", digest_size=16, person=b"outlive.file").digest()
_VALUE, _RESPONSE = "value", "response"
_GROWTH = 4  # the file may grow to this many times its size after the last full write
_SMALL = 64 << 10
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|(sqlite|file|memory|null|postgres|postgresql|redis|rediss):")


def checkpoint_file(path: str | os.PathLike[str], *, timeout_s: float = BUSY_S) -> CheckpointFile:
    """Return a checkpoint in a file, which need not exist yet.

    `timeout_s` limits how long a call waits for other writers.
    """
    return CheckpointFile(path, timeout_s=timeout_s)


class CheckpointFile:
    """One value in one file: `outlive.checkpoint_file(path)`.

    It keeps no file open between calls.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = BUSY_S) -> None:
        text = os.fsdecode(path)
        if _URL.match(text):
            raise BadArgument(
                f"checkpoint_file takes the path of a file, not a URL such as {hide_secrets(text)[:200]!r}; "
                "outlive.open(url) opens a store"
            )
        self.path = os.path.abspath(text)
        folder, self._name = os.path.split(self.path)
        if not self._name:
            raise BadArgument(f"{self.path!r} is not the path of a file")
        self._folder = folder
        self._timeout_s = timeout_s
        self._codec = Codec()
        self._begun: set[ModelKey] = set()  # models whose current attempt belongs to this object
        self._synced = b""  # the incarnation whose name is known to be on disk

    def __repr__(self) -> str:
        return f"<CheckpointFile {self.path!r}>"

    # The value as a whole

    def save(self, value: Any) -> None:
        """Replace the value atomically; it may be any value that a state may have."""
        frame = self._codec.pack([_VALUE, value], "value")
        with translated():
            self._make_folder()
            with self._locked() as disk:
                self._rewrite(disk, frame)
                self._begun.clear()

    def load(self) -> Any:
        """Return the value; None if there is no file. Raises Corrupt if the file is damaged."""
        with translated():
            content = self._read(self._disk())
        return None if content is None else content.value()

    def clear(self) -> None:
        """Remove the file, if there is one; it does not come back after a power failure."""
        if not os.path.isdir(self._folder):
            return
        with translated(), self._locked() as disk:
            # The lock file too, where an open file can be removed: a process that waits for it sees
            # that it is gone and creates another.
            lock_names = (self._lock_name,) if system.can_remove_open_files else ()
            for name in (self._name, f"{self._name}.tmp", *lock_names):
                with contextlib.suppress(FileNotFoundError):
                    disk.remove(name)
            disk.sync_folder()
            self._begun.clear()

    # A fan-out, model by model

    def open(self, model_ids: Sequence[str], *, prompt: Any = None, verbose: bool = False) -> FanOut:
        """Store that these models will be asked, or add missing models to the stored fan-out.

        Raises BadArgument for a prompt other than the stored one: call `clear()` first.
        """
        model_keys = numbered(model_ids)
        with translated():
            self._make_folder()
            with self._locked() as disk:
                content = self._read(disk)
                if content is None:
                    fan_out = FanOut.start(model_ids, prompt=prompt, verbose=verbose)
                else:
                    fan_out = self._with(content.fan_out(self.path), model_keys, prompt)
                if content is None or fan_out != content.value():
                    self._rewrite(disk, self._pack_all(fan_out, content))
        return fan_out

    def _with(self, fan_out: FanOut, model_keys: Sequence[ModelKey], prompt: Any) -> FanOut:
        if prompt is not None and prompt != fan_out.prompt:
            raise BadArgument(
                f"{self.path!r} answers another prompt; call clear() first to delete those responses"
            )
        known = {(response.model_id, response.ordinal) for response in fan_out.responses}
        return _with_models(fan_out, [model_key for model_key in model_keys if model_key not in known])

    def update(
        self, model_id: str, partial: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store how far a model has got: all of this attempt.

        Until it ends, it counts as interrupted.

        The first update by this object is a new attempt: the usage of earlier ones is added.
        """
        checked = as_partial(partial)
        return self._change(model_id, ordinal, lambda record: record.update(checked))

    def mark_completed(
        self, model_id: str, response: PartialResponse | Mapping[str, Any], ordinal: int = 0
    ) -> ModelResponse:
        """Store the whole answer of a model.

        A response with an error is stored as failed, an interrupted one as interrupted.
        """
        answer = as_response(model_id, ordinal, response)
        status, error = ending(answer)
        return self._change(model_id, ordinal, lambda record: record.end(status, answer, error))

    def _change(self, model_id: str, ordinal: int, change: Callable[[Record], Record]) -> ModelResponse:
        model_key = check_model(model_id, ordinal)
        with translated():
            self._make_folder()
            with self._locked() as disk:
                content = self._read(disk) or _Content(FanOut((), created_at=None))
                content.fan_out(self.path)
                before = replace(content.record(model_key), is_open=model_key in self._begun)
                record = change(before)
                if record.response.status == RUNNING:  # no lease tells later whether it still runs
                    record = replace(record, response=replace(record.response, status=INTERRUPTED))
                if record != before:
                    self._append(disk, content, record)
                if record.is_open:
                    self._begun.add(model_key)
                else:
                    self._begun.discard(model_key)
        return record.response

    # The file

    def _append(self, disk: Disk, content: _Content, record: Record) -> None:
        """Append one frame, or write the whole file if it is missing or has grown too large."""
        content.put(record)
        frame = self._codec.pack([_RESPONSE, record.response, record.earlier], "response")
        if content.log is None or content.log.end + len(frame) > max(_SMALL, _GROWTH * content.first_end):
            self._rewrite(disk, self._pack_all(content.value(), content))
            return
        log = content.log
        # The process that renamed the file may have died before it synced the folder.
        if log.incarnation != self._synced:
            disk.sync_folder()
            self._synced = log.incarnation
        fd = log.open(write=True)
        try:
            log.cut(fd)
            log.add(frame)
            log.write(fd)
            disk.sync(fd)  # a crash before this leaves a torn frame, which the next writer cuts off
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
        self._synced = log.incarnation

    def _pack_all(self, value: Any, content: _Content | None) -> bytes:
        earlier = (
            [] if content is None else [[*model_key, usage] for model_key, usage in content.earlier.items()]
        )
        return self._codec.pack([_VALUE, value, earlier], "value")

    def _read(self, disk: Disk) -> _Content | None:
        log = self._log(disk)
        try:
            fd = log.open()
        except FileNotFoundError:
            return None
        try:
            return self._replay(log, fd)
        finally:
            disk.close(fd)

    def _replay(self, log: Log, fd: int) -> _Content:
        log.resume(fd)
        content: _Content | None = None
        for frame in log.frames(fd):
            kind, value, *rest = self._codec.unpack(frame.meta)
            if kind == _VALUE:
                content = _Content(value, log, log.end)
                for model_id, ordinal, usage in rest[0] if rest else ():
                    content.earlier[model_id, ordinal] = usage
            elif content is not None:
                content.put(Record(value, *rest))
        if content is None:
            raise Corrupt(f"{self.path} has no value")
        return content

    def _disk(self) -> Disk:
        return disk_at(os.path.realpath(self._folder))

    def _log(self, disk: Disk) -> Log:
        return Log(disk, self._name, _DIGEST)

    def _make_folder(self) -> None:
        """Create the missing folders, and sync each before the next."""
        missing, folder = [], self._folder
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            disk_at(os.path.realpath(os.path.dirname(folder))).sync_folder()

    # The lock

    @property
    def _lock_name(self) -> str:
        return f".{self._name}.lock"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Disk]:
        """Hold the lock.

        Every call opens the lock file, so threads exclude each other as processes do.
        """
        disk, deadline = self._disk(), time.monotonic() + self._timeout_s
        while True:
            fd = disk.open(self._lock_name, create=True)
            try:
                self._wait(fd, deadline)
                if disk.is_at(fd, self._lock_name):  # else `clear` removed it, and others use a new one
                    yield disk
                    return
            finally:
                # Unlock explicitly: closing is not enough while a child forked just now has the
                # file open.
                with contextlib.suppress(OSError):
                    system.unlock(fd)
                disk.close(fd)

    def _wait(self, fd: int, deadline: float) -> None:
        pause_s = 0.0002
        while True:
            try:
                system.lock(fd)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"other writers held {self._lock_name} for {self._timeout_s} s; raise timeout_s"
                    ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)


class _Content:
    """The content of the file."""

    def __init__(self, value: Any, log: Log | None = None, first_end: int = 0) -> None:
        self._value = value
        self.log = log
        self.first_end = first_end  # where the frames of single models begin
        self.earlier: dict[ModelKey, Usage] = {}
        self._changed: dict[ModelKey, ModelResponse] = {}

    def fan_out(self, path: str) -> FanOut:
        value = self.value()
        if not isinstance(value, FanOut):
            raise BadArgument(
                f"{path!r} holds a {type(value).__name__}, but only a FanOut has models to update"
            )
        return value

    def record(self, model_key: ModelKey) -> Record:
        for response in self.value().responses:
            if (response.model_id, response.ordinal) == model_key:
                return Record(response, self.earlier.get(model_key, Usage()))
        return Record(not_started(*model_key))

    def put(self, record: Record) -> None:
        model_key = (record.response.model_id, record.response.ordinal)
        self._changed[model_key] = record.response
        self.earlier[model_key] = record.earlier

    def value(self) -> Any:
        if self._changed:
            model_keys = {(response.model_id, response.ordinal) for response in self._value.responses}
            whole = _with_models(
                self._value, [model_key for model_key in self._changed if model_key not in model_keys]
            )
            responses = (
                self._changed.get((response.model_id, response.ordinal), response)
                for response in whole.responses
            )
            self._value, self._changed = replace(whole, responses=tuple(responses)), {}
        return self._value


def _with_models(fan_out: FanOut, missing: Sequence[ModelKey]) -> FanOut:
    """Return a fan-out to more models."""
    return replace(
        fan_out, responses=(*fan_out.responses, *(not_started(*model_key) for model_key in missing))
    )
