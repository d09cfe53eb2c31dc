"""``hf:PATH_OR_ID``: any transformers model, with its own tokenizer or processor.

Loads the class that the config names, or a causal model if it names none. Inputs are made in ``inputs``. Decoding is
greedy, with the cache, one forward pass a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tensordiff.capture.engines.hf.config import load_config, refuse_linear
from tensordiff.capture.engines.hf.inputs import Inputs, make_inputs
from tensordiff.capture.engines.torch.capture import perform
from tensordiff.capture.engines.torch.devices.flags import make_deterministic
from tensordiff.capture.engines.torch.devices.offload import Weights
from tensordiff.capture.engines.torch.program import Placement, Step, Steps, first_device, placement, seed
from tensordiff.capture.engines.torch.quantized import take_weights
from tensordiff.capture.engines.torch.unchanged import StateCheck
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import Job
from tensordiff.capture.process.reusable_engine import RunJob
from tensordiff.capture.process.tokens import following_tokens
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, on_one_line, printable


def run(job: Job, tell: Tell) -> Done:
    """Run an ``hf:`` job."""
    return perform(HubProgram(job, tell, *load(job, tell)), job, tell)


def load_reusable(job: Job, tell: Tell) -> RunJob:
    """Load a model for several jobs; returns the function that runs each of them."""
    (model, weight_facts), check = load(job, tell), StateCheck(with_inputs=False)
    return lambda job, tell: perform(check.watch(HubProgram(job, tell, model, weight_facts)), job, tell)


def load(job: Job, tell: Tell) -> tuple[nn.Module, Mapping[str, Any]]:
    """Load the model of a job. Also returns the facts about weights that were taken from a quantized candidate."""
    tell(Phase("loading", job.source.target))
    if job.settings.deterministic:
        make_deterministic()
    seed(job.settings.seed)  # weights that the checkpoint lacks are random
    model = load_model(job.source.target, job.settings, tell)
    if job.settings.quantized_as is None:
        return model, {}
    tell(Phase("taking weights", job.settings.quantized_as))
    return model, {"quantized_as": take_weights(model, job.settings.quantized_as, tell)}


class HubProgram:
    """A transformers model and its inputs."""

    def __init__(self, job: Job, tell: Tell, model: nn.Module, weight_facts: Mapping[str, Any]) -> None:
        self.settings, self.model, self._weight_facts = job.settings, model, weight_facts
        self.inputs: Inputs = make_inputs(self.model, job.source.target, job.settings)
        for note in self.inputs.notes:
            tell(Note(note))
        injection = job.settings.inject
        self.following = following_tokens(job.settings, open_dump(Path(injection.dump)) if injection else None)
        self.decoded: list[int] = []

    def steps(self) -> Steps:
        """The prompt, then one token a step: the token that was fixed beforehand, or the most likely one."""
        kwargs = _placed(self.inputs.kwargs, first_device(self.model))
        if self.settings.steps > 1:
            kwargs["use_cache"] = True
        self.decoded = []
        for number in range(self.settings.steps):
            output = yield Step(self.model, (), kwargs)
            if number + 1 < self.settings.steps:
                token = self.following[number] if number < len(self.following) else None
                kwargs = next_step(self.model, kwargs, output, token)
                self.decoded += kwargs["decoder_input_ids" if "decoder_input_ids" in kwargs else "input_ids"][
                    0
                ].tolist()

    def facts(self) -> Mapping[str, Any]:
        """The prompt and tokens of the run."""
        return {
            "prompt": self.inputs.prompt,
            "token_ids": self.inputs.token_ids,
            "decode_token_ids": self.decoded or None,
            **self._weight_facts,
        }


def load_model(target: str, settings: Settings, tell: Tell) -> nn.Module:
    """Load a model as the settings say, and report what the checkpoint lacks; raises ``CaptureError`` if it cannot be
    loaded.
    """
    place = placement(settings.device)
    config = load_config(target, settings)
    refuse_linear(config, settings.num_hidden_layers)
    kind = model_class(config, trust=settings.trust_remote_code)
    options: dict[str, Any] = {
        "config": config, "revision": settings.revision, "trust_remote_code": settings.trust_remote_code,
        "dtype": _dtype("--dtype", settings.dtype),
    }  # fmt: skip
    if settings.attn_implementation:
        options["attn_implementation"] = settings.attn_implementation
    if place.device_map:
        options["device_map"] = place.device_map
    if place.gpus:
        options["max_memory"] = {number: torch.cuda.mem_get_info(number)[0] for number in place.gpus}
    weights_dtype = _dtype("--weights-dtype", settings.weights_dtype)
    model, missing = from_pretrained(kind, target, options, place)
    _refuse_empty(model, place, target)
    if missing:
        tell(Note(_missing_sentence(missing, settings.seed)))
    if settings.weights_dtype:
        round_weights(model, weights_dtype)
    return (model if place.device is None else _moved(model, place, target)).eval()


def _moved(model: nn.Module, place: Placement, target: str) -> nn.Module:
    try:
        return model.to(place.device)
    except torch.OutOfMemoryError as error:
        raise _does_not_fit(target, place, str(error)) from error


def _refuse_empty(model: nn.Module, place: Placement, target: str) -> None:
    """Refuse weights that hold nothing and that no hook loads: the model would run and compute nothing.

    transformers returns such a model when accelerate finds room for all of it on the disk alone.
    """
    if empty := Weights(model).empty():
        raise _does_not_fit(target, place, f"there was no room for {empty[0]}")


def _does_not_fit(target: str, place: Placement, said: str) -> CaptureError:
    said = printable(said.strip().partition("\n")[0])
    is_spread = place.device_map and not place.gpus
    where = "all devices together" if is_spread else place
    spread = "" if is_spread else "--device device_map=auto to spread it over all devices, or "
    return CaptureError(
        f"hf:{printable(target)}: does not fit on {where} ({said:.200}); "
        f"give {spread}--num-hidden-layers N for a part of it"
    )


def from_pretrained(
    kind: Any, target: str, options: Mapping[str, Any], place: Placement
) -> tuple[nn.Module, list[str]]:
    """Load a model and name the weights that the checkpoint lacks; turns errors of transformers into one sentence."""
    try:
        model, info = kind.from_pretrained(target, output_loading_info=True, **options)
    except torch.OutOfMemoryError as error:
        raise _does_not_fit(target, place, str(error)) from error
    except Exception as error:  # transformers may raise any exception
        reason = on_one_line(error)
        raise CaptureError(
            f"hf:{printable(target)}: transformers could not load it ({type(error).__name__}: {reason:.400}); "
            f"{_way_out(error)}"
        ) from error
    return model, sorted(info["missing_keys"])


def _way_out(error: Exception) -> str:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's words for the host's memory
        return "the machine's memory is full: give --num-hidden-layers N for a part of it, or --dtype bfloat16"
    return "give a folder with config.json and weights, or the id of a model on the hub"


def _missing_sentence(missing: Sequence[str], number: int) -> str:
    some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
    which = "1 weight is" if len(missing) == 1 else f"{len(missing)} weights are"
    return f"{which} not in the checkpoint, and random, from the seed {number}: {some}"


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Round the weights through a type.

    Each weight keeps its own type, and the model still computes in that; buffers are not weights.
    """
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise CaptureError(f"--weights-dtype: {name} lies where it cannot be rounded; give one --device")
        if weight.is_floating_point():
            weight.data.copy_(weight.data.to(dtype))


def _dtype(option: str, name: str | None) -> Any:
    if name is None:
        return "auto"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(f"{option} {printable(name)}: torch knows no such type; give float32, bfloat16, float16 …")
    return dtype


def model_class(config: Any, *, trust: bool) -> Any:
    """The class to load: the one the config names, else a causal model, else whatever class the config's type has."""
    named = next(iter(getattr(config, "architectures", None) or ()), "")
    if trust and getattr(config, "auto_map", None):
        auto = next((name for name in config.auto_map if name.startswith("AutoModelFor")), "AutoModel")
        return getattr(transformers, auto)
    if named.endswith(("ForCausalLM", "LMHeadModel")):
        return transformers.AutoModelForCausalLM
    if named and hasattr(transformers, named):
        return getattr(transformers, named)
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not named:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel


def next_step(
    model: nn.Module, kwargs: Mapping[str, Any], output: Any, fixed_token: int | None = None
) -> dict[str, Any]:
    """The inputs of the next step: the fixed token or the most likely one, with the cache."""
    cache = _cache_of(output)
    if getattr(output, "logits", None) is None or not cache:
        raise CaptureError(
            f"--steps: {type(model).__name__} gives no logits or no cache to go on from; capture one step"
        )
    token = output.logits[:, -1:].argmax(-1)
    if fixed_token is not None:
        token = torch.full_like(token, fixed_token)
    if model.config.is_encoder_decoder:
        encoded = (output.encoder_last_hidden_state,)
        kept = {key: kwargs[key] for key in ("attention_mask",) if key in kwargs}
        return {**kept, "encoder_outputs": encoded, "decoder_input_ids": token, **cache, "use_cache": True}
    following: dict[str, Any] = {"input_ids": token, **cache, "use_cache": True}
    if (mask := kwargs.get("attention_mask")) is not None:
        following["attention_mask"] = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=-1)
    return following


def _cache_of(output: Any) -> dict[str, Any]:
    """The cache in a model's output, under the name it is passed back by: attention models and mamba use different
    names.
    """
    found = {name: getattr(output, name, None) for name in ("past_key_values", "cache_params")}
    return {name: cache for name, cache in found.items() if cache is not None}


def _placed(kwargs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in kwargs.items()}
