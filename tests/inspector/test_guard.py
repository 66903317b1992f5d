"""What the inspector refuses and hides. Each measure has a test that fails without it."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import outlive
from outlive.inspector import app
from outlive.inspector.access import Access
from outlive.inspector.guard import LOOPBACK
from outlive.inspector.live import Live
from outlive.inspector.site import Site
from outlive.view.opened_store import OpenedStore
from rig.inspected import HOSTILE, act, client_of, form_token

PAGES = ["/", "/threads", "/thread?id=trip-42", "/runs", "/run?id=refund-7", "/store", "/search?q=trip"]
FOLDER = Path(outlive.__file__).parent / "inspector"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:7788", ""]
)
def test_another_host_is_refused_before_routing(store, host):
    client = client_of(store, hosts=LOOPBACK)
    for path in (*PAGES, "/now.json", "/static/style.css", "/healthz", "/nowhere", "/x/../threads"):
        answer = client.get(path, headers={"host": host})
        assert (answer.status_code, "trip" in answer.text) == (421, False), path


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7788", "127.0.0.1:1", "[::1]:7788"])
def test_names_of_this_machine_are_allowed(store, host):
    assert client_of(store, hosts=LOOPBACK).get("/", headers={"host": host}).status_code == 200


def test_a_page_of_another_site_cannot_read(store):
    client = client_of(store, hosts=LOOPBACK)
    assert client.get("/now.json", headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get("/now.json", headers={"origin": "null"}).status_code == 403
    assert client.get("/now.json", headers={"origin": "http://localhost:7788"}).status_code == 200


def test_the_token_works_once_and_becomes_a_strict_cookie(store):
    client = client_of(store, token="secret-token")
    assert client.get("/threads").status_code == 403
    assert client.get("/threads?token=wrong").status_code == 403
    answer = client.get("/threads?token=secret-token&order=id")
    assert (answer.status_code, answer.headers["location"]) == (303, "/threads?order=id")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert cookie.startswith("outlive-7788=")  # cookies know no ports
    assert client.get("/threads").status_code == 200
    client.cookies.clear()
    assert client.get("/threads?token=secret-token").status_code == 403


def test_an_odd_cookie_of_another_server_of_this_machine_locks_nobody_out(store):
    client = client_of(store, token="t")
    cookie = client.get("/?token=t").headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    for odd in ('theme={"dark": true}', "a[b]=1", "a b=c", "broken", "=x", "a=\xfc"):
        headers = {"cookie": f"{odd}; {cookie}".encode("latin-1")}
        assert client.get("/threads", headers=headers).status_code == 200, odd
    assert client.get("/threads", headers={"cookie": "outlive-7788="}).status_code == 403


def test_the_token_never_leads_to_another_site(store):
    answer = client_of(store, token="t").get("http://localhost:7788//evil.example/?token=t")
    assert answer.headers["location"] == "/evil.example/"


SAME = {"sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    "headers",
    [{}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "none"}, {"origin": "http://evil.example"}, {"origin": "null"}],
)  # fmt: skip
def test_an_act_of_another_site_is_refused(store, writer, headers):
    answer = writer.post("/act/cancel?id=refund-7", data={"form_token": form_token(writer)}, headers=headers)
    assert answer.status_code == 403
    assert store.find_run("refund-7").status == "waiting"


@pytest.mark.parametrize("token", ["", "wrong"])
def test_an_act_needs_the_token_of_the_form(store, writer, token):
    answer = writer.post("/act/cancel?id=refund-7", data={"form_token": token}, headers=SAME)
    assert answer.status_code == 403
    assert store.find_run("refund-7").status == "waiting"


def test_reading_never_acts(store, client, writer):
    assert act(client, "cancel", id="refund-7").status_code == 403
    assert client.get("/ask/cancel?id=refund-7").status_code == 403
    assert writer.get("/act/cancel?id=refund-7").status_code == 405
    assert store.find_run("refund-7").status == "waiting"


@pytest.mark.parametrize(
    "path", [*PAGES, "/now.json", "/static/inspector.js", "/nowhere", "/export?id=trip-42"]
)
def test_every_answer_has_the_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "trusted-types 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    names = ("cache-control", "referrer-policy", "x-content-type-options", "cross-origin-resource-policy")
    assert [headers[name] for name in names] == ["no-store", "no-referrer", "nosniff", "same-origin"]


@pytest.mark.parametrize("view", ["chat", "state", "diff", "writes", "raw", "metadata"])
def test_hostile_texts_are_harmless(client, view):
    text = client.get("/thread", params={"id": HOSTILE, "view": view}).text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert r"\u202e" in text


@pytest.mark.parametrize(
    "path", ["/", "/threads", "/search?q=alert&states=1", "/threads.json", "/runs?all=1"]
)
def test_lists_have_no_hostile_text(client, path):
    text = client.get(path).text
    assert "\u202e" not in text
    assert "<script>alert" not in text.replace("\\", "") or path.endswith(".json")


def test_an_act_on_a_hostile_id_names_it_exactly(store, writer):
    page = writer.get("/ask/fork", params={"id": HOSTILE}).text
    place = re.search(r'action="(/act/[^"]+)"', page)[1].replace("&amp;", "&")
    answer = writer.post(place, data={"form_token": form_token(writer), "new": "copy"}, headers=SAME)
    assert answer.status_code == 303
    assert store.thread("copy").load() == store.thread(HOSTILE).load()


def test_templates_and_scripts_insert_no_markup():
    for path in FOLDER.glob("templates/*.html"):
        text = path.read_text()
        assert not re.search(
            r"\|\s*safe\b|autoescape|<script(?! type=\"module\" src)|\son\w+=|style=", text
        ), path
    for path in FOLDER.glob("static/*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        ), path


def test_redaction_hides_values_everywhere(store):
    with store.run("secrets", run_id="r", agent="a", prompt={"api_key": "sk-prompt"}) as run:
        run.step("fetch", lambda: {1: 2, "api_key": "sk-in-step"})
    store.thread("secrets").set_metadata({"api_key": "sk-in-metadata"})
    client = client_of(store, redact=["api_key", "user.email"], write=True)
    views = [f"/thread?id=secrets&view={view}" for view in ("state", "diff", "raw", "metadata", "writes")]
    others = ["/threads", "/threads.json", "/show.json?id=secrets", "/show.json?id=secrets&path=api_key", "/run?id=r", "/run.json?id=r", "/search?q=sk-&states=1"]  # fmt: skip
    others += [
        "/state.json?id=secrets",
        "/state.json?id=secrets&path=user",
        "/detail?id=secrets&view=state",
        "/tree.json?id=secrets",
        "/search.json?q=sk-&states=1",
        "/history.json?id=secrets",
        "/export?id=secrets",
        "/ask/edit?id=secrets",
    ]
    for path in [*views, *others]:
        text = client.get(path).text
        assert "ada@example.org" not in text, path
        assert not re.search(r"sk-(very|prompt|in)", text), path
    assert "(hidden)" in client.get("/show.json?id=secrets").text


def test_redaction_hides_what_is_in_writes_questions_and_texts(store):
    """The name of a channel, a default in the schema of a form, and JSON in a text lead to values too."""
    arguments = '{"to": "bank", "api_key": "sk-argument"}'
    calls = [{"id": "c", "function": {"name": "pay", "arguments": arguments}}]
    thread = store.thread("pay")
    thread.save({"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}, id="one")
    thread.write("task", [("api_key", "sk-write"), ("plan", {"api_key": "sk-inner"})])
    schema = {"type": "object", "properties": {"api_key": {"type": "string", "default": "sk-default"}}}
    with contextlib.suppress(outlive.RunSuspended), store.run("ask", run_id="ask", agent="a") as run:
        run.ask("key?", {"api_key": "sk-payload"}, schema=schema)
    client = client_of(store, redact=["api_key"], write=True)
    paths = [f"/thread?id=pay&view={view}" for view in ("chat", "state", "raw", "writes", "diff")]
    paths += ["/show.json?id=pay", "/state.json?id=pay&path=messages[0]", "/search?q=sk-&states=1", "/", "/questions.json", "/ask/answer?run=ask&name=key?"]  # fmt: skip
    for path in paths:
        assert not re.search(r"sk-(argument|write|inner|default|payload)", client.get(path).text), path
    assert "bank" in client.get("/thread?id=pay").text
    assert "sk-argument" in client_of(store).get("/thread?id=pay").text


def test_marks_of_live_pages_tell_nothing_of_hidden_values(store, monkeypatch):
    marked = []
    monkeypatch.setattr("outlive.inspector.live._digest", lambda value: marked.append(value) or "")
    with contextlib.suppress(outlive.RunSuspended), store.run("ask", run_id="ask", agent="a") as run:
        run.ask("key?", {"api_key": "sk-payload"})
    access = Access.of(OpenedStore.beside(store), write=False, redact=["api_key"])
    Live(Site(access))._read(("now", "", "", ""))
    assert "key?" in str(marked)
    assert "sk-payload" not in str(marked)


def test_a_large_form_is_refused(writer):
    answer = writer.post("/act/fork", content=b"x=" + b"a" * (5 << 20), headers=SAME)
    assert answer.status_code == 413


def test_a_large_state_is_loaded_only_on_request(store, monkeypatch):
    monkeypatch.setattr("outlive.inspector.pages.place.MAX_STATE_BYTES", 10_000)
    store.thread("big").save({"text": "needle" + "a" * 20_000})
    client = client_of(store)
    assert "Load it" in client.get("/thread?id=big").text
    for path in ("/show.json?id=big", "/state.json?id=big", "/diff.json?id=big"):
        answer = client.get(path)
        assert answer.status_code == 400
        assert "needle" not in answer.text
    assert "needle" in client.get("/thread?id=big&load=1").text


def test_a_bug_shows_and_logs_nothing_of_a_state(store, monkeypatch, caplog, capfd):
    def broken(*arguments, **options):
        raise RuntimeError("sk-very-secret")

    monkeypatch.setattr("outlive.inspector.pages.detail.read_content", broken)
    with caplog.at_level(logging.DEBUG):
        answer = client_of(store).get("/thread?id=trip-42")
    assert (answer.status_code, "RuntimeError" in answer.text) == (500, True)
    assert "sk-very" not in answer.text + caplog.text + "".join(capfd.readouterr())


def test_it_works_under_a_prefix_and_behind_a_login_of_the_program(store):
    program = FastAPI()
    program.mount("/outlive", app(store))
    client = TestClient(program, base_url="https://team.example")
    text = client.get("/outlive/thread?id=trip-42").text
    places = re.findall(r'(?:href|src|action)="(/[^"]*)"', text)
    assert places
    assert all(place.startswith("/outlive") for place in places)
    assert client.get("/outlive/static/style.css").status_code == 200


def test_looking_changes_no_byte_of_the_store(store, client, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")}
    for path in PAGES:
        assert client.get(path).status_code == 200
    assert {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")
    } == before
