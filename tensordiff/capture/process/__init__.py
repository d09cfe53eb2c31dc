"""The child's side of a capture, engine-neutral: reading jobs, finding layers, writing the dump, telling progress."""
