"""Parts of screens, one noun a file."""
