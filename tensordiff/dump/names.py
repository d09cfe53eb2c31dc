"""Parsing an entry's name: which layer, which port, which call.

MAX's print hooks and ours write ``layer(2)-output_1``; MAX's ``verify_layers`` writes ``layer_output_1``. Other tools
write ``layer.inputs.0``, ``layer.outputs``, ``layer.in_0`` and ``layer/output0``. A name in none of these spellings is
the output of a layer of that name. So is ``layer.output``, since BERT has layers that are called so, and ``layer.out``,
which ``name_conventions`` treats. Nothing here changes a name: rules that do are in ``align``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_CALL = re.compile(r"^(.*)\((\d{1,9})\)$", re.DOTALL)
_UNDERSCORE = re.compile(r"^(.*)_((?:input|output)(?:_\d+)?|input_\w+?)(?:_injected)?$", re.DOTALL)
_PLURAL = re.compile(r"^(.+)[./](in|out)puts(?:\.(\w+))?$", re.DOTALL)
_SHORT = re.compile(r"^(.+)(?:[./](in|out)_|/(in|out)put_?)(\d+)$", re.DOTALL)
_PORT_WITHIN = 128  # characters at the end that may hold a port: searching a long name whole takes quadratic time
_DIGITS = re.compile(r"([0-9]{1,999})")  # Python refuses to convert thousands of digits


LONGEST_NAME = 8_000
"""Most characters of a name; those of real models have a hundred or two."""
MOST_PARTS = 256
"""Most parts between dots; the modules of real models are nested ten or twenty deep."""


def why_refused(name: str) -> str | None:
    """Why a name is refused, to complete a sentence about it; None for any that a model may have."""
    if len(name) > LONGEST_NAME:
        return f"has {len(name):,} characters, and a name at most {LONGEST_NAME:,}"
    if name.count(".") >= MOST_PARTS:
        return f"has {name.count('.') + 1:,} parts between dots, and a name at most {MOST_PARTS:,}"
    return None


class NameParts(NamedTuple):
    """The parts of a name. ``call`` counts from 1."""

    layer: str
    port: str
    call: int


def parse_name(name: str) -> NameParts:
    """Parse an entry's name: ``a.b(2)-output_1`` is layer ``a.b``, port ``output_1``, call 2."""
    return NameParts(*split_name(name))


def split_name(name: str) -> tuple[str, str, int]:
    """The parts as a plain tuple, for callers with very many names."""
    layer, _, port = name.rpartition("-")
    if not (layer and (port == "output" or _is_port(port))):
        layer, port = _split_underscore(name)
    if layer.endswith(")") and (match := _CALL.match(layer)) and match[1]:
        return match[1], port, int(match[2])
    return layer, port, 1


PARAMETER_PORT = "parameter"
"""The port of a model's parameter."""


BACKWARD = "backward."
"""The prefix of a gradient's layer: the backward pass of a module is a layer of its own, beside its forward."""
_ROOT = "model"  # the first part of all names in our captures; a module called "backward" would lack it
_BACKWARD_ROOT = BACKWARD + _ROOT


def is_backward(layer: str) -> bool:
    """Whether a layer is the backward pass of a module."""
    # Called many times for every row, nearly always with the answer no, which the first comparison gives.
    return layer.startswith(_BACKWARD_ROOT) and (layer == _BACKWARD_ROOT or layer.startswith(f"{_BACKWARD_ROOT}."))


def split_backward(layer: str) -> tuple[str, str]:
    """Split the layer of a gradient into ``backward.`` and the module's name; for others the first part is empty."""
    return (BACKWARD, layer[len(BACKWARD) :]) if is_backward(layer) else ("", layer)


def parameter_name(name: str) -> str:
    """The name under which our dumps keep a parameter."""
    return f"{name}-{PARAMETER_PORT}"


def _is_port(text: str) -> bool:
    return text in ("output", "input", PARAMETER_PORT) or text.startswith(("output_", "input_"))


def _split_underscore(name: str) -> tuple[str, str]:
    end = name[-_PORT_WITHIN:]
    if (end.endswith(("_output", "_injected")) or "_input" in end or "_output_" in end) and (
        match := _UNDERSCORE.match(end)
    ):
        layer, port = name[:-_PORT_WITHIN] + match[1], match[2]
        return (layer, port) if layer else (name, "output")
    return _split_dotted(name, end)


def _split_dotted(name: str, end: str) -> tuple[str, str]:
    """Split names as other tools write them: ``a.b.inputs.0``, ``a.b.outputs``, ``a.b.in_0``, ``a/b/output0``."""
    before = name[:-_PORT_WITHIN]
    if "puts" in end and (match := _PLURAL.match(end)):
        return before + match[1], f"{match[2]}put" + (f"_{match[3]}" if match[3] else "")
    if end[-1:].isdigit() and (match := _SHORT.match(end)):
        return before + match[1], f"{match[2] or match[3]}put_{match[4]}"
    return name, "output"


_STEP = re.compile(r"(?:(?:step|iter|iteration|token|pass|forward|decode)[_-]?)?(\d{1,9})", re.IGNORECASE)


def step_of(name: str) -> int | None:
    """The number of a step from the name of its folder, file or key: ``3``, ``step_3``, ``iter-0003``."""
    match = _STEP.fullmatch(name) if len(name) < 32 else None
    return int(match[1]) if match else None


def natural_key(name: str) -> tuple[int | str, ...]:
    """A sort key under which ``layer10`` follows ``layer9``."""
    parts: list[Any] = _DIGITS.split(name)  # text and digits in turn, beginning with text, possibly empty
    parts[1::2] = map(int, parts[1::2])
    return tuple(parts)


NUMBER_PART = re.compile(r"\d(?<![^.]\d)\d{0,8}(?![^.])")  # begins with a digit, for which ``re`` searches quickly
"""A number between the dots of a name, such as that of a layer or an expert."""

WRAPPERS = frozenset(("activations", "intermediates", "state_dict", "model_state_dict", "hidden", "outputs", "app"))
"""Keys that contain a whole model and are not part of its names."""


def shared_wrapper(layers: Iterable[str]) -> str:
    """The wrapper key that all layers lie under, with its dot; empty if there is none."""
    heads = {layer.partition(".")[0] if "." in layer else "" for layer in layers}
    head = heads.pop() if len(heads) == 1 else ""
    return f"{head}." if head in WRAPPERS else ""
