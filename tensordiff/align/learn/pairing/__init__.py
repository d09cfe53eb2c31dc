"""Pairs of tensors, once layers are matched: ports, fused tensors and their parts."""
