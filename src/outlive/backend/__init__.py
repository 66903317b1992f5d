"""What the author of a backend needs: the protocol and its records, keys and queries."""

from outlive.backend.entries import OUTBOX, TOMBSTONE
from outlive.backend.paging import (
    all_entries,
    all_records,
    all_threads,
    entry_pages,
    lineage,
    retry_stale,
    thread_row,
)
from outlive.backend.protocol import (
    Backend,
    EntryCursor,
    EntryQuery,
    HistoryQuery,
    ThreadCursor,
    ThreadQuery,
    Watch,
    commit,
)
from outlive.backend.records import (
    ABSENT,
    FORMAT,
    NAMING_THREAD,
    NEXT,
    RESERVED,
    WALL,
    CachedHead,
    CheckpointKey,
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
    ThreadKey,
    ThreadRow,
    Totals,
    WriteRecord,
    checksum,
    escape,
    outcome_unknown,
    reserved,
    shortest_timeout,
    stamped,
    tombstone_key,
    unescape,
)

__all__ = [
    "ABSENT", "FORMAT", "NAMING_THREAD", "NEXT", "OUTBOX", "RESERVED", "TOMBSTONE", "WALL", "Backend", "CachedHead",
    "CheckpointKey", "CheckpointRecord", "Commit", "Cursor", "EntryCursor", "EntryQuery",
    "EntryRecord", "HistoryQuery", "Inventory", "Page", "Rank", "ReadResult", "Receipt",
    "ReencryptedBodies", "Removal", "ThreadCursor", "ThreadKey", "ThreadQuery", "ThreadRow", "Totals", "Watch", "WriteRecord",
    "all_entries", "all_records", "all_threads", "checksum", "commit", "entry_pages", "escape", "lineage",
    "outcome_unknown", "reserved", "retry_stale", "shortest_timeout", "stamped", "thread_row", "tombstone_key", "unescape",
]  # fmt: skip
