"""hint."""
