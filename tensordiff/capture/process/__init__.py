"""The child's side of a capture, for any engine: reading jobs, finding layers, writing the dump, reporting progress."""
