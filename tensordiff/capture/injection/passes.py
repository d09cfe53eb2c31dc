"""Where the reference's inputs go: what ``--inject-at`` means for a model that was seen to run.

Layers that lie in each other cannot be isolated in one pass, for what holds a layer would never see that layer's
own error: its next part is given right values again. So those go into passes of their own, by how deep they lie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tensordiff.align.rules.rule import check_regex
from tensordiff.dump import Entry
from tensordiff.errors import CaptureError, printable

_RANGE = re.compile(r"(.*)\.\.(.*)", re.DOTALL)


@dataclass(frozen=True)
class Pass:
    """One run of the model: whose inputs, and whose outputs, are the reference's; whose tensors are written."""

    inputs: frozenset[str]
    outputs: frozenset[str] = frozenset()
    written: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Layers:
    """The layers that ran, in the order they began, and when they ended."""

    begun: Mapping[str, int]
    ended: Mapping[str, int]
    canonical: Mapping[str, str]

    @classmethod
    def of(cls, entries: Sequence[Entry], canonical: Mapping[str, str]) -> Layers:
        """From what was seen, in execution order."""
        begun: dict[str, int] = {}
        ended: dict[str, int] = {}
        for number, entry in enumerate(entries):
            begun.setdefault(entry.layer, number)
            if not entry.is_input:
                ended.setdefault(entry.layer, number)
        return cls(begun, ended, canonical)

    def named(self, text: str) -> str | None:
        """The layer that a person means: as the run calls it, or as both sides would."""
        return text if text in self.begun else self.canonical.get(text)


def passes(at: str, layers: Layers) -> list[Pass]:
    """The passes that ``--inject-at`` asks for."""
    everything = frozenset(layers.begun)
    if at == "once":
        return [Pass(everything, written=everything)]
    if at == "leaves":
        return [Pass(frozenset(_leaves(everything)), written=everything)]
    if at == "all":
        return _by_depth(everything, everything)
    if (layer := layers.named(at)) is not None:
        return [Pass(frozenset([layer]), written=everything)]
    if (found := _range(at, layers)) is not None:
        return [found]
    return _by_depth(_matching(at, everything), everything)


def _leaves(layers: Iterable[str]) -> Iterable[str]:
    found = set(layers)
    parents = {layer.rpartition(".")[0] for layer in found}
    holders = {above for parent in parents for above in _above(f"{parent}.")}
    return found - holders - {layer for layer in found if "/" in layer}


def _above(layer: str) -> list[str]:
    """The names of what may hold a layer, from the outermost."""
    parts = layer.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def _by_depth(chosen: frozenset[str], everything: frozenset[str]) -> list[Pass]:
    """A pass for each level of nesting among the chosen; what is not chosen is written by the first."""
    levels: dict[int, set[str]] = {}
    for layer in chosen:
        levels.setdefault(sum(above in chosen for above in _above(layer)), set()).add(layer)
    ordered = [frozenset(levels[depth]) for depth in sorted(levels)]
    return [Pass(level, written=level | (everything - chosen if k == 0 else set())) for k, level in enumerate(ordered)]


def _range(at: str, layers: Layers) -> Pass | None:
    """``FROM..TO``: all that ended in between gives what the reference's did, and TO gets its inputs."""
    found = _RANGE.fullmatch(at)
    if found is None:
        return None
    ends = [layers.named(text) if text else "" for text in found.groups()]
    if None in ends or ends == ["", ""]:
        return None
    first, last = ends[0] or "", ends[1] or ends[0] or ""
    start = layers.begun[first] if ends[1] and first else 0
    stop = layers.begun[last]
    made_right = {name for name, end in layers.ended.items() if end < stop and layers.begun[name] >= start}
    return Pass(frozenset([last]), frozenset(made_right), frozenset(layers.begun))


def _matching(at: str, everything: frozenset[str]) -> frozenset[str]:
    check_regex("--inject-at", at)
    found = frozenset(layer for layer in everything if re.search(at, layer))
    if not found:
        raise CaptureError(
            f"--inject-at {printable(at)}: no layer matches; "
            "give all, once, leaves, a layer's name, FROM..TO or a regex"
        )
    return found
