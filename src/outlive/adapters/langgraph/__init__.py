"""LangGraph: a checkpointer for its graphs, and runs of graphs that outlive their process.

    from outlive.adapters.langgraph import OutliveSaver

    graph = builder.compile(checkpointer=OutliveSaver("sqlite:///agent.db"))

How it works. A checkpoint of LangGraph is a state of outlive: its channel values are split by element and shared with
the checkpoint before it, in a namespace of the same name, and `seq` gives the order. Python's own values are stored
as they are; messages, other objects of LangChain and LangGraph and the classes that a program names are taken apart field by field
(`messages.py`, `frameworks.py`, `named.py`), and what is left takes the form that LangGraph's own serializer gives it
(`serializer.py`, `values.py`). Everything that writes to a thread waits for its turn (`turns.py`), so that a checkpoint never
overtakes the writes of its step. The logic is written once, as coroutines (`keeper.py`); `saver.py` calls it in both
modes.
"""

from typing import TYPE_CHECKING, Any

from outlive.errors import MissingExtra

if TYPE_CHECKING:
    from outlive.adapters.langgraph.importer.importer import aimport_langgraph as aimport_langgraph
    from outlive.adapters.langgraph.importer.importer import import_langgraph as import_langgraph

try:
    import langgraph.checkpoint.base  # noqa: F401
except ImportError as error:
    raise MissingExtra("the LangGraph adapter", "langgraph") from error

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
