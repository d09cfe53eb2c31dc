"""Lists of orphans and of suggestions for them; both have the same keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from textual import on
from textual.binding import BindingType
from textual.message import Message
from textual.worker import get_current_worker

from tensordiff.align import Alignment
from tensordiff.align.rules.rule import Side
from tensordiff.align.suggest import Suggestion
from tensordiff.dump import Entry
from tensordiff.errors import AlignError, printable
from tensordiff.tui.keys import bindings
from tensordiff.tui.line_list import LineList, Span, T
from tensordiff.tui.text import fit
from tensordiff.tui.threads import in_thread
from tensordiff.util.regex import UserRegex

_LONGEST_FILTER = 1_000
_GLYPHS: dict[Side, str] = {"reference": "ref  ", "candidate": "cand "}


class Orphan(NamedTuple):
    """An entry without a pair."""

    side: Side
    entry: Entry


class _Pairing(LineList[T]):
    """The actions of the keys of both lists."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("orphans")

    def opened(self) -> None:
        """Act like enter."""
        self.action_pick()

    def action_pick(self) -> None:
        """Pick the orphan."""
        self.ask("pick")

    def action_accept(self) -> None:
        """Accept a suggestion."""
        self.ask("accept")

    def action_accept_above(self) -> None:
        """Accept all suggestions above a confidence."""
        self.ask("accept_above")

    def action_why(self) -> None:
        """Say why the orphan has no partner."""
        self.ask("why")

    def action_expression(self) -> None:
        """Type an expression."""
        self.ask("expression")

    def action_filter(self) -> None:
        """Filter the orphans."""
        self.ask("filter")

    def action_suggest(self) -> None:
        """Look for partners by value, or stop looking."""
        self.ask("suggest")

    def action_undo(self) -> None:
        """Undo the last change."""
        self.ask("undo")

    def action_write(self) -> None:
        """Write the rules to a file, including those made by pairing."""
        self.ask("write")


class OrphanList(_Pairing[Orphan]):
    """Entries without a pair."""

    BINDING_GROUP_TITLE = "Orphans"
    nothing = "none"
    HELP = "Pick one of each side to pair them; several of one side are joined. `x` takes an expression."

    @dataclass
    class Matched(Message):
        """A filter was applied."""

        of: Sequence[Orphan]
        pattern: str
        shown: Sequence[Orphan]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.all: Sequence[Orphan] = ()
        self.pattern = ""
        self.picks: tuple[Orphan, ...] = ()

    def show_alignment(self, alignment: Alignment) -> None:
        """Show the orphans of an alignment; picks that have a pair now are dropped."""
        ours = (Orphan("reference", entry) for entry in alignment.reference_orphans)
        theirs = (Orphan("candidate", entry) for entry in alignment.candidate_orphans)
        self.all = (*ours, *theirs)
        left = {id(orphan.entry) for orphan in self.all}
        self.picks = tuple(orphan for orphan in self.picks if id(orphan.entry) in left)
        self.show_matching(self.pattern)

    def show_matching(self, pattern: str) -> None:
        """Show orphans whose name matches or, after ``!``, does not. An invalid expression is used as plain text.

        A thread does it: a hundred thousand names and a slow expression take their time.
        """
        self.pattern = pattern
        if pattern:
            in_thread(self, "orphan filter", partial(self._match, self.all, pattern))
        else:
            self.show_items(self.all)

    def _match(self, orphans: Sequence[Orphan], pattern: str) -> None:
        inverted = pattern.startswith("!")
        matches = _compiled(pattern.removeprefix("!")).matches
        shown = [one for one in orphans if matches(one.entry.name) != inverted]
        if not get_current_worker().is_cancelled:
            self.post_message(self.Matched(orphans, pattern, shown))

    @on(Matched)
    def _show_matched(self, message: Matched) -> None:
        if message.of is self.all and message.pattern == self.pattern:
            self.show_items(message.shown)

    def pick(self, orphan: Orphan) -> tuple[Orphan, ...]:
        """Pick an orphan, or undo the pick; returns all picks."""
        has = any(one.entry is orphan.entry for one in self.picks)
        rest = tuple(one for one in self.picks if one.entry is not orphan.entry)
        self.picks = rest if has else (*rest, orphan)
        self.refresh()
        return self.picks

    def spans(self, item: Orphan, width: int) -> Iterable[Span]:
        """``● ref  model.rotary_emb-output_0``."""
        picked = any(one.entry is item.entry for one in self.picks)
        yield ("● " if picked else "  "), "mark"
        yield _GLYPHS[item.side], "dim"
        step = f"step {item.entry.step} " if item.entry.step else ""
        yield fit(printable(f"{step}{item.entry.name}"), max(1, width - 7)), ""


def _compiled(pattern: str) -> UserRegex:
    try:
        return UserRegex("the filter", pattern)
    except AlignError:
        return UserRegex("the filter", re.escape(pattern[:_LONGEST_FILTER]))


class SuggestionList(_Pairing[Suggestion]):
    """Suggestions for orphans, the most confident first."""

    BINDING_GROUP_TITLE = "Suggestions"
    HELP = "Found by value. `a` accepts one, `A` all of some confidence, enter looks closer first."

    def spans(self, item: Suggestion, width: int) -> Iterable[Span]:
        """``0.95 a = b``."""
        yield f"{item.confidence:.2f} ", "good" if item.is_only else "dim"
        yield fit(printable(f"{item.reference} = {item.candidate}"), max(1, width - 5)), ""
