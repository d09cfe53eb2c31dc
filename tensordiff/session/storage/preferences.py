"""The user's preferences from ``tensordiff.toml``: theme, columns and keys of the app, environments of engines.

Two files count: the nearest one in the current folder or above, and the one in the user's configuration folder. Theme
and columns come from the folder's file if it sets them, else from the user's. Keys come only from the user's file: a
folder may be a stranger's, and a rebound key could run or overwrite something that the user does not expect. The same
holds for the environments of engines, which ``capture.interpreter`` reads. An unknown name is an error that suggests
the nearest known one, because a preference that is silently ignored is worse than none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tensordiff.capture.interpreter import NAME, TABLE, read_preferences_file, user_file
from tensordiff.errors import BadFile, printable

_OWN = {"keys": "keys are bound", TABLE: "environments are named"}
THEMES = ("dark", "light")


@dataclass(frozen=True)
class Preferences:
    """The preferences that are set; None and empty values leave the app's default."""

    theme: str | None = None
    """``dark``, ``light``, or the name of one of Textual's themes."""
    columns: tuple[str, ...] | None = None
    """Column ids of the table; None for as many as fit."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Comma-separated keys by the id of their action."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """The file that set ``theme``, ``columns`` and ``keys``."""
    sentences: tuple[str, ...] = ()
    """Messages to the user about settings that were ignored."""

    def check(self, *, columns: Collection[str], keys: Collection[str], themes: Collection[str]) -> None:
        """Refuse names that the app does not know; raises ``BadFile``."""
        for what, names, known in (
            ("columns", self.columns or (), columns), ("keys", self.keys, keys),
            ("theme", [self.theme] if self.theme else [], themes),
        ):  # fmt: skip
            for name in names:
                if name not in known:
                    said = f"{'[keys]' if what == 'keys' else what}: {_unknown(name, known)}"
                    raise BadFile(self.paths.get(what, NAME), said)


def preferences_here(folder: Path | None = None) -> Preferences:
    """The preferences that apply in a folder, by default the current one."""
    here, own = _folder_file((folder or Path.cwd()).absolute()), user_file()
    users = read_preferences(own) if own.is_file() else Preferences()
    if here is None or (own.is_file() and here.samefile(own)):
        return users
    folders = read_preferences(here, binds_keys=False)
    return Preferences(
        theme=folders.theme or users.theme,
        columns=users.columns if folders.columns is None else folders.columns,
        keys=users.keys,
        paths={**users.paths, **folders.paths},
        sentences=folders.sentences,
    )


def _folder_file(folder: Path) -> Path | None:
    """The nearest preferences file in a folder or above it."""
    return next((path for at in (folder, *folder.parents) if (path := at / NAME).is_file()), None)


def read_preferences(path: Path, *, binds_keys: bool = True) -> Preferences:
    """Read and check a file. If it may not bind keys, its keys are ignored, and a message says so."""
    content = read_preferences_file(path)
    refused = [] if binds_keys else [name for name in ("keys", TABLE) if name in content]
    for name in refused:
        del content[name]
    own = printable(user_file())
    sentences = tuple(f"{printable(path)}: [{name}] is ignored here; {_OWN[name]} in {own} only" for name in refused)
    return replace(_preferences(path, content), sentences=sentences)


def _preferences(path: Path, content: Mapping[str, Any]) -> Preferences:
    known = ("theme", "columns", "keys", TABLE)
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
    columns = None if columns is None else tuple(columns)
    return Preferences(theme=theme, columns=columns, keys=keys, paths=dict.fromkeys(content, path))


def _are_strings(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _unknown(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"{name!r:.60} is not known; {hint}"
