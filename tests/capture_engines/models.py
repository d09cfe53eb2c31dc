"""The models that every engine is tried with: what each spells its own way, and the bugs that are planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.capture_engines.checkpoints import Bug, both, scaled_norm, swapped

ONLY_IN_TRANSFORMERS = (
    ".rotary_emb-output_0", ".rotary_emb-output_1", ".act_fn-output", ".activation_fn-output", "dropout-output",
    ".drop-output",
)  # fmt: skip
"""Ends of the names of outputs that no engine has: these are functions there, or nothing at all."""
THETA = 3000.0
"""Another rope theta than any of these models has."""


@dataclass(frozen=True)
class EngineCase:
    """An engine, and what it has by itself."""

    kind: str
    rope: Callable[[str], Mapping[str, Any] | None]
    """``--config`` that gives an architecture another rope theta; None where it has none."""
    alone: tuple[str, ...] = ()
    """Ends of the names of layers that have no counterpart: transformers computes them by functions."""
    not_isolated: tuple[str, ...] = ()
    """Ends of the names of layers that cannot be given the reference's inputs."""
    bugs: tuple[Bug, ...] = (scaled_norm, swapped)
    missing: tuple[str, ...] = ()
    """Ends of the names of outputs of transformers that it does not have, beside what no engine has."""


@dataclass(frozen=True)
class ModelCase:
    """An architecture in an engine."""

    engine: EngineCase
    name: str

    def __str__(self) -> str:
        return f"{self.engine.kind}-{self.name}"

    @property
    def alone(self) -> tuple[str, ...]:
        """Ends of the names of layers that give something without a counterpart: in MiniLM, its embedding, too."""
        own = {"minilm": ("model",), "gpt2-hub": ("model.model",)}  # transformers has model.transformer there
        return (*self.engine.alone, *own.get(self.name, ()))

    @property
    def not_isolated(self) -> tuple[str, ...]:
        """Ends of the names of layers that cannot be given the reference's inputs."""
        return (*self.engine.not_isolated, *(("model.model",) if self.name == "gpt2-hub" else ()))

    @property
    def missing(self) -> tuple[str, ...]:
        """Ends of the names of outputs of transformers that the engine does not have: of MiniLM, its pooler, too."""
        pooler = ("-output_pooler_output", ".pooler-output", ".pooler.dense-output", ".pooler.activation-output")
        return (*ONLY_IN_TRANSFORMERS, *self.engine.missing, *(pooler if self.name == "minilm" else ()))

    @property
    def rope(self) -> Mapping[str, Any] | None:
        """``--config`` with another rope theta."""
        return self.engine.rope(self.name)


@dataclass(frozen=True)
class Named:
    """How layers of an architecture are called once they are paired."""

    norm: str = "layers.1.post_attention_layernorm"
    swapped: tuple[str, ...] = ("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj")
    last: str = "lm_head"
    block: str = "layers.1"
    steps: int = 4
    turned: tuple[int, ...] = (0, 1)
    """The blocks whose rope theta is changed."""
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What an engine fuses: ``swapped`` there."""

    def wrong(self, bug: Bug, kind: str) -> tuple[str, ...]:
        """The layers that a bug makes wrong, in the order they run."""
        parts = self.more.get(kind, self.swapped)
        found: dict[Bug, tuple[str, ...]] = {scaled_norm: (self.norm,), swapped: parts, both: (*parts, self.norm)}
        return found[bug]


_FUSED = {"vllm": ("layers.0.mlp.gate_up_proj",)}
NAMES: dict[str, Named] = {
    "llama": Named(more=_FUSED),
    "qwen3": Named(more=_FUSED),
    "phi3": Named(swapped=("layers.0.mlp.gate_up_proj",)),
    "gemma3": Named(norm="layers.1.pre_feedforward_layernorm", more=_FUSED),
    "gemma3-six": Named(norm="layers.1.pre_feedforward_layernorm", turned=(0, 1, 2, 3, 4)),
    "gpt2": Named(swapped=("layers.0.self_attn.qkv_proj",)),
    "gpt2-hub": Named(swapped=("layers.0.self_attn.qkv_proj",)),
    "minilm": Named(
        norm="encoder.layer.1.output.layer_norm",
        swapped=("encoder.layer.0.attention.self.qkv_proj",),
        last="encoder",
        block="encoder.layer.1",
        steps=1,
    ),
}


def _rope_in_llamacpp(name: str) -> Mapping[str, Any] | None:
    keys = {"gemma3": "gemma3.rope.freq_base_swa", "gpt2": None}
    key = keys.get(name, f"{name}.rope.freq_base")
    return None if key is None else {key: THETA}


_OF_GPT2 = ("model.transformer-output_last_hidden_state", ".mlp.act-output")
LLAMACPP = EngineCase(
    "llamacpp", _rope_in_llamacpp, missing=("model.model-output_last_hidden_state", *_OF_GPT2)
)  # fmt: skip


def _rope_in_mlx(name: str) -> Mapping[str, Any] | None:
    keys = {"gemma3-six": "rope_local_base_freq", "gpt2-hub": None}
    key = keys.get(name, "rope_theta")
    return None if key is None else {key: THETA}


MLX = EngineCase("mlx", _rope_in_mlx, (".rope",), (".rope",), missing=_OF_GPT2)


def _rope_in_vllm(name: str) -> Mapping[str, Any] | None:
    keys = {"gemma3": "rope_parameters.sliding_attention.rope_theta", "gpt2": None, "minilm": None}
    key = keys.get(name, "rope_parameters.rope_theta")
    return None if key is None else {key: THETA}


VLLM = EngineCase(
    "vllm", _rope_in_vllm, (".rotary_emb", "attention.self.attn"), (".rotary_emb", ".attn", "model.model"),
    bugs=(both,),  # it takes most of a minute to load a checkpoint, so one has both bugs
)  # fmt: skip

CASES = [
    *(ModelCase(engine, name) for engine in (LLAMACPP, MLX, VLLM) for name in ("llama", "qwen3", "phi3")),
    *(ModelCase(LLAMACPP, name) for name in ("gemma3", "gpt2")),
    *(ModelCase(MLX, name) for name in ("gemma3-six", "gpt2-hub")),
    *(ModelCase(VLLM, name) for name in ("gemma3", "gpt2", "minilm")),
]
WITH_ROPE = [case for case in CASES if case.rope is not None]
LLAMAS = [case for case in CASES if case.name == "llama"]
