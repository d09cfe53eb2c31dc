"""How large a dump will be, before anything is run: a guess from the modules and the first inputs.

What flows between modules is told by ``flow``; what eager attention gives beside it is heads times tokens squared.
Right within a factor of three or so, which is enough to refuse in time; None where it cannot be told.
"""

from __future__ import annotations

from typing import Any

import torch

from tensordiff.capture.children.facts import dtype_of
from tensordiff.capture.children.flow import Passed, UnknownSize, passed
from tensordiff.capture.children.hooks import ROOT, Selection
from tensordiff.capture.children.program import Step
from tensordiff.capture.children.tensors import find_arguments


def estimate(step: Step, steps: int, selection: Selection) -> int | None:
    """Bytes that a run will write, roughly."""
    inputs = list(find_arguments(step.args, step.kwargs).tensors.values())
    item: int = getattr(torch, dtype_of(step.model)).itemsize
    try:
        found = [one for one in passed(step.model, inputs) if selection.takes(_layer(one), one.module)]
    except UnknownSize:
        return None
    return item * sum(int(_elements(one, selection) * _more(one, steps)) for one in found)


def _layer(one: Passed) -> str:
    return f"{ROOT}.{one.name}" if one.name else ROOT


def _elements(one: Passed, selection: Selection) -> int:
    """What a module gives and, if wanted, takes."""
    return one.gives.size + (one.takes.size if selection.inputs else 0) + _attention(one)


def _more(one: Passed, steps: int) -> float:
    """Further steps have a token each."""
    return 1 + (steps - 1) / max(one.gives.extent, 1)


def _attention(one: Passed) -> int:
    """The weights that eager attention gives beside its output."""
    config: Any = getattr(one.module, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    is_attention = "attention" in type(one.module).__name__.lower() and not any(
        "attention" in type(child).__name__.lower() for child in one.module.children()
    )
    eager = getattr(config, "_attn_implementation", None) == "eager"
    return one.gives.batch * heads * one.gives.extent**2 if is_attention and eager and isinstance(heads, int) else 0
