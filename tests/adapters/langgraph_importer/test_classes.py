"""A dry run lists the classes that rows name; those in the annotations of a named class are known with it."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

from adapters.langgraph.making import put
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import sqlite_saver
from adapters.langgraph_importer.test_hostile_rows import CANARY, VALUES, change
from outlive.adapters.langgraph import OutliveSaver
from outlive.adapters.langgraph.importer.importer import CannotImport, import_langgraph

HERE = __name__


class Kind(enum.Enum):
    TRAIN = "train"


@dataclasses.dataclass
class Leg:
    to: str
    kind: Kind


class Plan(BaseModel):
    legs: list[Leg]


class Hotel:
    class Room(BaseModel):
        number: int = 1


class Trip(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    plan: Annotated[Plan | None, "of the trip"]


PLAN = Plan(legs=[Leg("Porto", Kind.TRAIN), Leg("Lisbon", Kind.TRAIN)])


@pytest.fixture
def old(tmp_path):
    """Return a database in which two threads have objects of classes of the program."""
    with sqlite_saver(tmp_path / "old.db") as saver:
        builder = StateGraph(Trip).add_node("plan", lambda state: {"plan": PLAN}).add_edge(START, "plan")
        for thread in ("a", "b"):
            builder.compile(checkpointer=saver).invoke({"messages": [HumanMessage("x")]}, graphs.on(thread))
        put(saver, "1", values={"leg": Leg("Faro", Kind.TRAIN)}, thread="c")
    return tmp_path / "old.db"


def uses(result):
    return {use.name.removeprefix(f"{HERE}."): (use.threads, use.is_known) for use in result.classes}


def test_a_dry_run_lists_every_class_of_every_thread(old):
    planned = import_langgraph(f"sqlite:///{old}", "memory:", dry_run=True)
    assert uses(planned) == {
        "Kind": (3, False),
        "Leg": (1, False),  # in a plan, LangGraph stores it as a dict
        "Plan": (2, False),
        "langchain_core.messages.human.HumanMessage": (2, True),
    }
    assert planned.unknown == (f"{HERE}.Kind", f"{HERE}.Leg", f"{HERE}.Plan")
    assert not any(use.values < use.threads for use in planned.classes)
    by_name = {use.name: use.values for use in planned.classes}
    # In each of two threads a write and a checkpoint have the plan, and another thread has a leg alone.
    assert by_name[f"{HERE}.Plan"] == 4
    assert (by_name[f"{HERE}.Leg"], by_name[f"{HERE}.Kind"]) == (1, 9)


def test_the_class_of_the_state_takes_in_what_its_annotations_name(old, tmp_path):
    planned = import_langgraph(f"sqlite:///{old}", "memory:", types=[Trip], dry_run=True)
    assert planned.ok
    assert planned.unknown == ()
    assert all(use.is_known for use in planned.classes)
    target = f"sqlite:///{tmp_path}/new.db"
    assert import_langgraph(f"sqlite:///{old}", target, types=[Trip]).threads == 3
    with OutliveSaver(target) as saver:
        assert saver.get_tuple(graphs.on("a")).checkpoint["channel_values"]["plan"] == PLAN


def test_a_class_that_no_annotation_names_is_still_refused(old):
    with pytest.raises(CannotImport, match=r"Plan, which is not in types"):
        import_langgraph(f"sqlite:///{old}", "memory:", types=[Leg])


def test_an_import_counts_nothing(old):
    assert import_langgraph(f"sqlite:///{old}", "memory:", types=[Trip]).classes == ()


def test_the_program_prints_the_classes_and_what_to_type(old, program):
    call = ("import-langgraph", f"sqlite:///{old}", "sqlite:///new.db", "--dry-run")
    ended = program(*call)
    rows = [line.split() for line in ended.out.partition("\n\n")[2].splitlines()]
    assert ended.code == 1
    assert rows[0] == ["CLASS", "VALUES", "THREADS"]
    assert rows[1] == [f"{HERE}.Kind", "9", "3", "unknown"]
    assert rows[4] == ["langchain_core.messages.human.HumanMessage", "8", "2", "known"]
    assert f"name the classes: --type {HERE}.Kind --type {HERE}.Leg --type {HERE}.Plan" in ended.out
    listed = json.loads(program(*call, "--type", f"{HERE}.Trip", "--json").out)["items"][0]
    assert listed["unknown_types"] == []
    assert listed["classes"][0] == {"name": f"{HERE}.Kind", "values": 9, "threads": 3, "is_known": True}


def test_the_program_takes_a_class_inside_another(tmp_path, program):
    with sqlite_saver(tmp_path / "rooms.db") as saver:
        put(saver, "1", values={"room": Hotel.Room(number=7)}, thread="a")
    target = f"sqlite:///{tmp_path}/new.db"
    moved = program("import-langgraph", f"{tmp_path}/rooms.db", target, "--type", f"{HERE}.Hotel.Room")
    assert moved.code == 0, moved.err
    with OutliveSaver(target) as saver:
        assert saver.get_tuple(graphs.on("a")).checkpoint["channel_values"]["room"] == Hotel.Room(number=7)


@pytest.mark.parametrize("what", VALUES)
def test_what_rows_name_is_counted_and_never_called(what, old, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kind, data, _ = VALUES[what]
    change(old, "update checkpoints set type = ?, checkpoint = ? where thread_id = 'c'", kind, data)
    planned = import_langgraph(f"sqlite:///{old}", "memory:", types=[Trip], dry_run=True)
    assert [problem.thread for problem in planned.problems] == ["c"]
    names = {"single", "positional", "keywords", "pydantic", "json 1", "json 2"}
    expected = "os.system" if what in names else "os.path" if what == "method" else None
    assert {use.name for use in planned.classes if not use.is_known} == ({expected} - {None})
    assert not (tmp_path / CANARY).exists()
