"""Traces and metrics by OpenTelemetry (extra `otel`).

```python
from outlive import otel

metrics = otel.metrics()
store = outlive.open(url, on_event=[otel.spans(), metrics])
metrics.observe(store)
```
"""

from __future__ import annotations

from typing import Any

from outlive.otel.metering import Metrics as Metrics
from outlive.otel.tracing import Spans as Spans

__all__ = ["Metrics", "Spans", "metrics", "spans"]


def spans(tracer: Any = None) -> Spans:
    """Return a function for `on_event` that traces runs, steps, saves and loads.

    `tracer` is a Tracer of OpenTelemetry (default: that of the global provider). Raises
    ExtraMissing.
    """
    return Spans(tracer)


def metrics(meter: Any = None) -> Metrics:
    """Return a function for `on_event` that measures; `metrics.observe(store)` adds gauges that ask the store.

    `meter` is a Meter of OpenTelemetry (default: that of the global provider). Raises ExtraMissing.
    """
    return Metrics(meter)
