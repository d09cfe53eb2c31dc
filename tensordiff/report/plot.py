"""The report as a picture: the MSE of every output along the run, on a log axis, coloured by component.

A comparison with an injected run has two panels. The culprit and the outliers are labelled if their labels find room.
It is drawn by matplotlib's Agg backend with matplotlib's defaults, so that neither a display nor a user's matplotlibrc
changes it and the same comparison produces the same bytes. Names are drawn literally: ``$`` starts no formula.
"""

from __future__ import annotations

import io
import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensordiff.errors import printable
from tensordiff.report.labels import component, label
from tensordiff.report.model import ReportModel
from tensordiff.util.text_width import cut_end

# A colour-blind safe palette (Okabe and Ito), with a marker for each colour.
STYLES = {
    "attention": ("#0072b2", "o"), "mlp": ("#d55e00", "s"), "norm": ("#009e73", "^"), "embedding": ("#cc79a7", "D"),
    "head": ("#e69f00", "v"), "block": ("#56b4e9", "P"), "other": ("#777777", "X"),
}  # fmt: skip
_CULPRIT = "#b00020"
_LONGEST_LABEL, _LONGEST_TITLE = 44, 165  # characters
_CROWDED = 2000  # number of points from which they are drawn small
_MOST_OUTLIERS = 12
_DECADES, _SPREADS = 2.0, 4.0
"""How far an outlier lies above the median: in decades, and in median deviations."""
_LABEL_OFFSETS = ((7, 3, "left"), (-7, 3, "right"), (7, -9, "left"), (-7, -9, "right"))
_LABEL_LIFTS = (0, 11, 22, 33)
_SPELLED = str.maketrans({"Δ": "d", "×": "x", "…": "..."})


class Point(NamedTuple):
    """One output."""

    position: int
    """The position in execution order."""
    mse: float
    label: str
    component: str


class Scenario(NamedTuple):
    """One panel."""

    title: str
    points: tuple[Point, ...]


class PointLabel(NamedTuple):
    """The text of a label, and the point that it belongs to."""

    text: str
    at: tuple[float, float]
    is_culprit: bool


def render(model: ReportModel) -> bytes:
    """The report as PNG."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = scenarios(model)
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(12, 1.4 + 4.6 * len(panels)), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        _title(figure, model)
        for axis, panel in zip(axes, panels, strict=True):
            _panel(axis, panel, model)
        axes[-1].set_xlabel("layer index, in execution order")
        figure.draw_without_rendering()
        for axis, panel in zip(axes, panels, strict=True):
            ends = _ends(panel.points)
            taken = [(point.position, _height(point.mse, ends)) for point in panel.points]
            place_labels(axis, _labels(panel, model), taken)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _title(figure: Any, model: ReportModel) -> None:
    lines = textwrap.wrap(plain(model.sentence), _LONGEST_TITLE)[:2]
    text = "\n".join((f"{plain(model.title)}   {model.verdict}", *lines))
    figure.suptitle(text, fontsize=9.5, x=0.01, ha="left", parse_math=False)


def _panel(axis: Any, panel: Scenario, model: ReportModel) -> None:
    ends, size = _ends(panel.points), 26 if len(panel.points) <= _CROWDED else 7
    for name, (colour, marker) in STYLES.items():
        some = [point for point in panel.points if point.component == name]
        if some:
            xs, ys = [point.position for point in some], [_height(point.mse, ends) for point in some]
            axis.scatter(
                xs, ys, s=size, c=colour, marker=marker, label=f"{name} ({len(some)})", linewidths=0, alpha=0.9
            )
    _axis(axis, panel, ends)
    culprit = model.outcome.culprit
    if culprit is not None:
        axis.axvline(culprit.pair.index, color=_CULPRIT, linewidth=1, linestyle="--", alpha=0.6, zorder=0)
    if panel.points:
        axis.legend(loc="upper left", bbox_to_anchor=(1.005, 1), fontsize=8, frameon=False)


def scenarios(model: ReportModel) -> list[Scenario]:
    """The panels: the run as it was, and the run with the reference's inputs injected."""
    found = [("without injection" if model.has_injected else "", [(row, row.diff) for row in model.outputs])]
    if model.has_injected:
        found.append(("with the reference's inputs injected", [(row, row.injected) for row in model.outputs]))
    return [
        Scenario(title, tuple(Point(r.pair.index, d.mse, label(r.pair), component(r.pair.name)) for r, d in some if d))
        for title, some in found
    ]


# --- the axis ---------------------------------------------------------------------------------------


_MOST_DECADES = 250  # in either direction, so that positions beyond an end are still floats


class _AxisEnds(NamedTuple):
    """The ends of the log axis, where zeros and non-finite values are drawn."""

    zero: float
    nonfinite: float


def _ends(points: Sequence[Point]) -> _AxisEnds:
    finite = [point.mse for point in points if 0 < point.mse < math.inf]
    low, high = (min(finite), max(finite)) if finite else (1e-12, 1.0)
    least, most = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    return _AxisEnds(10.0 ** max(least, -_MOST_DECADES), 10.0 ** min(most, _MOST_DECADES))


def _height(mse: float, ends: _AxisEnds) -> float:
    if mse == 0:
        return ends.zero
    return min(max(mse, ends.zero), ends.nonfinite) if math.isfinite(mse) else ends.nonfinite


def _axis(axis: Any, panel: Scenario, ends: _AxisEnds) -> None:
    axis.set_yscale("log")
    axis.set_ylim(ends.zero / 3, ends.nonfinite * 3)
    axis.set_ylabel("MSE")
    axis.grid(visible=True, which="major", axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_title(panel.title, fontsize=9, loc="left")
    for value, text in _special_values(panel.points, ends):
        axis.axhline(value, color="#999999", linewidth=0.8, linestyle=":")
        axis.annotate(text, (1, value), xycoords=("axes fraction", "data"), fontsize=7, ha="right", va="bottom")
    if not panel.points:
        axis.text(0.5, 0.5, "nothing was measured", transform=axis.transAxes, ha="center")


def _special_values(points: Sequence[Point], ends: _AxisEnds) -> Iterator[tuple[float, str]]:
    if any(point.mse == 0 for point in points):
        yield ends.zero, "exactly 0"
    if any(not math.isfinite(point.mse) for point in points):
        yield ends.nonfinite, "NaN or infinite"


# --- outliers ---------------------------------------------------------------------------------------


def outliers(points: Sequence[Point]) -> list[Point]:
    """The points that lie clearly above the others, worst first."""
    edge = _edge([math.log10(point.mse) for point in points if 0 < point.mse < math.inf])
    high = [point for point in points if not point.mse < math.inf or (point.mse > 0 and math.log10(point.mse) > edge)]
    return sorted(high, key=_rank)[:_MOST_OUTLIERS]


def _edge(logs: Sequence[float]) -> float:
    if not logs:
        return math.inf
    middle = statistics.median(logs)
    spread = statistics.median(abs(log - middle) for log in logs)
    return middle + max(_DECADES, _SPREADS * spread)


def _rank(point: Point) -> tuple[bool, float, int]:
    return not math.isnan(point.mse), -point.mse if not math.isnan(point.mse) else 0.0, point.position


# --- labels -----------------------------------------------------------------------------------------


def _labels(panel: Scenario, model: ReportModel) -> list[PointLabel]:
    """The label of the culprit first, then those of the outliers."""
    culprit, ends = model.outcome.culprit, _ends(panel.points)
    first = [point for point in panel.points if culprit is not None and point.position == culprit.pair.index]
    rest = [point for point in outliers(panel.points) if point not in first]
    return [
        PointLabel(_label_text(point), (point.position, _height(point.mse, ends)), point in first)
        for point in (*first, *rest)
    ]


def _label_text(point: Point) -> str:
    return plain(cut_end(point.label, _LONGEST_LABEL, len))


def place_labels(axis: Any, labels: Sequence[PointLabel], points: Sequence[tuple[float, float]]) -> None:
    """Place labels so that none covers another label or a point; a label that finds no room is left out.

    Earlier labels get the better places. The figure must already be laid out.
    """
    taken = [_box_of(point) for point in axis.transData.transform(points)] if points else []
    frame = axis.get_window_extent()
    for item in labels:
        text = _annotation(axis, item)
        for offset, side in _label_offsets():
            text.set(position=offset, ha=side)
            box = text.get_window_extent()
            if _is_within(box.extents, frame.extents) and not any(_overlap(box.extents, other) for other in taken):
                taken.append(tuple(box.extents))
                break
        else:
            text.remove()


def _annotation(axis: Any, item: PointLabel) -> Any:
    style = {"color": _CULPRIT, "fontweight": "bold"} if item.is_culprit else {"color": "#333333"}
    return axis.annotate(
        item.text, item.at, textcoords="offset points", xytext=(0, 0), fontsize=7, parse_math=False, **style
    )


def _label_offsets() -> Iterator[tuple[tuple[int, int], str]]:
    for lift in _LABEL_LIFTS:
        for across, up, side in _LABEL_OFFSETS:
            yield (across, up + (lift if up > 0 else -lift)), side


def _box_of(point: Sequence[float]) -> tuple[float, ...]:
    return point[0] - 4, point[1] - 4, point[0] + 4, point[1] + 4


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _is_within(one: Sequence[float], frame: Sequence[float]) -> bool:
    return frame[0] < one[0] and frame[1] < one[1] and one[2] < frame[2] and one[3] < frame[3]


def plain(text: str) -> str:
    """Text in ASCII, which every font has; other characters are spelled out."""
    return printable(text).translate(_SPELLED).encode("ascii", "backslashreplace").decode()
