"""The ranks of a distributed run as one dump: which parts make a tensor, and how that is proven."""
