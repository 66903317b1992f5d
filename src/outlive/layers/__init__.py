"""Layers: backends around backends. Each changes one thing and forwards the rest."""
