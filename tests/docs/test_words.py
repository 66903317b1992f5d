"""The prose of the project avoids the words that docs/style.md replaces: in the pages, docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/outlive", "tests", "bench", "examples")
MODULES = sorted(
    path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py") if path != Path(__file__)
)
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")])
FILES = {str(path.relative_to(PROJECT)): path for path in [*PAGES, *MODULES]}

BANNED = re.compile(
    r"\b(anew|whoever|colours?|waist|mend(s|ed|ing)?|for ever|(go|goes|going|went|gone) on(?! top)|lets? go|letting go)\b",
    re.IGNORECASE,
)
# The colours of a terminal are colours.
_TERMINAL = re.compile(r"\bcolours?\b", re.IGNORECASE)
_ABOUT_TERMINALS = ("docs/cli", "src/outlive/cli/", "tests/cli/", "tests/rig/program.py")


def prose_of_page(text):
    """Return a page without the pairs that show what not to write."""
    return text.partition("## Before and after")[0]


def prose_of_module(text):
    """Return the docstrings and comments of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, documented)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*filter(None, docstrings), *comments])


def banned_words(name, text):
    prose = prose_of_page(text) if name.endswith(".md") else prose_of_module(text)
    if name.startswith(_ABOUT_TERMINALS):
        prose = _TERMINAL.sub("", prose)
    return sorted({match[0].lower() for match in BANNED.finditer(re.sub(r"\s+", " ", prose))})


def words_in(name):
    text = FILES[name].read_text(encoding="utf-8")
    if not BANNED.search(re.sub(r"[\s#]+", " ", text)):  # most files; to parse them all takes long
        return []
    return banned_words(name, text)


def test_no_file_has_a_banned_word():
    words = {name: words_in(name) for name in FILES}
    assert {name: found for name, found in words.items() if found} == {}, (
        "docs/style.md says what to write instead"
    )


@pytest.mark.parametrize(
    "sentence",
    ["sealed anew", "Whoever comes", "in both colours", "goes\non", "It is let go", "kept for ever"],
)
def test_a_banned_word_is_noticed(sentence):
    assert banned_words("page.md", f"# Page\n\n{sentence}.\n")
    assert banned_words("module.py", f'def f():\n    """{sentence}."""\n')
    assert banned_words("module.py", "".join(f"# {line}\n" for line in sentence.splitlines()))
    assert not banned_words("module.py", f"text = {sentence!r}\n")
