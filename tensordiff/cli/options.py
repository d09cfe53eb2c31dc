"""Options that several commands share, and the ``Request`` and capture ``Settings`` made from them.

Nothing that compares is imported before a command runs: ``--help`` must be quick.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensordiff.util.remote import user_path
from tensordiff.util.sizes import parse_bytes

if TYPE_CHECKING:
    from tensordiff.capture.settings import Settings
    from tensordiff.session.request import Request

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
T = TypeVar("T", bound=tuple[Any, ...])


class UserPath(click.Path):
    """A path, or the URL of a dump."""

    def coerce_path_result(self, value: str | os.PathLike[str]) -> Any:
        """A ``Path``; for a URL, one that hides its secrets."""
        return user_path(value)


PATH = UserPath()
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
junit_option = click.option(
    "--junit", type=PATH, metavar="FILE", help="Write JUnit XML for a CI, one test case per pair."
)

keep_option = click.option(
    "--keep", type=PATH, metavar="DIR", help="Keep captured dumps in this folder; else they are deleted at the end."
)


class Bytes(click.ParamType[int]):
    """A number of bytes: 500000000, 500MB, 2GB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the size."""
        size = parse_bytes(str(value))
        return size if size is not None else self.fail(f"{value!r} is not a size such as 500MB or 2GB", param, ctx)


_STREAM = (
    click.option("--stream", is_flag=True, help="Compare while the sources run: no dump of them is written."),
    click.option("--stop", is_flag=True, help="With --stream: end both runs at the first culprit."),
    click.option("--window", type=Bytes(), metavar="SIZE",
                 help="With --stream: how much of both sides may wait to be compared (default 2GB)."),
)  # fmt: skip


def stream_options(function: Command) -> Command:
    """The options of comparing while sources run."""
    return _with(function, _STREAM)


def take(options: dict[str, Any], record: type[T]) -> T:
    """Move the fields of a named tuple out of a command's options."""
    return record(**{name: options.pop(name) for name in record._fields})  # type: ignore[attr-defined]


def make_request(reference: Path, candidate: Path, **options: Any) -> Request:
    """The request made of a command's arguments and comparison options."""
    from tensordiff.compare.limits import Limits
    from tensordiff.compare.measure.dtype_plan import Tolerance
    from tensordiff.session.request import Request

    atol, rtol, threshold = options.pop("atol"), options.pop("rtol"), options.pop("threshold")
    given = {name: options.pop(name) for name in SETTINGS if name in options}
    limits, settings = Limits(Tolerance.of(atol, rtol), threshold), capture_settings(**given)
    if (device := options.pop("candidate_device", None)) is not None:
        options["candidate_settings"] = replace(settings, device=device)
    return Request(reference, candidate, limits=limits, settings=settings, **options)


def capture_settings(**options: Any) -> Settings:
    """The settings made of the options of a source."""
    from tensordiff.capture.settings import Settings

    paths = ("prompt_file", "inputs", "image", "quantized_as")
    plain: dict[str, Any] = {key: _absolute(value) if key in paths else value for key, value in options.items()}
    plain["config"] = dict(options.get("config") or ())
    return Settings(**plain)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _with(function: Command, options: tuple[Decorator, ...]) -> Command:
    for option in reversed(options):
        function = option(function)
    return function


# --- what to compare, and how -----------------------------------------------------------------------


class Amount(click.types.FloatParamType):
    """A tolerance; an invalid one is refused before anything is opened."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the number."""
        from tensordiff.align.rules.tables import check_limit
        from tensordiff.errors import AlignError

        amount = super().convert(value, param, ctx)
        try:
            check_limit(param.name or "it" if param else "it", amount)
        except AlignError as error:
            self.fail(str(error), param, ctx)
        return amount


_AMOUNT = Amount()
_SIDES = (click.argument("reference", type=PATH), click.argument("candidate", type=PATH))


def _hear_cluster(_context: click.Context, _parameter: click.Parameter, address: str | None) -> str | None:
    """Refuse an invalid address, and print on stderr what a cluster logs while it is waited for."""
    if address is not None:
        from tensordiff.cli.streams import say_log_of
        from tensordiff.compare.cluster.dask_engine import check_address

        check_address(address)
        say_log_of("tensordiff.compare.cluster")
    return address


_COMPARISON = (
    click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make names alike."),
    click.option("--session", type=PATH, metavar="FILE", help="A session file of the app: its rules, its search."),
    click.option("--tolerances", type=PATH, metavar="FILE", help="Tolerances (TOML) by layer; made by tolerances -o."),
    click.option("--golden", type=PATH, metavar="DUMP", help="A run in higher precision: gives each side's own error."),
    click.option("--injected", type=PATH, metavar="DUMP", help="The candidate run with the reference's inputs."),
    click.option("--atol", type=_AMOUNT, metavar="X", help="Absolute tolerance. If only one is given, the other is 0."),
    click.option("--rtol", type=_AMOUNT, metavar="X", help="Tolerance relative to |reference|."),
    click.option("--threshold", type=_AMOUNT, metavar="X", help="Largest rel_l2 that still agrees."),
    click.option("--step", type=click.IntRange(min=0), metavar="N", help="Only this step of the run."),
    click.option("--only", metavar="REGEX", help="Only layers whose name matches."),
    click.option("--min-coverage", type=click.FloatRange(0, 100), default=50.0, metavar="PCT",
                 help="Least share of outputs that must be compared (default 50)."),
    click.option("--learn/--no-learn", default=True,
                 help="Learn from the values how names differ (default: on)."),
    click.option("--cluster", metavar="ADDRESS", callback=_hear_cluster,
                 help="Let a Dask cluster's workers measure: tcp://HOST:8786, or local:4 here."),
    click.option("--allow-partial", is_flag=True, help="Let an interrupted capture agree."),
)  # fmt: skip


def two_sides(function: Command) -> Command:
    """The arguments REFERENCE and CANDIDATE."""
    return _with(function, _SIDES)


def comparison_options(function: Command) -> Command:
    """The options of comparing two sides."""
    return _with(function, _COMPARISON)


# --- how a source is run ----------------------------------------------------------------------------


class Ids(click.ParamType[tuple[int, ...]]):
    """Token ids, separated by commas."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse the ids."""
        try:
            return tuple(int(part) for part in str(value).replace(" ", "").split(","))
        except ValueError:
            return self.fail(f"{value!r} is not a list of numbers such as 1,2,3", param, ctx)


class Layers(click.ParamType[int | None]):
    """A number of layers; ``all`` is None."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Parse the number."""
        if str(value) == "all":
            return None
        if not str(value).isdigit() or int(value) < 1:
            self.fail(f"{value!r} is neither a number of layers nor all", param, ctx)
        return int(value)


class Override(click.ParamType[tuple[str, Any]]):
    """KEY=VALUE; the value is parsed as JSON if possible, else it is text."""

    name = "override"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Parse key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not (key and equals):
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        try:
            return key, json.loads(text)
        except ValueError:
            return key, text


def _option(name: str, **attributes: Any) -> tuple[str, dict[str, Any]]:
    return name, attributes


_INPUT = (
    _option("--prompt", metavar="TEXT", help="The prompt."),
    _option("--prompt-file", type=PATH, metavar="FILE", help="The same, from a file."),
    _option("--input-ids", type=Ids(), metavar="1,2,3", help="Token ids instead of a prompt."),
    _option("--inputs", type=PATH, metavar="FILE", help="Keyword arguments of the model (.safetensors)."),
    _option("--image", type=PATH, metavar="FILE", help="An image, for a multimodal model."),
    _option("--steps", type=click.IntRange(min=1), default=1, metavar="N", help="Run N steps: prefill + N-1 decode."),
    _option("--decode-ids", type=Ids(), metavar="1,2,3", help="Decode these tokens, not the most likely ones."),
)
_RUN = (
    _option("--dtype", metavar="TYPE", help="float32, bfloat16 …; the checkpoint's own unless given."),
    _option("--weights-dtype", metavar="TYPE", help="Round the weights to this type; compute in --dtype still."),
    _option("--quantized-as", type=PATH, metavar="CAND",
            help="For hf: run with the weights of a quantized candidate, as far as its quantization explains them."),
    _option("--device", default="auto", metavar="DEVICE",
            help="auto, cpu, gpu, gpu:1, gpu:0,1, cuda:1, mps or device_map=auto; py: functions place their model."),
    _option("--attn-implementation", metavar="NAME", help="eager, sdpa …"),
    _option("--num-hidden-layers", type=Layers(), metavar="N|all", help="Keep the first N layers."),
    _option("--config", type=Override(), multiple=True, metavar="KEY=VALUE", help="Override the config; a.b=1."),
    _option("--seed", type=int, default=0, metavar="N", help="Seed of all random numbers (default 0)."),
    _option("--deterministic", is_flag=True, help="Deterministic kernels, no TF32."),
    _option("--trust-remote-code", is_flag=True, help="Run code that comes with the model (default: never)."),
    _option("--revision", metavar="REV", help="A branch, tag or commit on the hub."),
    _option("--prefer-module-v3", is_flag=True, help="For max: the model in MAX's new module system."),
    _option("--weights", is_flag=True,
            help="Also write the parameters, as the engine holds them after loading; comparisons begin with them."),
    _option("--gradients", is_flag=True,
            help="For hf: and py: run backward too, and write the gradients of inputs, outputs and parameters."),
    _option("--optimized", is_flag=True, help="For onnx: the graph as onnxruntime optimizes it."),
    _option("--python", metavar="PATH", help="Run in another interpreter or environment, with its own torch or MAX."),
)  # fmt: skip
SETTINGS = tuple(name.removeprefix("--").replace("-", "_") for name, _ in _INPUT + _RUN)
"""The fields of ``Settings`` that these options set."""


def input_options(function: Command) -> Command:
    """The options of a model's input."""
    return _with(function, tuple(click.option(name, **attributes) for name, attributes in _INPUT))


def run_options(function: Command) -> Command:
    """The options of running a model."""
    return _with(function, tuple(click.option(name, **attributes) for name, attributes in _RUN))


def source_options(function: Command) -> Command:
    """Input and run options for commands that take sources as well as dumps; only ``capture --help`` shows the run
    options.
    """
    hidden = tuple(click.option(name, **attributes, hidden=name != "--weights") for name, attributes in _RUN)
    own = click.option("--candidate-device", metavar="DEVICE", help="Where the candidate runs, if not on --device.")
    return input_options(_with(function, (*hidden, own)))
