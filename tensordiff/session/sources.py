"""Sources where a dump could stand: which side is one, and how it is to be run.

A candidate is asked what the reference was asked, unless the user says what it is to be asked. Both faces decide that
here; running the source, and showing that it runs, is theirs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tensordiff.capture.job import Source, parse_source
from tensordiff.capture.provenance import INPUT_SETTINGS, input_settings
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump

_QUESTION = tuple(name for name in INPUT_SETTINGS if name != "steps")


def source_in(path: Path) -> Source | None:
    """The source that stands where a dump could; None where it is a dump."""
    return None if os.path.exists(path) else parse_source(str(path))  # noqa: PTH110 - a Path raises on a name too long


def settings_for(source: Source, other: Source | None, said: Settings, reference: Path | None = None) -> Settings:
    """How to run a side. ``other`` is the other side's source, ``reference`` the dump that a candidate is held against.

    Options are for the models that the command line asks: a function that brings its own inputs does not get them
    where the other side is such a model.
    """
    if source.kind == "py" and other is not None and other.kind != "py":
        return Settings(seed=said.seed, deterministic=said.deterministic, python=said.python)
    if source.kind == "py" or reference is None:
        return said
    return _asked_alike(said, reference)


def _asked_alike(said: Settings, reference: Path) -> Settings:
    """What the user said, with the reference's question where the user asked none."""
    usual = Settings()
    if any(getattr(said, name) != getattr(usual, name) for name in _QUESTION):
        return said
    alike = input_settings(open_dump(reference))
    question = {name: getattr(alike, name) for name in _QUESTION}
    return replace(said, **question, steps=alike.steps if said.steps == usual.steps else said.steps)
