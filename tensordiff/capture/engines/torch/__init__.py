"""What ``hf:`` and ``py:`` sources and the library share: torch modules seen through their hooks."""
