"""``vllm:`` sources: models of vLLM."""
