"""The backend in docs/writing-a-backend.md keeps the contract, and needs public names only."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from outlive.testing import BackendContract, Opener, RecordsContract

LONG = bool(os.environ.get("OUTLIVE_LONG"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-backend.md"
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
PUBLIC = {"outlive", "outlive.authoring", "outlive.backend", "outlive.errors"}


@pytest.fixture(scope="session")
def shelf():
    """Return the class that the first blocks of the page define."""
    names = {"__name__": "page"}
    for block in CODE[:3]:
        exec(compile(block, str(PAGE), "exec"), names)
    return names["ShelfBackend"]


@pytest.mark.long_io_mode("async")
class TestPage(BackendContract if LONG else RecordsContract):
    @pytest.fixture
    def backend(self, shelf):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="outlive-", dir=memory) as folder:
            yield Opener.local(lambda: shelf(f"{folder}/store.db"))


def test_the_page_needs_public_names_only():
    modules = {name for block in CODE for name in re.findall(r"(?:from|import) (outlive[\w.]*)", block)}
    assert modules <= PUBLIC
