"""How a source is to be run: all settings that affect the numbers, or which of them are written.

Settings are sent to the child as JSON and stored in the dump they made, so that it can be made again. If an engine
cannot honour a setting, the table of engines refuses it; none is ignored silently.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensordiff.errors import AlignError, CaptureError, printable
from tensordiff.util.regex import check_regex
from tensordiff.util.small_files import read_small

PROMPT = "The meaning of life is not a single enumerator"
"""The default prompt of models that read text, the same for every engine."""


@dataclass(frozen=True)
class Injection:
    """What is injected into the candidate while it runs."""

    dump: str
    """The reference whose recorded inputs are injected."""
    at: str = "all"
    """``all``, ``once``, ``leaves``, a layer's name, ``FROM..TO``, or a regular expression for layers."""
    rules: str | None = None
    """A rules file (TOML), as ``compare`` takes it."""
    rules_text: str | None = None
    """The text of rules that are not in a file, or not yet; overrides ``rules``."""


@dataclass(frozen=True)
class Settings:
    """The options of a run. None leaves the choice to the source."""

    prompt: str | None = None
    prompt_file: str | None = None
    input_ids: tuple[int, ...] | None = None
    decode_ids: tuple[int, ...] | None = None
    """The tokens of the steps after the first, one each; by default the most likely ones."""
    inputs: str | None = None
    """A ``.safetensors`` file of the model's keyword arguments."""
    image: str | None = None
    dtype: str | None = None
    weights_dtype: str | None = None
    """The type that weights are rounded to; the model still computes in ``dtype``."""
    quantized_as: str | None = None
    """A quantized candidate (a checkpoint, a GGUF file, a dump with weights) whose weights the model gets."""
    device: str = "auto"
    attn_implementation: str | None = None
    num_hidden_layers: int | None = None
    """The number of first layers to keep; None keeps all."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the model's config by dotted key."""
    steps: int = 1
    seed: int = 0
    trust_remote_code: bool = False
    revision: str | None = None
    layers: str | None = None
    """A regular expression that the names of the layers to be written must match."""
    leaves: bool = False
    no_inputs: bool = False
    max_bytes: int | None = None
    """How much may be written. The first tensor that exceeds it and all after it are left out, with a note."""
    deterministic: bool = False
    ops: str | None = None
    """A layer whose operations are written instead of the layers."""
    prefer_module_v3: bool = False
    """For ``max:``, the model as written in ``max.experimental.nn``, if MAX has it in both module systems."""
    weights: bool = False
    """Also write the parameters after loading; not in a run with injection or of operations, whose plain
    run has them.
    """
    gradients: bool = False
    """Run backward too, and write the gradients of inputs, outputs and parameters."""
    optimized: bool = False
    """For ``onnx:``, the graph as onnxruntime optimizes it, and the values that remain in it."""
    inject: Injection | None = None
    python: str | None = None
    """The interpreter to run in; None is this one."""
    force: bool = False
    """Write even if the disk seems too small, and over an earlier dump."""

    def __post_init__(self) -> None:
        if self.layers is not None:
            check_layer_regex("--layers", self.layers)
        for key, value in self.config.items():
            _check_value(key, value)
        for option, count in (("--steps", self.steps), ("--num-hidden-layers", self.num_hidden_layers)):
            if count is not None and count < 1:
                raise CaptureError(f"{option} {count!s:.40}: is less than one; leave it out")
        self._check_gradients()
        if self.max_bytes is not None and self.max_bytes < 0:
            raise CaptureError(f"--max-bytes {self.max_bytes}: is less than nothing; give a size such as 500MB")

    def _check_gradients(self) -> None:
        """Refuse options that do not go with gradients, which are those of one whole forward."""
        others = (("--ops", self.ops), ("--inject", self.inject), ("--steps", self.steps if self.steps > 1 else None))
        for option, given in others if self.gradients else ():
            if given is not None:
                raise CaptureError(
                    f"--gradients and {option}: gradients are those of one plain run; leave one of them out"
                )

    def files(self) -> dict[str, str]:
        """The files and folders that a run reads because its settings name them, by setting."""
        named = {name: getattr(self, name) for name in ("prompt_file", "inputs", "image", "quantized_as")}
        if self.inject is not None:
            named |= {"inject": self.inject.dump, "rules": self.inject.rules}
        return {name: path for name, path in named.items() if path is not None}

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON, without the defaults."""
        plain = dataclasses.asdict(self)
        usual = dataclasses.asdict(Settings())
        return {key: _plain(value) for key, value in plain.items() if value != usual[key]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Settings:
        """Parse what ``to_json`` made; raises ``CaptureError`` if it is something else."""
        import msgspec  # --help does without it

        inject = found.get("inject")
        _refuse_unknown(cls, found)
        _refuse_unknown(Injection, inject if isinstance(inject, Mapping) else {})
        try:
            settings = msgspec.convert(dict(found), cls)
            json.dumps(settings.config, allow_nan=False)
        except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
            raise CaptureError(f"the settings cannot be used ({printable(f'{error!s:.200}')})") from error
        return settings


def _refuse_unknown(cls: type, found: Mapping[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(cls)}
    if strange := sorted(map(str, set(found) - known)):
        raise CaptureError(f"unknown settings: {printable(', '.join(strange)):.200}; try a newer tensordiff")


def _check_value(key: str, value: Any) -> None:
    """Refuse a ``--config`` value that no config can hold: configs are JSON, which has neither inf nor nan."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CaptureError(
            f"--config {printable(key)}: {printable(f'{value!r:.60}')} is no value of a config; "
            "give a finite number, true, false, a text or a list of these"
        ) from error


def config_hint(config: Mapping[str, Any]) -> str:
    """The end of a sentence: what to try if a model does not load with overridden config values."""
    given = " ".join(f"--config {printable(key)}={printable(f'{value!s:.60}')}" for key, value in config.items())
    return f"the weights may not fit {given}: leave it out, or give another value"


def check_layer_regex(what: str, regex: str) -> None:
    """Refuse an invalid regular expression for layers before anything is loaded; ``what`` names the option."""
    try:
        check_regex(what, regex)
    except AlignError as error:
        raise CaptureError(str(error)) from error


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def prompt_text(settings: Settings) -> str | None:
    """The prompt, from the option or from the file; None if none was given."""
    if settings.prompt is not None and settings.prompt_file is not None:
        raise CaptureError("--prompt and --prompt-file: give one of them")
    if settings.prompt_file is None:
        return settings.prompt
    try:
        return read_small(Path(settings.prompt_file)).decode("utf-8")
    except (OSError, ValueError) as error:
        raise CaptureError(f"--prompt-file {printable(settings.prompt_file)}: cannot be read ({error})") from error
