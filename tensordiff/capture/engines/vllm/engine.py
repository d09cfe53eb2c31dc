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

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from vllm import LLM

from tensordiff.capture.engines.hf.config import override, shorten
from tensordiff.capture.engines.hf.tokenizer import tokenizer
from tensordiff.capture.engines.torch.capture import perform
from tensordiff.capture.engines.vllm.program import EngineProgram
from tensordiff.capture.engines.vllm.tokens import SettledTokens
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import Job
from tensordiff.capture.process.replay import REPLAY
from tensordiff.capture.process.reusable_engine import RunJob
from tensordiff.capture.process.tokens import tokens
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, printable

_LEAST_LENGTH = 128


def run(job: Job, tell: Tell) -> Done:
    """Run a ``vllm:`` job."""
    return load_reusable(job, tell)(job, tell)


def load_reusable(job: Job, tell: Tell) -> RunJob:
    """Load a model for several jobs; gives what runs each of them."""
    settings = job.settings
    _refuse(job)
    if settings.attn_implementation is not None:
        tell(Note("--attn-implementation says nothing to vLLM, which chooses its attention by the device"))
    tell(Phase("loading", job.source.target))
    llm = _load(job.source.target, settings)
    encode = tokenizer(job.source.target, trust_remote_code=settings.trust_remote_code)
    return lambda job, tell: _perform(llm, encode, job, tell)


def _perform(llm: LLM, encode: Callable[[str], tuple[int, ...]], job: Job, tell: Tell) -> Done:
    _refuse(job)
    settings = job.settings
    asked = tokens(settings, open_dump(Path(settings.inject.dump)) if settings.inject else None, encode)
    for note in asked.notes:
        tell(Note(note))
    longest = llm.llm_engine.model_config.max_model_len
    if len(asked.ids) + settings.steps > longest:
        raise CaptureError(
            f"{len(asked.ids)} tokens and {settings.steps} steps are more than the {longest} it was loaded for"
        )
    return perform(EngineProgram(llm, asked, settings.steps), job, tell)


def _load(target: str, settings: Settings) -> LLM:
    """Load a model as the settings say; what vLLM says becomes one sentence."""
    wanted = len(settings.input_ids or ()) + settings.steps + 1
    try:
        return LLM(
            model=target, dtype=settings.dtype or "auto", revision=settings.revision, seed=settings.seed,
            trust_remote_code=settings.trust_remote_code, hf_overrides=_overrides(settings), enforce_eager=True,
            max_model_len=max(_LEAST_LENGTH, wanted), max_num_batched_tokens=max(2048, wanted), max_num_seqs=1,
            enable_prefix_caching=False, logits_processors=[SettledTokens], skip_tokenizer_init=True,
        )  # fmt: skip
    except CaptureError:
        raise
    except Exception as error:  # vLLM raises whatever comes its way
        said = printable(" ".join(str(error).split()))
        raise CaptureError(
            f"vllm:{printable(target)}: vLLM could not load it ({type(error).__name__}: {said:.400}); "
            "give a folder with config.json and weights, or the id of a model on the hub"
        ) from error


def _overrides(settings: Settings) -> Callable[[Any], Any] | None:
    """``--config`` and ``--num-hidden-layers``, as they are for hf: sources."""
    if not settings.config and settings.num_hidden_layers is None:
        return None

    def change(config: Any) -> Any:
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
    if device.partition(":")[0] not in ("auto", "cuda" if torch.cuda.is_available() else "cpu"):
        raise CaptureError(f"--device {printable(device)}: vLLM runs on the device it was built for; leave it out")


def versions() -> dict[str, str]:
    """Of vLLM, under whichever name it is installed."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return {name: version(name)}
        except PackageNotFoundError:
            continue
    return {}
