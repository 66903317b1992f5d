"""State that outlives the process: checkpoints for AI agents."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .public import *
    from .public import __all__ as __all__
else:
    _FUNCTIONS = ("checkpoint_file", "open", "open_async", "register")

    def __getattr__(name: str) -> Any:
        """Import the public names when the first of them is used: `outlive --help` needs none, and starts at once."""
        if not (name[0].isupper() or name in _FUNCTIONS or name == "__all__"):  # a module, perhaps
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        public = importlib.import_module(f"{__name__}.public")
        globals().update({one: getattr(public, one) for one in ("__all__", *public.__all__)})
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
