"""What `doctor` finds, and how it asks a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.cli.lookup import backend_of
from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.sync.facades import Store


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `level` is ok, note, warning or problem."""

    check: str
    level: str
    said: str
    mend: str = ""


def lowest(store: Store) -> Any:
    """Return the backend that holds the records."""
    backend = backend_of(store)
    return getattr(backend, "local", backend)


def pragma(backend: Any, name: str) -> Any:
    return backend._link.db().execute(f"pragma {name}").fetchall()[0][0]


def ask_postgres(backend: Any, statement: str) -> str:
    from outlive.backends.postgres.rows import to_text

    ((cell,),) = run_now(backend._ask(statement))
    return to_text(cell)


def ask_redis(backend: Any, *command: str) -> Any:
    """Return what one server says; None when that is not allowed."""
    reply = run_now(backend.session.ask_each_node(command))[0]
    return None if isinstance(reply, Exception) else reply
