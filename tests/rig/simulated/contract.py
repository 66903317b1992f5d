"""The contract in memory and on SQLite, for a run under a simulated system; files where it has them."""

from __future__ import annotations

import pytest

from outlive.backends.local.memory import MemoryBackend
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.runtime.platform import system
from outlive.testing import BackendContract, Opener, RecordsContract


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()


class TestSQLite(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return Opener.local(lambda: SQLiteBackend(str(tmp_path / "store.db"), fsync="normal"))


if system.has_folder_handles:
    from outlive.backends.file.backend import FileBackend

    class TestFile(RecordsContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return Opener.local(lambda: FileBackend(str(tmp_path / "store"), fsync="full"))
