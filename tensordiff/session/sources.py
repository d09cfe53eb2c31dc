"""Sources given in place of dumps: which sides of a request are sources, and with which settings they run.

Unless the user says otherwise, a candidate gets the input that the reference got. That is decided only here, for the
command line, the app and the library, which run the jobs and show their progress:

    sources = Sources.of(request)
    while sources.side is not None:
        done = Run(sources.job()).result()
        sources = sources.with_dump(Path(done.path))
    session = Session.open(sources.request)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tensordiff.align.rules.rule import Side
from tensordiff.capture.engines import ENGINES, Engine
from tensordiff.capture.job import Job, Source, parse_source, refuse_settings
from tensordiff.capture.provenance import decode_tokens, input_settings, token_ids
from tensordiff.capture.settings import Settings, prompt_text
from tensordiff.dump import Dump, open_dump
from tensordiff.errors import CaptureError, TensordiffError, printable
from tensordiff.session.quantized import quantized_target
from tensordiff.session.request import Request
from tensordiff.session.rerun.trust import CODE_SETTINGS
from tensordiff.util.remote import RemotePath
from tensordiff.util.temporary_folders import make_temporary_folder

_FUNCTION_SETTINGS = ("seed", "deterministic", "gradients", "weights", "python")
"""Settings that also apply to a function (``py:``) when the other side is a model."""
_INPUT_SETTINGS = ("prompt", "prompt_file", "input_ids", "inputs", "image")


def source_in(path: Path) -> Source | None:
    """The source that a path stands for; None if it is a dump."""
    return None if isinstance(path, RemotePath) or os.path.exists(path) else parse_source(str(path))  # noqa: PTH110 - a Path raises on a name too long


def refuse_source(path: Path) -> None:
    """Refuse a source where a dump is needed, since a source has to be run first."""
    if source_in(path) is not None:
        raise TensordiffError(f"{printable(path)}: is a source, and was not run; tensordiff capture makes a dump of it")


def capture_folder(name: str, keep: Path | None = None) -> Path:
    """A path for a dump called ``name``: in the folder that is kept, or in a temporary one."""
    return (keep or make_temporary_folder()).absolute() / name


@dataclass(frozen=True)
class Sources:
    """The sources of a request, which run one after the other, the reference first."""

    request: Request
    """The request, in which sides that have run are replaced by their dumps."""
    reference: Source | None
    """The reference's source, even after it has run; None if a dump was given."""
    candidate: Source | None
    """The candidate's source, even after it has run; None if a dump was given."""

    @classmethod
    def of(cls, request: Request) -> Sources:
        """The sources that a request names; raises if one of them refuses its settings, before any is run."""
        sources = cls(request, source_in(request.reference), source_in(request.candidate))
        for side, source in (("reference", sources.reference), ("candidate", sources.candidate)):
            if source is not None:
                refuse_settings(source, sources._settings(side))
        return sources

    def unused_options(self) -> Iterator[str]:
        """Sentences on options that only one side uses, because the other is a function that decides for itself."""
        one, other = ("reference", self.reference), ("candidate", self.candidate)
        for (side, source), (_, beside) in ((one, other), (other, one)):
            if source is None or beside is None or not _is_function_beside(source, beside):
                continue
            said = self.request.settings if side == "reference" else self._candidate_settings
            if names := options_of(_model_settings(said)):
                it = "it is" if len(names) == 1 else "they are"
                yield (
                    f"{', '.join(names)}: {it} for {printable(beside)} alone; the function {printable(source)} decides "
                    "for itself what it runs, and in which precision"
                )

    @property
    def side(self) -> Side | None:
        """The side to run next; None if both are dumps."""
        if source_in(self.request.reference) is not None:
            return "reference"
        return None if source_in(self.request.candidate) is None else "candidate"

    def job(self, folder: Path | None = None) -> Job:
        """The job that runs the next side, into ``folder`` or where the request says. Reads the reference's dump; may
        block."""
        request, side = self.request, self.side
        if side == "reference" and self.reference is not None:
            settings = _with_candidate_weights(self.reference, self.candidate, self._settings("reference"))
            source = self.reference
        elif side == "candidate" and self.candidate is not None:
            source, settings = self.candidate, self._settings("candidate")
            if not _has_own_inputs(source):
                settings = with_input_of(open_dump(request.reference), settings, ENGINES[source.kind])
        else:
            raise CaptureError("both sides are dumps: there is no source to run")
        return Job(source.absolute(), settings, str((folder or capture_folder(side, request.keep)).absolute()))

    def _settings(self, side: str) -> Settings:
        """The user's settings for a side."""
        request = self.request
        if side == "reference":
            return (
                request.settings
                if self.reference is None
                else _own_settings(self.reference, self.candidate, request.settings)
            )
        said = self._candidate_settings
        return said if self.candidate is None else _own_settings(self.candidate, self.reference, said)

    @property
    def _candidate_settings(self) -> Settings:
        return replace(self.request.candidate_settings or self.request.settings, quantized_as=None)

    def with_dump(self, path: Path) -> Sources:
        """The remaining sources after the next side was run into a dump."""
        if self.side == "reference":
            return replace(self, request=replace(self.request, reference=path))
        return replace(self, request=replace(self.request, candidate=path))


def _own_settings(source: Source, other: Source | None, settings: Settings) -> Settings:
    """The settings that apply to a source: a function beside a model brings its own input and precision."""
    if other is not None and _is_function_beside(source, other):
        return Settings(**{name: getattr(settings, name) for name in _FUNCTION_SETTINGS})
    return settings


def _is_function_beside(source: Source, other: Source) -> bool:
    return _has_own_inputs(source) and not _has_own_inputs(other)


def _model_settings(settings: Settings) -> Settings:
    """The settings without those that also apply to a function."""
    usual = Settings()
    return replace(settings, **{name: getattr(usual, name) for name in _FUNCTION_SETTINGS})


def options_of(settings: Settings) -> list[str]:
    """The options that were given, in the spelling of the command line."""
    return [f"--{name.replace('_', '-')}" for name in settings.to_json()]


def refuse_unused_options(request: Request, *, reruns: bool = False) -> None:
    """Refuse options of sources if neither side is a source, so that nothing could use them.

    ``reruns`` allows the settings for running a dump's own source again, such as the interpreter.
    """
    kept = CODE_SETTINGS if reruns else ()
    for settings in filter(None, (request.settings, request.candidate_settings)):
        names = options_of(replace(settings, **{name: getattr(Settings(), name) for name in kept}))
        if names:
            raise TensordiffError(
                f"{names[0]} is an option of sources, and neither side is one; leave it out, or give a source such as "
                "hf:MODEL"
            )


def _with_candidate_weights(reference: Source, candidate: Source | None, settings: Settings) -> Settings:
    """The reference's settings, with the weights of a quantized candidate if they can be read without running it."""
    if settings.quantized_as is not None or candidate is None or "quantized_as" in ENGINES[reference.kind].refuses:
        return settings
    return replace(settings, quantized_as=quantized_target(candidate))


def _has_own_inputs(source: Source) -> bool:
    return ENGINES[source.kind].has_own_inputs


def with_input_of(reference: Dump, settings: Settings, engine: Engine) -> Settings:
    """Fill in the reference's input if the user gave none, and the tokens that the reference decoded."""
    default = Settings()
    if all(getattr(settings, name) == getattr(default, name) for name in _INPUT_SETTINGS):
        same = input_settings(reference)
        inputs = {name: getattr(same, name) for name in _INPUT_SETTINGS}
        steps = same.steps if settings.steps == default.steps else settings.steps
        settings = replace(settings, **inputs, steps=steps)
    if engine.takes_tokens:
        settings = _with_prompt_as_tokens(reference, settings)
    return with_decoded_tokens_of(reference, settings, engine)


def with_decoded_tokens_of(reference: Dump, settings: Settings, engine: Engine) -> Settings:
    """Fill in the tokens that the reference decoded in later steps, unless the user gave some."""
    if settings.steps > 1 and settings.decode_ids is None and "decode_ids" not in engine.refuses:
        return replace(settings, decode_ids=decode_tokens(reference, settings.steps) or None)
    return settings


def have_same_input(one: Settings, other: Settings) -> bool:
    """Whether two runs get the same input."""
    return all(getattr(one, name) == getattr(other, name) for name in _INPUT_SETTINGS)


def _with_prompt_as_tokens(reference: Dump, settings: Settings) -> Settings:
    """Replace the reference's prompt by its token ids, since another tokenizer might make different ones."""
    asked = prompt_text(settings)
    ids = token_ids(reference)
    if asked is None or asked != reference.facts.get("prompt") or ids is None:
        return settings
    return replace(settings, prompt=None, prompt_file=None, input_ids=ids)
