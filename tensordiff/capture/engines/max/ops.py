"""Inside a layer: the results of the operations that its code adds to the graph, in order.

No operation is patched and no model is edited: an operation that was added between two calls of layers was added by the
layer whose code is running. Operations are named ``layer/op_03_matmul``, with the class and source of the innermost
layer. Results that do not depend on the run's inputs, such as a transposed weight, are left out. With these outputs it
is a different graph to MAX, which compiles it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordiff.capture.engines.max import patches
from tensordiff.capture.engines.max.graph import GraphRecord
from tensordiff.capture.engines.max.layers import LayerCall, Listener, origin_of
from tensordiff.capture.engines.max.sites import GraphSite
from tensordiff.capture.process.layers import find_layer


class OpsListener(Listener):
    """Records the operations of one layer and of the layers in it, besides the inputs and outputs of all layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._wanted_name, self.layer = name, ""
        self._running = 0
        self._numbers: Counter[int] = Counter()
        self._last: dict[str, Any] = {}

    def name(self, root: Any) -> None:
        """Name the layers, and find the requested one."""
        super().name(root)
        self.layer = find_layer(self._wanted_name, self.names.layers())

    def trace_call(
        self, at: LayerCall, plain: Callable[..., Any], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Note while the layer's code runs, and in which call."""
        if at.layer != self.layer:
            return super().trace_call(at, plain, layer, args, kwargs)
        self._running = at.call
        try:
            return super().trace_call(at, plain, layer, args, kwargs)
        finally:
            self._running = 0

    def note_operations(self, record: GraphRecord) -> None:
        """Record the new operations."""
        for operation in self._new(record):
            self._note(record, operation)

    def skip_operations(self, record: GraphRecord) -> None:
        """Ignore the new operations."""
        self._new(record)

    def _new(self, record: GraphRecord) -> list[Any]:
        found = patches.operations_after(record.graph, self._last.get(record.graph.name))
        if found:
            self._last[record.graph.name] = found[-1]
        return found

    def _note(self, record: GraphRecord, operation: Any) -> None:
        innermost = self.active[-1] if self.active else None
        if not self._running or innermost is None or not is_within(self.names.of(innermost), self.layer):
            return
        results = [each for each in patches.results_of(operation) if record.depends_on_inputs(each)]
        if not results:
            return
        number = self._numbers[self._running]
        self._numbers[self._running] += 1
        at = f"{self.layer}/op_{number:02d}_{patches.operation_name(operation)}"
        for port, value in enumerate(results):
            name = "output" if len(results) == 1 else f"output_{port}"
            record.tap(GraphSite(at, name, self._running, origin_of(type(innermost))), value)


def is_within(layer: str, other: str) -> bool:
    """Whether a layer is another layer or inside it."""
    return layer == other or layer.startswith(f"{other}.")
