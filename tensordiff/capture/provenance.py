"""Provenance: how a dump was made according to its manifest, how far that is trusted, and the signature behind it.

A manifest names its source as text and, if ``capture`` wrote it, the settings. It may come from a stranger, so it is
data to show, not an instruction: ``session.rerun.trust`` decides what is run. Two rules always hold. An interpreter and
the permission to run a model's own code are never taken from a manifest, whoever signed it. And of a manifest that this
user has not signed, only text and token ids are used for another model.

The signature tells whether this user ran the source. The process that starts a capture signs source and settings with
the user's key (``util.user_key``), and the child writes the signature into the manifest without ever seeing the key. It
covers what was run and how, not the result: whoever copies a signature into another dump can only make its owner run
again exactly what they have run before. So nothing is signed that is named relative to a folder: in another folder it
would be something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensordiff.capture.engines import ENGINES
from tensordiff.capture.job import Job, Source, parse_source
from tensordiff.capture.settings import Settings
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError, printable
from tensordiff.util import user_key

INPUT_SETTINGS = ("prompt", "prompt_file", "input_ids", "inputs", "image", "steps", "decode_ids")
"""The settings that determine a model's input."""
_LATER_STEPS = ("steps", "decode_ids")
_ID_PORTS = ("input_input_ids", "input_decoder_input_ids")
_INPUT_FILES = ("prompt_file", "inputs", "image")
_PLAIN = (
    "prompt", "input_ids", "steps", "decode_ids", "dtype", "weights_dtype", "device", "num_hidden_layers", "seed",
    "deterministic", "layers", "leaves", "no_inputs", "max_bytes", "prefer_module_v3", "optimized", "gradients",
)  # fmt: skip
"""Settings that name no file and load no code, whatever their value."""
_MOST_STEPS = 10_000
_MOST_TOKENS = _LONGEST_PROMPT = 1 << 20
_LARGEST_ID = 1 << 31
_SIGNED_PURPOSE = "tensordiff.capture/1"


@dataclass(frozen=True)
class Provenance:
    """A source and how it was run."""

    source: Source
    settings: Settings
    """Without an interpreter, and without the permission to run a model's own code."""
    python: str | None = None
    """The interpreter that the manifest names: to be shown, never run."""
    has_remote_code: bool = False
    """Whether the manifest says that it was run with the model's own code."""
    doubt: str = ""
    """Why it is not known that this user ran it; empty if it is known."""

    @property
    def is_own(self) -> bool:
        """Whether this user ran it, on this machine."""
        return not self.doubt

    def plain(self) -> Provenance:
        """The same with only those settings that name no file and load no code."""
        return replace(self, settings=Settings(**{name: getattr(self.settings, name) for name in _PLAIN}))


def provenance_of(dump: Dump) -> Provenance | None:
    """What made a dump; None if it does not say, or if the source's file no longer exists."""
    try:
        return read_provenance(dump)
    except CaptureError:
        return None


def read_provenance(dump: Dump) -> Provenance:
    """What made a dump; if unusable, raises the reason as the end of a sentence that begins with the dump."""
    text, found = dump.facts.get("source"), dump.facts.get("settings")
    if not isinstance(text, str) or not isinstance(found, dict):
        raise CaptureError("does not say which source made it")
    try:
        source, settings = parse_source(text), _settings(found)
    except CaptureError as error:
        raise CaptureError(f"does not say in a usable way what made it ({error})") from error
    if source is None:
        raise CaptureError(f"was made by {printable(f'{text:.200}')}, which is no source that is known here")
    if ENGINES[source.kind].takes_file and not os.path.isfile(source.target):  # noqa: PTH113
        raise CaptureError(f"was made by {printable(f'{text:.200}')}, which is not there any more")
    doubt = why_not_own(text, found, dump.facts.get("signature"))
    if not doubt and not source.is_absolute:  # an id on the hub when it was captured
        doubt = f"{printable(source.target)} is a folder here, and was not where it was captured"
    safe = replace(settings, python=None, trust_remote_code=False, force=False)
    return Provenance(source, safe, settings.python, settings.trust_remote_code, doubt)


def input_settings(dump: Dump) -> Settings:
    """The input of a dump's run, as settings; how it was computed is left out.

    Files are taken only from the user's own dumps. For other dumps, a prompt in a file is replaced by its tokens. If
    only a file would do, ``CaptureError`` is raised, because another input would make the two sides incomparable.
    """
    asked = _recorded_inputs(dump)
    files = {name: path for name in _INPUT_FILES if (path := asked.get(name)) is not None}
    doubt = _why_not_own(dump) if files else ""
    ids = _token_ids(dump.facts.get("token_ids"))
    if doubt:
        asked = {name: value for name, value in asked.items() if name not in files}
        if set(files) - {"prompt_file"} or ids is None:
            options = " and ".join(f"--{name.replace('_', '-')} {printable(path)}" for name, path in files.items())
            raise CaptureError(
                f"{printable(dump.path)}: was asked with {options}, and a file is taken only from a dump that you "
                f"captured here ({doubt}); give {options} yourself, or another prompt, to both sides"
            )
    if all(asked.get(name) is None for name in INPUT_SETTINGS if name not in _LATER_STEPS) and ids is not None:
        asked["input_ids"] = ids
    return Settings(**asked)


def token_ids(dump: Dump) -> tuple[int, ...] | None:
    """The tokens that a dump's run was given, if it says so."""
    return _token_ids(dump.facts.get("token_ids"))


def decode_tokens(dump: Dump, steps: int) -> tuple[int, ...]:
    """The tokens of a run's steps after the first, one each, as far as the dump has them without a gap."""
    said = _token_ids(dump.facts.get("decode_token_ids"))
    if said is not None:
        return said[: steps - 1]
    found: dict[int, int] = {}
    for entry in dump.entries:
        if entry.port in _ID_PORTS and 0 < entry.step < steps and entry.step not in found and entry.spec.size == 1:
            found[entry.step] = int(entry.read().reshape(-1)[0])
    known = tuple(found[step] for step in range(1, steps) if all(k in found for k in range(1, step + 1)))
    return known if all(0 <= token < _LARGEST_ID for token in known) else ()


def _settings(found: dict[str, Any]) -> Settings:
    """The settings of a manifest, checked against limits."""
    settings = Settings.from_json(found)
    if settings.steps > _MOST_STEPS:
        raise CaptureError(f"it claims more steps than {_MOST_STEPS:,}")
    if settings.input_ids is not None and _token_ids(list(settings.input_ids)) is None:
        raise CaptureError("its input_ids are no token ids")
    if len(settings.prompt or "") > _LONGEST_PROMPT:
        raise CaptureError(f"its prompt is longer than {_LONGEST_PROMPT:,} characters")
    return settings


def _recorded_inputs(dump: Dump) -> dict[str, Any]:
    """The settings of a manifest that determine the input; none if they are unusable."""
    found = dump.facts.get("settings")
    try:
        settings = _settings(found) if isinstance(found, dict) else Settings()
    except CaptureError:
        return {}  # its token ids still count
    return {name: getattr(settings, name) for name in INPUT_SETTINGS}


def _why_not_own(dump: Dump) -> str:
    source, settings = dump.facts.get("source"), dump.facts.get("settings")
    if not isinstance(source, str) or not isinstance(settings, dict):
        return "it does not say which source made it"
    return why_not_own(source, settings, dump.facts.get("signature"))


def _token_ids(found: object) -> tuple[int, ...] | None:
    """Valid token ids, or None."""
    if not isinstance(found, list) or not 0 < len(found) <= _MOST_TOKENS:
        return None
    return tuple(found) if all(type(one) is int and 0 <= one < _LARGEST_ID for one in found) else None


# --- the signature ------------------------------------------------------------------------------------


def sign(job: Job) -> str | None:
    """The signature of a job's source and settings; None if they depend on the current folder."""
    if not (job.source.is_absolute and all(map(os.path.isabs, job.settings.files().values()))):
        return None
    facts = job.facts()
    text = _signed_text(facts["source"], facts["settings"])
    return None if text is None else user_key.sign(_SIGNED_PURPOSE, text)


def why_not_own(source: str, settings: Mapping[str, Any], signature: object) -> str:
    """Why a source and its settings are not known to be from this user's own capture; empty if they are."""
    text = _signed_text(source, settings)
    if text is None:
        return "it is not signed"  # what is not JSON was never signed
    return user_key.why_not_own(_SIGNED_PURPOSE, text, signature)


def _signed_text(source: str, settings: Mapping[str, Any]) -> str | None:
    """The text that is signed; None if it is not JSON."""
    try:
        return json.dumps([source, settings], sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
