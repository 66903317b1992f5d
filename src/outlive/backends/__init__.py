"""Where records are kept, one module per engine."""
