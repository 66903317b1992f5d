"""Every page in a real browser: nothing runs that is not ours, nothing leaves the machine, keys and live work, axe is silent."""

from __future__ import annotations

import itertools
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe

from rig.browser import browser, served
from rig.inspected import HOSTILE

PAGES = [
    "/", "/threads", "/thread?id=trip-42", "/thread?id=trip-42&view=state", "/thread?id=trip-42&view=diff", "/thread?id=trip-42&view=raw",
    "/runs?all=1", "/run?id=refund-7", "/run?id=sum-1", "/store?keep_last=1", "/search?q=trip&states=1", "/nowhere",
    "/ask/answer?run=refund-7&name=approve%3F", "/ask/edit?id=trip-42&path=notes", "/ask/delete?id=trip-42",
]  # fmt: skip


@pytest.fixture(scope="module")
def chromium():
    with browser() as chromium:
        yield chromium


@pytest.fixture
def address(store):
    with served(store, write=True) as address:
        yield address


@pytest.fixture
def open_page(chromium, address):
    """Open pages that fail the test when they report an error or ask another host."""
    problems, contexts = [], []

    def open_page(**options):
        context = chromium.new_context(base_url=address, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: (
                problems.append(message.text)
                if message.type == "error" and "404" not in message.text
                else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                problems.append(request.url) if not request.url.startswith((address, "data:,")) else None
            ),
        )
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.mark.parametrize("scheme, width", list(itertools.product(("light", "dark"), (1280, 400))))
def test_every_page_is_accessible_and_fits(open_page, scheme, width):
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in PAGES:
        page.goto(path)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_hostile_states_run_nothing(open_page):
    page = open_page()
    for view in ("chat", "state", "diff", "raw", "metadata"):
        page.goto(f"/thread?id={quote(HOSTILE)}&view={view}")
        assert page.locator("h1 bdi").inner_text().count(r"\u202e") == 1
        assert page.locator("img").count() == 0


def test_a_script_of_a_page_that_was_tricked_is_stopped_by_the_policy(chromium, address):
    context = chromium.new_context(base_url=address)
    page = context.new_page()
    page.goto("/threads")
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; } }"
    )
    context.close()
    assert refused == "TypeError"


def test_keys_walk_through_a_thread(open_page):
    page = open_page()
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/threads")
    page.goto("/thread?id=trip-42")
    page.keyboard.press("j")
    page.wait_for_url("**at=*")
    assert "@2" in page.locator("[data-tree] .on").inner_text()
    page.keyboard.press("d")
    page.wait_for_url("**view=diff*")
    assert "notes.ferry" in page.locator(".changes").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("trip")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=trip")


def test_a_new_checkpoint_is_noticed_and_what_is_read_stays(open_page, store):
    page = open_page()
    page.goto("/thread?id=trip-42")
    page.locator("[data-dot]").wait_for()
    page.wait_for_timeout(1500)  # the first look
    before = page.locator("main").inner_text()
    store.thread("trip-42").save({"messages": [], "notes": {"late": True}})
    page.get_by_text("1 newer").wait_for()
    assert page.locator("main").inner_text() == before
    page.get_by_role("link", name="show").click()
    page.locator("[data-tree] .on", has_text="@4").wait_for()


def test_edit_and_fork_and_answer_by_clicks(open_page, store):
    page = open_page()
    page.goto("/thread?id=trip-42&view=state&path=notes")
    page.get_by_role("link", name="Edit and save as a branch").click()
    page.get_by_label("The new value").fill('{"by": "bus"}')
    page.get_by_role("button", name="Save as a branch").click()
    page.locator(".changes").wait_for()
    assert store.thread("trip-42").load()["notes"] == {"by": "bus"}
    page.goto("/")
    page.get_by_role("link", name="Answer").click()
    page.get_by_label("yes").check()
    page.get_by_role("button", name="Answer").click()
    page.wait_for_url("**/run?id=refund-7*")
    assert [question.value for question in store.questions(status=None) if question.run == "refund-7"] == [
        True
    ]


def test_it_works_without_scripts(open_page):
    page = open_page(java_script_enabled=False)
    page.goto("/")
    page.get_by_role("link", name="Threads").click()
    page.get_by_role("link", name="trip-42").click()
    page.get_by_role("link", name="State").click()
    page.get_by_role("link", name="notes").click()
    assert "state" in page.locator(".crumbs").inner_text()
