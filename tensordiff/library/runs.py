"""``tensordiff.capture`` and ``tensordiff.inject``: run a model or a source and write a dump.

A torch model runs in the caller's own process, inside a ``with`` block. A source runs in a child process, as on the
command line; the caller names it explicitly, so no permission is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from tensordiff.capture.engines import ENGINES, spellings
from tensordiff.capture.events import Done, Event, Failed, Note, Phase, Progress
from tensordiff.capture.job import Job, parse_source, required_source
from tensordiff.capture.runner import Run, dump_at
from tensordiff.capture.settings import Injection
from tensordiff.dump import Dump, open_dump
from tensordiff.errors import CaptureError, WriteError, printable
from tensordiff.library.run_options import PathLike, RunOptions, run_settings
from tensordiff.session.rerun.trust import Trust, refuse_untrusted, rerun_offer
from tensordiff.session.sources import with_input_of
from tensordiff.util.temporary_folders import keep_temporary_folder

if TYPE_CHECKING:
    from tensordiff.capture.engines.torch.library import LiveCapture, Module

ProgressCallback = Callable[[str], None]
"""Receives one line of progress; ``print`` will do."""


@dataclass(frozen=True)
class CapturedDump(os.PathLike[str]):
    """A dump that was written; it can be passed to ``compare``."""

    path: Path
    entries: int
    """The number of tensors in it."""
    notes: tuple[str, ...] = ()
    """Remarks about the run: what was left out, what could not be injected."""

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def dump(self) -> Dump:
        """Open the dump."""
        return open_dump(self.path)


@overload
def capture(
    model: Module | None,
    folder: PathLike,
    *,
    layers: str | None = None,
    leaves: bool = False,
    inputs: bool = True,
    max_bytes: int | None = None,
    overwrite: bool = False,
    gradients: bool = False,
) -> LiveCapture: ...


@overload
def capture(
    model: str,
    folder: PathLike,
    *,
    layers: str | None = None,
    leaves: bool = False,
    inputs: bool | PathLike = True,
    max_bytes: int | None = None,
    overwrite: bool = False,
    gradients: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> CapturedDump: ...


def capture(
    model: Any,
    folder: PathLike,
    *,
    layers: str | None = None,
    leaves: bool = False,
    inputs: bool | PathLike = True,
    max_bytes: int | None = None,
    overwrite: bool = False,
    gradients: bool = False,
    progress: ProgressCallback | None = None,
    **options: Any,
) -> LiveCapture | CapturedDump:
    """Write the inputs and outputs of every layer of a model to a dump, which is a folder.

    Around any forward of a torch model, in this process::

        with tensordiff.capture(model, "dump/"):
            model(**inputs)

    Or of a source, in a process of its own; ``options`` are those of ``tensordiff capture``::

        tensordiff.capture("hf:PATH_OR_ID", "dump/", prompt="The meaning of life")

    ``layers`` is a regular expression for layer names; with ``leaves`` only modules without submodules are written;
    ``inputs=False`` leaves out the inputs of layers (for a source, ``inputs`` may also be a file with the model's
    arguments). The first tensor that would exceed ``max_bytes`` and all later ones are left out, which ``notes`` of the
    result mentions. A folder that holds a dump is refused unless ``overwrite=True``, which replaces it. ``None`` as the
    model captures only what ``tap`` is given.

    ``gradients=True`` also writes the gradients of the inputs, outputs and parameters of every module. For a model,
    call ``backward`` yourself inside the block. For a source the loss is the fourth element that its function returns,
    the model's own loss, or the sum of its logits::

        with tensordiff.capture(model, "dump/", gradients=True):
            model(**inputs).loss.backward()
    """
    if isinstance(model, str | os.PathLike):
        if not isinstance(inputs, bool):
            options["inputs"] = inputs
        settings = run_settings(
            "capture", cast("RunOptions", options), layers=layers, leaves=leaves, no_inputs=inputs is False,
            max_bytes=max_bytes, force=overwrite, gradients=gradients,
        )  # fmt: skip
        return run_into(Job(required_source(os.fspath(model)), settings, _absolute(folder)), progress)
    if options or progress is not None:
        name = next(iter(options), "progress")
        raise TypeError(f"capture() of a model takes no {name!r}: that is for sources, which run in their own process")
    if find_spec("torch") is None:
        raise CaptureError(
            "tensordiff.capture of a model needs torch, which is not installed here: pip install 'tensordiff[torch]', "
            f"or run in another environment with capture(SOURCE, …, python=…); a source is {spellings()}"
        )
    from tensordiff.capture.engines.torch.library import capture as capture_live

    return capture_live(
        model, folder, layers=layers, leaves=leaves, inputs=bool(inputs), max_bytes=max_bytes, overwrite=overwrite,
        gradients=gradients,
    )  # fmt: skip


def inject(
    candidate: PathLike,
    reference: PathLike,
    folder: PathLike,
    *,
    at: str = "all",
    rules: PathLike | None = None,
    overwrite: bool = False,
    trust_source: bool = False,
    progress: ProgressCallback | None = None,
    **options: Unpack[RunOptions],
) -> CapturedDump:
    """Run the candidate with the reference's recorded inputs, so that an error shows only in the layer that causes it.

    ``candidate`` is a source, or a dump that ``capture`` made from one, which is then run again with the same settings.
    Use the result in a comparison::

        injected = tensordiff.inject("max:MODEL", "ref/", "cand_injected/")
        tensordiff.compare("ref/", "cand/", injected=injected)

    ``at`` is ``all``, ``once``, ``leaves``, a layer, ``FROM..TO`` or a regular expression. A dump that you did not
    capture names a stranger's code; it is run only with ``trust_source=True``.
    """
    where = Injection(_absolute(reference), at, None if rules is None else _absolute(rules))
    source, settings = parse_source(os.fspath(candidate)), run_settings("inject", options)
    if source is None:
        offer = rerun_offer(open_dump(candidate), "the candidate", settings, [Path(reference)])
        refuse_untrusted(offer, Trust(any_source=trust_source))
        asked: dict[str, Any] = {name: getattr(settings, name) for name in options}
        source, settings = offer.source, replace(offer.settings, **asked)
    elif not ENGINES[source.kind].has_own_inputs:
        settings = with_input_of(open_dump(reference), settings, ENGINES[source.kind])
    settings = replace(settings, inject=where, force=overwrite, gradients=False)
    return run_into(Job(source.absolute(), settings, _absolute(folder)), progress)


def run_into(job: Job, tell: ProgressCallback | None = None) -> CapturedDump:
    """Run a source to its end; raises ``CaptureError`` if it fails."""
    if dump_at(job.output) is not None and not job.settings.force:
        raise WriteError(f"{printable(job.output)}: holds a dump already; give a new folder, or overwrite=True")
    notes: list[str] = []
    with Run(job) as run:
        for event in run:
            if isinstance(event, Note):
                notes.append(event.text)
            if isinstance(event, Done):
                return CapturedDump(Path(event.path), event.entries, tuple(notes))
            if isinstance(event, Failed):
                if event.path is not None:
                    keep_temporary_folder(Path(event.path))  # the error message says where it is
                raise CaptureError(printable(event.sentence))
            if tell is not None and (line := progress_line(event)):
                tell(line)
    raise CaptureError(f"{printable(job.source)}: ended without a result")


def progress_line(event: Event) -> str:
    """An event of a run as one line; empty if there is nothing to report."""
    match event:
        case Note(text):
            return printable(text)
        case Phase(name, detail):
            return printable(f"{name} {detail}").strip()
        case Progress(done, total, what):
            return printable(f"{what} {done}/{total}" if total else f"{what} {done}").strip()
    return ""


def _absolute(path: PathLike) -> str:
    return str(Path(path).expanduser().absolute())
