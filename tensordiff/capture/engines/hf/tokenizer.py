"""A tokenizer that lies in a model's folder, for engines that take only tokens.

transformers is imported only when a text is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensordiff.errors import CaptureError, first_line, printable

_FILES = ("tokenizer", "vocab", "spiece", "sentencepiece", "merges")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds the files of a tokenizer."""
    return any(path.name.startswith(_FILES) or path.suffix == ".model" for path in folder.iterdir())


def tokenizer(folder: Path | str, *, trust_remote_code: bool = False) -> Callable[[str], tuple[int, ...]]:
    """A function that encodes a text as token ids."""

    def encode(text: str) -> tuple[int, ...]:
        from transformers import AutoTokenizer

        try:
            found: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except Exception as error:  # transformers may raise any exception
            reason = first_line(error)
            raise CaptureError(
                f"{printable(folder)}: has no tokenizer ({reason:.200}); give --input-ids 1,2,3"
            ) from error
        ids: Sequence[int] = found(text)["input_ids"]
        return tuple(int(each) for each in ids)

    return encode
