"""Rules files: TOML in which the user says how two dumps are paired, viewed and judged (docs/rules.md).

They are read strictly, with ``tomllib``; every error gives file, line and column. Writing keeps the user's comments,
order and formatting: only what must change is changed, and the file is replaced whole or not at all. What each table
may hold is in ``tables``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.tables import (
    MapRule,
    Table,
    ToleranceRule,
    ViewRule,
    check_expression,
    map_rule,
    nearest,
    refusal,
    rule,
    tolerance_rule,
    view_rule,
)
from tensordiff.align.rules.toml_text import TextPosition, TomlText
from tensordiff.errors import AlignError, printable
from tensordiff.util.small_files import TooLong, read_small

__all__ = [
    "MapRule",
    "RulesFile",
    "ToleranceRule",
    "ViewRule",
    "add_to_file",
    "check_expression",
    "read_rules_file",
    "parse_rules_text",
    "rules_text",
    "write_rules_file",
]

T = TypeVar("T")
_TABLES = ("rule", "map", "view", "tolerance")
_MAX_BYTES = 1 << 24
_POSITION = re.compile(r" \(at line (\d+), column (\d+)\)$| \(at end of document\)$")


@dataclass(frozen=True)
class RulesFile:
    """The content of a rules file. Within each kind, order counts."""

    rules: tuple[Rule, ...] = ()
    maps: tuple[MapRule, ...] = ()
    views: tuple[ViewRule, ...] = ()
    tolerances: tuple[ToleranceRule, ...] = ()
    presets: tuple[str, ...] | None = None
    """The presets to use; None to choose them by the names of the dumps."""


class RulesDocument(NamedTuple):
    """A valid TOML document: its text, its values, and its name in error sentences."""

    path: str
    text: TomlText
    content: Mapping[str, object]

    def tables(self, name: str, read: Callable[[Table], T]) -> tuple[T, ...]:
        """All tables of a name."""
        tables = self.content.get(name, [])
        if not isinstance(tables, list):
            sentence = f"'{name}' must be a list of tables: write [[{name}]], not [{name}]"
            raise refusal(self.path, self.text.top(name), sentence)
        return tuple(read(self._table(name, number, values)) for number, values in enumerate(tables, 1))

    def _table(self, name: str, number: int, values: object) -> Table:
        if not isinstance(values, dict):
            raise refusal(self.path, self.text.top(name), f"{name} {number} is not a table: write [[{name}]]")
        return Table(self.path, self.text, name, number, values)

    def refuse_other_keys(self, *words: str) -> None:
        """Raise for any other key at the top of the file."""
        for key in self.content:
            if key not in words:
                sentence = f"{key!r} is not known; a rules file has {nearest(key, words)}"
                raise refusal(self.path, self.text.top(key), sentence)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, or None if the key is missing."""
        values = self.content.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise refusal(self.path, self.text.top(key), f"{key} is {values!r:.80}; it is a list of texts in quotes")
        return tuple(values)


def read_rules_file(path: Path) -> RulesFile:
    """Read a rules file."""
    return rules_of(parse_rules(_read(path), str(path)))


def _read(path: Path) -> str:
    try:
        return read_small(path, _MAX_BYTES).decode("utf-8-sig")
    except TooLong as error:
        raise AlignError(f"{printable(path)}: is larger than {_MAX_BYTES >> 20} MB; is it a rules file?") from error
    except FileNotFoundError as error:
        raise AlignError(f"{printable(path)}: there is no such rules file; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise AlignError(f"{printable(path)}: the rules file cannot be read ({printable(error)})") from error


def parse_rules(text: str, path: str) -> RulesDocument:
    """Parse a document, without reading its tables."""
    try:
        return RulesDocument(path, TomlText(text), tomllib.loads(text))
    except RecursionError as error:
        raise AlignError(f"{printable(path)}: not valid TOML: lists are nested too deep") from error
    except ValueError as error:  # tomllib's own error is one; a number with too many digits is another
        raise AlignError(f"{printable(path)}: not valid TOML: {_with_position(str(error), text)}") from error


def _with_position(sentence: str, text: str) -> str:
    position = _POSITION.search(sentence)
    if position is None:
        return printable(sentence)
    shown = TextPosition(int(position[1]), int(position[2])) if position[1] else TomlText(text).end()
    return f"{printable(sentence[: position.start()])} (at {shown})"


def rules_of(parsed: RulesDocument) -> RulesFile:
    """The rules of a document."""
    parsed.refuse_other_keys(*_TABLES, "presets")
    return RulesFile(
        parsed.tables("rule", rule),
        parsed.tables("map", map_rule),
        parsed.tables("view", view_rule),
        parsed.tables("tolerance", tolerance_rule),
        _presets(parsed),
    )


def _presets(parsed: RulesDocument) -> tuple[str, ...] | None:
    from tensordiff.align.presets import PRESETS  # not at the top: presets are rules documents, too

    names = parsed.texts("presets")
    for name in names or ():
        if name not in PRESETS:
            sentence = f"there is no preset {name!r}; there are {nearest(name, PRESETS)}"
            raise refusal(parsed.path, parsed.text.top("presets"), sentence)
    return names


def write_rules_file(path: Path, wanted: RulesFile, header: str | None = None) -> None:
    """Make a file hold exactly these rules; what it already holds stays as it is written.

    ``header`` is the comment at the top of a new file.
    """
    from tensordiff.align.rules.writing import new_file, save_text, updated_text  # tomlkit is needed only here

    old = _read(path) if path.exists() else header or new_file()
    text = updated_text(old, parse_rules_text(old, str(path)), wanted, str(path))
    if parse_rules_text(text, str(path)) != wanted:
        raise AlignError(f"{printable(path)}: these rules cannot be written so that they read back the same")
    save_text(path, text)


def rules_text(wanted: RulesFile) -> str:
    """The text of a new file with these rules."""
    from tensordiff.align.rules.writing import updated_text

    text = updated_text("", RulesFile(), wanted, "rules")
    if parse_rules_text(text, "rules") != wanted:
        raise AlignError("these rules cannot be written so that they read back the same")
    return text


def parse_rules_text(text: str, path: str) -> RulesFile:
    """The rules of a text, as if it stood in a file at ``path``."""
    return rules_of(parse_rules(text, path))


def add_to_file(path: Path, more: RulesFile) -> None:
    """Add rules, maps, views and tolerances to a file, new or existing; those it already has are not repeated."""
    old = read_rules_file(path) if path.exists() else RulesFile(presets=more.presets)
    kinds = {"rules", "maps", "views", "tolerances"}
    merged = {kind: tuple(dict.fromkeys((*getattr(old, kind), *getattr(more, kind)))) for kind in kinds}
    write_rules_file(path, replace(old, **merged))
