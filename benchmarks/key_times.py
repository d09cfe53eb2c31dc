"""How long a key takes in the app: from the key's event to the end of the repaint that shows what it did.

The app runs headless, and turns what it would write to a terminal into text, as it does on one. What a key does is
looked for on the screen's own state when something is painted: that the cursor stands elsewhere, that rows are sorted,
that a filter's rows are shown. A typed character has two times: until it is shown, and until what it finds is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from textual.widgets import Input

from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.dialogs import GoTo
from tensordiff.tui.layer.screen import LayerScreen
from tensordiff.tui.table.model import DIVERGES
from tensordiff.tui.table.table import LayerTable


class KeyTime(NamedTuple):
    """From a key to its repaint."""

    clock_s: float
    loop_s: float
    """What the event loop used of the processor meanwhile, which others on the machine disturb less."""


KeyTimes = dict[str, list[KeyTime]]
"""By what was pressed."""
_PATIENCE_S, _REST_S, _WHILE_MEASURED_S = 60.0, 0.05, 0.1
_WORDS = ("mlp", "norm", "9.self", "zz")
_NAMES = ("mlp 1", "self 99", "qqq")


class _Awaited(NamedTuple):
    what: str
    is_so: Callable[[], bool]


class PaintedApp(TensordiffApp):
    """The app, which looks at each repaint for what is awaited."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.times: KeyTimes = {}

    awaited: tuple[_Awaited, ...] = ()
    begun = KeyTime(0.0, 0.0)
    is_shown: asyncio.Event

    def _display(self, screen: Any, renderable: Any) -> None:
        shown = [one for one in self.awaited if one.is_so()]  # what is painted now was so before
        if renderable is not None and hasattr(renderable, "render_segments"):
            renderable.render_segments(self.console)
        super()._display(screen, renderable)
        for one in shown:
            took = KeyTime(time.perf_counter() - self.begun.clock_s, time.thread_time() - self.begun.loop_s)
            self.times.setdefault(one.what, []).append(took)
        self.awaited = tuple(one for one in self.awaited if one not in shown)
        if shown and not self.awaited:
            self.is_shown.set()


async def _press(app: PaintedApp, key: str, awaited: Mapping[str, Callable[[], bool]]) -> None:
    """Press a key, and wait until all that it does is shown; then rest as a person does."""
    app.awaited, app.is_shown = tuple(_Awaited(*one) for one in awaited.items()), asyncio.Event()
    app.begun = KeyTime(time.perf_counter(), time.thread_time())
    app.simulate_key(key)
    try:
        if awaited:
            await asyncio.wait_for(app.is_shown.wait(), _PATIENCE_S)
    except TimeoutError as error:
        raise SystemExit(f"{key}: {app.awaited[0].what} was not shown within {_PATIENCE_S:.0f} s") from error
    await asyncio.sleep(_REST_S)


def _replaced(get: Callable[[], object]) -> Callable[[], bool]:
    """Whether something is another object than now."""
    before = get()
    return lambda: get() is not before


def _moved(table: LayerTable) -> Callable[[], bool]:
    before = table.cursor
    return lambda: table.cursor != before


def _typed(field: Input, text: str) -> Callable[[], bool]:
    return lambda: field.value == text


async def keys_while_measured(app: PaintedApp) -> None:
    """Go down and up, a page at a time too, until all rows are measured; the times are the app's."""
    table = app.screen.query_one(LayerTable)
    while table.listing.measured < len(table.listing):
        for key in ("down", "pagedown", "pageup"):
            await _press(app, key, {"while measured": _moved(table)})
            await asyncio.sleep(_WHILE_MEASURED_S)


async def key_times(app: PaintedApp) -> KeyTimes:
    """The times of all keys, in an app that has measured its rows."""
    table = app.screen.query_one(LayerTable)
    for key, what, count in (("down", "down", 200), ("pagedown", "page down", 100), ("n", "n", 30)):
        for number in range(count):
            if number == 0 or table.cursor == len(table.lines) - 1 or _has_passed_faults(table):
                await _press(app, "home", {})
            await _press(app, key, {what: _moved(table)})
    await _sort(app, table)
    await _filter(app, table)
    await _go_to(app, table)
    await _switch(app, table)
    await _tree(app, table)
    await _look_into(app, table)
    await _open_others(app, table)
    await _search(app, table)
    return app.times


def _has_passed_faults(table: LayerTable) -> bool:
    faults = table.culprits or np.flatnonzero(table.listing.verdicts == DIVERGES).tolist()
    return table.position is not None and table.position >= max(faults, default=0)


async def _sort(app: PaintedApp, table: LayerTable) -> None:
    for _ in range(12):
        await _press(app, "s", {"sort": _replaced(lambda: table.lines)})
    if table.how.by is not None:
        await _press(app, "0", {"sort": _replaced(lambda: table.lines)})


async def _filter(app: PaintedApp, table: LayerTable) -> None:
    for word in _WORDS:
        await _press(app, "slash", {"filter opened": lambda: isinstance(app.focused, Input)})
        field = app.focused
        assert isinstance(field, Input)
        field.cursor_blink = False
        for at, key in enumerate(word):
            shown, rows = _typed(field, word[: at + 1]), _replaced(lambda: table.how.only)
            await _press(app, key, {"filter: character shown": shown, "filter: rows shown": rows})
        await _press(app, "escape", {"filter left": lambda: table.how.only is None})


async def _go_to(app: PaintedApp, table: LayerTable) -> None:
    for name in _NAMES:
        await _press(app, "l", {"goto opened": lambda: isinstance(app.screen, GoTo) and bool(app.screen.found)})
        dialog = app.screen
        assert isinstance(dialog, GoTo)
        await _type_name(app, dialog, name)
        await _press(app, "enter" if dialog.found else "escape", {"goto left": lambda: app.screen is table.screen})


async def _switch(app: PaintedApp, table: LayerTable) -> None:
    """What shows other rows at once, or marks one."""
    await _press(app, "home", {})
    for key, what in (("f", "faults"), ("I", "inputs")):
        for _ in range(6):
            await _press(app, key, {what: _replaced(lambda: table.lines)})
    for _ in range(6):
        await _press(app, "space", {"mark": _replaced(lambda: table.marks)})


async def _tree(app: PaintedApp, table: LayerTable) -> None:
    for _ in range(3):
        await _press(app, "w", {"tree shown": lambda: table.modules is not None})
        await _press(app, "home", {})
        for key, what in (("minus", "folded"), ("plus", "unfolded")) * 3:
            await _press(app, key, {f"module {what}": _replaced(lambda: table.lines)})
        for _ in range(4):
            if _has_passed_faults(table):
                await _press(app, "home", {})
            await _press(app, "n", {"n in the tree": _moved(table)})
        await _press(app, "w", {"tree left": lambda: table.modules is None})


async def _look_into(app: PaintedApp, table: LayerTable) -> None:
    """Open a layer, go to the next one, and leave."""
    for _ in range(4):
        await _press(app, "enter", {"layer opened": lambda: isinstance(app.screen, LayerScreen)})
        layer = app.screen
        assert isinstance(layer, LayerScreen)
        for _ in range(4):
            before = layer.at
            await _press(app, "j", {"next layer": lambda: layer.at != before})  # noqa: B023 - it is awaited here
        await _press(app, "escape", {"layer left": lambda: app.screen is table.screen})


async def _open_others(app: PaintedApp, table: LayerTable) -> None:
    """Dialogs and panels over the table or beside it."""
    home = table.screen
    for key, what in (("C", "columns"), ("question_mark", "help"), ("e", "export"), ("quotation_mark", "note")):
        for _ in range(3):
            await _press(app, key, {f"{what} opened": lambda: app.screen is not home})
            await _press(app, "escape", {f"{what} left": lambda: app.screen is home})
    for _ in range(4):
        await _press(app, "m", {"rules shown": lambda: _has_keys_beside(table)})
        await _press(app, "m", {"rules left": lambda: home.focused is table})


def _has_keys_beside(table: LayerTable) -> bool:
    """Whether something beside the table has the keys, and a place on the screen."""
    focused = table.screen.focused
    return focused is not None and focused is not table and focused.is_on_screen


async def _search(app: PaintedApp, table: LayerTable) -> None:
    for _ in range(3):
        await _press(app, "b", {"search begun": lambda: bool(table.suspects)})
        for _ in range(3):
            before = len(table.suspects)
            await _press(app, "b", {"search answered": lambda: len(table.suspects) != before})  # noqa: B023
        await _press(app, "r", {"search left": lambda: not table.suspects})


async def _type_name(app: PaintedApp, dialog: GoTo, name: str) -> None:
    field = dialog.query_one(Input)
    field.cursor_blink = False
    for at, key in enumerate(name):
        shown, names = _typed(field, name[: at + 1]), _replaced(lambda: dialog.found)
        await _press(app, key, {"goto: character shown": shown, "goto: names shown": names})


def told(times: list[KeyTime]) -> str:
    """The longest, the median, and that of ninety-nine in a hundred; and the same of the processor."""
    clock, loop = (_spread([time[which] for time in times]) for which in range(2))
    return f"{clock}; {loop} of the loop's processor; {len(times)} keys"


def _spread(seconds: list[float]) -> str:
    ordered = 1000 * np.sort(seconds)
    usual = f"median {np.median(ordered):.0f}, 99 of 100 within {ordered[99 * len(ordered) // 100]:.0f}"
    return f"{ordered[-1]:.0f} ms ({usual})"
