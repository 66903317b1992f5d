"""What the author of a backend needs: the protocol and its records, keys and queries."""

from outlive.backend.entries import OUTBOX, TOMBSTONE
from outlive.backend.keys import NAMING_THREAD, RESERVED, CheckpointKey, ThreadKey, escape, reserved, unescape
from outlive.backend.paging import all_entries, all_records, entry_pages, lineage, retry_stale
from outlive.backend.protocol import Backend, commit
from outlive.backend.queries import EntryCursor, EntryQuery, HistoryQuery, ThreadQuery
from outlive.backend.records import (
    ABSENT,
    FORMAT,
    NEXT,
    WALL,
    CachedHead,
    CheckpointRecord,
    Commit,
    Cursor,
    EntryRecord,
    Inventory,
    Page,
    Rank,
    ReadResult,
    Receipt,
    ReencryptedBodies,
    Removal,
    ThreadRow,
    WriteRecord,
    checksum,
    outcome_unknown,
    stamped,
    tombstone_key,
)

__all__ = [
    "ABSENT", "FORMAT", "NAMING_THREAD", "NEXT", "OUTBOX", "RESERVED", "TOMBSTONE", "WALL", "Backend", "CachedHead",
    "CheckpointKey", "CheckpointRecord", "Commit", "Cursor", "EntryCursor", "EntryQuery",
    "EntryRecord", "HistoryQuery", "Inventory", "Page", "Rank", "ReadResult", "Receipt",
    "ReencryptedBodies", "Removal", "ThreadKey", "ThreadQuery", "ThreadRow", "WriteRecord",
    "all_entries", "all_records", "checksum", "commit", "entry_pages", "escape", "lineage",
    "outcome_unknown", "reserved", "retry_stale", "stamped", "tombstone_key", "unescape",
]  # fmt: skip
