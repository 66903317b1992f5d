"""Claude Agent SDK: sessions in threads, and queries as runs that survive their process.

options = ClaudeAgentOptions(session_store=OutliveSessionStore("sqlite:///agent.db"),
session_store_flush="eager")
"""

from outlive.adapters.claude.runs import QueryOutcome, aresume, arun, resume, run
from outlive.adapters.claude.session_store import OutliveSessionStore

__all__ = ["OutliveSessionStore", "QueryOutcome", "aresume", "arun", "resume", "run"]
