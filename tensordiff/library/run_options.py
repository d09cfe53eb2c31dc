"""The options of a source as keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast

from tensordiff.capture.settings import Settings
from tensordiff.util.nearest_name import nearest_name

PathLike = str | os.PathLike[str]
_FILES = ("prompt_file", "inputs", "image", "quantized_as", "python")


class RunOptions(TypedDict, total=False):
    """How to run a source; ``tensordiff capture --help`` explains each option."""

    prompt: str | None
    prompt_file: PathLike | None
    input_ids: Sequence[int] | None
    decode_ids: Sequence[int] | None
    inputs: PathLike | None
    image: PathLike | None
    dtype: str | None
    weights_dtype: str | None
    quantized_as: PathLike | None
    device: str
    attn_implementation: str | None
    num_hidden_layers: int | None
    config: Mapping[str, Any]
    steps: int
    seed: int
    trust_remote_code: bool
    revision: str | None
    deterministic: bool
    ops: str | None
    prefer_module_v3: bool
    weights: bool
    gradients: bool
    optimized: bool
    python: PathLike | None


def run_settings(function: str, options: RunOptions, *, others: Iterable[str] = (), **more: Any) -> Settings:
    """Convert options to ``Settings``; raises ``TypeError`` for an option that ``function`` does not take.

    ``others`` are the function's own options; they are only used to suggest a correct spelling.
    """
    given = {**cast("dict[str, Any]", options), **more}
    for name in options:
        if name not in RunOptions.__annotations__:
            near = nearest_name(name, (*RunOptions.__annotations__, *others))
            ask = f"; did you mean {near!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{ask}")
    for name in _FILES:
        if given.get(name) is not None:
            given[name] = os.path.abspath(os.path.expanduser(os.fspath(given[name])))  # noqa: PTH100, PTH111 - no link is resolved: a virtual environment is its link
    for name in ("input_ids", "decode_ids"):
        if given.get(name) is not None:
            given[name] = tuple(map(int, given[name]))
    return Settings.from_json(given)
