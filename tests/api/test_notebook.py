"""What a notebook shows of checkpoints, a history and a diff: small, escaped tables."""

from __future__ import annotations

import re
import unicodedata
from html.parser import HTMLParser

import pytest

import outlive
from outlive.errors import Corrupt

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> ' \" & \u202eevil\u2066\x1b[31m\x00\U000e0041"
)
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Page(HTMLParser):
    """Reads a page: its cells, and that it has nothing but a table."""

    def __init__(self, html):
        super().__init__()
        self.cells, self.open = [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS
        assert {name for name, _ in attrs} <= {"style"}
        assert "url(" not in str(attrs)
        self.open.append(tag)
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells[-1] += data


def cells(value):
    html = value._repr_html_()
    assert not [char for char in html if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert not re.search(r"(?<!-)color:", html.replace("background-color", "")), (
        "the notebook chooses the colors of text"
    )
    return Page(html).cells


@pytest.fixture
def thread():
    with outlive.open("memory:") as store:
        yield store.thread("trip-42")


def test_a_checkpoint_shows_its_place_and_its_state_by_key(thread):
    saved = thread.save({"plan": ["book"], "n": 7}, step=3, metadata={"node": "plan"})
    shown = cells(saved)
    assert shown[0] == "Checkpoint of thread 'trip-42'"
    assert {"@1", saved.id, "3", "loop", "metadata 'node'", "'plan'"} <= set(shown)
    assert "['book']" not in shown
    assert {"state['plan']", "['book']", "state['n']", "7"} <= set(cells(thread.checkpoint()))


def test_a_state_that_is_no_dict_is_one_row(thread):
    thread.save([1, 2])
    assert cells(thread.checkpoint())[-2:] == ["state", "[1, 2]"]


def test_hostile_states_are_text(thread):
    thread.save({})
    thread.save({HOSTILE: HOSTILE, "n": [{"a": HOSTILE}]}, metadata={HOSTILE: HOSTILE})
    first = next(thread.history(limit=1))
    for shown in (thread.checkpoint(), first, thread.history(), thread.diff(first.parent)):
        cells(shown)
    assert any("<script>alert(1)</script>" in cell for cell in cells(thread.checkpoint()))


def test_tables_are_small_whatever_the_state(thread):
    first = thread.save({})
    thread.save(
        {f"key {n} " + "k" * 1_000: ["x" * 10_000] * 2 for n in range(500)}, metadata={"m": "x" * 9_000}
    )
    assert len(thread.checkpoint()._repr_html_()) < 20_000
    assert len(thread.diff(first.id)._repr_html_()) < 60_000


def test_a_class_whose_repr_fails_is_shown_by_its_name():
    class Bad:
        def __repr__(self):
            raise RuntimeError

    shown = outlive.Change("a", "changed", Bad(), 1)
    from outlive.values import Diff

    assert any("Bad" in cell for cell in cells(Diff([shown])))


def test_a_shown_history_is_still_iterated_over_from_where_it_was(thread):
    for number in range(25):
        thread.save({"n": number})
    history = thread.history()
    assert next(history).seq == 25
    shown = cells(history)
    assert "@24" in shown
    assert "@15" in shown
    assert "@14" not in shown
    assert shown[-1] == "…"
    assert next(history).seq == 24
    assert "@23" in cells(history)
    assert [info.seq for info in history] == list(range(23, 0, -1))
    assert cells(history)[0] == "no checkpoints"


def test_an_error_that_a_shown_history_met_is_raised_where_it_is():
    from outlive.sync.iterator import History

    with outlive.open("memory:") as store:
        good = [store.thread("t").save({}), store.thread("t").save({})]

    async def items():
        for info in good:
            yield info
        raise Corrupt("damaged")

    history = History(items())
    assert cells(history)[-1] == "…"
    assert [next(history), next(history)] == good
    with pytest.raises(Corrupt):
        next(history)


def test_a_diff_is_a_list_and_shows_old_and_new(thread):
    first = thread.save({"n": 1, "gone": True})
    thread.save({"n": 2, "new": "x"})
    changes = thread.diff(first.id)
    assert isinstance(changes, list)
    assert changes == list(changes)
    shown = cells(changes)
    assert shown[0] == "3 changes"
    rows = [tuple(shown[at : at + 4]) for at in range(5, len(shown), 4)]
    assert set(rows) == {
        ("n", "changed", "1", "2"),
        ("gone", "removed", "True", ""),
        ("new", "added", "", "'x'"),
    }
    assert cells(thread.diff(first.id, first.id))[0] == "no changes"
