"""The files of a model: a folder with ``config.json``, weights and tokenizer.

The id of a model on the hub is looked up in the local cache first. Config overrides make a second folder that links to
all files except ``config.json``, so that MAX reads them like any other config.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensordiff.capture.engines.hf.config import load_config
from tensordiff.capture.process.disk_space import scratch_folder
from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, first_line, printable
from tensordiff.util.atomic_write import write_file

CONFIG = "config.json"
_ROUND = 256
_HASHED = 1 << 30  # bytes of weights that are hashed whole
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True)
class Checkpoint:
    """A folder that MAX can load, and its config."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """The class that the config names."""
        named = self.config.get("architectures")
        if not isinstance(named, list) or not named:
            raise CaptureError(f"{printable(self.folder / CONFIG)}: names no architecture; MAX finds its model by it")
        return str(named[0])

    @property
    def dtype(self) -> str:
        """The type of the weights, according to the config."""
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "float32")

    def length_for(self, tokens: int) -> int:
        """How many tokens to reserve. Few distinct sizes are used, because MAX compiles a new graph for each."""
        most = self.config.get("max_position_embeddings")
        most = most if isinstance(most, int) else tokens + _ROUND
        if tokens > most:
            raise CaptureError(f"{printable(self.folder)}: {tokens} tokens, and the model takes {most}; shorten them")
        return min(-(-tokens // _ROUND) * _ROUND, most)

    def weights_hash(self) -> str:
        """One hash of all weight files. Of large files only the first part is hashed, and the hash says so."""
        files = sorted(self.folder.glob("*.safetensors"))
        most = None if sum(file.stat().st_size for file in files) <= _HASHED else max(_HASHED // len(files), 1)
        digest = hashlib.sha256()
        for file in files:
            with file.open("rb") as opened:
                digest.update(file.name.encode() + opened.read(-1 if most is None else most))
        return f"{'sha256-files' if most is None else 'sha256-files-parts'}:{digest.hexdigest()}"


def open_checkpoint(target: str, settings: Settings, stack: ExitStack) -> Checkpoint:
    """The source's files, with the requested overrides."""
    folder = Path(target) if Path(target).exists() else _from_hub(target, settings.revision)
    config = _read_config(folder)
    if not overrides_of(settings):
        return Checkpoint(folder.resolve(), config)
    return _with_changed_config(folder, config, settings, stack)


def overrides_of(settings: Settings) -> dict[str, Any]:
    """All changes to the config, including the number of layers."""
    layers = settings.num_hidden_layers
    return {**settings.config, **({} if layers is None else {"num_hidden_layers": layers})}


def _from_hub(target: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(target, revision=revision, allow_patterns=_WANTED))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = first_line(error)
        raise CaptureError(
            f"max:{printable(target)}: is not a folder, and is not available on the hub ({reason:.200}); check the name"
        ) from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CaptureError(f"{printable(folder)}: has no {CONFIG}; give the folder of a Hugging Face model") from None
    except (OSError, ValueError) as error:
        raise CaptureError(f"{printable(path)}: cannot be read ({printable(error)})") from error
    if not isinstance(found, dict):
        raise CaptureError(f"{printable(path)}: is no JSON object; give the folder of a Hugging Face model")
    return found


def _with_changed_config(folder: Path, config: Mapping[str, Any], settings: Settings, stack: ExitStack) -> Checkpoint:
    """A folder of links with a changed config.

    The config is changed as it is for Hugging Face, so that an override means the same on both sides.
    """
    linked = Path(stack.enter_context(scratch_folder()))
    for path in folder.resolve().iterdir():
        if path.name != CONFIG:
            (linked / path.name).symlink_to(path)
    changed = {**config, **load_config(str(folder), settings).to_dict()}
    write_file(linked / CONFIG, json.dumps(changed, default=str))
    return Checkpoint(linked, changed)
