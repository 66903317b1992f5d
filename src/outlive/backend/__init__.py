"""What the author of a backend needs: the protocol and its records, keys and queries."""

from outlive.backend.entries import OUTBOX, TOMBSTONE
from outlive.backend.paging import (
    all_entries,
    all_records,
    all_threads,
    entry_pages,
    lineage,
    retry_stale,
    thread_record,
)
from outlive.backend.protocol import (
    Backend,
    EntryCursor,
    EntryQuery,
    HistoryQuery,
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
    Fence,
    Inventory,
    Page,
    Rank,
    ReadResult,
    Receipt,
    ReencryptedBodies,
    Removal,
    ThreadKey,
    ThreadRecord,
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
    "EntryRecord", "Fence", "HistoryQuery", "Inventory", "Page", "Rank", "ReadResult", "Receipt",
    "ReencryptedBodies", "Removal", "ThreadKey", "ThreadQuery", "ThreadRecord", "Watch", "WriteRecord",
    "all_entries", "all_records", "all_threads", "checksum", "commit", "entry_pages", "escape", "lineage",
    "outcome_unknown", "reserved", "retry_stale", "shortest_timeout", "stamped", "thread_record", "tombstone_key", "unescape",
]  # fmt: skip
