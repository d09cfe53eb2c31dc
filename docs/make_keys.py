"""Write docs/keys.md from the application's table of keys: ``python -m docs.make_keys``."""

from __future__ import annotations

from pathlib import Path

from tensordiff.tui.keys import KEYS, WHERES, Key, Where

TITLES: dict[Where, str] = {
    "app": "Everywhere", "diff": "The comparison", "table": "The table", "rules": "The rules",
    "orphans": "Orphans", "bisect": "The bisect bar", "layer": "A layer", "map": "Mapping by pointing",
    "weights": "Two checkpoints", "start": "The start screen", "help": "The page of keys", "dialog": "Dialogs",
}  # fmt: skip
_NAMES = {
    "question_mark": "?", "colon": ":", "slash": "/", "left_parenthesis": "(", "right_parenthesis": ")",
    "left_square_bracket": "[", "right_square_bracket": "]", "quotation_mark": '"', "plus": "+", "minus": "-",
    "equals_sign": "=", "comma": ",", "full_stop": ".", "down": "↓", "up": "↑", "left": "←", "right": "→",
    "pagedown": "pgdn", "pageup": "pgup", "less_than_sign": "<", "greater_than_sign": ">", "asterisk": "*",
    "exclamation_mark": "!", "underscore": "_",
}  # fmt: skip
HEAD = """# Keys

Made by `python -m docs.make_keys` from the one table that the footer, the help (`?`) and the palette (`ctrl+p`) come
from too. Keys of the focused part come first, then those of the screen around it. Everything here is in the palette,
and everything in a table, a list or a heading can be clicked.

A `tensordiff.toml` in the current folder, or one above it, may set theme and columns; keys in it are ignored, and a
message says so. Change keys in the `tensordiff.toml` of your own configuration folder (`~/.config/tensordiff` on
Linux), by the id in the last column:

```toml
theme = "light"
columns = ["index", "layer", "rel_l2", "injected", "profile"]

[keys]
"table.open" = "enter,right"
```
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(where) for where in WHERES if any(key.where == where for key in KEYS))])


def _section(where: Where) -> str:
    lines = [f"## {TITLES.get(where, where)}", "", "| keys | does | id |", "|---|---|---|"]
    lines += [_line(key) for key in KEYS if key.where == where]
    return "\n".join(lines) + "\n"


def _line(key: Key) -> str:
    shown = " ".join(f"`{_NAMES.get(one, one)}`" for one in key.keys.split(","))
    return f"| {shown} | {key.help} | {key.id} |"


if __name__ == "__main__":
    (Path(__file__).parent / "keys.md").write_text(page(), "utf-8")
