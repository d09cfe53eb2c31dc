"""Names beside the points of a plot, so placed that none lies on another; one that finds no room is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_SIDES = ((7, 3, "left"), (-7, 3, "right"), (7, -9, "left"), (-7, -9, "right"))
_LIFTS = (0, 11, 22, 33)


class Name(NamedTuple):
    """What to write, and beside which point."""

    text: str
    at: tuple[float, float]
    is_culprit: bool


def place(axis: Any, names: Sequence[Name], points: Sequence[tuple[float, float]]) -> None:
    """Write names, the first first. The figure must be laid out already."""
    taken = [_box_of(point) for point in axis.transData.transform(points)] if points else []
    frame = axis.get_window_extent()
    for name in names:
        text = _written(axis, name)
        for offset, side in _places():
            text.set(position=offset, ha=side)
            box = text.get_window_extent()
            if _is_within(box.extents, frame.extents) and not any(_overlap(box.extents, other) for other in taken):
                taken.append(tuple(box.extents))
                break
        else:
            text.remove()


def _written(axis: Any, name: Name) -> Any:
    style = {"color": "#b00020", "fontweight": "bold"} if name.is_culprit else {"color": "#333333"}
    return axis.annotate(
        name.text, name.at, textcoords="offset points", xytext=(0, 0), fontsize=7, parse_math=False, **style
    )


def _places() -> Iterator[tuple[tuple[int, int], str]]:
    for lift in _LIFTS:
        for across, up, side in _SIDES:
            yield (across, up + (lift if up > 0 else -lift)), side


def _box_of(point: Sequence[float]) -> tuple[float, ...]:
    return point[0] - 4, point[1] - 4, point[0] + 4, point[1] + 4


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _is_within(one: Sequence[float], frame: Sequence[float]) -> bool:
    return frame[0] < one[0] and frame[1] < one[1] and one[2] < frame[2] and one[3] < frame[3]
