"""One module for each command: its options at the top, then what it does. ``cli.main`` has the list of commands."""
