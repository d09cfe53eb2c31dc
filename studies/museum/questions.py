"""What a model is asked: one call or several, with a cache between them or without.

Tokens that follow a prompt are given, not chosen, so that both sides are asked the same whatever they answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from studies.museum.architectures import VOCABULARY, Architecture

TOKENS = 24
PADDED = 5


class Question(NamedTuple):
    """The arguments of every call of a model, in order."""

    calls: tuple[Mapping[str, Any], ...]
    is_cached: bool = False
    """Whether what a call leaves in the cache goes into the next."""
    is_padded: bool = False


Asking = Callable[[Architecture, int], Question]


def ask(model: Any, question: Question) -> None:
    """Run a model on a question; floating inputs take its type."""
    names = inspect.signature(model.forward).parameters
    cache = "cache_params" if "cache_params" in names else "past_key_values"
    dtype, held = next(model.parameters()).dtype, None
    if hasattr(model, "config"):
        model.config.use_cache = question.is_cached
    with torch.no_grad():
        for call in question.calls:
            given = {key: _cast(value, dtype) for key, value in call.items() if key in names}
            if held is not None and cache == "cache_params":
                given.pop("attention_mask", None)  # it is of the prompt; the state knows of no padding after it
            output = model(**given, **({cache: held, "use_cache": True} if question.is_cached else {}))
            held = getattr(output, cache, None)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.to(dtype)


def prompt(architecture: Architecture, seed: int) -> Question:
    """One call without padding."""
    made = torch.Generator().manual_seed(1000 + seed)
    return Question((_INPUTS[architecture.input](made, 1),))


def far_along(architecture: Architecture, seed: int) -> Question:
    """A piece of a long text, by its positions."""
    (call,) = prompt(architecture, seed).calls
    return Question(({**call, "position_ids": torch.arange(TOKENS)[None] + 8 * TOKENS},))


def timesteps(architecture: Architecture, seed: int) -> Question:
    """Two pictures at different times."""
    return Question((_INPUTS[architecture.input](torch.Generator().manual_seed(1000 + seed), 2),))


def padded_left(architecture: Architecture, seed: int) -> Question:
    """Two rows, of which the first begins with padding."""
    return _padded(architecture, seed, is_left=True)


def padded_right(architecture: Architecture, seed: int) -> Question:
    """Two rows, of which the first ends with padding."""
    return _padded(architecture, seed, is_left=False)


def decoding_left(architecture: Architecture, seed: int) -> Question:
    """The same with padding before, and two tokens after it, one at a time."""
    return _decoded(padded_left(architecture, seed), seed, (1, 1))


def decoding_right(architecture: Architecture, seed: int) -> Question:
    """A padded end, and one token after it."""
    return _decoded(padded_right(architecture, seed), seed, (1,))


def decoding(_: Architecture, seed: int) -> Question:
    """A prompt of two rows without padding, and two tokens after it, one at a time."""
    made = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(3, VOCABULARY, (2, TOKENS // 2), generator=made)
    whole = _text(ids, torch.ones_like(ids))
    return _decoded(Question((whole,)), seed, (1, 1))._replace(is_padded=False)


def decoding_at_length(_: Architecture, seed: int) -> Question:
    """A prompt of one row or of three without padding, and four tokens after it, one at a time."""
    made = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(3, VOCABULARY, (1 + 2 * (seed % 2), TOKENS), generator=made)
    return _decoded(Question((_text(ids, torch.ones_like(ids)),)), seed, (1,) * 4)._replace(is_padded=False)


def chunks(_: Architecture, seed: int) -> Question:
    """A prompt in two pieces, the second on what the first left in the cache."""
    return _decoded(_halved(seed), seed, (TOKENS // 2,))._replace(is_padded=False)


def few_at_once(_: Architecture, seed: int) -> Question:
    """A prompt, and four tokens after it at once."""
    return _decoded(_halved(seed), seed, (4,))._replace(is_padded=False)


def _halved(seed: int) -> Question:
    made = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(3, VOCABULARY, (1, TOKENS // 2), generator=made)
    return Question((_text(ids, torch.ones_like(ids)),))


def _decoded(question: Question, seed: int, lengths: tuple[int, ...]) -> Question:
    """Further calls, each of a few tokens."""
    made = torch.Generator().manual_seed(2000 + seed)
    calls, mask = [*question.calls], question.calls[0]["attention_mask"]
    for length in lengths:
        ids = torch.randint(3, VOCABULARY, (len(mask), length), generator=made)
        mask = torch.cat((mask, torch.ones_like(ids)), 1)
        calls.append(_text(ids, mask))
    return Question(tuple(calls), is_cached=True, is_padded=True)


def _text(ids: Any, mask: Any) -> dict[str, Any]:
    """Tokens with the mask of all so far, and the places that they have among those that are no padding."""
    places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places}


def _padded(architecture: Architecture, seed: int, *, is_left: bool) -> Question:
    made = torch.Generator().manual_seed(1000 + seed)
    call = _INPUTS[architecture.input](made, 2)
    if architecture.input == "wave":
        samples = call["input_values"].shape[1]
        hidden = torch.arange(samples) >= samples - 40 * PADDED
        mask = torch.stack((~hidden, torch.ones(samples, dtype=torch.bool))).long()
        return Question(({"input_values": call["input_values"] * mask, "attention_mask": mask},), is_padded=True)
    length = call["input_ids"].shape[1]
    places = torch.arange(length)
    hidden = places < PADDED if is_left else places >= length - PADDED
    mask = torch.stack((~hidden, torch.ones(length, dtype=torch.bool))).long()
    rest = {key: value for key, value in call.items() if key.startswith("decoder_")}
    return Question(({**_text(call["input_ids"] * mask, mask), **rest},), is_padded=True)


def _tokens(made: torch.Generator, rows: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, VOCABULARY, (rows, TOKENS), generator=made)}


def _pair(made: torch.Generator, rows: int) -> dict[str, Any]:
    decoded = torch.randint(3, VOCABULARY, (rows, TOKENS // 2), generator=made)
    return _tokens(made, rows) | {"decoder_input_ids": decoded}


def _image(made: torch.Generator, rows: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(rows, 3, 32, 32, generator=made)}


def _speech(made: torch.Generator, rows: int) -> dict[str, Any]:
    decoded = torch.randint(3, VOCABULARY, (rows, TOKENS // 2), generator=made)
    return {"input_features": torch.randn(rows, 16, 60, generator=made), "decoder_input_ids": decoded}


def _wave(made: torch.Generator, rows: int) -> dict[str, Any]:
    return {"input_values": torch.randn(rows, 1000, generator=made)}


def _latents(made: torch.Generator, rows: int) -> dict[str, Any]:
    return {
        "sample": torch.randn(rows, 4, 8, 8, generator=made),
        "timestep": torch.randint(1, 1000, (rows,), generator=made),
    }


_INPUTS: Mapping[str, Callable[[torch.Generator, int], dict[str, Any]]] = {
    "text": _tokens, "text pair": _pair, "image": _image, "speech": _speech, "wave": _wave, "latents": _latents,
}  # fmt: skip
