"""Stores that are damaged in every way, and every public call on them."""

from .calls import CHANGES, READS, fill, fill_more
from .places import FilePlace, PostgresPlace, RedisPlace, SQLitePlace

__all__ = [
    "CHANGES",
    "READS",
    "FilePlace",
    "PostgresPlace",
    "RedisPlace",
    "SQLitePlace",
    "fill",
    "fill_more",
]
