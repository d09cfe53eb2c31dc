"""Text in cells of the terminal, as Textual counts them: exactly so wide, and never markup."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tensordiff.errors import printable
from tensordiff.util.text_width import cut_middle


def fit(text: str, width: int) -> str:
    """Exactly so many cells: padded, or cut in the middle."""
    if width <= 0:
        return ""
    shown = cut_middle(text, width, cell_len)
    return shown + " " * (width - cell_len(shown))


def right(text: str, width: int) -> str:
    """Exactly so many cells, at the right."""
    size = cell_len(text)
    return " " * (width - size) + text if size <= width else set_cell_size(text, width)


def wrapped(text: str, width: int) -> Iterable[str]:
    """Lines of at most so many cells, cut at spaces where there are any."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            yield line
            longer = word
        while cell_len(longer) > width:
            yield longer[: max(1, width // 2)]
            longer = longer[max(1, width // 2) :]
        line = longer
    yield line


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
