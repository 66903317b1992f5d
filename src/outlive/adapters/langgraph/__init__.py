"""LangGraph: a checkpointer for its graphs, and runs of graphs that outlive their process.

    from outlive.adapters.langgraph import OutliveSaver

    graph = builder.compile(checkpointer=OutliveSaver("sqlite:///agent.db"))

How it works. A checkpoint of LangGraph is a state of outlive: its channel values are split by element and shared with
the checkpoint before it, in a namespace of the same name, and `seq` gives the order. Python's own values are stored
as they are; objects of LangChain and LangGraph travel in the form that LangGraph's own serializer gives them
(`serializer.py`, `values.py`). Everything that writes to a thread waits for its turn (`turns.py`), so that a checkpoint never
overtakes the writes of its step. The logic is written once, as coroutines (`keeper.py`); `saver.py` calls it in both
colours.
"""

from typing import TYPE_CHECKING, Any

from ...errors import MissingExtra

if TYPE_CHECKING:
    from .moving import import_langgraph as import_langgraph
    from .moving_async import aimport_langgraph as aimport_langgraph

try:
    import langgraph.checkpoint.base  # noqa: F401
except ImportError as error:
    raise MissingExtra("the LangGraph adapter", "langgraph") from error

from .running import aresume, arun, resume, run
from .saver import OutliveSaver
from .serializer import StrictSerializer

__all__ = [
    "OutliveSaver",
    "StrictSerializer",
    "aimport_langgraph",
    "aresume",
    "arun",
    "import_langgraph",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "import_langgraph":  # needed once in the life of a database
        from .moving import import_langgraph

        return import_langgraph
    if name == "aimport_langgraph":
        from .moving_async import aimport_langgraph

        return aimport_langgraph
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
