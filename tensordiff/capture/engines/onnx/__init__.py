"""``onnx:`` sources: exported graphs, run by onnxruntime."""
