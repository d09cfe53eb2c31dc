"""The passes of an injected run: which layers get the reference's values when, as ``--inject-at`` says.

Nested layers cannot be isolated in one pass: the parts of the outer layer would be given right values again, and its
own error would not show. So layers go into separate passes by their depth of nesting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensordiff.capture.process.layers import holders, leaves
from tensordiff.dump import Entry
from tensordiff.errors import CaptureError, printable
from tensordiff.util.regex import UserRegex

_RANGE = re.compile(r"(.*)\.\.(.*)", re.DOTALL)


@dataclass(frozen=True)
class Pass:
    """One run of the model."""

    inputs: frozenset[str]
    """The layers whose inputs are replaced by the reference's."""
    outputs: frozenset[str] = frozenset()
    """The layers whose outputs are replaced by the reference's."""
    written: frozenset[str] = frozenset()
    """The layers whose tensors are written from this pass."""
    title: str = "injecting"
    """What the user is shown while it runs."""


@dataclass(frozen=True)
class Layers:
    """The layers that ran, with increasing numbers for when each began and ended."""

    begun: Mapping[str, int]
    ended: Mapping[str, int]
    canonical: Mapping[str, str]
    """Layers by their canonical name, which both sides share."""

    @classmethod
    def from_entries(cls, entries: Sequence[Entry], canonical: Mapping[str, str]) -> Layers:
        """Collect the layers from the entries of a run, in execution order."""
        begun: dict[str, int] = {}
        ended: dict[str, int] = {}
        for number, entry in enumerate(entries):
            begun.setdefault(entry.layer, number)
            if not entry.is_input:
                ended.setdefault(entry.layer, number)
        return cls(begun, ended, canonical)

    def named(self, name: str) -> str | None:
        """The layer of this name (its own or the canonical one), or the only layer whose name ends with it."""
        if name in self.begun or name in self.canonical:
            return name if name in self.begun else self.canonical[name]
        ending = [layer for layer in self.begun if layer.endswith(f".{name}")]
        return ending[0] if len(ending) == 1 else None


def plan_passes(at: str, layers: Layers, *, replaces_outputs: bool = True) -> tuple[Pass, ...]:
    """The passes that ``--inject-at`` asks for.

    For an engine that cannot replace outputs, a range injects the inputs of every layer that begins in it.
    """
    passes = _passes(at, layers)
    if not replaces_outputs:
        passes = [_by_inputs(one, layers) if one.outputs else one for one in passes]
    count = len(passes)
    return tuple(replace(one, title=f"injecting, pass {number} of {count}") for number, one in enumerate(passes, 1))


def _passes(at: str, layers: Layers) -> list[Pass]:
    everything = frozenset(layers.begun)
    if at == "once":
        return [Pass(everything, written=everything)]
    if at == "leaves":
        # Operations within layers and tapped values have no inputs that could be replaced.
        return [Pass(frozenset(layer for layer in leaves(everything) if "/" not in layer), written=everything)]
    if at == "all":
        return _by_depth(everything, everything)
    if (layer := layers.named(at)) is not None:
        return [Pass(frozenset([layer]), written=everything)]
    if (between := _range(at, layers)) is not None:
        return [between]
    return _by_depth(_matching(at, layers), everything)


def _by_depth(chosen: frozenset[str], everything: frozenset[str]) -> list[Pass]:
    """A pass for each level of nesting among the chosen layers; all others are written by the first pass."""
    levels: dict[int, set[str]] = {}
    for layer in chosen:
        levels.setdefault(sum(holder in chosen for holder in holders(layer)), set()).add(layer)
    ordered = [frozenset(levels[depth]) for depth in sorted(levels)]
    return [Pass(level, written=level | (everything - chosen if k == 0 else set())) for k, level in enumerate(ordered)]


def _range(at: str, layers: Layers) -> Pass | None:
    """The pass for ``FROM..TO``: layers that ended in between return the reference's outputs, and TO gets
    its inputs.
    """
    match = _RANGE.fullmatch(at)
    if match is None:
        return None
    ends = [layers.named(text) if text else "" for text in match.groups()]
    if None in ends or ends == ["", ""]:
        return None
    first, last = ends[0] or "", ends[1] or ends[0] or ""
    start = layers.begun[first] if ends[1] and first else 0
    stop = layers.begun[last]
    replaced = {name for name, end in layers.ended.items() if end < stop and layers.begun[name] >= start}
    return Pass(frozenset([last]), frozenset(replaced), frozenset(layers.begun))


def _by_inputs(injection_pass: Pass, layers: Layers) -> Pass:
    """The closest to a range that can be done by replacing inputs only."""
    begun = [layers.begun[layer] for layer in injection_pass.inputs | injection_pass.outputs]
    within = frozenset(layer for layer, number in layers.begun.items() if min(begun) <= number <= max(begun))
    return Pass(within, written=injection_pass.written)


def _matching(at: str, layers: Layers) -> frozenset[str]:
    """The layers whose own or canonical name a regex matches."""
    regex = UserRegex("--inject-at", at)
    own = filter(regex.matches, layers.begun)
    matching = frozenset([*own, *(layer for name, layer in layers.canonical.items() if regex.matches(name))])
    if not matching:
        raise CaptureError(
            f"--inject-at {printable(at)}: no layer matches; "
            "give all, once, leaves, a layer's name, FROM..TO or a regex"
        )
    return matching
