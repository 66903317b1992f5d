"""Where each backend keeps its records, and how one of them is damaged. `damage` returns what it did, or None if it could not."""

import shutil
from pathlib import Path

import apsw
import psycopg
from psycopg import sql

import outlive

WAYS = ("delete", "flip", "cut", "null", "swap", "older")


class Place:
    """A store that can be filled, damaged and put back."""

    def fill(self, first, second):
        """Fill it in two parts; older copies are from between them."""
        with outlive.open(self.url) as store:
            first(store)
        self.older = self.keep("older")
        with outlive.open(self.url) as store:
            second(store)
        self.sound = self.keep("sound")


def flipped(rng, raw):
    changed = bytearray(raw or b"\0")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def changed(rng, way, value):
    """Return another value of the same type, or None when there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1 << rng.randrange(60) if way == "flip" else value // 2
    if isinstance(value, str):
        if way == "flip":
            at = rng.randrange(len(value) or 1)
            return value[:at] + rng.choice("xyz\\\n") + value[at + 1 :]
        return value[: rng.randrange(len(value))] if value else None
    if isinstance(value, bytes | memoryview):
        raw = bytes(value)
        return flipped(rng, raw) if way == "flip" else raw[: rng.randrange(len(raw))] if raw else None
    return None


# PostgreSQL -----------------------------------------------------------------------------------------------

_KEYS = {
    "roster": ("digest",), "thread": ("digest",), "checkpoint": ("thread", "name"), "space": ("thread", "space"),
    "chunk": ("thread", "name"), "write": ("thread", "pair", "task_digest", "idx"), "entry": ("thread", "name"), "store": ("one",),
}  # fmt: skip
_FOR_PEOPLE = "metadata"  # JSON beside the truth; no call reads it


class PostgresPlace(Place):
    """Rows and columns of tables."""

    name = "postgresql"

    def __init__(self, url):
        self.url = url
        self.db = psycopg.connect(url, autocommit=True)

    def close(self):
        self.db.close()

    def keep(self, name):
        self.db.execute(f"create schema {name}")
        for table in _KEYS:
            self.db.execute(f"create table {name}.{table} as select * from outlive.{table}")
            self.db.execute(f"alter table {name}.{table} drop column if exists recent")  # it is generated
        return name

    def restore(self):
        with self.db.transaction():
            for table in _KEYS:
                self.db.execute(f"delete from outlive.{table}")
                self.db.execute(
                    f"insert into outlive.{table} overriding system value select * from {self.sound}.{table}"
                )

    def damage(self, rng):
        table, way = rng.choice(list(_KEYS)), rng.choice(WAYS)
        try:
            with self.db.transaction():
                return self._damage(rng, table, way)
        except psycopg.Error:  # a constraint forbids it
            return None

    def _damage(self, rng, table, way):
        rows = self.db.execute(
            f"select ctid::text, * from outlive.{table} order by {', '.join(_KEYS[table])}"
        )
        names = [column.name for column in rows.description][1:]
        found = rows.fetchall()
        if not found:
            return None
        place, *values = rng.choice(found)
        row = dict(zip(names, values, strict=True))
        if way == "delete":
            self.db.execute(f"delete from outlive.{table} where ctid = %s::tid", (place,))
            return table, way, row
        if way == "older":
            return self._put_back(rng, table, names)
        column = rng.choice(
            [name for name in names if name not in (_FOR_PEOPLE, "recent")]
        )  # it is generated
        value = None if way == "null" else changed(rng, way, row[column])
        if way == "swap":
            value = rng.choice(found)[1 + names.index(column)]
        if (value is None and way != "null") or value == row[column]:
            return None
        update = sql.SQL("update outlive.{} set {} = %s where ctid = %s::tid")
        self.db.execute(update.format(sql.Identifier(table), sql.Identifier(column)), (value, place))
        return table, way, column, row

    def _put_back(self, rng, table, names):
        keys = " and ".join(f"o.{key} = n.{key}" for key in _KEYS[table])
        rows = self.db.execute(
            f"select n.ctid::text, o.* from {self.older}.{table} o join outlive.{table} n on {keys} "
            f"where to_jsonb(o) is distinct from to_jsonb(n) - 'recent' order by {', '.join(f'o.{key}' for key in _KEYS[table])}"
        ).fetchall()
        if not rows:
            return None
        place, *values = rng.choice(rows)
        self.db.execute(f"delete from outlive.{table} where ctid = %s::tid", (place,))
        where = " and ".join(f"{key} = %s" for key in _KEYS[table])
        known = [values[names.index(key)] for key in _KEYS[table]]
        self.db.execute(
            f"insert into outlive.{table} overriding system value select * from {self.older}.{table} where {where}",
            known,
        )
        return (
            table,
            "older",
            dict(zip(names, values, strict=False)),
        )  # without what is generated, the last one


# SQLite -----------------------------------------------------------------------------------------------------


class _Files(Place):
    """What is kept in files."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.path = self.folder / "store"
        self.url = f"{self.scheme}:///{self.path}"

    def close(self):
        pass

    def keep(self, name):
        kept = self.folder / name
        shutil.copytree(self.path, kept) if self.path.is_dir() else shutil.copy(self.path, kept)
        return kept

    def restore(self):
        for path in self.folder.glob("store*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.sound, self.path) if self.sound.is_dir() else shutil.copy(self.sound, self.path)


class SQLitePlace(_Files):
    """Rows and columns of tables, and pages of the file."""

    name = scheme = "sqlite"

    def damage(self, rng):
        if rng.random() < 0.25:
            return self._damage_page(rng)
        db = apsw.Connection(str(self.path))
        try:
            tables = [row[0] for row in db.execute("select name from sqlite_master where type = 'table'")]
            with db:
                return self._damage(rng, db, rng.choice(sorted(tables)), rng.choice(WAYS))
        except apsw.Error:  # a constraint forbids it
            return None
        finally:
            db.close()

    def _damage(self, rng, db, table, way):
        columns = list(db.execute(f"pragma table_info({table})"))
        names = [column[1] for column in columns]
        keys = [column[1] for column in columns if column[5]] or names
        rows = [dict(zip(names, row, strict=True)) for row in db.execute(f"select * from {table}")]
        if not rows:
            return None
        row = rng.choice(rows)
        where = " and ".join(f"{key} is ?" for key in keys)
        if way == "delete":
            db.execute(f"delete from {table} where {where}", [row[key] for key in keys])
            return table, way, row
        if way == "older":
            return self._put_back(rng, db, table, keys, rows)
        column = rng.choice(names)
        value = None if way == "null" else changed(rng, way, row[column])
        if way == "swap":
            value = rng.choice(rows)[column]
        if (value is None and way != "null") or value == row[column]:
            return None
        db.execute(f"update {table} set {column} = ? where {where}", [value, *(row[key] for key in keys)])
        return table, way, column, row

    def _put_back(self, rng, db, table, keys, rows):
        with apsw.Connection(str(self.older)) as old:
            found = [dict(zip(rows[0], row, strict=True)) for row in old.execute(f"select * from {table}")]
        now = {tuple(row[key] for key in keys): row for row in rows}
        found = [row for row in found if now.get(tuple(row[key] for key in keys)) not in (None, row)]
        if not found:
            return None
        row = rng.choice(found)
        marks = ", ".join("?" for _ in row)
        db.execute(f"insert or replace into {table}({', '.join(row)}) values({marks})", list(row.values()))
        return table, "older", row

    def _damage_page(self, rng):
        raw, older = bytearray(self.path.read_bytes()), self.older.read_bytes()
        size = int.from_bytes(raw[16:18], "big") or 65536
        page = rng.randrange(len(raw) // size) * size
        way = rng.choice(("older", "flip", "zero", "swap"))
        other = rng.randrange(len(raw) // size) * size
        replacement = {
            "older": older[page : page + size],
            "flip": flipped(rng, raw[page : page + size]),
            "zero": bytes(size),
            "swap": bytes(raw[other : other + size]),
        }[way]
        if len(replacement) != size or replacement == raw[page : page + size]:
            return None
        raw[page : page + size] = replacement
        self.path.write_bytes(raw)
        return "page", way, page // size


# The file backend ---------------------------------------------------------------------------------------------


class FilePlace(_Files):
    """Bytes of logs and of the index."""

    name = scheme = "file"

    def damage(self, rng):
        paths = sorted(path for path in self.path.rglob("*") if path.is_file())
        path, way = rng.choice(paths), rng.choice(("delete", "flip", "cut", "swap", "older"))
        name = path.relative_to(self.path)
        raw = path.read_bytes()
        if way == "delete":
            path.unlink()
            return str(name), way
        if way == "older":
            replacement = (self.older / name).read_bytes() if (self.older / name).exists() else raw
        elif way == "swap":
            replacement = rng.choice(paths).read_bytes()
        elif way == "cut":
            replacement = raw[: rng.randrange(len(raw))] if raw else raw
        else:
            replacement = flipped(rng, raw) if raw else raw
        if replacement == raw:
            return None
        path.write_bytes(replacement)
        at = next((n for n, (a, b) in enumerate(zip(raw, replacement, strict=False)) if a != b), "end")
        return str(name), way, at, len(raw)


# Redis ----------------------------------------------------------------------------------------------------------


class RedisPlace(Place):
    """Keys, and fields of hashes, members of sets."""

    name = "redis"

    def __init__(self, server):
        self.url = server.url
        self.db = server.connect()

    def close(self):
        self.db.close()

    def keep(self, name):
        keys = sorted(self.db.call("KEYS", "*"))
        return {key: self.db.call("DUMP", key) for key in keys}

    def restore(self):
        self.db.call("FLUSHALL")
        for key, dump in self.sound.items():
            self.db.call("RESTORE", key, "0", dump)

    def damage(self, rng):
        key, way = rng.choice(list(self.sound)), rng.choice(WAYS)
        other = rng.choice(list(self.sound))
        if way == "delete" and rng.random() < 0.5:
            self.db.call("DEL", key)
            return key, way
        if way in ("older", "swap"):
            dump = self.older.get(key) if way == "older" else self.sound[other]
            if dump is None or dump == self.sound[key]:
                return None
            self.db.call("RESTORE", key, "0", dump, "REPLACE")
            return key, way, other
        kind = self.db.call("TYPE", key)
        return self._damage_field(rng, key, kind.decode() if isinstance(kind, bytes) else kind, way)

    def _damage_field(self, rng, key, kind, way):
        call = self.db.call
        if kind == "string":
            value = changed(rng, way, call("GET", key))
            return (key, way, call("SET", key, value)) if value is not None else None
        if kind == "hash":
            fields = sorted(call("HKEYS", key))
            field = rng.choice(fields)
            old = call("HGET", key, field)
            if way in ("delete", "null"):
                call("HDEL", key, field)
                return key, way, field, old
            value = changed(rng, way, old)
            return (key, way, field, old, call("HSET", key, field, value)) if value is not None else None
        if kind == "zset":
            member = rng.choice(sorted(call("ZRANGE", key, "0", "-1")))
            score = call("ZSCORE", key, member)
            call("ZREM", key, member)
            if way == "flip":
                call("ZADD", key, score, flipped(rng, member))
            return key, way, member
        if kind == "set":
            member = rng.choice(sorted(call("SMEMBERS", key)))
            call("SREM", key, member)
            return key, way, member
        return None
