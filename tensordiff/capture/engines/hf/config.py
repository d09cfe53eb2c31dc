"""Load a model's config and apply the user's changes: fewer layers, other values at dotted keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import transformers

from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, on_one_line, printable

_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "num_decoder_layers", "encoder_layers", "decoder_layers")
_PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")


def load_config(target: str, settings: Settings) -> Any:
    """Load the config of a model and change it as the settings say."""
    try:
        config = transformers.AutoConfig.from_pretrained(
            target, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # transformers may raise any exception
        reason = on_one_line(error)
        hint = "; if you trust the code it brings, --trust-remote-code" if "remote" in reason else ""
        raise CaptureError(
            f"hf:{printable(target)}: its config cannot be loaded ({type(error).__name__}: {reason:.400}); "
            f"give a folder with config.json, or the id of a model on the hub{hint}"
        ) from error
    for key, value in settings.config.items():
        override(config, key, value)
    if settings.num_hidden_layers is not None:
        shorten(config, settings.num_hidden_layers)
    return config


def override(config: Any, key: str, value: Any) -> None:
    """Set a value at a dotted key. The key must already exist, or be accepted by the config."""
    *path, last = key.split(".")
    holder = config
    for name in path:
        holder = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
        if holder is None:
            raise CaptureError(f"--config {printable(key)}: the config has no {printable(name)}")
    if isinstance(holder, dict):
        holder[last] = value
        return
    if not hasattr(holder, last):
        near = ", ".join(sorted(name for name in vars(holder) if not name.startswith("_"))[:12])
        raise CaptureError(f"--config {printable(key)}: the config has no {printable(last)}; it has {near}, …")
    setattr(holder, last, value)


def shorten(config: Any, layers: int) -> None:
    """Keep the first ``layers`` layers in every part of the config that counts them; a shorter part keeps all its
    layers.
    """
    parts = list(_parts(config))
    most = max((count for part in parts for count in _counts(part).values()), default=None)
    if most is None:
        raise CaptureError(f"--num-hidden-layers {layers}: the config does not say how many layers there are")
    if layers > most:
        raise CaptureError(f"--num-hidden-layers {layers}: the model has {most}")
    for part in parts:
        for name, count in _counts(part).items():
            setattr(part, name, min(count, layers))
        for name in _PER_LAYER:
            if isinstance(found := getattr(part, name, None), list | tuple):
                setattr(part, name, list(found[:layers]))


def refuse_linear(config: Any, layers: int | None) -> None:
    """Refuse to keep only layers of linear attention: transformers cannot tell the length of a cache for
    these alone.
    """
    types = getattr(config.get_text_config(), "layer_types", None) or ()
    if layers is not None and set(types) == {"linear_attention"}:
        raise CaptureError(
            f"--num-hidden-layers {layers}: the layers kept are all of linear attention, and transformers cannot run "
            "this model without one of another kind; keep more"
        )


def _counts(part: Any) -> dict[str, int]:
    return {name: count for name in _COUNTS if isinstance(count := getattr(part, name, None), int)}


def _parts(config: Any) -> Iterator[Any]:
    """A config and the configs nested in it, such as those of the text and vision parts."""
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PretrainedConfig):
            yield from _parts(value)
