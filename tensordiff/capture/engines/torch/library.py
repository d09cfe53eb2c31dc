"""The library's capture: ``with tensordiff.capture(model, "dump/"):`` around any forward, in the caller's own process.

Every call of the whole model is a step. Leaving the block removes every hook, also after an exception; the dump then
stays readable up to that point and is flagged.
"""

from __future__ import annotations

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import nn

from tensordiff.capture import tap as taps
from tensordiff.capture.engines.torch import facts as run_facts
from tensordiff.capture.engines.torch.compiled import eager, silent_layer_notes, why_empty
from tensordiff.capture.engines.torch.gradients import GradientRecorder
from tensordiff.capture.engines.torch.hooks import Recorder
from tensordiff.capture.engines.torch.writing.sinks import WritingSink
from tensordiff.capture.engines.torch.writing.writer import BackgroundWriter
from tensordiff.capture.process.disk_space import Budget
from tensordiff.capture.process.layers import Selection
from tensordiff.capture.settings import check_layer_regex
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError, TensordiffError, printable

_NO_BACKWARD = "no gradient was seen: call loss.backward() within the block"
Module = nn.Module
"""The type of the captured model, so that other modules need not import torch to name it."""


class LiveCapture:
    """A capture in progress. Afterwards, ``notes`` has what the user should know about it."""

    def __init__(
        self,
        model: nn.Module | None,
        folder: str | PathLike[str],
        *,
        layers: str | None,
        leaves: bool,
        inputs: bool,
        max_bytes: int | None,
        overwrite: bool,
        gradients: bool = False,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise CaptureError(f"expected a torch.nn.Module, got {type(model).__name__}")
        if layers is not None:
            check_layer_regex("layers", layers)
        self.model, self.folder = model, Path(folder)
        self.notes: list[str] = []
        self._writer = DumpWriter(folder, {"framework": "torch"}, overwrite=overwrite, durable=False)
        self._background = BackgroundWriter(self._writer)
        self._sink = WritingSink(self._background, Budget(max_bytes))
        self._recorder = Recorder(self._sink, Selection(layers, leaves, inputs), counts_steps=True)
        self._backward = GradientRecorder(self._recorder) if gradients else None
        self._facts: dict[str, Any] = {}
        self._stack = ExitStack()

    @property
    def entries(self) -> int:
        """The number of tensors seen so far."""
        return self._sink.entries

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._writer)
            stack.push(self._add_facts)
            stack.enter_context(self._background)
            stack.callback(self._gather_facts)
            if self.model is not None:
                stack.enter_context(eager())
                stack.callback(self._recorder.detach)
                self._recorder.attach(self.model)
                if self._backward is not None:
                    stack.callback(self._backward.detach)
                    self._backward.attach(self.model)
            stack.callback(taps.listeners.remove, self._recorder)
            taps.listeners.append(self._recorder)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _gather_facts(self) -> None:
        """Collect the facts of the run while the thread writes what is still waiting."""
        self._background.close()
        self._facts = {} if self.model is None else _about(self.model)
        self.notes = [*self._sink.notes(), *silent_layer_notes(self._recorder), *self._unseen()]
        if self._backward is not None:
            self.notes += self._backward.notes() if self._backward.written else [_NO_BACKWARD]
        self._facts |= {"notes": self.notes or None, "calls": self._recorder.calls()}

    def _add_facts(self, _: object, error: BaseException | None, __: object) -> None:
        """Add the facts after the thread is done and before the dump is closed."""
        if error is not None:
            self._facts["error"] = printable(f"{type(error).__name__}: {error}")
        try:
            self._writer.add_facts(**self._facts)
        except TensordiffError:
            if error is None:
                raise

    def _unseen(self) -> list[str]:
        if self._sink.entries:
            return []
        if not self._recorder.fired:
            return ["nothing ran within the block: the dump is empty"]
        return [f"the dump is empty: {why_empty(self._recorder, self._sink.notes())}"]


def capture(
    model: nn.Module | None,
    folder: str | PathLike[str],
    *,
    layers: str | None = None,
    leaves: bool = False,
    inputs: bool = True,
    max_bytes: int | None = None,
    overwrite: bool = False,
    gradients: bool = False,
) -> LiveCapture:
    """Write what a model does within a ``with`` block into a dump.

    ``layers`` is a regular expression that the names of layers must match. With ``leaves`` only modules without
    submodules are written, without ``inputs`` only outputs. The first tensor that would exceed ``max_bytes``, and all
    after it, are left out, which ``notes`` says. A folder that holds a dump is refused, unless ``overwrite`` is given.
    With ``gradients`` a backward within the block is written too. If the model is ``None``, only what ``tap`` is given
    is captured.
    """
    return LiveCapture(
        model, folder, layers=layers, leaves=leaves, inputs=inputs, max_bytes=max_bytes, overwrite=overwrite,
        gradients=gradients,
    )  # fmt: skip


def _about(model: nn.Module) -> dict[str, Any]:
    return run_facts.about_run(model) | {"weights_hash": run_facts.weights_hash(model)}
