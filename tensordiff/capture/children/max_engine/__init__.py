"""Running Modular MAX: the parts of the ``max`` child process. Nothing outside ``capture.children`` imports this."""
