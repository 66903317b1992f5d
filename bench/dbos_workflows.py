"""DBOS, used as its documentation shows: one workflow that calls a step, its system database on the same server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig

NAME = "DBOS"


@DBOS.step()
def keep(message: dict[str, Any]) -> dict[str, Any]:
    """Return what DBOS then stores."""
    return message


_body: list[Callable[[], None]] = []


@DBOS.workflow()
def inside() -> None:
    """Run the body of `inside_workflow`: steps may only be called in a workflow."""
    _body[0]()


def inside_workflow(body: Callable[[], None]) -> None:
    _body[:] = [body]
    inside()


QUEUE = "bench"


@DBOS.workflow()
def empty() -> None:
    """Do nothing; the queue is what is measured."""


@contextmanager
def client(url: str) -> Iterator[DBOSClient]:
    """Use the queue from a process that does not work on it."""
    made = DBOSClient(system_database_url=url)
    try:
        yield made
    finally:
        made.destroy()


def enqueue(made: DBOSClient) -> None:
    made.enqueue({"queue_name": QUEUE, "workflow_name": empty.__qualname__})


def completed(made: DBOSClient) -> int:
    return len(made.list_workflows(status="SUCCESS", load_input=False, load_output=False))


@contextmanager
def launched(url: str) -> Iterator[None]:
    """Run DBOS until the block ends, with its defaults."""
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "WARNING"}
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE)
    try:
        yield
    finally:
        DBOS.destroy()
