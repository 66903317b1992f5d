"""Whatever a state holds is shown on lines that no terminal obeys, and as JSON that tells it apart."""

from __future__ import annotations

import datetime as dt
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlive
from outlive.errors import BadArgument
from outlive.format.diff import diff
from outlive.format.extensions import Opaque, Raw
from outlive.view.escape import escape_json, escape_lines, escape_terminal, quote_argument, unescape
from outlive.view.path import pick
from outlive.view.units import (
    format_age,
    format_duration,
    format_elapsed,
    format_size,
    parse_duration,
    parse_moment,
)
from outlive.view.values import lines, one_line, to_json

TEXT = st.text(st.characters() | st.sampled_from("\x1b\x9b\x00\x7f\n\r\t\u202e\u2066\ud800\\\"'"))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary() | st.decimals(allow_nan=False) | st.uuids()
    | st.datetimes() | st.dates() | st.times() | st.timedeltas()
    | st.builds(Raw, st.sampled_from((36, 37, 48, 63)), st.binary())
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT | st.integers(), inner) | st.lists(inner).map(tuple)
    | st.frozensets(st.integers()) | st.builds(Opaque, TEXT, st.integers(1, 9), inner),
    max_leaves=20,
)  # fmt: skip


def is_harmless(text):
    turning = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
    return not any(unicodedata.category(char) in ("Cc", "Cs") or char in turning for char in text)


def test_a_long_text_is_cut_to_the_width_there_is():
    state = {"messages": [{"role": "user", "content": "word " * 500}]}
    for width in (60, 80, 100):
        found = lines(state, width=width)
        assert width - 12 < max(map(len, found)) <= width
        assert any("(2,500 characters)" in line for line in found)
    assert '"' + "word " * 500 + '"' in lines(state, full=True)[4]


@given(TEXT)
def test_text_is_shown_on_one_harmless_line_and_read_back(text):
    assert is_harmless(escape_terminal(text))
    assert escape_terminal(escape_terminal(text)) == escape_terminal(text)
    if "\\" not in text:
        assert unescape(escape_terminal(text)) == text
    assert all(is_harmless(line.replace("\t", "")) for line in escape_lines(text).split("\n"))
    assert is_harmless(quote_argument(text))


@given(TEXT, st.booleans())
def test_json_says_the_same_without_what_would_harm(text, is_ascii):
    safe = escape_json(json.dumps([text], ensure_ascii=False, indent=1), is_ascii=is_ascii)
    assert json.loads(safe) == [text]
    assert is_harmless(safe.replace("\n", ""))
    assert safe.isascii() or not is_ascii


@given(VALUES, st.integers(10, 200))
def test_any_value_is_shown_harmless(value, width):
    assert is_harmless(one_line(value, width))
    for full in (False, True):
        assert all(is_harmless(line) for line in lines(value, width=width, full=full))


@given(VALUES)
def test_any_value_becomes_json(value):
    assert is_harmless(json.dumps(to_json(value)))


@given(VALUES, VALUES)
def test_values_that_differ_differ_as_json(one, other):
    if diff(one, other):
        assert json.dumps(to_json(one)) != json.dumps(to_json(other))


NAMES = st.sampled_from(
    ("name", "a b", "it's", 'a "quoted" one', "]", "[0]", "\\", "\x1b\ud800", "", "1", "äöü")
)
PARTS = st.lists(st.dictionaries(NAMES, st.integers(), min_size=1, max_size=2), min_size=1, max_size=2)


@given(st.dictionaries(NAMES, PARTS, min_size=1, max_size=3))
def test_a_path_that_diff_prints_leads_to_the_value(state):
    changes = diff({}, state)
    assert changes
    for change in changes:
        assert pick(state, change.path) == change.new
    for change in diff([], [state]):
        assert pick([state], change.path) == state


@pytest.mark.parametrize("path", ["a.", "a[", "a]", "[", "a[0", ".", "a..b", "['x"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(outlive.errors.BadArgument):
        pick({"a": {"b": 1}}, path)


def test_sizes_and_times_are_short():
    sizes = {
        0: "0 B",
        999: "999 B",
        1000: "1.0 kB",
        999_499: "999.5 kB",
        999_999: "1.0 MB",
        5 * 10**15: "5.0 PB",
    }
    assert {count: format_size(count) for count in sizes} == sizes
    durations = {
        0.04: "0.0 s", 0.94: "0.9 s", 0.99: "1 s", 1: "1 s", 1.5: "2 s", 59.4: "59 s", 59.5: "1 min", 89: "1 min", 90: "2 min",
        59.5 * 60 - 1: "59 min", 59.5 * 60: "1 h", 3600: "1 h", 23.5 * 3600: "1 d", 86_400: "1 d", 3 * 86_400 - 0.1: "3 d",
        364 * 86_400: "364 d", 365 * 86_400 - 1: "1 y", 400 * 86_400: "1 y", 600 * 86_400: "2 y",
    }  # fmt: skip
    assert {seconds: format_duration(seconds) for seconds in durations} == durations
    began = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    took = {
        0: "0 ms",
        0.0406: "41 ms",
        0.9996: "1.0 s",
        1.96: "2.0 s",
        9.94: "9.9 s",
        9.96: "10 s",
        95: "2 min",
    }
    assert {s: format_elapsed(began, began + dt.timedelta(seconds=s)) for s in took} == took
    assert format_elapsed(began, None) == ""
    now = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    assert format_age(now - dt.timedelta(hours=5), now) == "5 h ago"
    assert format_age(now + dt.timedelta(minutes=2), now) == "in 2 min"
    assert (format_age(now, now), format_age(None)) == ("just now", "")


def test_durations_are_typed_with_units():
    typed = {"90": 90, "1.5s": 1.5, "10m": 600, "10 min": 600, "2h": 7200, "3d": 259_200, "8w": 4_838_400}
    assert {text: parse_duration("--ttl", text) for text in typed} == typed
    for wrong in ("", "0", "ten", "10 minutes", "-5s", "5M", "1e3"):
        with pytest.raises(BadArgument, match="--ttl takes a duration"):
            parse_duration("--ttl", wrong)
    now = dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=2) <= parse_moment("--not-before", "2h") - now < dt.timedelta(hours=3)
    assert parse_moment("--not-before", "2026-05-01T12:00+00:00") == dt.datetime(
        2026, 5, 1, 12, tzinfo=dt.UTC
    )
    with pytest.raises(BadArgument, match="or a duration such as 2h, not 'soon'"):
        parse_moment("--not-before", "soon")


def test_long_things_are_cut_in_the_middle_unless_asked():
    value = {"text": "a" * 1000, "list": list(range(1000)), "bytes": bytes(100)}
    short, full = lines(value), lines(value, full=True)
    assert any("… 960 more" in line for line in short)
    assert any("(1,000 characters)" in line for line in short)
    assert any("(100 bytes)" in line for line in short)
    assert "a" * 1000 in "".join(full)
    assert not any("…" in line for line in full)
