"""Google ADK: sessions and shared state in threads, and agents as runs that survive their process.

runner = Runner(app=app, session_service=OutliveSessionService("sqlite:///agent.db"))
"""

from outlive.adapters.adk.runs import AgentOutcome, aresume, arun, resume, run
from outlive.adapters.adk.sessions import OutliveSessionService

__all__ = ["AgentOutcome", "OutliveSessionService", "aresume", "arun", "resume", "run"]
