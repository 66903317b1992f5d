"""The parts of the documentation site that are the project's own: pages of the API, and the check of what was built."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, PROJECT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


built_site, api_pages = load("built_site"), load("api_pages")


@pytest.fixture
def site(tmp_path):
    (tmp_path / "style.css").write_text("body { background: url(data:image/png;base64,AA) }")
    (tmp_path / "other.html").write_text('<h1 id="top">Other</h1>')
    return tmp_path


@pytest.mark.parametrize(
    "body",
    [
        '<a href="other.html#top">x</a>',
        '<a href="#here" id="here">x</a>',
        '<a href="https://example.org/">x</a>',
    ],
)
def test_a_whole_site_has_no_problem(site, body):
    (site / "index.html").write_text(body)
    assert built_site.problems(site) == []


@pytest.mark.parametrize(
    "body, problem",
    [
        ('<a href="gone.html">x</a>', "links to gone.html"),
        ('<a href="other.html#gone">x</a>', "links to other.html#gone"),
        ('<a href="#gone">x</a>', "links to #gone"),
        ('<img src="gone.svg">', "links to gone.svg"),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org/x.js"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "loads //fonts.example.org/x.css"),
    ],
)
def test_a_broken_link_or_a_part_from_the_network_is_a_problem(site, body, problem):
    (site / "index.html").write_text(body)
    (found,) = built_site.problems(site)
    assert problem in found


def test_a_font_from_the_network_is_a_problem(site):
    (site / "style.css").write_text("@font-face { src: url(https://fonts.example.org/x.woff2) }")
    assert built_site.problems(site) == ["style.css loads a font or style by the network"]


def test_every_public_name_has_a_page_of_the_api(monkeypatch):
    text = "\n".join(api_pages.pages().values())
    assert "::: outlive.Store\n" in text
    assert "::: outlive.errors.LeaseLost\n" in text
    title, names = api_pages.PAGES["store"]
    monkeypatch.setitem(api_pages.PAGES, "store", (title, names.replace("StoreSize ", "")))
    with pytest.raises(LookupError, match="no page of the API has StoreSize"):
        api_pages.pages()


def test_aligned_options_of_a_docstring_are_a_list(monkeypatch):
    monkeypatch.setitem(sys.modules, "griffe", types.SimpleNamespace(Extension=object))  # of the docs extra
    text = (
        "Open a store.\n\ntenant:   a name\nkey:      a ring,\n          or none\n\nRaises: nothing\n  kept"
    )
    assert load("option_lists").with_lists(text) == (
        "Open a store.\n\n- `tenant`: a name\n- `key`: a ring,\n  or none\n\nRaises: nothing\n  kept"
    )
