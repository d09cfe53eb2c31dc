"""Runs a torch program into a dump, for ``hf:``, ``py:`` and ``vllm:`` sources.

If the model fails or the disk is full, the dump keeps the layers that were reached, is flagged, and contains the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tensordiff.capture import tap as taps
from tensordiff.capture.engines.torch import facts as run_facts
from tensordiff.capture.engines.torch.compiled import eager, silent_layer_notes, why_empty
from tensordiff.capture.engines.torch.devices.flags import make_deterministic, nondeterministic_operations
from tensordiff.capture.engines.torch.gradients import GradientRecorder, differentiate
from tensordiff.capture.engines.torch.hooks import Recorder
from tensordiff.capture.engines.torch.parameters import parameter_bytes, write_parameters
from tensordiff.capture.engines.torch.program import Program, Step, seed
from tensordiff.capture.engines.torch.quantized import facts_of as quantized_facts
from tensordiff.capture.engines.torch.quantized import keep_readable
from tensordiff.capture.engines.torch.size_estimate import estimate
from tensordiff.capture.engines.torch.writing.sinks import WritingSink
from tensordiff.capture.engines.torch.writing.writer import BackgroundWriter
from tensordiff.capture.events import Done, Note, Phase, Tell, ThrottledProgress
from tensordiff.capture.job import REPLAY, Job
from tensordiff.capture.process.disk_space import check_job_size
from tensordiff.capture.process.layers import Selection
from tensordiff.capture.process.output import Output, done, open_output, partial_dump_clause
from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, TensordiffError, first_line, printable

FRAMEWORK = "torch"


def all_facts(program: Program, model: nn.Module, settings: Settings) -> dict[str, Any]:
    """The facts of a run, once it ran."""
    own = {"config_overrides": dict(settings.config), **quantized_facts(model), **program.facts()}
    return run_facts.about_run(model) | own


def capture(program: Program, job: Job, tell: Tell) -> Done:
    """Run a program once, and write the inputs and outputs of its modules."""
    settings = job.settings
    steps, step = begin(program, settings)
    more = parameter_bytes(step.model) * (settings.weights + settings.gradients)
    tell_size(job, step, tell, times=2 if settings.gradients else 1, more=more)
    with open_writer(job) as writing:
        sink = WritingSink(writing.background, writing.output.budget)
        recorder = Recorder(sink, Selection.from_settings(settings))
        backward = GradientRecorder(recorder) if settings.gradients else None
        try:
            run_steps(recorder, steps, step, job, tell, backward=backward)
        finally:
            writing.facts |= all_facts(program, step.model, settings) | {"calls": recorder.calls()}
        if settings.weights:
            tell(Phase("writing weights"))
            write_parameters(step.model, writing.background, writing.output.budget)
        notes = [*sink.notes(), *silent_layer_notes(recorder), *nondeterminism_notes(recorder)]
        if backward is not None:
            notes += backward.notes()
            writing.facts |= {"loss": backward.loss}
        writing.facts |= {"weights_hash": run_facts.weights_hash(step.model), "notes": notes or None}
        refuse_empty_dump(job, sink, recorder, notes)
        tell(Phase("writing"))
    return done(job, sink, writing.facts, tell)


def refuse_empty_dump(job: Job, sink: WritingSink, recorder: Recorder, notes: Sequence[str]) -> None:
    """Fail if nothing was written: an empty dump is hardly what the user wanted."""
    if not sink.entries:
        raise CaptureError(f"{printable(job.source)}: nothing was written: {why_empty(recorder, notes)}")


def tell_size(
    job: Job, step: Step, tell: Tell, selection: Selection | None = None, times: int = 1, more: int = 0
) -> None:
    """Say what is about to run and how much will be written; refuses what cannot fit.

    ``selection`` replaces the selection of the settings. ``times`` multiplies the size of what modules give; ``more``
    are bytes to add to it.
    """
    model_facts = run_facts.about_model(step.model)
    tell(Note(f"{model_facts['class']}, {model_facts.get('path') or 'source unknown'}"))
    nbytes = estimate(step, job.settings.steps, selection or Selection.from_settings(job.settings))
    check_job_size(job, None if nbytes is None else times * nbytes + more, tell)


def begin(program: Program, settings: Settings) -> tuple[Any, Step]:
    """Start a program, with its seed and flags; returns its steps and the first of them."""
    if settings.deterministic:
        make_deterministic()
    seed(settings.seed)
    steps = program.steps()
    try:
        step = next(steps)
    except StopIteration:
        raise CaptureError("the function gave no step; return or yield (module, args, kwargs)") from None
    keep_readable(step.model)
    return steps, step


def run_steps(
    recorder: Recorder,
    steps: Any,
    step: Step,
    job: Job,
    tell: Tell,
    name: str = "running",
    backward: GradientRecorder | None = None,
) -> None:
    """Run all steps under a recorder's hooks; with ``backward``, run each step's backward too."""
    tell(Phase(name, f"{job.settings.steps} step{'s' if job.settings.steps > 1 else ''}"))
    progress = ThrottledProgress(tell)
    taps.listeners.append(recorder)
    try:
        while True:
            if recorder.root is not step.model:
                recorder.attach(step.model)
                if backward is not None:
                    backward.attach(step.model)
                progress.total = len(recorder.hooked) * max(job.settings.steps, 1)
            recorder.finished = progress.advance
            step = steps.send(_run_step(recorder, backward, step, job))
            recorder.step += 1
    except StopIteration:
        return
    finally:
        taps.listeners.remove(recorder)
        recorder.detach()
        if backward is not None:
            backward.detach()


def _run_step(recorder: Recorder, backward: GradientRecorder | None, step: Step, job: Job) -> Any:
    """Run a step forward, and backward if ``backward`` is given; returns the model's output."""
    output = _forward(recorder, step, job, with_graph=backward is not None)
    if backward is None:
        return output

    def place() -> str:
        return f" after {backward.latest}" if backward.latest else ""

    reached = partial_dump_clause(job, "the forward, and the gradients it reached,")
    with torch.enable_grad(), _watched(recorder, f"{printable(job.source)}: the backward", place, reached):
        backward.loss = differentiate(output, step.model, step.loss, str(job.source))
    return output


def _forward(recorder: Recorder, step: Step, job: Job, *, with_graph: bool) -> Any:
    def place() -> str:
        return f" within {recorder.raised_in}" if recorder.raised_in else ""

    who = f"{printable(job.source)}: the model"
    with torch.set_grad_enabled(with_graph), _watched(recorder, who, place, partial_dump_clause(job)):
        return step.model(*step.args, **step.kwargs)


@contextmanager
def _watched(recorder: Recorder, who: str, place: Callable[[], str], reached: str) -> Iterator[None]:
    """Note nondeterministic operations, and turn an exception into a sentence on who raised it, and where."""
    try:
        with eager(), nondeterministic_operations() as operations:
            try:
                yield
            finally:
                recorder.nondeterministic |= operations
    except TensordiffError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise CaptureError(
            f"{who} raised {type(error).__name__}{place()}: {reason:.400}{reached}{what_to_try(error)}"
        ) from error


def what_to_try(error: BaseException) -> str:
    """What helps against an error of a GPU, as the end of a sentence; empty for any other error."""
    if isinstance(error, torch.OutOfMemoryError):
        return "; the device's memory is full: give a shorter input or fewer layers, or --device device_map=auto"
    # A kernel fails after the call that queued it has returned, so the named layer may not be the cause.
    if "CUDA error" in str(error) or "HIP error" in str(error):
        return "; a GPU reports errors late, so another layer may be the cause: run it with CUDA_LAUNCH_BLOCKING=1"
    return ""


def nondeterminism_notes(recorder: Recorder) -> list[str]:
    """Notes on what ``--deterministic`` could not guarantee."""
    some = sorted(recorder.nondeterministic)
    return [f"not deterministic, though that was asked for: {', '.join(some)}"] if some else []


@dataclass
class TorchOutput:
    """A dump that a thread writes."""

    output: Output
    background: BackgroundWriter

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the run, written at its end."""
        return self.output.facts

    @facts.setter
    def facts(self, facts: dict[str, Any]) -> None:
        self.output.facts = facts

    def begin_pass(self) -> None:
        """Begin another pass over the model."""
        self.background.drain()
        self.output.begin_pass()


@contextmanager
def open_writer(job: Job) -> Iterator[TorchOutput]:
    """Open the dump of a job, written by a thread."""
    with open_output(job, FRAMEWORK) as output, BackgroundWriter(output.writer) as background:
        yield TorchOutput(output, background)


def perform(program: Program, job: Job, tell: Tell) -> Done:
    """Do what a job asks for: capture a program, inject into it, record a layer's operations, or replay a layer."""
    if job.task == REPLAY:
        from tensordiff.capture.engines.torch.replay.replay import replay

        return replay(program, job, tell)
    if job.settings.ops is not None:
        from tensordiff.capture.engines.torch.ops import capture_ops

        return capture_ops(program, job, tell)
    if job.settings.inject is not None:
        from tensordiff.capture.engines.torch.inject import capture_injected

        return capture_injected(program, job, tell)
    return capture(program, job, tell)
