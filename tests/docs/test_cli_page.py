"""docs/cli.md and docs/cli-reference.md show what the program really prints: examples, and the help of every command.

After an intended change `OUTLIVE_RENEW_DOCS=1 ./dev test tests/docs/test_cli_page.py` rewrites both pages.
"""

from __future__ import annotations

import base64
import itertools
import os
import random
import re
import shlex
from pathlib import Path

import click
import pytest
from langgraph.graph import START, MessagesState, StateGraph

import outlive
from outlive.adapters.langgraph import OutliveSaver
from outlive.cli import program as cli_program

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
REFERENCE = PAGE.with_name("cli-reference.md")
RENEWS = bool(os.environ.get("OUTLIVE_RENEW_DOCS"))
HEAD = "# Command reference\n\nThe `--help` of every command. [The command line](cli.md) has a tour, exit codes and the format of `--json`.\n"
EXAMPLE = re.compile(r"^```text\n(\$ outlive .*?)^```$", re.MULTILINE | re.DOTALL)

# What differs from run to run and from machine to machine.
VOLATILE = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[67][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b[0-9a-f]{32}\b", "INTERRUPT"),
    (r"this save added \d+ B", "ADDED"),  # LangGraph's random ids and versions compress to more or less
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?( \w+|\+00:00)", "TIME"),
    (r"\b(\d+(\.\d)? (s|min|h) ago|just now)", "AGE"),
    (r"process \d+( on \S+)?", "PROCESS"),
    (r"in \d+ (min|h|d)\b", "IN"),
    (r"\d+@\S+", "OWNER"),
    (r"[\d.]+ (ms|s)( |$)", "TOOK "),
    (r"opened in \d+ ms", "OPENED"),
    (r"\d+(\.\w+)+(-\w+)? on Python [\d.]+, \w+", "VERSION"),
    (r"ormsgpack .*", "PACKAGES"),
    (r"\d+\.\d+\.\d+, without", "VERSION, without"),
    (r"\S+ \wB free on \S+", "SPACE"),
    (r" {2,}", "  "),
]


def masked(text):
    for pattern, name in VOLATILE:
        text = re.sub(pattern, name, text)
    return text


def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_help_of_every_command_is_in_the_docs(program):
    names = [name for commands in cli_program.SECTIONS.values() for name in commands]
    blocks = [HEAD]
    for arguments in ([], *([name] for name in names), ["runs", "show"]):
        ended = program(*arguments, "--help")
        assert (ended.code, ended.err) == (0, "")
        title = " ".join(("outlive", *arguments))
        blocks.append(f"## {title}\n\n```text\n{ended.out}```\n")
    expected = "\n".join(blocks)
    if RENEWS:
        REFERENCE.write_text(expected, encoding="utf-8")
    else:
        text = REFERENCE.read_text(encoding="utf-8")
        assert text == expected, "the help has changed: see the head of this test"


def test_the_examples_of_the_docs_are_real(program, monkeypatch):
    def run(block):
        commands = [line for line in block[1].splitlines() if line.startswith("$ outlive ")]
        shown = []
        for line in commands:
            ended = program(
                *shlex.split(line)[2:], OUTLIVE_STORE="sqlite:///outlive-demo/agent.db", is_merged=True
            )
            assert "internal error" not in ended.out
            shown.append(f"{line}\n{ended.out}")
        return "```text\n" + "\n".join(shown) + "```"

    keys = {id: base64.b64encode(random.Random(id).randbytes(32)).decode() for id in ("old", "new")}
    (program.folder / "old.keys").write_text(f"old:{keys['old']}\n")
    (program.folder / "both.keys").write_text(f"old:{keys['old']}\nnew:{keys['new']}\n")
    text = page()
    (program.folder / "agents.py").write_text(
        re.search(r"^```python\n(def refund.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    )
    with outlive.open(f"sqlite:///{program.folder}/refunds.db") as store:
        assert not list(store.runs())  # only creates the store
    monkeypatch.chdir(program.folder)
    exec(re.search(r"^```python\n(from langchain_core.*?)^```$", text, re.MULTILINE | re.DOTALL)[1], {})
    renewed = EXAMPLE.sub(run, text)
    if RENEWS:
        PAGE.write_text(renewed, encoding="utf-8")
    else:
        assert masked(text) == masked(renewed), "the output has changed: see the head of this test"


DOCUMENTS = [PAGE.parents[1] / "README.md", *sorted(PAGE.parent.glob("*.md"))]
SHOWN = {
    "sh": r"^outlive ([^#|\n]+)",
    "text": r"^\$ outlive ([^#|\n]+)",
}


def commands_of(document):
    """Return the commands in a page, shown or named in a sentence, as lists of words."""
    text = document.read_text(encoding="utf-8")
    found = re.findall(
        r"`outlive ([^`#|]+)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    for language, pattern in SHOWN.items():
        for block in re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            found += re.findall(pattern, block, re.MULTILINE)
    return [shlex.split(command.replace("\n", " ")) for command in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_the_docs_exists_with_its_options(document):
    for words in commands_of(document):
        command, names = cli_program.program, []
        if words[0] == "--store":  # options of every command may come first
            words = words[2:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            inner = command.get_command(click.Context(command), words[0])
            if inner is None and names:  # an argument of a command that has others inside
                break
            assert inner is not None, f"{document.name}: no command {words[0]!r}"
            names.append(words.pop(0))
            command = inner
        known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        options = itertools.takewhile(lambda word: word != "--", words)
        used = {word.partition("=")[0] for word in options if word.startswith("-") and word != "-"}
        assert used <= known | {"-h", "--help"}, f"{document.name}: outlive {' '.join(names)}"


def test_every_field_of_an_item_is_in_the_docs(program):
    assert program("demo", "-q").code == 0
    env = {"OUTLIVE_STORE": "sqlite:///outlive-demo/agent.db"}
    (program.folder / "agent.keys").write_text(
        "k:" + base64.b64encode(random.Random(1).randbytes(32)).decode()
    )
    with outlive.open(f"sqlite:///{program.folder}/outlive-demo/agent.db") as store:
        with store.run("asks", run_id="ask") as run:
            run.ask("which?")
    with OutliveSaver(f"sqlite:///{program.folder}/outlive-demo/agent.db") as saver:
        graph = StateGraph(MessagesState).add_node("a", lambda state: {}).add_edge(START, "a")
        graph.compile(checkpointer=saver).invoke(
            {"messages": ["x"]}, {"configurable": {"thread_id": "graph"}}
        )
    listed = page().split("| command | an item is |")[1].split("\n\n")[0]
    for arguments in (
        ["ls"], ["history", "trip"], ["history", "graph"], ["show", "graph"], ["show", "trip"], ["show", "trip", "--parts"], ["diff", "trip"], ["runs", "--all"],
        ["runs", "show", "plan"], ["questions"], ["answer", "ask", "which?", "1"], ["verify"], ["doctor"], ["stats"], ["sweep", "--keep-last", "2", "--dry-run"],
        ["export", "trip", "trip.json"], ["import", "trip.json", "--as", "again"], ["fork", "trip", "fork"], ["copy-thread", "trip", "copy"],
        ["prune", "copy", "--keep-last", "2", "--yes"], ["rm", "copy", "@", "--yes"], ["rm", "copy", "--yes"],
        ["replication", "--join", "--yes", "--secondary", "sqlite:///far.db"], ["copy", "sqlite:///new.db"],
        ["copy", "sqlite:///sealed.db", "--target-key-file", "agent.keys"],
        ["rotate", "--store", "sqlite:///sealed.db", "--key-file", "agent.keys"],
        ["new-key", "other.keys"], ["promote", "--secondary", "sqlite:///far.db", "--yes"],
        ["replication", "--leave", "--yes", "--secondary", "sqlite:///far.db"],
    ):  # fmt: skip
        items = program(*arguments, "--json", **env).items
        assert items, arguments
        row = next(
            line
            for line in listed.splitlines()
            if f"`{arguments[0]}`" in line.partition("|")[2].partition("|")[0]
        )
        for field in items[0]:
            assert f"`{field}`" in (listed if "show" in arguments else row), (arguments, field)


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_every_exit_code_is_in_the_docs(code):
    assert re.search(rf"^\| {code} \|", page(), re.MULTILINE)
