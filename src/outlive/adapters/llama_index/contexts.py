"""`OutliveContexts`: the contexts of a workflow, each as a checkpoint."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from workflows import Context, Workflow
from workflows.context import JsonSerializer
from workflows.context.utils import get_qualified_name

from outlive.adapters.common.current import save_in_run
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.travel import Past, Travelling
from outlive.errors import BadArgument
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import CheckpointInfo, New

NAMESPACE = "workflow"
_CONTEXT = "context"
Types = Iterable[type[Any]]


class OutliveContexts(Travelling):
    """Contexts of workflows in a thread: `contexts = OutliveContexts("trip-42", "sqlite:///agent.db")`.

    A context shares what it has in common with the one before. Only the types of the events and the
    state of the workflow are loaded, the models in its module, and those in `types`: nothing is
    imported because a context names it.
    """

    def __init__(
        self, thread_id: str, store: str | Store | AsyncStore, *, types: Types = (), **options: Any
    ) -> None:
        self._types = tuple(types)
        self._past = Past(thread_id, NAMESPACE)
        self._home = StoreHome.of(store, options, "OutliveContexts")

    def __repr__(self) -> str:
        return f"<OutliveContexts {self._past.thread_id!r} {self._home.url}>"

    async def save(
        self,
        context: Context[Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        expect: str | New | None = None,
    ) -> CheckpointInfo:
        """Save a context: `handler.ctx` of a workflow that works, or has ended.

        With `expect`, the id of the checkpoint that you loaded, or `outlive.NEW`, raise HeadMoved
        when another process has saved since.
        """
        plain = dumped(context, JsonSerializer())
        return await self._do(
            lambda store: save_in_run(self._past.thread(store), plain, metadata=metadata or {}, expect=expect)
        )

    async def load(self, workflow: Workflow, at: str | None = None) -> Context[Any] | None:
        """Return the newest context, or that of a checkpoint; None when there is none.

        `workflow.run(ctx=context)` continues it, with the steps that were under way.
        """
        plain = await self._do(lambda store: self._past.thread(store).load(at))
        return None if plain is None else loaded(workflow, plain, serializer_of(workflow, self._types))

    async def fork(self, thread_id: str, at: str | None = None) -> OutliveContexts:
        """Return the contexts of a new thread, which starts with the newest one of this, or with that of a checkpoint."""
        await self._do(lambda store: self._past.fork(store, thread_id, at))
        forked = OutliveContexts.__new__(OutliveContexts)
        forked._types, forked._past, forked._home = (
            self._types,
            Past(thread_id, NAMESPACE),
            self._home.share(),
        )
        return forked

    async def delete(self) -> bool:
        """Delete all contexts of the thread, and leave no byte; False when there were none."""
        pruned = await self._do(lambda store: self._past.thread(store).delete_namespace(erase=True))
        return pruned.checkpoints > 0

    def close(self) -> None:
        """Close the store if it was opened here, and nothing else of this process uses it."""
        self._home.close()


class KnownTypes(JsonSerializer):
    """Loads the types it knows, and notes those that it writes and could not load."""

    def __init__(self, types: Iterable[type[Any]]) -> None:
        super().__init__(allowed_types=types)
        self.unknown: set[str] = set()

    def serialize_value(self, value: Any) -> Any:
        """Return a value as data."""
        if isinstance(value, BaseModel) or hasattr(value, "class_name"):
            self.note(get_qualified_name(value))
        return super().serialize_value(value)

    def note(self, name: str) -> None:
        """Note the name of a type, unless it is known."""
        try:
            self.resolve_class(name)
        except ValueError:
            self.unknown.add(name)


def serializer_of(workflow: Workflow, types: Types) -> KnownTypes:
    """Return a serializer that loads the events and the state of a workflow, the models in its module, and the types of the caller."""
    events = {event for event in workflow.events if isinstance(event, type)}
    states = {step._step_config.context_state_type for step in workflow._get_steps().values()}
    own = {
        *events,
        *(kind for kind in states if kind is not None),
        workflow.start_event_class,
        workflow.stop_event_class,
        *types,
    }
    names = {_name_of(kind) for kind in own}
    module = vars(sys.modules[type(workflow).__module__]).values()
    models = {kind for kind in module if isinstance(kind, type) and issubclass(kind, BaseModel)}
    return KnownTypes({*own, *(kind for kind in models if _name_of(kind) not in names)})


def _name_of(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def dumped_in_run(context: Context[Any], serializer: KnownTypes) -> dict[str, Any]:
    """Return a context as a plain value. Raises BadArgument for one that the next process could not load."""
    plain = dumped(context, serializer)
    for worker in plain[_CONTEXT]["workers"].values():
        for waiter in worker["collected_waiters"]:
            serializer.note(waiter["waiting_for_event"])
    if serializer.unknown:
        raise _unknown_types(serializer.unknown)
    return plain


def _unknown_types(names: Iterable[str]) -> BadArgument:
    words = ", ".join(sorted(names))
    return BadArgument(f"no other process could load this context: pass types=[...] with {words}")


def dumped(context: Context[Any], serializer: JsonSerializer) -> dict[str, Any]:
    """Return a context as a plain value. The values of its store are JSON texts there, and objects here: these share what is equal."""
    plain = context.to_dict(serializer)
    values = _values(plain)
    return {_CONTEXT: plain if values is None else _with_values(plain, _mapped(json.loads, values))}


def loaded(workflow: Workflow, state: Any, serializer: JsonSerializer) -> Context[Any]:
    """Return the context of a plain value."""
    plain = state.get(_CONTEXT) if isinstance(state, dict) else None
    if not isinstance(plain, dict):
        raise BadArgument(f"this thread holds no context of a workflow in its namespace {NAMESPACE!r}")
    values = _values(plain)
    whole = plain if values is None else _with_values(plain, _mapped(json.dumps, values))
    try:
        return Context.from_dict(workflow, whole, serializer)
    except Exception as error:
        if name := re.search(r"Class (\S+) is not in the serializer's allowed types", str(error)):
            raise _unknown_types([name[1]]) from error
        raise


def _mapped(change: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {name: change(value) for name, value in values.items()}


def _values(plain: dict[str, Any]) -> dict[str, Any] | None:
    """Return the values of a store of any values; None for one that has a type."""
    data = (plain.get("state") or {}).get("state_data")
    values = data.get("_data") if isinstance(data, dict) else None
    return values if isinstance(values, dict) else None


def _with_values(plain: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    state = {**plain["state"], "state_data": {**plain["state"]["state_data"], "_data": values}}
    return {**plain, "state": state}
