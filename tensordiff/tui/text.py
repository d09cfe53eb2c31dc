"""Text in cells of the terminal, as Textual counts them: exactly so wide, and never markup."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tensordiff.errors import printable
from tensordiff.report.labels import COLOURS

VERDICT_STYLES = {**COLOURS, "diverges": f"bold {COLOURS['diverges']}"}


def fit(text: str, width: int) -> str:
    """Exactly so many cells: padded, or cut in the middle, since a layer's number and last part tell it from others."""
    if width <= 0:
        return ""
    size = cell_len(text)
    if size <= width:
        return text + " " * (width - size)
    head = (width - 1) // 3
    return f"{set_cell_size(text[: 4 * head], head)}…{_tail(text, width - 1 - head)}"


def _tail(text: str, width: int) -> str:
    """The end of a text in exactly so many cells."""
    some = text[-4 * width :] if width else ""
    while cell_len(some) > width:
        some = some[1:]
    return " " * (width - cell_len(some)) + some


def right(text: str, width: int) -> str:
    """Exactly so many cells, at the right."""
    size = cell_len(text)
    return " " * (width - size) + text if size <= width else set_cell_size(text, width)


def plain(text: Text, no_color: bool) -> Text:
    """Without colours where there are none to be: their greys would differ from the background by chance alone."""
    if no_color:
        text.spans = [span._replace(style="bold" if "bold" in str(span.style) else "") for span in text.spans]
        text.style = ""
    return text


def literal(text: object) -> str:
    """Text from outside for a place that reads markup: printable, with every bracket as it is."""
    return printable(text).replace("[", r"\[")


def bar(done: int, total: int, width: int) -> Text:
    """How far something is."""
    filled = width * min(done, total) // total
    return Text("█" * filled, "bold").append("░" * (width - filled), "not bold")
