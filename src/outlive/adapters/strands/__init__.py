"""Strands Agents: sessions in threads, and agents as runs that survive their process.

agent = Agent(session_manager=OutliveSessionManager("trip-42", "sqlite:///agent.db"))
"""

from outlive.adapters.strands.runs import AgentOutcome, aresume, arun, resume, run
from outlive.adapters.strands.session_manager import OutliveSessionManager

__all__ = ["AgentOutcome", "OutliveSessionManager", "aresume", "arun", "resume", "run"]
