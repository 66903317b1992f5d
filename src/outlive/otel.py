"""Events as OpenTelemetry spans.

`from outlive import otel; outlive.open(url, on_event=otel.spans())`
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from outlive.errors import ExtraMissing
from outlive.events import Event, Watcher


def spans(tracer: Any = None) -> Watcher:
    """Return a function for `on_event` that makes a span of every event, such as `outlive.save`."""
    try:
        trace: Any = importlib.import_module("opentelemetry.trace")
    except ImportError as error:
        raise ExtraMissing("OpenTelemetry", "otel") from error
    used = tracer if tracer is not None else trace.get_tracer("outlive")

    def watch(event: Event) -> None:
        end = time.time_ns()
        span = used.start_span(f"outlive.{event.name}", start_time=end - int(event.duration_s * 1e9))
        for name in (
            "thread",
            "namespace",
            "checkpoint",
            "run",
            "status",
            "attempt",
            "step",
            "key",
            "state_bytes",
            "new_bytes",
            "error",
        ):
            value = getattr(event, name)
            if value not in (None, ""):
                span.set_attribute(f"outlive.{name}", value)
        span.end(end_time=end)

    return watch
