"""What the rules panel and its dialogs look like. Each picture was looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from tensordiff.tui.rules.map_screen import MapScreen
from tests.tui.rules.panel_host import Host, opened, orphan, said, with_other_mlp
from tests.tui.waiting import settled, until

Snap = Callable[..., bool]


def test_the_panel_at_the_smallest_size(snap_compare: Snap, tmp_path: Path) -> None:
    app = Host(opened(tmp_path, with_other_mlp))

    async def arranged(pilot: Pilot[None]) -> None:
        app.panel.orphans.focus()
        await settled(app, pilot)
        app.panel.orphans.pick(app.panel.orphans.items[orphan(app, "reference", "o_proj-output")])
        app.panel._orphan_actions.show_heading()
        await pilot.pause()

    assert snap_compare(app, terminal_size=(80, 24), run_before=arranged)


def test_the_editor_with_its_preview(snap_compare: Snap, tmp_path: Path) -> None:
    app = Host(opened(tmp_path, with_other_mlp))

    async def arranged(pilot: Pilot[None]) -> None:
        app.panel.rules.focus()
        await settled(app, pilot)
        await pilot.press("a", *r"second$", "tab", *"down_proj")
        await until(pilot, lambda: "+4" in said(app, "#changes"))
        app.screen.set_focus(None)
        await settled(app, pilot)

    assert snap_compare(app, terminal_size=(120, 32), run_before=arranged)


def test_the_map_dialog(snap_compare: Snap, tmp_path: Path) -> None:
    session = opened(tmp_path, with_other_mlp)
    app = Host(session)

    async def arranged(pilot: Pilot[None]) -> None:
        app.push_screen(MapScreen(session, "layers.0.mlp.down_proj", "layers.0.mlp.second"))
        await settled(app, pilot)
        app.screen.set_focus(None)
        await settled(app, pilot)

    assert snap_compare(app, terminal_size=(160, 48), run_before=arranged)
