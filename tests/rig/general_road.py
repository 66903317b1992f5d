"""SQLite without its fast path."""

from __future__ import annotations

from outlive.backends.sqlite.backend import SQLiteBackend


class GeneralRoad(SQLiteBackend):
    """Every commit takes the general path, ordinary saves too."""

    def _commit_together(self, commits, busy_s, *, is_general=False):
        return super()._commit_together(commits, busy_s, is_general=True)
