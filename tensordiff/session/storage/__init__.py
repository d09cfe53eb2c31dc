"""What a session keeps on disk: its state file, the user's preferences, the records of a suite."""
