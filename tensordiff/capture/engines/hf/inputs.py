"""Inputs of a transformers model: a prompt, token ids, tensors from a file, an image, or seeded random values.

Uses the model's own tokenizer or processor. A model without given inputs runs on values made from the seed, and a note
says so: two sides with the same inputs can be compared just as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tensordiff.capture.engines.hf.tokenizer import has_tokenizer
from tensordiff.capture.engines.torch.tensors import to_tensor
from tensordiff.capture.settings import PROMPT, Settings, prompt_text
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, printable

_SOME_IDS = 9
_RATE_HZ = 16_000


@dataclass(frozen=True)
class Inputs:
    """Keyword arguments of a model, and where they came from."""

    kwargs: Mapping[str, Any]
    prompt: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def token_ids(self) -> list[int] | None:
        """The token ids of the first sequence of the batch."""
        ids = self.kwargs.get("input_ids")
        return ids[0].tolist() if isinstance(ids, Tensor) and ids.dim() == 2 else None


def make_inputs(model: nn.Module, target: str, settings: Settings) -> Inputs:
    """Make the inputs of a model as the settings say."""
    _refuse_several(settings)
    if settings.inputs is not None:
        found = Inputs(read_inputs(Path(settings.inputs)))
    elif settings.image is not None:
        found = _image_inputs(target, settings)
    elif settings.input_ids is not None:
        found = Inputs({"input_ids": torch.tensor([settings.input_ids])})
    elif _main_input(model) == "input_ids":
        found = _text_inputs(model, target, settings)
    elif prompt_text(settings) is not None:
        raise CaptureError(
            f"--prompt: {type(model).__name__} reads no text; leave it out, or give {_main_input(model)}"
        )
    else:
        found = _random_inputs(model, _main_input(model), settings)
    if settings.inputs is None and _needs_two_modalities(model):
        found = _with_other_modality(model, target, settings, found)
    return Inputs(_with_decoder_start(model, found.kwargs), found.prompt, found.notes)


def _refuse_several(settings: Settings) -> None:
    """Refuse more than one kind of input; only an image may have a prompt beside it."""
    given = {
        "--inputs": settings.inputs, "--input-ids": settings.input_ids, "--prompt": prompt_text(settings),
        "--image": settings.image,
    }  # fmt: skip
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1 and named != ["--prompt", "--image"]:
        raise CaptureError(f"{' and '.join(named)}: give one of them")


def _needs_two_modalities(model: nn.Module) -> bool:
    """Whether the model compares a text with a picture, as CLIP does, and needs both."""
    is_contrastive = hasattr(model, "logit_scale") or hasattr(model, "temperature")
    return is_contrastive and {"input_ids", "pixel_values"} <= set(inspect.signature(model.forward).parameters)


def _with_other_modality(model: nn.Module, target: str, settings: Settings, found: Inputs) -> Inputs:
    if "pixel_values" not in found.kwargs:
        other = _random_inputs(model, "pixel_values", settings)
    elif "input_ids" not in found.kwargs:
        other = _text_inputs(model, target, settings)
    else:
        return found
    return Inputs({**found.kwargs, **other.kwargs}, found.prompt or other.prompt, (*found.notes, *other.notes))


def _main_input(model: nn.Module) -> str:
    return str(getattr(model, "main_input_name", "input_ids"))


def read_inputs(path: Path) -> dict[str, Tensor]:
    """Read keyword arguments from a file of tensors."""
    return {entry.name: to_tensor(entry.read()) for entry in open_dump(path).entries}


def _text_inputs(model: nn.Module, target: str, settings: Settings) -> Inputs:
    given = prompt_text(settings)
    tokenizer = load_tokenizer(target, settings)
    if tokenizer is None and given is not None:
        raise CaptureError(f"hf:{printable(target)}: has no tokenizer for a prompt; give --input-ids 1,2,3")
    if tokenizer is None:
        ids = _some_ids(model)
        return Inputs({"input_ids": ids}, None, (f"no tokenizer there, so the ids {ids[0].tolist()} are used",))
    text = PROMPT if given is None else given
    encoded = {key: value for key, value in tokenizer(text, return_tensors="pt").items() if isinstance(value, Tensor)}
    if not encoded["input_ids"].numel():
        raise CaptureError(f"the prompt {text!r:.60} has no tokens; give a longer one")
    notes = () if given is not None else (f"no prompt was given, so it is: {PROMPT}",)
    return Inputs(_accepted_by(model, encoded), text, notes)


def load_tokenizer(target: str, settings: Settings) -> Any:
    """The model's own tokenizer, or None if it has none."""
    if (folder := Path(target).expanduser()).is_dir() and not has_tokenizer(folder):
        return None  # transformers would make up a tokenizer without a vocabulary
    try:
        return transformers.AutoTokenizer.from_pretrained(
            target, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except Exception:  # transformers raises no particular exception for a missing tokenizer
        return None


def _accepted_by(model: nn.Module, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what the tokenizer returns and the model does not accept."""
    taken = inspect.signature(model.forward).parameters
    return {key: value for key, value in encoded.items() if key in taken}


def _some_ids(model: nn.Module) -> Tensor:
    vocabulary = int(getattr(model.config.get_text_config(), "vocab_size", 100))
    return torch.arange(3, 3 + _SOME_IDS).remainder(vocabulary)[None]


def _image_inputs(target: str, settings: Settings) -> Inputs:
    picture = _open_image(Path(settings.image or ""))
    try:
        processor = transformers.AutoProcessor.from_pretrained(
            target, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # transformers may raise any exception
        raise CaptureError(
            f"hf:{printable(target)}: has no processor for a picture; "
            "give its pixel_values with --inputs FILE.safetensors"
        ) from error
    text = prompt_text(settings)
    if text is not None and not hasattr(processor, "tokenizer"):
        raise CaptureError(f"--prompt: the processor of hf:{printable(target)} takes pictures alone; leave it out")
    options = {"text": text} if text is not None else {}
    encoded = processor(images=picture, return_tensors="pt", **options)
    return Inputs({key: value for key, value in encoded.items() if isinstance(value, Tensor)}, text)


def _open_image(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path).convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise CaptureError(f"--image {printable(path)}: is no picture that can be read ({error})") from error


def _random_inputs(model: nn.Module, name: str, settings: Settings) -> Inputs:
    """Random values of the right shape for a model that takes images or audio."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = _shape_of(name, model.config)
    if shape is None:
        raise CaptureError(f"{type(model).__name__} wants {name}; give it with --inputs FILE.safetensors")
    dtype = next(model.parameters()).dtype
    noise = torch.randn(shape, generator=generator).to(dtype)
    return Inputs({name: noise}, None, (f"no {name} were given, so they are noise of shape {list(shape)}",))


def _shape_of(name: str, config: Any) -> tuple[int, ...] | None:
    part = getattr(config, "vision_config", config)
    if name == "pixel_values":
        size = part.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return 1, int(getattr(part, "num_channels", 3)), height, width
    if name == "input_features":
        return 1, int(config.num_mel_bins), 2 * int(config.max_source_positions)
    return (1, _RATE_HZ) if name == "input_values" else None


def _with_decoder_start(model: nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Add the decoder's start token for a model with a decoder."""
    if not getattr(model.config, "is_encoder_decoder", False) or "decoder_input_ids" in kwargs:
        return dict(kwargs)
    start = getattr(model.config, "decoder_start_token_id", None)
    return {**kwargs, "decoder_input_ids": torch.tensor([[start if start is not None else 0]])}
