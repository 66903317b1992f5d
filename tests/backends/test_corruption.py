"""Whatever is changed behind a store's back: what is read is what was saved or a typed error, never anything else."""

import collections
import contextlib
import os
import random
import shutil
from functools import partial
from pathlib import Path

import apsw
import pytest

import outlive
from outlive import Corrupt, Interrupt, OutliveError, StoreError

pytestmark = pytest.mark.heavy

LONG = bool(os.environ.get("OUTLIVE_LONG"))
ROUNDS = 45 if LONG else 1

ALICE, BOB, CAROL, OUTBOX, GONE = "alice", "bob/ü\\", "carol", "note", "gone"
THREADS = [ALICE, BOB, CAROL, OUTBOX, GONE, "nobody"]
SPACES = ["", "sub"]


# The store that is damaged ------------------------------------------------------------------------------


def fill(url):
    """Save something of everything: branches, namespaces, forks, writes, interrupts, metadata, prunes, deletions."""
    rng = random.Random(5)
    text = lambda size: "".join(rng.choices("abcdefgh ", k=size))  # noqa: E731
    with outlive.open(url) as store:
        for name in (ALICE, BOB):
            thread = store.thread(name)
            messages = [{"role": "user", "content": text(300)} for _ in range(12)]
            for n in range(4):
                messages.append({"role": "tool", "content": text(400), "n": n})
                thread.save(
                    {"messages": messages, "n": n, "tags": {name, n}},
                    id=f"c{n}", step=n, metadata={"n": n}, next_nodes=["x"], run="r1" if n else None,
                )  # fmt: skip
            thread.save({"branch": text(50)}, id="branch", parent="c1", source="update")
            thread.save(
                {"messages": messages, "asked": True}, id="asked", source="interrupt",
                interrupts=[Interrupt("q1", "ask", {"text": "sure?"}), Interrupt("q2", "ask")],
            )  # fmt: skip
            thread.write("task1", [("a", 1), ("b", text(900))])
            thread.write("task0", [("a", {"x": (1, 2)})], path="p")
            thread.write("late", [("a", [1])], checkpoint="c2")
            thread.resume("q1", "yes")
            thread.set_metadata({"title": f"about {name}", "tags": ["t"]})
            sub = store.thread(name, namespace="sub")
            for n in range(3):
                sub.save({"sub": [text(200)] * 3, "n": n}, id=f"c{n}", metadata={"space": "sub"})
            sub.write("task1", [("a", "sub write")])
        store.thread(ALICE).fork(CAROL, checkpoint="asked")
        store.thread(CAROL).save({"image": rng.randbytes(70_000), "n": 9}, id="image")
        store.thread(OUTBOX).set_metadata({"title": "no checkpoint yet"})
        store.thread(GONE).save({"secret": text(100)}, id="c0")
        store.delete(GONE)
        store.thread(BOB).delete_checkpoints(["c3"])


def look(url):
    """Ask everything that can be asked; return question → answer, where an answer may be an error."""
    answers = {}

    def ask(*question, call):
        try:
            answers[question] = call()
        except OutliveError as error:
            answers[question] = error

    with outlive.open(url) as store:
        ask("threads", call=lambda: list(store.threads()))
        ask("threads of a title", call=lambda: [t.id for t in store.threads(filter={"title": "about alice"})])
        for name in THREADS:
            ask_thread(ask, store, name)
        report = store.verify()
    return answers, report


def ask_thread(ask, store, name):
    thread = store.thread(name)
    ask(name, "info", call=thread.info)
    ask(name, "metadata", call=thread.metadata)
    ask(name, "everything", call=lambda: list(thread.history(all_namespaces=True)))
    ask(name, "run", call=lambda: [checkpoint.id for checkpoint in thread.history(run="r1")])
    for space in SPACES:
        thread = store.thread(name, namespace=space)
        ask(name, space, "checkpoint", call=thread.checkpoint)
        ask(name, space, "load", call=thread.load)
        ask(name, space, "exists", call=thread.exists)
        ask(name, space, "history", call=lambda thread=thread: list(thread.history()))
        ask(name, space, "tips", call=thread.tips)
        ask(name, space, "lineage", call=thread.lineage)
        ask(name, space, "interrupts", call=thread.interrupts)
        for id in IDS.get((name, space), ()):
            ask(name, space, id, "checkpoint", call=partial(thread.checkpoint, id))
            ask(name, space, id, "writes", call=partial(thread.writes, id))
            ask(name, space, id, "exists", call=partial(thread.exists, id))
        for id, when in MOMENTS.get((name, space), ()):
            ask(name, space, id, "at", call=partial(thread.load, at=when))
        ask(name, space, "none", call=partial(thread.load, "no such id"))


IDS, MOMENTS = {}, {}  # what the sound store has, so that a damaged one is asked for it


class Damage:
    """A store, many damaged copies of it, and what came of them."""

    def __init__(self, folder, scheme, name):
        self.folder = folder
        self.scheme = scheme
        self.sound = folder / name
        self.copy = folder / f"damaged-{name}"
        fill(self.url(self.sound))
        IDS.clear()
        MOMENTS.clear()
        with outlive.open(self.url(self.sound)) as store:
            for thread in THREADS:
                for space in SPACES:
                    found = list(store.thread(thread, namespace=space).history())
                    IDS[thread, space] = [checkpoint.id for checkpoint in found]
                    MOMENTS[thread, space] = [(c.id, c.created_at) for c in found[::3]]
        self.answers, report = look(self.url(self.sound))
        assert report.ok, report.problems
        assert not [
            a for q, a in self.answers.items() if isinstance(a, OutliveError) and isinstance(a, StoreError)
        ]
        self.counts = collections.Counter()
        self.failures = []

    def url(self, path):
        return f"{self.scheme}:///{path}"

    def fresh_copy(self):
        for path in self.folder.glob(f"{self.copy.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.sound.is_dir():
            shutil.copytree(self.sound, self.copy)
        else:
            shutil.copy(self.sound, self.copy)
        return self.copy

    def judge(self, what, matters=None):
        """Read the damaged copy. `matters`: verify has to find it; None: if any reader trips over it."""
        self.counts["mutations"] += 1
        try:
            answers, report = look(self.url(self.copy))
        except OutliveError as error:  # the store does not open
            self._detected(what, [error])
            self.counts["found by verify"] += 1
            return
        except Exception as error:
            self.fail("an untyped error", what, repr(error))
            return
        errors, wrong = [], {}
        for question, answer in answers.items():
            if isinstance(answer, StoreError):
                errors.append(answer)
            elif not same(answer, self.answers[question]):
                wrong.setdefault(question[-1], (question, answer, self.answers[question]))
        for kind, detail in wrong.items():
            self.fail(f"a wrong answer to {kind!r}", what, detail)
        if errors:
            self._detected(what, errors)
        if not report.ok:
            self.counts["found by verify"] += 1
        elif errors or matters:
            self.fail("not found by verify", what, errors[:1])
        if not errors and report.ok:
            self.counts["harmless"] += 1

    def _detected(self, what, errors):
        self.counts["detected on read"] += 1
        self.counts["named the thread"] += any(isinstance(e, Corrupt) and e.thread for e in errors)
        self.counts["named the checkpoint"] += any(isinstance(e, Corrupt) and e.checkpoint for e in errors)

    def fail(self, kind, what, detail):
        if not any(kind == known for known, *_ in self.failures):
            kept = self.folder / f"failure-{len(self.failures)}"
            shutil.copytree(self.copy, kept) if self.copy.is_dir() else shutil.copy(self.copy, kept)
        self.counts[f"FAILED: {kind}"] += 1
        self.failures.append((kind, what, detail))

    def conclude(self, capsys, title):
        with capsys.disabled():
            print(f"\n{title}: " + ", ".join(f"{count} {name}" for name, count in self.counts.items()))
        if self.failures:
            shown, seen = [], collections.Counter()
            for kind, what, detail in self.failures:
                seen[kind] += 1
                if seen[kind] <= 3:
                    shown.append(f"{kind}: {what}: {str(detail)[:300]}")
            raise AssertionError(f"{len(self.failures)} failures {dict(seen)}\n" + "\n".join(shown))


def same(answer, sound):
    if isinstance(answer, OutliveError) or isinstance(sound, OutliveError):
        return type(answer) is type(sound)  # "there is no checkpoint here", then as now
    return answer == sound


# SQLite, row by row -------------------------------------------------------------------------------------

# What makes a row this row. Other columns are what it says.
IDENTITY = {
    "meta": ["name"],
    "thread": ["key", "digest"],
    "head": ["digest", "namespace"],
    "checkpoint": ["thread", "namespace", "id"],
    "chunk": ["thread", "name"],
    "write": ["thread", "namespace", "checkpoint", "task", "idx"],
    "tally": ["thread", "namespace", "checkpoint"],
}
ADDRESS = {"checkpoint": ["key"], "chunk": ["key"], "write": ["key"], "thread": ["key"]}
# Columns that no answer depends on: rowids that nothing refers to, the projection for people, the stamp of sweeps.
HARMLESS = {("checkpoint", "key"), ("write", "key"), ("thread", "metadata_json"), ("chunk", "revision")}


class RawText(bytes):
    """Text that need not be UTF-8."""


class Rows:
    """The tables of a SQLite file, open to every change that SQL allows."""

    def __init__(self, path):
        self.db = apsw.Connection(str(path))
        self.db.execute("pragma synchronous = off")
        self.tables = {}
        for table in IDENTITY:
            names = [row[1] for row in self.db.execute(f"pragma table_info({table})")]
            self.tables[table] = [
                dict(zip(names, row, strict=True)) for row in self.db.execute(f"select * from {table}")
            ]

    def close(self):
        self.db.close()

    def delete(self, table, row):
        keys = ADDRESS.get(table, IDENTITY[table])
        self.db.execute(
            f"delete from {table} where " + " and ".join(f"{k} = ?" for k in keys), [row[k] for k in keys]
        )

    def insert(self, table, row):
        marks = ", ".join("cast(? as text)" if isinstance(value, RawText) else "?" for value in row.values())
        values = [bytes(value) if isinstance(value, RawText) else value for value in row.values()]
        self.db.execute(f"insert into {table}({', '.join(row)}) values({marks})", values)

    def replace(self, table, *pairs):
        """Put rows in the place of others, all at once."""
        self.db.execute("begin")
        try:
            for old, _ in pairs:
                self.delete(table, old)
            for _, new in pairs:
                self.insert(table, new)
            self.db.execute("commit")
        except BaseException:
            self.db.execute("rollback")
            raise


def flipped(rng, value):
    if value is None:
        return rng.choice([0, "", b"", "x", 1])
    if isinstance(value, int):
        return signed(value ^ 1 << rng.randrange(63))
    raw = bytearray(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
    if not raw:
        raw = bytearray(b"\1")
    else:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return RawText(raw) if isinstance(value, str) else bytes(raw)


def signed(value):
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def shortened(rng, value):
    if isinstance(value, int):
        return 0
    return value[: rng.randrange(len(value))] if value else None


def retyped(rng, value):
    if isinstance(value, int):
        return rng.choice([f"x{value}", str(value).encode(), value + 0.5])
    if isinstance(value, str):
        return value.encode()
    return None if value is None else RawText(value)


def change_cell(rng, rows, table):
    row = rng.choice(rows.tables[table])
    column = rng.choice(list(row))
    how = rng.choice([flipped, flipped, flipped, shortened, retyped])
    new = {**row, column: how(rng, row[column])}
    if new[column] == row[column]:
        return None
    rows.replace(table, (row, new))
    return f"{how.__name__} {table}.{column} of {brief(table, row)}", matters(table, {column}, row)


def swap_cells(rng, rows, table):
    """Exchange one column, or all that a row says, between two rows."""
    if len(rows.tables[table]) < 2:
        return None
    a, b = rng.sample(rows.tables[table], 2)
    says = [column for column in a if column not in IDENTITY[table] and (table, column) not in HARMLESS]
    columns = rng.choice([says, [rng.choice(list(a))], [rng.choice(says)]])
    if all(a[column] == b[column] for column in columns):
        return None
    new = [{**x, **{column: y[column] for column in columns}} for x, y in ((a, b), (b, a))]
    rows.replace(table, (a, new[0]), (b, new[1]))
    name = "all" if columns == says else columns[0]
    changed = {column for column in columns if a[column] != b[column]}
    return f"swap {table}.{name} of {brief(table, a)} and {brief(table, b)}", matters(table, changed, a, b)


def swap_within(rng, rows, table):
    row = rng.choice(rows.tables[table])
    one, two = rng.sample(list(row), 2)
    if type(row[one]) is not type(row[two]) or row[one] == row[two]:
        return None
    rows.replace(table, (row, {**row, one: row[two], two: row[one]}))
    return f"swap {table}.{one} and .{two} of {brief(table, row)}", matters(table, {one, two}, row)


def delete_row(rng, rows, table):
    row = rng.choice(rows.tables[table])
    rows.delete(table, row)
    return f"delete {brief(table, row)} of {table}", matters(table, set(row), row)


def double_row(rng, rows, table):
    """A second row with the same content at another place."""
    row, other = rng.choice(rows.tables[table]), rng.choice(rows.tables[table])
    column = rng.choice(IDENTITY[table])
    value = other[column] if rng.random() < 0.6 else flipped(rng, row[column])
    new = {**row, column: value}
    if "key" in row:
        new["key"] = None
    if all(row[name] == new[name] for name in IDENTITY[table]):
        return None
    rows.insert(table, new)
    return (
        f"double {brief(table, row)} of {table} with {column} {value!r:.30}",
        None if table == "meta" else True,
    )


def move_row(rng, rows, table):
    """The row of one thread under another."""
    row, other = rng.choice(rows.tables[table]), rng.choice(rows.tables[table])
    column = "thread" if "thread" in row else "digest"
    if column not in row or row[column] == other[column]:
        return None
    rows.replace(table, (row, {**row, column: other[column]}))
    return f"move {brief(table, row)} of {table} to another thread", matters(table, {column}, row)


def matters(table, columns, *rows):
    """Tell whether verify has to find a change."""
    return not all((table, column) in HARMLESS for column in columns)


def brief(table, row):
    return "/".join(str(row[name])[:20] for name in IDENTITY[table])


def damage_rows(rng, damage):
    """Make one change in a fresh copy; return what it was and whether it matters."""
    ways = [change_cell] * 8 + [swap_cells] * 4 + [swap_within, delete_row, delete_row, double_row, move_row]
    while True:
        rows = Rows(damage.fresh_copy())
        try:
            table = rng.choice([name for name, found in rows.tables.items() if found])
            done = rng.choice(ways)(rng, rows, table)
        except (apsw.ConstraintError, apsw.MismatchError):
            continue  # SQLite itself does not take it
        finally:
            rows.close()
        if done is not None:
            return done


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory):
    return lambda: Damage(tmp_path_factory.mktemp("sqlite"), "sqlite", "agent.db")


@pytest.mark.long  # the fuzz of all damage makes some of these in the normal run
def test_a_changed_row_of_sqlite_is_never_a_wrong_answer(sqlite_store, capsys):
    damage = sqlite_store()
    for seed in range(60 * ROUNDS):
        what, matters = damage_rows(random.Random(seed), damage)
        damage.judge(f"seed {seed}: {what}", matters)
    damage.conclude(capsys, "SQLite, rows")


def test_every_column_of_every_row_of_sqlite_is_guarded(sqlite_store, capsys):
    """Not by chance: each column of one row of each kind, flipped, emptied and set to another's value."""
    damage = sqlite_store()
    rows = Rows(damage.sound)
    rows.close()
    picks = [(table, row) for table, found in rows.tables.items() for row in (found if LONG else found[-1:])]
    for number, (table, row) in enumerate(picks):
        for column in row:
            rng = random.Random(f"{number} {column}")
            copy = Rows(damage.fresh_copy())
            try:
                copy.replace(table, (row, {**row, column: flipped(rng, row[column])}))
            except (apsw.ConstraintError, apsw.MismatchError):
                continue
            finally:
                copy.close()
            damage.judge(f"flip {table}.{column} of {brief(table, row)}", matters(table, {column}, row))
    damage.conclude(capsys, "SQLite, columns")


def test_every_row_of_sqlite_is_missed_when_it_is_gone(sqlite_store, capsys):
    damage = sqlite_store()
    rows = Rows(damage.sound)
    rows.close()
    for table, found in rows.tables.items():
        for row in found if LONG else random.Random(table).sample(found, min(2, len(found))):
            copy = Rows(damage.fresh_copy())
            copy.delete(table, row)
            copy.close()
            damage.judge(f"delete {brief(table, row)} of {table}", matters(table, set(row), row))
    damage.conclude(capsys, "SQLite, deleted rows")


# Bytes of files -----------------------------------------------------------------------------------------


def flip_bit(rng, raw, others):
    at = rng.randrange(len(raw))
    raw[at] ^= 1 << rng.randrange(8)
    return f"bit in byte {at} of {len(raw)}"


def overwrite(rng, raw, others):
    at, size = rng.randrange(len(raw)), rng.choice([1, 2, 8, 100, 512, 4096])
    raw[at : at + size] = rng.choice([bytes, rng.randbytes])(len(raw[at : at + size]))
    return f"{size} bytes at {at} of {len(raw)}"


def cut(rng, raw, others):
    size = rng.randrange(len(raw))
    del raw[size:]
    return f"cut to {size}"


def swap_blocks(rng, raw, others):
    size = rng.choice([16, 96, 512, 4096])
    if len(raw) < 3 * size:
        return None
    a, b = (rng.randrange(len(raw) // size - 1) * size for _ in range(2))
    raw[a : a + size], raw[b : b + size] = raw[b : b + size], raw[a : a + size]
    return f"blocks of {size} at {a} and {b}"


def take_out(rng, raw, others):
    at, size = rng.randrange(len(raw)), rng.choice([1, 16, 300, 4096])
    del raw[at : at + size]
    return f"{size} bytes at {at} taken out"


def put_in(rng, raw, others):
    at, size = rng.randrange(len(raw)), rng.choice([1, 16, 300, 4096])
    raw[at:at] = rng.choice([rng.randbytes(size), bytes(raw[at : at + size])])
    return f"{size} bytes at {at} put in"


def from_another(rng, raw, others):
    """A stretch of another file of the store, or all of it."""
    if not others:
        return None
    other = rng.choice(others)
    at = rng.randrange(len(raw))
    raw[at:] = other[at:] if rng.random() < 0.7 else other
    return f"from byte {at} on another file"


def damage_bytes(rng, damage, ways):
    """Change one file of a fresh copy; return what was done."""
    while True:
        copy = damage.fresh_copy()
        files = sorted(path for path in [copy, *copy.rglob("*")] if path.is_file() and path.stat().st_size)
        path = rng.choice(files)
        raw = bytearray(path.read_bytes())
        before = bytes(raw)
        others = [other.read_bytes() for other in files if other.suffix == path.suffix and other != path]
        way = rng.choice(ways)
        done = way(rng, raw, others)
        if done is not None and raw != before:
            path.write_bytes(raw)
            return f"{way.__name__} {path.relative_to(damage.folder)}: {done}"


EVERY_WAY = [flip_bit] * 6 + [overwrite, overwrite, cut, swap_blocks, take_out, put_in, from_another]


@pytest.mark.long  # the fuzz of all damage makes some of these in the normal run
def test_changed_bytes_of_a_sqlite_file_are_never_a_wrong_answer(sqlite_store, capsys):
    damage = sqlite_store()
    for seed in range(30 * ROUNDS):
        rng = random.Random(f"raw {seed}")
        damage.judge(f"seed {seed}: {damage_bytes(rng, damage, EVERY_WAY)}")
    damage.conclude(capsys, "SQLite, bytes")


# The folder of the file backend -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file_store(tmp_path_factory):
    return lambda: Damage(tmp_path_factory.mktemp("file"), "file", "store")


@pytest.mark.long  # the fuzz of all damage makes some of these in the normal run
def test_changed_bytes_of_the_file_backend_are_never_a_wrong_answer(file_store, capsys):
    damage = file_store()
    for seed in range(30 * ROUNDS):
        rng = random.Random(f"file {seed}")
        damage.judge(f"seed {seed}: {damage_bytes(rng, damage, EVERY_WAY)}")
    damage.conclude(capsys, "file, bytes")


def test_every_byte_of_a_log_is_guarded(file_store, capsys):
    """Not by chance: bits at even steps through every file, the headers byte by byte."""
    damage = file_store()
    for path in sorted(path for path in damage.sound.rglob("*") if path.is_file()):
        raw = path.read_bytes()
        step = max(1, len(raw) // (400 if LONG else 2))
        places = {*range(0, min(len(raw), 100), 1 if LONG else 48), *range(0, len(raw), step)}
        for at in sorted(places):
            target = damage.fresh_copy() / path.relative_to(damage.sound)
            target.write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
            damage.judge(f"bit in byte {at} of {path.relative_to(damage.sound)}, {len(raw)} bytes")
    damage.conclude(capsys, "file, every part")


def test_files_that_are_gone_doubled_exchanged_or_cut_are_never_a_wrong_answer(file_store, capsys):
    damage = file_store()
    names = sorted(path.relative_to(damage.sound) for path in damage.sound.rglob("*") if path.is_file())
    for name in names:
        (damage.fresh_copy() / name).unlink()
        damage.judge(f"delete {name}")
        (damage.fresh_copy() / name).write_bytes(b"")
        damage.judge(f"empty {name}")
        copy = damage.fresh_copy()
        shutil.copy(copy / name, copy / name.with_name(f"{'0' * 32}{name.suffix}"))
        damage.judge(f"a second {name}")
    logs = [name for name in names if name.suffix == ".log"]
    for one in logs:
        for two in logs:
            if one != two:
                copy = damage.fresh_copy()
                shutil.copy(copy / one, copy / two)
                damage.judge(f"{one} in place of {two}")
    shutil.rmtree(damage.fresh_copy() / "threads")
    damage.judge("delete the folder of the logs")
    damage.conclude(capsys, "file, whole files")


def test_a_log_that_is_cut_anywhere_is_damage_and_not_an_older_head(file_store, capsys):
    damage = file_store()
    for log in sorted((damage.sound / "threads").glob("*.log")):
        raw = log.read_bytes()
        for size in range(96, len(raw), max(1, len(raw) // (600 if LONG else 3))):
            (damage.fresh_copy() / "threads" / log.name).write_bytes(raw[:size])
            damage.judge(f"{log.name} cut to {size} of {len(raw)}", matters=True)
    damage.conclude(capsys, "file, lost ends")


def test_a_log_that_ends_where_it_once_ended_is_damage_and_not_an_older_head(tmp_path):
    """Every frame that is left is whole, and so is every state; only the last saves are gone."""
    url, sizes = f"file:///{tmp_path / 'store'}", []
    with outlive.open(url) as store:
        for n in range(8):
            store.thread("a").save({"n": n, "text": "x" * 100 * n})
            (log,) = (tmp_path / "store" / "threads").glob("*.log")
            sizes.append(log.stat().st_size)
    whole = log.read_bytes()
    for size in sizes[:-1]:
        log.write_bytes(whole[:size])
        with outlive.open(url) as store:
            for read in (store.thread("a").load, lambda store=store: list(store.thread("a").history())):
                with pytest.raises(Corrupt):
                    read()
            assert not store.verify().ok
    log.write_bytes(whole)
    with outlive.open(url) as store:
        assert store.thread("a").load()["n"] == 7


# Both -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme, name", [("sqlite", "agent.db"), ("file", "store")])
def test_damage_names_the_thread_and_the_checkpoint(scheme, name, tmp_path):
    """One flipped bit in a chunk: who loads it learns where it is, others notice nothing."""
    url = f"{scheme}:///{tmp_path / name}"
    with outlive.open(url) as store:
        for thread in ("hurt", "sound"):
            store.thread(thread).save({"text": thread * 1000, "n": 1}, id="c1")
    hurt = b"hurt" * 200
    files = [tmp_path / name] if scheme == "sqlite" else list(Path(tmp_path / name).rglob("*.log"))
    with outlive.open(url, cache_bytes=0) as store:
        assert store.thread("hurt").load()["n"] == 1
    marked = 0
    for path in files:
        raw = bytearray(path.read_bytes())
        at = raw.find(b"\x28\xb5\x2f\xfd")  # a zstd frame: the first chunk in the file
        while at >= 0:
            if b"hurt" in raw[at : at + 40]:
                raw[at + 8] ^= 1
                marked += 1
            at = raw.find(b"\x28\xb5\x2f\xfd", at + 1)
        path.write_bytes(raw)
    assert marked == 1, hurt
    with outlive.open(url) as store:
        for read in (store.thread("hurt").load, store.thread("hurt").checkpoint):
            with pytest.raises(Corrupt) as caught:
                read()
            assert caught.value.thread == "hurt"
            assert caught.value.checkpoint == "c1"
        assert store.thread("sound").load()["text"] == "sound" * 1000
        assert [checkpoint.id for checkpoint in store.thread("hurt").history()] == ["c1"]
        assert not store.verify().ok
        assert not store.thread("hurt").verify().ok
        assert store.thread("sound").verify().ok


# A damaged thread can go ----------------------------------------------------------------------------------


def by_sql(statement):
    def damage(path):
        with contextlib.closing(apsw.Connection(str(path))) as db:
            db.execute(statement)
            assert db.changes() == 1

    return damage


def flip_byte(path):
    (log,) = (path / "threads").glob("*.log")
    data = bytearray(log.read_bytes())
    data[140] ^= 255
    log.write_bytes(data)


def cut_short(path):
    (log,) = (path / "threads").glob("*.log")
    os.truncate(log, 10)


def take_away(path):
    (log,) = (path / "threads").glob("*.log")
    log.unlink()


DAMAGE = {
    "sqlite checksum": by_sql("update thread set checksum = x'00'"),
    "sqlite seq": by_sql("update thread set seq = 'much'"),
    "sqlite tenant": by_sql("update thread set tenant = 'another'"),
    "sqlite key of metadata": by_sql("update thread set metadata_version = -1"),
    "sqlite row": by_sql("delete from thread"),
    "sqlite head": by_sql("delete from head"),
    "sqlite checkpoint": by_sql("delete from checkpoint where id = 'c1'"),
    "file byte": flip_byte,
    "file cut": cut_short,
    "file gone": take_away,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_thread_can_be_deleted_and_begun_again(name, tmp_path):
    path = tmp_path / "store"
    url = f"sqlite:///{path}" if name.startswith("sqlite") else f"file://{path}"
    with outlive.open(url) as store:
        thread = store.thread("t")
        for n in range(3):
            thread.save({"n": n, "text": "x" * 3000}, id=f"c{n}", metadata={"n": n})
        thread.write("task", [("a", 1)])
        thread.set_metadata({"title": "about"})
    DAMAGE[name](path)
    with outlive.open(url) as store:
        assert store.verify().problems
        thread = store.thread("t")
        assert thread.delete()
        assert not thread.delete()
        assert thread.load() is None
        assert [info.id for info in store.threads()] == []
        saved = thread.save({"n": "new"})
        assert saved.seq == 4 or not name.startswith("sqlite")
    with outlive.open(url) as store:
        assert store.thread("t").load() == {"n": "new"}
        assert [info.id for info in store.threads()] == ["t"]
        assert not store.verify().problems
