"""Where it starts."""
