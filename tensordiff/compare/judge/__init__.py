"""Judge pairs: the verdict on a pair from its numbers and from the pairs before it."""
