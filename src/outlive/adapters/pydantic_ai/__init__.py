"""Pydantic AI: conversations in threads, and agents as runs that survive their process.

agent = Agent(model, name="planner", capabilities=[OutliveDurability()])
outcome = run(agent, "Lisbon, three days", thread_id="trip-42", store=store)
"""

from outlive.adapters.pydantic_ai.conversations import OutliveConversationStore
from outlive.adapters.pydantic_ai.durability import OutliveDurability
from outlive.adapters.pydantic_ai.runs import AgentOutcome, aresume, arun, resume, run

__all__ = [
    "AgentOutcome",
    "OutliveConversationStore",
    "OutliveDurability",
    "aresume",
    "arun",
    "resume",
    "run",
]
