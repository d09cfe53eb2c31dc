"""Speech and diffusion: positions, padding in waves, timesteps."""

from __future__ import annotations

from typing import Any

import torch

from studies.bugs.spot import replace_forward
from studies.museum.architectures import DIFFUSION, HUBERT, WAV2VEC2, WHISPER
from studies.museum.exhibit import ROWS, Exhibit, leave
from studies.museum.questions import padded_right, timesteps


def _in_turns(model: Any) -> None:
    weight = model.model.encoder.embed_positions.weight
    length, width = weight.shape
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    weight.data = torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(weight.dtype)


def _mask_unused(model: Any) -> None:
    def made(forward: Any) -> Any:
        return lambda hidden_states, **rest: forward(hidden_states, **{**rest, "attention_mask": None})

    replace_forward(model.encoder, made)


def _normed_without_padding(model: Any) -> None:
    """Every row is normed over its own frames, as if it were alone."""
    lengths: list[Any] = []
    first = model.feature_extractor.conv_layers[0]

    def note(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs["attention_mask"]
        lengths[:] = [(int(n) - first.conv.kernel_size[0]) // first.conv.stride[0] + 1 for n in mask.sum(1)]

    def made(forward: Any) -> Any:
        def run(hidden_states: Any) -> Any:
            output = forward(hidden_states)
            for row, length in enumerate(lengths):
                own = hidden_states[row, :, :length].float()
                mean, spread = own.mean(-1, keepdim=True), own.var(-1, unbiased=False, keepdim=True)
                normed = (hidden_states[row].float() - mean) * torch.rsqrt(spread + first.layer_norm.eps)
                scaled = normed * first.layer_norm.weight[:, None].float() + first.layer_norm.bias[:, None].float()
                output[row] = scaled.to(output.dtype)
            return output

        return run

    model.register_forward_pre_hook(note, with_kwargs=True)
    replace_forward(first.layer_norm, made)


def _sine_first(model: Any) -> None:
    model.time_proj.is_cosine_first = False


EXHIBITS = (
    Exhibit(
        "sinusoids_in_turns", ("wenet-e2e/wenet#2141", "openvinotoolkit/openvino_notebooks#3327"),
        "sin and cos in turns, and of other frequencies, instead of in halves", WHISPER,
        ("model.encoder.embed_positions",), _in_turns, ("sinusoids",),
    ),
    Exhibit(
        "padded_frames_seen", ("facebookresearch/fairseq#3228", "speechbrain/speechbrain#1597"),
        "padded frames are neither zeroed nor masked", WAV2VEC2, ("encoder",), _mask_unused,
        (*ROWS, "padding", "mask", "passed_through"), padded_right,
    ),
    Exhibit(
        "normed_with_padding", ("pytorch/audio#2242",), "the group norm of features runs over padding", HUBERT,
        ("feature_extractor.conv_layers.0.layer_norm", "feature_extractor"), leave, (*ROWS, "padding"), padded_right,
        right=_normed_without_padding,
    ),
    Exhibit(
        "sine_before_cosine", ("flashinfer-ai/flashinfer#3819", "huggingface/diffusers#1369"),
        "[sin, cos] instead of [cos, sin] in the timestep embedding", DIFFUSION, ("time_proj",), _sine_first,
        ("blocks_swapped", "heads_permuted"), timesteps,
    ),
)  # fmt: skip
