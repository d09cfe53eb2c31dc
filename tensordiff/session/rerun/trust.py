"""Decides what may be run of what a dump names, and what the user is shown before they agree.

A dump comes from a stranger, and its manifest names code, an interpreter and files. Only three things are run: what
this user has run before and signed (``capture.provenance``), what the user agreed to after it was shown in full, and,
with ``--trust-source``, anything. Code that runs a source takes it from a ``RerunOffer``, whose interpreter and whose
permission to run a model's own code come from this process's command line alone, and calls ``refuse_untrusted`` first.
Code inside a dump is always refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensordiff.capture.engines import ENGINES, prefixes
from tensordiff.capture.interpreter import interpreter
from tensordiff.capture.job import Source
from tensordiff.capture.provenance import Provenance, read_provenance
from tensordiff.capture.settings import Settings
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError, printable

CODE_SETTINGS = ("python", "trust_remote_code")
"""Settings that decide whose code is run; only the user can give them, never a dump."""
_LONG = ("prompt", "input_ids", "decode_ids", "rules_text")
"""Settings that are only data and may be long."""
_SHOWN = 200
_MOST_READ = 4_000
"""The longest offer, in characters, that a person is asked to read; a longer one could hide something."""


@dataclass(frozen=True)
class RerunOffer:
    """What would be run to make a dump again."""

    what: str
    """The dump in words: ``the candidate /dumps/a``."""
    provenance: Provenance
    """What the manifest records, with absolute paths."""
    settings: Settings
    """The settings of the run: those of the manifest, but with the interpreter of the command line."""

    @property
    def source(self) -> Source:
        """The source that would be run."""
        return self.provenance.source

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the offer."""
        return str(self.source), json.dumps(self.settings.to_json(), sort_keys=True)

    def lines(self) -> tuple[str, ...]:
        """The full offer for a person to decide on, one fact per line; long prompts are shortened."""
        return tuple(f"{name:12} {printable(value)}" for name, value in self._facts())

    def sentence(self) -> str:
        """The full offer in one sentence."""
        facts = "; ".join(f"{name} {printable(value)}" for name, value in self._facts())
        return f"{self.what} was not captured by you here ({self.provenance.doubt}), and would run {facts}"

    def notes(self) -> tuple[str, ...]:
        """Sentences on what the dump was made with but would not be run with."""
        made, notes = self.provenance, []
        if _is_other_interpreter(made.python) and self.settings.python is None:
            notes.append(
                f"{self.what} was captured in the interpreter {printable(made.python)}, which is never taken from a "
                f"dump; it is run in {printable(interpreter(made.source.kind))} unless you give --python again"
            )
        if made.has_remote_code and not self.settings.trust_remote_code:
            notes.append(
                f"{self.what} was captured with the model's own code, which a dump cannot ask for; "
                "give --trust-remote-code again if it is needed and you trust it"
            )
        return tuple(notes)

    def _facts(self) -> Iterator[tuple[str, object]]:
        made, settings = self.provenance, self.settings
        yield "source", made.source
        yield "interpreter", f"{interpreter(made.source.kind, settings.python)}{self._other_interpreter()}"
        if settings.trust_remote_code:
            yield "remote code", "is run, as your --trust-remote-code says"
        else:
            yield "remote code", f"is not run{', though the dump asks for it' if made.has_remote_code else ''}"
        for name, path in settings.files().items():
            yield "reads", f"{path} ({name})"
        if others := _other_settings(settings):
            yield "settings", json.dumps(others)

    def _other_interpreter(self) -> str:
        asked = self.provenance.python
        return f" (the dump asks for {asked}, which is not run)" if _is_other_interpreter(asked) else ""


def _is_other_interpreter(python: str | None) -> bool:
    return python is not None and os.path.abspath(python) != os.path.abspath(sys.executable)  # noqa: PTH100 - no link is resolved: a virtual environment is its link


def _other_settings(settings: Settings) -> dict[str, Any]:
    """The settings that have no line of their own."""
    shown = {*CODE_SETTINGS, *settings.files()}
    others = {name: value for name, value in settings.to_json().items() if name not in shown}
    if settings.inject is not None:
        others |= {"inject_at": settings.inject.at, "rules_text": settings.inject.rules_text}
    return others | {name: _shortened(others[name]) for name in _LONG if others.get(name)}


def _shortened(value: str | Sequence[int]) -> str | Sequence[int]:
    if len(value) <= _SHOWN:
        return value
    return f"{value[:_SHOWN]}… ({len(value):,} in all)"


class UntrustedSource(CaptureError):
    """A source would be run that a stranger may have named; ``offer`` describes it."""

    def __init__(self, offer: RerunOffer) -> None:
        way_out = "if you trust all of that, say so with --trust-source; or capture it yourself"
        super().__init__(f"{offer.sentence()}; {way_out}")
        self.offer = offer


@dataclass(frozen=True)
class Trust:
    """What the user has agreed to for this process, beside what they have signed."""

    any_source: bool = False
    """Whether anything that dumps name may be run (``--trust-source``)."""
    agreed: frozenset[tuple[str, str]] = frozenset()
    """Keys of the offers that a person has read and accepted."""

    def agreeing(self, offer: RerunOffer) -> Trust:
        """The same, after a person has accepted an offer."""
        return replace(self, agreed=self.agreed | {offer.key})

    def allows(self, offer: RerunOffer) -> bool:
        """Whether an offer may be run without asking."""
        return offer.provenance.is_own or self.any_source or offer.key in self.agreed


def refuse_untrusted(offer: RerunOffer, trust: Trust) -> None:
    """Raise ``UntrustedSource`` if an offer may not be run."""
    if not trust.allows(offer):
        raise UntrustedSource(offer)


def rerun_offer(dump: Dump, what: str, said: Settings, near: Iterable[Path] = ()) -> RerunOffer:
    """What would be run for a dump, in the interpreter that the command line (``said``) names.

    Raises ``CaptureError`` if the dump does not record what made it, or if the source lies within the dump. For a dump
    that is not the user's own it also raises if the source lies within a dump it is compared with (``near``), or if the
    offer is too long to read.
    """
    what = f"{what} {printable(dump.path)}"
    try:
        made = read_provenance(dump)
    except CaptureError as error:
        raise CaptureError(
            f"{what} {error}, so it cannot be run again; capture it with tensordiff capture, "
            f"or give {prefixes()} instead of the dump"
        ) from error
    made = replace(made, source=made.source.absolute(), settings=_absolute(made.settings))
    offer = RerunOffer(what, made, with_code_settings_of(said, made.settings, made.source))
    _refuse_code_in(offer, (dump.path, *(() if made.is_own else near)))
    if not made.is_own and (length := sum(map(len, offer.lines()))) > _MOST_READ:
        raise CaptureError(
            f"{what} was not captured by you here ({made.doubt}), and it takes {length:,} characters to say what it "
            f"would run, too much to review; capture it yourself, or give {prefixes()} instead of the dump"
        )
    return offer


def with_code_settings_of(said: Settings, settings: Settings, source: Source) -> Settings:
    """Settings with the command line's interpreter and its permission to run a model's own code."""
    refused = ENGINES[source.kind].refuses
    return replace(settings, **{name: getattr(said, name) for name in CODE_SETTINGS if name not in refused})


def _absolute(settings: Settings) -> Settings:
    """Settings with absolute paths, so that the files shown are the files read."""
    files: Mapping[str, str] = {name: os.path.abspath(path) for name, path in settings.files().items()}  # noqa: PTH100
    inject = settings.inject
    if inject is not None:
        inject = replace(inject, dump=files["inject"], rules=files.get("rules"))
    inputs = {name: path for name, path in files.items() if name not in ("inject", "rules")}
    return replace(settings, inject=inject, **inputs)  # type: ignore[arg-type]


def _refuse_code_in(offer: RerunOffer, dumps: Iterable[Path]) -> None:
    said = offer.settings.python
    code = (offer.source.target, None if said is None else interpreter(offer.source.kind, said))
    for dump in dumps:
        for path in filter(None, code):
            if _is_within(Path(path), dump):
                raise CaptureError(
                    f"{offer.what}: {printable(path)} lies within the dump {printable(dump)}, and nothing in a dump is "
                    "run; if you trust it, copy it elsewhere and give it as a source"
                )


def _is_within(path: Path, dump: Path) -> bool:
    """Whether a path lies within a dump, by its own name or by what it links to."""
    if not os.path.lexists(path):  # the id of a model, or the name of a command
        return False
    named = _real(path.absolute().parent) / path.name  # a virtual environment links to its interpreter
    return any(one.is_relative_to(_real(dump)) for one in (named, _real(path)))


def _real(path: Path) -> Path:
    """The target of a path; link loops are left as they are, where ``Path.resolve`` would raise."""
    return Path(os.path.realpath(path))
