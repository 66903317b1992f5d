"""The command line on what a store keeps: sweeping, other keys, threads as text."""

from __future__ import annotations

import base64
import json
import os

import pytest

import outlive
from world import ODD_ID, Plan, build, open_knowing


@pytest.fixture(params=["sqlite", "postgresql"])
def cli(request, program):
    """The program on a store with a little of everything."""
    url = f"sqlite:///{program.folder}/agent.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_store")
    build(url)

    def run(*arguments, **options):
        return program(*arguments, OUTLIVE_STORE=url, **options)

    run.url, run.folder = url, program.folder
    return run


def test_a_sweep_says_what_goes_and_then_deletes_it(cli):
    assert cli("sweep").err.endswith("give --keep-last, --max-age or --ttl\n")
    assert cli("sweep", "--max-age", "soon").code == 2
    planned = cli("sweep", "--keep-last", 1, "--dry-run")
    assert planned.out.startswith("would delete 3 checkpoints (")
    assert cli("sweep", "--keep-last", 1).err.startswith("outlive: this would delete 3 checkpoints (")
    assert len(cli("history", "trip-42", "-q").out.split()) == 4
    (item,) = cli("sweep", "--keep-last", 1, "--yes", "--json").items
    assert (item["dry_run"], item["keep_last"]["checkpoints"], item["problems"]) == (False, 3, [])
    assert cli("history", "trip-42", "-q").out.split() == ["branch"]
    assert cli("sweep", "--ttl", "30d", "--max-age", "12h").out == "nothing to delete in 5 threads\n"


def test_an_exported_thread_comes_back_as_it_was(cli):
    assert cli("export", "types", "-o", "types.json").code == 0
    taken = cli("export", "types", "-o", "types.json")
    assert (taken.code, taken.err) == (2, "outlive: 'types.json' cannot be written: File exists\n")
    assert cli("import", "types.json", "--as", "again").out == "thread again has 1 checkpoints\n"
    assert cli("diff", "types", "@", "--to", "again", "--exit-code").code == 0
    there = cli("import", "types.json")
    assert (there.code, there.err.startswith("outlive: thread 'types' has checkpoints already")) == (2, True)
    assert cli("import", "nowhere.json").code == cli("import", "agent.db").code == 2


def test_an_export_goes_through_a_pipe_and_steers_no_terminal(cli):
    text = cli("export", "odd").out
    assert not [char for char in text if char != "\n" and not char.isprintable()]
    assert json.loads(text)
    assert cli("rm", ODD_ID.replace("\x1b", "\\x1b").replace("\n", "\\n"), "--yes").code == 0
    assert cli("import", "-", stdin=text).code == 0
    assert cli("show", "odd", "--json").items[0]["thread"] == ODD_ID
    cli("import", "-", "--as", "t", stdin=cli("export", "trip-42").out)
    with open_knowing(cli.url) as store:
        assert store.thread("t").load("c3")["plan"] == Plan("Lisbon", 3)


def test_an_encrypted_store_is_read_and_rotated_with_keys_from_the_environment(program):
    old, new = os.urandom(32), os.urandom(32)
    url = f"sqlite:///{program.folder}/agent.db"
    with outlive.open(url, key=outlive.KeyRing({"a": old})) as store:
        store.thread("t").save({"secret": "Lisbon"})
    words = {name: f"{name}:{base64.b64encode(key).decode()}" for name, key in (("a", old), ("b", new))}
    assert program("show", "t", "--path", "secret", "-q", OUTLIVE_KEYS=words["a"]).out == "Lisbon\n"
    assert program("doctor", "-q", OUTLIVE_KEYS=words["a"]).code == 0
    both = f"{words['a']} {words['b']}"
    (done,) = program("rotate", "--json", OUTLIVE_KEYS=both).items
    assert done["threads"] == 1
    assert done["total"] > 0
    assert program("show", "t", "--path", "secret", "-q", OUTLIVE_KEYS=words["b"]).out == "Lisbon\n"
    wrong = program("show", "t", OUTLIVE_KEYS="nonsense")
    assert (wrong.code, "nonsense" in wrong.err) == (2, False)
    without = program("show", "t")
    assert without.code in (2, 3)
    assert "Lisbon" not in without.out + without.err
    assert "internal error" not in without.err
