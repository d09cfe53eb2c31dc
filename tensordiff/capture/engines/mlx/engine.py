"""``mlx:PATH_OR_ID``: a model of mlx-lm, from a folder in Hugging Face's layout or one that mlx-lm converted."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import load_model

from tensordiff.capture.devices import parse_device
from tensordiff.capture.engines.hf.tokenizer import tokenizer
from tensordiff.capture.engines.mlx.model import MlxModel
from tensordiff.capture.events import Done, Note, Phase, Tell
from tensordiff.capture.job import REPLAY, Job
from tensordiff.capture.process.eager import run_eagerly
from tensordiff.capture.process.tokens import choose_tokens
from tensordiff.capture.settings import Settings, config_hint
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, on_one_line, printable

_HASHED = 4096  # bytes of each weight
_PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")


def run(job: Job, tell: Tell) -> Done:
    """Run an ``mlx:`` job."""
    settings = job.settings
    device = _device(settings.device)
    if settings.attn_implementation is not None:
        tell(Note("--attn-implementation says nothing to MLX, which has one attention for a device"))
    tell(Phase("loading", job.source.target))
    folder = _folder(job.source.target, settings)
    model, config = _load(folder, settings)
    encode = tokenizer(folder, trust_remote_code=settings.trust_remote_code)
    tokens = choose_tokens(settings, open_dump(Path(job.reference)) if job.reference is not None else None, encode)
    for note in tokens.notes:
        tell(Note(note))
    facts = {
        "device": device, "dtype": _dtype_of(model), "config_overrides": dict(settings.config),
        "model": {"class": type(model).__name__, "type": config.get("model_type"), "layers": _count(config)},
        "weights_hash": _weights_hash(model),
    }  # fmt: skip
    return run_eagerly(MlxModel(model, tokens, 1 if job.task == REPLAY else settings.steps, facts), job, tell)


def _device(text: str) -> str:
    choice = parse_device(text)
    if choice.kind == "map" or choice.number or len(choice.numbers) > 1:
        raise CaptureError(f"--device {printable(text)}: MLX is run on one device; leave it out, or give cpu or gpu")
    kinds = {"mps": mx.metal.is_available(), "cuda": hasattr(mx, "cuda") and mx.cuda.is_available()}
    has_gpu = any(kinds.values())
    if choice.is_gpu and not kinds.get(choice.kind, has_gpu):
        raise CaptureError(f"--device {text}: this MLX has no such GPU; leave it out")
    is_gpu = has_gpu and choice.kind != "cpu"
    mx.set_default_device(mx.gpu if is_gpu else mx.cpu)
    return "gpu" if is_gpu else "cpu"


def _folder(target: str, settings: Settings) -> Path:
    """The folder of a checkpoint; downloaded from the hub if the target is an id."""
    folder = Path(target).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(target, revision=settings.revision))
    except Exception as error:  # the hub may raise any exception
        reason = on_one_line(error)
        raise CaptureError(
            f"mlx:{printable(target)}: is not a folder, nor available on the hub "
            f"({type(error).__name__}: {reason:.200})"
        ) from error


def _load(folder: Path, settings: Settings) -> tuple[nn.Module, dict[str, Any]]:
    """Load a model as the settings say; turns errors of mlx-lm into one sentence."""
    mx.random.seed(settings.seed)
    config = _config(folder, settings)
    is_short = settings.num_hidden_layers is not None
    heard = io.StringIO()
    try:
        with contextlib.redirect_stdout(heard):
            model, loaded = load_model(
                folder, strict=not is_short, model_config=config, trust_remote_code=settings.trust_remote_code
            )
    except SystemExit as error:  # for a model that needs another package, mlx-lm prints that and exits
        said = printable(" ".join(heard.getvalue().split()))
        raise CaptureError(f"mlx:{printable(folder)}: mlx-lm does not run it: {said or 'it ended':.400}") from error
    except Exception as error:  # mlx-lm may raise any exception
        reason, way_out = on_one_line(error), _way_out(error, settings)
        raise CaptureError(
            f"mlx:{printable(folder)}: mlx-lm could not load it ({type(error).__name__}: {reason:.400}); {way_out}"
        ) from error
    model.eval()
    if settings.dtype is not None:
        if "quantization" in loaded or "quantization_config" in loaded:
            raise CaptureError("--dtype: the weights are quantized, which decides on it; leave it out")
        model.set_dtype(_dtype("--dtype", settings.dtype))
    if settings.weights_dtype is not None:
        rounded = _dtype("--weights-dtype", settings.weights_dtype)
        model.update(tree_map(lambda w: _rounded(w, rounded), model.parameters()))
    mx.eval(model.parameters())
    return model, loaded


def _way_out(error: Exception, settings: Settings) -> str:
    """What to try when mlx-lm does not load a model: its classes need keys that not every config.json has."""
    said = str(error)
    keys = re.findall(r"'(\w+)'", said) if "required positional argument" in said else []
    if keys:
        return f"give what its config.json lacks, with {' '.join(f'--config {key}=VALUE' for key in keys)}"
    if said.startswith("Model type") and "not supported" in said:
        return "mlx-lm has no class for it, so it cannot be run here; vllm: runs most embedders"
    if settings.config:
        return config_hint(settings.config)
    if "parameters not in model" in said or "Missing" in said:
        return "its weights have other names than mlx-lm's class expects; try it with mlx_lm.generate first"
    return "give a folder with config.json and model.safetensors"


def _config(folder: Path, settings: Settings) -> dict[str, Any]:
    """The parts of the config that the settings change, as whole values of its first level."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CaptureError(f"mlx:{printable(folder)}: its config.json cannot be read ({error})") from error
    changed: set[str] = set()
    known = _read_keys(config) if settings.config else []
    for key, value in settings.config.items():
        first, *path = key.split(".")
        if first not in known:
            raise CaptureError(
                f"--config {printable(key)}: mlx-lm does not read {printable(first)} for this model; "
                f"it reads {', '.join(known)}"
            )
        _override(config, key, [first, *path], value)
        changed.add(first)
    if settings.num_hidden_layers is not None:
        changed |= _shorten(config, settings.num_hidden_layers)
    return {key: config[key] for key in changed}


def _read_keys(config: dict[str, Any]) -> list[str]:
    """The config keys that mlx-lm's model reads; any other key would be dropped silently."""
    classes = inspect.signature(load_model).parameters["get_model_classes"].default
    return sorted(field.name for field in dataclasses.fields(classes(config=config)[1]))


def _override(config: dict[str, Any], key: str, path: list[str], value: Any) -> None:
    holder: Any = config
    for name in path[:-1]:
        holder = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(holder, dict):
        raise CaptureError(f"--config {printable(key)}: the config has no such key")
    holder[path[-1]] = value


def _shorten(config: dict[str, Any], layers: int) -> set[str]:
    count = _count(config)
    if count is None or layers > count:
        raise CaptureError(
            f"--num-hidden-layers {layers}: the model has {count if count is not None else 'no such count'}"
        )
    name = "num_hidden_layers" if "num_hidden_layers" in config else "n_layer"
    config[name] = layers
    lists = {name for name in _PER_LAYER if isinstance(config.get(name), list)}
    for each in lists:
        config[each] = config[each][:layers]
    return {name, *lists}


def _count(config: Mapping[str, Any]) -> int | None:
    found = config.get("num_hidden_layers", config.get("n_layer"))
    return found if isinstance(found, int) else None


def _dtype(option: str, name: str) -> mx.Dtype:
    dtype = getattr(mx, name, None)
    if not isinstance(dtype, mx.Dtype):
        raise CaptureError(f"{option} {printable(name)}: MLX knows no such type; give float32, bfloat16, float16 …")
    return dtype


def _rounded(weight: Any, dtype: mx.Dtype) -> Any:
    is_float = isinstance(weight, mx.array) and mx.issubdtype(weight.dtype, mx.floating)
    return weight.astype(dtype).astype(weight.dtype) if is_float else weight


def _weights(model: nn.Module) -> list[tuple[str, mx.array]]:
    found: list[tuple[str, mx.array]] = tree_flatten(model.parameters())
    return found


def _dtype_of(model: nn.Module) -> str:
    """The type that most floating point weights have."""
    sizes: dict[str, int] = {}
    for _, weight in _weights(model):
        if mx.issubdtype(weight.dtype, mx.floating):
            name = str(weight.dtype).rpartition(".")[2]
            sizes[name] = sizes.get(name, 0) + weight.size
    return max(sizes, key=lambda name: sizes[name], default="unknown")


def _weights_hash(model: nn.Module) -> str:
    """A hash of the names, and the beginning of every weight."""
    digest = hashlib.sha256()
    for name, weight in sorted(_weights(model)):
        digest.update(f"{name} {weight.shape} {weight.dtype}".encode())
        digest.update(bytes(memoryview(mx.view(weight.reshape(-1)[: _HASHED // weight.itemsize], mx.uint8))))
    return digest.hexdigest()
