"""Changing the text of a rules file as little as possible, and saving it.

tomlkit keeps comments and formatting, but not the order of alternating tables of different kinds. So the text is cut
into its tables here, and tomlkit is given one table at a time. A comment right above a table moves with it; all other
comments stay where they are.
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
_NEW_FILE_TEXT = """\
# How tensordiff pairs the entries of two dumps, sees them and judges them: docs/rules.md.
# [[rule]] rewrites names in order, [[map]] beats rules, [[view]] reconciles shapes, [[tolerance]] judges.
"""


class _Segment(NamedTuple):
    """A table with the comment right above it, or the text between tables (no name)."""

    name: str | None
    text: str


def new_file() -> str:
    """The text of a new file."""
    return _NEW_FILE_TEXT


def updated_text(text: str, old: RulesFile, wanted: RulesFile, path: str) -> str:
    """The text changed to hold the wanted rules, with as few changes as possible."""
    segments = list(_segments(TomlText(text)))
    for name, attribute in _KINDS.items():
        segments = _with_tables(segments, name, getattr(old, attribute), getattr(wanted, attribute), path)
    if old.presets != wanted.presets:
        segments = [_Segment(None, _with_presets(segments[0].text, wanted.presets)), *segments[1:]]
    changed_text = "".join(segment.text for segment in segments)
    return changed_text.replace("\r\n", "\n").replace("\n", "\r\n") if "\r\n" in text else changed_text


def _segments(toml: TomlText) -> Iterator[_Segment]:
    """The text cut into segments; the first is what comes before any table."""
    position = 0
    for table in toml.tables:
        start, end = _with_comment_above(toml, table.start, position), _end_of_content(toml, table.start, table.end)
        yield _Segment(None, toml.text[position:start])
        yield _Segment(table.name, toml.text[start:end])
        position = end
    yield _Segment(None, toml.text[position:])


def _with_comment_above(toml: TomlText, start: int, after: int) -> int:
    """Where the comment right above a table begins; a comment at the top of the file belongs to the file."""
    begin = start
    while begin > after:
        line = toml.text.rfind("\n", 0, begin - 1) + 1
        if line < after or not toml.is_comment(line):
            return begin
        begin = line
    return start if begin == 0 else begin


def _end_of_content(toml: TomlText, start: int, end: int) -> int:
    """The position after the last line that is neither blank nor a comment."""
    last = start + len(toml.without_comments[start:end].rstrip())
    line_end = toml.text.find("\n", last, end)
    return end if line_end < 0 else line_end + 1


def _with_tables(
    segments: list[_Segment], name: str, old: Sequence[Any], wanted: Sequence[Any], path: str
) -> list[_Segment]:
    slots = [k for k, segment in enumerate(segments) if segment.name == name]
    if old == wanted:
        return segments
    if len(slots) != len(old):
        raise AlignError(
            f"{printable(path)}: a {name} is not written as [[{name}]]; write it that way, and it can be edited"
        )
    texts = _table_texts(name, [segments[k].text for k in slots], old, wanted)
    for k, text in zip(slots, texts, strict=False):
        segments[k] = _Segment(name, text)
    surplus = slots[len(texts) :]
    kept = [
        segment for k, segment in enumerate(segments) if k not in surplus and not _is_blank_after(segments, k, surplus)
    ]
    at = max((k + 1 for k, segment in enumerate(kept) if segment.name == name), default=len(kept))
    return [*_ending_in_newline(kept[:at]), *(_Segment(name, f"\n{text}") for text in texts[len(slots) :]), *kept[at:]]


def _is_blank_after(segments: list[_Segment], k: int, removed: list[int]) -> bool:
    """Whether this is only the blank line after a removed table."""
    return k - 1 in removed and not segments[k].text.strip()


def _ending_in_newline(segments: list[_Segment]) -> list[_Segment]:
    """The segments, with a newline at the end of the last one that has text."""
    last = next((k for k in reversed(range(len(segments))) if segments[k].text), None)
    if last is not None and not segments[last].text.endswith("\n"):
        segments[last] = _Segment(segments[last].name, segments[last].text + "\n")
    return segments


def _table_texts(name: str, texts: list[str], old: Sequence[Hashable], wanted: Sequence[Hashable]) -> list[str]:
    """The text of each wanted table: its own if it exists, otherwise that of the table it replaces, updated."""
    free: dict[Hashable, list[int]] = {}
    for k, item in enumerate(old):
        free.setdefault(item, []).append(k)
    own = [free[item].pop(0) if free.get(item) else None for item in wanted]
    taken = set(own)
    results = []
    for k, (item, old_position) in enumerate(zip(wanted, own, strict=True)):
        if old_position is not None:
            results.append(_with_newline(texts[old_position]))
        elif k < len(texts) and k not in taken:
            results.append(_updated_table(name, texts[k], item))
        else:
            results.append(_updated_table(name, f"[[{name}]]\n", item))
    return results


def _with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _updated_table(name: str, text: str, item: Any) -> str:
    """A table's text with only those values changed that differ."""
    document: Any = tomlkit.parse(_with_newline(text))
    table = document[name][0]
    for field in fields(item):
        value = getattr(item, field.name)
        is_origin = not field.compare  # the origin of a rule is not written: reading the file sets it

        if is_origin or table.get(field.name, _default(field)) == value:
            continue
        if value == _default(field):
            del table[field.name]
        else:
            table[field.name] = _as_toml(value)
    return _with_newline(tomlkit.dumps(document))


def _default(field: Field[Any]) -> Any:
    """The value that need not be written."""
    return "both" if field.name == "side" else field.default if field.default is not MISSING else MISSING


def _as_toml(value: Any) -> Item:
    """A value as TOML; text with backslashes in single quotes, in which regular expressions need no escapes."""
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


def save_text(path: Path, text: str) -> None:
    """Replace a rules file, whole or not at all; a link stays a link, and permissions stay."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise AlignError(f"{printable(path)}: a name in these rules cannot be written to a file") from error
    write_file(path, data)
