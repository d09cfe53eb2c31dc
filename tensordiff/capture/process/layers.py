"""Layers by name, for any engine: how an entry is named, which layer a user means, which are written.

Layers have dotted names that begin with ``model``, the whole model. An operation within a layer is named
``layer/op_03_matmul``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from tensordiff.capture.settings import Settings
from tensordiff.dump.model import CallKey, EntryKey
from tensordiff.errors import CaptureError, printable
from tensordiff.util.regex import UserRegex

ROOT = "model"
"""The name of the whole model."""
_PREFIX = re.compile(rf"^(?:{ROOT}\.)+")


def entry_name(layer: str, call: int, port: str) -> str:
    """The name of a tensor in a dump: ``layer-output``, and ``layer(2)-output`` for a second call."""
    return f"{layer}({call})-{port}" if call > 1 else f"{layer}-{port}"


def entry_key(call: CallKey, port: str) -> EntryKey:
    """The key of one of a call's tensors."""
    return EntryKey(entry_name(call.layer, call.call, port), call.step, call.call)


def call_label(call: CallKey) -> str:
    """A call as text: the layer, with call and step unless they are the first."""
    name = f"{call.layer}({call.call})" if call.call > 1 else call.layer
    return f"{name} step {call.step}" if call.step else name


def holders(layer: str) -> list[str]:
    """The names of the layers that may contain a layer, outermost first."""
    parts = layer.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def leaves(layers: Iterable[str]) -> set[str]:
    """The layers that contain no other."""
    names = set(layers)
    return names - {holder for layer in names for holder in holders(layer)}


def find_layer(name: str, layers: Iterable[str], canonical: Callable[[str], str] | None = None) -> str:
    """The layer that a user means; raises ``CaptureError`` if there is none, or more than one.

    Tried in this order: the whole name, the name without ``model.``, the canonical name, the end of a name.
    ``canonical`` maps a name to its canonical one, by default with tensordiff's own rules.
    """
    names = list(dict.fromkeys(layers))
    if name in names:
        return name
    candidates = next(filter(None, _candidates(name, names, canonical or _by_own_rules(names))), [])
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CaptureError(
            f"{printable(name)}: there are {len(candidates)} of that name; "
            f"give one whole: {printable(', '.join(candidates[:4]))}"
        )
    near = ", ".join(get_close_matches(name, names, 4, 0.3)) or "none"
    raise CaptureError(f"{printable(name)}: there is no such layer; near it: {printable(near)}")


def _candidates(text: str, names: list[str], canonical: Callable[[str], str]) -> Iterator[list[str]]:
    yield [name for name in names if name.removeprefix(f"{ROOT}.") == text]
    wanted = canonical(text)
    yield [name for name in names if canonical(name) == wanted]
    end = _PREFIX.sub("", text)
    yield [name for name in names if name.endswith(f".{end}")]


def _by_own_rules(names: Iterable[str]) -> Callable[[str], str]:
    from tensordiff.align.presets import rules_for  # importing alignment takes long, and few children need it

    rules = rules_for(names)
    return lambda name: rules.canonical(name, "reference")


@dataclass(frozen=True)
class Selection:
    """Which tensors of a run are written."""

    layers: str | None = None
    """A regular expression that the names of layers must match."""
    leaves: bool = False
    """Only layers that contain no others."""
    inputs: bool = True
    """Inputs of layers, besides their outputs."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Selection:
        """The selection that the settings ask for."""
        return cls(settings.layers, settings.leaves, not settings.no_inputs)

    @classmethod
    def only(cls, layer: str, *, within: str = "", inputs: bool = True) -> Selection:
        """One layer, and layers whose names continue with a match of ``within``."""
        return cls(rf"^{re.escape(layer)}{within}$", inputs=inputs)

    def takes_layer(self, layer: str, *, is_leaf: bool) -> bool:
        """Whether tensors of a layer are written."""
        if self.leaves and not is_leaf:
            return False
        return self.is_named(layer)

    def is_named(self, layer: str) -> bool:
        """Whether the name of a layer matches."""
        return self._regex is None or self._regex.matches(layer)

    @cached_property
    def _regex(self) -> UserRegex | None:
        return None if self.layers is None else UserRegex("--layers", self.layers)

    def takes(self, layer: str, port: str, *, is_leaf: bool) -> bool:
        """Whether a tensor is written."""
        return (self.inputs or not port.startswith("input")) and self.takes_layer(layer, is_leaf=is_leaf)
