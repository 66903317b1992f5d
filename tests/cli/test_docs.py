"""`outlive docs` lists and prints the pages that came with the installation."""

import json

import pytest


def test_it_lists_the_pages_with_their_titles(program):
    done = program("docs")
    assert "tutorial" in done.out
    assert "Encryption" in done.out
    assert json.loads(program("docs", "--json").out)["items"][0].keys() == {"page", "title", "path"}
    assert "encryption" in program("docs", "-q").out.split()


@pytest.mark.parametrize(
    "name", ["encryption", "encryption.md", "docs/encryption.md#rotating-keys", "Encryption"]
)
def test_it_prints_a_page(program, name):
    assert program("docs", name).out.startswith("# Encryption\n")


def test_it_prints_where_a_page_is(program):
    folder, page = program("docs", "--path").out.strip(), program("docs", "runs", "--path").out.strip()
    assert page == f"{folder}/runs.md"


def test_a_page_that_does_not_exist_is_refused_with_a_hint(program):
    done = program("docs", "encription")
    assert (done.code, "did you mean encryption?" in done.err) == (2, True)
    assert "outlive docs lists all pages" in program("docs", "zzz").err
