"""OpenAI Agents SDK: conversations and run states in threads, and agents as runs that survive their process.

session = OutliveSession("trip-42", "sqlite:///agent.db")
result = await Runner.run(agent, "Lisbon, three days", session=session)
"""

from outlive.adapters.openai_agents.runs import AgentOutcome, aresume, arun, resume, run
from outlive.adapters.openai_agents.session import OutliveSession
from outlive.adapters.openai_agents.states import OutliveRunStates

__all__ = ["AgentOutcome", "OutliveRunStates", "OutliveSession", "aresume", "arun", "resume", "run"]
