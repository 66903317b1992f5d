"""A store with a little of everything, for the tests of the command line."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

import ormsgpack

import outlive
from outlive.format.extensions import Raw
from outlive.format.registry import Registry

ESCAPES = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eturned\ud800"
ODD_ID = "odd\x1b[2J\nid"


@dataclass
class Plan:
    """A type that only the saving program knows."""

    city: str
    days: int


def open_knowing(url, **options):
    """Open a store with a registry of its own: nothing here is known to the program."""
    store = outlive.open(url, **options)
    codec = store._store._engine.codec
    codec.registry = Registry()
    codec.registry.add(Plan, "plan", version=2)
    return store


def state(number):
    messages = [{"role": "user", "text": f"message {one}"} for one in range(number)]
    return {"messages": messages, "plan": Plan("Lisbon", number), "cost": Decimal("1.50")}


def build(url):
    """Fill a store: five threads, a branch, writes, interrupts, a tenant."""
    with open_knowing(url) as store:
        trip = store.thread("trip-42")
        for number in range(1, 4):
            trip.save(
                state(number),
                id=f"c{number}",
                step=number,
                metadata={"node": "plan" if number == 2 else "act"},
            )
        trip.save({**state(2), "note": "another way"}, id="branch", parent="c2", step=3, source="update")
        trip.write("task-1", [("messages", Plan("Porto", 1)), ("done", True)])
        trip.set_metadata({"title": "Lisbon", "user": "ada"})
        store.thread("trip-42", namespace="sub").save({"query": "Alfama"}, id="s1")
        asked = outlive.Interrupt("ask-1", "approve", {"question": "Book it?"})
        store.thread("trip-7").save(
            {"n": 1}, id="i1", source="interrupt", interrupts=[asked], next_nodes=["book"]
        )
        store.thread("-dash").save({"n": 2}, id="-d1")
        store.thread(ODD_ID).save({"text": ESCAPES}, id="o\x1b1")
        store.thread("types").save(everything(), id="t1", step=1)
    with outlive.open(url, tenant="acme") as store:
        store.thread("secret").save({"n": 3})


TAG = ormsgpack.packb(["other", "Tag", "x"])


def foreign(module, name, fields):
    """Return an object as the LangGraph adapter stores those that only its serializer can build."""
    return Raw(48 + 2, ormsgpack.packb([module, name, fields]))


def everything():
    return {
        "when": dt.datetime(2026, 5, 1, 12, 30, tzinfo=dt.UTC),
        "pair": (1, "two"),
        "set": {3},
        "bytes": b"\x00\xff",
        "nan": float("nan"),
        "keys": {1: "one"},
        "$type": "a key of the user's",
        "plan": Plan("Faro", 9),
        "foreign": Raw(48, b"\x92\xa1a\xa1b\x1b[2J"),
        "document": foreign("some.module", "Document", {"text": "a\x1b[2J", "tags": ormsgpack.Ext(0, TAG)}),
        "big": 1 << 80,
        "text": ESCAPES,
        "list": list(range(100)),
    }
