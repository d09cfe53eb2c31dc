"""Two checkpoints compared as parameters: no order, no inputs, every differing parameter a finding of its own."""
