"""Names that mislead: pairs of names that the values refute, and tensors that only the candidate has."""
