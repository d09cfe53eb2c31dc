"""``llamacpp:FILE.gguf``: a GGUF file, run by llama.cpp on the CPU.

The cache is kept in float32 and attention is computed without flash attention. llama.cpp's defaults, float16 and flash
attention, are approximations that would look like an error of the port. A GGUF file contains no code, and none is run.
"""

from __future__ import annotations

from pathlib import Path

from tensordiff.capture.devices import parse_device
from tensordiff.capture.engines.llamacpp.model import GgufModel, LoadedModel, OperationsModel
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import REPLAY, Job
from tensordiff.capture.process.eager import run_eagerly
from tensordiff.capture.process.layers import find_layer
from tensordiff.capture.process.tokens import choose_tokens
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, printable


def run(job: Job, tell: Tell) -> Done:
    """Run a ``llamacpp:`` job."""
    settings, path = job.settings, Path(job.source.target).expanduser()
    _refuse(settings)
    if not path.is_file():
        raise CaptureError(f"{printable(job.source)}: there is no such file; write llamacpp:FILE.gguf")
    tell(Phase("loading", job.source.target))
    loaded = LoadedModel(path, settings.config)
    tokens = choose_tokens(
        settings, open_dump(Path(job.reference)) if job.reference is not None else None, loaded.encode
    )
    for note in tokens.notes:
        tell(Note(note))
    tell(Phase("listing tensors"))
    model = GgufModel(loaded, tokens, 1 if job.task == REPLAY else settings.steps)
    if settings.ops is None or job.task == REPLAY:
        return run_eagerly(model, job, tell)
    layer = find_layer(settings.ops, model.layers())
    operations = OperationsModel(model, layer)
    tell(Note(f"{len(operations.layers()) - 1} operations in {printable(layer)}"))
    return run_eagerly(operations, job, tell, operations_of=layer)


def _refuse(settings: Settings) -> None:
    """Refuse settings that llama.cpp cannot honour; accept those that describe what it does anyway."""
    if settings.dtype not in (None, "float32"):
        raise CaptureError(
            f"--dtype {printable(settings.dtype)}: llama.cpp computes in float32; convert the file instead"
        )
    if parse_device(settings.device).kind not in ("auto", "cpu"):
        raise CaptureError(f"--device {printable(settings.device)}: llamacpp: sources run on the cpu; leave it out")
    if settings.attn_implementation not in (None, "eager", "sdpa"):
        raise CaptureError(
            f"--attn-implementation {printable(settings.attn_implementation)}: llamacpp: sources compute attention "
            "plainly; leave it out, or give eager"
        )
