"""`outlive import-langgraph`: the real program on a database that LangGraph wrote."""

from __future__ import annotations

import importlib
import json
import os

import pytest

from adapters.langgraph.making import put
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import assert_same, saver_on, sqlite_saver
from adapters.langgraph_importer.graphs import THREADS
from outlive.adapters.langgraph import OutliveSaver, import_langgraph
from outlive.adapters.langgraph.importer.dotted_names import named_serde, named_types
from outlive.errors import BadArgument, BadURL

TICKET = "adapters.langgraph_importer.graphs.Ticket"


@pytest.fixture
def old(program):
    with sqlite_saver(program.folder / "old.db") as saver:
        graphs.fill(saver)
    return program.folder / "old.db"


def test_a_database_is_moved_and_can_be_moved_again(program, old, postgres_store):
    target = postgres_store
    call = ("import-langgraph", f"sqlite:///{old}", target, "--type", TICKET)
    planned = program(*call, "--dry-run")
    assert (planned.code, planned.out.startswith("would import ")) == (0, True), planned.err
    moved = program(*call, "--json")
    assert moved.code == 0, moved.err
    (item,) = moved.items
    assert (item["threads"], item["problems"], item["unknown_types"]) == (len(THREADS), [], [])
    assert item["verified"] == item["checkpoints"] > 0
    assert program("ls", "-q", "--store", target).out.split() == list(THREADS)
    with sqlite_saver(old) as source:
        assert_same(source, saver_on(target), THREADS)
    assert program(*call, "--json").items[0]["present"] == item["checkpoints"]


SERDE = """
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

class Cipher:
    def encrypt(self, plaintext):
        return "reversed", plaintext[::-1]
    def decrypt(self, name, ciphertext):
        return ciphertext[::-1]

class Odd:
    pass

def secret():
    return EncryptedSerializer(Cipher())

trusting = JsonPlusSerializer(pickle_fallback=True)
"""


def test_what_only_a_serializer_of_one_s_own_reads_is_moved_when_it_is_named(program, monkeypatch):
    (program.folder / "secrets_of_mine.py").write_text(SERDE)
    monkeypatch.syspath_prepend(program.folder)
    mine = importlib.import_module("secrets_of_mine")
    for serde, value, name, said in [
        (mine.secret(), "text", "secrets_of_mine.secret", "encrypted"),
        (mine.trusting, mine.Odd(), "secrets_of_mine.trusting", "pickle"),
    ]:
        source, target = f"sqlite:///{program.folder}/{said}.db", f"sqlite:///{program.folder}/{said}-new.db"
        with sqlite_saver(program.folder / f"{said}.db") as saver:
            saver.serde = serde
            put(saver, "1", values={"a": value})
        refused = program("import-langgraph", source, target)
        assert (refused.code, said in refused.err, "--serde" in refused.err) == (2, True, True)
        moved = program("import-langgraph", source, target, "--serde", name)
        assert moved.code == 0, moved.err
        with OutliveSaver(target, serde=serde) as saver:
            assert type(saver.get_tuple(graphs.on("t")).checkpoint["channel_values"]["a"]) is type(value)


def test_a_terminal_or_a_log_sees_how_far_it_is(program, old):
    unknown = program("import-langgraph", f"sqlite:///{old}", "sqlite:///new.db", "--dry-run")
    assert (unknown.code, "would import 5 threads" in unknown.out) == (1, True)
    assert f"name the classes: --type {TICKET}" in unknown.out
    ended = program("import-langgraph", f"sqlite:///{old}", "sqlite:///new.db", "--type", TICKET)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("imported 6 threads, ")
    assert "checkpoints compared with the source" in ended.out
    assert ended.err.count(" checkpoints\n") == 10  # a line for every tenth


@pytest.mark.parametrize(
    "options, message",
    [
        (["--type", "Ticket"], "--type takes MODULE.CLASS"),
        (["--type", "nowhere.Ticket"], "there is no such module"),
        (["--type", "nowhere.inside.Ticket"], "there is no such module"),
        (["--type", "os.path"], "there is no class of that name"),
        (["--type", "collections.Inner"], "one inside another class is MODULE.Outer.Inner"),
        (["--type", "collections.Counter[int]"], "the class of a state whose annotations have it"),
        (["--type", "os..path"], "--type takes MODULE.CLASS"),
        (["--serde", "serde"], "--serde takes MODULE.NAME"),
        (["--serde", "nowhere.serde"], "there is no such module"),
        (["--serde", "os.sep"], "neither a serializer nor a function"),
        (["--serde", "os.abort_"], "neither a serializer nor a function"),
        (["--serde", "os.remove"], "calling it failed"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(options, message):
    option, name = options
    with pytest.raises(BadArgument, match=message):
        named_types([name]) if option == "--type" else named_serde(name)


def test_mistakes_are_told_and_make_no_store(program, old):
    wrong = program("import-langgraph", "sqlite:///nope.db", "sqlite:///new.db")
    assert wrong.code in (2, 3)
    assert not (program.folder / "new.db").exists()
    twice = program("import-langgraph", f"sqlite:///{old}", "sqlite:///new.db", "--store", "sqlite:///new.db")
    assert (twice.code, "name the target once" in twice.err) == (2, True)


def test_json_names_the_target_and_whose_threads_they_are_also_of_a_dry_run(program, old):
    target = f"sqlite:///{program.folder}/new.db"
    for more, tenant in ((["--dry-run"], ""), ([], "acme")):
        url = f"{target}?tenant={tenant}" if tenant else target
        ended = program("import-langgraph", f"sqlite:///{old}", url, "--type", TICKET, "--json", *more)
        said = json.loads(ended.out)
        assert (ended.code, said["store"], said["tenant"]) == (0, target, tenant)


def test_a_thread_that_cannot_be_moved_says_what_else_there_is_to_do(program, old):
    ended = program("import-langgraph", f"sqlite:///{old}", "sqlite:///new.db", "-q")
    assert ended.code == 2
    assert ended.err.endswith("(--dry-run lists all problems, --skip leaves such threads out)\n")


def test_a_target_that_is_a_plain_path_is_treated_as_its_url(old, program):
    program("import-langgraph", f"sqlite:///{old}", "plain.db", "--dry-run")
    created = [name for name in os.listdir(program.folder) if name.startswith("plain.db")]
    assert created == [], "a dry run creates no store"
    refused = program("import-langgraph", str(old), str(old))
    assert (refused.code, "cannot be its own target" in refused.err) == (2, True)


def test_a_source_may_be_a_plain_path_and_its_file_says_how_it_is_imported(old, program):
    with pytest.raises(BadURL, match=r"a database of LangGraph's SqliteSaver.*outlive import-langgraph"):
        OutliveSaver(f"sqlite:///{old}")
    odd = old.rename(old.with_name("50% old?.db"))
    assert program("import-langgraph", "50% old?.db", "new.db", "--type", TICKET, "-q").code == 0
    assert import_langgraph(odd, f"sqlite:///{program.folder}/new.db", types=[graphs.Ticket]).present > 0
