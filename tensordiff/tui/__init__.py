"""Face two: the terminal application. It shows what the session knows, and never thinks or blocks."""
