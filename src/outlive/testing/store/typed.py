"""Typed states: dataclasses, pydantic models and msgspec structs keep their type, also after an
upgrade.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from outlive.backend import FORMAT
from outlive.errors import NeedsUpgrade, NewerFormat, Unencodable, UnknownTag
from outlive.format.registry import Registry
from outlive.testing.contract import Contract
from outlive.testing.thread_records import copied
from outlive.testing.trial import Trial


class Mood(enum.Enum):
    CALM = "calm"
    EAGER = "eager"


class Place(NamedTuple):
    city: str
    nights: int = 1


@dataclasses.dataclass
class Log:
    lines: list[str]


@dataclasses.dataclass
class Plan:
    log: Log
    mood: Mood = Mood.CALM
    places: tuple[Place, ...] = ()


@dataclasses.dataclass
class Session:
    plan: Plan
    name: str = "x"


Nested = tuple[Callable[[list[str]], Any], Callable[[Any, str], None], tuple[type, ...]]


def _grow(state: Any, line: str) -> None:
    state.plan.log.lines.append(line)


def _dataclasses() -> Nested:
    return (lambda lines: Session(Plan(Log(list(lines))))), _grow, (Session, Plan, Log, Mood, Place)


def _models() -> Nested:
    pydantic = pytest.importorskip("pydantic")
    log = pydantic.create_model("ModelLog", lines=(list[str], ...))
    plan = pydantic.create_model("ModelPlan", log=(log, ...), mood=(Mood, Mood.CALM))
    session = pydantic.create_model("ModelSession", plan=(plan, ...), name=(str, "x"))
    return (lambda lines: session(plan=plan(log=log(lines=list(lines))))), _grow, (session, plan, log, Mood)


def _structs() -> Nested:
    msgspec = pytest.importorskip("msgspec")
    log = msgspec.defstruct("StructLog", [("lines", list[str])])
    plan = msgspec.defstruct("StructPlan", [("log", log), ("mood", Mood, Mood.CALM)])
    session = msgspec.defstruct("StructSession", [("plan", plan), ("name", str, "x")])
    return (lambda lines: session(plan(log(list(lines))))), _grow, (session, plan, log, Mood)


def _plain() -> Nested:
    return (
        lambda lines: {"plan": {"log": {"lines": list(lines)}, "mood": "calm"}, "name": "x"},
        lambda state, line: state["plan"]["log"]["lines"].append(line),
        (),
    )


# A state three levels deep: how to make it from lines, how to add a line, and its types.
NESTED: dict[str, Callable[[], Nested]] = {
    "plain": _plain,
    "dataclass": _dataclasses,
    "pydantic": _models,
    "msgspec": _structs,
}


def registered(types: tuple[type, ...]) -> Registry:
    """Return a new registry, so that a test leaves nothing in this process."""
    registry = Registry()
    for cls in types:
        registry.add(cls, f"testing.{cls.__name__}")
    return registry


DATACLASSES = (Session, Plan, Log, Mood, Place)


class TypedContract(Contract):
    @pytest.mark.parametrize("kind", ["dataclass", "pydantic", "msgspec"])
    async def test_a_typed_state_comes_back_as_what_it_was(self, trial: Trial, kind: str) -> None:
        make, grow, types = NESTED[kind]()
        state = make(["a", "b"])
        thread = (await trial.store(registry=registered(types))).thread("t")
        await thread.save(state)
        grow(state, "c")
        await thread.save(state)
        other = (await trial.store(registry=registered(types))).thread("t")
        for handle in (thread, other):
            loaded = await handle.load()
            assert loaded == state == make(["a", "b", "c"])
            assert type(loaded) is type(state)
            assert type(loaded.plan) is type(state.plan)
            assert loaded.plan.mood is Mood.CALM

    @pytest.mark.parametrize("kind", ["dataclass", "pydantic", "msgspec"])
    async def test_a_thread_of_a_type_registers_what_its_annotations_name(
        self, trial: Trial, kind: str
    ) -> None:
        make, _, types = NESTED[kind]()
        thread = (await trial.store(registry=Registry())).thread("t", type=types[0])
        await thread.save(make(["a"]))
        other = (await trial.store(registry=Registry())).thread("t", type=types[0])
        assert await other.load() == make(["a"])

    async def test_enums_and_namedtuples_inside_a_typed_state_keep_their_type(self, trial: Trial) -> None:
        thread = (await trial.store(registry=registered(DATACLASSES))).thread("t")
        await thread.save(Session(Plan(Log([]), Mood.EAGER, (Place("Lisbon"), Place("Porto", 2)))))
        loaded: Any = await thread.load()
        assert loaded.plan.mood is Mood.EAGER
        assert [type(place) for place in loaded.plan.places] == [Place, Place]
        assert loaded.plan.places[1].nights == 2

    async def test_typed_values_stand_in_metadata_and_writes_too(self, trial: Trial) -> None:
        thread = (await trial.store(registry=registered(DATACLASSES))).thread("t")
        await thread.save({}, metadata={"mood": Mood.EAGER})
        await thread.write("task", [("c", Place("Lisbon"))])
        checkpoint = await thread.checkpoint()
        assert checkpoint is not None and checkpoint.metadata == {"mood": Mood.EAGER}
        assert type(checkpoint.pending_writes[0].value) is Place

    async def test_a_type_that_nobody_registered_is_refused_at_save(self, trial: Trial) -> None:
        thread = (await trial.store(registry=Registry())).thread("t")
        with pytest.raises(Unencodable) as refused:
            await thread.save({"plans": [Log([])]})
        assert refused.value.path == "state.plans[0]"
        assert not await thread.exists()

    async def test_an_unknown_tag_is_refused_by_load_and_carried_by_everything_else(
        self, trial: Trial
    ) -> None:
        knows, ignorant = (
            await trial.store(registry=registered(DATACLASSES)),
            await trial.store(registry=Registry()),
        )
        first = await knows.thread("t").save(Session(Plan(Log(["a"]))))
        await knows.thread("t").save(Session(Plan(Log(["b"]))))
        with pytest.raises(UnknownTag):
            await ignorant.thread("t").load()
        changes = await ignorant.thread("t").diff(first.id)
        assert [(change.kind, change.old, change.new) for change in changes] == [("changed", "a", "b")]
        assert (await ignorant.verify()).ok
        await ignorant.thread("t").copy("copy")
        other = await trial.other_store()
        await ignorant.copy_to(other)
        assert await knows.thread("copy").load() == Session(Plan(Log(["b"])))
        assert len([item async for item in ignorant.thread("t").history()]) == 2

    async def test_an_old_state_is_upgraded_when_it_is_loaded(self, trial: Trial) -> None:
        old, new, later = Registry(), Registry(), Registry()
        old.add(Log, "plan", version=1)
        saved = await (await trial.store(registry=old)).thread("t").save({"list": [Log(["a"])]})
        upgrades = {
            1: lambda fields: {"city": fields["lines"][0]},
            2: lambda fields: {**fields, "nights": 3},
        }
        new.add(Place, "plan", version=3, upgrade=upgrades)
        thread = (await trial.store(registry=new)).thread("t")
        assert await thread.load() == {"list": [Place("a", 3)]}
        await thread.save(await thread.load())
        later.add(Place, "plan", version=3)
        reader = (await trial.store(registry=later)).thread("t")
        assert await reader.load() == {"list": [Place("a", 3)]}
        with pytest.raises(NeedsUpgrade):
            await reader.load(saved.id)

    async def test_an_old_program_refuses_a_newer_version_and_keeps_the_rest_readable(
        self, trial: Trial
    ) -> None:
        old, new = Registry(), Registry()
        old.add(Log, "log", version=1)
        new.add(Log, "log", version=2)
        first = await (await trial.store(registry=old)).thread("t").save(Log(["a"]))
        await (await trial.store(registry=new)).thread("t").save(Log(["b"]))
        thread = (await trial.store(registry=old)).thread("t")
        with pytest.raises(NeedsUpgrade):
            await thread.load()
        assert await thread.load(first.id) == Log(["a"])

    async def test_a_record_of_a_newer_format_is_refused_by_both_versions(self, trial: Trial) -> None:
        store, probe = await trial.store(), await trial.probe("t")
        first = await store.thread("t").save({"n": 1})
        record = (await probe.records())[0]
        newer = copied(record, id="newer", seq=2, format=FORMAT + 1)
        await probe.commit(newer)
        with pytest.raises(NewerFormat) as refused:
            await store.thread("t").load()
        assert (refused.value.found, refused.value.known) == (FORMAT + 1, FORMAT)
        assert await store.thread("t").load(first.id) == {"n": 1}
        assert (await store.thread("t").save({"n": 3})).seq == 3  # a rolling deploy continues
        assert await store.thread("t").load() == {"n": 3}
