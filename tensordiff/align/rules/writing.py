"""Changing the text of a rules file where it must be changed, and putting it on disk.

tomlkit keeps comments and formatting, but not the order of tables of different kinds that stand in
turns; so the text is cut into its tables here, and tomlkit is given one table at a time. A comment right
above a table goes where the table goes; all other comments stay where they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomlkit
from tomlkit.exceptions import InvalidStringError
from tomlkit.items import Item

from tensordiff.align.rules.toml_text import TomlText
from tensordiff.errors import AlignError, printable
from tensordiff.util.atomic_write import write_file

if TYPE_CHECKING:
    from tensordiff.align.rules.file import RulesFile

_KINDS = {"rule": "rules", "map": "maps", "view": "views", "tolerance": "tolerances"}
_UNWRITTEN = ("source",)
_NEW = """\
# How tensordiff pairs the entries of two dumps, sees them and judges them: docs/rules.md.
# [[rule]] rewrites names in order, [[map]] beats rules, [[view]] reconciles shapes, [[tolerance]] judges.
"""


class _Piece(NamedTuple):
    """A table with the comment right above it, or what lies between tables (no name)."""

    name: str | None
    text: str


def new_file() -> str:
    """What a file begins with."""
    return _NEW


def changed(text: str, old: RulesFile, wanted: RulesFile, path: str) -> str:
    """A text that says what is wanted, as like the old one as can be."""
    pieces = list(_pieces(TomlText(text)))
    for name, attribute in _KINDS.items():
        pieces = _with_tables(pieces, name, getattr(old, attribute), getattr(wanted, attribute), path)
    if old.presets != wanted.presets:
        pieces = [_Piece(None, _with_presets(pieces[0].text, wanted.presets)), *pieces[1:]]
    changed_text = "".join(piece.text for piece in pieces)
    return changed_text.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in text else changed_text


def _pieces(toml: TomlText) -> Iterator[_Piece]:
    """The text cut up, the first piece being what comes before any table."""
    position = 0
    for table in toml.tables:
        start, end = _with_comment_above(toml, table.start, position), _end_of_content(toml, table.start, table.end)
        yield _Piece(None, toml.text[position:start])
        yield _Piece(table.name, toml.text[start:end])
        position = end
    yield _Piece(None, toml.text[position:])


def _with_comment_above(toml: TomlText, start: int, after: int) -> int:
    """Where the comment lines begin that stand right above; at the top of the file they are about the file."""
    begin = start
    while begin > after:
        line = toml.text.rfind("\n", 0, begin - 1) + 1
        if line < after or not toml.is_comment(line):
            return begin
        begin = line
    return start if begin == 0 else begin


def _end_of_content(toml: TomlText, start: int, end: int) -> int:
    """Behind the last line that says something."""
    last = start + len(toml.without_comments[start:end].rstrip())
    line_end = toml.text.find("\n", last, end)
    return end if line_end < 0 else line_end + 1


def _with_tables(pieces: list[_Piece], name: str, old: Sequence[Any], wanted: Sequence[Any], path: str) -> list[_Piece]:
    slots = [k for k, piece in enumerate(pieces) if piece.name == name]
    if old == wanted:
        return pieces
    if len(slots) != len(old):
        raise AlignError(
            f"{printable(path)}: a {name} is not written as [[{name}]]; write it so, and it can be changed"
        )
    texts = _texts(name, [pieces[k].text for k in slots], old, wanted)
    for k, text in zip(slots, texts, strict=False):
        pieces[k] = _Piece(name, text)
    surplus = slots[len(texts) :]
    kept = [piece for k, piece in enumerate(pieces) if k not in surplus and not _is_blank_after(pieces, k, surplus)]
    at = max((k + 1 for k, piece in enumerate(kept) if piece.name == name), default=len(kept))
    return [*_ended(kept[:at]), *(_Piece(name, f"\n{text}") for text in texts[len(slots) :]), *kept[at:]]


def _is_blank_after(pieces: list[_Piece], k: int, removed: list[int]) -> bool:
    """Whether this is only the blank line that parted a removed table from the next."""
    return k - 1 in removed and not pieces[k].text.strip()


def _ended(pieces: list[_Piece]) -> list[_Piece]:
    """With a line's end behind the last piece that has text."""
    last = next((k for k in reversed(range(len(pieces))) if pieces[k].text), None)
    if last is not None and not pieces[last].text.endswith("\n"):
        pieces[last] = _Piece(pieces[last].name, pieces[last].text + "\n")
    return pieces


def _texts(name: str, texts: list[str], old: Sequence[Hashable], wanted: Sequence[Hashable]) -> list[str]:
    """The text of each wanted table: its own if it is there, else that of the one it takes the place of, changed."""
    free: dict[Hashable, list[int]] = {}
    for k, item in enumerate(old):
        free.setdefault(item, []).append(k)
    own = [free[item].pop(0) if free.get(item) else None for item in wanted]
    taken = set(own)
    found = []
    for k, (item, place) in enumerate(zip(wanted, own, strict=True)):
        if place is not None:
            found.append(_line_ended(texts[place]))
        elif k < len(texts) and k not in taken:
            found.append(_updated(name, texts[k], item))
        else:
            found.append(_updated(name, f"[[{name}]]\n", item))
    return found


def _line_ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _updated(name: str, text: str, item: Any) -> str:
    """A table's text with those values changed that must be."""
    document: Any = tomlkit.parse(_line_ended(text))
    table = document[name][0]
    for field in fields(item):
        value = getattr(item, field.name)
        if field.name in _UNWRITTEN or table.get(field.name, _default(field)) == value:
            continue
        if value == _default(field):
            del table[field.name]
        else:
            table[field.name] = _written(value)
    return _line_ended(tomlkit.dumps(document))


def _default(field: Field[Any]) -> Any:
    """What goes without saying."""
    return "both" if field.name == "side" else field.default if field.default is not MISSING else MISSING


def _written(value: Any) -> Item:
    """Text with backslashes in single quotes, where regular expressions read as they are."""
    if isinstance(value, str) and set(value) & {"\\", '"'}:
        try:
            return tomlkit.string(value, literal=True)
        except InvalidStringError:
            return tomlkit.string(value)
    written: Item = tomlkit.item(value)
    return written


def _with_presets(text: str, presets: tuple[str, ...] | None) -> str:
    document = tomlkit.parse(text)
    if presets is None:
        del document["presets"]
    else:
        document["presets"] = list(presets)
    return tomlkit.dumps(document)


def put(path: Path, text: str) -> None:
    """Replace a rules file, whole or not at all; a link stays a link, and permissions stay."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise AlignError(f"{printable(path)}: a name in these rules is not text that a file can hold") from error
    write_file(path, data)
