"""Find the first tensor where two runs of the same neural network stop agreeing."""

__version__ = "0.1.0"
