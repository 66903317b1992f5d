"""Sizes, intervals and format versions that a test may change, so that little data or little time reaches every branch."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

# What a test calls it: the modules of `outlive` that read the constant at each use, and its name
# there.
_CONSTANTS: dict[str, tuple[str, ...]] = {
    "chunk_raw_bytes": ("format.chunk", "format.planner", "MAX_RAW"),
    "segment_bytes": ("format.splitter", "SEGMENT"),
    "transfer_batch_bytes": ("backend.transfer", "BATCH_BYTES"),
    "copy_page": ("threads.copy", "_PAGE"),
    "history_page_bytes": ("threads.history", "_PAGE_BYTES"),
    "history_unpacked_bytes": ("threads.history", "_UNPACKED_BYTES"),
    "listing_page": ("threads.listing", "_PAGE"),
    "hands_idle_s": ("runtime.hands", "_IDLE_S"),
    "live_sleep_s": ("runs.waits", "LIVE_SLEEP_S"),
    "recovery_page": ("runs.recovery", "_PAGE"),
    "sweep_batch": ("retention.thread_sweep", "_BATCH"),
    "sweep_rest_s": ("retention.thread_sweep", "_LONGEST_REST_S"),
    "replication_beat_s": ("layers.replication.layer", "_BEAT_S"),
    "replication_idle_s": ("layers.replication.background", "_IDLE_S"),
    "postgres_turn_s": ("backends.postgres.groups", "_TURN_S"),
    "file_cached_tables": ("backends.file.backend", "_CACHED_TABLES"),
    "file_waste_bytes": ("backends.file.table", "_WASTE_BYTES"),
    "file_frame_format": ("backends.file.effects", "backends.file.store_file", "FORMAT"),
    "file_log_format": ("backends.file.log", "FORMAT"),
    "blocked_loop_s": ("adapters.langgraph.write_order", "_BLOCKED_S"),
    "import_batch": ("adapters.langgraph.importer.batch", "MOST"),
    "import_chunk_bytes": ("adapters.langgraph.importer.batch", "_CHUNK_BYTES"),
}


@contextlib.contextmanager
def tuned(**values: float) -> Iterator[None]:
    """Change constants of this process for the block: `with tuned(sweep_batch=2, sweep_rest_s=0.0)`."""
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            if name not in _CONSTANTS:
                raise TypeError(f"no constant {name!r} to tune; there are: {', '.join(_CONSTANTS)}")
            *paths, constant = _CONSTANTS[name]
            for path in paths:
                module = importlib.import_module(f"outlive.{path}")
                stack.callback(setattr, module, constant, getattr(module, constant))
                setattr(module, constant, value)
        yield
