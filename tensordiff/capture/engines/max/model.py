"""One MAX model for as long as a capture needs it: patched, compiled, run step by step, and unpatched.

Decides which patches a model needs (for an encoding that MAX bans on the CPU, or a model written for several devices);
the patches themselves are in ``patches``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from max.driver import DeviceSpec
from max.pipelines import PIPELINE_REGISTRY
from max.pipelines.modeling.types import PipelineTask

from tensordiff.capture.engines.max import patches
from tensordiff.capture.engines.max.checkpoint import Checkpoint
from tensordiff.capture.engines.max.graph import InstrumentedModel, LayerRan
from tensordiff.capture.engines.max.layers import Listener
from tensordiff.capture.engines.max.pipeline import ModelOptions, Pipeline
from tensordiff.capture.engines.max.shards import Merger
from tensordiff.capture.engines.max.sites import SiteValues, StepTensors
from tensordiff.capture.events import Phase, Progress, Tell
from tensordiff.errors import CaptureError, printable

ENCODINGS = ("float32", "bfloat16", "float16")
_COMPILING = "a first compilation takes minutes, the next of the same model seconds"
_TICK_S = 1.0
_REASON = re.compile(r"constraint failed: ([^\n]+)")


class CompiledModel:
    """A compiled model whose layers are recorded and can be given inputs. Use it in one ``with`` block."""

    def __init__(self, options: ModelOptions, tell: Tell, listener: Listener | None = None) -> None:
        self.options, self._tell = options, tell
        self.listener = listener or Listener()
        self._held = ExitStack()
        self.merger = Merger()
        self.weights: dict[str, Any] = {}
        """The weights that the graphs were given, by name, if they are to be written."""

    def __enter__(self) -> CompiledModel:
        with ExitStack() as held:
            patched = held.enter_context(patches.Patches())
            patch_max(patched, self.options)
            self.listener.install(patched)
            patches.on_compile(patched, self._before_compiling)
            if self.options.keeps_weights:
                patches.on_weights(patched, self.weights.update)
            with ticking(self._tell), compiling(self.options):
                self.pipeline = Pipeline(self.options)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _before_compiling(self, graph: Any) -> None:
        self.listener.before_compiling(graph)
        self._tell(Phase("compiling", _COMPILING))

    @property
    def instrumented(self) -> Sequence[InstrumentedModel]:
        """The graphs in which layers were recorded."""
        return self.listener.instrumented

    def steps(
        self,
        ids: Sequence[int],
        count: int,
        following: Sequence[int] = (),
        given: Mapping[int, SiteValues] | None = None,
    ) -> Iterator[StepTensors]:
        """Run; yields everything that was recorded in each step. ``given`` are the values to inject, by step."""
        given = given or {}
        self._give(given.get(0, {}))
        try:
            for step in self.pipeline.steps(ids, count, following):
                yield self._step_tensors()
                self._give(given.get(step + 1, {}))
        except LayerRan:
            yield self._step_tensors()

    def _step_tensors(self) -> StepTensors:
        """Everything recorded in this step; tensors spread over GPUs are merged."""
        return self.merger.step([noted for each in self.instrumented if each.run.seen for noted in each.captured()])

    def _give(self, given: SiteValues) -> None:
        for each in self.instrumented:
            each.give(given)


def patch_max(patched: patches.Patches, options: ModelOptions) -> None:
    """Make MAX build what it would refuse although it can run it, and skip what no capture needs."""
    patches.without_log_probabilities(patched)
    patches.allow_encoding(patched, options.encoding)
    if all(device == DeviceSpec.cpu() for device in options.devices):
        patches.collectives_on_cpu(patched)
    if options.is_short:
        patches.ignore_extra_weights(patched)
    if options.encoding == "float32":
        patches.norms_in_float32(patched, "max.pipelines.architectures.gemma3")


def encoding(dtype: str | None, checkpoint: Checkpoint) -> str:
    """MAX's name for the type to compute in."""
    name = dtype or checkpoint.dtype
    if name not in ENCODINGS:
        raise CaptureError(f"--dtype {printable(name)}: MAX is run in one of {', '.join(ENCODINGS)}")
    return name


def task(checkpoint: Checkpoint) -> PipelineTask:
    """What MAX does with such a model: generate text, or embed it."""
    known = {each.name: each.task for each in PIPELINE_REGISTRY.all_architectures()}
    named = checkpoint.architecture
    tasks = [known[name] for name in (named, f"{named}_Legacy", f"{named}_ModuleV3") if name in known]
    if not tasks:
        near = ", ".join(sorted(name for name in known if name[:3].lower() == named[:3].lower())[:6]) or "none alike"
        raise CaptureError(f"{printable(checkpoint.folder)}: MAX {patches.version()} has no {named}; it has {near}")
    if tasks[0] not in (PipelineTask.TEXT_GENERATION, PipelineTask.EMBEDDINGS_GENERATION):
        raise CaptureError(
            f"{printable(checkpoint.folder)}: {named} does {tasks[0].value}, which cannot be captured yet"
        )
    return tasks[0]


@contextmanager
def compiling(options: ModelOptions) -> Iterator[None]:
    """Turn a failed compilation into one sentence.

    MAX's error says only that it failed; the reason is deep in its cause.
    """
    try:
        yield
    except RuntimeError as error:
        reasons = _REASON.findall(str(error.__cause__))
        if not reasons:
            raise
        raise CaptureError(f"{printable(options.folder)}: MAX could not compile it: {printable(reasons[0])}") from error


@contextmanager
def ticking(tell: Tell) -> Iterator[None]:
    """Report every second how long it has taken so far."""
    over, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not over.wait(_TICK_S):
            seconds = int(time.monotonic() - began)
            tell(Progress(seconds, 0, f"{seconds} s"))

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
