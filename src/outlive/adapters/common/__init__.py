"""What the adapters share; no framework is imported here."""
