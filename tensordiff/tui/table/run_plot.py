"""The plot of a run, below the table: error over execution order, on a log scale.

``picture`` collects what is to be drawn, ``painted`` draws it as text in a thread, and ``Plot`` shows that. Only this
module imports plotext, which raises on NaN and infinities and keeps its state in a module: it is given finite numbers
only, by one thread at a time. Each component has a marker as well as a colour, because there may be no colour.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive

from tensordiff.tui.table.frames import PlotFrame
from tensordiff.tui.table.model import ABSENT, COMPONENTS, Listing, Suspects

Floats = NDArray[np.float64]
MARKS = {
    "attention": ("a", 12), "mlp": ("m", 10), "norm": ("n", 11), "embedding": ("e", 13),
    "head": ("h", 14), "block": ("b", 7), "other": ("·", 8),
}  # fmt: skip
"""For each component, a marker and one of the 16 colours that every terminal has, for a dark background."""
_INJECTED = ("+", 9)
_LEAST = -14.0
"""log10 of the value that is drawn for no error at all."""
_PER_COLUMN = 2
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Series:
    """Points of one kind."""

    name: str
    marker: str
    colour: int
    x: Floats
    y: Floats
    """log10 of the error."""


@dataclass(frozen=True)
class Picture:
    """Everything that is drawn."""

    series: Sequence[Series] = ()
    title: str = ""
    last: int = 1
    cursor: int | None = None
    suspects: tuple[int, int] | None = None
    is_light: bool = False
    """Whether the background is light, on which bright colours cannot be seen."""
    nowhere: int = 0
    """The number of errors that are NaN or infinite and cannot be drawn."""


class PlotView(NamedTuple):
    """The choices that a plot depends on."""

    metric: str
    has_injected: bool
    cursor: int | None
    suspects: Suspects
    is_light: bool


def picture(listing: Listing, seen: PlotView, columns: int) -> Picture:
    """The outputs' errors, thinned to what the columns can show."""
    values = listing.column(seen.metric)
    shown = (values != ABSENT) & ~listing.is_input
    series = []
    if seen.has_injected:
        given = listing.column("injected")
        series.append(_series("injected", *_INJECTED, given, (given != ABSENT) & ~listing.is_input, columns))
    series += [_series(name, *MARKS[name], values, shown & (listing.components == code), columns)
              for code, name in enumerate(COMPONENTS)]  # fmt: skip
    drawn = tuple(one for one in series if len(one.x))
    nowhere = int((shown & ~np.isfinite(values)).sum())
    title, last = f"{seen.metric} over execution order", max(1, len(listing) - 1)
    return Picture(drawn, title, last, seen.cursor, seen.suspects.span, seen.is_light, nowhere)


def _series(name: str, marker: str, colour: int, values: Floats, mask: NDArray[np.bool_], columns: int) -> Series:
    x = np.flatnonzero(mask & np.isfinite(values))
    y = np.log10(np.maximum(values[x], 10.0**_LEAST))
    return Series(name, marker, colour, *_thinned(x.astype(np.float64), y, len(values), columns * _PER_COLUMN))


def _thinned(x: Floats, y: Floats, count: int, columns: int) -> tuple[Floats, Floats]:
    """The largest and the least point of each column: more cannot be told apart."""
    if len(x) <= 2 * columns:
        return x, y
    bins = (x * columns / count).astype(np.intp)
    order = np.lexsort((y, bins))
    firsts = np.flatnonzero(np.diff(bins[order], prepend=-1))
    lasts = np.append(firsts[1:] - 1, len(order) - 1)
    kept = np.unique(order[np.concatenate((firsts, lasts))])
    return x[kept], y[kept]


def draw(what: Picture, width: int, height: int) -> Text:
    """The picture as text of exactly that size."""
    with _ONE_AT_A_TIME:
        return Text.from_ansi(_built(what, width, height), no_wrap=True)


def _built(what: Picture, width: int, height: int) -> str:
    import plotext as plt

    plt.clear_figure()
    plt.limit_size(False, False)
    plt.plotsize(width, height)
    plt.theme("clear")
    for one in what.series:
        colour = on_ground(one.colour, what.is_light)
        plt.scatter(one.x.tolist(), one.y.tolist(), marker=one.marker, color=colour)
    plt.xlim(0, what.last)
    _ticks(plt, what)
    for at in (*(what.suspects or ()), *(() if what.cursor is None else (what.cursor,))):
        plt.vline(at, color=3 if at == what.cursor else 6)
    built: str = plt.build()
    return built


def on_ground(colour: int, is_light: bool) -> int:
    """A colour for the background: on a light one, the dark variant of a bright colour, and black for white."""
    return {7: 0, 8: 8}.get(colour, colour - 8) if is_light else colour


def painted(what: Picture, width: int, height: int) -> Text:
    """The picture and its legend in the given room; a message if there is nothing to draw."""
    if width < 20 or height < 5:
        return Text("no room for a plot")
    if not what.series:
        return Text("no error to plot yet" if not what.nowhere else "all errors are NaN or infinite")
    told = legend(what)
    told.truncate(width, overflow="ellipsis")
    return Text("\n").join([told, draw(what, width, height - 1)])


def legend(what: Picture) -> Text:
    """The meaning of the markers."""
    parts = [Text(what.title, "bold")]
    parts += [
        Text(f"{one.marker} {one.name}", f"color({on_ground(one.colour, what.is_light)})")
        for one in reversed(what.series)
    ]
    if what.nowhere:
        parts.append(Text(f"{what.nowhere} NaN or infinite, not drawn"))
    return Text("  ").join(parts)


def _ticks(plt: object, what: Picture) -> None:
    """Set the ticks to powers of ten; plotext's own log scale writes 0.00000001."""
    ys = np.concatenate([one.y for one in what.series]) if what.series else np.array([-8.0, 0.0])
    low, high = int(np.floor(ys.min())), int(np.ceil(ys.max()))
    high = max(high, low + 1)
    step = max(1, (high - low) // 5)
    at = list(range(low, high + 1, step))
    plt.ylim(low, high)  # type: ignore[attr-defined]
    plt.yticks(at, ["0" if tick == int(_LEAST) else f"1e{tick}" for tick in at])  # type: ignore[attr-defined]
    count = 5
    places = sorted({round(what.last * k / count) for k in range(count + 1)})
    plt.xticks(places, [str(place) for place in places])  # type: ignore[attr-defined]


_AXIS = 7
"""About how many columns the labels of the y axis take."""


class Plot(PlotFrame):
    """The last picture that was drawn."""

    drawn: reactive[Text | None] = reactive(None)

    @dataclass
    class Pointed(Message):
        """The user clicked at a place of the run."""

        place: float
        """From 0, the first layer, to 1, the last."""

    @dataclass
    class Resized(Message):
        """The size of the plot changed."""

    def render(self) -> Text:
        """The picture, or a message that there is none."""
        return super().render() if self.drawn is None else self.drawn

    def on_resize(self) -> None:
        """Have the plot drawn again."""
        self.post_message(self.Resized())

    def on_click(self, event: Click) -> None:
        """Point at a layer."""
        width = max(1, self.content_size.width - _AXIS)
        self.post_message(self.Pointed(min(1.0, max(0.0, (event.x - _AXIS) / width))))
