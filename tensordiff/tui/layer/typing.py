"""What the user types on the layer screen: an index, a number of heads. Invalid input is explained in a sentence.

``LayerTyping`` is the part of the screen that asks; the functions below it parse the input.
"""

from __future__ import annotations

import re
from typing import Any

from textual import events, on

from tensordiff.compare.row import Row
from tensordiff.report.labels import counted
from tensordiff.tui.layer.heatmap import HeatmapPane
from tensordiff.tui.layer.pane import Pane
from tensordiff.tui.layer.profile import ProfilePane
from tensordiff.tui.layer.values import ValuesPane
from tensordiff.tui.prompt import Prompt
from tensordiff.tui.sized_screen import SizedScreen


class LayerTyping(SizedScreen[int]):
    """Asks for short input, and passes it to the view that is shown."""

    @property
    def pane(self) -> Pane[Any]:
        """The view that is shown."""
        raise NotImplementedError

    @property
    def row(self) -> Row:
        """The row that is shown."""
        raise NotImplementedError

    def takes_key(self, event: events.Key) -> bool:
        """Take a key for the prompt: a digit begins an index, and keys that came before the prompt had the focus belong
        to it.
        """
        prompt = self.query_one(Prompt)
        if prompt.display:
            prompt.feed(event)
        elif event.character and event.character.isdecimal():
            self.ask_index(event.character)
        else:
            return False
        return True

    def action_go(self) -> None:
        """Ask for an index."""
        self.ask_index("")

    def ask_index(self, typed: str) -> None:
        """Ask for an index, of which a part may be typed already."""
        shape = self.row.diff.shape if self.row.diff else ()
        if self.row.diff is None or not self.row.diff.elements:
            self.notify("there is no element to go to", markup=False)
            return
        example = ",".join(str(size // 2) for size in shape) or "0"
        title = f"index in {list(shape)}, such as {example}"
        self.query_one(Prompt).begin("index", title, lambda text: parse_index(text, shape), typed)

    def action_heads(self) -> None:
        """Ask how many heads the channels belong to."""
        shape = self.row.diff.shape if self.row.diff else ()
        if not shape or shape[-1] < 2:
            self.notify("this tensor has no channels to split into heads", markup=False)
            return
        title = f"how many heads have the {shape[-1]} channels?"
        self.query_one(Prompt).begin("heads", title, lambda text: parse_heads(text, shape[-1]))

    @on(Prompt.Answered)
    def take_typed(self, message: Prompt.Answered) -> None:
        """Use the input."""
        pane = self.pane
        pane.focus()
        if message.what == "index" and isinstance(pane, HeatmapPane | ValuesPane):
            pane.go(message.value)
        elif message.what == "heads" and isinstance(pane, HeatmapPane | ProfilePane):
            pane.choose_heads(message.value[0])

    @on(Prompt.Left)
    def back_to_view(self) -> None:
        """Return to the view without input."""
        self.pane.focus()


def parse_index(text: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Parse an index such as ``3,17``; negative numbers count from the end. A scalar's only element is ``0``."""
    shape = shape or (1,)
    words = [word for word in re.split(r"[,\s]+", text.strip(" \t[]()")) if word]
    if len(words) != len(shape):
        raise ValueError(f"{counted(len(words), 'number')}, and it takes {len(shape)}: one for each of {list(shape)}")
    return tuple(_place(word, size, axis) for axis, (word, size) in enumerate(zip(words, shape, strict=True)))


def _place(word: str, size: int, axis: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,15}", word):
        raise ValueError(f"{word!r} is not a whole number")
    at = int(word)
    if not -size <= at < size:
        raise ValueError(f"{at} is outside axis {axis}, which has {size}")
    return at % size


def parse_heads(text: str, channels: int) -> tuple[int]:
    """Parse a number of heads that divides the channels."""
    word = text.strip()
    if not re.fullmatch(r"[0-9]{1,9}", word) or not 2 <= int(word) <= channels or channels % int(word):
        some = [str(n) for n in range(2, channels + 1) if channels % n == 0][:8]
        raise ValueError(f"give a number that divides {channels}: {', '.join(some)}")
    return (int(word),)
