"""`OutliveArtifactService`: the files of ADK on any store.

A file is a thread, and each version of it a checkpoint with the id `v0`, `v1`, ... Two processes
that save one file at once get two versions.
"""

from __future__ import annotations

import random
import uuid
from types import TracebackType
from typing import Any, NamedTuple, Self

from google.adk.artifacts import BaseArtifactService, artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from outlive.adapters.adk import names
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.plain import Plain
from outlive.errors import BadArgument, CheckpointExists, HeadMoved
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import NEW, CheckpointInfo

_USER = "user:"
_ATTEMPTS = 200  # that may lose against others; each time at least one of them succeeds
_PAUSE_S = 0.002
_parts: Plain[types.Part] = Plain(types.Part, "python", is_sparse=True)


class _File(NamedTuple):
    """Where a file is; without a session it belongs to the user."""

    app: str
    user: str
    session: str | None
    name: str

    @property
    def thread(self) -> str:
        return names.artifact_thread(self.app, self.user, self.session, self.name)

    def uri(self, version: int) -> str:
        return artifact_util.get_artifact_uri(self.app, self.user, self.name, version, self.session)


class OutliveArtifactService(BaseArtifactService):
    """Artifacts in threads: `OutliveArtifactService("sqlite:///agent.db")`, or on a store that is open.

    Bytes are stored as bytes, and a version shares with the one before what they have in common. A
    file whose name begins with `user:` belongs to the user, all others to a session.
    `delete_artifact` leaves no byte. Options are those of `outlive.open`. Use it from any event
    loop, thread or forked child.
    """

    def __init__(self, store: str | Store | AsyncStore, **options: Any) -> None:
        self._home = StoreHome.of(store, options, "OutliveArtifactService")

    def __repr__(self) -> str:
        return f"<OutliveArtifactService {self._home.url}>"

    # The interface of ADK

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save a file, and return its version: 0, or one more than the last. It survives a crash when this returns."""
        file = _file(app_name, user_id, session_id, filename)
        part = ensure_part(artifact)
        metadata = {"mime_type": _mime_type(file, part), "custom": custom_metadata or {}}
        # The same part saved by two processes at once is two versions.
        plain = {"part": _parts.dump(part), "save": uuid.uuid4().hex}
        return await self._home.acall(lambda store: _append(store, file.thread, plain, metadata))

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a file, as it is or as a version of it; None when there is none."""
        file = _file(app_name, user_id, session_id, filename)
        return await self._home.acall(lambda store: _load(store, file, version))

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of the files of a user, and of a session."""
        _file(app_name, user_id, session_id or "none", "")
        prefixes = [names.artifact_prefix(app_name, user_id, None)]
        if session_id is not None:
            prefixes.append(names.artifact_prefix(app_name, user_id, session_id))

        async def list_keys(store: AsyncStore) -> list[str]:
            found = [info.id for prefix in prefixes async for info in store.threads(prefix=prefix)]
            return sorted(names.parts_of(id)[-1] for id in found)

        return await self._home.acall(list_keys)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete a file with all its versions: no byte stays in the store."""
        file = _file(app_name, user_id, session_id, filename)
        await self._home.acall(lambda store: store.thread(file.thread).delete(erase=True))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of the versions of a file."""
        file = _file(app_name, user_id, session_id, filename)
        return [_number(info) for info in await self._versions(file)]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return what is known about the versions of a file."""
        file = _file(app_name, user_id, session_id, filename)
        return [_described(file, info) for info in await self._versions(file)]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return what is known about a version of a file, by default the last; None when there is none."""
        file = _file(app_name, user_id, session_id, filename)
        for info in reversed(await self._versions(file, limit=1 if version is None else None)):
            if version in (None, _number(info)):
                return _described(file, info)
        return None

    # More

    async def prune(
        self, keep_last: int, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> int:
        """Keep the newest versions of a file, erase the others, and return how many those were."""
        thread_id = _file(app_name, user_id, session_id, filename).thread

        async def prune(store: AsyncStore) -> int:
            pruned = await store.thread(thread_id).prune(keep_last=keep_last, erase=True)
            return pruned.checkpoints

        return await self._home.acall(prune)

    async def _versions(self, file: _File, limit: int | None = None) -> list[CheckpointInfo]:
        async def read(store: AsyncStore) -> list[CheckpointInfo]:
            return [info async for info in store.thread(file.thread).history(limit=limit)][::-1]

        return await self._home.acall(read)

    # Closing

    def close(self) -> None:
        """Close the store if this service opened it, and nothing else of this process uses it."""
        self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _file(app: str, user: str, session: str | None, name: str) -> _File:
    """Return where a file is. Raises InputValidationError, as the services of ADK do."""
    artifact_util.validate_path_segment(app, "app_name")
    artifact_util.validate_path_segment(user, "user_id")
    if name.startswith(_USER):
        return _File(app, user, None, name)
    if session is None:
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    artifact_util.validate_path_segment(session, "session_id")
    return _File(app, user, session.strip(), name)


def _mime_type(file: _File, part: types.Part) -> str | None:
    """Return the type of an artifact. Raises InputValidationError for one that is no file."""
    if part.inline_data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    if part.file_data is None:
        raise InputValidationError("Not supported artifact type.")
    if not artifact_util.is_artifact_ref(part):
        return part.file_data.mime_type
    _target(file, part, 1)
    return None  # that of the file it refers to


async def _append(store: AsyncStore, thread_id: str, plain: Any, metadata: dict[str, Any]) -> int:
    thread = store.thread(thread_id)
    for attempt in range(_ATTEMPTS):
        heads = [info async for info in thread.history(limit=1)]
        version, head = (_number(heads[0]) + 1, heads[0].id) if heads else (0, NEW)
        try:
            await thread.save(plain, id=f"v{version}", step=version, expect=head, metadata=metadata)
        except (HeadMoved, CheckpointExists):  # another process has saved this version
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return version
        await store._engine.runtime.sleep(random.uniform(0, _PAUSE_S * min(attempt, 20)))
    raise AssertionError


async def _load(store: AsyncStore, file: _File, version: int | None) -> types.Part | None:
    """Return a file. One that refers to another is that one, after a few references at most."""
    for depth in range(artifact_util._MAX_ARTIFACT_REFERENCE_DEPTH, -1, -1):
        state = await store.thread(file.thread).load(None if version is None else f"v{version}")
        if state is None:
            return None
        part = _parts.load(state["part"])
        if not artifact_util.is_artifact_ref(part):
            is_gone = part == types.Part() or artifact_util._is_rewind_tombstone(part)
            return None if is_gone else part
        file, version = _target(file, part, depth)
    raise AssertionError


def _target(file: _File, part: types.Part, depth: int) -> tuple[_File, int]:
    """Return what an artifact refers to. Raises InputValidationError for what is not in the reach of its own file."""
    assert part.file_data is not None
    target = artifact_util.resolve_artifact_reference(
        file_uri=str(part.file_data.file_uri),
        app_name=file.app,
        user_id=file.user,
        session_id=file.session,
        remaining_depth=depth,
    )
    return _file(target.app_name, target.user_id, target.session_id, target.filename), target.version


def _number(info: CheckpointInfo) -> int:
    if info.step is None or info.id != f"v{info.step}":
        raise BadArgument("this thread holds another state than an artifact of ADK")
    return info.step


def _described(file: _File, info: CheckpointInfo) -> ArtifactVersion:
    assert info.created_at is not None
    return ArtifactVersion(
        version=_number(info),
        canonical_uri=file.uri(_number(info)),
        custom_metadata=info.metadata["custom"],
        create_time=info.created_at.timestamp(),
        mime_type=info.metadata["mime_type"],
    )
