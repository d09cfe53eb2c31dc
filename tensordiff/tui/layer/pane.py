"""A view of one layer: it computes an answer about its subject in a thread, and draws it line by line.

Every tab of the layer screen is a ``Pane``; one that is a list of lines with a cursor is a ``ListPane``. A question
contains everything that an answer depends on; if the subject or the question has changed meanwhile, the answer is
dropped. If there is nothing to show, a sentence is shown. Lines are pieces of text, each with the name of a style,
never markup.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import get_current_worker

from tensordiff.errors import TensordiffError, printable
from tensordiff.tui.layer.subject import Subject
from tensordiff.tui.text import wrapped
from tensordiff.tui.threads import ThreadFailed, in_thread

A = TypeVar("A")
Piece = tuple[str, str | Style]
"""A text, and the name of a style, or a style that has both colours."""
Line = Sequence[Piece]

STYLES = ("muted", "title", "bar", "here", "peak", "cursor", "agrees", "drifts", "diverges", "unknown")
_SHOW_AFTER = 0.25
"""Seconds after which a part of an answer is shown."""


class Pane(Widget, Generic[A], can_focus=True):
    """One view of a layer."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"pane--{name}" for name in STYLES}
    DEFAULT_CSS = """
    Pane {
        height: 1fr; background: $surface; color: $foreground; padding: 0 1;
        & > .pane--muted { color: $text-muted; }
        & > .pane--title { color: $foreground; text-style: bold; }
        & > .pane--bar { color: $primary; }
        & > .pane--here { color: $accent; }
        & > .pane--peak { color: $text-muted; }
        & > .pane--cursor { background: $block-cursor-blurred-background; text-style: bold; }
        &:focus > .pane--cursor { background: $block-cursor-background; color: $block-cursor-foreground; }
        & > .pane--agrees { color: $text-success; }
        & > .pane--drifts { color: $text-warning; }
        & > .pane--diverges { color: $text-error; text-style: bold; }
        & > .pane--unknown { color: $text-accent; }
    }
    """
    can: ClassVar[frozenset[str]] = frozenset()
    """The screen's actions that work in this view."""

    @dataclass
    class Answered(Message, bubble=False):
        """A thread has an answer, a part of one, or a sentence why there is none."""

        subject: Subject
        question: Hashable
        answer: Any
        sentence: str
        is_whole: bool

    @dataclass
    class Pointed(Message):
        """The user pointed at an element, given by its index in the common shape."""

        index: tuple[int, ...]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.subject: Subject | None = None
        self.answer: A | None = None
        self.sentence = "reading…"
        self.is_whole = False
        self.asked: tuple[Subject, Hashable] | None = None
        self._drawn: tuple[Hashable, Sequence[Line]] = (None, ())
        self._strips: list[Strip] | None = None
        self._inked_before: tuple[tuple[int, dict[str, Style]], list[tuple[Line, Strip]]] = ((0, {}), [])

    # --- for a view to say -----------------------------------------------------------------------

    def question(self) -> Hashable:
        """Everything that the answer depends on besides the subject."""
        return None

    def answers(self, subject: Subject, question: Any) -> Iterator[A]:
        """Find the answer, in a thread; each yielded answer is more complete than the one before."""
        raise NotImplementedError

    def draw(self, answer: A) -> Sequence[Line]:
        """The answer as lines that fit into ``content_size``."""
        raise NotImplementedError

    def begin(self) -> None:
        """Prepare for another subject: forget the cursor's position in the previous one."""

    def move(self, x: int, y: int) -> None:
        """Move the cursor."""

    def page(self, x: int, y: int) -> None:
        """Move the cursor by screenfuls."""

    def point(self, x: int, y: int) -> None:
        """Handle a click on this character."""

    # --- asking ----------------------------------------------------------------------------------

    def look_at(self, subject: Subject) -> None:
        """Show another row: at once if this view is shown, else when it will be."""
        self.subject, self.answer, self.asked = subject, None, None
        self.sentence = "reading…"
        self.begin()
        self.ask()
        self.repaint()

    def ask(self) -> None:
        """Find an answer to the current question, unless it is there or in progress."""
        if self.subject is None or not (self.display and self.content_size):
            return  # a view without room asks once it has some
        if self.asked == (self.subject, self.question()):
            return
        self.asked = self.subject, self.question()
        self.is_whole = False
        in_thread(self, f"pane-{self.id}", partial(self._work, *self.asked))

    def _work(self, subject: Subject, question: Hashable) -> None:
        worker, shown, answer = get_current_worker(), monotonic(), None
        try:
            for answer in self.answers(subject, question):
                if worker.is_cancelled:
                    return
                if monotonic() - shown > _SHOW_AFTER:
                    self.post_message(self.Answered(subject, question, answer, "", False))
                    shown = monotonic()
        except (TensordiffError, OSError, MemoryError) as error:
            self.post_message(self.Answered(subject, question, None, str(error) or "there is too little memory", True))
        else:
            self.post_message(self.Answered(subject, question, answer, "", True))

    def on_pane_answered(self, message: Pane.Answered) -> None:
        """Take an answer, unless another question was asked since."""
        if self.asked == (message.subject, message.question):
            self.answer, self.sentence, self.is_whole = message.answer, message.sentence, message.is_whole
            self.take()
            self.repaint()

    def take(self) -> None:
        """Called when an answer has come."""

    def on_thread_failed(self, event: ThreadFailed) -> None:
        """Report a bug in a view without ending the app."""
        event.stop()
        self.answer, self.sentence = None, f"this view failed: {event.error!r}; the others still work"
        self.notify(printable(self.sentence), severity="error", markup=False)
        self.repaint()

    # --- drawing ---------------------------------------------------------------------------------

    def repaint(self) -> None:
        """Draw again, repainting only the lines that have changed."""
        before, self._drawn, self._strips = self._drawn[1], (None, ()), None
        now = self.lines() if before and self.is_attached else ()
        changed = [y for y, (old, new) in enumerate(zip(before, now, strict=False)) if old != new]
        if len(before) != len(now) or 2 * len(changed) > len(now):
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, y + self.gutter.top, self.size.width, 1) for y in changed))

    def lines(self) -> Sequence[Line]:
        """The lines for the current size."""
        width, height = self.content_size
        key = width, height, self.app.theme, self.has_focus
        if self._drawn[0] != key:
            self._drawn, self._strips = (key, self._draw(width) if width > 0 else ()), None
        return self._drawn[1]

    def _draw(self, width: int) -> Sequence[Line]:
        if self.answer is None:
            return [[(text, "muted")] for text in wrapped(printable(self.sentence), width)]
        return self.draw(self.answer)

    def render_line(self, y: int) -> Strip:
        """One line of the view."""
        lines, width = self.lines(), self.content_size.width
        if self._strips is None:
            self._strips = self._inked(lines, width)
        return self._strips[y] if y < len(self._strips) else Strip.blank(width, self.rich_style)

    def _inked(self, lines: Sequence[Line], width: int) -> list[Strip]:
        """All lines with styles. Strips of unchanged lines are kept, because Textual caches what it made of them."""
        base = self.rich_style
        styles = {name: self.get_component_rich_style(f"pane--{name}") for name in STYLES} | {"": base}
        how, before = (width, styles), self._inked_before
        kept = before[1] if before[0] == how else ()
        made = [
            old[1] if old is not None and old[0] == line else _strip(line, styles, width)
            for line, old in zip_longest(lines, kept[: len(lines)])
            if line is not None
        ]
        self._inked_before = how, list(zip(lines, made, strict=True))
        return made

    def notify_style_update(self) -> None:
        """Draw again after the colours changed, which happens after the name of the theme is known."""
        super().notify_style_update()
        self._drawn, self._strips = (None, ()), None
        self.refresh()

    def text(self) -> str:
        """The lines as plain text."""
        return "\n".join(plain(line).rstrip() for line in self.lines())

    def on_resize(self) -> None:
        """Draw for the new size, which may be another question."""
        self.repaint()
        self.ask()

    def on_show(self) -> None:
        """Find an answer once the view is shown."""
        self.ask()

    def on_click(self, event: events.Click) -> None:
        """Point at what was clicked."""
        at = event.get_content_offset(self)
        if at is not None and self.answer is not None:
            self.point(at.x, at.y)

    def on_mouse_scroll_down(self) -> None:
        """Move the cursor with the wheel."""
        self.move(0, 3)

    def on_mouse_scroll_up(self) -> None:
        """Move the cursor with the wheel."""
        self.move(0, -3)


def _strip(line: Line, styles: Mapping[str, Style], width: int) -> Strip:
    pieces = [Segment(text, styles[how] if isinstance(how, str) else how) for text, how in line if text]
    return Strip(pieces).adjust_cell_length(width, styles[""])


def plain(line: Line) -> str:
    """A line without its styles."""
    return "".join(text for text, _ in line)


class ListPane(Pane[A], Generic[A]):
    """A list of lines with a cursor."""

    can: ClassVar[frozenset[str]] = frozenset({"move", "page", "open"})

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.at = self.top = 0

    # --- for a list to say -----------------------------------------------------------------------

    def heading(self, answer: A) -> Sequence[Line]:
        """The lines at the top, which do not scroll."""
        raise NotImplementedError

    def body(self, answer: A) -> Sequence[Line]:
        """All lines that can be scrolled."""
        raise NotImplementedError

    def stops(self, answer: A) -> Sequence[int]:
        """Indices of the lines that the cursor can be on."""
        raise NotImplementedError

    # --- the rest --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Go back to the top."""
        self.at = self.top = 0

    def move(self, _x: int, y: int) -> None:
        """Move to another line."""
        if self.answer is not None:
            self.at = max(0, min(self.at + y, len(self.stops(self.answer)) - 1))
            self.repaint()

    def page(self, _x: int, y: int) -> None:
        """Move by a screenful."""
        self.move(0, y * max(1, self.content_size.height - 4))

    def point(self, _x: int, y: int) -> None:
        """Go to the line under the mouse; a second click opens it."""
        if self.answer is None:
            return
        line = y - len(self.heading(self.answer)) + self.top
        stops = list(self.stops(self.answer))
        if line in stops:
            again, self.at = stops.index(line) == self.at, stops.index(line)
            self.repaint()
            if again:
                self.open()

    def open(self) -> None:
        """Open the line under the cursor."""

    def draw(self, answer: A) -> Sequence[Line]:
        """The heading, and as many lines as fit."""
        width, height = self.content_size
        heading, lines, stops = self.heading(answer), list(self.body(answer)), self.stops(answer)
        room = max(1, height - len(heading))
        line = stops[min(self.at, len(stops) - 1)] if stops else 0
        self.top = max(0, min(max(line - room + 1, min(self.top, line)), len(lines) - room))
        if self.at == 0:
            self.top = 0
        if stops:
            lines[line] = _pointed_at(lines[line], width)
        return [*heading, *lines[self.top : self.top + room]]


def _pointed_at(line: Line, width: int) -> Line:
    pieces: list[Piece] = [(text, "cursor") for text, _ in line]
    return [*pieces, (" " * max(0, width - len(plain(line))), "cursor")]
