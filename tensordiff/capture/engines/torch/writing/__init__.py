"""From a hook to the disk: the sinks that take tensors, and the ring of memory in which they wait to be written."""
