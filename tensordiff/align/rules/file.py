"""A rules file: TOML in which a person says how two dumps are to be paired, seen and judged.

Read strictly, with ``tomllib``; every refusal gives file, line and column. Written so that a person's
comments, order and formatting stay: a file is changed where it must be and nowhere else, and replaced
whole or not at all. What the tables may say is in ``rules_tables``; what the words mean is in
``docs/rules.md``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
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

__all__ = [
    "MapRule",
    "RulesFile",
    "ToleranceRule",
    "ViewRule",
    "append_maps",
    "check_expression",
    "read_rules_file",
    "read_text",
    "rules_text",
    "write_rules_file",
]

T = TypeVar("T")
_TABLES = ("rule", "map", "view", "tolerance")
_MAX_BYTES = 1 << 24
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$| \(at end of document\)$")


@dataclass(frozen=True)
class RulesFile:
    """What a file says. Within each kind, order counts."""

    rules: tuple[Rule, ...] = ()
    maps: tuple[MapRule, ...] = ()
    views: tuple[ViewRule, ...] = ()
    tolerances: tuple[ToleranceRule, ...] = ()
    presets: tuple[str, ...] | None = None
    """The presets to use; None where they are to be chosen by looking at the names."""


class RulesDocument(NamedTuple):
    """A valid TOML document: its text, its values, and what to call it in a sentence."""

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

    def known(self, *words: str) -> None:
        """Refuse any other word at the top of the file."""
        for key in self.content:
            if key not in words:
                sentence = f"{key!r} is not known; a rules file has {nearest(key, words)}"
                raise refusal(self.path, self.text.top(key), sentence)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, if it is there."""
        values = self.content.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise refusal(self.path, self.text.top(key), f"{key} is {values!r}; it is a list of texts in quotes")
        return tuple(values)


def read_rules_file(path: Path) -> RulesFile:
    """Read a rules file."""
    return rules_of(parse_rules(_read(path), str(path)))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise AlignError(f"{printable(path)}: is larger than {_MAX_BYTES >> 20} MB; is it a rules file?")
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise AlignError(f"{printable(path)}: the rules file cannot be read ({printable(error)})") from error


def parse_rules(text: str, path: str) -> RulesDocument:
    """Take a document apart, its tables not yet looked into."""
    try:
        return RulesDocument(path, TomlText(text), tomllib.loads(text))
    except RecursionError as error:
        raise AlignError(f"{printable(path)}: not valid TOML: lists are nested too deep") from error
    except ValueError as error:  # tomllib's own error is one; a number of too many digits is another
        raise AlignError(f"{printable(path)}: not valid TOML: {_with_place(str(error), text)}") from error


def _with_place(sentence: str, text: str) -> str:
    found = _PLACE.search(sentence)
    if found is None:
        return printable(sentence)
    place = TextPosition(int(found[1]), int(found[2])) if found[1] else TomlText(text).end()
    return f"{printable(sentence[: found.start()])} (at {place})"


def rules_of(parsed: RulesDocument) -> RulesFile:
    """What a document says."""
    parsed.known(*_TABLES, "presets")
    return RulesFile(
        parsed.tables("rule", rule),
        parsed.tables("map", map_rule),
        parsed.tables("view", view_rule),
        parsed.tables("tolerance", tolerance_rule),
        _presets(parsed),
    )


def _presets(parsed: RulesDocument) -> tuple[str, ...] | None:
    from tensordiff.align.presets import PRESETS  # presets are such documents themselves

    names = parsed.texts("presets")
    for name in names or ():
        if name not in PRESETS:
            sentence = f"there is no preset {name!r}; there are {nearest(name, PRESETS)}"
            raise refusal(parsed.path, parsed.text.top("presets"), sentence)
    return names


def write_rules_file(path: Path, wanted: RulesFile, begin: str | None = None) -> None:
    """Make a file say this and nothing else; what it says already stays as it is written.

    ``begin`` are the comment lines that a new file begins with.
    """
    from tensordiff.align.rules.writing import changed, new_file, put  # tomlkit is needed only here

    old = _read(path) if path.exists() else begin or new_file()
    text = changed(old, read_text(old, str(path)), wanted, str(path))
    if read_text(text, str(path)) != wanted:
        raise AlignError(f"{printable(path)}: these rules cannot be written so that they read back the same")
    put(path, text)


def rules_text(wanted: RulesFile) -> str:
    """A new text that says this."""
    from tensordiff.align.rules.writing import changed

    text = changed("", RulesFile(), wanted, "rules")
    if read_text(text, "rules") != wanted:
        raise AlignError("these rules cannot be written so that they read back the same")
    return text


def read_text(text: str, path: str) -> RulesFile:
    """What a text says, were it in a file."""
    return rules_of(parse_rules(text, path))


def append_maps(path: Path, maps: Iterable[MapRule]) -> None:
    """Add mappings to a file, which need not be there yet; those it has already are not repeated."""
    old = read_rules_file(path) if path.exists() else RulesFile()
    new = tuple(item for item in dict.fromkeys(maps) if item not in old.maps)
    write_rules_file(path, replace(old, maps=old.maps + new))
