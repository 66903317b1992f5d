"""The command line on encrypted stores: with the keys, without them, and changing them."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import sqlite3

import pytest

import outlive
from rig.world import build

OLD, NEW = random.Random(1).randbytes(32), random.Random(2).randbytes(32)
GIVE = "pass the key file with --key-file PATH, or the keys in OUTLIVE_KEYS\n"
SECRET = "the launch code is 0451"


def words(**keys):
    return " ".join(f"{id}:{base64.b64encode(key).decode()}" for id, key in keys.items())


@pytest.fixture(params=["sqlite", "postgresql"])
def sealed(request, program):
    """The program on an encrypted store of either kind, with key files in its folder."""
    url = f"sqlite:///{program.folder}/agent.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_store")
    for name, keys in {"old": {"old": OLD}, "both": {"old": OLD, "new": NEW}, "new": {"new": NEW}}.items():
        (program.folder / f"{name}.keys").write_text(words(**keys).replace(" ", "\n") + "\n")
    with outlive.open(url, key=outlive.KeyRing({"old": OLD})) as store:
        store.thread("trip").save({"said": SECRET}, id="c1", metadata={"node": "act"})
        store.run("trip", run_id="r-1", agent="planner", prompt=SECRET).start().fail("broken")

    def run(*arguments, **options):
        return program(*arguments, **{"OUTLIVE_STORE": url, **options})

    run.url, run.folder = url, program.folder
    return run


def test_every_command_opens_it_with_a_key_file_or_by_the_environment(sealed):
    assert sealed("show", "trip", "--path", "said", "--key-file", "old.keys").out == f"{SECRET}\n"
    assert sealed("--key-file", "old.keys", "ls", "-q").out == "trip\n"
    keys = words(old=OLD)
    assert sealed("runs", "--all", "-q", OUTLIVE_KEYS=keys).out == "r-1\n"
    items = json.loads(sealed("doctor", "--json", OUTLIVE_KEYS=keys).out)["items"]
    found = {item["check"]: item["level"] for item in items}
    assert found["store"] == found["sizes"] == found["schema"] == "ok"


def test_without_keys_it_is_verified_and_all_else_says_what_is_missing(sealed):
    assert sealed("verify").out.startswith("ok: 1 thread, 2 checkpoints")
    assert sealed("verify", "trip", "--json").items[0]["problems"] == []
    for arguments in (
        ["ls"],
        ["show", "trip"],
        ["history", "trip"],
        ["runs"],
        ["stats"],
        ["rm", "trip", "--yes"],
        ["rotate"],
    ):
        ended = sealed(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == f"outlive: this store is encrypted under key 'old', which was not given; {GIVE}"
    doctor = sealed("doctor", "-q")
    assert (
        doctor.code,
        "keys: this store is encrypted under key 'old', which was not given" in doctor.out,
    ) == (
        1,
        True,
    )
    assert SECRET not in sealed("doctor").out


def test_what_is_broken_is_found_without_keys(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db", key=outlive.KeyRing({"old": OLD})) as store:
        store.thread("trip").save({"said": SECRET * 100})
    with contextlib.closing(sqlite3.connect(program.folder / "agent.db")) as db, db:
        assert db.execute("update chunk set data = zeroblob(length(data))").rowcount
    found = program("verify", "-q")
    assert (found.code, "thread 'trip'" in found.out) == (1, True)


def test_wrong_keys_are_told_apart_and_never_shown(sealed):
    other = words(old=NEW)
    wrong = sealed("ls", OUTLIVE_KEYS=other)
    assert (wrong.code, "another key 'old'" in wrong.err) == (2, True)
    missing = sealed("ls", "--key-file", "new.keys")
    assert missing.err == f"outlive: this store is encrypted under key 'old', which was not given; {GIVE}"
    for keys in (other[:-4], "old=x", words(old=b"secret")):
        bad = sealed("ls", OUTLIVE_KEYS=keys)
        assert bad.code == 2
        assert keys.partition(":")[2] not in bad.err or not keys.partition(":")[2]
    assert sealed("ls", "--key-file", "none.keys").err == (
        "outlive: cannot read the key file 'none.keys': No such file or directory\n"
    )


def test_keys_are_changed(sealed):
    assert sealed("rotate", "--key-file", "old.keys", "--json").items[0]["total"] == 0
    (done,) = sealed("rotate", "--key-file", "both.keys", "--json").items
    assert (done["threads"], done["checkpoints"], done["key"]) == (1, 2, "new")
    assert done["total"] > 2
    assert (
        sealed("rotate", "--key-file", "both.keys").out
        == "re-encrypted nothing; all data of 1 thread is under key new\n"
    )
    assert sealed("show", "trip", "--path", "said", "--key-file", "new.keys").out == f"{SECRET}\n"
    assert sealed("ls", "--key-file", "old.keys").code == 2


def test_a_store_is_encrypted_and_decrypted_by_copying_it(sealed):
    plain, again = (f"sqlite:///{sealed.folder}/{name}.db" for name in ("plain", "again"))
    same = f"sqlite:///{sealed.folder}/same.db"
    assert sealed("copy", plain, "--key-file", "old.keys", "--decrypt", "--verify").code == 0
    assert sealed("show", "trip", "--path", "said", "--store", plain).out == f"{SECRET}\n"
    assert sealed("copy", again, "--store", plain, "--target-key-file", "new.keys", "--verify").code == 0
    assert (
        sealed("runs", "show", "r-1", "--store", again, "--key-file", "new.keys", "--json").items[0]["prompt"]
        == SECRET
    )
    assert SECRET.encode() not in (sealed.folder / "again.db").read_bytes()
    assert sealed("copy", same, "--key-file", "old.keys").code == 0
    assert sealed("ls", "--store", same).code == 2  # encrypted as its source is


def test_keys_for_a_store_that_is_not_encrypted_are_refused(program):
    build(f"sqlite:///{program.folder}/agent.db")
    ended = program("ls", OUTLIVE_KEYS=words(old=OLD))
    assert ended.code == 2
    assert "this store is not encrypted; remove --key-file and OUTLIVE_KEYS" in ended.err
    assert (
        program("rotate")
        .err.splitlines()[-1]
        .startswith("outlive: this store is not encrypted; outlive copy")
    )
    assert program("ls", "-q").code == 0


def test_async_handlers_recover_in_an_encrypted_store(sealed):
    (sealed.folder / "agents.py").write_text("async def go_on(run):\n    return 'done: ' + run.info.prompt\n")
    keys = words(old=OLD)
    retried = sealed("retry", "r-1", "--handlers", "agents:go_on", OUTLIVE_KEYS=keys)
    assert retried.code == 0, retried.err
    assert sealed("runs", "show", "r-1", "--json", OUTLIVE_KEYS=keys).items[0]["result"] == f"done: {SECRET}"


def test_a_key_is_made_in_a_file_that_only_its_owner_reads(program):
    made = program("new-key", "agent.keys", "--id", "a")
    assert (made.code, made.out) == (0, "created key a in agent.keys; the newest key is a\n")
    assert (program.folder / "agent.keys").stat().st_mode & 0o777 == 0o600
    (program.folder / "agent.keys").chmod(0o644)
    (item,) = program("new-key", "agent.keys", "--json").items
    assert (item["keys"], item["file"]) == (["a", item["key"]], "agent.keys")
    assert program("new-key", "agent.keys", "--id", "z", "--first", "-q").out == ""
    assert (program.folder / "agent.keys").stat().st_mode & 0o777 == 0o600
    lines = (program.folder / "agent.keys").read_text().splitlines()
    assert outlive.KeyRing.parse(" ".join(lines)).ids == ("z", "a", item["key"])
    for id in ("a", "b c", "b:c", "", "é"):
        assert program("new-key", "agent.keys", "--id", id).code == 2
    (program.folder / "notes.txt").write_text("no key")
    assert program("new-key", "notes.txt").code == 2
    assert (program.folder / "notes.txt").read_text() == "no key"
    assert outlive.KeyRing.parse(program("new-key", "-", "--id", "b").out).ids == ("b",)
    store = f"sqlite:///{program.folder}/agent.db"
    build(f"{store}.plain")
    assert program("copy", store, "--store", f"{store}.plain", "--target-key-file", "agent.keys").code == 0
    assert program("ls", "-q", "--store", store, "--key-file", "agent.keys").code == 0


def test_a_ring_without_keys_opens_for_what_needs_none(sealed):
    assert sealed("ls", "-q", "--key-file", "/dev/null").out == "trip\n"
    assert sealed("show", "trip", "--key-file", "/dev/null").code == 2


def test_without_keys_a_thread_is_deleted_but_nothing_is_chosen_to_go(sealed):
    for command in (
        ["prune", "trip", "--keep-last", 1, "--dry-run"],
        ["sweep", "--keep-last", 1, "--dry-run"],
    ):
        ended = sealed(*command, "--key-file", "/dev/null")
        assert (ended.code, ended.out) == (2, "")
        assert "no key was given" in ended.err
    (item,) = sealed("rm", "trip", "--yes", "--json", "--key-file", "/dev/null").items
    assert (item["checkpoints"], item["runs"]) == (2, 1)
    assert sealed("ls", "-q", "--key-file", "/dev/null").out == ""


def test_a_ring_without_keys_is_refused_for_a_store_that_is_not_encrypted(program):
    build(f"sqlite:///{program.folder}/agent.db")
    for command in (["ls"], ["show", "trip-42"], ["verify"]):
        ended = program(*command, "--key-file", "/dev/null")
        assert (ended.code, ended.out) == (2, "")
        assert "this store is not encrypted; remove --key-file" in ended.err
