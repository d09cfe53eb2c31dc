"""Renamings: rules that spell the candidate's names like the reference's, from layers that are known to be the same.

``gpt.blocks.3.ffn.bend`` is ``layers.2.mlp.act_fn`` because ``gpt.blocks.`` is ``layers.`` counted from 1, ``ffn`` is
``mlp`` and ``bend`` is ``act_fn``, and these three rules explain other layers, too. Shorter names come first, so that a
module is renamed before what is inside it. Of the rules that would rename a layer, the most general is taken that gives
no other layer a wrong name; the last resort is a rule for the whole name. What no rule explains is left to maps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tensordiff.align.learn.outline import SEPARATORS, Outline
from tensordiff.align.rules.rule import Rule

_EXAMPLES_PER_KIND = 3
"""Layers of each kind on which rules are tried; all are looked at when the pairs are compared."""
_MOST_KINDS = 400
Rewrite = Callable[[str], str]


class LayerNames(NamedTuple):
    """The candidate's layers: what each is to be called, and what each must not be called."""

    wanted: Mapping[str, str]
    """The reference's canonical names for layers that rules have to rename."""
    kept: Mapping[str, str]
    """The names of layers that already have the right one."""
    others: Sequence[str]
    """Layers without a partner."""
    taken: Mapping[str, Outline]
    """All canonical names of the reference."""
    outlines: Mapping[str, Outline]
    """The outlines of the candidate's layers."""


class Kind(NamedTuple):
    """Layers that have the same outline on both sides, and numbers that differ by the same."""

    candidate: tuple[str, ...]
    reference: tuple[str, ...]
    offsets: tuple[int, ...]
    padded: tuple[bool, ...]
    """Which of the candidate's numbers are written with leading zeros."""


@dataclass(eq=False)
class Renamings:
    """Finds few rules that give layers their names; ``rewriting`` makes a function that applies rules and presets."""

    names: LayerNames
    rewriting: Callable[[Sequence[Rule]], Rewrite]
    rules: list[Rule] = field(default_factory=list)
    explained: set[str] = field(default_factory=set)
    """Layers that the rules rename correctly."""

    def find(self) -> tuple[Rule, ...]:
        """The rules, in the order they are to be tried."""
        kinds = self._kinds
        if len(kinds) > _MOST_KINDS:
            return ()
        # Blocks first: the beginning of their names may also be a layer's name, with a rule of its own.
        for kind, layers in sorted(kinds.items(), key=lambda item: (not item[0].offsets, len(item[1][0]), item[0])):
            if self._renames_correctly(self.rules, layers):
                self.explained |= set(layers)
                continue
            for added in self._choices(kind):
                trial = [*self.rules, *(rule for rule in added if rule not in self.rules)]
                if self._renames_correctly(trial, layers) and self._keeps_other_names(trial, layers):
                    self.rules = trial
                    self.explained |= set(layers)
                    break
        return tuple(self._needed())

    def _needed(self) -> list[Rule]:
        """The rules without those that later ones made superfluous."""
        rules, done = list(self.rules), [layer for layer in self._examples if layer in self.explained]
        for rule in self.rules:
            rest = [one for one in rules if one is not rule]
            if self._renames_correctly(rest, done) and self._keeps_other_names(rest, ()):
                rules = rest
        return rules

    @cached_property
    def _kinds(self) -> dict[Kind, list[str]]:
        kinds: dict[Kind, list[str]] = defaultdict(list)
        for layer, target in self.names.wanted.items():
            a, b = self.names.outlines[layer], self.names.taken[target]
            if len(a.numbers) == len(b.numbers) and not any(b.widths):
                offsets = tuple(y - x for x, y in zip(a.numbers, b.numbers, strict=True))
                kinds[Kind(a.pieces, b.pieces, offsets, tuple(map(bool, a.widths)))].append(layer)
        return kinds

    # --- trying ------------------------------------------------------------------------------------------

    @cached_property
    def _examples(self) -> list[str]:
        """Some layers of each kind that are to be renamed."""
        return [layer for layers in self._kinds.values() for layer in layers[:_EXAMPLES_PER_KIND]]

    def _renames_correctly(self, rules: Sequence[Rule], layers: Sequence[str]) -> bool:
        rewrite = self.rewriting(rules)
        return all(rewrite(layer) == self.names.wanted[layer] for layer in layers[:_MOST_KINDS])

    def _keeps_other_names(self, rules: Sequence[Rule], layers: Iterable[str]) -> bool:
        """Whether layers that had their name keep it, and none gets the name of another tensor."""
        rewrite = self.rewriting(rules)
        names, taken = self.names, self.names.taken
        done = self.explained | set(layers)
        for layer in self._examples:
            made = rewrite(layer)
            if made != names.wanted[layer] and (layer in done or made in taken):
                return False
        if any(rewrite(layer) != name for layer, name in names.kept.items()):
            return False
        before = self.rewriting(())
        return not any(rewrite(layer) in taken and before(layer) not in taken for layer in names.others)

    # --- rules that could be meant ----------------------------------------------------------------------

    def _choices(self, kind: Kind) -> Iterator[tuple[Rule, ...]]:
        """Rules for a kind of layers, the most general first."""
        heads = [_head(kind)] if kind.offsets else []
        for segments in self._tails(kind):
            words = tuple(_word(theirs, ours) for theirs, ours in segments)
            if words:
                yield words
            yield from ((head, *words) for head in heads)
        if not kind.offsets:
            yield (_first_word(kind),)
        yield (_whole(kind),)

    def _tails(self, kind: Kind) -> Iterator[list[tuple[str, str]]]:
        """What follows the block's number, or the whole name, word by word: as the candidate has it, and as wanted."""
        theirs, ours = (_text(some[1:] if kind.offsets else some) for some in (kind.candidate, kind.reference))
        begin, lead = self._parent(kind, theirs, ours)
        rest, wanted = theirs[begin:], ours[lead:]
        words = _words(rest), _words(wanted)
        if len(words[0]) == len(words[1]) and "_" not in rest[:1]:
            yield [(a, b) for a, b in zip(*words, strict=True) if a != b]
        if rest != wanted and rest[:1] and rest[0] in SEPARATORS and "\0" not in rest + wanted:
            yield [(rest, wanted)]

    def _parent(self, kind: Kind, theirs: str, ours: str) -> tuple[int, int]:
        """How much of both tails belongs to a module that is known."""
        best = 0, 0
        for other in self._kinds:
            if other.offsets[:1] == kind.offsets[:1] and other.candidate[:1] == kind.candidate[:1] and other.offsets:
                a, b = _text(other.candidate[1:]), _text(other.reference[1:])
                is_within = theirs.startswith(a) and ours.startswith(b) and len(a) < len(theirs) and len(b) < len(ours)
                if is_within and theirs[len(a)] in SEPARATORS and ours[len(b)] == "." and len(a) > best[0]:
                    best = len(a), len(b)
        return best


def _text(pieces: Sequence[str]) -> str:
    """The text of an outline, with a zero byte for each number."""
    return "\0".join(pieces)


def _words(tail: str) -> list[str]:
    """The words of a tail, each with the separator before it."""
    return re.findall(r"[./:|]?[^./:|]+|[./:|]", tail)


def _end(text: str) -> str:
    """A lookahead for the end of the word, so that only whole words match."""
    mark = "_" if text[:1] == "_" else text[:1] if text[:1] in SEPARATORS else "."
    return rf"(?={re.escape(mark)}|$)"


def _word(theirs: str, ours: str) -> Rule:
    begin = "" if theirs[:1] in SEPARATORS else "^"
    return Rule("candidate", f"{begin}{re.escape(theirs)}{_end(theirs)}", _literal(ours))


def _first_word(kind: Kind) -> Rule:
    """The beginning of a name without a number, which other names may share."""
    theirs, ours = _text(kind.candidate), _text(kind.reference)
    while theirs and ours and theirs[-1] == ours[-1] and theirs[-1] not in SEPARATORS:
        theirs, ours = theirs[:-1], ours[:-1]
    if theirs[-1:] != "." or (ours and ours[-1:] != "."):
        theirs, ours = _text(kind.candidate), _text(kind.reference)
        return Rule("candidate", f"^{re.escape(theirs)}{_end('.')}", _literal(ours))
    return Rule("candidate", f"^{re.escape(theirs)}", _literal(ours))


def _head(kind: Kind) -> Rule:
    """The text before a block's number, and the number."""
    replacement = _literal(kind.reference[0]) + _number(1, kind.offsets[0])
    return Rule("candidate", f"^{re.escape(kind.candidate[0])}{_digits(kind.padded[0])}", replacement)


def _whole(kind: Kind) -> Rule:
    texts = zip(map(re.escape, kind.candidate), [*map(_digits, kind.padded), ""], strict=True)
    match = "".join(text for part in texts for text in part)
    numbers = [_number(k, offset) for k, offset in enumerate(kind.offsets, 1)]
    parts = zip(map(_literal, kind.reference), [*numbers, ""], strict=True)
    return Rule("candidate", f"^{match}$", "".join(text for part in parts for text in part))


def _digits(padded: bool) -> str:
    return r"0*(\d+)" if padded else r"(\d+)"


def _number(group: int, offset: int) -> str:
    return rf"\{group}" if not offset else rf"{{\{group}{offset:+d}}}"


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\")
