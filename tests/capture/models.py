"""Tiny random models and models of a few lines, and running them in this process as a child would."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tensordiff.capture.events import Done, Event
from tensordiff.capture.job import Job, Source, parse_source
from tensordiff.capture.process.child_main import run_job
from tensordiff.capture.provenance import sign
from tensordiff.capture.settings import Injection, Settings
from tensordiff.session.request import Request
from tensordiff.session.session import Session

ARCHITECTURES = ("llama", "qwen3", "gemma3", "gpt2", "mixtral", "bert", "t5", "vit", "whisper")
_COMMON = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
_GROUPED = _COMMON | {"num_key_value_heads": 2, "head_dim": 16}
_CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GROUPED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _GROUPED),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", _GROUPED | {"sliding_window": 4}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel",
             {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _GROUPED | {"num_local_experts": 4}),
    "bert": ("BertConfig", "BertModel", _COMMON),
    "t5": ("T5Config", "T5ForConditionalGeneration",
           {"vocab_size": 320, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
            "decoder_start_token_id": 0}),
    "vit": ("ViTConfig", "ViTForImageClassification",
            {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "image_size": 32, "patch_size": 8}),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration",
                {"vocab_size": 320, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
                 "decoder_ffn_dim": 128, "max_source_positions": 50, "max_target_positions": 40, "num_mel_bins": 16,
                 "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}),
}  # fmt: skip


def tiny_model(name: str, folder: Path) -> Path:
    """A random checkpoint of an architecture, whose norms and biases are visible."""
    import torch
    import transformers

    config, model_class, options = _CONFIGS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config)(**options)).eval()
    noise = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.1 * torch.randn(weight.shape, generator=noise)
    model.save_pretrained(folder / name)
    return folder / name


def tiny_models(folder: Path) -> Make:
    """Makes checkpoints in a folder, each once."""

    def make(name: str) -> Path:
        return folder / name if (folder / name).is_dir() else tiny_model(name, folder)

    return make


class Ran(NamedTuple):
    """What a run in this process left."""

    path: Path
    done: Done
    events: list[Event]


def run_here(source: str, output: Path, settings: Settings | None = None, **more: Any) -> Ran:
    """Run a source as its child would, in this process."""
    parsed = parse_source(source)
    assert isinstance(parsed, Source)
    events: list[Event] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch and transformers warn of goes to a child's log
        job = Job(parsed, settings or Settings(**more), str(output))
        done = run_job(replace(job, signature=sign(job)), events.append)
    return Ran(output, done, events)


def injected_here(source: str, output: Path, reference: Path, at: str = "all", **more: Any) -> Ran:
    """Run a source with the inputs of a dump."""
    return run_here(source, output, replace(Settings(**more), inject=Injection(str(reference), at)))


def compared(reference: Path, candidate: Path, **more: Any) -> Session:
    """Two dumps, aligned."""
    return Session.open(Request(reference, candidate, **more))


def script(folder: Path, text: str, name: str = "model_under_test.py") -> Path:
    """A user's file."""
    path = folder / name
    path.write_text(text, "utf-8")
    return path


SMALL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8)
        self.scale = 1.0

    def forward(self, x, scale=None):
        return x + self.scale * self.down(self.act(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = block(x=h)
        return {"logits": self.last(h), "pair": (h, h.sum())}

def build():
    torch.manual_seed(0)
    return Net().eval()

def good():
    return build(), (torch.linspace(-1, 1, 12).reshape(3, 4),), {}

def bad():
    net, args, kwargs = good()
    net.blocks[2].act = nn.GELU()
    return net, args, kwargs

def glue():
    net, args, kwargs = good()
    net.blocks[1].scale = 1.5
    return net, args, kwargs
"""
Make = Callable[[str], Path]
