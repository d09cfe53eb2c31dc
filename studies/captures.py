"""Running a tiny model once and writing what its modules were given and gave.

The hooks here are the plainest that do: a study must not depend on the capture it may be asked to judge. What a
planted bug changes *between* modules is changed after these hooks have seen it, so they are put on first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import torch

from studies.bugs.spot import Planting
from studies.models import Tiny
from tensordiff.capture.engines.torch.facts import has_experts
from tensordiff.dump.dtypes import Array
from tensordiff.dump.native.writer import DumpWriter

Dumped = Literal["everything", "outputs", "blocks"]
DUMPED: tuple[Dumped, ...] = ("everything", "outputs", "blocks")
Captures = dict[str, Array]


def capture(tiny: Tiny, plantings: Sequence[Planting] = ()) -> Captures:
    """One forward pass, with bugs: inputs and outputs of every module, in the order in which the modules end."""
    captures: Captures = {}
    handles = [
        module.register_forward_hook(_watch(name, captures), with_kwargs=True)
        for name, module in tiny.model.named_modules()
        if name
    ]
    for planting in plantings:
        planting.plant()
    with torch.no_grad():
        tiny.model(tiny.ids)
    for handle in handles:
        handle.remove()
    return captures


def _watch(name: str, captures: Captures) -> Callable[..., None]:
    calls = count(1)

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = next(calls)
        layer = name if call == 1 else f"{name}({call})"
        for port, found in (("input", args), ("input", kwargs), ("output", output)):
            for label, tensor in tensors_in(found, port):
                captures[f"{layer}-{label}"] = as_array(tensor)

    return hook


def tensors_in(found: Any, port: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a hook's argument, each with its port."""
    if isinstance(found, torch.Tensor):
        yield port, found
    elif isinstance(found, Mapping):
        yield from ((f"{port}_{key}", value) for key, value in found.items() if isinstance(value, torch.Tensor))
    elif isinstance(found, tuple):
        yield from tensors_in(dict(enumerate(found)), port)


def as_array(tensor: Any) -> Array:
    """A tensor's values, copied; numpy has no bfloat16 of its own."""
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    if tensor.dtype is torch.bfloat16:
        found: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return found
    plain: Array = tensor.numpy()
    return plain


def is_dumped(name: str, what: Dumped, blocks: str) -> bool:
    """Whether an entry is in a dump of this kind."""
    layer, _, port = name.rpartition("-")
    if what == "everything":
        return True
    if not port.startswith("output"):
        return False
    return what == "outputs" or not layer.startswith(f"{blocks}.") or layer.count(".") == blocks.count(".") + 1


def write(folder: Path, captures: Captures, tiny: Tiny, what: Dumped) -> Path:
    """A dump of what was captured."""
    model = {"experts": has_experts(tiny.model)}
    facts = {"framework": "torch", "dtype": tiny.dtype, "token_ids": tiny.ids[0].tolist(), "model": model}
    with DumpWriter(folder, facts, overwrite=True, header_bytes=64 << 10) as writer:
        for name, array in captures.items():
            if is_dumped(name, what, tiny.arch.blocks):
                writer.add(name, array)
    return folder


@contextmanager
def plain_torch() -> Iterator[None]:
    """One thread and torch's own matrix products: the same numbers on every machine, as far as that is possible.

    Some virtual machines announce matrix instructions that they do not let anyone use.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TF32 acceleration")  # of graphics cards, which are not asked for
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.set_num_threads(threads)
