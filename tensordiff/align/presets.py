"""Presets: rules and maps that come with tensordiff, one ``presets/*.toml`` for each naming scheme of layers.

Presets are chosen by the names in a dump, for each side separately: one layer that matches one of its ``detect``
expressions is enough. Its rules then apply to that side, its maps in both directions. A side that matches no preset
gets those of the other side.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import get_args

from tensordiff.align.rules.file import MapRule, RulesDocument, parse_rules
from tensordiff.align.rules.rule import Rule, RuleSet, Side
from tensordiff.align.rules.tables import map_rule, rule
from tensordiff.dump.model import Dump
from tensordiff.dump.names import NUMBER_PART

PRESETS = (
    "hf",
    "megatron",  # before max, which removes language_model.
    "max",
    "vllm",
    "vllm_gemma",
    "fairseq",
    "llama_original",
    "llama_cpp_graph",
    "gguf_gemma",
    "gguf",
    "gpt2",
    "bert",
    "verify_layers",
    "transformer_lens",
    "fused",
)
"""In the order their rules are tried: later ones rely on what earlier ones removed."""
_DEFAULTS = ("hf", "max", "bert")
_FOLDER = Path(__file__).parent / "presets"
_BETWEEN = ".\0."  # with dots, so that a name's first and last number still stand between dots


@dataclass(frozen=True)
class Preset:
    """One naming scheme of layers."""

    name: str
    about: str
    detect: tuple[str, ...]
    needs: tuple[str, ...]
    """Expressions that must all match some layer as well."""
    document: RulesDocument = field(repr=False, compare=False)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules. Read on demand: few presets fit a dump, and checking expressions takes long."""
        return tuple(replace(item, source=self.name, is_ours=True) for item in self.document.tables("rule", rule))

    @cached_property
    def maps(self) -> tuple[MapRule, ...]:
        """The maps in both directions, in canonical names."""
        maps = self.document.tables("map", map_rule)
        return maps + tuple(MapRule(item.candidate, item.reference, item.every, needs=item.needs) for item in maps)

    @cached_property
    def _detector(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:{expression})" for expression in self.detect))

    def fits(self, outlines: Collection[str]) -> bool:
        """Whether names follow this scheme; every number in them must have been replaced by 0."""
        return any(map(self._detector.search, outlines)) and all(
            any(re.search(needed, outline) for outline in outlines) for needed in self.needs
        )


@cache
def preset(name: str) -> Preset:
    """Load a preset."""
    parsed = parse_rules((_FOLDER / f"{name}.toml").read_text("utf-8"), f"{name}.toml")
    parsed.refuse_other_keys("about", "detect", "needs", "rule", "map")
    detect, needs = parsed.texts("detect") or (), parsed.texts("needs") or ()
    return Preset(name, str(parsed.content["about"]), detect, needs, parsed)


@cache
def default_rules() -> tuple[Rule, ...]:
    """The rules used if no dump was looked at."""
    return tuple(item for name in _DEFAULTS for item in preset(name).rules)


@dataclass(frozen=True)
class PresetChoice:
    """The presets chosen for each side."""

    presets: Mapping[Side, tuple[str, ...]]

    @cached_property
    def rules(self) -> RuleSet:
        """Their rules, each for the sides it was chosen for."""
        return RuleSet(tuple(item for name in PRESETS for item in self._rules_of(name)))

    @cached_property
    def maps(self) -> tuple[MapRule, ...]:
        """Their maps, to be tried on what neither rules nor the user's maps pair."""
        return tuple(dict.fromkeys(item for name in PRESETS if self._sides(name) for item in preset(name).maps))

    def _rules_of(self, name: str) -> Sequence[Rule]:
        sides = self._sides(name)
        if len(sides) == 1:
            return [replace(item, side=sides[0]) for item in preset(name).rules]
        return preset(name).rules if sides else ()

    def _sides(self, name: str) -> list[Side]:
        return [side for side, names in self.presets.items() if name in names]


def choose(reference: Dump, candidate: Dump, names: Sequence[str] | None = None) -> PresetChoice:
    """The presets that fit the names of two dumps; if ``names`` are given, those, for both sides."""
    if names is not None:
        return PresetChoice({side: tuple(names) for side in get_args(Side)})
    ours, theirs = fitting(reference), fitting(candidate)
    return PresetChoice({"reference": ours or theirs, "candidate": theirs or ours})


def fitting(dump: Dump) -> tuple[str, ...]:
    """The presets that fit a dump's names."""
    return _fitting({entry.layer for entry in dump.entries})


_AT_ONCE = 4096


def _fitting(layers: Iterable[str]) -> tuple[str, ...]:
    # Many names in one substitution takes a third of the time; not all at once, since other threads wait meanwhile.
    outlines: set[str] = set()
    left = iter(layers)
    while some := list(islice(left, _AT_ONCE)):
        outlines.update(NUMBER_PART.sub("0", _BETWEEN.join(some)).split(_BETWEEN))
    return tuple(name for name in PRESETS if preset(name).fits(outlines))


def rules_for(layers: Iterable[str]) -> RuleSet:
    """The rules of the presets that fit some names, and the default rules."""
    return PresetChoice({"reference": (*_DEFAULTS, *_fitting(set(layers)))}).rules
