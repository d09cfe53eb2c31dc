"""A closer look at one pair or tensor, on request: elements, axes, heatmaps, logits, statistics."""
