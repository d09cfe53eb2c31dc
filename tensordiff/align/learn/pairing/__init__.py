"""Pairs of tensors, once the layers are matched: ports, fused tensors, and their parts."""
