"""What no thread of a SQLite store would tell of itself: rows that belong to none."""

from __future__ import annotations

from typing import Any

import apsw

from ..backend import checksum
from ..errors import Corrupt
from .sqlite_rows import THREAD, one


def orphans(db: apsw.Connection) -> list[Corrupt]:
    """Find rows whose thread is gone, and damaged rows of threads that nobody lists."""
    rows: list[Any] = db.execute(
        f"select {THREAD}, info, info_checksum from thread where not listed"
    ).fetchall()
    found = [
        Corrupt("the row of a thread without content is damaged")
        for *fields, check, info, info_check in rows
        if check != checksum(*fields) or info is not None or info_check is not None
    ]
    sql = (
        "select tenant, id from roster except select tenant, id from thread where listed "
        "union all select * from (select tenant, id from thread where listed except select tenant, id from roster)"
    )
    found += [Corrupt("it is listed once and not twice", thread=str(row[1])) for row in db.execute(sql)]
    for table in ("checkpoint", "chunk", "write", "tally", "entry"):
        count = one(db, f"select count(*) from {table} where thread not in (select key from thread)")[0]
        if count:
            found.append(Corrupt(f"{count} rows of {table} belong to no thread"))
    lost = one(db, "select count(*) from head where digest not in (select digest from thread)")[0]
    return found + ([Corrupt(f"{lost} heads belong to no thread")] if lost else [])
