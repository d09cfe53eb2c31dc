"""Where the divergence starts: the culprits of a whole comparison, or the answer of a binary search."""
