"""A small host for the rules panel, on real dumps with some layers called otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Footer, Static

from tensordiff.align.rules.rule_book import RuleBook
from tensordiff.dump import open_dump
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.comparison.messages import Aligned, AlignmentFailed
from tensordiff.tui.comparison.session_owner import SessionOwner
from tensordiff.tui.notice import sentence_of, tell
from tensordiff.tui.permissions import ALL_PERMISSIONS
from tensordiff.tui.rules.panel import RulesPanel
from tensordiff.tui.threads import ThreadFailed, in_thread
from tests.making import SAMPLES, write

REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "max"


class Host(App[None]):
    """The panel and nothing else."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "focus_next", show=False),
        Binding("shift+tab", "focus_previous", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False
    permissions = ALL_PERMISSIONS

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.owner = SessionOwner(session.request, self._start, self.post_message, saves_state=False)
        self.owner.session = session
        self.owner.book = RuleBook(session.rules, session.dumps.preset_rules, session.saved_rules)
        self.session = session
        self.aligned: list[Session] = []
        self.written: list[Path] = []

    def _start(self, group: str, work: Callable[[], object]) -> None:
        in_thread(self.screen_stack[0], group, work)

    def compose(self) -> ComposeResult:
        yield RulesPanel(self.session, self.owner.book)
        yield Footer()

    @property
    def panel(self) -> RulesPanel:
        return self.screen_stack[0].query_one(RulesPanel)

    def show(self) -> None:
        assert self.owner.session is not None
        self.panel.show(self.owner.session, self.owner.book, is_aligning=self.owner.is_aligning)

    def on_rules_panel_edited(self, event: RulesPanel.Edited) -> None:
        self.owner.edit_rules(event.book)
        self.show()

    def on_rules_panel_written(self, event: RulesPanel.Written) -> None:
        self.written.append(event.path)
        self.owner.rules_written(event.book, event.path)
        self.show()

    def on_aligned(self, event: Aligned) -> None:
        assert self.owner.take_alignment(event) and self.owner.session is not None
        self.aligned.append(self.owner.session)
        self.show()

    def on_alignment_failed(self, event: AlignmentFailed) -> None:
        assert self.owner.take_failure(event)
        tell(self, sentence_of(event.error), "error")

    def on_thread_failed(self, event: ThreadFailed) -> None:
        tell(self, sentence_of(event.error), "error")


def renamed(source: Path, folder: Path, rename: Callable[[str], str]) -> Path:
    """The same tensors under other names."""
    return write(folder, {rename(entry.name): entry.read() for entry in open_dump(source).entries})


def opened(folder: Path, rename: Callable[[str], str], rules: Path | None = None) -> Session:
    """The samples of Hugging Face and MAX, some of MAX's layers called otherwise."""
    return Session.open(Request(REFERENCE, renamed(CANDIDATE, folder / "renamed", rename), rules=rules, learn=False))


def with_other_mlp(name: str) -> str:
    """``mlp.down_proj`` by a name that no preset knows."""
    return name.replace("mlp.down_proj", "mlp.second").replace("self_attn.o_proj", "self_attn.merge")


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
