"""What README.md and docs/ say is true: their snippets run, their outputs are those shown, their tables are whole.

The Python blocks of one page run in order, in one namespace, in an empty folder. A comment tells what to expect:

    thread.load()  # → {'n': 1}
    thread.save(1, expect="a")
    # raises HeadMoved: the head of thread

after the expression or in the line below it; `...` matches anything.

A block whose first line is a file name, `# agent.py`, is a program. The next text block is a terminal session with it.
Each `$ python agent.py` runs the file as a process; one that ends with `Killed` gets SIGKILL while it sleeps.
`$ outlive ...` in it runs the command line on the store agent.db.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import outlive
from outlive import errors
from outlive.format import extensions as extension
from outlive.format.registry import default_registry
from outlive.testing.patience import PATIENCE_S

NAMES = outlive.__all__  # imports all that registers types, before a page gets a registry of its own
PROJECT = Path(__file__).resolve().parents[2]
README = PROJECT / "README.md"
DOCS = PROJECT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
# Pages of frameworks: their snippets run where the framework is installed, in tests/frameworks.
FRAMEWORKS = {
    "agent-framework.md": "agent_framework",
    "claude-agent-sdk.md": "claude_agent_sdk",
    "fastapi.md": "fastapi",
    "google-adk.md": "google.adk",
    "llama-index.md": "workflows",
    "openai-agents.md": "agents",
    "pydantic-ai.md": "pydantic_ai",
    "strands.md": "strands",
}
RUNNABLE = [page for page in PAGES if page.name not in FRAMEWORKS]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPECTED = re.compile(r"# (→|raises) (.+?)$")
_PROGRAM = re.compile(r"# (\w+\.py)\n")
_COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
SOURCE = Path(outlive.__file__).resolve().parent.parent


def blocks(page, language):
    """Return (line number, text) of each fenced block of a language."""
    text = page.read_text(encoding="utf-8")
    found = [match for match in _BLOCK.finditer(text) if match[1] == language]
    return [(text.count("\n", 0, match.start()) + 2, match[2]) for match in found]


class _Expectations(ast.NodeTransformer):
    """Turns the comments of a block into calls of `_is` and `_raises`."""

    def __init__(self, text):
        self._lines = text.splitlines()
        self.count = 0

    def visit_Expr(self, statement):
        found = _EXPECTED.search(self._lines[statement.end_lineno - 1]) or self._on_next_line(statement)
        if found is None:
            return statement
        self.count += 1
        kind, what = found.groups()
        if kind == "→":
            checked = ast.Call(ast.Name("_is", ast.Load()), [statement.value, ast.Constant(what)], [])
            new = ast.Expr(checked)
        else:
            guard = ast.Call(ast.Name("_raises", ast.Load()), [ast.Constant(what)], [])
            new = ast.With([ast.withitem(guard)], [statement])
        return ast.copy_location(new, statement)

    def _on_next_line(self, statement):
        following = self._lines[statement.end_lineno :][:1]
        return _EXPECTED.match(following[0].strip()) if following else None


def _is(value, what):
    parts = [re.escape(part) for part in what.split("...")]
    assert re.fullmatch(".*".join(parts), repr(value), re.DOTALL), f"{what} is said, {value!r} is true"


def _raises(what):
    name, _, message = what.partition(": ")
    kind = getattr(errors, name, None) or getattr(builtins, name)
    return pytest.raises(kind, match=re.escape(message) if message else None)


def run_block(page, line, text, names):
    expectations = _Expectations(text)
    tree = ast.fix_missing_locations(expectations.visit(ast.parse(text)))
    said = sum(_EXPECTED.search(one) is not None for one in text.splitlines())
    assert expectations.count == said, f"{page.name}:{line}: a comment says what nobody compares"
    ast.increment_lineno(tree, line - 1)  # so that a traceback names the line of the page
    exec(compile(tree, str(page), "exec"), names)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_every_python_block_runs_and_says_what_is_true(page, tmp_path, monkeypatch, request):
    run_page(page, tmp_path, monkeypatch, request)


def run_page(page, tmp_path, monkeypatch, request):
    """Run the blocks of a page in order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))  # for processes that a page starts
    registry = default_registry
    monkeypatch.setattr(registry, "_by_type", dict(registry._by_type))
    monkeypatch.setattr(registry, "_by_tag", dict(registry._by_tag))
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    module._is, module._raises = _is, _raises
    for line, text in blocks(page, "python"):
        if not _PROGRAM.match(text):
            run_block(page, line, on_real_servers(text, request), vars(module))


def programs():
    """Yield (page, file name, code, terminal session) of each program in the pages."""
    for page in RUNNABLE:
        sessions = blocks(page, "text")
        for line, text in blocks(page, "python"):
            if name := _PROGRAM.match(text):
                yield page, name[1], text, next(session for start, session in sessions if start > line)


# Makes sleeping short in the program, and deadly in the call whose number is in the environment.
_DEADLY_SLEEP = """
import os, signal, sys, time

real_sleep, calls = time.sleep, 0

def sleep(seconds):
    global calls
    if sys._getframe(1).f_globals["__name__"] != "__main__":
        return real_sleep(seconds)
    calls += 1
    if calls == int(os.environ["KILLED_IN_SLEEP"]):
        os.kill(os.getpid(), signal.SIGKILL)

time.sleep = sleep
"""


@pytest.mark.parametrize(
    "page, name, code, session", list(programs()), ids=lambda value: getattr(value, "name", None)
)
def test_every_program_prints_what_is_shown_when_it_is_killed_and_run_again(
    page, name, code, session, tmp_path
):
    (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(_DEADLY_SLEEP, encoding="utf-8")
    commands = _COMMAND.split(session)
    assert commands[:2] == ["", f"python {name}"]
    assert "Killed\n" in session
    for command, shown in zip(commands[1::2], commands[2::2], strict=True):
        is_killed = shown.endswith("Killed\n")
        calls = shown.count("\n") - 1 if is_killed else 0  # every call prints a line first
        program, *arguments = shlex.split(command)
        ended = subprocess.run(
            [sys.executable, *(["-m", "outlive"] if program == "outlive" else []), *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}:{SOURCE}",
                "KILLED_IN_SLEEP": str(calls),
                "OUTLIVE_STORE": "sqlite:///agent.db",
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert (masked(ended.stdout), ended.stderr) == (masked(shown.removesuffix("Killed\n")), "")
        assert ended.returncode == (-signal.SIGKILL if is_killed else 0)


# What differs from run to run in the output of the command line.
_VOLATILE = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
    (r"process \d+ on \S+|\d+@\S+", "OWNER"),
    (r"\d+ s left|expired", "LEASE"),
    (r"[\d.]+ (ms|s|min)( ago)?|just now", "AGE"),
    (r" {2,}", "  "),
    (r" +$", ""),
]


def masked(text):
    for pattern, name in _VOLATILE:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


# What a page writes in place of a server's address → the fixture that has a real one.
SERVERS = {"postgresql://me:secret@localhost/agents": "postgres_url"}


def on_real_servers(text, request):
    for said, fixture in SERVERS.items():
        if said in text:
            text = text.replace(said, request.getfixturevalue(fixture))
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_has_a_language_and_an_end(page):
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= {"python", "sh", "text", "sql", "json"}
    assert set(fences[1::2]) <= {""}


def anchors(page):
    """Return the anchors that GitHub gives the headings of a page."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *sorted(PROJECT.glob("C*.md"))], ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if "://" in target:
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_public_name_that_is_mentioned_exists(page):
    for name in re.findall(r"\boutlive\.([A-Z]\w+|open\w*|register\w*)", page.read_text(encoding="utf-8")):
        assert name in NAMES, f"{page.name} mentions outlive.{name}"


def test_every_page_is_in_the_navigation_of_the_site():
    """`./dev docs` says so as well. The readme leads to the first page, which leads to the most useful others."""
    navigation = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    missing = [page.name for page in sorted(DOCS.glob("*.md")) if f": {page.name}\n" not in navigation]
    assert not missing, "add a line to `nav` in mkdocs.yml"
    assert "(docs/index.md)" in README.read_text(encoding="utf-8")


def test_the_readme_is_short_and_starts_with_a_snippet():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    start = lines.index("```python")
    assert lines.index("```", start) < 30
    assert len(" ".join(lines[:start]).split()) <= 70


def test_the_readme_has_a_place_for_the_figures():
    text = README.read_text(encoding="utf-8")
    assert text.count("<!-- bench:start -->") == text.count("<!-- bench:end -->") == 1
    assert text.index("<!-- bench:start -->") < text.index("<!-- bench:end -->")


def test_the_changelog_has_the_version_of_the_project():
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert version == outlive.__version__
    assert f"## {version}" in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")


def table(page, heading):
    """Return the cells of the first table below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1]
    rows = [line for line in text.split("\n#", 1)[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_public_error_is_listed_with_its_cause_and_what_to_do():
    rows = re.findall(
        r"^\| `(\w+)` \| (caller|store) \| (.+) \| (.+) \|$",
        (DOCS / "errors.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    named = {name: branch for name, branch, cause, cure in rows if cause.strip() and cure.strip()}
    assert len(named) == len(rows)
    public = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.OutliveError)
    }
    roots = {"OutliveError", "CallerError", "Conflict", "StoreError"}
    between_layers = {"EntryHeld", "EpochPassed", "OutOfTurn"}  # caught inside the library
    assert named.keys() == public.keys() - roots - between_layers
    for name, branch in named.items():
        assert branch == ("caller" if issubclass(public[name], errors.CallerError) else "store"), name


def test_the_table_of_extension_codes_is_that_of_the_code():
    named = {int(row[0]): row[1].strip("`") for row in table("design.md", "Extension codes")}
    codes = {
        value: name
        for name, value in vars(extension).items()
        if name.isupper() and isinstance(value, int) and not name.startswith("_")
    }
    assert named == codes


def test_the_tables_of_sqlite_are_all_described():
    schema = (PROJECT / "src/outlive/backends/sqlite/schema.sql").read_text(encoding="utf-8")
    tables = re.findall(r"create table (\w+)\(", schema)
    assert [row[0].strip("`") for row in table("backends.md", "The tables")] == tables
