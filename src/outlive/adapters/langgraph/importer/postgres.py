"""Reading what `PostgresSaver`, `AsyncPostgresSaver` and `ShallowPostgresSaver` wrote, at any of their migrations.

Primitive values of channels are in the checkpoint, all others in a separate table, by channel and
version.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.serde.types import TASKS

from outlive.adapters.langgraph.importer.source import CheckpointKey, CheckpointRow, Typed, WriteKey, WriteRow
from outlive.backends.server.urls import hide_secrets
from outlive.errors import BadArgument, BadURL, Corrupt, ExtraMissing, StoreUnavailable

try:
    import psycopg
except ImportError as error:
    raise ExtraMissing("postgresql://", "postgres") from error

_PAGE = 8  # a checkpoint may have megabytes
_SENDS_ELSEWHERE = 4  # checkpoints of an earlier version find their Sends in the writes of their parent
_NEXT = """select min(thread_id) from (
    (select thread_id from checkpoints where thread_id > %(last)s order by thread_id limit 1)
    union all
    (select thread_id from checkpoint_writes where thread_id > %(last)s order by thread_id limit 1)
) as ids"""

BlobKey = tuple[str, str, str]  # (namespace, channel, version)


class PostgresSource:
    """A LangGraph database in PostgreSQL; every transaction on it is read-only."""

    def __init__(self, url: str) -> None:
        self.shown = hide_secrets(url)
        if url.startswith("postgres:"):
            url = "postgresql" + url[len("postgres") :]
        try:
            self._link = psycopg.connect(
                url, autocommit=True, prepare_threshold=None, application_name="outlive import-langgraph", client_encoding="utf8"
            )  # fmt: skip
        except psycopg.ProgrammingError as error:  # libpq may quote the password
            raise BadURL(
                "libpq cannot parse the URL of the source; write postgresql://user:password@host/database"
            ) from error
        except psycopg.OperationalError as error:
            raise StoreUnavailable(
                f"{self.shown} cannot be reached ({hide_secrets(str(error).strip())})"
            ) from None
        self._link.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._link.read_only = True
        try:
            with _translated(self.shown):
                self._link.execute("set default_transaction_read_only = on")
                self._shape = self._look()
        except BaseException:
            self._link.close()
            raise

    def _look(self) -> _Shape:
        """Find out which columns there are: they depend on the version that created the tables."""
        columns = {
            table: {row[0] for row in self._link.execute(_COLUMNS, (table,))}
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        }
        wanted = {"thread_id", "checkpoint_ns", "checkpoint", "metadata"}
        has_writes = {"task_id", "idx", "channel", "type", "blob"} <= columns["checkpoint_writes"]
        if not (wanted <= columns["checkpoints"] and "channel" in columns["checkpoint_blobs"] and has_writes):
            raise BadArgument(
                f"{self.shown} does not have the tables of PostgresSaver in its search_path; "
                "for another schema add ?options=-csearch_path%3Dthe_schema"
            )
        return _Shape(columns)

    def close(self) -> None:
        self._link.close()

    def count(self) -> int:
        ((count,),) = self._ask("select count(*) from checkpoints")
        return int(count)

    def threads(self) -> Iterator[str]:
        if self._ask("select 1 from checkpoints where thread_id = '' limit 1"):
            yield ""
        last = ""
        while (last := self._ask(_NEXT, {"last": last})[0][0]) is not None:
            yield last

    def unreadable(self) -> list[str]:
        return []  # the columns are text

    @contextlib.contextmanager
    def thread(self, id: str) -> Iterator[_View]:
        with _translated(self.shown, id), self._link.transaction():
            yield _View(self._link, id, self._shape)

    def _ask(self, sql: str, values: Any = None) -> list[Any]:
        with _translated(self.shown):
            return self._link.execute(sql, values).fetchall()


_COLUMNS = """select attname from pg_attribute
where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"""


class _Shape:
    """How columns are selected.

    The shallow saver has one checkpoint per namespace, and one value per channel.
    """

    def __init__(self, columns: dict[str, set[str]]) -> None:
        has_ids = "checkpoint_id" in columns["checkpoints"]
        self.id = "c.checkpoint_id" if has_ids else "(c.checkpoint->>'id')"
        self.parent = "c.parent_checkpoint_id" if has_ids else "null::text"
        self.path = "w.task_path" if "task_path" in columns["checkpoint_writes"] else "''"
        self.version = "b.version" if "version" in columns["checkpoint_blobs"] else "''"


class _View:
    """One thread."""

    def __init__(self, link: psycopg.Connection[Any], id: str, shape: _Shape) -> None:
        self._link = link
        self._id = id
        self._shape = shape
        self._blobs: dict[BlobKey, Typed] = {}  # of the page before: most channels do not change

    def _ask(self, sql: str, **values: Any) -> list[Any]:
        return self._link.execute(sql, {"thread": self._id, **values}).fetchall()

    def checkpoint_keys(self) -> list[CheckpointKey]:
        id = self._shape.id
        return [
            tuple(row)
            for row in self._ask(
                f"select c.checkpoint_ns, {id} from checkpoints c where c.thread_id = %(thread)s and {id} is not null "  # noqa: S608
                f"order by {id}, c.checkpoint_ns"
            )
        ]

    def write_keys(self) -> set[WriteKey]:
        sql = "select checkpoint_ns, checkpoint_id, task_id, idx from checkpoint_writes where thread_id = %(thread)s"
        return {tuple(row) for row in self._ask(sql)}

    def rows(self, keys: Sequence[CheckpointKey]) -> Iterator[CheckpointRow]:
        for at in range(0, len(keys), _PAGE):
            yield from self._page(keys[at : at + _PAGE])

    def _page(self, keys: Sequence[CheckpointKey]) -> list[CheckpointRow]:
        stored = {(row[0], row[1]): row[2:] for row in self._rows(keys)}
        writes = self._writes_of(keys)
        wanted = {key: _versions(row[3], key[0], self._shape) for key, row in stored.items()}
        blobs = self._fetch({blob for blob_keys in wanted.values() for blob in blob_keys})
        sends = self._sends({parent for parent, is_old, *_ in stored.values() if is_old and parent})
        rows = []
        for key in keys:
            if key not in stored:
                continue
            parent, is_old, fields, _, metadata = stored[key]
            channels = [(blob[1], blob[2], blobs[blob]) for blob in wanted[key] if blob in blobs]
            row = CheckpointRow(*key, parent or None, metadata, fields=fields, channels=channels)
            row.writes = writes.get(key, [])
            row.sends = sends.get(parent, []) if is_old else []
            rows.append(row)
        return rows

    def _rows(self, keys: Sequence[CheckpointKey]) -> list[Any]:
        return self._ask(
            f"""select c.checkpoint_ns, {self._shape.id}, {self._shape.parent},
            jsonb_typeof(c.checkpoint->'v') = 'number' and c.checkpoint->'v' < '{_SENDS_ELSEWHERE}'::jsonb, c.checkpoint::text,
            case when jsonb_typeof(c.checkpoint->'channel_versions') = 'object'
                then (select jsonb_object_agg(key, value)::text from jsonb_each_text(c.checkpoint->'channel_versions')) end,
            c.metadata::text
            from unnest(%(namespaces)s::text[], %(ids)s::text[]) as asked(namespace, id)
            join checkpoints c on c.thread_id = %(thread)s and c.checkpoint_ns = asked.namespace and {self._shape.id} = asked.id""",  # noqa: S608
            **_columns(keys),
        )

    def _fetch(self, keys: set[BlobKey]) -> dict[BlobKey, Typed]:
        """Return the values of channels; those of the page before are not fetched again."""
        missing = sorted(keys - self._blobs.keys())
        blobs = {key: self._blobs[key] for key in keys if key in self._blobs}
        rows = self._ask(
            f"""select asked.namespace, asked.channel, asked.version, b.type, b.blob
            from unnest(%(namespaces)s::text[], %(channels)s::text[], %(versions)s::text[]) as asked(namespace, channel, version)
            join checkpoint_blobs b on b.thread_id = %(thread)s and b.checkpoint_ns = asked.namespace
                and b.channel = asked.channel and {self._shape.version} = asked.version""",  # noqa: S608
            namespaces=[key[0] for key in missing],
            channels=[key[1] for key in missing],
            versions=[key[2] for key in missing],
        )  # fmt: skip
        blobs.update({(row[0], row[1], row[2]): (row[3], row[4]) for row in rows})
        self._blobs = blobs
        return blobs

    def _sends(self, parents: set[str]) -> dict[str, list[Typed]]:
        """Return the Sends that old checkpoints left for their children, by the id of the parent."""
        sends: dict[str, list[Typed]] = {}
        if parents:
            path = self._shape.path
            for id, kind, data in self._ask(
                f"""select w.checkpoint_id, w.type, w.blob from checkpoint_writes w where w.thread_id = %(thread)s
                and w.checkpoint_id = any(%(parents)s) and w.channel = %(tasks)s order by {path}, w.task_id, w.idx""",  # noqa: S608
                parents=sorted(parents),
                tasks=TASKS,
            ):
                sends.setdefault(id, []).append((kind, data))
        return sends

    def _writes_of(self, keys: Sequence[CheckpointKey]) -> dict[CheckpointKey, list[WriteRow]]:
        writes: dict[CheckpointKey, list[WriteRow]] = {}
        for write in self._writes(
            "join unnest(%(namespaces)s::text[], %(ids)s::text[]) as asked(namespace, id) "
            "on w.checkpoint_ns = asked.namespace and w.checkpoint_id = asked.id where true",
            **_columns(keys),
        ):
            writes.setdefault((write.namespace, write.checkpoint), []).append(write)
        return writes

    def lone_writes(self) -> list[WriteRow]:
        same = f"c.thread_id = w.thread_id and c.checkpoint_ns = w.checkpoint_ns and {self._shape.id} = w.checkpoint_id"
        return self._writes("where not exists (select 1 from checkpoints c where " + same + ")")  # noqa: S608

    def _writes(self, which: str, **values: Any) -> list[WriteRow]:
        rows = self._ask(
            f"""select w.checkpoint_ns, w.checkpoint_id, w.task_id, {self._shape.path}, w.idx, w.channel, w.type, w.blob
            from checkpoint_writes w {which} and w.thread_id = %(thread)s""",  # noqa: S608
            **values,
        )
        return [
            WriteRow(namespace, id, task, path, index, channel, (kind, data))
            for namespace, id, task, path, index, channel, kind, data in rows
        ]


def _columns(keys: Sequence[CheckpointKey]) -> dict[str, list[str]]:
    return {"namespaces": [key[0] for key in keys], "ids": [key[1] for key in keys]}


def _versions(text: str | None, namespace: str, shape: _Shape) -> list[BlobKey]:
    versions = json.loads(text) if text else {}
    return [(namespace, channel, version if shape.version != "''" else "") for channel, version in versions.items() if version is not None]  # fmt: skip


@contextlib.contextmanager
def _translated(shown: str, thread: str | None = None) -> Iterator[None]:
    """Turn errors of psycopg into those of outlive."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise StoreUnavailable(f"{shown} cannot be read ({hide_secrets(str(error).strip())})") from error
    except psycopg.Error as error:
        raise Corrupt(f"{shown} cannot be read ({str(error).strip()})", thread=thread) from error
