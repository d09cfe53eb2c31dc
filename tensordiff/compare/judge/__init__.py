"""What the numbers of a pair mean: its verdict, in the light of the pairs before it."""
