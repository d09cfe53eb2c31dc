"""What the user set once and for all: ``tensordiff.toml``, validated, frozen.

The nearest file counts and no other: in this folder or one above it, else in the user's configuration folder.
A word that is not known is an error which names the file and the nearest known word: a setting that is
silently passed over is worse than none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tensordiff.errors import BadFile

NAME = "tensordiff.toml"
THEMES = ("dark", "light")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Preferences:
    """What was set; the rest is as it comes."""

    theme: str | None = None
    """``dark``, ``light``, or the name of a theme of Textual's."""
    columns: tuple[str, ...] | None = None
    """Columns of the table by id; None for those that there is room for."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys, comma separated, by the id of what they do."""
    path: Path | None = None
    """The file that says so."""

    def check(self, *, columns: Collection[str], keys: Collection[str], themes: Collection[str]) -> None:
        """Refuse names that the application does not know."""
        for what, said, known in (
            ("columns", self.columns or (), columns), ("[keys]", self.keys, keys),
            ("theme", [self.theme] if self.theme else [], themes),
        ):  # fmt: skip
            for name in said:
                if name not in known:
                    raise BadFile(self.path or NAME, f"{what}: {_unknown(name, known)}")


def preferences_file(folder: Path | None = None) -> Path | None:
    """The file that counts, seen from a folder."""
    here = (folder or Path.cwd()).absolute()
    return next((path for at in (here, *here.parents) if (path := at / NAME).is_file()), None) or _user_file()


def _user_file() -> Path | None:
    from platformdirs import user_config_path

    path = user_config_path("tensordiff", appauthor=False) / NAME
    return path if path.is_file() else None


def read_preferences(path: Path | None) -> Preferences:
    """Read and check a file; the usual settings where there is none."""
    if path is None:
        return Preferences()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadFile(path, "is too long to be settings")
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(path, f"the settings cannot be read ({error})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadFile(path, f"is not valid TOML ({error})") from error
    return _settings(path, content)


def _settings(path: Path, content: Mapping[str, Any]) -> Preferences:
    known = ("theme", "columns", "keys")
    for key in content:
        if key not in known:
            raise BadFile(path, _unknown(key, known))
    theme, columns, keys = content.get("theme"), content.get("columns"), content.get("keys", {})
    if not isinstance(theme, str | None):
        raise BadFile(path, "theme: a text is wanted, such as 'dark'")
    if columns is not None and not _are_texts(columns):
        raise BadFile(path, "columns: a list of texts is wanted, such as ['index', 'layer', 'rel_l2']")
    if not isinstance(keys, dict) or not _are_texts([*keys.values()]):
        raise BadFile(path, "[keys]: texts are wanted, such as 'table.open' = 'enter,right'")
    return Preferences(theme, None if columns is None else tuple(columns), keys, path)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _unknown(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, known, 1)
    hint = f"perhaps {near[0]!r} is meant" if near else f"known are {', '.join(sorted(known))}"
    return f"{word!r:.60} is not known; {hint}"
