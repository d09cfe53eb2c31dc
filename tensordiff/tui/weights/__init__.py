"""Two checkpoints: their parameters in a list."""
