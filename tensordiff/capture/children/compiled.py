"""Models whose hooks do not fire: compiled, scripted, captured as a graph. They are run eagerly, or it is said.

A compiled model is run uncompiled while it is captured (torch has a switch for that), so the numbers are those of
the eager code; that is said too. Where hooks stayed silent for another reason, the layers are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tensordiff.capture.children.hooks import ROOT, Recorder

EAGER = "the model is compiled; it was run eagerly while it was captured, so these are the eager code's numbers"


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has been at a model or a part of it."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Run a compiled model as if it were not."""
    if not is_compiled(model):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def why_silent(recorder: Recorder) -> list[str]:
    """What a person should know of hooks that did not fire."""
    model = recorder.root
    if model is None:
        return []
    notes = [EAGER] if is_compiled(model) else []
    silent = sorted(layer for layer in recorder.silent if layer != ROOT and not layer.endswith("dropout"))
    children = len(recorder.hooked) - 1
    if recorder.scripted:
        notes.append(f"{recorder.scripted} modules are TorchScript, which takes no hooks; capture the eager model")
    if silent and len(silent) == children and children:
        notes.append(
            "no hook within the model fired: it was replayed as a graph, or goes past its parts; "
            "capture the eager model to see its layers"
        )
    elif silent:
        some = ", ".join(silent[:3]) + (", …" if len(silent) > 3 else "")
        notes.append(f"{len(silent)} of {children} layers did not run: {some}")
    return notes
