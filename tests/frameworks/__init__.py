"""Frameworks on LangGraph, each with its own dependencies: `./dev test --frameworks`."""
