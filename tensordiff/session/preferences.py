"""The user's preferences for the app: theme, columns and keys, from ``tensordiff.toml``.

Only one file counts: the nearest one in this folder or above it, else the one in the user's configuration folder. An
unknown name is an error that suggests the nearest known one, because a preference that is silently ignored is worse
than none.
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
    """What the file sets; None and empty leave the app's own choice."""

    theme: str | None = None
    """``dark``, ``light``, or the name of one of Textual's themes."""
    columns: tuple[str, ...] | None = None
    """Columns of the table, by id; None for as many as fit."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Comma-separated keys by the id of their action."""
    path: Path | None = None
    """The file that was read."""

    def check(self, *, columns: Collection[str], keys: Collection[str], themes: Collection[str]) -> None:
        """Refuse names that the app does not know; raises ``BadFile``."""
        for what, names, known in (
            ("columns", self.columns or (), columns), ("[keys]", self.keys, keys),
            ("theme", [self.theme] if self.theme else [], themes),
        ):  # fmt: skip
            for name in names:
                if name not in known:
                    raise BadFile(self.path or NAME, f"{what}: {_unknown(name, known)}")


def preferences_file(folder: Path | None = None) -> Path | None:
    """The file that counts for a folder; the current one, unless another is given."""
    here = (folder or Path.cwd()).absolute()
    return next((path for at in (here, *here.parents) if (path := at / NAME).is_file()), None) or _user_file()


def _user_file() -> Path | None:
    from platformdirs import user_config_path

    path = user_config_path("tensordiff", appauthor=False) / NAME
    return path if path.is_file() else None


def read_preferences(path: Path | None) -> Preferences:
    """Read and check a file; without one, all is left to the app."""
    if path is None:
        return Preferences()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadFile(path, "is too large to be a file of preferences")
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(path, f"the preferences cannot be read ({error})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadFile(path, f"is not valid TOML ({error})") from error
    return _preferences(path, content)


def _preferences(path: Path, content: Mapping[str, Any]) -> Preferences:
    known = ("theme", "columns", "keys")
    for key in content:
        if key not in known:
            raise BadFile(path, _unknown(key, known))
    theme, columns, keys = content.get("theme"), content.get("columns"), content.get("keys", {})
    if not isinstance(theme, str | None):
        raise BadFile(path, "theme: should be a string, such as 'dark'")
    if columns is not None and not _are_strings(columns):
        raise BadFile(path, "columns: should be a list of strings, such as ['index', 'layer', 'rel_l2']")
    if not isinstance(keys, dict) or not _are_strings([*keys.values()]):
        raise BadFile(path, "[keys]: should be strings, such as 'table.open' = 'enter,right'")
    return Preferences(theme=theme, columns=None if columns is None else tuple(columns), keys=keys, path=path)


def _are_strings(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _unknown(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"{name!r:.60} is not known; {hint}"
