"""The heatmap: |error| over two axes, on a log scale, each cell the largest of its block.

In colour a character holds two cells, one above the other; in shades (``░▒▓█``) it holds one and needs no colour. A NaN
is ``×`` and an infinity ``∞`` in either. The cell under the cursor is described in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from tensordiff.compare.look.axes import NamedShape
from tensordiff.compare.look.elements import worst_in
from tensordiff.compare.look.heat import Plane, heat
from tensordiff.compare.measure.chunks import Block, Floats
from tensordiff.report.labels import number
from tensordiff.tui.layer.heat_picture import GUTTER, Picture, View, coloured, legend, ruler, shaded
from tensordiff.tui.layer.pane import Line, Pane
from tensordiff.tui.layer.scale import Ramp, Scale, scale_of
from tensordiff.tui.layer.subject import Subject
from tensordiff.tui.threads import in_thread

_AROUND = 5


class Chosen(NamedTuple):
    """Two axes of a tensor's form."""

    form: NamedShape
    down: int
    across: int

    @property
    def title(self) -> str:
        """The axes: ``token × channel``."""
        return " × ".join(filter(None, (self.form.names[axis] for axis in (self.down, self.across)))) or "scalar"


class Question(NamedTuple):
    """The choice of axes, the number of heads that the user gave, and the view, which is known once the axes are."""

    axes: int
    heads: int | None
    view: View


class Heat(NamedTuple):
    """The largest error of each cell in view."""

    chosen: Chosen
    planes: int
    """How many pairs of axes there are to choose from."""
    view: View
    cells: Floats
    scale: Scale


class HeatmapPane(Pane[Heat]):
    """A picture of the errors."""

    can: ClassVar[frozenset[str]] = frozenset({"axis", "heads", "shades", "zoom", "move", "page", "open", "go"})

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.axes = 0
        self.heads: int | None = None
        self.view = View((1, 1), (1, 1))
        self.shades: bool | None = None
        """None follows the terminal."""
        self._wanted: tuple[int, ...] | None = None
        self._scales: dict[tuple[Chosen, Subject], Scale] = {}

    @property
    def in_shades(self) -> bool:
        """Whether to draw without colour."""
        return self.app.no_color if self.shades is None else self.shades

    def begin(self) -> None:
        """Show the whole of another tensor."""
        self.heads, self.view, self._wanted = None, View((1, 1), (1, 1)), None
        self._scales.clear()

    def question(self) -> Question:
        """The axes, and the view for the current room; the position of the cursor does not matter."""
        room = self._room
        return Question(self.axes, self.heads, self.view.fitted(self.view.size, room).without_cursor())

    @property
    def _room(self) -> tuple[int, int]:
        width, height = self.content_size
        lines = max(1, height - _AROUND)
        return lines if self.in_shades else 2 * lines, max(1, width - GUTTER)

    def answers(self, subject: Subject, question: Question) -> Iterator[Heat]:
        """The largest errors, cell by cell."""
        choices = _choices(subject.form, question.heads or subject.heads)
        chosen = choices[question.axes % len(choices)]
        shape = chosen.form.shape
        view = question.view.fitted((shape[chosen.down], shape[chosen.across]), question.view.room)
        ref, cand = (side.reshape(shape) for side in subject.sides)
        plane = Plane(chosen.down, chosen.across, view.edges(0), view.edges(1))
        for cells in heat(ref, cand, plane):
            scale = self._scales.get((chosen, subject)) if view.zoom else None
            yield Heat(chosen, len(choices), view, cells, scale or scale_of(cells))

    def take(self) -> None:
        """Take the size of the plane, now that it is known. Zoomed views keep the scale of the whole plane."""
        if self.answer is None or self.subject is None:
            return
        answer = self.answer
        cursor = self._wanted_in(answer) or self.view.cursor
        self._wanted = None
        self.view = self.view.fitted(answer.view.size, self._room).to(cursor)
        if self.view.without_cursor() != answer.view.without_cursor():
            self.ask()  # the room has changed meanwhile
        elif self.is_whole:
            if not answer.view.zoom:
                self._scales[answer.chosen, self.subject] = answer.scale
            self.asked = self.subject, self.question()

    def _wanted_in(self, answer: Heat) -> tuple[int, int] | None:
        """The position of the requested element on the plane."""
        if self._wanted is None or self.subject is None:
            return None
        place = self.subject.form.index_in(answer.chosen.form, self._wanted)
        return place[answer.chosen.down], place[answer.chosen.across]

    # --- what can be done ------------------------------------------------------------------------

    def next_axis(self) -> None:
        """Show the next two axes."""
        count = self.answer.planes if self.answer else 1
        self._over((self.axes % count + 1) % count)

    def choose_heads(self, heads: int | None) -> None:
        """Set the number of heads, and show tokens by heads."""
        if heads is not None:
            self.heads = heads
            self._over(-2)

    def _over(self, axes: int) -> None:
        self.axes, self.view = axes, View((1, 1), (1, 1))
        self.ask()

    def toggle_shades(self) -> None:
        """Switch between shades and colours."""
        self.shades = not self.in_shades
        self._look(self.view.fitted(self.view.size, self._room))

    def zoom(self, by: int) -> None:
        """Zoom in or out, or show the whole."""
        self._look(self.view.zoomed(by))

    def move(self, x: int, y: int) -> None:
        """Move to the next cell."""
        self._look(self.view.moved(y, x))

    def page(self, x: int, y: int) -> None:
        """Move by a screenful."""
        self._look(self.view.paged(y, x))

    def go(self, index: tuple[int, ...]) -> None:
        """Go to an element of the tensor."""
        self._wanted = index
        if self.answer is not None and (place := self._wanted_in(self.answer)):
            self._wanted = None
            self._look(self.view.to(place))

    def _look(self, view: View) -> None:
        self.view = view
        self.repaint()
        self.ask()

    def point(self, x: int, y: int) -> None:
        """Go to the cell under the mouse."""
        if self.answer is not None and y >= 2:
            picture = self.picture(self.answer)
            line = (y - 2) * (1 if self.in_shades else 2)
            self._look(self.view.at_cell(line // picture.tall, (x - GUTTER) // picture.wide))

    def open(self) -> None:
        """Go to the worst element of the cell, which a thread finds."""
        if self.answer is not None and self.subject is not None:
            answer, subject = self.answer, self.subject
            block = self._block(answer)
            in_thread(self, "worst-of-cell", lambda: self._find(answer.chosen.form, subject, block))

    def _find(self, form: NamedShape, subject: Subject, block: Block) -> None:
        ref, cand = (side.reshape(form.shape) for side in subject.sides)
        self.post_message(self.Pointed(form.index_in(subject.form, worst_in(ref, cand, block))))

    def _block(self, answer: Heat) -> Block:
        view, chosen = self.view, answer.chosen
        plane = Plane(chosen.down, chosen.across, view.edges(0), view.edges(1))
        return plane.block(*view.cell, chosen.form.shape)

    # --- drawing ---------------------------------------------------------------------------------

    def picture(self, answer: Heat) -> Picture:
        """The cells, and how large they are drawn."""
        tall, wide = Picture.stretch(answer.cells.shape, self._room, self.in_shades)
        rows, columns = answer.view.edges(0)[:-1], answer.view.edges(1)[:-1]
        return Picture(answer.cells, answer.scale, rows, columns, self._cursor(answer), tall, wide)

    def draw(self, answer: Heat) -> Sequence[Line]:
        """Title, column numbers, cells, the scale, and the cell under the cursor."""
        picture, ramp = self.picture(answer), None if self.in_shades else Ramp.of(self.app)
        lines = list(shaded(picture) if ramp is None else coloured(picture, ramp))
        room = max(1, self.content_size.height - _AROUND)
        foot = [legend(answer.scale, ramp), self._read_out(answer)]
        return [self._title(answer), ruler(picture), *lines[:room], [], *foot]

    def _title(self, answer: Heat) -> Line:
        chosen, (rows, columns) = answer.chosen, self.view.per_cell
        sizes = " × ".join(f"{size:,}" for size in answer.view.size)
        others = [
            name
            for axis, (name, size) in enumerate(zip(*chosen.form, strict=True))
            if size > 1 and axis not in (chosen.down, chosen.across)
        ]
        of = [f"of {rows} × {columns}"] * ((rows, columns) != (1, 1)) + [f"over every {name}" for name in others]
        each = f"a cell is the largest {', '.join(of)}" if of else "a cell is one element"
        more = f"  {answer.planes} views" if answer.planes > 1 else ""
        return [(f"|Δ| {chosen.title}", "title"), (f"  {sizes}  {each}{more}", "muted")]

    def _cursor(self, answer: Heat) -> tuple[int, int]:
        """The answer's cell under the cursor; none while the part that contains it is being read."""
        is_shown = self.view.without_cursor() == answer.view.without_cursor()
        return self.view.cell if is_shown else (-1, -1)

    def _read_out(self, answer: Heat) -> Line:
        row, column = self._cursor(answer)
        if row < 0:
            return [("reading…", "muted")]
        names, view = answer.chosen.form.names, answer.view
        places = [
            f"{_called(names[axis])} {_range(view.edges(k)[at], view.edges(k)[at + 1])}"
            for k, axis, at in ((0, answer.chosen.down, row), (1, answer.chosen.across, column))
            if names[axis]
        ]
        value = float(answer.cells[row, column])
        how = "" if math.isfinite(value) else "diverges"
        still = "   enter: its worst element" if self.is_whole else "   reading…"
        return [(", ".join(places), "title"), (f"  largest |Δ| {number(value)}", how), (still, "muted")]


def _choices(form: NamedShape, heads: int | None) -> list[Chosen]:
    """The pairs of axes to choose from, the last two axes first; those with heads at the end."""
    flat = form.at_least_2d()
    axes = [axis for axis, size in enumerate(flat.shape) if size > 1]
    axes = axes if len(axes) >= 2 else sorted({*axes, len(flat.shape) - 1, len(flat.shape) - 2})[-2:]
    pairs = [Chosen(flat, a, b) for a in axes for b in axes if a < b][::-1]
    split = form.with_heads(heads) if heads else None
    if split is None:
        return pairs
    split = split.at_least_2d()
    head = len(split.shape) - 2
    before = [axis for axis in range(head) if split.shape[axis] > 1][-1:]
    return [*pairs, *(Chosen(split, axis, head) for axis in before), Chosen(split, head, head + 1)]


def _called(axis: str) -> str:
    """The name of an axis in front of an index; a name that ends in a digit gets a colon."""
    return f"{axis}:" if axis[-1].isdigit() else axis


def _range(begin: int, end: int) -> str:
    return str(begin) if end - begin == 1 else f"{begin}…{end - 1}"
