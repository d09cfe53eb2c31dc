"""Options that say how a source is run, and the settings they come to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from tensordiff.cli.options import DUMP

Command = Callable[..., Any]


class Ids(click.ParamType[tuple[int, ...]]):
    """Token ids with commas between them."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """What was typed, as numbers."""
        try:
            return tuple(int(part) for part in str(value).replace(" ", "").split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a list of numbers such as 1,2,3", param, ctx)


class Layers(click.ParamType[int | None]):
    """How many layers; ``all`` is None."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """What was typed, as a number."""
        if str(value) == "all":
            return None
        if not str(value).isdigit() or int(value) < 1:
            self.fail(f"{value!r} is neither a number of layers nor all", param, ctx)
        return int(value)


class Override(click.ParamType[tuple[str, Any]]):
    """KEY=VALUE, the value being JSON where it is, and text where not."""

    name = "override"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """What was typed, as key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not (key and equals):
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        try:
            return key, json.loads(text)
        except ValueError:
            return key, text


class Bytes(click.ParamType[int]):
    """A number of bytes: 500000000, 500MB, 2GB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """What was typed, in bytes."""
        text = str(value).strip().lower().removesuffix("b")
        units = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
        unit = units.get(text[-1:], 1)
        try:
            size = int(float(text.rstrip("kmgt")) * unit)
        except (ValueError, OverflowError):
            size = -1
        return size if size >= 0 else self.fail(f"{value!r} is not a size such as 500MB or 2GB", param, ctx)


_ASKING = (
    click.option("--prompt", metavar="TEXT", help="What the model is asked."),
    click.option("--prompt-file", type=DUMP, metavar="FILE", help="The same, from a file."),
    click.option("--input-ids", type=Ids(), metavar="1,2,3", help="Token ids instead of a prompt."),
    click.option("--inputs", type=DUMP, metavar="FILE", help="Keyword arguments of the model (.safetensors)."),
    click.option("--image", type=DUMP, metavar="FILE", help="A picture, for a model that sees."),
    click.option(
        "--steps", type=click.IntRange(min=1), default=1, metavar="N", help="Prompt, then N-1 decoded tokens."
    ),
)


def _how(name: str, **about: Any) -> tuple[str, dict[str, Any]]:
    return name, about


_HOW = (
    _how("--dtype", metavar="TYPE", help="float32, bfloat16 …; the checkpoint's own unless given."),
    _how("--weights-dtype", metavar="TYPE", help="Round the weights through this type; --dtype stays as it is."),
    _how("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda:1, mps, device_map=auto; max: gpu:0,1."),
    _how("--attn-implementation", metavar="NAME", help="eager, sdpa …"),
    _how("--num-hidden-layers", type=Layers(), metavar="N|all", help="Keep the first N layers."),
    _how("--config", type=Override(), multiple=True, metavar="KEY=VALUE", help="Override the config; a.b=1."),
    _how("--seed", type=int, default=0, metavar="N", help="Of all random numbers (default 0)."),
    _how("--deterministic", is_flag=True, help="Deterministic kernels, no TF32."),
    _how("--trust-remote-code", is_flag=True, help="Run code that comes with the model (default: never)."),
    _how("--revision", metavar="REV", help="A branch, tag or commit on the hub."),
    _how("--prefer-module-v3", is_flag=True, help="Of max: the model as its new module system has it."),
    _how("--optimized", is_flag=True, help="Of onnx: the graph as onnxruntime optimizes it."),
    _how("--python", metavar="PATH", help="Run in another interpreter, with its own torch or MAX."),
)  # fmt: skip

_RUNNING = tuple(click.option(name, **about) for name, about in _HOW)
_HIDDEN = tuple(click.option(name, **{**about, "hidden": True}) for name, about in _HOW)
SETTINGS = (
    "prompt", "prompt_file", "input_ids", "inputs", "image", "steps", "dtype", "weights_dtype", "device",
    "attn_implementation", "num_hidden_layers", "config", "seed", "deterministic", "trust_remote_code", "revision",
    "prefer_module_v3", "optimized", "python",
)  # fmt: skip


def asking_options(function: Command) -> Command:
    """What the model is asked."""
    return _with(function, _ASKING)


def running_options(function: Command) -> Command:
    """How the model is run."""
    return _with(function, _RUNNING)


def _with(function: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        function = option(function)
    return function


def source_options(function: Command) -> Command:
    """For commands that take sources in place of dumps; what ``capture --help`` explains is not explained again."""
    return _with(function, _ASKING + _HIDDEN)


def asked_settings(options: dict[str, Any]) -> Any:
    """Take what ``source_options`` gave out of a command's options."""
    return settings(**{name: options.pop(name) for name in SETTINGS if name in options})


def settings(**options: Any) -> Any:
    """What the options say, as the child takes it."""
    from tensordiff.capture.settings import Settings

    paths = ("prompt_file", "inputs", "image")
    plain: dict[str, Any] = {key: _absolute(value) if key in paths else value for key, value in options.items()}
    plain["config"] = dict(options.get("config") or ())
    return Settings(**plain)


def _absolute(path: Any) -> str | None:
    return None if path is None else str(path.expanduser().absolute())
