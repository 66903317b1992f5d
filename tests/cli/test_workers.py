"""The command line on workers: runs are submitted, a worker takes them up, and it ends in order."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S, eventually
from rig.program import environment

HANDLERS = """
import asyncio, time

def plan(run):
    print("at work")
    return run.step("plan", lambda: f"to {run.info.prompt['to']}")

def refund(run):
    return "paid" if run.ask("approve?", {"amount": 40}, schema=bool) else "refused"

def slow(run):
    run.step("begin", lambda: 1)
    while True:
        time.sleep(0.05)
        run.alive()

def broken(run):
    raise RuntimeError("no line")

async def plan_async(run):
    return await run.step("plan", lambda: f"to {run.info.prompt['to']}")

async def slow_async(run):
    await run.step("begin", lambda: 1)
    await asyncio.sleep(600)

SYNC = {"planner": plan, "refunds": refund, "slow": slow, "broken": broken}
ASYNC = {"planner": plan_async, "slow": slow_async}
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
    return command_line(program, url)


def command_line(program, url):
    (program.folder / "handlers.py").write_text(HANDLERS)

    def run(*arguments, **options):
        return program(*arguments, **{"OUTLIVE_STORE": url, **options})

    run.folder, run.url = program.folder, url
    return run


@contextlib.contextmanager
def working(cli, *arguments, handlers="SYNC"):
    """Run a worker in a process of its own."""
    command = [sys.executable, "-m", "outlive", "worker", "--handlers", f"handlers:{handlers}", *arguments]
    with (
        open(cli.folder / "worker.out", "w+") as out,
        open(cli.folder / "worker.err", "w+") as err,
        subprocess.Popen(
            command, cwd=cli.folder, env=environment(OUTLIVE_STORE=cli.url), stdout=out, stderr=err
        ) as process,
    ):
        try:
            eventually(lambda: _has_begun(cli, process), "the worker does not begin")
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _has_begun(cli, process):
    time.sleep(0.2)  # a call takes the machine from the worker that it waits for
    assert process.poll() is None, (cli.folder / "worker.err").read_text()
    listed = cli("workers", "--json")
    return listed.code == 0 and listed.items


def printed(cli):
    return (cli.folder / "worker.out").read_text()


def status(store, id):
    return store.find_run(id).status


def test_a_submitted_run_is_stored_and_listed_with_what_it_needs(cli, store):
    done = cli("submit", "trip-42", "--agent", "planner", "--run-id", "r-1", "--prompt", '{"to": "Lisbon"}')
    assert (done.code, done.out) == (0, "submitted run r-1 on thread trip-42\n")
    assert done.err == "outlive: no living worker has a handler for 'planner'\n"
    row = cli("runs").out.splitlines()[1]
    assert "no living worker has a handler for 'planner'" in row
    (item,) = cli("runs", "show", "r-1", "--json").items
    assert (item["prompt"], item["status"], item["attempt"]) == ({"to": "Lisbon"}, "released", 0)
    assert item["has_worker"] is False
    again = cli("submit", "trip-42", "--agent", "planner", "--run-id", "r-1")
    assert (again.code, again.out) == (0, "run r-1 was submitted before, and is released\n")
    elsewhere = cli("submit", "other", "--run-id", "r-1")
    assert (elsewhere.code, len(elsewhere.err.splitlines())) == (2, 1)
    assert len(cli("runs", "--json").items) == 1


def test_the_options_of_submit_are_those_of_the_run(cli, store):
    (item,) = cli(
        "submit", "t", "--agent", "planner", "--prompt", "go there", "--priority", 7, "--not-before", "2h",
        "--attribute", "user=ada", "--attribute", "n=1", "--code-version", "v2", "--max-attempts", 2, "--backoff", "1min",
        "--namespace", "sub", "--json",
    ).items  # fmt: skip
    assert (item["status"], item["priority"], item["code_version"]) == ("waiting", 7, "v2")
    assert (item["waits"]["reason"], item["has_worker"], item["max_attempts"]) == ("start", None, 2)
    run = store.find_run(item["id"])
    assert (run.prompt, run.attributes, run.backoff_s, run.namespace) == (
        "go there", {"user": "ada", "n": 1}, 60, "sub",
    )  # fmt: skip
    assert "waits for its time to start, since " in cli("runs").out
    late = cli("submit", "t", "--not-before", "2099-01-01T12:00+00:00")
    assert "; it starts in " in late.out
    assert cli("submit", "t", "--prompt", "-", "--run-id", "r-2", "-q", stdin="[1]\n").out == "r-2\n"
    assert store.find_run("r-2").prompt == [1]
    for wrong in (
        ["--not-before", "soon"],
        ["--attribute", "user"],
        ["--backoff", "0s"],
        ["--priority", "x"],
    ):
        refused = cli("submit", "t", *wrong)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1), wrong


@pytest.mark.parametrize("handlers", ["SYNC", "ASYNC"])
def test_a_worker_takes_up_what_is_submitted_and_drains_at_sigterm(cli, store, handlers):
    with working(cli, "--concurrency", "3", "--json", handlers=handlers) as process:
        for number in range(5):
            name = f"r-{number}"
            done = cli(
                "submit", f"t-{number}", "--agent", "planner", "--run-id", name, "--prompt", '{"to": 1}'
            )
            assert (done.code, done.err) == (0, "")  # nothing to note: a worker has a handler
        eventually(lambda: all(status(store, f"r-{number}") == "completed" for number in range(5)))
        assert store.find_run("r-4").result == "to 1"
        (item,) = cli("workers", "--json").items
        assert (item["pid"], item["capacity"], item["is_draining"]) == (process.pid, 3, False)
        assert "planner" in item["agents"]
        heading, row = cli("workers").out.splitlines()
        assert heading.split() == ["WORKER", "STATUS", "AGENTS", "BUSY", "PROCESS", "STARTED"]
        assert row.split()[0] == item["id"]
        assert f"{process.pid}@" in row
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert cli("workers").out == "no living workers\n"
    lines = [json.loads(line) for line in printed(cli).splitlines()]  # what handlers print is not there
    assert sorted(line["item"]["id"] for line in lines) == [f"r-{number}" for number in range(5)]
    assert {(line["command"], line["item"]["outcome"]) for line in lines} == {("worker", "resumed")}


@pytest.mark.parametrize("handlers", ["SYNC", "ASYNC"])
def test_a_run_that_does_not_end_in_time_is_given_back(cli, store, handlers):
    with working(cli, "--grace", "0.1s", handlers=handlers) as process:
        cli("submit", "t", "--agent", "slow", "--run-id", "r-1")
        eventually(lambda: store.steps("r-1"), "the run does not begin")
        process.send_signal(signal.SIGTERM)
        eventually(lambda: status(store, "r-1") == "released")
        process.wait(PATIENCE_S)
    assert store.find_run("r-1").failures == 0


def test_ctrl_c_gives_runs_back_at_once(cli, store):
    with working(cli) as process:
        cli("submit", "t", "--agent", "slow", "--run-id", "r-1")
        eventually(lambda: store.steps("r-1"), "the run does not begin")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert status(store, "r-1") == "released"
    assert "Traceback" not in (cli.folder / "worker.err").read_text()


@pytest.mark.parametrize("handlers", ["SYNC", "ASYNC"])
def test_a_run_is_reported_when_it_leaves_its_handler(cli, store, handlers):
    with working(cli, "--interval", "1h", handlers=handlers) as process:
        for name in ("r-1", "r-2"):
            cli("submit", name, "--agent", "planner", "--run-id", name, "--prompt", '{"to": 1}')
            eventually(lambda name=name: f"resumed  {name}  planner  completed" in printed(cli))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_question_is_answered_and_the_worker_resumes_its_run(cli, store):
    with working(cli, "--interval", "0.2s") as process:
        cli("submit", "order-7", "--agent", "refunds", "--run-id", "refund-7")
        eventually(lambda: status(store, "refund-7") == "waiting")
        assert cli("questions", "-q").out == "refund-7 'approve?'\n"
        assert cli("answer", "refund-7", "approve?", "yes").code == 0
        eventually(lambda: status(store, "refund-7") == "completed")
        assert store.find_run("refund-7").result == "paid"
        cli("submit", "t", "--agent", "broken", "--run-id", "r-2")
        eventually(lambda: "failed  r-2  broken  RuntimeError: no line" in printed(cli))
        cli("submit", "t", "--agent", "other", "--run-id", "r-3")
        assert "no living worker has a handler for 'other'" in cli("runs").out
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert "suspended  refund-7  refunds  waits for 'approve?'" in printed(cli)
    assert "resumed  refund-7  refunds  completed" in printed(cli)


@pytest.mark.parametrize(
    "arguments, fix",
    [
        ([], "Missing option '--handlers'"),
        (["--handlers", "handlers:NOPE"], "has no 'NOPE'"),
        (["--handlers", "handlers:SYNC", "--limit", "planner"], "--limit takes AGENT=N"),
        (["--handlers", "handlers:SYNC", "--limit", "planner=0"], "--limit takes AGENT=N"),
        (["--handlers", "handlers:SYNC", "--grace", "soon"], "--grace takes a duration"),
        (["--handlers", "handlers:SYNC", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_wrong_options_of_a_worker_are_explained(program, arguments, fix):
    (program.folder / "handlers.py").write_text(HANDLERS)
    outlive.open(f"sqlite:///{program.folder}/agent.db").close()
    refused = program("worker", *arguments)
    assert refused.code == 2
    assert fix in refused.err


def test_submit_creates_the_store(program):
    url = f"sqlite:///{program.folder}/new.db"
    done = program("submit", "t", "--run-id", "r-1", "--store", url)
    assert (done.code, done.out) == (0, "submitted run r-1 on thread t\n")
    with outlive.open(url, create=False) as store:
        assert status(store, "r-1") == "released"


@pytest.mark.parametrize("handlers", ["SYNC", "ASYNC"])
def test_a_worker_creates_the_store(program, handlers):
    cli = command_line(program, f"sqlite:///{program.folder}/new.db")
    with working(cli, handlers=handlers) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("handlers", ["SYNC", "ASYNC"])
def test_a_worker_announces_no_start_without_a_store(program, handlers):
    (program.folder / "handlers.py").write_text(HANDLERS)
    url = f"sqlite:///{program.folder}/no-folder/new.db"
    refused = program("worker", "--handlers", f"handlers:{handlers}", "--store", url)
    assert refused.code != 0
    assert "starts" not in refused.err


def test_limits_are_passed_to_the_worker_and_what_waits_for_it_is_no_problem(cli, store):
    with working(cli, "--limit", "slow=1", "--limit-tenant", "5") as process:
        for number in range(3):
            cli("submit", f"t-{number}", "--agent", "slow", "--run-id", f"r-{number}")
        cli("submit", "u", "--agent", "planner", "--run-id", "p", "--prompt", '{"to": 1}')
        eventually(lambda: status(store, "p") == "completed")
        running = [run.id for run in store.runs(status="running")]
        assert len(running) <= 1
        eventually(lambda: store.steps("r-0"))
        assert [status(store, f"r-{number}") for number in range(3)] == ["running", "released", "released"]
        finding = check_of_runs(cli)
        assert (finding["level"], finding["message"]) == ("ok", "1 live, 2 released")
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    assert check_of_runs(cli)["level"] == "warning"  # nobody claims them now


def check_of_runs(cli):
    (finding,) = [item for item in cli("doctor", "--json").items if item["check"] == "runs"]
    return finding


def test_handlers_may_be_plain_and_async_functions_in_one_dict(cli, store):
    with open(cli.folder / "handlers.py", "a") as file:
        file.write('MIXED = {"planner": plan, "trips": plan_async}\n')
    for agent in ("planner", "trips"):
        store.submit(f"trip of {agent}", run_id=agent, agent=agent, prompt={"to": "Lisbon"})
    done = cli("recover", "--handlers", "handlers:MIXED", "--json")
    assert done.code == 0, done.err
    assert [store.find_run(agent).result for agent in ("planner", "trips")] == ["to Lisbon"] * 2
