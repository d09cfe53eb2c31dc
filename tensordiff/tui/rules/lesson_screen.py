"""The dialog that offers the rule that one map implies for other layers, with its effect."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from tensordiff.align.rules.rule_book import describe
from tensordiff.errors import printable
from tensordiff.session.lesson import Lesson
from tensordiff.tui.dialogs import Dialog


class LessonScreen(Dialog[bool]):
    """Asks whether to add the rule, or only the map."""

    ACCEPT, CANCEL = "Add the rule", "Only the map"

    def __init__(self, lesson: Lesson) -> None:
        count = len(lesson.rules)
        super().__init__(f"This map implies {'a rule' if count == 1 else f'{count} rules'} for other layers")
        self.lesson = lesson

    def ask(self) -> ComposeResult:
        """The rules, what they would pair, and what the values say about that."""
        for rule in self.lesson.rules:
            yield Static(printable(describe(rule)), classes="rule", markup=False)
        yield Static(self.lesson.sentence, id="does", markup=False)
        first = self.lesson.pairs[0]
        shown = f"such as {first.reference.name} = {first.candidate.name}"
        yield Static(printable(shown), classes="hint", markup=False)

    def answer(self) -> bool:
        """True."""
        return True
