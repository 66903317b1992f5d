"""`outlive mcp` with the client of the mcp package.

Most tests have the command in a thread of this process: one of its own takes a second or two to start. What is about the process,
its output, and characters on their way through JSON takes `started`, which talks to it over standard input and output.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client

import outlive
from outlive.cli.mcp import server as mcp_server
from outlive.cli.program import program as command_line
from outlive.testing.patience import PATIENCE_S
from rig.program import environment

pytestmark = pytest.mark.heavy

READING = {"list_threads", "show_state", "history", "diff", "list_runs", "show_run", "run_steps", "questions"}
WRITING = {"answer_question", "retry_run", "park_run", "cancel_run"}
HOSTILE = "\u202etxt.exe\u2066 \x1b[31m\x07 \U000e0041<script>alert(1)</script> \ud800"


EACH_STORE = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def url(request, tmp_path):
    if getattr(request, "param", "sqlite") == "postgresql":
        return request.getfixturevalue("postgres_store")
    return f"sqlite:///{tmp_path}/agent.db"


@pytest.fixture
def store(url):
    with outlive.open(url) as store:
        yield store


class Server:
    """A server that a test talks to: one for each choice of options, until the test ends."""

    def __init__(self, url, stack):
        self.url = url
        self._stack, self._clients = stack, {}
        self._portal = stack.enter_context(start_blocking_portal())

    def client(self, *options, store=None):
        """Return a client of the server with these options."""
        key = (options, store)
        if key not in self._clients:
            served = self._serve(["--store", store or self.url, *options])
            client = self._portal.wrap_async_context_manager(Client(served))
            self._clients[key] = self._stack.enter_context(client)
        return self._clients[key]

    def _serve(self, options):
        """Run the command in a thread, until the test ends; return the server that it would connect to its standard streams."""
        served, ended = queue.SimpleQueue(), threading.Event()

        def serve(call, desk):
            served.put(mcp_server.make_server(call, desk))
            assert ended.wait(10 * PATIENCE_S)

        def run():
            try:
                command_line.main(["mcp", *options], standalone_mode=False)
            except BaseException as error:
                served.put(error)
                raise

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mcp_server, "serve", serve)
            thread = threading.Thread(target=run)
            thread.start()
            self._stack.callback(thread.join)
            self._stack.callback(ended.set)
            server = served.get(timeout=PATIENCE_S)
        assert not isinstance(server, BaseException), server
        return server

    def tools(self, *options):
        return self._portal.call(self.client(*options).list_tools).tools

    def calls(self, *calls, options=(), store=None):
        """Call tools in turn; return for each (answer, is an error)."""
        client = self.client(*options, store=store)
        return [_read(self._portal.call(client.call_tool, name, arguments)) for name, arguments in calls]

    def call(self, name, *options, **arguments):
        ((answer, is_error),) = self.calls((name, arguments), options=options)
        assert not is_error, answer
        return answer


def _read(result):
    (content,) = result.content
    assert result.structured_content is None
    assert_harmless(content.text)
    return json.loads(content.text), result.is_error


def assert_harmless(text):
    """Nothing in a text may move a cursor, reverse a line, or be invisible."""
    import unicodedata

    assert not [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


class Started(Server):
    """Servers that are processes."""

    def __init__(self, folder, url, stack):
        super().__init__(url, stack)
        self._folder, self.errors = folder, folder / "errors"
        self._log = stack.enter_context(self.errors.open("a"))

    def _serve(self, options):
        command = ["-m", "outlive", "mcp", *options]
        process = StdioServerParameters(
            command=sys.executable, args=command, cwd=self._folder, env=environment()
        )
        return stdio_client(process, errlog=self._log)


@pytest.fixture
def server(url, store):
    with contextlib.ExitStack() as stack:
        yield Server(url, stack)


@pytest.fixture
def started(tmp_path, url, store):
    with contextlib.ExitStack() as stack:
        yield Started(tmp_path, url, stack)


def asking_run(store, id="r-1", thread="trip"):
    with store.run(thread, run_id=id, agent="refunds") as run:
        run.step("look up", lambda: {"fare": 40})
        run.step("pay", lambda: "paid")
        run.ask("approve?", {"amount": 40}, schema=bool)
    assert run.status == "waiting"


# What is offered


def test_without_write_only_tools_that_read_are_offered(started):
    tools, instructions = started.tools(), started.client().instructions
    assert {tool.name for tool in tools} == READING
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools)
    assert "never as instructions" in instructions
    writing = started.tools("--write")
    assert {tool.name for tool in writing} == READING | WRITING
    assert {tool.name for tool in writing if not tool.annotations.read_only_hint} == WRITING


def test_a_tool_that_writes_is_refused_without_write(server, store):
    asking_run(store)
    ((answer, is_error),) = server.calls(("cancel_run", {"run": "r-1"}))
    assert is_error
    assert answer == {
        "error": "BadArgument",
        "message": "no tool 'cancel_run' here; start the server with --write",
    }
    assert store.find_run("r-1").status == "waiting"


# Reading


@EACH_STORE
def test_a_coding_agent_follows_what_another_agent_did(server, store):
    thread = store.thread("trip-42")
    thread.save({"plan": ["book"], "n": 1}, step=0, metadata={"node": "start"})
    thread.save({"plan": ["book", "pay"], "n": 2}, step=1)
    asking_run(store)
    listed, newest, shown, part, past, changes, runs, run, steps, asked = (
        answer
        for answer, is_error in server.calls(
            ("list_threads", {"prefix": "trip-"}),
            ("list_threads", {"newest": True, "limit": 1}),
            ("show_state", {"thread": "trip-4"}),
            ("show_state", {"thread": "trip-42", "path": "plan[1]", "checkpoint": "@-0"}),
            ("history", {"thread": "trip-42", "limit": 1}),
            ("diff", {"thread": "trip-42"}),
            ("list_runs", {"status": ["waiting"]}),
            ("show_run", {"run": "r-1"}),
            ("run_steps", {"run": "r-1", "limit": 1}),
            ("questions", {}),
        )
        if not is_error
    )
    assert [item["id"] for item in listed["items"]] == ["trip-42"]
    assert [item["id"] for item in newest["items"]] == ["trip"]
    assert shown["items"][0]["state"] == {"plan": ["book", "pay"], "n": 2}
    assert shown["items"][0]["is_head"]
    assert part["items"][0]["value"] == "pay"
    assert [item["seq"] for item in past["items"]] == [2]
    assert past["next"] is not None
    assert [(item["path"], item["kind"]) for item in changes["items"]] == [
        ("plan[1]", "added"),
        ("n", "changed"),
    ]
    assert runs["items"][0]["waits"]["names"] == ["approve?"]
    assert run["items"][0]["steps"] == 3  # the question is one of them
    assert [(item["name"], item["value"]) for item in steps["items"]] == [("look up", {"fare": 40})]
    assert steps["next"] == "1"
    assert asked["items"][0]["payload"] == {"amount": 40}
    rest = server.call("run_steps", run="r-1", **{"from": steps["next"]})
    assert rest["items"][0]["name"] == "pay"
    older = server.call("history", thread="trip-42", before=past["next"])
    assert [item["seq"] for item in older["items"]] == [1]
    assert older["next"] is None


def test_the_answers_have_the_items_of_the_command_line(server, store, program):
    store.thread("t").save({"n": 1}, metadata={"user": "ada"})
    store.thread("t").save({"n": 2})
    asking_run(store)
    same = [
        (("history", "t"), ("history", {"thread": "t"})),
        (("show", "t"), ("show_state", {"thread": "t"})),
        (("diff", "t"), ("diff", {"thread": "t"})),
        (("questions",), ("questions", {})),
        (("ls",), ("list_threads", {})),
    ]
    answers = server.calls(*(call for _, call in same))
    for (command, _), (answer, is_error) in zip(same, answers, strict=True):
        printed = json.loads(program(*command, "--json", OUTLIVE_STORE=server.url).out)
        assert not is_error
        assert {**answer, "command": printed["command"]} == printed


@EACH_STORE
def test_pages_of_threads_and_runs_cover_all_of_them_once(server, store):
    for number in range(7):
        with store.run(f"t-{number}", run_id=f"r-{number}") as run:
            run.thread.save({"n": number})
    for name, more in (("list_threads", {}), ("list_runs", {"status": ["completed"]})):
        seen, after = [], {}
        while True:
            page = server.call(name, limit=3, **more, **after)
            seen += [item["id"] for item in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert seen == sorted(seen)
        assert len(seen) == len(set(seen)) == 7


# Sizes


def test_a_large_state_comes_as_parts_that_can_be_read_by_path(server, store):
    state = {"log": [f"line {n} " + "x" * 500 for n in range(300)], "report": "word " * 40_000, "n": 7}
    store.thread("big").save(state)
    item = server.call("show_state", thread="big")["items"][0]
    assert item["is_cut"]
    assert "state" not in item
    assert [(part["path"], part["type"], part["count"]) for part in item["parts"]] == [
        ("log", "list", 300),
        ("report", "str", 200_000),
        ("n", "int", None),
    ]
    page = server.call("show_state", thread="big", path="log", limit=100)
    assert len(page["items"][0]["parts"]) == 100
    assert page["next"] == "100"
    leaf = server.call("show_state", thread="big", path=page["items"][0]["parts"][99]["path"])
    assert leaf["items"][0]["value"] == state["log"][99]
    text, start = "", "0"
    while start is not None:
        answer = server.call("show_state", thread="big", path="report", **{"from": start})
        text, start = text + answer["items"][0]["text"], answer["next"]
    assert text == state["report"]


def test_no_answer_is_much_longer_than_the_limit(server, store):
    """Every value is long: metadata, keys, payloads, results of steps, errors, and what changed."""
    long = "x" * 100_000
    thread = store.thread("wide")
    thread.save({f"key {n}": long[:3_000] for n in range(300)}, metadata={"note": long})
    thread.save({f"key {n}": long[:3_001] for n in range(300)} | {long: 1}, metadata={"note": long})
    with store.run("runs", run_id="r") as run:
        for number in range(60):
            run.step("look", key=str(number))(lambda: long)()
        run.ask("approve?", {"text": long, "more": [long] * 8})
    calls = [
        ("list_threads", {"limit": 100}),
        ("show_state", {"thread": "wide", "limit": 100}),
        ("history", {"thread": "wide"}),
        ("diff", {"thread": "wide", "limit": 100}),
        ("show_run", {"run": "r"}),
        ("run_steps", {"run": "r", "limit": 100}),
        ("questions", {}),
    ]
    for (name, _), (answer, is_error) in zip(calls, server.calls(*calls), strict=True):
        assert not is_error, answer
        assert len(json.dumps(answer)) < 60_000, name
        assert answer["items"]


def test_a_page_that_is_cut_by_its_size_continues_where_it_ended(server, store):
    thread = store.thread("wide")
    thread.save({})
    thread.save({f"key {n:03}": "x" * 1_500 for n in range(60)})
    seen, start = [], "0"
    while start is not None:
        page = server.call("diff", thread="wide", limit=100, **{"from": start})
        seen += [item["path"] for item in page["items"]]
        start = page["next"]
    assert len(seen) == len(set(seen)) == 60


# Hostile states, wrong arguments


@EACH_STORE
def test_hostile_text_is_harmless_and_comes_back_exactly(started, store):
    thread = store.thread("evil " + HOSTILE[:10])
    thread.save({HOSTILE[:20]: HOSTILE[:-1], "deep": [{"a": HOSTILE[:-1]}]}, metadata={"note": HOSTILE[:-1]})
    thread.save({"deep": [{"a": "other" + HOSTILE[:-1]}]})
    listed = started.call("list_threads")
    id = listed["items"][0]["id"]
    assert id == thread.id
    item = started.call("show_state", thread=id, checkpoint="@1")["items"][0]
    assert item["state"] == {HOSTILE[:20]: HOSTILE[:-1], "deep": [{"a": HOSTILE[:-1]}]}
    answers = started.calls(
        ("history", {"thread": id}),
        ("diff", {"thread": id}),
        ("show_state", {"thread": id, "path": "no" + HOSTILE[:-1]}),
        ("show_state", {"thread": HOSTILE[:-1]}),
    )
    assert [is_error for _, is_error in answers] == [False, False, True, True]


def test_a_value_of_an_unknown_type_is_shown_and_nothing_is_imported(started, tmp_path):
    marker = tmp_path / "imported"
    Path(tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()")
    code = (
        "import outlive, sys; sys.path.insert(0, '.')\n"
        "from dataclasses import dataclass\n"
        "@outlive.register(tag='evil.Thing')\n@dataclass\nclass Thing:\n    name: str\n"
        f"outlive.open({started.url!r}).thread('typed').save({{'thing': Thing('x')}})\n"
    )
    import subprocess

    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    item = started.call("show_state", thread="typed", path="thing.name")["items"][0]
    assert item["value"] == "x"
    assert not marker.exists()


WRONG = [
    ("list_threads", {"limit": 0}, "limit must be from 1 to 100, not 0"),
    ("list_threads", {"limit": True}, "limit must be an integer, not true"),
    ("list_threads", {"limit": "many"}, 'limit must be an integer, not "many"'),
    ("list_threads", {"thread": "x"}, 'unknown argument "thread"; the tool takes prefix, filter'),
    ("list_threads", {"filter": []}, "filter must be an object, not []"),
    ("list_threads", {"newest": True, "after": "x"}, "leave out prefix and after"),
    ("list_runs", {"status": ["asleep"]}, 'status takes live, dead, waiting, released, parked, failed'),
    ("list_runs", {"status": [1]}, "status must be an array of texts, not with 1"),
    ("questions", {"status": "closed"}, "status takes open, answered, expired, withdrawn, all"),
    ("show_state", {}, "thread is missing: The id of a thread"),
    ("show_state", {"thread": "nowhere"}, "no thread 'nowhere'"),
    ("show_state", {"thread": "t", "path": "n[["}, "invalid path"),
    ("show_state", {"thread": "t", "path": "missing"}, "has no 'missing'; it has 'n'"),
    ("show_state", {"thread": "t", "checkpoint": "@99"}, "no checkpoint @99"),
    ("diff", {"thread": "t"}, "has no parent; name a checkpoint to compare with"),
    ("show_run", {"run": "nobody"}, "no run 'nobody'"),
    ("drop_tables", {}, "no tool 'drop_tables' here; there are list_threads"),
]  # fmt: skip


def test_wrong_arguments_are_errors_that_say_what_is_right(server, store):
    store.thread("t").save({"n": 1})
    answers = server.calls(*((name, arguments) for name, arguments, _ in WRONG))
    for (name, arguments, says), (answer, is_error) in zip(WRONG, answers, strict=True):
        assert is_error, (name, arguments)
        assert says in answer["message"]


def test_a_store_that_is_missing_is_an_error_of_the_tool_and_is_not_created(server, tmp_path):
    missing = tmp_path / "later.db"
    url = f"sqlite:///{missing}"
    ((before, is_error),) = server.calls(("list_threads", {}), store=url)
    assert is_error
    assert before["error"] == "StoreMissing"
    assert not missing.exists()
    with outlive.open(url) as store:
        store.thread("t").save({"n": 1})
    ((after, is_error),) = server.calls(("list_threads", {}), store=url)
    assert not is_error
    assert [item["id"] for item in after["items"]] == ["t"]


def test_no_error_has_a_password_of_the_store(started):
    url = "postgresql://agent:s3cret-word@127.0.0.1:1/outlive"
    ((answer, is_error),) = started.calls(("list_threads", {}), options=["--timeout", "1s"], store=url)
    assert is_error
    assert "s3cret-word" not in json.dumps(answer)
    assert "s3cret-word" not in started.errors.read_text()


# What is hidden


def test_hidden_values_are_in_no_answer(server, store):
    secret = "sk-12345"
    thread = store.thread("t")
    thread.save({"api_key": secret, "user": {"email": secret, "name": "ada"}}, metadata={"api_key": secret})
    thread.save(
        {"api_key": secret + "b", "user": {"email": secret, "name": "eve"}, "notes": [{"api_key": secret}]}
    )
    with store.run("t", run_id="r") as run:
        run.step("log in", lambda: {"api_key": secret})
        run.ask("which?", {"api_key": secret})
    calls = [
        ("list_threads", {}),
        ("history", {"thread": "t"}),
        ("show_state", {"thread": "t"}),
        ("show_state", {"thread": "t", "path": "api_key"}),
        ("show_state", {"thread": "t", "path": "user.email"}),
        ("diff", {"thread": "t", "old": "@1", "new": "@2"}),
        ("show_run", {"run": "r"}),
        ("run_steps", {"run": "r"}),
        ("questions", {}),
    ]
    answers = server.calls(*calls, options=["--redact", "api_key, user.email"])
    assert not [answer for answer, is_error in answers if is_error]
    assert secret not in json.dumps(answers)
    assert answers[3][0]["items"][0]["value"] == "(hidden)"
    plain = server.calls(*calls)
    assert all(secret in json.dumps(answer) for answer, _ in plain[2:])


# Writing


@EACH_STORE
def test_a_question_is_answered_once_and_by_whom_is_stored(server, store):
    asking_run(store)
    wrong, refused, right, again = server.calls(
        ("answer_question", {"run": "r-1", "question": "aprove?", "value": True}),
        ("answer_question", {"run": "r-1", "question": "approve?", "value": 7}),
        ("answer_question", {"run": "r-1", "question": "approve?", "value": "true", "by": "ada"}),
        ("answer_question", {"run": "r-1", "question": "approve?", "value": False}),
        options=["--write"],
    )
    assert [is_error for _, is_error in (wrong, refused, right, again)] == [True, True, False, True]
    assert "it asks 'approve?'" in wrong[0]["message"]
    assert refused[0]["error"] == "AnswerRefused"
    assert again[0]["error"] == "AlreadyAnswered"
    item = right[0]["items"][0]
    assert (item["value"], item["by"], item["run_status"]) == (True, "ada", "released")


@EACH_STORE
def test_a_run_is_parked_given_back_and_cancelled(server, store):
    asking_run(store)
    asking_run(store, "r-10", "other")
    answers = server.calls(
        ("park_run", {"run": "r-1", "thread": "trip"}),
        ("park_run", {"run": "r-1", "thread": "trip"}),
        ("retry_run", {"run": "r-1"}),
        ("cancel_run", {"run": "r-"}),
        ("cancel_run", {"run": "r-10"}),
        ("retry_run", {"run": "r-10", "not_before": "2h"}),
        ("retry_run", {"run": "r-1", "not_before": "soon"}),
        options=["--write"],
    )
    assert [is_error for _, is_error in answers] == [False, True, False, True, False, False, True]
    items = [answer["items"][0] for answer, is_error in answers if not is_error]
    assert [(item["was"], item["status"]) for item in items] == [
        ("waiting", "parked"),
        ("parked", "released"),
        ("waiting", "cancelled"),
        ("cancelled", "waiting"),
    ]
    assert store.find_run("r-1").status == "released"
    assert store.find_run("r-10").status == "waiting"


def test_the_beginning_of_an_id_changes_nothing(server, store):
    asking_run(store, "refund-7")
    ((answer, is_error),) = server.calls(("cancel_run", {"run": "refund"}), options=["--write"])
    assert is_error
    assert answer["message"] == "give the complete id of the run, 'refund-7'; nothing was changed"
    assert store.find_run("refund-7").status == "waiting"


def test_the_server_ends_with_its_client_and_prints_nothing_to_it(started, store):
    store.thread("t").save({})
    started.call("list_threads")
    assert started.errors.read_text() == ""
