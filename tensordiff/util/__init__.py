"""What every layer may use, and what knows nothing of tensors."""
