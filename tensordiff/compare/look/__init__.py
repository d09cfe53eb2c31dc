"""A closer look at one pair or tensor, on request: elements, axes, heat maps, logits, statistics."""
