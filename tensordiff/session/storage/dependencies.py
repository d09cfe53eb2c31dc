"""Everything that the result of a comparison depends on, as far as it can be observed, and what cannot.

A kept result may be shown again only if nothing changed that it depends on: files, options, tensordiff itself,
packages, the machine and the environment. Each dependency has a label and a state, so that a message can name the one
that changed. A source may depend on more that cannot be observed, such as data that a function reads. Each of these is
a doubt; with a doubt, a result is not believed unless the user says so.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import tensordiff
from tensordiff.capture.engines import ENGINES
from tensordiff.capture.interpreter import NoAnswer, ask, interpreter
from tensordiff.capture.job import Source
from tensordiff.capture.settings import Settings
from tensordiff.errors import printable
from tensordiff.session.request import FILE_OPTIONS, Request
from tensordiff.session.sources import source_in
from tensordiff.session.third_dumps import injected_path
from tensordiff.util.file_state import TooManyFiles, tree_state

_SETTING_FILES = ("prompt_file", "inputs", "image", "quantized_as")
_LISTING = (
    "import importlib.metadata as m; print(*sorted(f'{d.name} {d.version}' for d in m.distributions()), sep='\\n')"
)
"""A script that prints an interpreter's packages."""
_VARIABLES = (
    "ACCELERATE_", "ATEN_", "BLIS_", "CUBLAS", "CUDA", "CUDNN", "DNNL_", "GLIBC_TUNABLES", "GOTO_", "HF_", "HIP_",
    "HSA_", "HUGGINGFACE_", "KMP_", "LD_", "MAX_", "MIOPEN_", "MKL_", "MODULAR_", "NUMBA_", "NUMEXPR_", "NVIDIA_",
    "OMP_", "ONEDNN_", "OPENBLAS_", "ORT_", "PYTHON", "PYTORCH_", "ROCR_", "ROCBLAS_", "TENSORDIFF_", "TOKENIZERS_",
    "TORCH", "TRANSFORMERS_", "TRITON_", "VECLIB_", "XLA_",
)  # fmt: skip
"""Prefixes of environment variables that may change a number."""
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


@dataclass(frozen=True)
class Dependencies:
    """What a result depends on."""

    states: Mapping[str, str]
    """The state of each dependency by its label, which completes the sentence "… changed"."""
    doubts: tuple[str, ...] = ()
    """Dependencies that cannot be observed, as sentences."""

    def changed(self, before: Mapping[str, str]) -> str:
        """The label of the first dependency that changed; empty if none did."""
        labels = {**self.states, **before}
        return next((label for label in labels if self.states.get(label) != before.get(label)), "")


def dependencies_of(request: Request, options: str = "", output: Path | None = None) -> Dependencies:
    """What the result of a request depends on now; ``options`` are any further options.

    Files in the folder ``output`` are results and do not count.
    """
    sides = {"reference": source_in(request.reference), "candidate": source_in(request.candidate)}
    collector = _Collector(request, output, {side: source for side, source in sides.items() if source is not None})
    states = {
        "what was asked for": _digest(repr((request, options))),
        "tensordiff": f"{tensordiff.__version__} {tree_state(Path(tensordiff.__file__).parent)}",
        "the packages": _digest(_own_packages()),
    }
    for label, path in collector.files():
        states[label] = collector.state(label, path)
    if collector.sources:
        states |= collector.surroundings()
    return Dependencies(states, tuple(collector.doubts))


class _Collector:
    """Collects the dependencies of a request, and doubts along the way."""

    def __init__(self, request: Request, output: Path | None, sources: Mapping[str, Source]) -> None:
        self.request, self.output, self.sources = request, output, sources
        self.doubts = [doubt for side in sources for doubt in self._doubts(side)]

    def _settings(self, side: str) -> Settings:
        own = self.request.candidate_settings if side == "candidate" else None
        return own or self.request.settings

    def _doubts(self, side: str) -> Iterator[str]:
        source, settings = self.sources[side], self._settings(side)
        if ENGINES[source.kind].takes_function:
            yield f"the {side} is a function, which may read data that cannot be tracked"
        elif not Path(source.target).expanduser().exists():
            yield f"the {side} is a model on a hub, where it may have changed"
        elif (Path(source.target).expanduser() / "adapter_config.json").exists():
            yield f"the {side} is an adapter of a model that lies elsewhere"
        if settings.trust_remote_code:
            yield f"the {side} runs remote code, which may have changed"

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file and folder that is read, with its label."""
        request = self.request
        for side, path in (("reference", request.reference), ("candidate", request.candidate)):
            yield f"the {side}", self._side(side, path)
        if "candidate" not in self.sources and request.injected is None:
            yield "the injected dump beside the candidate", injected_path(request.candidate)
        for name in FILE_OPTIONS:
            if (named := getattr(request, name)) is not None:
                yield f"--{name}", named
        for side in ("reference", "candidate"):
            yield from self._setting_files(side, self._settings(side))

    def _side(self, side: str, path: Path) -> Path:
        if (source := self.sources.get(side)) is None:
            return path
        target = Path(source.target).expanduser()
        # Files that belong to a graph, such as weights, lie beside it; what a function imports is known after it ran.
        engine = ENGINES[source.kind]
        return target.absolute().parent if engine.takes_file and not engine.takes_function else target

    def _setting_files(self, side: str, settings: Settings) -> Iterator[tuple[str, Path]]:
        for name in _SETTING_FILES:
            if (named := getattr(settings, name)) is not None:
                yield f"--{name.replace('_', '-')} of the {side}", Path(named)
        if settings.inject is not None:
            yield f"what is injected into the {side}", Path(settings.inject.dump)
            yield f"the rules of what is injected into the {side}", Path(settings.inject.rules or os.devnull)

    def state(self, label: str, path: Path) -> str:
        """The state of a path."""
        try:
            return f"{path} {tree_state(path, self.output)}"
        except TooManyFiles as error:
            self.doubts.append(f"{label} {error}")
            return str(path)

    def surroundings(self) -> dict[str, str]:
        """The environment of a source: the machine, environment variables, and the packages of its interpreter."""
        found = {"the folder one stands in": os.getcwd(), "the machine": _digest(_machine())}  # noqa: PTH109
        for python in sorted(set(self._interpreters())):
            found[f"the packages of {printable(python)}"] = self._packages(python)
        for name, value in sorted(os.environ.items()):
            if name.startswith(_VARIABLES) and not any(word in name for word in _SECRET):
                found[f"the environment variable {printable(name)}"] = _digest(value)
        return found

    def _interpreters(self) -> Iterator[str]:
        """The interpreters that the user named, and the environments of engines."""
        for side, source in self.sources.items():
            said = self._settings(side).python
            if said is not None or ENGINES[source.kind].has_environment:
                yield interpreter(source.kind, said)

    def _packages(self, python: str) -> str:
        try:
            listing = ask(python, _LISTING)
        except NoAnswer:
            self.doubts.append(f"{printable(python)} does not say which packages it has")
            return "unknown"
        return _digest(f"{tree_state(Path(python))} {listing!r}")


@cache
def _own_packages() -> str:
    """The packages of this process, which do not change while it runs; reading them is slow."""
    names = sorted(f"{one['Name']} {one['Version']}" for one in (found.metadata for found in distributions()))
    return f"{sys.version} {names}"


def _machine() -> str:
    """The properties of this machine that affect speed and numbers."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = _text("/proc/cpuinfo").splitlines()
    kinds = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    return repr((platform.machine(), cores, kinds, _text("/proc/driver/nvidia/version")))


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
