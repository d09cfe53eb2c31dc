"""``llamacpp:`` sources: GGUF files, run by llama.cpp."""
