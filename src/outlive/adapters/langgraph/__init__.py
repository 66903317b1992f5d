"""LangGraph: a checkpointer for its graphs, and runs of graphs that outlive their process.

    from outlive.adapters.langgraph import OutliveSaver

    graph = builder.compile(checkpointer=OutliveSaver("sqlite:///agent.db"))

A LangGraph checkpoint is a state in outlive (`state.py`), in a namespace of the same name. Its
channel values are split by element and shared with the checkpoint before it. Python's own values
are stored as they are. Messages, other objects of LangChain and LangGraph, and the classes that a
program names are taken apart field by field (`values/messages.py`, `library_types.py`,
`user_types.py`). Everything else is stored as LangGraph's default serializer packs it
(`values/serializer.py`, `codec.py`).

The path of a put: `saver.py` has LangGraph's interface, sync and async; `write_order.py` keeps one
order per thread, so that a checkpoint never overtakes the writes of its step; `operations.py` is
the logic, written once as coroutines; `session.py` is the store, codec and engine that it works
with.
"""

from typing import TYPE_CHECKING, Any

from outlive.errors import ExtraMissing

if TYPE_CHECKING:
    from outlive.adapters.langgraph.importer.importer import aimport_langgraph as aimport_langgraph
    from outlive.adapters.langgraph.importer.importer import import_langgraph as import_langgraph

try:
    import langgraph.checkpoint.base  # noqa: F401
except ImportError as error:
    raise ExtraMissing("the LangGraph adapter", "langgraph") from error

from outlive.adapters.langgraph.runs import aresume_graph, arun_graph, resume_graph, run_graph
from outlive.adapters.langgraph.saver import OutliveSaver
from outlive.adapters.langgraph.values.serializer import StrictSerializer

__all__ = [
    "OutliveSaver",
    "StrictSerializer",
    "aimport_langgraph",
    "aresume_graph",
    "arun_graph",
    "import_langgraph",
    "resume_graph",
    "run_graph",
]


def __getattr__(name: str) -> Any:
    if name in ("import_langgraph", "aimport_langgraph"):  # imported late: most programs never need them
        from outlive.adapters.langgraph.importer import importer

        return getattr(importer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
