"""Google ADK: sessions, shared state and artifacts in threads, and agents as runs that survive their process.

runner = Runner(app=app, session_service=OutliveSessionService("sqlite:///agent.db"))
"""

from outlive.adapters.adk.artifacts import OutliveArtifactService
from outlive.adapters.adk.runs import AgentOutcome, aresume, arun, resume, run
from outlive.adapters.adk.sessions import OutliveSessionService

__all__ = [
    "AgentOutcome",
    "OutliveArtifactService",
    "OutliveSessionService",
    "aresume",
    "arun",
    "resume",
    "run",
]
