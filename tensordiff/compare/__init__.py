"""How far apart the two tensors of a pair are, and what that means: numbers, verdicts, hints."""
