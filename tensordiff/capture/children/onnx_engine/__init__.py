"""The parts of an ``onnx:`` capture: the file, its graph, the layers in it, running it, injecting into it."""
