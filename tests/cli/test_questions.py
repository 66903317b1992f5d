"""The command line on runs that wait: what they ask, answering it, and what the lists say of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import subprocess
import sys
from typing import Literal

import pytest

import outlive
from rig.program import environment

DAY_S = 86_400.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, program):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_store")
    return f"sqlite:///{program.folder}/agent.db"


@pytest.fixture
def store(url):
    with outlive.open(url) as store:
        yield store


@pytest.fixture
def cli(program, url, store):
    def run(*arguments, **options):
        return program(*arguments, **{"OUTLIVE_STORE": url, **options})

    run.on_terminal = lambda *arguments: program.on_terminal(*arguments, OUTLIVE_STORE=url)
    run.program = program
    return run


def ask(store, id, *names, agent="refunds", schema=bool, payload=None, **options):
    """Start a run that asks: it waits."""
    with store.run(f"thread of {id}", run_id=id, agent=agent) as run:
        run.step("look up", lambda: 40)
        if len(names) > 1:
            run.ask_all({name: outlive.Question(payload, schema=schema) for name in names})
        run.ask(names[0], payload, schema=schema, **options)
    assert run.status == "waiting"


def status(store, id):
    return store.find_run(id).status


def test_open_questions_are_listed_with_what_they_take_and_until_when(cli, store):
    ask(store, "r-1", "approve?", payload={"amount": 40}, timeout_s=3 * DAY_S)
    ask(store, "r-2", "which?", schema=Literal["train", "ferry"], agent="planner")
    shown = cli("questions")
    assert (shown.code, shown.err) == (0, "")
    heading, first, second = shown.out.splitlines()
    assert heading.split() == [
        "QUESTION", "RUN", "THREAD", "AGENT", "STATUS", "ASKED", "DUE", "TAKES", "PAYLOAD",
    ]  # fmt: skip
    for part in ("approve?", "r-1", "refunds", "open", "in 3 d", "true or false", '{"amount": 40}'):
        assert part in first, part
    assert "train or ferry" in second
    assert cli("questions", "-q").out == "r-1 'approve?'\nr-2 'which?'\n"
    assert cli("questions", "--agent", "planner", "-q").out == "r-2 'which?'\n"
    assert cli("questions", "--thread", "thread of r-1", "-q").out == "r-1 'approve?'\n"
    assert cli("questions", "--older-than", "1h").out == "no open questions\n"
    assert cli("questions", "--status", "answered").out == "no answered questions\n"
    item = cli("questions", "--json").items[0]
    assert (item["payload"], item["schema"], item["type"]) == (
        {"amount": 40},
        {"type": "boolean"},
        "question",
    )
    asked, due = (dt.datetime.fromisoformat(item[name]) for name in ("asked_at", "due_at"))
    assert (due - asked).total_seconds() == pytest.approx(3 * DAY_S, abs=1)


def test_the_oldest_questions_come_first_and_a_page_says_that_there_are_more(cli, store):
    for id in ("r-3", "r-1", "r-2"):
        ask(store, id, "approve?")
    assert [item["run"] for item in cli("questions", "--json").items] == ["r-3", "r-1", "r-2"]
    page = cli("questions", "--limit", 2, "-q")
    assert page.out == "r-3 'approve?'\nr-1 'approve?'\n"
    assert cli("questions", "--limit", 2).err == "outlive: more: use --limit\n"


def test_an_answer_releases_the_run(cli, store):
    ask(store, "r-1", "approve?", payload={"amount": 40})
    answered = cli("answer", "r-", "approve?", "true", "--by", "ada")
    assert (answered.code, answered.err) == (0, "")
    assert answered.out == (
        "answered 'approve?' of run r-1: true\n"
        "run r-1 is released: a worker or the next outlive recover resumes it\n"
    )
    with store.retry("r-1") as run:
        assert run.ask("approve?", {"amount": 40}, schema=bool) is True
    (item,) = cli("questions", "--status", "answered", "--json").items
    assert (item["value"], item["by"], item["status"]) == (True, "ada", "answered")


def test_the_first_answer_counts_and_the_second_is_told_who_gave_it(cli, store):
    ask(store, "r-1", "approve?", "amount", schema=None)
    (item,) = cli("answer", "r-1", "amount", "12", "--by", "ada", "--json").items
    assert (item["value"], item["by"], item["run_status"]) == (12, "ada", "waiting")
    second = cli("answer", "r-1", "amount", "13")
    assert (second.code, second.out) == (2, "")
    assert second.err.startswith("outlive: 'amount' of run 'r-1' was answered by 'ada' at 2")
    assert len(second.err.splitlines()) == 1
    error = json.loads(cli("answer", "r-1", "amount", "13", "--json").err)
    assert (error["error"], error["exit"]) == ("AlreadyAnswered", 2)
    assert cli("answer", "r-1", "approve?", "true").out.endswith(
        "run r-1 is released: a worker or the next outlive recover resumes it\n"
    )


def test_an_answer_that_does_not_fit_is_refused_in_one_line_and_the_run_still_waits(cli, store):
    ask(store, "r-1", "approve?")
    refused = cli("answer", "r-1", "approve?", "maybe")
    assert (refused.code, refused.err) == (
        2,
        (
            "outlive: 'approve?' of run 'r-1' does not take this answer: answer: must be boolean, not 'maybe'; "
            "it takes true or false\n"
        ),
    )
    assert status(store, "r-1") == "waiting"
    silent = cli("answer", "r-1", "approve?")
    assert (silent.code, silent.err) == (
        2,
        "outlive: give a VALUE as the answer to 'approve?': true or false\n",
    )


def test_a_misspelled_name_is_not_kept_as_an_early_answer(cli, store):
    ask(store, "r-1", "approve?")
    refused = cli("answer", "r-1", "aprove?", "true")
    assert (refused.code, refused.err) == (
        2,
        "outlive: run 'r-1' has not asked 'aprove?'; it asks 'approve?'; --early keeps the answer until it does\n",
    )
    early = cli("answer", "r-1", "amount", "7", "--early")
    assert early.out.endswith("run r-1 is waiting: it waits for more\n")
    with store.run("t", run_id="r-2") as run:
        assert cli("answer", "r-2", "amount", "7", "--early").out.endswith(
            "run r-2 is running: it has the answer when it asks\n"
        )
        run.ask("amount")
    cli("answer", "r-2", "amount", "7", "--early")
    ended = cli("answer", "r-1", "nope", "1", "--json")
    assert json.loads(ended.err)["error"] == "BadArgument"


def test_a_run_that_has_ended_takes_no_answer(cli, store):
    ask(store, "r-1", "approve?")
    assert cli("cancel", "r-1", "--yes").code == 0
    refused = cli("answer", "r-1", "approve?", "true")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "is cancelled" in refused.err
    assert cli("questions").out == "no open questions\n"
    assert cli("questions", "--status", "all", "--json").items[0]["status"] == "withdrawn"
    assert cli("answer", "r-1").err == "outlive: run 'r-1' has no open question\n"


@pytest.mark.parametrize(
    "schema, options, text, value",
    [
        (None, [], '{"a": [1]}', {"a": [1]}),
        (None, [], "plain text", "plain text"),
        (None, [], "42", 42),
        (None, ["--text"], "42", "42"),
        (str, [], "42", "42"),
        (int, [], "42", 42),
        (bool, [], "yes", True),
        (bool, [], "N", False),
        (Literal["1", "2"], [], "1", "1"),
        (Literal[1, 2], [], "1", 1),
        (list[str], [], '["a"]', ["a"]),
    ],
)
def test_a_value_is_json_or_else_text_and_what_fits_the_schema(program, schema, options, text, value):
    url = f"sqlite:///{program.folder}/agent.db"
    with outlive.open(url) as store:
        ask(store, "r-1", "which?", schema=schema)
        (item,) = program("answer", "r-1", "which?", text, *options, "--json").items
        assert item["value"] == value
        assert type(item["value"]) is type(value)
        assert [question.value for question in store.questions(status="answered")] == [value]


def test_a_value_may_come_from_standard_input(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        ask(store, "r-1", "why?", schema=str)
        (item,) = program("answer", "r-1", "why?", "-", "--json", stdin="two\nlines\n").items
    assert item["value"] == "two\nlines"


def test_a_person_is_shown_the_questions_and_asked_until_the_answers_fit(cli, store):
    ask(store, "r-1", "approve?", "again?", payload="Refund \x1b[31m40 EUR")
    with cli.on_terminal("answer", "r-1") as terminal:
        terminal.wait_for("takes").wait_for('"Refund \\x1b[31m40 EUR"').wait_for("answer: ").type("maybe\n")
        terminal.wait_for("does not take this answer").wait_for("it takes true or false")
        terminal.type("yes\n").wait_for("approve?").type("no\n")
        assert terminal.end() == 0
    assert "run r-1 is released" in terminal.text
    values = {question.name: question.value for question in store.questions(status="answered")}
    assert values == {"again?": True, "approve?": False}


def test_runs_say_what_they_wait_for_since_when_and_until_when(cli, store):
    ask(store, "r-1", "approve?", timeout_s=3 * DAY_S)
    with store.run("t-2", run_id="r-2") as run:
        run.ask_any({"train?": None, "ferry?": None})
    with store.run("t-3", run_id="r-3") as run:
        run.sleep(7200)
    with pytest.raises(RuntimeError), store.run("t-4", run_id="r-4", backoff_s=3600):
        raise RuntimeError("no line")
    rows = {row.split()[0]: row for row in cli("runs").out.splitlines()}
    assert "waits for 'approve?', since " in rows["r-1"]
    assert ", due in 3 d" in rows["r-1"]
    assert "waits for any of 'train?', 'ferry?', since " in rows["r-2"]
    assert "waits for 'sleep#1', since " in rows["r-3"]
    assert ", due in 2 h" in rows["r-3"]
    assert "waits to try again after a failure, since " in rows["r-4"]
    assert all(row.split()[1] == "waiting" for id, row in rows.items() if id != "RUN")
    assert cli("runs", "--status", "waiting", "-q").out.split() == ["r-1", "r-2", "r-3", "r-4"]
    waits = cli("runs", "--json").items[1]["waits"]
    assert (waits["reason"], waits["names"], waits["until"]) == ("answers", ["train?", "ferry?"], None)
    assert waits["groups"] == [{"names": ["train?", "ferry?"], "mode": "any"}]
    cli("answer", "r-1", "approve?", "true")
    assert cli("runs", "--json").items[0]["waits"] is None
    shown = cli("runs", "show", "r-2").out
    assert "waits    for any of 'train?', 'ferry?'\nsince    " in shown
    assert "QUESTION  RUN" in shown


def test_a_run_is_shown_with_its_attempts_and_every_try_of_its_steps(cli, store):
    calls = []

    def flaky():
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError(f"no line {len(calls)}")
        return 7

    with contextlib.suppress(ValueError), store.run("t", run_id="r-1") as run:
        run.step("call", retries=5, backoff_s=0.001)(flaky)()
        run.step("pay", effect=True)(lambda: 1)()
        raise ValueError("broken")
    with store.retry("r-1") as run:
        run.step("call", flaky)
        run.step("thank", lambda: None)
        run.ask("satisfied?")
    (item,) = cli("runs", "show", "r-1", "--json").items
    assert [(one["number"], one["outcome"], one["error"]) for one in item["attempts"]] == [
        (1, "failed", "ValueError: broken"),
        (2, "waiting", None),
    ]
    call, pay, thank, satisfied = item["steps"]
    assert (call["tries"], call["attempt"], call["kind"], call["value"]) == (3, 1, "step", 7)
    assert [failed["error"] for failed in call["failures"]] == [
        "RuntimeError: no line 1",
        "RuntimeError: no line 2",
    ]
    assert pay["effect_key"] is not None
    assert (thank["attempt"], satisfied["kind"], satisfied["ended_at"]) == (2, "ask", None)
    assert [one["name"] for one in item["questions"]] == ["satisfied?"]
    lines = cli("runs", "show", "r-1").out.splitlines()
    steps = lines[next(at for at, line in enumerate(lines) if line.startswith("STEP")) :]
    assert steps[0].split() == ["STEP", "KEY", "KIND", "STATUS", "TRY", "ATTEMPT", "BEGAN", "TOOK", "VALUE"]
    assert [line.split()[:4] for line in steps[1:4]] == [
        ["call", "#1", "raised", "1"],
        ["call", "#1", "raised", "2"],
        ["call", "#1", "done", "3"],
    ]
    assert "effect" in steps[4]
    attempts = lines[next(at for at, line in enumerate(lines) if line.startswith("ATTEMPT")) :]
    assert "failed" in attempts[1]
    assert attempts[1].endswith("ValueError: broken")


def test_recovery_tells_that_a_run_waits_again(cli, store):
    (cli.program.folder / "handlers.py").write_text(
        "def work(run):\n    return run.ask('approve?', schema=bool)\n"
    )
    store.run("t", run_id="r-1", agent="refunds").start().release()
    recovered = cli("recover", "--handlers", "handlers:work", "--json")
    assert [(item["outcome"], item["reason"]) for item in recovered.items] == [
        ("suspended", "waits for 'approve?'")
    ]
    assert cli("answer", "r-1", "approve?", "true").code == 0
    assert cli("retry", "r-1", "--handlers", "handlers:work", "--json").items[0]["status"] == "completed"
    assert cli("runs", "show", "r-1", "--json").items[0]["result"] is True


def test_answers_are_given_without_the_types_of_the_agent(program):
    code = (
        "import dataclasses, outlive\n"
        "@outlive.register\n@dataclasses.dataclass\nclass Claim:\n    amount: int\n"
        "with outlive.open('sqlite:///agent.db') as store:\n"
        "    with store.run('t', run_id='r-1', prompt=Claim(1)) as run:\n"
        "        run.ask('approve?', Claim(40))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=program.folder, env=environment(), check=True)
    assert "Claim" in program("questions").out
    assert program("answer", "r-1", "approve?", "true").code == 0
    assert program("runs", "-q").out == "r-1\n"
