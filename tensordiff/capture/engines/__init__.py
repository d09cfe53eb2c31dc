"""The engines that run models, and the one table by which the rest of tensordiff knows them.

An engine is a folder here and a line in ``BUILT_IN``, or a package that is installed and names an ``Engine`` as an
entry point in the group ``tensordiff.engines``. Nothing here imports a framework, and this module is read by whatever
interpreter the user names, so it is kept to what Python 3.7 understands. ``docs/engines.md`` is the guide for adding an
engine.
"""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Iterator, Mapping
from typing import NamedTuple

GROUP = "tensordiff.engines"
"""The entry points by which other packages bring engines."""

_CORE = ("numpy", "ml_dtypes", "msgspec")
"""What the child needs of Python packages whatever the engine: for reading and writing dumps."""


class Engine(NamedTuple):
    """What is known of an engine without importing it."""

    spelling: str
    """How its sources are written: ``kind:PATH_OR_ID``, ``kind:FILE`` or ``kind:FILE:FUNCTION``."""
    module: str
    """The module that has ``run(job, tell)``: one in this package, or the full name of another package's."""
    packages: tuple[str, ...]
    """Python packages that must be importable in the child."""
    refuses: Mapping[str, str]
    """Settings that the engine cannot honour, by their name in ``Settings``, and what to do instead."""
    is_reusable: bool = False
    """Whether one child may answer several jobs, giving the same bytes as a new child would."""
    has_own_inputs: bool = False
    """Whether the source brings its inputs, so that no prompt is given to it."""
    takes_tokens: bool = False
    """Whether a prompt is nothing but tokens to it, so that it can be given the reference's."""
    has_environment: bool = False
    """Whether it is run in an environment of its own, ``.venv-KIND``, which ``make engine-KIND`` makes."""

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
_CONVERTED = "that was decided when the file was converted"
_TOKENS = "give --prompt or --input-ids"

BUILT_IN: dict[str, Engine] = {
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
            "decode_ids": "a graph is run once", "prefer_module_v3": "it is about max: sources",
        },
        is_reusable=True,
    ),
    "py": Engine(
        "py:FILE.py:FUNCTION", "py.engine", (*_CORE, "torch"),
        dict.fromkeys(
            (
                "prompt", "prompt_file", "input_ids", "inputs", "image", "dtype", "weights_dtype", "num_hidden_layers",
                "config", "attn_implementation", "revision", "device", "steps", "decode_ids", "trust_remote_code",
                "prefer_module_v3", "optimized",
            ),
            _IN_FUNCTION,
        ),
        is_reusable=True, has_own_inputs=True,
    ),
    "vllm": Engine(
        "vllm:PATH_OR_ID", "vllm.engine", (*_CORE, "torch", "vllm"),
        {"inputs": _TOKENS, "image": _TOKENS, "weights_dtype": "leave it out"},
        is_reusable=True, takes_tokens=True, has_environment=True,
    ),
    "mlx": Engine(
        "mlx:PATH_OR_ID", "mlx.engine", (*_CORE, "mlx", "mlx_lm"),
        {"inputs": _TOKENS, "image": _TOKENS, "ops": "what MLX computes within a module cannot be seen"},
        takes_tokens=True, has_environment=True,
    ),
    "llamacpp": Engine(
        "llamacpp:FILE.gguf", "llamacpp.engine", (*_CORE, "xllamacpp"),
        {
            "inputs": _TOKENS, "image": _TOKENS, "weights_dtype": _CONVERTED, "num_hidden_layers": _CONVERTED,
            "revision": "a file has none",
        },
        takes_tokens=True, has_environment=True,
    ),
}  # fmt: skip


class _Engines(Mapping[str, Engine]):
    """The engines of this package and of others. Those of others are looked for when one of ours will not do."""

    _others: Mapping[str, Engine] | None = None

    def __getitem__(self, kind: str) -> Engine:
        return BUILT_IN[kind] if kind in BUILT_IN else self._installed()[kind]

    def __iter__(self) -> Iterator[str]:
        return iter([*BUILT_IN, *self._installed()])

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self._installed())

    def _installed(self) -> Mapping[str, Engine]:
        if self._others is None:
            self._others = {kind: engine for kind, engine in _installed_engines() if kind not in BUILT_IN}
        return self._others


def _installed_engines() -> Iterator[tuple[str, Engine]]:
    """Engines of packages that are installed. What merely lies on the import path, as in the current folder, is not."""
    from importlib.metadata import distributions

    for distribution in distributions(path=_site_folders()):
        for found in distribution.entry_points:
            if found.group == GROUP:
                engine = found.load()
                if not isinstance(engine, Engine):
                    raise TypeError(f"{found.value}: the engine {found.name} is a {type(engine).__name__}, no Engine")
                yield found.name, engine


def _site_folders() -> list[str]:
    paths = sysconfig.get_paths()
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in dict.fromkeys((paths["purelib"], paths["platlib"], *user)) if os.path.isdir(path)]  # noqa: PTH112


ENGINES: Mapping[str, Engine] = _Engines()
"""All engines by the kind of their sources."""


def module_of(kind: str) -> str:
    """The full name of the module that runs sources of a kind."""
    module = ENGINES[kind].module
    return f"{__name__}.{module}" if kind in BUILT_IN else module


def spellings() -> str:
    """How sources are written, for help texts and errors: ``hf:PATH_OR_ID, …, onnx:FILE or py:FILE.py:FUNCTION``."""
    return _listed([engine.spelling for engine in ENGINES.values()])


def prefixes() -> str:
    """The same in short: ``hf:, max:, onnx: or py:``."""
    return _listed([kind + ":" for kind in ENGINES])


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
