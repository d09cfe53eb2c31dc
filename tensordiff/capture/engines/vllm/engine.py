"""``vllm:PATH_OR_ID``: a model run by vLLM, eagerly and in this process, one sequence at a time.

vLLM compiles what it can, and then nothing within the model can be seen; ``enforce_eager`` turns that off. The rest of
a capture is what it is for every torch model.
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
from tensordiff.capture.engines.vllm.program import EngineProgram
from tensordiff.capture.engines.vllm.tokens import SettledTokens
from tensordiff.capture.engines.vllm.weights import kept_weights, weights_of_first_layers
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import Job
from tensordiff.capture.process.disk_space import SCRATCH
from tensordiff.capture.process.replay import REPLAY
from tensordiff.capture.process.reusable_engine import RunJob, StateChanged
from tensordiff.capture.process.tokens import Tokens, refuse_outside, tokens
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, printable

_LEAST_LENGTH, _LEAST_BATCH = 128, 2048
Encode = Callable[[str], tuple[int, ...]]


def run(job: Job, tell: Tell) -> Done:
    """Run a ``vllm:`` job."""
    return load_reusable(job, tell)(job, tell)


def load_reusable(job: Job, tell: Tell) -> RunJob:
    """Load a model for several jobs; gives what runs each of them."""
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
    asked = _tokens(job, encode)
    refuse_outside((*asked.ids, *asked.following), llm.llm_engine.model_config.get_vocab_size())
    for note in asked.notes:
        tell(Note(note))
    longest = llm.llm_engine.model_config.max_model_len
    if _length(asked, job.settings) > longest:
        raise StateChanged(f"{printable(job.source)}: was loaded for {longest} tokens, and there are more now")
    return perform(EngineProgram(llm, asked, job.settings.steps), job, tell)


def _tokens(job: Job, encode: Encode) -> Tokens:
    injection = job.settings.inject
    return tokens(job.settings, open_dump(Path(injection.dump)) if injection else None, encode)


def _length(asked: Tokens, settings: Settings) -> int:
    return max(_LEAST_LENGTH, len(asked.ids) + settings.steps)


@contextmanager
def _loading(target: str) -> Iterator[None]:
    """What vLLM says where it cannot load a model becomes one sentence."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:  # vLLM raises whatever comes its way
        said = printable(" ".join(str(error).split()))
        raise CaptureError(
            f"vllm:{printable(target)}: vLLM could not load it ({type(error).__name__}: {said:.400}); "
            "give a folder with config.json and weights, or the id of a model on the hub"
        ) from error


def _load(target: str, settings: Settings, length: int, *, pools: bool) -> LLM:
    """Load a model as the settings say."""
    with kept_weights(), weights_of_first_layers(settings.num_hidden_layers):
        return LLM(
            model=target, dtype=settings.dtype or _own_dtype(target, settings), revision=settings.revision,
            trust_remote_code=settings.trust_remote_code, hf_overrides=_overrides(settings), seed=settings.seed,
            enforce_eager=True, max_model_len=length, max_num_batched_tokens=max(_LEAST_BATCH, length),
            max_num_seqs=1, enable_prefix_caching=False, logits_processors=None if pools else [SettledTokens],
            skip_tokenizer_init=not pools,
        )  # fmt: skip


def _pools(target: str, settings: Settings) -> bool:
    """Whether a model makes one embedding of all tokens: vLLM then takes nothing for logits, and wants a tokenizer."""
    asked = EngineArgs(
        model=target, revision=settings.revision, trust_remote_code=settings.trust_remote_code, skip_tokenizer_init=True
    )
    return bool(asked.create_model_config().runner_type == "pooling")


def _own_dtype(target: str, settings: Settings) -> str:
    """The checkpoint's own type, which vLLM would take for a wish: it runs float32 in 16 bits unless told otherwise."""
    config = AutoConfig.from_pretrained(
        target, revision=settings.revision, trust_remote_code=settings.trust_remote_code
    ).get_text_config()
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def _overrides(settings: Settings) -> Callable[[Any], Any] | None:
    """``--config`` and ``--num-hidden-layers``, as they are for hf: sources."""
    if not settings.config and settings.num_hidden_layers is None:
        return None

    def change(config: Any) -> Any:
        if type(config) is PretrainedConfig:
            return config  # vLLM first asks with an empty one, to see whether another class is wanted
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
