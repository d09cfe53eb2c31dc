"""The renaming that one map implies: how the candidate spells what the reference calls differently.

``gpt.blocks.0.mixer.query`` = ``layers.0.self_attn.q_proj`` says that ``gpt.blocks`` is ``layers``, ``mixer`` is
``self_attn`` and ``query`` is ``q_proj``, wherever these words occur. Numbers must be the same: rules cannot count.
"""

from __future__ import annotations

import re
from itertools import chain

from tensordiff.align.rules.rule import Rule

Words = tuple[str, ...]


def implied_rules(reference: str, candidate: str) -> list[tuple[Rule, ...]]:
    """Sets of rules that would make the names of two layers equal, and others like them; the most general first."""
    ours, theirs = (tuple(name.split(".")) for name in (reference, candidate))
    ends = [next((k for k, word in enumerate(words) if word.isdigit()), len(words)) for words in (ours, theirs)]
    if [word for word in ours if word.isdigit()] != [word for word in theirs if word.isdigit()]:
        return []
    before = _prefix_rules(ours[: ends[0]], theirs[: ends[1]], is_whole=ends[0] == len(ours))
    after = _word_rules(ours[ends[0] + 1 :], theirs[ends[1] + 1 :])
    sets = [(*before, *chain.from_iterable(after)), before, *after]
    return [some for some in dict.fromkeys(sets) if some]


def _prefix_rules(ours: Words, theirs: Words, *, is_whole: bool) -> tuple[Rule, ...]:
    """A rule for what precedes the number; for the whole name if there is none."""
    if ours == theirs or not theirs or not ours:
        return ()
    end, kept = (r"(\.|$)", r"\1") if is_whole else (r"\.([0-9])", r".\1")
    return (Rule("candidate", f"^{_escaped(theirs)}{end}", f"{'.'.join(ours)}{kept}"),)


def _word_rules(ours: Words, theirs: Words) -> list[tuple[Rule, ...]]:
    """One rule per word if both names have equally many, otherwise one for all words."""
    if len(ours) != len(theirs):
        return [(_word_rule(".".join(ours), theirs),)] if ours and theirs else []
    differing = dict.fromkeys((a, b) for a, b in zip(ours, theirs, strict=True) if a != b and not b.isdigit())
    return [(_word_rule(a, (b,)),) for a, b in differing]


def _word_rule(ours: str, theirs: Words) -> Rule:
    return Rule("candidate", rf"\.{_escaped(theirs)}(\.|$)", rf".{ours}\1")


def _escaped(words: Words) -> str:
    return r"\.".join(map(re.escape, words))
