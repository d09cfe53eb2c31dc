"""The error along one axis, as bars: which tokens, which channels, which heads.

The height of a bar is the root mean square of its slice's errors, its shade reaches up to the largest error. If there
are more positions than columns, a bar stands for several of them and shows the worst.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from tensordiff.compare.look.axes import NamedShape
from tensordiff.compare.look.elements import AxisErrors, errors_along
from tensordiff.report.labels import number
from tensordiff.tui.layer.pane import Line, Pane, Piece
from tensordiff.tui.layer.scale import Scale, scale_of
from tensordiff.tui.layer.subject import Subject

EIGHTHS = " ▁▂▃▄▅▆▇█"
SHADE, ODD, ENDLESS, NONE = "░", "×", "∞", "·"
_GUTTER = 7
_WIDEST_BAR = 16

Bar = Sequence[Piece]
"""A bar's piece in each line, from below."""


class Profile(NamedTuple):
    """The error along one of the axes."""

    along: AxisErrors
    axes: tuple[str, ...]
    """The names of all axes, with their lengths."""
    name: str
    token_ids: tuple[int, ...]
    """The token ids of the positions, if these are tokens."""


class ProfilePane(Pane[Profile]):
    """Bars along an axis."""

    can: ClassVar[frozenset[str]] = frozenset({"axis", "log", "heads", "move", "page"})

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.axis, self.at, self.is_log = 0, 0, True
        self.heads: int | None = None

    def begin(self) -> None:
        """Reset the heads, which belong to one tensor; keep the axis, as far as it exists."""
        self.heads, self.at = None, 0

    def question(self) -> tuple[int, int | None]:
        """The axis, and the number of heads that the user gave."""
        return self.axis, self.heads

    def answers(self, subject: Subject, question: tuple[int, int | None]) -> Iterator[Profile]:
        """The error along that axis."""
        axis, heads = question
        choices = _choices(subject.form, heads or subject.heads)
        form, place = choices[axis % len(choices)]
        ref, cand = (side.reshape(form.shape) for side in subject.sides)
        names = tuple(f"{form.names[k] or 'place'} ({form.shape[k]:,})" for form, k in choices)
        name = form.names[place] or "place"
        ids = subject.token_ids if name == "token" and len(subject.token_ids) == form.shape[place] else ()
        for found in errors_along(ref, cand, place):
            yield Profile(found, names, name, ids)

    # --- the cursor ------------------------------------------------------------------------------

    def next_axis(self) -> None:
        """Show the next axis."""
        count = len(self.answer.axes) if self.answer else 1
        self.axis, self.at = (self.axis % count + 1) % count, 0
        self.ask()

    def choose_heads(self, heads: int | None) -> None:
        """Set the number of heads, and show the error along them."""
        if self.subject is not None and heads is not None:
            self.heads, self.axis, self.at = heads, -2, 0
            self.ask()

    def toggle_log(self) -> None:
        """Switch between a log and a linear scale."""
        self.is_log = not self.is_log
        self.repaint()

    def move(self, x: int, y: int) -> None:
        """Move to another bar."""
        self._go(self.at + (x + y) * self._per_bar)

    def page(self, x: int, y: int) -> None:
        """Move by a tenth of the axis."""
        self._go(self.at + (x + y) * max(1, len(self.answer.along.rms) // 10 if self.answer else 1))

    def point(self, x: int, _y: int) -> None:
        """Go to the bar under the mouse."""
        self._go((x - _GUTTER) // self._bar_width * self._per_bar)

    def _go(self, at: int) -> None:
        if self.answer is not None:
            self.at = max(0, min(at, len(self.answer.along.rms) - 1))
            self.repaint()

    # --- drawing ---------------------------------------------------------------------------------

    @property
    def _places(self) -> int:
        return len(self.answer.along.rms) if self.answer else 1

    @property
    def _room(self) -> int:
        return max(1, self.content_size.width - _GUTTER)

    @property
    def _per_bar(self) -> int:
        return max(1, -(-self._places // self._room))

    @property
    def _bar_width(self) -> int:
        return max(1, min(_WIDEST_BAR, self._room // max(1, self._places)))

    def draw(self, answer: Profile) -> Sequence[Line]:
        """Title, bars over an axis, and the bar under the cursor."""
        height = self.content_size.height
        per, starts = self._per_bar, np.arange(0, self._places, self._per_bar)
        rms, largest = (np.maximum.reduceat(side, starts) for side in answer.along)
        finite = np.concatenate([rms, largest])
        scale = scale_of(finite, self.is_log)
        rows = max(1, height - 5)
        lines: list[Line] = [self._title(answer), []]
        bars = [_bar(scale, rows, *both) for both in zip(rms.tolist(), largest.tolist(), strict=True)]
        lines += [self._bars(y, bars, scale.label(y, rows)) for y in range(rows - 1, -1, -1)]
        lines += [self._ruler(len(starts), per), [], self._read_out(answer)]
        return lines[:1] + lines[2:] if height < 12 else lines

    def _title(self, answer: Profile) -> Line:
        pieces: list[Piece] = [("|Δ| along  ", "title")]
        for k, name in enumerate(answer.axes):
            chosen = k == self.axis % len(answer.axes)
            pieces += [(f"▸{name}" if chosen else name, "title" if chosen else "muted"), ("  ", "")]
        return [*pieces, ("█", "bar"), (" rms  ", "muted"), (SHADE, "peak"), (" largest", "muted")]

    def _bars(self, y: int, bars: Sequence[Bar], label: str) -> Line:
        """One line through all bars; neighbours that look the same in it are one piece."""
        width, here = self._bar_width, self.at // self._per_bar
        gap = " " if width > 1 else ""
        line: list[Piece] = [(f"{label:>{_GUTTER - 1}}│", "muted")]
        for k, bar in enumerate(bars):
            text, how = bar[y]
            how = "here" if how == "bar" and k == here else how
            text = text * (width - len(gap)) + gap
            line[-1:] = [(line[-1][0] + text, how)] if line[-1][1] == how else [line[-1], (text, how)]
        return line

    def _ruler(self, bars: int, per: int) -> Line:
        """Numbers under the bars if they fit, and a mark under the cursor."""
        width = self._bar_width
        text = [" "] * (bars * width + 8)
        taken = 0
        for k in range(bars):
            label = f"{k * per:,}"
            if k * width >= taken and (k % _step(width, bars) == 0):
                text[k * width : k * width + len(label)] = label
                taken = k * width + len(label) + 1
        cursor = self.at // per * width
        before, under = "".join(text[:cursor]), "".join(text[cursor : cursor + max(1, width - (width > 1))])
        after = "".join(text[cursor + len(under) :])
        return [
            (" " * _GUTTER + before, "muted"),
            (under if under.strip() else "▲" + under[1:], "cursor"),
            (after, "muted"),
        ]

    def _read_out(self, answer: Profile) -> Line:
        at = min(self.at, self._places - 1)
        end = min(at // self._per_bar * self._per_bar + self._per_bar, self._places)
        begin = at // self._per_bar * self._per_bar
        place = f"{begin}" if end - begin == 1 else f"{begin}…{end - 1}"
        token = f" (id {answer.token_ids[at]})" if answer.token_ids and end - begin == 1 else ""
        rms, largest = (float(np.max(side[begin:end])) for side in answer.along)
        worst = int(np.argmax(np.where(np.isnan(answer.along.largest), np.inf, answer.along.largest)))
        return [
            (f"{answer.name} {place}{token}", "title"),
            (f"  largest |Δ| {number(largest)}  rms {number(rms)}", ""),
            (f"   worst: {answer.name} {worst}" if end - begin == 1 or worst else "", "muted"),
        ]


def _step(width: int, bars: int) -> int:
    """The step between numbered bars, from 1, 2, 5, 10 and so on, so that the numbers do not touch."""
    for step in (1, 2, 5, 10, 20, 50, 100):
        if step * width >= 4 and step * width * 3 >= len(f"{bars:,}") * 3 + 3:
            return step
    return 100


def _choices(form: NamedShape, heads: int | None) -> list[tuple[NamedShape, int]]:
    """The axes to choose from: those of the tensor that are longer than 1, then heads."""
    flat = form.at_least_2d()
    plain = [(flat, axis) for axis, size in enumerate(flat.shape) if size > 1] or [(flat, len(flat.shape) - 1)]
    split = form.with_heads(heads) if heads else None
    return plain + ([(split, len(split.shape) - 2), (split, len(split.shape) - 1)] if split else [])


def _bar(scale: Scale, rows: int, rms: float, largest: float) -> Bar:
    """A bar, line by line from below."""
    empty: list[Piece] = [(" ", "")] * (rows - 1)
    if math.isnan(largest):
        return [(ODD, "diverges"), *empty]
    if math.isinf(largest):
        return [(SHADE, "peak")] * (rows - 1) + [(ENDLESS, "diverges")]
    if largest == 0:
        return [(NONE, "muted"), *empty]
    solid, tall = (round(scale.share(height) * rows * 8) for height in (rms, largest))
    return [_part(solid - 8 * y, max(1, tall) - 8 * y, y) for y in range(rows)]


def _part(solid: int, tall: int, y: int) -> Piece:
    """The part of a bar in a line, from how many eighths of it are above the line's bottom."""
    if solid > 0:
        return EIGHTHS[min(solid, 8)], "bar"
    return (SHADE, "peak") if tall >= 4 or (tall > 0 and y == 0) else (" ", "")
