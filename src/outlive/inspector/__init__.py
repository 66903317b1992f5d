"""The inspector: what is in a store, in a browser. An ASGI app to mount, and what `outlive ui` serves.

from outlive.inspector import app

application.mount("/outlive", app(store))
"""

from __future__ import annotations

from outlive.errors import ExtraMissing

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError:
    raise ExtraMissing("the inspector", "ui") from None

from outlive.inspector.application import app

__all__ = ["app"]
