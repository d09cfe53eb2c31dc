"""The map screen: pairs two expressions, and shows their shapes and difference before the map is accepted.

The screen gets a session and the user's picks, and returns a map or None. Names and functions are completed while
typing. A thread reads headers and values, the named layer first; further typing restarts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import ClassVar, Literal

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Button, Input, Label, Static
from textual.worker import get_current_worker

from tensordiff.align.expression import FUNCTIONS
from tensordiff.align.rules.rule import Side
from tensordiff.align.rules.tables import MapRule
from tensordiff.errors import TensordiffError, printable
from tensordiff.session.session import Session
from tensordiff.tui.dialogs import Form
from tensordiff.tui.keys import bindings
from tensordiff.tui.rules.map_trial import SideError, Trial, names_of, shown, trials
from tensordiff.tui.threads import in_thread

_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*|[\w.\[\]/:+{}-]+)$""")


class ExpressionSuggester(Suggester):
    """Completes the last word."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self.names = [*names, *(f"{name}(" for name in FUNCTIONS)]

    def matching(self, value: str, most: int) -> list[str]:
        """Completions of the last word, short ones first: names that begin with it or, if there are none,
        contain it.
        """
        found = _WORD.search(value)
        if found is None:
            return [] if value.rstrip().endswith((")", '"')) else list(islice(self.names, most))
        begin = nsmallest(most, self._beginning(found[0]), key=len)
        return begin or nsmallest(most, (name for name in self.names if found[0] in name and name != found[0]), key=len)

    def _beginning(self, word: str) -> Iterator[str]:
        return (name for name in self.names if name.startswith(word) and name != word)

    async def get_suggestion(self, value: str) -> str | None:
        """The completed text."""
        found = _WORD.search(value)
        if found is None:
            return None
        word = min(self._beginning(found[0]), key=len, default=None)
        return None if word is None else value[: found.start()] + word


Scope = Literal["layer", "every"]
_SIDES: tuple[Side, Side] = ("reference", "candidate")
_OFFERED = 6


class MapScreen(Form[MapRule]):
    """Asks for one map."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("map")
    DEFAULT_CSS = """
    MapScreen {
        & > Vertical { width: 116; height: 32; }
        & .field > Label { width: 11; }
        & .offers { height: 1; padding-left: 11; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """

    @dataclass
    class Tried(Message):
        """More of the result of a trial is known."""

        trial: Trial
        is_done: bool

    @dataclass
    class Failed(Message):
        """The typed text is not a map."""

        side: Side | None
        sentence: str

    @dataclass
    class Named(Message):
        """The names that can be typed are known."""

        names: tuple[tuple[str, ...], tuple[str, ...]]

    def __init__(self, session: Session, reference: str = "", candidate: str = "", title: str = "Pair") -> None:
        super().__init__(title)
        self.session = session
        self.texts = reference, candidate
        self.trial: Trial | None = None
        self.completions = {side: ExpressionSuggester() for side in _SIDES}

    # --- fields ----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Both sides, what is wrong with them, and their result."""
        with Vertical() as frame:
            frame.border_title = self.heading
            for side, text in zip(_SIDES, self.texts, strict=True):
                yield from self._field(side, text)
            yield Static("", id="wrong", classes="wrong", markup=False)
            with VerticalScroll():
                yield Static("", id="found", markup=False)
            with Horizontal(id="buttons"):
                yield Button("This layer (ctrl+l)", id="layer", disabled=True, compact=True)
                yield Button("Every layer (ctrl+s)", id="every", disabled=True, compact=True)
                yield Button("Cancel (esc)", id="cancel", compact=True)

    def _field(self, side: Side, text: str) -> ComposeResult:
        with Horizontal(classes="field"):
            yield Label(side)
            yield Input(
                text, id=side, placeholder="a name, or an expression: cat(a, b)", compact=True, select_on_focus=False,
                suggester=self.completions[side],
            )  # fmt: skip
        yield Static("", id=f"offers-{side}", classes="offers", markup=False)
        yield Static("", id=f"wrong-{side}", classes="wrong", markup=False)

    def on_mount(self) -> None:
        """Focus the first empty field."""
        empty = next((side for side, text in zip(_SIDES, self.texts, strict=True) if not text), "reference")
        self.query_one(f"#{empty}", Input).focus()
        in_thread(self, "names", self._list_names)
        self.attempt()

    def _list_names(self) -> None:
        ours, theirs = (tuple(names_of(self.session, side)) for side in _SIDES)
        self.post_message(self.Named((ours, theirs)))

    @on(Named)
    def _take_names(self, event: Named) -> None:
        for side, names in zip(_SIDES, event.names, strict=True):
            self.completions[side].names = [*names, *self.completions[side].names]
            self._offer(side)

    def _offer(self, side: Side) -> None:
        """Show a few completions of the last word."""
        text = self.query_one(f"#{side}", Input).value
        offered = self.completions[side].matching(text, _OFFERED)
        self.query_one(f"#offers-{side}", Static).update(Text(printable("  ".join(offered))))

    # --- trying ----------------------------------------------------------------------------------

    @on(Input.Changed)
    def _wait(self, event: Input.Changed) -> None:
        """Try the map once typing pauses."""
        self._offer("reference" if event.input.id == "reference" else "candidate")
        self._forget()
        self.attempt_soon()

    def _forget(self) -> None:
        self.trial = None
        for button in ("layer", "every"):
            self.query_one(f"#{button}", Button).disabled = True

    def attempt(self) -> None:
        """Try the map."""
        texts = [self.query_one(f"#{side}", Input).value.strip() for side in _SIDES]
        self.query(".wrong").remove_class("-shown")
        if all(texts):
            self.query_one("#found", Static).update("…")
            in_thread(self, "trial", partial(self._run, *texts))
        else:
            self.query_one("#found", Static).update("Name what is the same on both sides; → completes a name.")

    def _run(self, reference: str, candidate: str) -> None:
        worker, last = get_current_worker(), None
        try:
            for trial in trials(self.session, reference, candidate):
                if worker.is_cancelled:
                    return
                self.post_message(self.Tried(trial, is_done=False))
                last = trial
        except SideError as error:
            self._fail(worker.is_cancelled, error.side, str(error))
        except TensordiffError as error:
            self._fail(worker.is_cancelled, None, str(error))
        if last is not None and not worker.is_cancelled:
            self.post_message(self.Tried(last, is_done=True))

    def _fail(self, is_cancelled: bool, side: Side | None, sentence: str) -> None:
        if not is_cancelled:
            self.post_message(self.Failed(side, sentence))

    @on(Tried)
    def _show(self, event: Tried) -> None:
        self.trial = event.trial
        self.query_one("#found", Static).update(shown(self.session, event.trial, event.is_done))
        choice, layers = event.trial.choice, len(event.trial.pairs)
        here, every = self.query_one("#layer", Button), self.query_one("#every", Button)
        here.disabled, every.disabled = choice.here is None, choice.every is None
        every.label = f"Every layer: {layers} {'pair' if layers == 1 else 'pairs'} (ctrl+s)"
        self.refresh_bindings()

    @on(Failed)
    def _show_failure(self, event: Failed) -> None:
        self._forget()
        lines = "\n".join(printable(line) for line in event.sentence.split("\n"))
        wrong = self.query_one(f"#wrong-{event.side}" if event.side else "#wrong", Static)
        wrong.update(Text(f"✗ {lines}"))
        wrong.add_class("-shown")
        self.query_one("#found", Static).update("")

    # --- leaving ---------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey choices that cannot be accepted."""
        if action != "accept":
            return True
        return True if self._choice("every" if parameters == ("every",) else "layer") else None

    def _choice(self, scope: Scope) -> MapRule | None:
        if self.trial is None:
            return None
        return self.trial.choice.every if scope == "every" else self.trial.choice.here

    @on(Input.Submitted)
    def _to_buttons(self) -> None:
        """Move the focus to the widest possible choice, where another enter accepts it."""
        names: Sequence[Scope] = ("every", "layer")
        if found := next((name for name in names if self._choice(name)), None):
            self.query_one(f"#{found}", Button).focus()

    @on(Button.Pressed, "#layer")
    def _accept_layer(self) -> None:
        self.action_accept("layer")

    @on(Button.Pressed, "#every")
    def _accept_every(self) -> None:
        self.action_accept("every")

    def action_accept(self, scope: Scope) -> None:
        """Accept the map, for this layer or for every layer."""
        if rule := self._choice(scope):
            self.dismiss(rule)
