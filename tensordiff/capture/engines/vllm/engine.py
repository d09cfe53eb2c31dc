"""``vllm:PATH_OR_ID``: a model run by vLLM, eagerly and in this process, one sequence at a time.

vLLM compiles what it can, and nothing inside compiled code can be recorded; ``enforce_eager`` turns that off. The rest
of a capture is the same as for every torch model.
"""

from __future__ import annotations

import os

os.environ |= {  # read while vllm is imported
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
}

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig
from vllm import LLM
from vllm.engine.arg_utils import EngineArgs

from tensordiff.capture.devices import parse_device
from tensordiff.capture.engines.hf.config import override, shorten
from tensordiff.capture.engines.hf.tokenizer import tokenizer
from tensordiff.capture.engines.torch.capture import perform
from tensordiff.capture.engines.vllm.program import EngineProgram, ForcedToken
from tensordiff.capture.engines.vllm.weights import kept_weights, weights_of_first_layers
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import REPLAY, Job
from tensordiff.capture.process.disk_space import SCRATCH
from tensordiff.capture.process.reusable_engine import RunJob, StateChanged
from tensordiff.capture.process.tokens import Tokens, choose_tokens, refuse_out_of_range
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, on_one_line, printable

_LEAST_LENGTH, _LEAST_BATCH = 128, 2048
Encode = Callable[[str], tuple[int, ...]]


def run(job: Job, tell: Tell) -> Done:
    """Run a ``vllm:`` job."""
    return load_reusable(job, tell)(job, tell)


def load_reusable(job: Job, tell: Tell) -> RunJob:
    """Load a model for several jobs; returns the function that runs each of them."""
    settings = job.settings
    tempfile.tempdir = os.environ.get(SCRATCH, tempfile.tempdir)  # vLLM leaves a file there when its process ends
    _refuse(job)
    if settings.attn_implementation is not None:
        tell(Note("--attn-implementation says nothing to vLLM, which chooses its attention by the device"))
    tell(Phase("loading", job.source.target))
    with _loading(job.source.target):
        pools = _pools(job.source.target, settings)  # before the tokenizer: where no model lies there, this says so
    encode = tokenizer(job.source.target, trust_remote_code=settings.trust_remote_code)
    length = _length(_tokens(job, encode), settings)
    with _loading(job.source.target):
        llm = _load(job.source.target, settings, length, pools=pools)
    return lambda job, tell: _perform(llm, encode, job, tell)


def _perform(llm: LLM, encode: Encode, job: Job, tell: Tell) -> Done:
    _refuse(job)
    tokens = _tokens(job, encode)
    refuse_out_of_range((*tokens.ids, *tokens.following), llm.llm_engine.model_config.get_vocab_size())
    for note in tokens.notes:
        tell(Note(note))
    longest = llm.llm_engine.model_config.max_model_len
    if _length(tokens, job.settings) > longest:
        raise StateChanged(f"{printable(job.source)}: was loaded for {longest} tokens, and there are more now")
    return perform(EngineProgram(llm, tokens, job.settings.steps), job, tell)


def _tokens(job: Job, encode: Encode) -> Tokens:
    injection = job.settings.inject
    return choose_tokens(job.settings, open_dump(Path(injection.dump)) if injection else None, encode)


def _length(tokens: Tokens, settings: Settings) -> int:
    return max(_LEAST_LENGTH, len(tokens.ids) + settings.steps)


@contextmanager
def _loading(target: str) -> Iterator[None]:
    """Turn errors of vLLM into one sentence while it loads a model."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:  # vLLM may raise any exception
        reason = on_one_line(error)
        raise CaptureError(
            f"vllm:{printable(target)}: vLLM could not load it ({type(error).__name__}: {reason:.400}); "
            "give a folder with config.json and weights, or the id of a model on the hub"
        ) from error


def _load(target: str, settings: Settings, length: int, *, pools: bool) -> LLM:
    """Load a model as the settings say."""
    with kept_weights(), weights_of_first_layers(settings.num_hidden_layers):
        return LLM(
            model=target, dtype=settings.dtype or _own_dtype(target, settings), revision=settings.revision,
            trust_remote_code=settings.trust_remote_code, hf_overrides=_overrides(settings), seed=settings.seed,
            enforce_eager=True, max_model_len=length, max_num_batched_tokens=max(_LEAST_BATCH, length),
            max_num_seqs=1, enable_prefix_caching=False, logits_processors=None if pools else [ForcedToken],
            skip_tokenizer_init=not pools,
        )  # fmt: skip


def _pools(target: str, settings: Settings) -> bool:
    """Whether a model makes one embedding of all tokens. vLLM then takes no logits processor, and needs a tokenizer."""
    arguments = EngineArgs(
        model=target, revision=settings.revision, trust_remote_code=settings.trust_remote_code, skip_tokenizer_init=True
    )
    return bool(arguments.create_model_config().runner_type == "pooling")


def _own_dtype(target: str, settings: Settings) -> str:
    """The checkpoint's own type. It must be given, because vLLM by default runs float32 checkpoints in 16 bits."""
    config = AutoConfig.from_pretrained(
        target, revision=settings.revision, trust_remote_code=settings.trust_remote_code
    ).get_text_config()
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def _overrides(settings: Settings) -> Callable[[Any], Any] | None:
    """``--config`` and ``--num-hidden-layers``, as for hf: sources."""
    if not settings.config and settings.num_hidden_layers is None:
        return None

    def change(config: Any) -> Any:
        if type(config) is PretrainedConfig:
            return config  # vLLM first calls with an empty config, to see whether another class is wanted
        for key, value in settings.config.items():
            override(config, key, value)
        if settings.num_hidden_layers is not None:
            shorten(config, settings.num_hidden_layers)
        return config

    return change


def _refuse(job: Job) -> None:
    if job.task == REPLAY:
        raise CaptureError(
            f"{printable(job.source)}: a layer of vllm: sources cannot be run by itself; "
            "give it the reference's inputs with: tensordiff capture --inject DUMP --inject-at LAYER"
        )
    device = job.settings.device
    choice = parse_device(device)
    kinds = ("auto", "gpu", "cuda") if torch.cuda.is_available() else ("auto", "cpu")
    if choice.kind not in kinds or choice.number or len(choice.numbers) > 1:
        raise CaptureError(f"--device {printable(device)}: vLLM runs on the device it was built for; leave it out")
