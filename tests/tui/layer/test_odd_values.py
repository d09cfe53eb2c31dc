"""Tensors that have no ordinary numbers to show: every view says something true, and none fails."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.layer.screen import VIEWS
from tests.making import held, numbers, write
from tests.tui.layer.layer_host import Shown, of, samples, showing
from tests.tui.waiting import until

ODD: dict[str, tuple[Array, Array]] = {
    "scalar": (np.array(1.0), np.array(1.5)),
    "one axis": (np.arange(5.0), np.arange(5.0) + 1),
    "all NaN": (np.full((2, 3), math.nan), np.full((2, 3), math.nan)),
    "NaN apart": (np.zeros((2, 3)), np.array([[0, math.nan, 0], [math.inf, 0, 2.0]])),
    "integers": (np.array([[2**62, 1], [3, 4]]), np.array([[2**62 + 1, 1], [3, 5]])),
    "booleans": (np.array([True, False, True]), np.array([True, True, True])),
    "zero reference": (np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)),
    "equal": (np.ones((3, 4)), np.ones((3, 4))),
    "bfloat16": (np.ones((3, 4), DTYPES["bfloat16"]), np.full((3, 4), 1.5, DTYPES["bfloat16"])),
    "many axes": (numbers(2, 1, 3, 2, 4), numbers(2, 1, 3, 2, 4, seed=1)),
    "complex": (np.array([[1 + 2j, 3j]]), np.array([[1 + 2j, 5j]])),
    "huge": (np.array([1e300, -1e300]), np.array([-1e300, 1e300])),
}


DOINGS = (
    "axis", "log", "side", "shades", "zoom(1)", "move(1, 0)", "move(0, 1)", "move(-1, 0)", "move(0, -1)",
    "zoom(-1)", "slice(1)", "page(0, 1)", "side", "axis",
)  # fmt: skip


def written(folder: Path, reference: dict[str, Array], candidate: dict[str, Array]) -> Session:
    """Two dumps as tensordiff writes them, which hold every type."""
    return Session.open(Request(write(folder / "a", reference), write(folder / "b", candidate)))


async def poke(shown: Shown, view: str) -> str:
    """What a view shows, and that it stands everything that can be done in it."""
    await shown.show(view)
    await until(shown.pilot, lambda: "reading…" not in shown.text)  # a heatmap is refined in a second pass
    text = shown.text
    for doing in DOINGS:
        await shown.screen.run_action(doing)
    await shown.settle()
    assert "failed" not in shown.text and "fail" not in shown.said()
    return text


@pytest.mark.parametrize("view", VIEWS)
async def test_every_view_of_every_odd_tensor(view: str, tmp_path: Path) -> None:
    sides = ({f"{name}-output": pair[k] for name, pair in ODD.items()} for k in (0, 1))
    async with showing(written(tmp_path, *sides), "scalar", (100, 30)) as shown:
        assert len(shown.app.rows) == len(ODD)
        for at in range(len(ODD)):
            shown.screen.walk_to(at)
            assert await poke(shown, view)


async def texts_of(folder: Path, name: str, *views: str) -> list[str]:
    sides = ({"x-output": side} for side in ODD[name])
    async with showing(written(folder, *sides), "x", (100, 30)) as shown:
        return [await shown.show(view) for view in views]


async def test_nan_and_infinity_are_marked_and_counted(tmp_path: Path) -> None:
    histogram, heatmap, profile, values, worst = await texts_of(
        tmp_path, "NaN apart", "histogram", "heatmap", "profile", "values", "worst"
    )
    assert "NaN on one side 1   infinitely apart 1" in histogram
    cells = heatmap[: heatmap.index("blank: equal")]
    assert "×" in cells and "∞" in cells
    assert "×" in profile
    assert "[0, 1]" in values.splitlines()[-1] and "nan" in values
    assert worst.splitlines()[2].split()[1:3] == ["[0,", "1]"]


async def test_equal_tensors_have_no_worst_element(tmp_path: Path) -> None:
    worst, histogram = await texts_of(tmp_path, "equal", "worst", "histogram")
    assert worst == "no element differs"
    assert "no element differs by a finite amount" in histogram and "equal 12" in histogram


async def test_integers_keep_all_their_digits(tmp_path: Path) -> None:
    (values,) = await texts_of(tmp_path, "integers", "values")
    assert str(2**62 + 1) in values


async def test_an_empty_tensor_says_so(tmp_path: Path) -> None:
    empty = np.zeros((3, 0), np.float32)
    async with showing(of(tmp_path, {"x-output": empty}, {"x-output": empty}), "x") as shown:
        texts = {view: await poke(shown, view) for view in VIEWS}
    assert texts["heatmap"] == "both tensors are empty, of shape [3, 0]"


async def test_shapes_that_nobody_reconciled(tmp_path: Path) -> None:
    session = of(tmp_path, {"x-output": numbers(3, 4)}, {"x-output": numbers(5, 2)})
    row = next(iter(session.rows()), None)
    if row is None:
        pytest.skip("these are not paired at all")
    async with showing(session, "x") as shown:
        texts = {view: await poke(shown, view) for view in ("profile", "heatmap", "values", "statistics")}
        assert "? unknown" in shown.facts and "float32 [3, 4]" in shown.facts and "float32 [5, 2]" in shown.facts
    assert texts["profile"].startswith("there are no numbers to show: shapes [3, 4] and [5, 2]")
    assert "12" in texts["statistics"] and "10" in texts["statistics"]


async def test_a_side_that_cannot_be_read() -> None:
    reference, candidate = held({"x-output": numbers(3)}), held({"x-output": None})
    session = Session.of_dumps(samples().request, reference, candidate)
    async with showing(session, "x") as shown:
        texts = {view: await poke(shown, view) for view in ("profile", "heatmap", "values", "statistics")}
        assert "unreadable" in shown.facts
    assert "lost.pt: is truncated; dump it again" in texts["heatmap"]
    assert "candidate: lost.pt: is truncated; dump it again" in texts["statistics"]


@pytest.mark.parametrize("name", ["blocks[/0]", "a[red]b[/]", "层.注意力.q", "x\ny\x1b[31m", "e\u0301" * 40, "." * 30])
async def test_no_name_crashes_or_vanishes(name: str, tmp_path: Path) -> None:
    tensors = {f"{name}-output": numbers(3, 4), f"{name}.part-output": numbers(3, 4)}
    candidate = {key: value + np.float32(1) for key, value in tensors.items()}
    session = of(tmp_path, tensors, candidate)
    rows = list(session.rows())
    async with showing(session, rows[0].pair.name, (60, 20), rows) as shown:
        text = shown.facts + await shown.show("neighbours")
        shown_part = "".join(c for c in name if c.isprintable())[-3:]
        assert shown_part in text
        assert "\x1b" not in text


async def test_any_size_of_terminal(tmp_path: Path) -> None:
    session = of(tmp_path, {"x-output": numbers(1, 70, 300)}, {"x-output": numbers(1, 70, 300, seed=1)})
    async with showing(session, "x", (100, 30)) as shown:
        for view in VIEWS:
            await shown.show(view)
            for size in ((20, 8), (1, 1), (200, 60)):
                await shown.pilot.resize_terminal(*size)
            await shown.settle()
            assert shown.text and "failed" not in shown.text
            assert lines_fit(shown)


def lines_fit(shown: Shown) -> bool:
    width = shown.screen.pane.content_size.width
    return all(cell_len(line) <= width for line in shown.text.splitlines())


async def test_the_views_fit_80_by_24(tmp_path: Path) -> None:
    session = of(tmp_path, {"x-output": numbers(1, 70, 300)}, {"x-output": numbers(1, 70, 300, seed=1)})
    async with showing(session, "x", (80, 24)) as shown:
        for view in VIEWS:
            await shown.show(view)
            assert lines_fit(shown), shown.text
            assert len(shown.text.splitlines()) <= shown.screen.pane.content_size.height
