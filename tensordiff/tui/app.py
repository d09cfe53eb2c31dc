"""The application around the screens: theme, keys, palette, help, and a clean end.

Screens and the session hold what is compared. However the app ends (a key, SIGTERM, a defect), the terminal is restored
and no child process is left running.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on
from textual.app import App
from textual.binding import BindingType
from textual.events import Event
from textual.events import Key as KeyEvent
from textual.screen import Screen

from tensordiff.errors import printable
from tensordiff.session.storage.preferences import THEMES, Preferences
from tensordiff.tui.comparison.opening_screen import CouldNotOpen, OpeningScreen
from tensordiff.tui.ending import INTERRUPTED, TERMINATED, Ending
from tensordiff.tui.key_replay import KeyReplay, handle_messages
from tensordiff.tui.keys import BY_ID, bindings
from tensordiff.tui.launch import Launch
from tensordiff.tui.notice import sentence_of, tell
from tensordiff.tui.palette import Commands
from tensordiff.tui.permissions import ALL_PERMISSIONS, Permissions
from tensordiff.tui.table.columns import COLUMNS
from tensordiff.tui.threads import ThreadFailed
from tensordiff.util.garbage_collector import IDLE_COLLECTION_S, collect_if_much, collect_when_idle, collected_when_idle

if TYPE_CHECKING:
    from tensordiff.dump import Dump
    from tensordiff.session.request import Request
    from tensordiff.tui.comparison.screen import ComparisonScreen
    from tensordiff.tui.comparison.session_owner import SessionOwner
    from tensordiff.tui.jobs.job_line import JobLine
    from tensordiff.tui.layer.screen import LayerScreen

_SWITCH_S = 0.001
"""How long a measuring thread may keep the event loop waiting; Python's default is five times that."""
_MOST_POSTPONED = 30
"""How often garbage collection may be postponed because keys come."""
_WATCH_SERVER_S = 2.0
_THEMES = dict(zip(THEMES, ("textual-dark", "textual-light"), strict=True))


class TensordiffApp(App[int]):
    """Two dumps, or the start screen if none were given."""

    TITLE = "tensordiff"
    BINDINGS: ClassVar[list[BindingType]] = bindings("app")
    COMMANDS = {Commands}  # noqa: RUF012 - declared as in Textual
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (150, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    CSS = """
    #middle { height: 1fr; }
    #side { width: 46; display: none; border-right: solid $panel; }
    .-narrow #side { width: 100%; }
    .-wide #side { width: 60; }
    #main { width: 1fr; }
    .-narrow #main.-beside { display: none; }
    #about { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    .-short #plot { display: none; }
    """

    def __init__(
        self, launch: Launch | Request | None = None, settings: Preferences | None = None, *, saves_state: bool = True,
        permissions: Permissions = ALL_PERMISSIONS,
    ) -> None:  # fmt: skip
        super().__init__()
        self.launch, self.settings, self.saves_state = launch, settings or Preferences(), saves_state
        self.permissions = permissions
        columns = {column.id for column in COLUMNS}
        self.settings.check(columns=columns, keys=BY_ID, themes=[*THEMES, *self.available_themes])
        self._replay = KeyReplay()
        self._is_typed_at, self._postponed = False, 0
        self.ending = Ending()
        """Ends the app from outside, once ``minded`` while it runs on a terminal."""
        self._leaving = ExitStack()
        """What must be undone at the end."""
        self.sentence = ""
        """Why it ended, if not by the user's wish."""
        self._compared: SessionOwner | None = None
        """The owner of the first comparison when the app ended."""

    def on_mount(self) -> None:
        """Apply theme and keys from the settings, then show the first screen."""
        self.theme = _THEMES.get(self.settings.theme or "dark", self.settings.theme or "")
        self.set_keymap(dict(self.settings.keys))
        self._mind_signals()
        self._leaving.enter_context(collected_when_idle())
        self.set_interval(IDLE_COLLECTION_S, self.collect_garbage)
        sys.setswitchinterval(_SWITCH_S)
        if self.is_web:
            self.set_interval(_WATCH_SERVER_S, partial(self._leave_with_server, os.getppid()))
        self.push_screen(self._first_screen())
        for sentence in self.settings.sentences:
            tell(self, sentence, "warning")

    def on_unmount(self) -> None:
        """Undo what ``on_mount`` changed."""
        self._leaving.close()

    def _first_screen(self) -> Screen[None]:
        if self.launch is None:
            from tensordiff.tui.start import StartScreen

            return StartScreen()
        if isinstance(self.launch, Launch):
            return OpeningScreen(self.launch, self.settings.columns)
        return self.comparison(self.launch)

    def comparison(self, request: Request) -> ComparisonScreen:
        """A screen that compares. The modules it needs are loaded by now, or loading them blocks."""
        from tensordiff.tui.comparison.screen import ComparisonScreen

        return ComparisonScreen(request, saves_state=self.saves_state, columns=self.settings.columns)

    def show_parameters(self, below: Screen[None], request: Request, reference: Dump, candidate: Dump) -> None:
        """Show two checkpoints, in place of the screen that opened them and of any dialog above it."""
        from tensordiff.tui.weights.screen import WeightsScreen

        while self.screen is not below:
            self.pop_screen()
        self.switch_screen(WeightsScreen(request, reference, candidate, saves_state=self.saves_state))

    async def on_opening_screen_loaded(self, message: OpeningScreen.Loaded) -> None:
        """Replace the frame by the comparison, and replay the keys typed meanwhile."""
        for node in (self.focused or self.screen).ancestors_with_self:
            if node is not self:
                await handle_messages(node)  # keys that are still on their way to the frame
        self._replay.begin(message.typed)
        await self.switch_screen(self.comparison(message.request))
        self.run_worker(self._replay.run(self), "replay", "replay")

    def collect_garbage(self) -> None:
        """Collect garbage, unless keys come: the next one would wait. Not postponed forever, or memory would fill."""
        self._postponed = self._postponed + 1 if self._is_typed_at and self._postponed < _MOST_POSTPONED else 0
        self._is_typed_at = False
        if self._postponed:
            collect_if_much()
        else:
            collect_when_idle()

    async def on_event(self, event: Event) -> None:
        """Hold back keys that come while others are replayed."""
        self._is_typed_at |= isinstance(event, KeyEvent)
        if not (isinstance(event, KeyEvent) and not event.is_forwarded and self._replay.takes(event)):
            await super().on_event(event)

    def compare(self, reference: Path, candidate: Path) -> None:
        """Compare two dumps, on top of the current screen."""
        launch = Launch(reference, candidate, partial(_plain_request, reference, candidate))
        self.push_screen(OpeningScreen(launch, self.settings.columns))

    def on_layer_screen_asked(self, message: LayerScreen.Asked) -> None:
        """Pass a request of the layer screen on to the comparison below it."""
        from tensordiff.tui.comparison.screen import ComparisonScreen

        below = next(screen for screen in reversed(self.screen_stack) if isinstance(screen, ComparisonScreen))
        below.run_for_row(message.what, message.row)

    # --- the end ---------------------------------------------------------------------------------

    def _mind_signals(self) -> None:
        """On a signal, leave as if the user had quit, so that the terminal is restored."""
        if not self.is_headless:
            self.ending.listen(self.leave)

    def _leave_with_server(self, server: int) -> None:
        """Leave if the server is gone: a killed server sends no message."""
        if os.getppid() != server:
            self.leave(TERMINATED)

    def leave(self, status: int, sentence: str = "") -> None:
        """End with a status, and cancel what runs."""
        self.sentence = sentence
        owners = (getattr(screen, "owner", None) for screen in self.screen_stack)
        self._compared = next((owner for owner in owners if owner is not None), None)
        for job in self._jobs():
            if job.run is not None:
                job.run.cancel()
        self.exit(status)

    def farewell(self) -> tuple[str, ...]:
        """Where everything that was compared is, to be printed on the terminal after the app ends.

        A demo saves no session, but the tutorial continues with its dumps.
        """
        owner = self._compared
        if owner is None or owner.session is None or self.sentence:
            return ()
        from tensordiff.session.command_line import closing_lines

        return tuple(closing_lines(owner.asked, owner.request, owner.keeper.path if self.saves_state else None))

    def _jobs(self) -> list[JobLine]:
        return [cast("JobLine", job) for screen in self.screen_stack for job in screen.query("JobLine")]

    @on(CouldNotOpen)
    def _give_up(self, message: CouldNotOpen) -> None:
        """If the dumps were named on the command line, end with the error; else go back to choosing others."""
        if self.launch is not None and len(self.screen_stack) <= 2:
            self.leave(2, message.sentence)
        else:
            self.pop_screen()
            self.notify(printable(message.sentence), severity="error", markup=False, timeout=12)

    @on(ThreadFailed)
    def _tell_failure(self, message: ThreadFailed) -> None:
        tell(self, sentence_of(message.error), "error")

    async def action_quit(self) -> None:
        """Quit now."""
        self.leave(0)

    def action_interrupt(self) -> None:
        """Copy the text selected with the mouse; if there is none, quit."""
        selected = self.screen.get_selected_text()
        if selected:
            self.copy_to_clipboard(selected)
        else:
            self.leave(INTERRUPTED)

    async def action_back(self) -> None:
        """Leave this screen. On the first one quit, asking only if something runs."""
        if len(self.screen_stack) > 2:
            self.screen.dismiss()
        elif any(job.run is not None for job in self._jobs()):
            from tensordiff.tui.dialogs import Choose

            choices = (("stay", "stay"), ("quit", "quit, ending what runs"))
            self.push_screen(Choose("Something is running", choices), self._quit_if)
        else:
            self.leave(0)

    def _quit_if(self, choice: str | None) -> None:
        if choice == "quit":
            self.leave(0)

    def action_escape(self) -> None:
        """Leave what is transient, or else a screen above another."""
        screen: Any = self.screen
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif not (hasattr(screen, "leave_transient") and screen.leave_transient()) and len(self.screen_stack) > 2:
            self.screen.dismiss()

    def notify(self, message: str, **options: Any) -> None:
        """Show a notification, unless the same one is still shown: another would only cover more of the screen."""
        if not any(shown.message == message for shown in self._notifications):
            super().notify(message, **options)

    # --- help, zoom, theme -----------------------------------------------------------------------

    def action_help(self) -> None:
        """Show the keys that work now, those of the focused part first."""
        from tensordiff.tui.key_help import KeyHelpScreen, key_help

        self.push_screen(KeyHelpScreen(key_help(self.screen)))

    def action_zoom(self) -> None:
        """Give the whole screen to the focused part, or shrink it back."""
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif self.screen.focused is not None:
            self.screen.maximize(self.screen.focused)

    def action_switch_theme(self) -> None:
        """Switch between light and dark."""
        dark = self.current_theme.dark
        self.theme = _THEMES["light" if dark else "dark"]


def _plain_request(reference: Path, candidate: Path) -> Request:
    """A request with only two sides; called in a thread, because it loads everything that compares."""
    from tensordiff.session.request import Request

    return Request(reference, candidate)
