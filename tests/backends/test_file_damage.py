"""A folder store of which one file is gone, is an older copy of itself or is damaged: the right answer, or an OutliveError."""

import os
import random
import shutil

import pytest

import outlive
from rig.crash import ram_folder, rounds

OLD, NEW = 3, 8  # saves


def fill(store, first, last):
    """Save so many times; and leave a run with steps and responses, a thread with metadata alone, and one that was deleted."""
    for n in range(first, last):
        store.thread("t").save({"n": n, "text": [f"line {n}"] * 50}, id=f"c{n}", metadata={"n": n})
    store.thread("t").set_metadata({"title": f"at {last}"})
    store.thread("t").write("task", [("channel", last)])
    with store.run("worked", run_id=f"r{last}") as run:
        run.step("step", lambda: last)
        run.responses.open(["m"])
        run.responses.complete("m", {"text": f"{last}"})
        run.complete(last)
    store.thread(f"only at {last}").save({"n": last})
    store.thread("gone").save({"n": last})
    store.delete("gone")


def swept(store):
    """A sweep goes around what is damaged, and tells."""
    found = store.sweep(retain=outlive.Retain(keep_last=2), dry_run=True)
    if found.problems:
        raise outlive.Corrupt(str(found.problems[0]))
    return found.checkpoints


READS = {
    "load": lambda store: store.thread("t").load(),
    "load an older one": lambda store: store.thread("t").load("c2"),
    "load the newest thread": lambda store: store.thread(f"only at {NEW}").load(),
    "load what was deleted": lambda store: store.thread("gone").load(),
    "load what never was": lambda store: store.thread("never").load(),
    "history": lambda store: [(one.id, one.seq, one.parent, dict(one.metadata)) for one in store.thread("t").history()],
    "heads": lambda store: [one.id for one in store.thread("t").tips()],
    "writes": lambda store: [(one.channel, one.value) for one in store.thread("t").writes()],
    "metadata": lambda store: store.thread("t").metadata(),
    "info": lambda store: store.thread("t").info().checkpoints,
    "size": lambda store: store.thread("t").size().checkpoints,
    "export": lambda store: len(store.thread("t").export()),
    "threads": lambda store: [(one.id, one.checkpoints) for one in store.threads()],
    "size of all": lambda store: store.size().checkpoints,
    "runs": lambda store: [(one.id, one.status, one.result) for one in store.runs()],
    "recoverable": lambda store: [one.id for one in store.recoverable()],
    "recover": lambda store: store.recover({}).resumed,
    "result": lambda store: store.run("worked", run_id=f"r{NEW}").start().result,
    "responses": lambda store: [one.text for one in store.run("worked", run_id=f"r{NEW}").start().responses.open().all()],
    "sweep": swept,
}  # fmt: skip
WRITES = {
    "save": lambda store: store.thread("t").save({"n": "new"}).seq,
    "save on the head": lambda store: store.thread("t").save({"n": "new"}, expect=f"c{NEW - 1}").parent,
    "replace": lambda store: store.thread("t").save({"n": "new"}, id="c2", replace=True).seq,
    "fork": lambda store: store.thread("t").fork("fork").load(),
    "copy": lambda store: len(list(store.thread("t").copy("copy").history())),
    "prune": lambda store: store.thread("t").prune(keep_last=1).checkpoints,
    "remove": lambda store: store.thread("t").delete_checkpoints(["c1"], erase=True).checkpoints,
    "a new run": lambda store: store.run("worked", run_id="new").start().info.status,
    "begin a thread": lambda store: store.thread("begun").save({"n": 1}).seq,
    "delete": lambda store: store.delete("t"),
}
CALLS = {**READS, **WRITES}


@pytest.fixture(scope="module")
def folders():
    """Two moments of one store, and what each call answers on the newer one."""
    with ram_folder() as folder:
        old, new = folder / "old", folder / "new"
        with outlive.open(f"file:{new}") as store:
            fill(store, 0, OLD)
        shutil.copytree(new, old)
        with outlive.open(f"file:{new}") as store:
            fill(store, OLD, NEW)
        answers = {}
        for name, call in CALLS.items():
            answers[name] = answer(copied(new, folder / "answers"), call)
        assert not [name for name, found in answers.items() if isinstance(found, Exception)]
        yield old, new, folder / "damaged", answers


def copied(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    return target


def answer(path, call):
    try:
        with outlive.open(f"file:{path}") as store:
            return call(store)
    except outlive.OutliveError as error:
        return error


def check(path, name, expected, what):
    found = answer(path, CALLS[name])
    assert isinstance(found, outlive.OutliveError) or found == expected, f"{what}: {name} gave {found!r:.200}"
    return found


def files_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def test_a_file_that_is_gone_or_an_older_copy_of_itself_is_noticed(folders):
    old, new, damaged, answers = folders
    for file in files_of(new):
        for what in ("gone", "older"):
            if what == "older" and not (old / file).exists():
                continue
            copied(new, damaged)
            (damaged / file).unlink()
            if what == "older":
                shutil.copy(old / file, damaged / file)
            is_changed = what == "gone" or (old / file).read_bytes() != (new / file).read_bytes()
            matters = is_changed and file.name not in ("lock", "reserve")
            with (
                outlive.open(f"file:{damaged}")
                if file.name != "store" or what != "gone"
                else pytest.raises(outlive.Corrupt) as store
            ):
                if not isinstance(store, outlive.Store):
                    outlive.open(f"file:{damaged}")
                else:
                    assert store.verify().ok != matters, f"{file} {what}: verify"
            found = {name: check(damaged, name, answers[name], f"{file} {what}") for name in READS}
            failed = [name for name, one in found.items() if isinstance(one, outlive.OutliveError)]
            assert bool(failed) == matters, f"{file} {what}: {failed}"
            if matters:
                for name in WRITES:
                    check(copied_damage(new, old, damaged, file, what), name, answers[name], f"{file} {what}")


def copied_damage(new, old, damaged, file, what):
    copied(new, damaged)
    (damaged / file).unlink()
    if what == "older":
        shutil.copy(old / file, damaged / file)
    return damaged


def test_an_older_copy_under_an_open_store_is_noticed(folders):
    old, new, damaged, _ = folders
    for file in files_of(old):
        if file.suffix == ".log" and (old / file).read_bytes() != (new / file).read_bytes():
            copied(new, damaged)
            with outlive.open(f"file:{damaged}") as store:
                before = {name: call(store) for name, call in READS.items()}
                shutil.copy(old / file, damaged / "put")
                os.replace(damaged / "put", damaged / file)
                failures = 0
                for name, call in READS.items():
                    try:
                        assert call(store) == before[name], name
                    except outlive.OutliveError:
                        failures += 1
                assert failures


def test_any_damage_of_one_file_is_an_error_of_outlive_or_harmless(folders):
    _, new, damaged, answers = folders
    seed = int(os.environ.get("OUTLIVE_SEED", "1"))
    rng = random.Random(seed)
    print(f"OUTLIVE_SEED={seed}")
    names = list(CALLS)
    for number in range(rounds(60)):
        copied(new, damaged)
        file = damaged / rng.choice(files_of(new))
        kind = rng.choice(
            ["flip", "cut", "zeros", "grow", "empty", "folder", "link", "fifo", "unreadable", "swap"]
        )
        data = file.read_bytes()
        at = rng.randrange(len(data) or 1)
        if kind == "flip" and data:
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        elif kind == "cut":
            file.write_bytes(data[:at])
        elif kind == "zeros":
            file.write_bytes(data[:at] + bytes(len(data) - at))
        elif kind == "grow":
            file.write_bytes(data + rng.randbytes(50))
        elif kind == "empty":
            file.write_bytes(b"")
        elif kind == "swap":
            file.write_bytes((new / rng.choice(files_of(new))).read_bytes())
        elif kind in ("folder", "link", "fifo"):
            file.unlink()
            {"folder": os.mkdir, "link": lambda path: os.symlink("/etc/hostname", path), "fifo": os.mkfifo}[
                kind
            ](file)
        for name in rng.sample(names, 4):
            if name in READS:
                check(damaged, name, answers[name], f"{number}: {kind} at {at} of {file.name}")
            else:
                found = answer(damaged, CALLS[name])  # which may heal what it writes over
                assert isinstance(found, outlive.OutliveError) or found == answers[name] or name == "delete"
                break
