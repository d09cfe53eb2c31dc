"""What a session keeps on disk: its state file, the user's preferences, and the records of a suite."""
