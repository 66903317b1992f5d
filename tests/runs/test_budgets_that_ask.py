"""A budget with on_spent="ask": the run asks a person for more, and the answer raises the limits."""

import pytest

import outlive
from outlive.errors import AnswerRefused, BadArgument, BudgetSpent


@pytest.fixture
def store():
    with outlive.open("memory:") as store:
        yield store


def use(run, tokens):
    run.save({"used": tokens}, usage={"tokens": tokens})


def spend(run):
    run.step("first", use, run, 60)
    run.step("second", use, run, 60)
    return run.step("third", lambda: 3)


def begin(store, budget, agent=spend, **options):
    with store.run("t", run_id="r", agent="a", budget=budget, **options) as run:
        run.complete(agent(run))
    return run


def resume(store, agent=spend):
    return store.recover({"a": agent})


def test_the_run_asks_and_continues_with_what_it_was_given(store):
    run = begin(store, outlive.Budget(tokens=100, on_spent="ask"))
    question = next(store.questions())
    assert (run.status, question.name) == ("waiting", "budget")
    assert question.payload == {"limits": {"tokens": 100}, "usage": {"tokens": 120}, "spent": "tokens"}
    for wrong in ({"tokens": -1}, {"tokens": "many"}, {"cost_usd": 5}, 500):
        with pytest.raises(AnswerRefused):
            store.answer("r", "budget", wrong)
    store.answer("r", "budget", {"tokens": 500}, by="ana")
    resumed = resume(store).resumed
    assert [(run.result, run.attempt, run.budget.tokens) for run in resumed] == [(3, 1, 500)]
    assert [run.usage for run in resumed] == [{"tokens": 120}]  # no step was called again
    assert [run.budget.tokens for run in store.runs()] == [500]


def test_too_little_is_asked_again_and_none_parks_the_run(store):
    begin(store, outlive.Budget(tokens=100, on_spent="ask"))
    store.answer("r", "budget", {"tokens": 110})
    assert [run.waits.names for run in resume(store).suspended] == [("budget#2",)]
    assert [run.status for run in resume(store).suspended] == []  # no answer, nothing to do
    store.answer("r", "budget#2", None)
    assert [run.code for run in resume(store).failed] == ["BudgetSpent"]
    info = store.find_run("r")
    assert (info.status, info.budget.tokens) == ("parked", 110)
    with store.retry("r", budget=outlive.Budget(tokens=1000)) as run:
        run.complete(spend(run))
    assert run.result == 3


def test_steps_are_asked_for_before_they_are_called(store):
    calls = []

    def agent(run):
        for n in range(3):
            run.step("work", calls.append, n)
        return "done"

    begin(store, outlive.Budget(steps=2, on_spent="ask"), agent)
    assert calls == [0, 1]
    store.answer("r", "budget", {"steps": 3})
    assert [run.result for run in resume(store, agent).resumed] == ["done"]
    assert calls == [0, 1, 2]


def test_an_answer_that_no_record_has_yet_counts_after_a_crash(store):
    """The raised limit is stored as the answer is, before the run writes anything."""

    def agent(run):
        run.step("first", use, run, 200)
        return run.step("second", lambda: run.info.budget.tokens)

    begin(store, outlive.Budget(tokens=100, on_spent="ask"), agent)
    store.answer("r", "budget", {"tokens": 500})
    with store.run("t", run_id="r") as run:
        assert run.info.budget.tokens == 500
        run.release()
    assert [run.result for run in resume(store, agent).resumed] == [500]


def test_a_child_that_spends_the_budget_of_its_parent_makes_that_ask(store):
    def agent(run):
        with run.child("notes", agent="writer") as child:
            child.step("read", use, child, 200)
            child.complete(child.step("write", lambda: "written"))
        return child.result

    begin(store, outlive.Budget(tokens=100, on_spent="ask"), agent)
    assert [(question.run, question.name) for question in store.questions()] == [("r", "budget")]
    store.answer("r", "budget", {"tokens": 900})
    assert [run.result for run in resume(store, agent).resumed] == ["written"]


def test_nothing_is_asked_inside_an_effect_but_by_the_next_step(store):
    calls = []

    def agent(run):
        @run.step("pay", effect=True)
        def pay():
            run.save({"paid": True}, usage={"tokens": 200})
            calls.append("pay")

        pay()
        run.step("next", calls.append, "next")

    begin(store, outlive.Budget(tokens=100, on_spent="ask"), agent)
    assert calls == ["pay"]
    store.answer("r", "budget", {"tokens": 900})
    assert len(resume(store, agent).resumed) == 1
    assert calls == ["pay", "next"]


def test_a_budget_that_parks_does_so_inside_an_effect_too(store):
    def agent(run):
        run.step("pay", effect=True)(use)(run, 200)

    with pytest.raises(BudgetSpent):
        begin(store, outlive.Budget(tokens=100), agent)
    assert store.find_run("r").status == "parked"


def test_a_wrong_choice_is_refused():
    with pytest.raises(BadArgument, match="on_spent"):
        outlive.Budget(tokens=1, on_spent="beg")
