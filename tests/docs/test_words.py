"""The prose of the project avoids the words that docs/style.md replaces: in the pages, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "src" / "outlive"
MODULES = sorted(SOURCE.rglob("*.py"))
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")])

BANNED = re.compile(
    r"\b(anew|whoever|colou?rs?|waist|mend(s|ed|ing)?|for ever|go(es|ing)? on|went on|gone on|lets? go|letting go)\b",
    re.IGNORECASE,
)

# Not yet rewritten. This list only shrinks: a clean file that is still on it fails the test below.
NOT_YET = set(
    """
    """.split()
)


def name(path):
    return str(path.relative_to(PROJECT))


def prose_of_page(path):
    """Return the text of a page without the pairs that show what not to write."""
    return path.read_text(encoding="utf-8").partition("## Before and after")[0]


def prose_of_module(path):
    """Return the docstrings and comments of a module."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, documented)
    ]
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return "\n".join([*filter(None, docstrings), *comments])


def banned_words(path):
    prose = prose_of_page(path) if path.suffix == ".md" else prose_of_module(path)
    return sorted(
        {" ".join(match[0].lower().split()) for match in BANNED.finditer(re.sub(r"\s+", " ", prose))}
    )


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=name)
def test_a_file_has_no_banned_word(path):
    words = banned_words(path)
    if name(path) in NOT_YET:
        assert words, "this file is clean: take it off NOT_YET"
    else:
        assert not words, "see docs/style.md for what to write instead"


def test_the_files_that_are_not_yet_rewritten_exist():
    assert {name(path) for path in [*PAGES, *MODULES]} >= NOT_YET


@pytest.mark.parametrize(
    "sentence",
    ["sealed anew", "Whoever comes", "in both colours", "goes\non", "It is let go", "kept for ever"],
)
def test_a_banned_word_is_noticed(sentence, tmp_path):
    (tmp_path / "page.md").write_text(f"# Page\n\n{sentence}.\n", encoding="utf-8")
    (tmp_path / "module.py").write_text(f'def f():\n    """{sentence}."""\n', encoding="utf-8")
    assert banned_words(tmp_path / "page.md") and banned_words(tmp_path / "module.py")
