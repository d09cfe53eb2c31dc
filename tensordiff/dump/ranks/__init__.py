"""A dump of several ranks as one dump: which parts make a tensor, and how that is proven."""
