"""Names that mislead: which names the values refute, and which tensors only the candidate has."""
