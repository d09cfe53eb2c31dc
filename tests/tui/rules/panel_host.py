"""A small host for the rules panel, on real dumps with some layers called otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Footer, Static

from tensordiff.dump import open_dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.rules.panel import RulesPanel
from tests.making import SAMPLES, write

REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "max"


class Host(App[None]):
    """The panel and nothing else."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "focus_next", show=False),
        Binding("shift+tab", "focus_previous", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.aligned: list[Session] = []
        self.written: list[Path] = []

    def compose(self) -> ComposeResult:
        yield RulesPanel(self.session)
        yield Footer()

    @property
    def panel(self) -> RulesPanel:
        return self.query_one(RulesPanel)

    def on_rules_panel_aligned(self, event: RulesPanel.Aligned) -> None:
        self.aligned.append(event.session)

    def on_rules_panel_written(self, event: RulesPanel.Written) -> None:
        self.written.append(event.path)


def renamed(source: Path, folder: Path, rename: Callable[[str], str]) -> Path:
    """The same tensors under other names."""
    return write(folder, {rename(entry.name): entry.read() for entry in open_dump(source).entries})


def opened(folder: Path, rename: Callable[[str], str], rules: Path | None = None) -> Session:
    """The samples of Hugging Face and MAX, some of MAX's layers called otherwise."""
    return Session.open(Request(REFERENCE, renamed(CANDIDATE, folder / "renamed", rename), rules=rules))


def with_other_mlp(name: str) -> str:
    """``mlp.down_proj`` by a name that no preset knows."""
    return name.replace("mlp.down_proj", "mlp.second").replace("self_attn.o_proj", "self_attn.merge")


async def settled(app: Host, pilot: Pilot[None]) -> None:
    """Wait for what runs, and for what it starts."""
    for _ in range(3):
        await pilot.pause()
        await app.workers.wait_for_complete()
    await pilot.pause()


def drawn(widget: Widget) -> str:
    """What a widget shows, as text."""
    lines = (widget.render_line(y) for y in range(widget.size.height))
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def said(host: Host, selector: str) -> str:
    """What a line of text says."""
    return str(host.screen.query_one(selector, Static).content)


def orphan(host: Host, side: str, part: str) -> int:
    """The line of an orphan."""
    items = host.panel.orphans.items
    return next(k for k, one in enumerate(items) if one.side == side and part in one.entry.name)
