"""The tokenizer that lies beside a model, read by transformers where that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, printable

_FILES = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")


def beside(path: Path) -> Path | None:
    """The folder that holds a tokenizer: the model's, or the one above where that is called ``onnx``."""
    folders = (path.parent, path.parent.parent) if path.parent.name == "onnx" else (path.parent,)
    return next((folder for folder in folders if any(map(_is_of_tokenizer, folder.iterdir()))), None)


def _is_of_tokenizer(path: Path) -> bool:
    return path.name.startswith(_FILES) or path.suffix == ".model"


def load_tokenizer(path: Path, settings: Settings) -> Any:
    """The tokenizer that lies beside a model; None where there is none."""
    folder = beside(path)
    if folder is None:
        return None
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise CaptureError(
            f"{printable(folder)}: has a tokenizer, which transformers reads, and that is not installed; "
            "install it, or give --input-ids 1,2,3"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)
    except Exception as error:  # transformers raises whatever comes its way
        said = printable(str(error).strip().partition("\n")[0])
        raise CaptureError(
            f"{printable(folder)}: its tokenizer cannot be read ({said:.200}); give --input-ids 1,2,3"
        ) from error
