"""The editor of one rule or view, which shows its effect on the pairs while typing.

The editor does not know the rule book: it gets the rule to edit and a function that previews changes, which it runs in
a thread once typing pauses. It returns the new rule, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button, Input, Label, Select, Static
from textual.worker import get_current_worker

from tensordiff.align.rules.rule import Rule, RuleSide
from tensordiff.align.rules.rule_book import check
from tensordiff.align.rules.tables import ViewRule
from tensordiff.errors import TensordiffError, printable
from tensordiff.tui.dialogs import Form
from tensordiff.tui.keys import bindings
from tensordiff.tui.rules.preview import Preview, shown
from tensordiff.tui.threads import in_thread

RuleOrView = Rule | ViewRule
_SIDES = (("both sides", "both"), ("reference", "reference"), ("candidate", "candidate"))


class RuleEditor(Form[RuleOrView]):
    """Edits one rule or view."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog")
    DEFAULT_CSS = """
    RuleEditor {
        & > Vertical { width: 110; height: 30; }
        & .field > Label { width: 14; }
        & Select { width: 1fr; }
    }
    """

    @dataclass
    class Previewed(Message):
        """The preview is known."""

        found: Preview

    @dataclass
    class Failed(Message):
        """The preview failed."""

        sentence: str

    def __init__(self, title: str, value: RuleOrView, preview: Callable[[RuleOrView], Preview]) -> None:
        super().__init__(title)
        self.value, self.preview = value, preview

    # --- fields ----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """The fields, what is wrong with them, and what would change."""
        with Vertical() as frame:
            frame.border_title = self.heading
            yield from self._rule_fields() if isinstance(self.value, Rule) else self._view_fields(self.value)
            yield Static("", id="wrong", classes="wrong", markup=False)
            with VerticalScroll():
                yield Static("", id="changes", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Accept (enter)", id="accept", variant="primary", compact=True)
                yield Button("Cancel (esc)", id="cancel", compact=True)

    def _rule_fields(self) -> ComposeResult:
        rule = cast(Rule, self.value)
        yield _field("match", "match", rule.match, r"a regular expression: ^model\.")
        yield _field("replace with", "replace", rule.replace, r"what it becomes; \1 is the first group")
        with Horizontal(classes="field"):
            yield Label("on")
            yield Select(_SIDES, value=rule.side, allow_blank=False, id="side", compact=True)
        yield _field("module class", "module_class", rule.module_class or "", "only for modules of a class; optional")

    def _view_fields(self, view: ViewRule) -> ComposeResult:
        yield _field("match", "match", view.match, r"a pair's canonical name: (^|\.)lm_head$")
        yield _field("reference", "reference", view.reference or "", "steps such as last_token | squeeze 0")
        yield _field("candidate", "candidate", view.candidate or "", "steps such as last_token | squeeze 0")

    def on_mount(self) -> None:
        """Focus the first field, and preview the rule as it is."""
        self.query_one("#match", Input).focus()
        self.attempt()

    def _text(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value

    def _made(self) -> RuleOrView:
        """The rule in the fields; raises ``TensordiffError`` if it could not be applied."""
        if isinstance(self.value, Rule):
            side = cast(RuleSide, self.query_one("#side", Select).value)
            texts = self._text("match"), self._text("replace")
            made: RuleOrView = Rule(
                side, *texts, self.value.on, source="", module_class=self._text("module_class") or None
            )
        else:
            views = self._text("reference") or None, self._text("candidate") or None
            made = ViewRule(self._text("match"), *views, self.value.on)
        if not made.match:
            raise TensordiffError("match is empty; give it a regular expression")
        check(made)
        return made

    # --- what would change -----------------------------------------------------------------------

    @on(Input.Changed)
    @on(Select.Changed)
    def _wait(self) -> None:
        self.attempt_soon()

    def attempt(self) -> None:
        """Preview the change."""
        try:
            made = self._made()
        except TensordiffError as error:
            self._say_wrong(pointed(error, self._text("match")))
            return
        self.query_one("#wrong", Static).remove_class("-shown")
        self.query_one("#changes", Static).update("…")
        in_thread(self, "preview", partial(self._look, made))

    def _say_wrong(self, sentence: Text) -> None:
        wrong = self.query_one("#wrong", Static)
        wrong.update(sentence)
        wrong.add_class("-shown")
        self.query_one("#changes", Static).update("")

    def _look(self, made: RuleOrView) -> None:
        worker = get_current_worker()
        try:
            found = self.preview(made)
        except TensordiffError as error:
            self.post_message(self.Failed(str(error)))
            return
        if not worker.is_cancelled:
            self.post_message(self.Previewed(found))

    @on(Previewed)
    def _show(self, event: Previewed) -> None:
        self.query_one("#changes", Static).update(shown(event.found))

    @on(Failed)
    def _show_failure(self, event: Failed) -> None:
        self._say_wrong(Text(f"✗ {printable(event.sentence)}"))

    # --- leaving ---------------------------------------------------------------------------------

    @on(Input.Submitted)
    @on(Button.Pressed, "#accept")
    def action_accept(self) -> None:
        """Accept the rule."""
        try:
            self.dismiss(self._made())
        except TensordiffError as error:
            self._say_wrong(pointed(error, self._text("match")))


def _field(label: str, name: str, value: str, placeholder: str) -> Horizontal:
    return Horizontal(
        Label(label),
        Input(value, id=name, placeholder=placeholder, compact=True, select_on_focus=False),
        classes="field",
    )


def pointed(error: TensordiffError, match: str) -> Text:
    """An error, with a caret under the character it is about, if known."""
    lines = [printable(line) for line in str(error).split("\n")]
    position = error.__cause__.pos if isinstance(error.__cause__, re.error) else None
    if position is not None:
        lines += [f"  {printable(match)}", f"  {' ' * len(printable(match[:position]))}^"]
    return Text("✗ " + "\n".join(lines))
