"""The engines that run models, and the one table by which the rest of tensordiff knows them.

An engine is a folder here and a line in ``ENGINES``. Nothing here imports a framework, and this module is read by
whatever interpreter the user names, so it is kept to what Python 3.7 understands. ``docs/engines.md`` is the guide for
adding an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_CORE = ("numpy", "ml_dtypes", "msgspec")
"""What the child needs of Python packages whatever the engine: for reading and writing dumps."""


class Engine(NamedTuple):
    """What is known of an engine without importing it."""

    spelling: str
    """How its sources are written: ``kind:PATH_OR_ID``, ``kind:FILE`` or ``kind:FILE:FUNCTION``."""
    module: str
    """The module in this package that has ``run(job, tell)``."""
    packages: tuple[str, ...]
    """Python packages that must be importable in the child."""
    refuses: Mapping[str, str]
    """Settings that the engine cannot honour, by their name in ``Settings``, and what to do instead."""
    is_reusable: bool = False
    """Whether one child may answer several jobs, giving the same bytes as a new child would."""
    has_own_inputs: bool = False
    """Whether the source brings its inputs, so that no prompt is given to it."""

    @property
    def takes_file(self) -> bool:
        """Whether the target is a file, and not a folder or the id of a model on the hub."""
        return self.spelling.partition(":")[2].startswith("FILE")

    @property
    def takes_function(self) -> bool:
        """Whether the target ends with the name of a function."""
        return self.spelling.endswith(":FUNCTION")


_IN_FUNCTION = "say it in the function itself"
_EXPORTED = "that was decided when the graph was exported"

ENGINES: dict[str, Engine] = {
    "hf": Engine("hf:PATH_OR_ID", "hf.engine", (*_CORE, "torch", "transformers"), {}, is_reusable=True),
    "max": Engine(
        "max:PATH_OR_ID", "max.engine", (*_CORE, "max"),
        {"inputs": "leave it out", "image": "leave it out", "weights_dtype": "leave it out"},
    ),
    "onnx": Engine(
        "onnx:FILE", "onnx.engine", (*_CORE, "onnx", "onnxruntime"),
        {
            "dtype": _EXPORTED, "weights_dtype": _EXPORTED, "num_hidden_layers": _EXPORTED, "config": _EXPORTED,
            "attn_implementation": _EXPORTED, "revision": "a file has none",
            "image": "give its pixels with --inputs FILE.safetensors", "steps": "a graph is run once",
            "prefer_module_v3": "it is about max: sources",
        },
        is_reusable=True,
    ),
    "py": Engine(
        "py:FILE.py:FUNCTION", "py.engine", (*_CORE, "torch"),
        dict.fromkeys(
            (
                "prompt", "prompt_file", "input_ids", "inputs", "image", "dtype", "weights_dtype", "num_hidden_layers",
                "config", "attn_implementation", "revision", "device", "steps", "trust_remote_code",
                "prefer_module_v3", "optimized",
            ),
            _IN_FUNCTION,
        ),
        is_reusable=True, has_own_inputs=True,
    ),
}  # fmt: skip


def module_of(kind: str) -> str:
    """The full name of the module that runs sources of a kind."""
    return "tensordiff.capture.engines." + ENGINES[kind].module


def spellings() -> str:
    """How sources are written, for help texts and errors: ``hf:PATH_OR_ID, …, onnx:FILE or py:FILE.py:FUNCTION``."""
    return _listed([engine.spelling for engine in ENGINES.values()])


def prefixes() -> str:
    """The same in short: ``hf:, max:, onnx: or py:``."""
    return _listed([kind + ":" for kind in ENGINES])


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
