"""A load from SQLite checks chunks by the checksums of their rows, and by their names where these differ."""

from __future__ import annotations

import apsw
import pytest

import outlive
from outlive.errors import Corrupt
from outlive.format.chunk import Namer

STATE = {"text": "a word " * 400, "image": b"\x00\x01" * 40_000}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store.db"
    with outlive.open(path) as store:
        store.thread("t").save(STATE)
    return path


@pytest.fixture
def named(monkeypatch):
    """The chunks whose names were computed."""
    chunks, name = [], Namer.name

    def watched(namer, data):
        chunks.append(data)
        return name(namer, data)

    monkeypatch.setattr(Namer, "name", watched)
    return chunks


def load(path):
    with outlive.open(path) as store:
        return store.thread("t").load()


def change(path, sql):
    with apsw.Connection(str(path)) as db:
        db.execute(sql)
        assert db.changes() > 0


def test_sound_rows_need_no_names(path, named):
    assert load(path) == STATE
    assert named == []


@pytest.mark.parametrize(
    "column", ["crc = crc + 1", "crc = 'x'", "revision = revision + 1", "revision = 'x'"]
)
def test_a_chunk_in_a_damaged_row_is_compared_with_its_name(path, named, column):
    change(path, f"update chunk set {column}")
    assert load(path) == STATE
    assert len(named) == 2


@pytest.mark.parametrize(
    "values",
    [
        "data = cast(substr(data, 1, 9) || x'41' || substr(data, 11) as blob)",
        "data = substr(data, 1, length(data) - 1)",
        "(data, crc, revision) = (select data, crc, revision from chunk c where c.key <> chunk.key)",
    ],
)
def test_other_bytes_in_a_row_are_damage(path, values):
    change(path, f"update chunk set {values}")
    with pytest.raises(Corrupt) as caught:
        load(path)
    assert caught.value.thread == "t"
    assert caught.value.checkpoint is not None
