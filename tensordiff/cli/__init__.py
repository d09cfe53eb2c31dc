"""Face one: the command line."""
