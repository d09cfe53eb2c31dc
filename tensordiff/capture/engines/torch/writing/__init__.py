"""From a hook to the disk: sinks that tensors go into, and the ring of memory in which they wait to be written."""
