"""docs/design.md draws the packages that exist, and walks through functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "src" / "outlive"
TEXT = (PROJECT / "docs" / "design.md").read_text(encoding="utf-8")
DRAWING = TEXT.split("```text\nsrc/outlive/\n", 1)[1].split("```", 1)[0]
STEPS = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", TEXT, re.MULTILINE)


def drawn_paths():
    """Yield the path of every name in the drawing; indented names are inside the folder above them."""
    folders = []
    for line in DRAWING.splitlines():
        bars, names = re.fullmatch(r"((?:│   )*)[├└]── (.*?)(?:  .*)?", line).groups()
        depth = len(bars) // 4
        for name in names.split():
            yield "/".join([*folders[:depth], name.rstrip("/")])
        folders = [*folders[:depth], names.split()[0].rstrip("/")]


def functions_of(module):
    """Return the names of the functions and methods of a module, methods as `Class.method`."""
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        names |= {f"{kind.name}.{node.name}" for node in kind.body if isinstance(node, kinds)}
    return names


def test_the_drawing_shows_every_package_and_module_of_the_root():
    drawn = list(drawn_paths())
    assert not [path for path in drawn if not (SOURCE / path).exists()]
    exist = {
        path.name for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert exist - {path.split("/")[0] for path in drawn} == {"__main__.py"}


@pytest.mark.parametrize("module, function", sorted(set(STEPS)))
def test_every_function_of_the_walks_exists(module, function):
    assert function in functions_of(module)


def test_there_are_four_walks():
    walks = TEXT.split("## Four walks", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^### (.*)$", walks, re.MULTILINE) == [
        "A save",
        "A recovery",
        "A question",
        "A failover",
    ]
    assert len(STEPS) >= 30


@pytest.mark.parametrize("page", ["docs/design.md", "docs/testing-a-backend.md", "CONTRIBUTING.md"])
def test_every_file_that_is_mentioned_exists(page):
    text = (PROJECT / page).read_text(encoding="utf-8")
    files = [
        f"/{path.relative_to(PROJECT)}"
        for kind in ("src", "tests", "examples")
        for path in (PROJECT / kind).rglob("*")
    ]
    mentioned = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|lua|sql))`", text))
    assert mentioned
    named = [name for name in mentioned if "NAME" not in name]
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
