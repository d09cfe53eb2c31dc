"""Models whose hooks do not fire: compiled, scripted, or captured as a graph.

During a capture, compiled code runs uncompiled, which torch has a switch for, so the numbers are those of the eager
code. A note says so if the model, a part of it or one of their methods is compiled. If hooks did not fire for another
reason, a note names the layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType

import torch
from torch import nn

from tensordiff.capture.engines.torch.hooks import Recorder
from tensordiff.capture.process.layers import ROOT

_COMPILER = "torch._dynamo"
EAGER = "the model is compiled; it was run eagerly while it was captured, so these are the eager code's numbers"


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, a part of it or a method of these was compiled with torch.compile."""
    if _COMPILER not in sys.modules:
        return False
    modules = list(model.modules())
    return any(map(_is_compiled, modules)) or any(map(_has_compiled_method, {type(module) for module in modules}))


def _is_compiled(module: nn.Module) -> bool:
    is_whole = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return is_whole or any(map(_is_compiled_function, vars(module).values()))


def _has_compiled_method(kind: type) -> bool:
    bases = (base for base in kind.__mro__ if base not in nn.Module.__mro__)
    return any(_is_compiled_function(value) for base in bases for value in vars(base).values())


def _is_compiled_function(value: object) -> bool:
    """Whether a function is compiled. torch also wraps functions that it excludes from compilation, and marks them."""
    if not isinstance(value, FunctionType):
        return False
    about = vars(value)
    return "_torchdynamo_orig_callable" in about and not about.get("_torchdynamo_disable")


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled code as if it were not compiled, including functions that cannot be found from the model."""
    if _COMPILER not in sys.modules:  # nothing can be compiled then, and importing it takes longer than many captures
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def why_empty(recorder: Recorder, notes: Sequence[str]) -> str:
    """Why a run wrote no tensor."""
    expression, layers = recorder.selection.layers, sorted(recorder.hooked)
    if expression is not None and not any(recorder.selection.is_named(layer) for layer in layers):
        some = ", ".join(layers[:3]) + (", …" if len(layers) > 3 else "")
        return f"{expression!r} matches no layer; there are {len(layers)}: {some}"
    return "; ".join(notes) or "the layers that were asked for were given no tensors and gave none"


def silent_layer_notes(recorder: Recorder) -> list[str]:
    """Notes about hooks that did not fire."""
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
