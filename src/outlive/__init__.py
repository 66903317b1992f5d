"""State that outlives the process: checkpoints for AI agents."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .public import *
    from .public import __all__ as __all__
else:
    _FUNCTIONS = ("checkpoint_file", "open", "open_async", "register")

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for: `outlive --help` needs none of it, and starts at once."""
        import importlib

        if name[0].isupper() or name in _FUNCTIONS or name == "__all__":
            public = importlib.import_module(f"{__name__}.public")
            globals().update({one: getattr(public, one) for one in ("__all__", *public.__all__)})
            if name in globals():
                return globals()[name]
        elif not name.startswith("_"):
            module = f"{__name__}.{name}"
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
