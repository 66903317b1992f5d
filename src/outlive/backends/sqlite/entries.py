"""Entries in SQLite: runs, locks, steps, responses and the notes of layers.

Every entry has two rows. `entry` holds it; `entry_version` holds its status and the checksum of the
first row. Both are written by the same commit and compared by every read. So a row that is lost or
is an older copy counts as damage, not as a missing entry or a step that is not done yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from outlive.backend import WALL, EntryQuery, EntryRecord, ThreadKey, checksum, escape, unescape
from outlive.backend.clock import Clock
from outlive.backend.entries import READY, RUN, TIMER, check_stored_kind
from outlive.errors import Corrupt, DamagedEntry

ENTRY = "kind, key, status, epoch, fence, revision, until, clock, body, checksum"
_FIND = (
    f"select 0, {ENTRY} from entry where thread = ?1 and kind = ?2 and key = ?3 "
    f"union all select 1, status, checksum{', null' * 8} from entry_version where thread = ?1 and kind = ?2 and key = ?3"
)
# Every statement that stores names its columns: a later version may add others.
_INSERT = f"insert into entry(thread, {ENTRY}) values(?{', ?' * len(ENTRY.split(', '))})"
_INSERT_VERSION = "insert into entry_version(thread, kind, key, status, checksum) values(?, ?, ?, ?, ?)"
_REPLACE = _INSERT.replace("insert", "insert or replace", 1)
_REPLACE_VERSION = _INSERT_VERSION.replace("insert", "insert or replace", 1)
_RENEW = (
    "update entry set epoch = ?, fence = ?, revision = ?, until = ?, clock = ?, body = ?, checksum = ? "
    "where thread = ? and kind = ? and key = ? and status = ? and checksum = ?"
)
_RENEW_VERSION = (
    "update entry_version set checksum = ? where thread = ? and kind = ? and key = ? and checksum = ?"
)
_BY_KEY = (RUN, READY, TIMER)  # kinds of which all entries of a store are in the order of their keys
# Lists select by status: a damaged status would hide the entry.
_DIFFERS = "(e.checksum is not v.checksum or e.status is not v.status)"


class EntryMoved(Exception):
    """An entry is not what this process remembers of it."""


class StoredEntry(NamedTuple):
    """An entry, its status as the row has it, and the checksum of the row; `entry` is None when there is none."""

    entry: EntryRecord | None
    status: str = ""
    checksum: bytes = b""


def find_entry(db: apsw.Connection, thread_key: int, thread: str, kind: str, key: str) -> StoredEntry:
    """Return an entry of a thread, compared with its version."""
    rows: list[Any] = db.execute(_FIND, (thread_key, escape(kind), escape(key))).fetchall()
    if not rows:
        return StoredEntry(None)
    row = rows[0][1:] if rows[0][0] == 0 else None
    version = rows[-1][2] if rows[-1][0] == 1 else None
    if row is None:
        raise DamagedEntry(thread, kind, key, _text(rows[-1][1]))
    return StoredEntry(entry_of(thread_key, thread, row, version), row[2], row[9])


def entry_of(thread_key: int, thread: str, row: Sequence[Any], version: bytes | None) -> EntryRecord:
    """Return the entry of a row.

    Raise DamagedEntry when it is damaged or not the newest version.
    """
    *fields, check = row
    if check != checksum(thread_key, *fields) or check != version:
        if not all(isinstance(field, str) for field in fields[:3]):
            raise Corrupt(f"an entry of kind {row[0]!r} is damaged", thread=thread)
        raise DamagedEntry(thread, *[unescape(field) for field in fields[:3]])
    kind, key, status, epoch, fence, revision, until, clock, body = fields
    check_stored_kind(kind, thread)
    return EntryRecord(kind, unescape(key), body, unescape(status), epoch, fence, revision, until, clock)


def put_entry(
    db: apsw.Connection,
    thread_key: int,
    entry: EntryRecord,
    stored: StoredEntry,
    *,
    must_be_new: bool = False,
) -> StoredEntry:
    """Store an entry in both tables in the place of `stored`; return it as stored.

    Raises `EntryMoved` if something else is there: `stored` was remembered, not read. With
    `must_be_new`, an entry that is put where none is remembered must not meet one.
    """
    key_columns = (thread_key, escape(entry.kind), escape(entry.key))
    status = escape(entry.status)
    fields = (status, entry.epoch, entry.fence, entry.revision, entry.until, entry.clock, entry.body)
    check = checksum(*key_columns, *fields)
    # With the same status, an update leaves the indexes alone.
    if stored.entry is not None and stored.status == status:
        db.execute(_RENEW, (*fields[1:], check, *key_columns, status, stored.checksum))
        is_stored = db.changes()
        db.execute(_RENEW_VERSION, (check, *key_columns, stored.checksum))
        if not (is_stored and db.changes()):
            raise EntryMoved
    else:
        db.execute(_INSERT if must_be_new else _REPLACE, (*key_columns, *fields, check))
        db.execute(_INSERT_VERSION if must_be_new else _REPLACE_VERSION, (*key_columns, status, check))
    return StoredEntry(entry, status, check)


def remove_entry(db: apsw.Connection, thread_key: int, entry: EntryRecord) -> StoredEntry:
    key_columns = (thread_key, escape(entry.kind), escape(entry.key))
    for table in ("entry", "entry_version"):
        db.execute(f"delete from {table} where thread = ? and kind = ? and key = ?", key_columns)
    return StoredEntry(None)


class EntrySearch:
    """The SQL of one query: a page of entries of one thread, or of all threads of a tenant."""

    def __init__(self, db: apsw.Connection, query: EntryQuery, clock: Clock) -> None:
        self._db = db
        self._tenant = query.tenant
        self._limit = query.limit
        self._after = query.after
        self._timed, self._moments = _timed(query.lapsed, clock)
        self._low, self._high = prefix_range(query.prefix)
        if query.after is not None:
            self._low = max(self._low, escape(query.after[0]))
        self._is_by_key = query.kind in _BY_KEY and query.statuses is None
        self._where = "{0}.kind = ? and {0}.key >= ? and {0}.key < ?"
        if self._is_by_key:
            self._where += f" and {{0}}.kind in {_BY_KEY}"
        self._kind, self._statuses = escape(query.kind), [escape(status) for status in query.statuses or ()]
        if query.statuses is not None:
            self._where += f" and {{0}}.status in ({', '.join('?' * len(query.statuses))})"

    def _values(self, last: str | None = None) -> list[Any]:
        """Return the values of `_where`, for keys up to the last one of a page."""
        # No escaped key has a NUL. SQLite would not use the index for a row value with the digest.
        high = self._high if last is None else last + "\0"
        return [self._kind, self._low, high, *self._statuses]

    def of_thread(self, key: ThreadKey, thread_key: int) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page of entries of one thread. Raises DamagedEntry for one that its version knows and that is gone."""
        where, values = f"{{0}}.thread = ? and {self._where}", [thread_key, *self._values()]
        if self._after is not None:
            sign = ">" if key.digest <= self._after[1] else ">="
            where, values = f"{where} and {{0}}.key {sign} ?", [*values, escape(self._after[0])]
        sql = (
            f"select {_columns('e')}, v.checksum from entry e left join entry_version v using(thread, kind, key) "
            f"where {where.format('e')}{self._timed} order by e.key limit ?"
        )
        rows: list[Any] = self._db.execute(sql, (*values, *self._moments, self._limit)).fetchall()
        bound, last = (" and v.key <= ?", [rows[-1][1]]) if len(rows) == self._limit else ("", [])
        missing = (
            f"select v.kind, v.key, v.status from entry_version v left join entry e using(thread, kind, key) "
            f"where {where.format('v')}{bound} and {_DIFFERS} order by v.key limit 1"
        )
        for row in self._db.execute(missing, (*values, *last)).fetchall():
            raise DamagedEntry(key.id, *[_text(field) for field in row])
        return [(key, entry_of(thread_key, key.id, row[:10], row[10])) for row in rows]

    def of_tenant(self) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page of entries of all threads of the tenant, as `of_thread` does."""
        # 1. The page itself, by the index of entries.
        where, values = self._where, self._values()
        after: list[Any] = []
        if self._after is not None:
            where += " and ({0}.key, t.digest) > (?, ?)"
            after = [escape(self._after[0]), self._after[1]]
        values += after
        tenant = escape(self._tenant)
        by_key, by_version = (
            (" indexed by entry_key", " indexed by entry_version_key") if self._is_by_key else ("", "")
        )
        sql = (
            f"select t.key, t.tenant, t.id, t.digest, {_columns('e')}, v.checksum from entry e{by_key} "
            "left join entry_version v using(thread, kind, key) join thread t on t.key = e.thread "
            f"where {where.format('e')}{self._timed} and t.tenant = ? order by e.key, t.digest limit ?"
        )
        rows: list[Any] = self._db.execute(sql, (*values, *self._moments, tenant, self._limit)).fetchall()
        # 2. Up to its end, every version must have its entry: else that was lost, or is an older copy.
        bound, last = "", []
        if len(rows) == self._limit:
            bound, last = " and ({0}.key, t.digest) <= (?, ?)", [rows[-1][5], rows[-1][3]]
            values = [*self._values(rows[-1][5]), *after]
        missing = (
            f"select t.id, v.kind, v.key, v.status from entry_version v{by_version} left join entry e using(thread, kind, key) "
            f"left join thread t on t.key = v.thread where {f'{where}{bound}'.format('v')} "
            f"and (t.tenant = ? or t.key is null) and (t.key is null or {_DIFFERS}) "
            "order by v.key, t.digest limit 1"
        )
        for id, *row in self._db.execute(missing, (*values, *last, tenant)).fetchall():
            raise DamagedEntry(None if id is None else _text(id), *[_text(field) for field in row])
        # 3. Count both by their own indexes: an index that lost a line would hide its entry from step 1.
        bounds, bound_values = f"{where}{bound} and t.tenant = ?", (*values, *last, tenant)
        listed = _count(self._db, f"entry e{by_key}", bounds.format("e"), bound_values)
        if listed < _count(self._db, f"entry_version v{by_version}", bounds.format("v"), bound_values):
            raise Corrupt("an index of the entries of this store is damaged, and hides some of them")
        keyed_rows = [(thread_key(*row[1:4]), row) for row in rows]
        return [(key, entry_of(row[0], key.id, row[4:14], row[14])) for key, row in keyed_rows]


def _count(db: apsw.Connection, table: str, where: str, values: Sequence[Any]) -> int:
    """Count entries by the index that lists them, or by that of their versions."""
    sql = f"select count(*) from {table} join thread t on t.key = thread where {where}"
    ((count,),) = db.execute(sql, values).fetchall()
    assert isinstance(count, int)
    return count


def audit_entries(db: apsw.Connection, thread_key: int, thread: str, expected: int) -> list[Corrupt]:
    """Look at every entry of a thread and its version."""
    damage: list[Corrupt] = []
    rows: list[Any] = db.execute(
        f"select {_columns('e')}, v.checksum from entry e left join entry_version v using(thread, kind, key) where e.thread = ?",
        (thread_key,),
    ).fetchall()
    for row in rows:
        try:
            entry_of(thread_key, thread, row[:10], row[10])
        except Corrupt as error:
            damage.append(error)
    if len(rows) != expected:
        damage.append(Corrupt(f"it has {len(rows)} entries instead of {expected}", thread=thread))
    lost = (
        "select v.kind, v.key, v.status from entry_version v left join entry e using(thread, kind, key) "
        "where v.thread = ? and (e.key is null or e.status is not v.status)"
    )
    return damage + [
        DamagedEntry(thread, *[_text(field) for field in row]) for row in db.execute(lost, (thread_key,))
    ]


def thread_key(tenant: str, id: str | None, digest: bytes) -> ThreadKey:
    return ThreadKey(unescape(tenant), unescape(id or ""), bytes(digest))


def prefix_range(prefix: str) -> tuple[str, str]:
    """Return the bounds between which escaped ids with this prefix lie."""
    low = escape(prefix)
    return low, low + "\U0010ffff" * 1001


def _columns(table: str) -> str:
    return ", ".join(f"{table}.{name}" for name in ENTRY.split(", "))


def _timed(lapsed: bool | None, clock: Clock) -> tuple[str, tuple[Any, ...]]:
    """Return the condition on leases: `entry_version` knows nothing of them."""
    if lapsed is None:
        return "", ()
    has_lapsed = "case e.clock when ? then e.until <= ? when ? then e.until <= ? else true end"
    return f" and ({has_lapsed}) = {int(lapsed)}", (clock.id, clock.lease, WALL, clock.now)


def _text(field: Any) -> str:
    """Return a field of a row that may be damaged."""
    return unescape(field) if isinstance(field, str) else repr(field)
