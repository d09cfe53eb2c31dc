"""The numbers of a pair, computed in one pass over its two tensors."""
