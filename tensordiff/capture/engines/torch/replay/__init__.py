"""One torch layer alone, called as a dump says it was called."""
