"""Where in the model's own code an operation was asked for: frames, without those of torch and of ours."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import tensordiff
from tensordiff.capture.children.facts import Place, short

_TORCH, _OURS = Path(torch.__file__).parent, Path(tensordiff.__file__).parent
_PYTHON = Path(sysconfig.get_paths()["stdlib"])
_DEEPEST = 24


@lru_cache(maxsize=4096)
def _is_model_file(file: str) -> bool:
    path = Path(file)
    if not path.is_absolute() or path.is_relative_to(_TORCH) or path.is_relative_to(_OURS):
        return False
    return not path.is_relative_to(_PYTHON) or "site-packages" in path.parts


def is_of_model(code: CodeType) -> bool:
    """Whether code is the model's: neither torch's nor ours nor Python's."""
    return _is_model_file(code.co_filename)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the model's own code."""
    while frame is not None and not is_of_model(frame.f_code):
        frame = frame.f_back
    return frame


@dataclass
class Stacks:
    """Stacks of what was seen, each frame kept once."""

    outermost: FrameType | None = None
    """The frame that called the layer; what lies beyond is not kept."""
    frames: dict[str, int] = field(default_factory=dict)
    of: dict[str, list[int]] = field(default_factory=dict)

    def add(self, name: str, frame: FrameType | None, inside: str) -> Place:
        """Remember where something was asked for; the nearest place in the model's code."""
        found, near = self._walk(frame), user_frame(frame)
        if name not in self.of:
            texts = [f"within {inside}", *found]
            self.of[name] = [self.frames.setdefault(text, len(self.frames)) for text in texts]
        return Place(short(near.f_code.co_filename), near.f_lineno) if near is not None else Place(None, None)

    def _walk(self, frame: FrameType | None) -> list[str]:
        found: list[str] = []
        while frame is not None and frame is not self.outermost and len(found) < _DEEPEST:
            if is_of_model(frame.f_code):
                code = frame.f_code
                found.append(f"{short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}")
            frame = frame.f_back
        return found

    def as_json(self) -> dict[str, Any]:
        """For the manifest: every frame once, and their numbers by name, nearest first."""
        return {"frames": list(self.frames), "of": self.of}
