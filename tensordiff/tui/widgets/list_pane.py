"""A view that is a list of lines with a cursor: under a heading that stays, and scrolled to what is pointed at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from tensordiff.tui.widgets.pane import Line, Pane, Piece, plain

A = TypeVar("A")


class ListPane(Pane[A], Generic[A]):
    """Lines, one of which is pointed at."""

    can: ClassVar[frozenset[str]] = frozenset({"move", "page", "open"})

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.at = self.top = 0

    # --- for a list to say -----------------------------------------------------------------------

    def heading(self, answer: A) -> Sequence[Line]:
        """Lines that stay."""
        raise NotImplementedError

    def body(self, answer: A) -> Sequence[Line]:
        """All lines that may be scrolled."""
        raise NotImplementedError

    def stops(self, answer: A) -> Sequence[int]:
        """Numbers of the lines that can be pointed at."""
        raise NotImplementedError

    # --- the rest --------------------------------------------------------------------------------

    def begin(self) -> None:
        """From the top again."""
        self.at = self.top = 0

    def move(self, _x: int, y: int) -> None:
        """To another line."""
        if self.answer is not None:
            self.at = max(0, min(self.at + y, len(self.stops(self.answer)) - 1))
            self.repaint()

    def page(self, _x: int, y: int) -> None:
        """A screenful on."""
        self.move(0, y * max(1, self.content_size.height - 4))

    def point(self, _x: int, y: int) -> None:
        """To the line under the mouse; a second click opens it."""
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
        """Go where the line points to."""

    def draw(self, answer: A) -> Sequence[Line]:
        """The heading and as many lines as fit."""
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
