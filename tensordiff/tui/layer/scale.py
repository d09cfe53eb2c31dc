"""Scales for errors: heights with labels, on a log or a linear scale, and colours of the current theme."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.color import Color as RichColor
from rich.style import Style
from textual.app import App
from textual.color import Color

from tensordiff.compare.measure.chunks import Floats

_MOST_DECADES = 16


class Scale(NamedTuple):
    """A range from ``low`` to ``high``, of log10 of the error or of the error itself."""

    low: float
    high: float
    is_log: bool = True

    def share(self, error: float) -> float:
        """The height of an error on the scale: 0 at the bottom or below, 1 at the top."""
        if not error > 0:
            return 0.0
        value = math.log10(error) if self.is_log else error
        return max(0.0, min(1.0, (value - self.low) / (self.high - self.low)))

    def shares(self, errors: Floats) -> Floats:
        """The heights of many finite errors."""
        with np.errstate(divide="ignore"):
            values = np.log10(errors) if self.is_log else errors
        return np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)

    def label(self, row: int, rows: int) -> str:
        """The label beside one of ``rows`` rows, counted from below; empty for most of them."""
        marks = self._marks(rows)
        for mark in marks:
            share = (mark - self.low) / (self.high - self.low)
            if min(rows - 1, int(share * rows)) == row:
                return f"1e{mark:+03.0f}" if self.is_log else f"{mark:.1e}"
        return ""

    def _marks(self, rows: int) -> list[float]:
        """Values to label, from the top: decades, no closer than two rows."""
        if not self.is_log:
            count = max(1, min(4, rows // 2))
            return [self.high * k / count for k in range(count, -1, -1)]
        decades = round(self.high - self.low)
        step = max(1, math.ceil(2 * decades / max(1, rows)))
        return [self.high - k for k in range(0, decades + 1, step)]


def scale_of(errors: Floats, is_log: bool = True) -> Scale:
    """A scale for all finite errors, in whole decades."""
    positive = errors[np.isfinite(errors) & (errors > 0)]
    if not positive.size:
        return Scale(-8.0, 0.0) if is_log else Scale(0.0, 1.0, False)
    if not is_log:
        return Scale(0.0, float(positive.max()), False)
    low, high = math.floor(math.log10(positive.min())), math.ceil(math.log10(positive.max()))
    high = max(high, low + 1)
    return Scale(float(max(low, high - _MOST_DECADES)), float(high))


Flags = NDArray[np.bool_]

_STEPS = 24
"""The number of colours. A style has two of them, and Textual caches a thousand styles."""
NOTHING = -1
"""The index for no error, which has no colour of the ramp."""
_STOPS = (0.0, 0.7, 1.0)
"""The positions of the theme's colours: most errors are in the upper half of a log scale, and only the
worst are hot.
"""


@dataclass(frozen=True, eq=False)
class Ramp:
    """Colours from the smallest error to the largest."""

    colours: tuple[Color, ...]
    ground: Color

    @classmethod
    def of(cls, app: App[object]) -> Ramp:
        """The ramp of the app's theme: from the background, through the theme's own colour, to that of errors."""
        names = ("surface", "primary", "error")
        return _ramp(tuple(app.theme_variables[name] for name in names))

    def places(self, shares: Floats, is_nothing: Flags) -> NDArray[np.int64]:
        """The index of the colour for each share of the scale; ``NOTHING`` if there is no error."""
        steps = np.minimum((shares * _STEPS).astype(np.int64), _STEPS - 1)
        return np.where(is_nothing, NOTHING, steps)

    def colour(self, place: int) -> RichColor:
        """One of the colours."""
        return (self.ground if place == NOTHING else self.colours[place]).rich_color

    def bar(self, count: int) -> list[Style]:
        """The whole ramp, in ``count`` spaces."""
        places = (k * (_STEPS - 1) // (count - 1) for k in range(count))
        return [Style.from_color(None, self.colour(place)) for place in places]

    @lru_cache(maxsize=4 * _STEPS * _STEPS)  # noqa: B019 - there are as many ramps as themes
    def halves(self, upper: int, lower: int) -> Style:
        """The style of a character whose upper and lower half have different colours."""
        return Style.from_color(self.colour(upper), self.colour(lower))

    def written_on(self, place: int, *, is_cursor: bool) -> Style:
        """The style of a mark on a cell, dark or light so that it can be read."""
        under = self.ground if place == NOTHING else self.colours[place]
        style = Style.from_color(under.get_contrast_text(1.0).rich_color, under.rich_color)
        return style + Style(bold=True, underline=is_cursor)


@lru_cache(maxsize=8)
def _ramp(names: tuple[str, ...]) -> Ramp:
    ground, *stops = (Color.parse(name) for name in names)
    points = (ground.blend(stops[0], 0.2), *stops)
    colours = [_between(points, k / (_STEPS - 1)) for k in range(_STEPS)]
    return Ramp(tuple(colours), ground)


def _between(points: tuple[Color, ...], share: float) -> Color:
    after = next((k for k, stop in enumerate(_STOPS) if share <= stop and k), len(_STOPS) - 1)
    begin, end = _STOPS[after - 1], _STOPS[after]
    return points[after - 1].blend(points[after], (share - begin) / (end - begin))
