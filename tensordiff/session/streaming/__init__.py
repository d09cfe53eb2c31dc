"""Compare sources while they run, without writing dumps."""
