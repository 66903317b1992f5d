"""Every page in a real browser: nothing runs that is not ours, nothing leaves the machine, keys and live work, axe is silent."""

from __future__ import annotations

import contextlib
import os
import threading
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

import outlive
from outlive.testing.patience import PATIENCE_S, eventually
from rig.browser import expect_accessible, served, visiting
from rig.inspected import HOSTILE, talk, write_graph

pytestmark = pytest.mark.heavy
expect.set_options(timeout=PATIENCE_S * 1000)

PAGES = [
    "/", "/threads", "/threads?asks=1", "/thread?id=trip-42", "/thread?id=trip-42&view=state", "/thread?id=trip-42&view=diff", "/thread?id=trip-42&view=raw",
    "/thread?id=trip-42&view=metadata", "/runs?all=1", "/run?id=refund-7", "/run?id=sum-1", "/store?keep_last=1", "/search?q=trip&states=1", "/nowhere",
    "/ask/answer?run=refund-7&name=approve%3F", "/ask/edit?id=trip-42&path=notes", "/ask/delete?id=trip-42",
]  # fmt: skip
SCREENS = [("light", 1280), ("dark", 400)]  # both schemes, both widths
if os.environ.get("OUTLIVE_LONG"):
    SCREENS += [("dark", 1280), ("light", 400)]


@pytest.mark.parametrize("scheme, width", SCREENS)
def test_every_page_is_accessible_and_fits(visitor, scheme, width):
    page = visitor.open(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in PAGES:
        page.goto(path)
        if "/thread?" in path:
            page.locator(".windowed").wait_for()
        expect_accessible(page, path)
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert sum(map(int, ground[4:-1].split(", "))) // 3 in (
        range(200, 256) if scheme == "light" else range(60)
    )


def test_the_page_of_the_keys_is_accessible(visitor):
    page = visitor.open()
    page.goto("/threads")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    expect_accessible(page, "keys")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


# Hostile states


def test_hostile_states_run_nothing(visitor):
    page = visitor.open()
    for view in ("chat", "state", "diff", "raw", "metadata"):
        page.goto(f"/thread?id={quote(HOSTILE)}&view={view}")
        page.locator(".windowed").wait_for()
        assert page.locator("h1 bdi").inner_text().count(r"\u202e") == 1
        assert page.locator("main img, main script, main iframe").count() == 0


def test_hostile_checkpoints_are_chosen_unfolded_and_marked_as_text(visitor, store):
    svg = "<svg onload=alert(3)><script>alert(4)</script></svg>"
    thread = store.thread("odd")
    thread.save({"a": {svg: {"\u202eright": svg}}}, id=f"{svg}\u202e1")
    thread.save({"a": {svg: {"\u202eright": "javascript:alert(5)"}}}, id=f"{svg}\u202e2")
    page = visitor.open()
    page.goto("/thread?id=odd&view=state")
    page.locator(".windowed li").nth(1).locator("a").click()
    expect(page.locator("#detail .seq")).to_have_text("@1")
    page.get_by_role("button", name="Unfold").click()
    page.locator("tr.inner").get_by_role("button", name="Unfold").click()
    expect(page.locator("tr.inner th").nth(1)).to_contain_text(r"\u202eright")
    page.keyboard.press("m")
    page.keyboard.press("k")
    page.keyboard.press("d")
    expect(page.locator(".changes")).to_contain_text("javascript:alert(5)")
    assert "\u202e" not in page.locator("body").inner_text()
    assert page.locator("main svg[onload], main script").count() == 0


def test_a_text_of_10_megabytes_is_shown_in_part(visitor, store):
    store.thread("long").save({"text": "abc " * 2_500_000, "messages": talk("x" * 5_000_000)})
    page = visitor.open()
    page.goto("/thread?id=long")
    assert len(page.content()) < 1_000_000
    page.goto("/thread?id=long&view=state")
    expect(page.locator("table.state")).to_contain_text("10,000,000 characters")
    page.get_by_role("button", name="Unfold").first.click()
    expect(page.locator("tr.inner pre")).to_contain_text("abc abc")
    assert len(page.content()) < 1_000_000


def test_a_script_of_a_page_that_was_tricked_is_stopped_by_the_policy(chromium, store):
    with served(store) as address:
        context = chromium.new_context(base_url=address)
        page = context.new_page()
        page.goto("/threads")
        refused = page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; } }"
        )
        context.close()
    assert refused == "TypeError"


def test_a_page_that_is_put_in_has_only_known_elements(visitor):
    """What `rebuild` makes of a page is a list of what it knows, whatever the page has."""
    page = visitor.open()
    page.goto("/threads")
    made = page.evaluate(
        """async () => {
          const { rebuild } = await import(document.body.dataset.root + "/static/dom.js");
          const bad = document.createElement("a");
          bad.setAttribute("ping", "https://evil.example"); bad.setAttribute("target", "_top");
          bad.setAttribute("href", "javascript:alert(2)"); bad.setAttribute("class", "x");
          bad.append(document.createElement("iframe"), document.createElement("script"), "text");
          return rebuild(bad).outerHTML;
        }"""
    )
    assert made == '<a class="x">text</a>'


# A thread


def test_a_page_that_changes_keeps_what_the_reader_has_in_hand(visitor):
    """`morph` leaves what is in both pages: the focus, a selection, what is unfolded, and where it is scrolled to."""
    page = visitor.open()
    page.goto("/threads")
    kept = page.evaluate(
        """async () => {
          const { make, morph } = await import(document.body.dataset.root + "/static/dom.js");
          const made = (...before) => make("div", {}, ...before, make("section", { id: "s" }, make("p", {}, "text"),
            make("details", {}, make("summary", {}, "more"), "inner"), make("button", {}, "act")), make("p", { "data-key": "k" }, "row"));
          const own = made();
          document.body.append(own);
          const [details, button, row] = ["details", "button", "[data-key]"].map((name) => own.querySelector(name));
          details.open = true; button.focus();
          const other = () => made(make("p", {}, "new on top"), make("p", { "data-key": "j" }, "another row"));
          morph(own, other());
          const kept = [details.isConnected && details.open, document.activeElement === button, row.isConnected];
          details.open = false;
          const isEqual = own.isEqualNode(other());
          morph(own, made());
          own.remove();
          return [...kept, isEqual, own.isEqualNode(made())];
        }"""
    )
    assert kept == [True] * 5


def test_keys_walk_through_a_thread(visitor):
    page = visitor.open()
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/threads")
    page.goto("/thread?id=trip-42")
    page.locator(".windowed").wait_for()
    on = page.locator("[data-tree] .on")
    expect(on).to_contain_text("@3")
    for key, seq in (("j", "@2"), ("k", "@3"), ("h", "@1"), ("l", "@3"), ("[", "@1")):
        page.keyboard.press(key)
        expect(on).to_contain_text(seq)
        expect(page.locator("#detail .seq")).to_have_text(seq)
        page.wait_for_url("**at=*")
    page.keyboard.press("m")
    expect(page.locator("[data-mark]")).to_have_text("Marked")
    page.keyboard.press("k")
    expect(page.locator("#detail .seq")).to_have_text("@2")
    page.keyboard.press("d")
    expect(page.locator(".changes")).to_contain_text("notes.ferry")
    expect(page.locator("[data-command]")).to_contain_text("outlive diff trip-42")
    page.go_back()
    expect(page.locator(".chat")).to_contain_text("a night ferry")
    page.keyboard.press("/")
    page.keyboard.type("trip")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=trip")


def test_the_scrubber_walks_and_says_where_it_is(visitor):
    page = visitor.open()
    page.goto("/thread?id=trip-42&view=state")
    slider = page.get_by_role("slider", name="Checkpoint")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator("#detail .seq")).to_have_text("@1")
    assert slider.get_attribute("aria-valuetext").startswith("@1 loop, step 1")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail .seq")).to_have_text("@2")
    assert "view=state" in page.url
    expect(slider).to_be_focused()
    page.get_by_role("button", name="Newer").click()
    expect(page.locator("#detail .seq")).to_have_text("@3")


def test_a_long_tree_has_a_window_of_rows(visitor, store):
    thread = store.thread("many")
    for number in range(1_500):
        thread.save({"n": number}, step=number, durability="async")
    thread.flush()
    page = visitor.open()
    page.goto("/thread?id=many")
    expect(page.locator("[data-loading]")).to_have_text("1,500")
    assert page.locator("[data-tree] li").count() < 120
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(page.locator("[data-tree] .on")).to_contain_text("@1 ")
    expect(page.locator("[data-tree] .on")).to_be_in_viewport()
    page.keyboard.press("k")
    expect(page.locator("#detail .seq")).to_have_text("@2")
    page.locator("[data-window]").evaluate("window => { window.scrollTop = 30000; }")
    expect(page.locator("[data-tree] li", has_text="@800 ")).to_have_count(1)


def test_a_state_unfolds_in_place(visitor, store):
    store.thread("deep").save({"numbers": list(range(250)), "plain": 1})
    page = visitor.open()
    page.goto("/thread?id=deep&view=state")
    toggle = page.get_by_role("button", name="Unfold")
    toggle.click()
    expect(page.locator("tr.inner")).to_have_count(101)
    page.get_by_role("button", name="more, from 100").click()
    expect(page.locator("tr.inner")).to_have_count(201)
    toggle.click()
    expect(page.locator("tr.inner")).to_have_count(0)


# Live


def test_a_new_checkpoint_appears_and_what_is_read_stays(visitor, store):
    page = visitor.open()
    page.goto("/thread?id=trip-42")
    page.locator("[data-dot]").wait_for()
    page.wait_for_timeout(1500)  # the first look
    detail = page.locator("[data-detail]").inner_text()
    place = page.locator("[data-tree] .on").bounding_box()
    store.thread("trip-42").save({"messages": [], "notes": {"late": True}})
    page.get_by_text("1 newer").wait_for()
    expect(page.locator("[data-tree] li", has_text="@4 ")).to_have_count(1)
    assert page.locator("[data-detail]").inner_text().split("saved")[0] == detail.split("saved")[0]
    assert abs(page.locator("[data-tree] .on").bounding_box()["y"] - place["y"]) <= 44
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#detail .seq")).to_have_text("@4")
    page.keyboard.press("f")
    store.thread("trip-42").save({"messages": [], "notes": {"later": True}})
    expect(page.locator("#detail .seq")).to_have_text("@5")


def test_runs_change_where_they_are_and_new_ones_wait(visitor, store):
    page = visitor.open()
    page.goto("/runs?all=1")
    page.locator("[data-dot]").wait_for()
    page.wait_for_timeout(1500)  # the first look
    store.cancel("refund-7")
    expect(page.locator("tr", has_text="refund-7")).to_contain_text("cancelled")
    store.submit("fresh", agent="a", run_id="fresh-1")
    page.get_by_text("1 newer").wait_for()
    assert page.locator("tr", has_text="fresh-1").count() == 0
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tr", has_text="fresh-1")).to_contain_text("released")


def test_steps_of_a_run_appear(visitor, store):
    with store.run("long", run_id="long-1", agent="a") as run:
        run.step("first", lambda: 1)
        page = visitor.open()
        page.goto("/run?id=long-1")
        expect(page.locator(".waterfall")).to_contain_text("first")
        page.wait_for_timeout(1500)  # the first look
        page.locator(".wmore summary").click()
        run.step("second", lambda: 2)
        expect(page.locator(".waterfall")).to_contain_text("second")
        expect(page.locator(".wmore[open]")).to_contain_text("key")  # what was unfolded stays, with the focus
        expect(page.locator(".wmore summary").first).to_be_focused()


# Acts


def test_edit_shows_the_difference_and_forks_by_clicks(visitor, store):
    page = visitor.open()
    page.goto("/thread?id=trip-42&view=state&path=notes")
    page.get_by_role("link", name="Edit and save as a branch").click()
    page.get_by_label("The new value").fill('{"by": "bus"}')
    page.get_by_role("button", name="Show what changes").click()
    expect(page.locator(".changes")).to_contain_text("notes.by")
    assert store.thread("trip-42").info().checkpoints == 3
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/thread?id=trip-42*view=diff*")
    assert store.thread("trip-42").load()["notes"] == {"by": "bus"}
    page.get_by_role("link", name="Fork here").click()
    page.get_by_label("The id of the new thread").fill("what-if")
    page.get_by_role("button", name="Fork").click()
    page.wait_for_url("**/thread?id=what-if")
    expect(page.locator(".facts").first).to_contain_text("forked from trip-42")
    assert store.thread("what-if").load()["notes"] == {"by": "bus"}


@contextlib.contextmanager
def working(store, handlers):
    """Let a worker work in a thread of its own."""
    worker = store.worker(handlers, interval_s=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.drain()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_an_answer_wakes_a_worker_and_its_page_says_so(visitor, store):
    fields = {"ok": {"type": "boolean"}, "seats": {"type": "integer"}, "note": {"type": "string"}}
    schema = {"type": "object", "properties": fields, "required": ["ok", "seats"]}
    answers = []

    def book(run):
        answers.append(run.ask("book?", {"flight": "TP 1901"}, schema=schema))
        return "booked"

    store.submit("trip-9", agent="booking", run_id="book-1")
    with working(store, {"booking": book}):
        eventually(lambda: any(question.run == "book-1" for question in store.questions()))
        page = visitor.open()
        page.goto("/")
        expect(page.get_by_role("heading", name="Workers")).to_contain_text("1 alive")
        card = page.locator(".card.ask", has_text="TP 1901")
        card.get_by_role("link", name="Answer").click()
        page.get_by_label("yes").check()
        page.get_by_label("seats").fill("2")
        page.get_by_role("button", name="Answer").click()
        page.wait_for_url("**/run?id=book-1*")
        expect(page.locator("h1")).to_contain_text("completed")
    assert answers == [{"ok": True, "seats": 2}]


def test_it_works_without_scripts(visitor, store):
    page = visitor.open(java_script_enabled=False)
    page.goto("/")
    page.get_by_role("link", name="Threads").click()
    page.get_by_role("link", name="trip-42").click()
    page.locator("[data-tree] a").nth(1).click()
    expect(page.locator("#detail .seq")).to_have_text("@2")
    page.get_by_role("link", name="State").click()
    page.get_by_role("link", name="notes").click()
    expect(page.locator(".crumbs")).to_contain_text("notes")
    page.get_by_role("link", name="Diff").click()
    expect(page.locator(".changes")).to_contain_text("notes.ferry")
    page.goto("/store")
    page.get_by_role("button", name="Check every stored byte").click()
    expect(page.locator("[data-verify]")).to_contain_text("thread")


def test_fifty_open_pages_are_all_told(chromium, tmp_path):
    """One look serves all pages that watch the same."""
    import json
    import urllib.request

    with outlive.open(tmp_path / "many.db") as store, served(store) as address:
        store.thread("a").save({"n": 1})
        streams = [urllib.request.urlopen(f"{address}/live?topic=thread&id=a") for _ in range(50)]
        first = {json.loads(stream.readline()[6:])["mark"] for stream in streams}
        store.thread("a").save({"n": 2})

        def next_mark(stream):
            lines = (line for line in stream if line.startswith(b"data:"))
            return json.loads(next(lines)[6:])["mark"]

        second = {next_mark(stream) for stream in streams}
        for stream in streams:
            stream.close()
    assert (len(first), len(second), first == second) == (1, 1, False)


# Other stores, other writers


@pytest.fixture(params=["sqlite", "postgres"])
def shared_store(request, tmp_path):
    url = tmp_path / "agent.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with outlive.open(url) as store:
        yield store


def test_a_graph_is_clicked_through(chromium, shared_store):
    write_graph(shared_store)
    with served(shared_store, write=True) as address, visiting(chromium, address) as visitor:
        page = visitor.open(color_scheme="dark")
        page.goto("/threads")
        page.get_by_role("link", name="graph-1").click()
        expect(page.locator(".chat")).to_contain_text("search_ferries")
        expect(page.locator(".call .result")).to_have_text("a night ferry")
        expect(page.locator(".progress")).to_contain_text("interrupt")
        expect(page.locator(".progress")).to_contain_text("book")
        page.locator(".windowed").wait_for()
        page.keyboard.press("d")
        expect(page.locator(".changes")).to_contain_text("messages[2]")
        page.keyboard.press("s")
        expect(page.locator("table.state")).not_to_contain_text("channel_versions")
        page.keyboard.press("r")
        expect(page.locator("pre.raw")).to_contain_text("channel_versions")
        expect_accessible(page, "graph")
        page.keyboard.press("s")
        page.get_by_role("link", name="Edit and save as a branch").click()
        expect(page.locator(".ask-form")).to_contain_text("graph.update_state")
        assert page.get_by_role("button", name="Save").count() == 0


def test_a_core_store_is_clicked_through_on_postgres(chromium, postgres_url):
    from rig.inspected import fill

    with outlive.open(postgres_url) as store:
        fill(store)
        with served(store, write=True) as address, visiting(chromium, address) as visitor:
            page = visitor.open()
            page.goto("/")
            page.get_by_role("link", name="refund-7").first.click()
            expect(page.locator(".waterfall")).to_contain_text("look up the order")
            page.get_by_role("link", name="Store").click()
            expect(page.locator(".findings")).to_contain_text("durability")
            page.get_by_role("button", name="Check every stored byte").click()
            expect(page.locator("[data-verify]")).to_contain_text("No problems in")
            page.get_by_role("link", name="Threads").click()
            page.get_by_role("link", name="trip-42").click()
            expect(page.locator(".chat")).to_contain_text("By train then")
