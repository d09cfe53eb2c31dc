"""The tokens that a model is run on: given ones, the reference's, or those of a prompt by the model's own tokenizer.

The two sides must never tokenize differently unnoticed: the ids of the reference's dump are taken where it has them,
and a prompt that gives others is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensordiff.capture.settings import PROMPT, Settings, prompt_text
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError, printable


@dataclass(frozen=True)
class Tokens:
    """The prompt's ids, and what comes after them where that is settled already."""

    ids: tuple[int, ...]
    prompt: str | None = None
    following: tuple[int, ...] = ()
    """What the reference went on with, step by step."""
    notes: tuple[str, ...] = field(default=())


def tokens(folder: Path, settings: Settings, reference: Dump | None) -> Tokens:
    """What to run on, as the settings say."""
    theirs = _ids_of(reference)
    following = _following(reference, settings.steps)
    if settings.input_ids is not None:
        return _checked(Tokens(tuple(settings.input_ids), None, following), theirs, "--input-ids")
    asked = prompt_text(settings)
    if asked is None and theirs is not None:
        prompt = reference.facts.get("prompt") if reference is not None else None
        return Tokens(theirs, prompt if isinstance(prompt, str) else None, following)
    text = PROMPT if asked is None else asked
    notes = () if asked is not None else (f"no prompt was given, so it is: {PROMPT}",)
    return _checked(Tokens(_encode(folder, settings, text), text, following, notes), theirs, "the prompt")


def _checked(found: Tokens, theirs: tuple[int, ...] | None, what: str) -> Tokens:
    if not found.ids:
        raise CaptureError(f"{what} has no tokens; give a longer one, or --input-ids 1,2,3")
    if theirs is not None and theirs != found.ids:
        raise CaptureError(
            f"{what} gives the tokens {list(found.ids)[:12]}, the reference was run on {list(theirs)[:12]}; "
            "leave it out and the reference's are taken"
        )
    return found


def _ids_of(reference: Dump | None) -> tuple[int, ...] | None:
    found = reference.facts.get("token_ids") if reference is not None else None
    if not isinstance(found, list | tuple) or not all(isinstance(each, int) for each in found):
        return None
    return tuple(found)


def _following(reference: Dump | None, steps: int) -> tuple[int, ...]:
    """The token that each later step of the reference was given, as far as its dump says."""
    if reference is None or steps < 2:
        return ()
    found = {
        entry.step: int(entry.read().reshape(-1)[-1])
        for entry in reference.entries
        if entry.port == "input_input_ids" and 0 < entry.step < steps and entry.stored.spec.shape[-1:] == (1,)
    }
    return tuple(found[step] for step in range(1, steps) if step in found)


def _encode(folder: Path, settings: Settings, text: str) -> tuple[int, ...]:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)
    except Exception as error:  # transformers raises whatever comes its way
        said = printable(str(error).strip().partition("\n")[0])
        raise CaptureError(f"{printable(folder)}: has no tokenizer ({said:.200}); give --input-ids 1,2,3") from error
    ids: Sequence[int] = tokenizer(text)["input_ids"]
    return tuple(int(each) for each in ids)
