"""`doctor`: is this installation sound, is the store reachable, and is it kept as safely as one believes?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from outlive.cli.command import command
from outlive.cli.context import Call
from outlive.cli.output.table import Column

if TYPE_CHECKING:
    from outlive.cli.commands.doctor_finding import Finding

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}
_STYLES = {"WARNING": "yellow", "PROBLEM": "red", "ok": "green"}


@command("doctor", "Look for what is wrong, and what mends it.")
def doctor(call: Call) -> None:
    """Look for what is wrong: versions, reachability, durability, clocks, schema, sizes, dead runs.

    Each finding says what mends it. Exits with 1 when there is a warning or a problem.
    """
    from outlive.cli.commands.doctor_checks import examine_installation, examine_store
    from outlive.cli.commands.doctor_finding import Finding
    from outlive.cli.stores import NoStore

    found = list(examine_installation())
    try:
        url = call.url
    except NoStore as error:  # the rest is still worth a look
        found.append(Finding("store", "note", str(error)))
    else:
        found += examine_store(call, url)
    items = [
        {"check": one.check, "level": one.level, "said": one.said, "mend": one.mend or None} for one in found
    ]
    bad = [one for one in found if one.level in ("warning", "problem")]
    call.answer(items, lambda: _show(found), brief=[f"{one.check}: {one.said}" for one in bad], is_ok=not bad)


def _show(found: list[Finding]) -> None:
    from outlive.cli.output.escape import shown
    from outlive.cli.output.table import print_table

    rows = [(one.check, _MARKS[one.level], one.said) for one in found]
    columns = (
        Column("CHECK", keeps=True),
        Column("", keeps=True, styles=_STYLES.get),
        Column("FOUND", wraps=True),
    )
    print_table(columns, rows)
    for one in found:
        if one.mend:
            sys.stdout.write(f"\n{one.check}: {shown(one.said)}\n  → {shown(one.mend)}\n")
