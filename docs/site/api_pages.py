"""The pages of the API reference: each public name on one of them, described by its docstring."""

from __future__ import annotations

import importlib
import inspect

# Page → title, and what is on it: names of `outlive`, or modules whose `__all__` is meant.
PAGES = {
    "store": (
        "Store",
        "open open_async Store AsyncStore Event StoreSize Verified Problem checkpoint_file CheckpointFile",
    ),
    "thread": (
        "Thread",
        "Thread AsyncThread NEW Checkpoint CheckpointInfo ThreadInfo Change Interrupt PendingWrite Pruned Sizes register Opaque",
    ),
    "run": (
        "Run",
        "Run AsyncRun RunInfo StepInfo FailedTry Attempt Budget EffectKey Lock AsyncLock Question QuestionInfo Waiting StreamChunk",
    ),
    "responses": (
        "Responses",
        "Responses AsyncResponses FanOut ModelResponse PartialResponse Usage WriteProposal",
    ),
    "worker": ("Worker and recovery", "Worker AsyncWorker WorkerInfo Recovered FailedRun SkippedRun"),
    "operations": (
        "Keys, pairs, retention",
        "KeyRing Rotated Replication ReplicationStatus RoleChange Retain Swept DeletionCount",
    ),
    "errors": ("Errors", "outlive.errors"),
    "langgraph": ("LangGraph", "outlive.adapters.langgraph"),
    "otel": ("OpenTelemetry", "outlive.otel"),
    "backend": ("For authors of backends", "outlive.backend outlive.authoring outlive.testing"),
}


def pages():
    """Return file name → Markdown of every page. Raises LookupError for a public name that no page has."""
    listed = {name for _, names in PAGES.values() for name in names.split()}
    missing = sorted(public_names() - listed)
    if missing:
        raise LookupError(f"docs/site/api_pages.py: no page of the API has {', '.join(missing)}")
    written = {f"api/{page}.md": text(title, names.split()) for page, (title, names) in PAGES.items()}
    return {"api/index.md": contents(), **written}


def public_names():
    """Return the names of `outlive`, apart from the errors, which have a page as a module."""
    outlive = importlib.import_module("outlive")
    errors = vars(importlib.import_module("outlive.errors"))
    return {name for name in outlive.__all__ if name not in errors}


def contents():
    rows = [f"| [{title}]({page}.md) | {summary(names.split())} |" for page, (title, names) in PAGES.items()]
    lines = [
        "# API",
        "",
        "Generated from the docstrings. What is not on these pages is private, and may change in any release.",
        "",
        "| page | what is on it |",
        "|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def summary(names):
    return ", ".join(f"`{name}`" for name in names)


def text(title, names):
    return "\n\n".join([f"# {title}", *(part for name in names for part in parts(name))]) + "\n"


def parts(name):
    """Return the directives of a name, or of all public names of a module."""
    if not name.startswith("outlive."):
        return [f"::: outlive.{name}"]
    module = importlib.import_module(name)
    public = getattr(module, "__all__", None) or errors_of(module)
    described = [public_name for public_name in public if is_described(module, public_name)]
    return [
        f"## {name}",
        first_paragraph(module),
        *(f"::: {name}.{public_name}\n    options:\n      heading_level: 3" for public_name in described),
    ]


def errors_of(module):
    """Return the classes that a module defines."""
    return [
        name
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    ]


def is_described(module, name):
    """Return whether a name has a docstring of its own, which constants have not."""
    return inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))


def first_paragraph(module):
    return (inspect.getdoc(module) or "").partition("\n\n")[0]
