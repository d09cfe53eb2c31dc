"""``hf:`` sources: models of transformers."""
