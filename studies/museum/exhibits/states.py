"""State spaces and convolutions: padding that gets into a state, and states that get mixed."""

from __future__ import annotations

from typing import Any

from studies.bugs.spot import replace_forward
from studies.museum.architectures import LFM2, MAMBA
from studies.museum.exhibit import ROWS, Exhibit, leave
from studies.museum.questions import decoding, decoding_right, padded_left


def _padding_kept(model: Any) -> None:
    """The mask that a mixer is given is not used."""

    def made(forward: Any) -> Any:
        return lambda hidden_states, **rest: forward(hidden_states, **{**rest, "attention_mask": None})

    for layer in model.backbone.layers:
        replace_forward(layer.mixer, made)


def _state_of_last_token(model: Any) -> None:
    """After a prompt with padding at its end, a convolution goes on from the last tokens that are none."""
    for layer in model.backbone.layers:
        replace_forward(layer.mixer, _going_on_from_last(layer.mixer))


def _going_on_from_last(mixer: Any) -> Any:
    seen: list[Any] = []
    mixer.in_proj.register_forward_hook(lambda _, __, output: seen.append(output))

    def made(forward: Any) -> Any:
        def run(hidden_states: Any, cache_params: Any = None, attention_mask: Any = None) -> Any:
            output = forward(hidden_states, cache_params, attention_mask)
            if cache_params is not None and attention_mask is not None:
                states = cache_params.layers[mixer.layer_idx].conv_states
                given = seen[-1].transpose(1, 2).chunk(2, 1)[0]
                for row, length in enumerate(attention_mask.sum(1).tolist()):
                    states[row] = given[row, :, length - mixer.conv_kernel_size : length]
            return output

        return run

    return made


def _states_mixed(model: Any) -> None:
    """Each row goes on from another's state."""
    for layer in model.model.layers:
        if hasattr(layer, "conv"):
            replace_forward(layer.conv, _from_another(layer.conv))


def _from_another(conv: Any) -> Any:
    def made(forward: Any) -> Any:
        def run(hidden_states: Any, past_key_values: Any = None, **rest: Any) -> Any:
            if past_key_values is not None and past_key_values.has_previous_state(conv.layer_idx):
                states = past_key_values.layers[conv.layer_idx].conv_states
                states.copy_(states.flip(0))
            return forward(hidden_states, past_key_values=past_key_values, **rest)

        return run

    return made


EXHIBITS = (
    Exhibit(
        "padding_in_state", ("huggingface/transformers#32677",),
        "padding is not zeroed before convolution and scan", MAMBA, ("backbone.layers.0.mixer",), _padding_kept,
        (*ROWS, "padding"), padded_left,
    ),
    Exhibit(
        "zero_state_after_padding", ("huggingface/transformers#48256",),
        "a right-padded prompt leaves a convolution state of zeros", MAMBA, ("backbone.layers.0.mixer",), leave,
        (*ROWS, "decode_only"), decoding_right, right=_state_of_last_token, step=1, has_wrong_state=True,
    ),
    Exhibit(
        "states_mixed", ("ggml-org/llama.cpp#29002",),
        "convolution states of sequences in one batch are mixed", LFM2, ("model.layers.0.conv",), _states_mixed,
        ("rows_shuffled", "decode_only"), decoding, step=1,
    ),
)  # fmt: skip
