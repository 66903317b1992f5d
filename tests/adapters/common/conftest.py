"""The stores and the rig of the adapters."""

from rig.adapters import each_store, each_url, folder, shared_url

__all__ = ["each_store", "each_url", "folder", "shared_url"]
