"""How a dump was made, as its manifest says: enough to make it again.

A manifest names its source as text and, where ``capture`` wrote it, the settings. A manifest from a stranger is trusted
no further than to offer a rerun; nothing runs before a user asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensordiff.capture.engines import ENGINES
from tensordiff.capture.job import Source, parse_source
from tensordiff.capture.settings import Settings
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError

INPUT_SETTINGS = ("prompt", "prompt_file", "input_ids", "inputs", "image", "steps")
"""The settings that give a model its input."""


@dataclass(frozen=True)
class Provenance:
    """A source and how it was run."""

    source: Source
    settings: Settings


def input_settings(dump: Dump) -> Settings:
    """The input of a dump's run, as settings; how it computed is left out."""
    made = provenance_of(dump)
    asked = {name: getattr(made.settings, name) for name in INPUT_SETTINGS} if made is not None else {}
    if any(value is not None for name, value in asked.items() if name != "steps"):
        return Settings(**asked)
    ids = dump.facts.get("token_ids")
    if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
        asked["input_ids"] = tuple(ids)
    return Settings(**asked)


def provenance_of(dump: Dump) -> Provenance | None:
    """What made a dump; None where it does not say, or where the source's file no longer exists."""
    text, settings = dump.facts.get("source"), dump.facts.get("settings")
    if not isinstance(text, str) or not isinstance(settings, dict):
        return None
    try:
        source, found = parse_source(text), Settings.from_json(settings)
    except (CaptureError, TypeError):
        return None
    if source is None or (ENGINES[source.kind].takes_file and not Path(source.target).is_file()):
        return None
    return Provenance(source, found)
