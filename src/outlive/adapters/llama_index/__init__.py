"""LlamaIndex workflows: their contexts in threads, and workflows as runs that survive their process.

outcome = run(workflow, {"city": "Lisbon"}, thread_id="trip-42", store=store)
"""

from outlive.adapters.llama_index.contexts import OutliveContexts
from outlive.adapters.llama_index.runs import WorkflowOutcome, aresume, arun, resume, run

__all__ = ["OutliveContexts", "WorkflowOutcome", "aresume", "arun", "resume", "run"]
