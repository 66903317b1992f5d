"""The command line on runs: who is at work, what died, and handing it on."""

from __future__ import annotations

import contextlib
import json
import os
import re

import pytest

import outlive
from outlive.runs.lease import RunInfo
from outlive.runtime.runtime import run_now
from outlive.testing.patience import eventually

HANDLERS = """
import outlive

def go_on(run):
    return run.step("ask", lambda: "Belem") + "!"

async def go_on_async(run):
    return await run.step("ask", lambda: "Porto")

def raises(run):
    raise RuntimeError("no answer")

async def raises_async(run):
    raise RuntimeError("no answer")

SYNC = {"planner": go_on}
ASYNC = {"planner": go_on_async}
FAILING = {"*": raises}
NUMBER = 7
"""


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
    """The program on a store of either kind, with handlers in its folder."""
    (program.folder / "handlers.py").write_text(HANDLERS)

    def run(*arguments, **options):
        return program(*arguments, **{"OUTLIVE_STORE": url, **options})

    run.program = program
    return run


def begin(store, id, thread=None, **options):
    return store.run(thread or f"thread of {id}", run_id=id, agent="planner", **options).start()


def fail(store, id, **options):
    begin(store, id, **options).fail("TimeoutError: no answer")


def statuses(cli):
    return {item["id"]: item["standing"] for item in cli("runs", "--all", "--json").items}


def test_runs_are_listed_with_owner_lease_attempts_tokens_and_cost(cli, store):
    live = begin(store, "r-live", lease_s=600)
    live.save(
        {"n": 1},
        iteration=3,
        phase="book",
        usage={"input_tokens": 1200, "output_tokens": 34, "cost_usd": 0.05},
    )
    begin(store, "r-cut").release()
    fail(store, "r-failed")
    begin(store, "r-done").complete("x")
    shown = cli("runs")
    assert (shown.code, shown.err) == (0, "")
    rows = {row.split()[0]: row for row in shown.out.splitlines()}
    assert list(rows) == ["RUN", "r-cut", "r-failed", "r-live"]
    assert rows["RUN"].split() == [
        "RUN", "STATUS", "THREAD", "AGENT", "OWNER", "LEASE", "ATTEMPT", "FAILURES", "AT", "NOW", "TOKENS", "COST", "STARTED", "ERROR",
    ]  # fmt: skip
    for part in (
        "live",
        "planner",
        f"{os.getpid()}@",
        "10 min left",
        "#3 book",
        "1,200 → 34",
        "$0.0500",
    ):
        assert part in rows["r-live"], part
    assert "TimeoutError: no answer" in rows["r-failed"]
    assert "1/5" in rows["r-failed"]
    assert "/5" not in rows["r-live"]
    assert statuses(cli) == {
        "r-live": "live",
        "r-cut": "released",
        "r-failed": "failed",
        "r-done": "completed",
    }
    assert cli("runs", "--status", "failed", "--status", "live", "-q").out.split() == ["r-failed", "r-live"]
    assert cli("runs", "--thread", "thread of r-cut", "-q").out.split() == ["r-cut"]
    assert cli("ls", "--json").items[3]["run"] == {"id": "r-live", "status": "running", "standing": "live"}
    live.complete()


def test_a_run_whose_lease_has_run_out_is_dead(cli, store):
    run = begin(store, "r-1", lease_s=0.2)
    store._store._heart.discard(run._run)  # its process hangs
    eventually(lambda: statuses(cli) == {"r-1": "dead"})
    (item,) = cli("runs", "--json").items
    assert (item["standing"], item["status"]) == ("dead", "running")
    assert item["lease_left_s"] <= 0
    assert cli("recover", "--dry-run", "-q").out == "r-1\n"


def test_a_dead_run_without_attempts_left_says_how_to_resume_it(cli, store):
    for id, most in (("r-1", 1), ("r-2", 2)):
        begin(store, id, lease_s=0.2, max_attempts=most)
    store._store._heart._stop()  # as a process that hangs
    eventually(lambda: len(list(store.recoverable())) == 2)
    rows = {row.split()[0]: row for row in cli("runs").out.splitlines()}
    assert "1/1" in rows["r-1"]
    assert "recovery parks it after 1 failure; outlive retry r-1 resumes it" in rows["r-1"]
    assert "1/2" in rows["r-2"]
    assert "no living worker has a handler for 'planner'" in rows["r-2"]
    (first, _) = cli("recover", "--handlers", "handlers:SYNC", "--json").items[::-1]
    assert (first["id"], first["code"]) == ("r-1", "parked")
    assert first["reason"] == "parked after 1 failed attempts; store.retry('r-1') resumes it"


def test_one_run_is_shown_with_its_steps_and_responses(cli, store):
    run = begin(store, "r-1", prompt="Where to?")
    run.step("ask", key="first")(lambda: {"city": "Lisbon"})()
    run.step("count", lambda: 7)
    with contextlib.suppress(RuntimeError):
        run.step("book", _raise)
    run.responses.open(["claude", "gpt"], prompt="Where to?")
    run.responses.complete(
        "gpt", {"text": "Porto\x1b[2J", "input_tokens": 12, "output_tokens": 3, "cost_usd": 0.01}
    )
    run.complete({"city": "Lisbon"})
    (item,) = cli("runs", "show", "r-", "--json").items
    assert [(step["name"], step["key"], step["status"]) for step in item["steps"]] == [
        ("ask", "=first", "done"), ("count", "#1", "done"), ("book", "#1", "raised"),
    ]  # fmt: skip
    assert item["steps"][0]["value"] == {"city": "Lisbon"}
    assert [(one["model_id"], one["status"]) for one in item["responses"]] == [
        ("claude", "not_started"),
        ("gpt", "completed"),
    ]
    assert (item["input_tokens"], item["output_tokens"], item["cost_usd"]) == (12, 3, 0.01)
    assert item["result"] == {"city": "Lisbon"}
    text = cli("runs", "show", "r-1").out
    assert "\x1b" not in text
    assert '"Porto\\x1b[2J"' in text
    assert "RuntimeError: no flight" in text
    assert 'prompt   "Where to?"' in text
    assert cli("runs", "show", "nope").err == "outlive: no run 'nope'; outlive runs --all lists all runs\n"


def test_steps_stand_in_the_order_in_which_they_began(cli, store):
    names = [f"step {number}" for number in (3, 1, 12, 2)]
    run = begin(store, "r-1")
    for name in names:
        run.step(name, effect=name == "step 1")(lambda: 1)()
    run.release()
    with store.retry("r-1") as again:
        for name in (*names, "step 0"):
            again.step(name, lambda: 2)
    assert [step["name"] for step in cli("runs", "show", "r-1", "--json").items[0]["steps"]] == [
        *names,
        "step 0",
    ]


def test_runs_come_in_pages(cli, store):
    for number in range(3):
        begin(store, f"r-{number}", thread=f"t-{number}").fail("broken")
    first = json.loads(cli("runs", "--limit", 2, "--json").out)
    assert ([item["id"] for item in first["items"]], first["next"]) == (["r-0", "r-1"], "r-1")
    assert cli("runs", "--limit", 2).err.endswith("outlive: more: --after r-1\n")
    assert cli("runs", "--after", "r-1", "-q").out == "r-2\n"
    begin(store, "r-1\x1bz", thread="t").fail("broken")
    assert cli("runs", "--after", "r-1\\x1bz", "-q").out == "r-2\n"


def _raise():
    raise RuntimeError("no flight")


def test_dead_runs_are_recovered_by_handlers_of_a_module(cli, store):
    begin(store, "r-1").release()
    begin(store, "r-2").release()
    assert cli("recover").code == 2
    items = cli("recover", "--handlers", "handlers:SYNC", "--json").items
    first, second = sorted(items, key=lambda item: item["id"])
    assert (first["outcome"], first["id"], first["attempt"]) == ("resumed", "r-1", 2)
    assert second["outcome"] == "resumed"
    assert cli("runs", "show", "r-1", "--json").items[0]["result"] == "Belem!"
    assert cli("recover", "--handlers", "handlers:SYNC").out == "no runs to recover\n"


def test_what_handlers_print_does_not_stand_in_the_json(cli, store):
    code = "print('imported')\ndef go_on(run):\n    print('at work')\nasync def too(run):\n    print('at work')\n"
    (cli.program.folder / "loud.py").write_text(code)
    for name in ("go_on", "too"):
        fail(store, name)
        ended = cli("retry", name, "--handlers", f"loud:{name}", "--json")
        assert (ended.items[0]["status"], ended.err) == ("completed", "imported\nat work\n")
        begin(store, f"{name}-2").release()
        assert cli("recover", "--handlers", f"loud:{name}", "--json").items[0]["outcome"] == "resumed"


def test_async_handlers_recover_too(cli, store):
    begin(store, "r-1").release()
    assert cli("recover", "--handlers", "handlers:ASYNC", "-q").out == "resumed r-1\n"
    assert cli("runs", "show", "r-1", "--json").items[0]["result"] == "Porto"


def test_what_recovery_could_not_do_is_a_finding(cli, store):
    begin(store, "r-1").release()
    store.run("t", run_id="r-2", agent="other").start().release()
    refused = cli("recover", "--handlers", "handlers:SYNC")
    assert refused.code == 1
    assert "no handler for agent 'other'" in refused.out
    failed = cli("recover", "--handlers", "handlers:raises")
    assert (failed.code, "RuntimeError: no answer" in failed.out) == (1, True)
    assert statuses(cli) == {"r-1": "completed", "r-2": "failed"}


@pytest.mark.parametrize(
    "handlers, advice",
    [
        ("handlers", "--handlers takes MODULE:NAME"),
        ("nowhere:X", "cannot import the module 'nowhere'"),
        ("handlers:NOPE", "the module 'handlers' has no 'NOPE'"),
        ("handlers:NUMBER", "is neither a function nor a dict"),
    ],
)
def test_wrong_handlers_are_explained(cli, handlers, advice):
    ended = cli("recover", "--handlers", handlers)
    assert ended.code == 2
    assert advice in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_run_that_ended_is_given_back_or_retried_at_once(cli, store):
    fail(store, "r-1")
    assert cli("retry", "r-1").out == (
        "run r-1 was failed and is released: the next recover or a worker resumes it\n"
    )
    assert statuses(cli) == {"r-1": "released"}
    fail(store, "r-2")
    (item,) = cli("retry", "r-2", "--handlers", "handlers:SYNC", "--json").items
    assert (item["was"], item["status"]) == ("failed", "completed")
    done = cli("retry", "r-2")
    assert (done.code, done.err) == (2, "outlive: run 'r-2' is completed; nothing is left to do\n")
    fail(store, "r-3")
    assert cli("retry", "r-3", "--handlers", "handlers:ASYNC", "-q").code == 0
    assert cli("runs", "show", "r-3", "--json").items[0]["result"] == "Porto"


def test_a_run_is_retried_later(cli, store):
    fail(store, "r-1")
    later = cli("retry", "r-1", "--not-before", "10m")
    assert (later.code, later.out) == (
        0,
        "run r-1 was failed and is waiting: a worker or recover resumes it in 10 min\n",
    )
    assert statuses(cli) == {"r-1": "waiting"}
    row = cli("runs").out
    assert "waits for its time to start, since " in row
    assert ", due in 10 min" in row
    (item,) = cli("retry", "r-1", "--not-before", "2020-01-01T00:00+00:00", "--json").items
    assert item == {
        "id": "r-1",
        "thread": "thread of r-1",
        "was": "waiting",
        "status": "waiting",
        "error": None,
    }
    past = cli("retry", "r-1", "--not-before", "2020-01-01T00:00+00:00").out
    assert past == "run r-1 was waiting and is waiting: a worker or recover resumes it now\n"
    assert cli("recover", "--handlers", "handlers:SYNC", "-q").out == "resumed r-1\n"
    fail(store, "r-2")
    both = cli("retry", "r-2", "--not-before", "10m", "--handlers", "handlers:SYNC")
    assert (both.code, "give one of them" in both.err) == (2, True)
    begin(store, "r-live", lease_s=600)
    assert cli("retry", "r-live", "--not-before", "10m").code == 2


def test_recovery_resumes_as_many_at_a_time_as_it_is_told(cli, store):
    (cli.program.folder / "counted.py").write_text(
        "import threading\n"
        "pair = threading.Barrier(2)\n"
        "def handle(run):\n"
        "    pair.wait(60)\n"
        "    return threading.active_count()\n"
    )
    for number in range(4):
        begin(store, f"r-{number}").release()
    items = cli("recover", "--handlers", "counted:handle", "--concurrency", "2", "--json").items
    assert [item["outcome"] for item in items] == ["resumed"] * 4
    assert cli("recover", "--handlers", "counted:handle", "--concurrency", "0").code == 2


def test_options_of_the_list_are_refused_before_show(cli, store):
    begin(store, "r-1").complete()
    for options, named in (
        (["--watch"], "--watch"),
        (["-w"], "--watch"),
        (["--status", "failed", "--json"], "--status"),
    ):
        refused = cli("runs", *options, "show", "r-1")
        assert (refused.code, f"outlive runs show does not take {named}" in refused.err) == (2, True)
    assert cli("runs", "--json", "show", "r-1").items[0]["id"] == "r-1"


def test_a_run_is_given_back_without_reading_its_responses(cli, store):
    run = begin(store, "r-1")
    run.responses.open(["m"], prompt="Where to?")
    run.responses.fail("m", "overloaded")
    run.fail("broken")
    assert cli("retry", "r-1").code == 0
    assert statuses(cli) == {"r-1": "released"}
    with store.retry("r-1") as run:
        assert [one.status for one in run.responses.open().all()] == ["failed"]


def test_giving_a_run_back_uses_up_no_attempt(cli, store):
    begin(store, "r-1", max_attempts=1).fail("broken")
    for _ in range(2):
        assert cli("retry", "r-1").code == 0
    (item,) = cli("recover", "--handlers", "handlers:SYNC", "--json").items
    assert (item["outcome"], item["attempt"]) == ("resumed", 2)


def test_a_retry_that_fails_again_is_a_finding(cli, store):
    fail(store, "r-1")
    ended = cli("retry", "r-1", "--handlers", "handlers:FAILING")
    assert (ended.code, ended.err) == (1, "")
    assert ended.out == "run r-1 is failed: RuntimeError: no answer; outlive runs show r-1 shows it\n"
    (item,) = cli("retry", "r-1", "--handlers", "handlers:raises_async", "--json").items
    assert (item["status"], item["error"]) == ("failed", "RuntimeError: no answer")
    assert "Traceback" in cli("retry", "r-1", "--handlers", "handlers:FAILING", "--debug").err


def test_a_tenant_in_the_url_holds_for_every_opening(cli, url):
    there = f"{url}{'&' if '?' in url else '?'}tenant=acme"
    with outlive.open(there) as store:
        fail(store, "r-1")
        fail(store, "r-2")
        begin(store, "r-3").release()
    assert cli("retry", "r-1", "--handlers", "handlers:SYNC", OUTLIVE_STORE=there).code == 0
    assert cli("retry", "r-2", "--handlers", "handlers:ASYNC", OUTLIVE_STORE=there).code == 0
    said = json.loads(cli("recover", "--handlers", "handlers:ASYNC", "--json", OUTLIVE_STORE=there).out)
    assert (said["tenant"], said["items"][0]["outcome"]) == ("acme", "resumed")


def test_the_handler_of_a_run_that_is_finished_is_not_called(cli, store):
    begin(store, "r-1").complete(7)
    for name in ("FAILING", "raises_async"):
        ended = cli("retry", "r-1", "--handlers", f"handlers:{name}")
        assert (ended.code, ended.err) == (
            2,
            "outlive: run 'r-1' is completed; nothing is left to do\n",
        )


def test_a_live_run_is_cancelled_from_outside_and_its_place_is_free(cli, store):
    live = begin(store, "r-1", "trip", prompt={"city": "Lisbon"}, lease_s=600)
    asked = cli("cancel", "r-1")
    assert asked.code == 2
    assert f"it is running in process {os.getpid()} on" in asked.err
    assert cli("cancel", "r-1", "--yes").out == "run r-1 is cancelled; outlive retry r-1 resumes it\n"
    with pytest.raises(outlive.LeaseLost):
        live.save({"n": 2})
    begin(store, "r-2", "trip").complete()  # at once: the lease of the other would last ten minutes
    (item,) = cli("runs", "show", "r-1", "--json").items
    assert (item["status"], item["prompt"]) == ("cancelled", {"city": "Lisbon"})
    assert cli("cancel", "r-1", "--yes").err == (
        "outlive: run 'r-1' is cancelled; outlive retry r-1 resumes it\n"
    )


def test_a_parked_run_waits_for_a_person(cli, store):
    begin(store, "r-1").release()
    assert cli("park", "r-1", "--yes", "--json").items == [
        {"id": "r-1", "thread": "thread of r-1", "was": "released", "status": "parked", "error": None}
    ]
    assert cli("recover", "--handlers", "handlers:SYNC").out == "no runs to recover\n"
    assert "parked runs need a decision" in cli("doctor").out
    assert cli("retry", "r-1", "--handlers", "handlers:go_on").code == 0
    assert statuses(cli) == {"r-1": "completed"}


def test_deleting_a_thread_tells_of_its_runs(cli, store):
    live = begin(store, "r-1", "trip", lease_s=600)
    asked = cli("rm", "trip").err
    assert "with its 1 checkpoint (" in asked
    assert f"and 1 run; run r-1 is live in process {os.getpid()} on" in asked
    assert cli("rm", "trip", "--yes").code == 0
    with pytest.raises(outlive.LeaseLost):
        live.save({"n": 2})
    assert statuses(cli) == {}


def test_a_run_that_cannot_be_ended_is_refused_before_anybody_is_asked(cli, store):
    begin(store, "r-1").complete()
    for command in ("park", "cancel"):
        assert cli(command, "r-1").err == "outlive: run 'r-1' is completed; nothing is left to do\n"


def test_a_live_run_is_not_retried_and_the_error_says_how_to_take_it(cli, store):
    begin(store, "r-1", lease_s=600)
    ended = cli("retry", "r-1")
    assert ended.code == 2
    assert ended.err.endswith("; wait for it, or stop it: outlive park r-1\n")
    begin(store, "r-3", "other", lease_s=600).fail("broken")
    begin(store, "r-4", "other", lease_s=600)
    ended = cli("retry", "r-3")
    assert (ended.code, "is held by run 'r-4'" in ended.err) == (2, True)
    assert ended.err.endswith("; wait for it, or stop it: outlive park r-4\n")


def test_what_would_be_recovered_is_told_as_it_is_in_the_list_of_runs(cli, store):
    assert cli("runs", "--all").out == "no runs\n"
    assert cli("runs").out == "no runs; --all includes completed and cancelled runs\n"
    run = begin(store, "r-1")
    run.save({"n": 1}, usage={"input_tokens": 7, "cost_usd": 0.5})
    run.release()
    (item,) = cli("recover", "--dry-run", "--json").items
    assert (item["input_tokens"], item["cost_usd"]) == (7, 0.5)
    assert cli("runs", "--json").items == [item]


def test_doctor_tells_of_dead_runs(cli, store):
    begin(store, "r-1").release()
    ended = cli("doctor")
    assert ended.code == 1
    assert "runs: 1 released: dead and released runs wait for recovery" in ended.out
    assert "  → outlive recover --handlers MODULE:NAME resumes them" in ended.out


def test_of_several_runs_of_one_id_none_is_taken_in_silence(cli, store):
    for thread in ("a", "b"):  # as copies from two stores bring them
        run_now(run_now(store._store._run(RunInfo("r", thread)).start()).release())
    for command in (["runs", "show", "r"], ["cancel", "r", "--yes"], ["park", "r", "--yes"], ["retry", "r"]):
        refused = cli(*command)
        assert refused.code != 0
        assert "threads 'a', 'b' have a run 'r' each" in refused.err
        assert "--thread THREAD" in refused.err
    assert cli("cancel", "r", "--thread", "b", "--yes").code == 0
    assert {run.thread: run.status for run in store.runs()} == {"a": "released", "b": "cancelled"}
    assert [item["thread"] for item in cli("runs", "show", "r", "--thread", "a", "--json").items] == ["a"]


def test_a_quiet_run_is_shown_with_the_step_that_it_is_in(cli, store):
    run = begin(store, "r-1", lease_s=3600)

    def hang():
        run._run._progress.moved_at -= 730
        run_now(store._store._heart.beat())
        shown = cli("runs").out
        assert "quiet for 12 min in step 'book'" in shown
        (item,) = cli("runs", "--json").items
        assert (item["step"], 730 <= item["quiet_s"] < 800) == ("book", True)
        alone = cli("runs", "show", "r-1").out
        assert re.search(r"^now +quiet for 12 min in step 'book'$", alone, re.MULTILINE)

    assert "quiet" not in cli("runs").out
    run.step("book", hang)
    run.complete()
    (item,) = cli("runs", "show", "r-1", "--json").items
    assert [(attempt["number"], attempt["outcome"]) for attempt in item["attempts"]] == [(1, "completed")]
    assert [(step["name"], step["attempt"], step["tries"]) for step in item["steps"]] == [("book", 1, 1)]


def test_a_run_is_shown_with_what_it_has_used_of_its_budget(cli, store):
    budget = outlive.Budget(cost_usd=2, tokens=1000, steps=9)
    with store.run("t", run_id="r-1", budget=budget) as run:
        run.step("ask", lambda: 1)
        run.sleep(0.001)  # no step of the budget
        run.save(1, usage={"input_tokens": 120, "output_tokens": 15, "cost_usd": 0.5})
        run.save(2, usage={"input_tokens": 120, "output_tokens": 15, "cost_usd": 0.5})
    shown = cli("runs", "show", "r-1").out
    assert re.search(
        r"^budget +\$1\.0000 of \$2\.0000, 270 of 1,000 tokens, 1 of 9 steps$", shown, re.MULTILINE
    )
    (item,) = cli("runs", "--all", "--json").items
    assert item["budget"] == {"cost_usd": 2, "tokens": 1000, "steps": 9}


def test_a_run_that_waits_for_a_run_inside_it_says_so(cli, store):
    with store.run("trip", run_id="r-outer") as run, run.child("notes", run_id="r-inner") as child:
        child.ask("publish?")
    rows = {row.split()[0]: row for row in cli("runs").out.splitlines()}
    assert "waits for run r-inner" in rows["r-outer"]
    assert "waits for 'publish?'" in rows["r-inner"]
    (item,) = cli("runs", "show", "r-outer", "--json").items
    assert (item["waits"]["runs"], item["waits"]["names"], item["waits"]["groups"]) == (["r-inner"], [], [])
    assert [(step["name"], step["kind"]) for step in item["steps"]] == [("r-inner", "run")]
