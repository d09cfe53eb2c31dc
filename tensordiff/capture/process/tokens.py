"""The tokens that a model is run on: given ones, the reference's, or those of a prompt by the model's own tokenizer.

For engines that take only tokens. Later steps get the tokens of the reference's later steps, if known: otherwise a
single token chosen differently would make everything after it incomparable.

The two sides must never tokenize differently without notice: the ids in the reference's dump are used if it has them,
and a prompt that encodes to others is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tensordiff.capture.provenance import decode_tokens
from tensordiff.capture.settings import PROMPT, Settings, prompt_text
from tensordiff.dump import Dump
from tensordiff.errors import CaptureError


@dataclass(frozen=True)
class Tokens:
    """The prompt's ids, and the tokens after it that are fixed already."""

    ids: tuple[int, ...]
    prompt: str | None = None
    following: tuple[int, ...] = ()
    """The reference's later tokens, step by step."""
    notes: tuple[str, ...] = field(default=())


def choose_tokens(settings: Settings, reference: Dump | None, encode: Callable[[str], tuple[int, ...]]) -> Tokens:
    """The tokens to run on, as the settings say; ``encode`` encodes a prompt."""
    reference_ids = _ids_of(reference)
    following = following_tokens(settings, reference)
    if settings.input_ids is not None:
        return _checked(Tokens(tuple(settings.input_ids), None, following), reference_ids, "--input-ids")
    given = prompt_text(settings)
    if given is None and reference_ids is not None:
        prompt = reference.facts.get("prompt") if reference is not None else None
        return Tokens(reference_ids, prompt if isinstance(prompt, str) else None, following)
    text = PROMPT if given is None else given
    notes = () if given is not None else (f"no prompt was given, so it is: {PROMPT}",)
    return _checked(Tokens(encode(text), text, following, notes), reference_ids, "the prompt")


def _checked(found: Tokens, reference_ids: tuple[int, ...] | None, what: str) -> Tokens:
    if not found.ids:
        raise CaptureError(f"{what} has no tokens; give a longer one, or --input-ids 1,2,3")
    if reference_ids is not None and reference_ids != found.ids:
        raise CaptureError(
            f"{what} gives the tokens {list(found.ids)[:12]}, the reference was run on {list(reference_ids)[:12]}; "
            "leave it out and the reference's are taken"
        )
    return found


def _ids_of(reference: Dump | None) -> tuple[int, ...] | None:
    found = reference.facts.get("token_ids") if reference is not None else None
    if not isinstance(found, list | tuple) or not all(isinstance(each, int) for each in found):
        return None
    return tuple(found)


def following_tokens(settings: Settings, reference: Dump | None) -> tuple[int, ...]:
    """The tokens of later steps: from the settings, else from the reference, as far as they are known."""
    if settings.decode_ids is not None:
        return settings.decode_ids[: settings.steps - 1]
    return () if reference is None or settings.steps < 2 else decode_tokens(reference, settings.steps)


def refuse_out_of_range(numbers: Iterable[int], size: int, what: str = "token") -> None:
    """Refuse rows that a table of ``size`` rows does not have. Not every framework checks this."""
    outside = next((number for number in numbers if not 0 <= number < size), None)
    if outside is not None:
        raise CaptureError(f"the {what} {outside} is none of the model's {size}")
