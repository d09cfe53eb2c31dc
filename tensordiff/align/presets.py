"""Presets: rules and maps that come with tensordiff, one ``presets/*.toml`` for each way to name layers.

A preset is chosen by looking at the names, for each side by itself: one layer that fits one of its
``detect`` expressions is enough. Its rules then hold on that side, its maps both ways round. A side that
fits no preset says nothing of its own and is read as the other one is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import get_args

from tensordiff.align.rules.file import MapRule, parse_rules
from tensordiff.align.rules.rule import Rule, RuleSet, Side
from tensordiff.align.rules.tables import map_rule, rule
from tensordiff.dump.model import Dump

PRESETS = (
    "hf",
    "megatron",  # before max, which takes language_model. away
    "max",
    "vllm",
    "fairseq",
    "llama_original",
    "gpt2",
    "bert",
    "verify_layers",
    "fused",
)
"""In the order their rules are tried: those further on count on what those before them took away."""
_DEFAULTS = ("hf", "max", "bert")
_FOLDER = Path(__file__).parent / "presets"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_BETWEEN = ".\0."  # dots, so that a name's first and last number are still alone between dots


@dataclass(frozen=True)
class Preset:
    """One way to name layers."""

    name: str
    about: str
    detect: tuple[str, ...]
    rules: tuple[Rule, ...]
    maps: tuple[MapRule, ...]
    """Both ways round, in canonical names."""

    @cached_property
    def _detector(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:{expression})" for expression in self.detect))

    def fits(self, outlines: Iterable[str]) -> bool:
        """Whether names are of this kind. Every number in them must have been made 0."""
        return any(map(self._detector.search, outlines))


@cache
def preset(name: str) -> Preset:
    """Load a preset."""
    parsed = parse_rules((_FOLDER / f"{name}.toml").read_text("utf-8"), f"{name}.toml")
    parsed.known("about", "detect", "rule", "map")
    maps = parsed.tables("map", map_rule)
    return Preset(
        name,
        str(parsed.content["about"]),
        parsed.texts("detect") or (),
        tuple(replace(found, source=name) for found in parsed.tables("rule", rule)),
        maps + tuple(MapRule(found.candidate, found.reference, found.every) for found in maps),
    )


@cache
def default_rules() -> tuple[Rule, ...]:
    """The rules for names that nobody has looked at."""
    return tuple(found for name in _DEFAULTS for found in preset(name).rules)


@dataclass(frozen=True)
class PresetChoice:
    """The presets that two dumps ask for."""

    presets: Mapping[Side, tuple[str, ...]]

    @cached_property
    def rules(self) -> RuleSet:
        """Their rules, each for the sides whose names are of its kind."""
        return RuleSet(tuple(found for name in PRESETS for found in self._rules_of(name)))

    @cached_property
    def maps(self) -> tuple[MapRule, ...]:
        """Their maps, to be tried on what no rule and no map of the user pairs."""
        return tuple(dict.fromkeys(found for name in PRESETS if self._sides(name) for found in preset(name).maps))

    def _rules_of(self, name: str) -> Sequence[Rule]:
        sides = self._sides(name)
        if len(sides) == 1:
            return [replace(found, side=sides[0]) for found in preset(name).rules]
        return preset(name).rules if sides else ()

    def _sides(self, name: str) -> list[Side]:
        return [side for side, names in self.presets.items() if name in names]


def choose(reference: Dump, candidate: Dump, names: Sequence[str] | None = None) -> PresetChoice:
    """The presets that the names of two dumps are of; if some are given, those, for both sides."""
    if names is not None:
        return PresetChoice({side: tuple(names) for side in get_args(Side)})
    ours, theirs = fitting(reference), fitting(candidate)
    return PresetChoice({"reference": ours or theirs, "candidate": theirs or ours})


def fitting(dump: Dump) -> tuple[str, ...]:
    """The presets that a dump's names are of."""
    # All names in one go, which takes a third of the time.
    outlines = set(_NUMBER.sub("0", _BETWEEN.join({entry.layer for entry in dump.entries})).split(_BETWEEN))
    return tuple(name for name in PRESETS if preset(name).fits(outlines))
