"""Microsoft Agent Framework: checkpoints of workflows and histories of agents in threads, and both as runs that survive their process.

storage = OutliveCheckpointStorage("trip-42", "sqlite:///agent.db")
workflow = WorkflowBuilder(name="planner", start_executor=start, checkpoint_storage=storage).build()
"""

from outlive.adapters.agent_framework.checkpoints import OutliveCheckpointStorage
from outlive.adapters.agent_framework.history import OutliveHistoryProvider
from outlive.adapters.agent_framework.runs import AgentOutcome, aresume, arun, resume, run

__all__ = [
    "AgentOutcome",
    "OutliveCheckpointStorage",
    "OutliveHistoryProvider",
    "aresume",
    "arun",
    "resume",
    "run",
]
