"""The command doctor: checks the installation and the store, and suggests fixes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

from outlive.cli.command import command
from outlive.cli.context import Call
from outlive.cli.output.table import Column, print_table
from outlive.cli.stores import NoStore
from outlive.errors import KeyMissing, NewerFormat, OutliveError, WrongKey
from outlive.view.advice import message_with_advice, split_advice
from outlive.view.checkup import Finding, check_installation, check_store
from outlive.view.escape import escape_terminal

_MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "problem": "PROBLEM"}
_STYLES = {"WARNING": "yellow", "PROBLEM": "red", "ok": "green"}


@command("doctor")
def doctor(call: Call) -> None:
    """Check versions, reachability, durability, clocks, schema, sizes and dead runs, and suggest fixes.

    Exits with 1 if there is a warning or a problem.
    """
    findings = list(check_installation())
    try:
        url = call.url
    except NoStore as error:  # the other checks are still useful
        findings.append(Finding("store", "note", str(error)))
    else:
        findings += _check_store(call, url)
    bad = [finding for finding in findings if finding.level in ("warning", "problem")]
    call.answer(
        [asdict(finding) for finding in findings],
        lambda: _show(findings),
        brief=[f"{finding.check}: {finding.message}" for finding in bad],
        is_ok=not bad,
    )


def _show(findings: list[Finding]) -> None:
    columns = (
        Column("CHECK", keeps=True),
        Column("", keeps=True, styles=_STYLES.get),
        Column("RESULT", wraps=True),
    )
    print_table(columns, [(finding.check, _MARKS[finding.level], finding.message) for finding in findings])
    for finding in findings:
        if finding.fix:
            message, fix = escape_terminal(finding.message), escape_terminal(finding.fix)
            sys.stdout.write(f"\n{finding.check}: {message}\n  → {fix}\n")


# The store


def _check_store(call: Call, url: str) -> list[Finding]:
    """Check a store; if it cannot be opened, that is the finding."""
    import outlive.factory  # noqa: F401  # before the clock starts

    findings = list(_check_pair(call, url))
    start = time.monotonic()
    try:
        with call.open() as store:
            elapsed_ms = (time.monotonic() - start) * 1000
            findings.append(Finding("store", "ok", f"{call.store_name} opened in {elapsed_ms:.0f} ms"))
            return [*findings, *check_store(store, url, is_alone=call.secondary is None)]
    except NewerFormat as error:
        return [*findings, Finding("store", "problem", str(error), "pip install -U outlive")]
    except (KeyMissing, WrongKey) as error:
        return [*findings, Finding("keys", "problem", *split_advice(error))]
    except OutliveError as error:
        message, advice = split_advice(error)
        return [*findings, Finding("store", "problem", message, advice or _reach_advice(url))]


def _reach_advice(url: str) -> str:
    if url.startswith(("postgres", "redis")):
        return "check host, port, user and database in the URL, and that the server runs and accepts this machine"
    return "check the path and its permissions; outlive demo creates a store to try"


def _check_pair(call: Call, url: str) -> Iterator[Finding]:
    if call.secondary is None:
        return
    from outlive.cli.pair_state import describe, inspect_pair, is_healthy

    try:
        replicas = inspect_pair(url, call.store_options())
    except OutliveError as error:
        yield Finding("pair", "problem", message_with_advice(error), "check both URLs")
        return
    yield Finding("pair", "ok" if is_healthy(replicas) else "warning", *describe(replicas))
