"""docs/events.md names every event, every field of one, and every metric."""

import dataclasses
import re
from pathlib import Path

import pytest

import outlive
from outlive import events

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "events.md").read_text(encoding="utf-8")
NAMES = sorted(value for name, value in vars(events).items() if name.isupper() and isinstance(value, str))
FIELDS = [field.name for field in dataclasses.fields(outlive.Event)]
METERING = (PROJECT / "src" / "outlive" / "otel" / "metering.py").read_text(encoding="utf-8")
METRICS = sorted(set(re.findall(r'"(outlive\.[a-z_.]+)"(?=, "| *,\n)', METERING)))


def test_the_code_has_events_and_metrics():
    assert {"save", "wake"} <= set(NAMES)
    assert {"outlive.saves", "outlive.recoveries", "outlive.runs.dead.age"} <= set(METRICS)


@pytest.mark.parametrize("name", [*NAMES, *FIELDS, *METRICS])
def test_the_page_has(name):
    assert f"`{name}`" in PAGE
