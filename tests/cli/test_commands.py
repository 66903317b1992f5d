"""The command line: what it says of threads and checkpoints, in which shape, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

import outlive
from rig.crash import ram_folder
from rig.program import environment, fresh
from rig.world import ODD_ID, Plan, build, open_knowing


@pytest.fixture(scope="module")
def _built():
    with ram_folder() as folder:
        build(f"sqlite:///{folder}/agent.db")
        yield folder / "agent.db"


@pytest.fixture
def here(_built, program):
    """The program in a folder that holds a copy of the store, which it finds."""
    shutil.copy(_built, program.folder / "agent.db")
    return program


FOUND = "outlive: using sqlite:///agent.db, found in this folder\n"


@pytest.fixture(params=["sqlite", "postgresql"])
def anywhere(request, program, _built):
    """The program on a store of either kind, which OUTLIVE_STORE names."""
    if request.param == "sqlite":
        shutil.copy(_built, program.folder / "agent.db")
        url = f"sqlite:///{program.folder}/agent.db"
    else:
        url = request.getfixturevalue("postgres_store")
        build(url)

    def run(*arguments, **options):
        return program(*arguments, OUTLIVE_STORE=url, **options)

    run.url, run.folder = url, program.folder
    return run


def lines(ended):
    assert (ended.code, said(ended)) == (0, "")
    return ended.out.splitlines()


def said(ended):
    """Return what it said beside the answer, but for which store it found."""
    return ended.err.removeprefix(FOUND)


# Threads


def test_threads_are_listed_with_head_step_size_and_age(anywhere):
    rows = lines(anywhere("ls"))
    assert rows[0].split() == ["THREAD", "HEAD", "STEP", "CHECKPOINTS", "SIZE", "CHANGED", "METADATA"]
    assert [row.split()[0] for row in rows[1:]] == ["-dash", "odd\\x1b[2J\\nid", "trip-42", "trip-7", "types"]
    trip = rows[3].split()
    assert trip[1:4] == ["@4", "3", "5"]
    assert rows[3].endswith('title="Lisbon" user="ada"')


def test_threads_are_paged_filtered_and_sorted(anywhere):
    first = json.loads(anywhere("ls", "--limit", 2, "--json").out)
    assert first["next"] == ODD_ID
    assert [item["id"] for item in first["items"]] == ["-dash", ODD_ID]
    assert [item["id"] for item in anywhere("ls", "--after", ODD_ID, "--json").items] == [
        "trip-42",
        "trip-7",
        "types",
    ]
    assert [item["id"] for item in anywhere("ls", "trip", "--json").items] == ["trip-42", "trip-7"]
    assert [item["id"] for item in anywhere("ls", "--filter", "user=ada", "--json").items] == ["trip-42"]
    sizes = [item["stored_bytes"] for item in anywhere("ls", "--sort", "size", "--json").items]
    assert sizes == sorted(sizes, reverse=True)
    assert anywhere("ls", "--tenant", "acme", "-q").out == "secret\n"


def test_a_checkpoint_is_found_by_id_by_prefix_and_by_place(anywhere):
    def found(*place):
        return anywhere("show", *place, "--json").items[0]["id"]

    assert found("trip-42") == found("trip-42", "@") == found("trip-42", "@4") == "branch"
    assert found("trip-42", "@-1") == found("trip-42", "c3") == found("trip-42", "@3") == "c3"
    assert found("typ", "t") == "t1"
    assert anywhere("show", "trip-42", "c").err.startswith(
        "outlive: 'c' matches several checkpoints: c3, c2, c1;"
    )
    assert anywhere("show", "trip-42", "nope").code == 2
    assert anywhere("show", "trip-42", "@99").err.startswith(
        "outlive: no checkpoint @99; the newest of 4 is @4"
    )
    several = anywhere("show", "tri")
    assert several.code == 2
    assert several.err == "outlive: 'tri' matches several threads: trip-42, trip-7; give more of the id\n"


def test_ids_that_look_like_options_or_hold_escapes_are_reached(here):
    assert here("show", "--json", "--", "-dash", "-d1").items[0]["state"] == {"n": 2}
    assert here("show", "--json", "odd\\x1b[2J\\nid", "o\\x1b1").items[0]["thread"] == ODD_ID
    assert "\x1b" not in here("show", "odd").out
    assert "\x1b" not in here("ls").out
    here("fork", "--", "-dash", "-new")
    assert here("show", "--json", "--", "-new").items[0]["source"] == "fork"


def test_a_list_takes_ids_as_it_shows_them(here):
    odd = "odd\\x1b[2J\\nid"
    assert here("ls", "odd\\x1b", "-q").out == f"{odd}\n"
    assert here("ls", "--after", odd, "-q").out == here("ls", "--after", ODD_ID, "-q").out


def test_columns_stand_below_each_other_whatever_the_script(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        for name in ("plain", "\u65e5\u672c", "e\u0301"):
            store.thread(name).save({"n": 1})
    rows = lines(program("ls"))[1:]
    assert [row.split("@")[0] for row in rows] == ["e\u0301         ", "plain     ", "\u65e5\u672c      "]


def test_a_state_with_unknown_types_is_shown_and_never_steers_the_terminal(anywhere):
    ended = anywhere("show", "types")
    assert (ended.code, ended.err) == (0, "")
    shown = ended.out
    assert not [char for char in shown if char != "\n" and not char.isprintable()]
    assert '"text": "\\x1b[31mred\\x1b]0;title\\x07 \\x9b2J \\u202eturned\\ud800"' in shown
    assert '"plan": plan/2 {"city": "Faro", "days": 9}' in shown
    assert '"foreign": extension 48 (9 bytes)' in shown
    assert '"document": some.module.Document {"text": "a\\x1b[2J", "tags": other.Tag "x"}' in shown
    assert '"when": datetime 2026-05-01T12:30:00+00:00' in shown
    assert "… 60 more" in shown
    assert "… 60 more" not in anywhere("show", "types", "--full").out


def test_json_tells_types_apart(anywhere):
    (item,) = anywhere("show", "types", "--json").items
    value = dict(item["state"]["$dict"])  # because a key of the user's own begins with $
    assert value["$type"] == "a key of the user's"
    assert value["pair"] == {"$tuple": [1, "two"]}
    assert value["set"] == {"$set": [3]}
    assert value["bytes"] == {"$bytes": "AP8="}
    assert value["nan"] == {"$float": "nan"}
    assert value["keys"] == {"$map": [[1, "one"]]}
    assert value["plan"] == {"$type": "plan", "version": 2, "value": {"city": "Faro", "days": 9}}
    assert value["foreign"] == {"$extension": 48, "bytes": "kqFhoWIbWzJK"}
    assert value["when"]["$datetime"] == "2026-05-01T12:30:00.000000"
    assert value["big"] == {"$int": hex(1 << 80)}


def test_one_place_of_a_state_is_shown_by_its_path(here):
    assert here("show", "trip-42", "c3", "--path", "messages[-1].text").out == "message 2\n"
    assert here("show", "trip-42", "c3", "--path", "plan.city", "--json").items[0]["value"] == "Lisbon"
    assert here("show", "types", "--path", "keys[1]").out == "one\n"
    assert here("show", "types", "--path", "document.tags", "--json").items[0]["value"]["$extension"] == 48
    wrong = here("show", "trip-42", "--path", "plan.nope")
    assert (wrong.code, said(wrong)) == (2, "outlive: plan has no 'nope'; it has 'city', 'days'\n")
    assert here("show", "trip-42", "--path", "messages[").code == 2


def test_the_parts_of_a_state_are_measured(here):
    items = here("show", "types", "--parts", "--json").items
    assert items[0]["bytes"] >= items[-1]["bytes"]
    assert {"path": "list", "type": "list", "count": 100, "bytes": 103} in items
    rows = lines(here("show", "types", "--parts"))
    assert rows[0].split() == ["PATH", "TYPE", "COUNT", "SIZE", "SHARE"]


def test_a_state_as_of_a_moment(here):
    (first,) = here("show", "trip-42", "c1", "--json").items
    assert here("show", "trip-42", "--at", first["created_at"], "--json").items[0]["id"] == "c1"
    assert said(here("show", "trip-42", "--at", "2001-01-01")).startswith(
        "outlive: thread 'trip-42' had no checkpoint"
    )
    assert here("show", "trip-42", "--at", "yesterday").code == 2


def test_history_is_a_tree(anywhere):
    rows = lines(anywhere("history", "trip-42"))
    drawn = [(row[:4].rstrip(), row.split()[-1]) for row in rows[1:]]
    assert drawn == [("●", "branch"), ("│ ●", "c3"), ("├─╯", "├─╯"), ("●", "c2"), ("●", "c1")]
    assert [item["parent"] for item in anywhere("history", "trip-42", "--json").items] == [
        "c2",
        "c2",
        "c1",
        None,
    ]
    assert anywhere("history", "trip-42", "-q").out.split() == ["branch", "c3", "c2", "c1"]
    assert anywhere("history", "trip-42", "--filter", "node=plan", "-q").out.split() == ["c2"]
    assert anywhere("history", "trip-42", "--before", "@3", "--limit", 1, "-q").out.split() == ["c2"]
    assert anywhere("history", "trip-42", "--all-namespaces", "-q").out.split() == [
        "s1",
        "branch",
        "c3",
        "c2",
        "c1",
    ]
    assert anywhere("tips", "trip-42", "-q").out.split() == ["branch", "c3"]


def test_a_history_of_all_namespaces_is_paged(anywhere):
    first = json.loads(anywhere("history", "trip-42", "--all-namespaces", "--limit", 1, "--json").out)
    assert ([item["namespace"] for item in first["items"]], first["next"]) == (["sub"], "cursor:0.5:s1")
    for before in ("s1", "@5", first["next"]):
        rest = anywhere("history", "trip-42", "--all-namespaces", "--before", before, "-q")
        assert rest.out.split() == ["branch", "c3", "c2", "c1"]


def test_a_history_of_many_branches_is_drawn_without_crossing(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        thread = store.thread("t")
        thread.save(0, id="root")
        for name, parent in (("a1", "root"), ("b1", "root"), ("c1", "root"), ("b2", "b1"), ("a2", "a1")):
            thread.save(name, id=name, parent=parent)
    rows = [row[:7].rstrip() for row in program("history", "t", "-q").out.splitlines()]
    assert rows == ["a2", "b2", "c1", "b1", "a1", "root"]
    drawn = [row[:6].rstrip() for row in program("history", "t").out.splitlines()[1:]]
    assert drawn == ["●", "│ ●", "│ │ ●", "│ ● │", "● │ │", "├─┴─╯", "●"]
    plain = fresh("history", "t", folder=program.folder, PYTHONIOENCODING="ascii").out.splitlines()[1:]
    assert [row[:6].rstrip() for row in plain] == ["*", "| *", "| | *", "| * |", "* | |", "|---'", "*"]


def test_differences_are_shown_path_by_path(anywhere):
    ended = anywhere("diff", "trip-42", "c1", "c2")
    assert lines(ended) == [
        "from trip-42 @1 (step 1) to trip-42 @2 (step 2): 2 changes",
        '+ messages[1]: {"role": "user", "text": "message 1"}',
        "~ plan.days: 1 → 2",
    ]
    assert [item["path"] for item in anywhere("diff", "trip-42", "--json").items] == [
        "note"
    ]  # head, to its parent
    anywhere("fork", "trip-42", "other", "--at", "c1")
    assert lines(anywhere("diff", "trip-42", "c1", "--to", "other"))[0].endswith(
        "to other @1 (step 1): no changes"
    )
    assert anywhere("diff", "trip-42", "c1", "c2", "--exit-code").code == 1
    assert anywhere("diff", "trip-42", "c1").code == 0
    assert anywhere("diff", "trip-7").err.startswith("outlive: @1 of thread 'trip-7' has no parent")


def test_writes_and_interrupts_are_shown(anywhere):
    (first, second) = anywhere("writes", "trip-42", "--json").items
    assert (first["task"], first["channel"], first["value"]["$type"]) == ("task-1", "messages", "plan")
    assert second["value"] is True
    assert lines(anywhere("writes", "trip-42"))[1].split()[:3] == ["task-1", "0", "messages"]
    (item,) = anywhere("show", "trip-7", "--json").items
    assert item["open_interrupts"] == ["ask-1"]
    assert 'ask-1 at approve (open): {"question": "Book it?"}' in anywhere("show", "trip-7").out


def test_forks_and_copies_are_made(anywhere):
    assert lines(anywhere("fork", "trip-42", "b", "--at", "@2")) == ["created thread b from @2 of trip-42"]
    assert lines(anywhere("copy-thread", "trip-42", "c")) == ["copied 5 checkpoints of trip-42 to thread c"]
    taken = anywhere("fork", "trip-42", "b")
    assert (taken.code, taken.out) == (2, "")
    assert (
        taken.err
        == "outlive: thread 'b' already has checkpoints; choose another id, or delete the thread first\n"
    )
    with open_knowing(anywhere.url) as store:  # unknown types came through as they were
        assert store.thread("b").load()["plan"] == Plan("Lisbon", 2)


# Deleting


def test_nothing_is_deleted_without_being_asked(anywhere):
    asked = anywhere("rm", "trip-42")
    assert (asked.code, asked.out) == (2, "")
    assert "this would delete thread trip-42 with its 5 checkpoints" in asked.err
    assert "--yes" in asked.err
    assert anywhere("rm", "trip-4", "--yes").code == 2  # not by a part of its name
    assert "trip-42" in anywhere("ls", "-q").out
    assert anywhere("rm", "trip-42", "--yes", "-q").out == ""
    assert "trip-42" not in anywhere("ls", "-q").out


def test_checkpoints_are_deleted_by_id(anywhere):
    assert anywhere("rm", "trip-42", "bra", "--yes").code == 2  # not by a part of its name
    assert lines(anywhere("rm", "trip-42", "c1", "@3", "--yes"))[0].startswith("deleted 2 checkpoints")
    assert anywhere("history", "trip-42", "-q").out.split() == ["branch", "c2"]


@pytest.mark.parametrize("what", [["t"], ["t", "c1"]])
def test_what_is_erased_is_in_no_file(program, what):
    secret = "the launch code is 0451"
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:  # stays open, so that the log stays
        store.thread("t").save({"said": secret}, id="c1")
        store.thread("t").save({"said": "nothing"}, id="c2")
        assert held(program.folder, secret)
        assert program("rm", *what, "--erase", "--yes", "-q").code == 0
        assert not held(program.folder, secret)


def held(folder, text):
    return any(text.encode() in path.read_bytes() for path in folder.iterdir())


def test_prune_says_what_goes_and_then_deletes_it(anywhere):
    planned = lines(anywhere("prune", "trip-42", "--keep-last", 2, "--dry-run"))[0]
    assert planned.startswith("would delete 2 checkpoints (")
    assert anywhere("history", "trip-42", "-q").out.split() == ["branch", "c3", "c2", "c1"]
    assert anywhere("prune", "--all", "--keep-last", 1).code == 2
    (item,) = anywhere("prune", "--all", "--keep-last", 1, "--yes", "--json").items
    assert (item["thread"], item["checkpoints"]) == ("trip-42", 3)
    assert anywhere("history", "trip-42", "-q").out.split() == ["branch"]
    assert lines(anywhere("prune", "--all", "--keep-last", 1)) == ["nothing to delete"]
    assert anywhere("prune", "--keep-last", 1).code == 2


# Care


def test_a_whole_store_is_verified(anywhere):
    (found,) = anywhere("verify", "--json").items
    assert (found["threads"], found["checkpoints"], found["problems"]) == (5, 9, [])
    assert anywhere("verify", "trip-42", "trip-7").out.startswith("ok: 2 threads, 6 checkpoints,")


def test_what_is_broken_is_named_and_the_exit_code_is_1(here):
    with contextlib.closing(sqlite3.connect(here.folder / "agent.db")) as db, db:
        db.execute("update chunk set data = zeroblob(length(data)) ")
    db.close()
    found = here("verify")
    assert found.code == 1
    assert "thread 'trip-42'" in found.out
    assert found.out.splitlines()[-1].startswith("Damage cannot be repaired")
    problems = here("verify", "--json").items[0]["problems"]
    assert problems
    assert here("verify", "-q").out.splitlines() == problems
    assert here("show", "trip-42", "c3").code == 3


def test_a_damaged_thread_is_deleted_as_verify_says(here):
    with contextlib.closing(sqlite3.connect(here.folder / "agent.db")) as db, db:
        db.execute("update checkpoint set body = zeroblob(length(body)) where id = 'c3'")
    db.close()
    assert here("show", "trip-42", "c3").err.endswith("or delete it with outlive rm\n")
    assert "would delete thread trip-42, which is damaged;" in here("rm", "trip-42").err
    assert here("rm", "trip-42", "--yes").out == "deleted thread trip-42\n"
    assert here("verify").code == 0


def test_one_damaged_thread_hides_no_other(here):
    with contextlib.closing(sqlite3.connect(here.folder / "agent.db")) as db, db:
        db.execute("update thread set checksum = zeroblob(8) where id = 'trip-42'")
        db.execute("update checkpoint set body = zeroblob(length(body)) where id = 't1'")
    db.close()
    for command in ("ls", "stats"):
        ended = here(command, "-q")
        assert (ended.code, sorted(ended.out.split("\n"))) == (1, ["", "-dash", "odd\\x1b[2J\\nid", "trip-7"])
    row, record = said(here("ls")).splitlines()
    assert row.startswith("outlive: corrupt store: thread 'trip-42': its row is damaged; outlive verify")
    assert record.startswith("outlive: corrupt store: thread 'types' checkpoint 't1': its record is damaged;")
    (found,) = here("verify", "--json").items
    assert (found["threads"], len(found["problems"])) == (4, 2)
    copied = here("copy", "file:copy")
    assert (copied.code, "(undamaged threads were copied)" in copied.err) == (3, True)
    assert here("copy", "file:some", "--thread", "trip-7").code == 0
    assert here("ls", "-q", "--store", "file:copy").out.split("\n") == [
        "-dash",
        "odd\\x1b[2J\\nid",
        "trip-7",
        "",
    ]
    swept = here("sweep", "--keep-last", 1, "--yes", "--json")
    assert (swept.code, len(json.loads(swept.out)["items"][0]["problems"])) == (1, 2)


def test_stats_compare_with_whole_states(anywhere):
    rows = lines(anywhere("stats"))
    assert rows[0].split() == ["THREAD", "CHECKPOINTS", "STORED", "FULL", "STATES", "RATIO"]
    assert rows[-1].split()[:3] == ["all", "5", "9"]
    items = anywhere("stats", "--json").items
    assert {item["thread"] for item in items} == {"-dash", ODD_ID, "trip-42", "trip-7", "types"}


def test_stores_are_copied_between_backends(anywhere):
    folder = anywhere.folder
    target = f"file://{folder}/copy"
    assert lines(anywhere("copy", target, "--verify")) == [
        f"copied 5 threads to {target}; the target has no damage"
    ]
    assert anywhere("ls", "--store", target, "-q").out == anywhere("ls", "-q").out
    again = f"sqlite:///{folder}/again.db"
    assert anywhere("copy", again, "--store", target, "--json").items[0]["threads"] == 5
    with open_knowing(again) as store:
        assert store.thread("trip-42").load("c3")["plan"] == Plan("Lisbon", 3)


@pytest.mark.each_engine
def test_doctor_finds_nothing_wrong_with_a_good_store(anywhere):
    ended = anywhere("doctor", "--json")
    found = {item["check"]: item for item in ended.items}
    bad = [item for item in found.values() if item["level"] in ("warning", "problem")]
    if anywhere.url.startswith("postgresql"):  # the tests' server does not wait for its disk
        assert [item["check"] for item in bad] == ["durability"]
        assert "fsync = on" in bad[0]["fix"]
        assert abs(float(found["clock"]["message"].split()[4])) < 2
        assert "round trip" in found
    else:
        assert bad == []
        assert "synchronous=full" in found["durability"]["message"]
    assert "without the WAL-reset bug" in found["sqlite"]["message"]
    assert "5 threads, 9 checkpoints" in found["sizes"]["message"]
    assert {"outlive", "packages", "schema", "store", "runs"} <= found.keys()


@pytest.mark.each_engine
@pytest.mark.parametrize("backend", ["file", "redis"])
def test_doctor_tells_the_schema_of_every_kind_of_store(program, url_for, backend):
    url = url_for(backend, program.folder)
    build(url)
    found = {
        item["check"]: item for item in json.loads(program("doctor", "--json", "--store", url).out)["items"]
    }
    assert found["schema"]["level"] == "ok"
    assert "version 1" in found["schema"]["message"]
    assert "this outlive writes 1" in found["schema"]["message"]
    assert ("Valkey 9" in found["schema"]["message"]) == (backend == "redis")


def test_doctor_says_what_mends_it(here):
    weak = here("doctor", "--store", "sqlite:///agent.db?fsync=normal")
    assert weak.code == 1
    assert "  → open without fsync=normal, here and in the programs that save" in weak.out.splitlines()
    assert here("doctor", "--store", "sqlite:///agent.db?fsync=normal", "-q").out.startswith("durability: ")
    gone = here("doctor", "--store", "postgresql://localhost:1/none?timeout_s=0.3", "--json")
    assert gone.code == 1
    assert [item["check"] for item in gone.items if item["level"] == "problem"] == ["store"]


# Where and how


def test_the_store_in_this_folder_is_found_and_named(here):
    ended = here("ls")
    assert ended.code == 0
    assert ended.err == FOUND
    assert here("ls", "-q").err == here("ls", "--json").err == ""
    (here.folder / "other.db").write_bytes(b"not a store")
    with contextlib.closing(sqlite3.connect(here.folder / "foreign.db")) as db, db:
        db.execute("create table t(a)")
    db.close()
    assert here("ls", "-q").code == 0
    shutil.copy(here.folder / "agent.db", here.folder / "second.db")
    assert here("ls").err == (
        "outlive: several stores in this folder (agent.db, second.db); name one: "
        "outlive --store sqlite:///agent.db, or set OUTLIVE_STORE\n"
    )


def test_a_store_that_somebody_has_just_begun_is_found(program):
    with outlive.open(f"sqlite:///{program.folder}/new.db") as store:  # all of it is still in the log
        store.thread("t").save(1)
        assert program("ls", "-q").out == "t\n"


@pytest.mark.parametrize("url", ["sqlite:///typo.db", "file:typo", "postgresql"])
def test_looking_creates_nothing(program, url, request):
    if url == "postgresql":
        url = request.getfixturevalue("postgres_url")
    ended = program("ls", "--store", url)
    assert ended.code == 3
    assert "no store" in ended.err
    assert os.listdir(program.folder) == []
    assert program("ls", "--store", url).code == 3


def test_exit_codes_tell_whose_turn_it_is(here):
    assert here("ls").code == 0
    assert here("nope").code == here("ls", "--nope").code == here("ls", "--store", "mysql://x").code == 2
    assert here("ls", "--store", "postgresql://localhost:1/none?timeout_s=0.2").code == 3
    assert here("--help").code == here("ls", "--help").code == here("--version").code == 0
    assert here("histroy").err == "outlive: no command 'histroy'; did you mean history?\n"


def test_errors_are_one_line_without_a_traceback(here):
    ended = here("ls", "--store", "postgresql://me:secret@localhost:1/none?timeout_s=0.2")
    assert len(ended.err.splitlines()) == 1
    assert "secret" not in ended.err
    assert json.loads(here("show", "nope", "--json").err) == {
        "format": 1, "error": "BadArgument", "message": "no thread 'nope'; outlive ls lists all threads", "exit": 2,
    }  # fmt: skip
    debugged = here("show", "nope", "--debug")
    assert (debugged.code, "Traceback" in debugged.err) == (2, True)


def test_options_of_every_command_stand_before_or_behind_it(here):
    assert here("--json", "ls").out == here("ls", "--json").out
    assert here("--tenant", "acme", "-q", "ls").out == here("ls", "-q", "--tenant", "acme").out == "secret\n"
    assert here("ls", "--store", "sqlite:///agent.db?tenant=acme", "-q").out == "secret\n"


def test_a_reader_that_has_seen_enough_is_no_error(here):
    command = f"{sys.executable} -m outlive show types --full | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=here.folder, env=environment(), capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("thread      types\n", 0)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
