"""Text of an exact width in cells of the terminal, as Textual counts them; never markup."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tensordiff.errors import printable
from tensordiff.util.text_width import cut_middle


def fit(text: str, width: int) -> str:
    """The text in exactly ``width`` cells: padded, or cut in the middle."""
    if width <= 0:
        return ""
    shown = cut_middle(text, width, cell_len)
    return shown + " " * (width - cell_len(shown))


def right(text: str, width: int) -> str:
    """The text in exactly ``width`` cells, aligned to the right."""
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
    """Remove colours if there should be none: their greys would differ from the background only by chance."""
    if no_color:
        text.spans = [span._replace(style="bold" if "bold" in str(span.style) else "") for span in text.spans]
        text.style = ""
    return text


def literal(text: object) -> str:
    """Text from outside for a place that parses markup: printable, with every bracket escaped."""
    return printable(text).replace("[", r"\[")


def bar(done: int, total: int, width: int) -> Text:
    """A progress bar."""
    filled = width * min(done, total) // total
    return Text("█" * filled, "bold").append("░" * (width - filled), "not bold")
