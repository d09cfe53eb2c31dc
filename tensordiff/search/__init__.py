"""Where the divergence starts: the culprits of a full comparison, or the answer of a binary search."""
