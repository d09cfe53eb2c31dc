"""The screen for two checkpoints, which lists their parameters."""
