"""Pictures of the layer screen that were looked at: a change in them is to be looked at again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.making import SAMPLES
from tests.tui.layer.layer_host import CULPRIT, Host, Shown, samples

Compare = Callable[..., bool]


@pytest.mark.parametrize(
    ("view", "size", "theme", "doings"),
    [
        ("profile", (80, 24), "textual-dark", ()),
        ("heatmap", (160, 48), "textual-dark", ("move(1, 2)",)),
        ("values", (100, 30), "textual-light", ()),
        ("heatmap", (80, 24), "textual-light", ("shades",)),
    ],
    ids=["profile-80", "heatmap-160", "values-light", "shades-80"],
)
def test_the_layer_screen(
    snap_compare: Compare, view: str, size: tuple[int, int], theme: str, doings: tuple[str, ...]
) -> None:
    app: App[None] = Host(samples(injected=SAMPLES / "candidate_injected", golden=SAMPLES / "golden"), CULPRIT)

    async def show(pilot: Pilot[None]) -> None:
        app.theme = theme
        assert isinstance(app, Host)
        shown = Shown(app, pilot)
        await shown.settle()
        await shown.show(view)
        for doing in doings:
            await app.screen.run_action(doing)
        await shown.settle()

    assert snap_compare(app, terminal_size=size, run_before=show)
