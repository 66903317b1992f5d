"""State that outlives the process: checkpoints for AI agents."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .public import *
    from .public import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        """Import the public names when the first of them is used: `outlive --help` needs none of them, and starts at once."""
        import importlib

        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = importlib.import_module(f"{__name__}.public")
        globals().update({one: getattr(public, one) for one in ("__all__", *public.__all__)})
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
