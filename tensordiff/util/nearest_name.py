"""The name that a misspelt one, or an expression that matches nothing, may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_NO_NAME = re.compile(r"\(\?[a-zA-Z:!=<]*|\\[dwsbDWSB]|[\\^$()\[\]|*+?]")
_ALIKE = 0.65  # "mpl" is like "mlp" by 0.67; "nowhere" is like "norm" by 0.55


def nearest_name(pattern: str, known: Iterable[str]) -> str | None:
    """The nearest of the names to a name, a regular expression or a map's ``layers.{i}.mlp``; None if none is near.

    What is short may mean a part of a long name: ``donw_proj`` the end of ``layers.0.mlp.down_proj``.
    """
    plain = _NO_NAME.sub("", _PLACEHOLDER.sub("0", pattern)).strip(".")
    names = list(dict.fromkeys(known))
    if whole := get_close_matches(plain, names, 1, _ALIKE):
        return whole[0]
    by_part = {part: name for name in reversed(names) for part in _parts(name, plain.count(".") + 1)}
    return next((by_part[part] for part in get_close_matches(plain, by_part, 1, _ALIKE)), None)


def _parts(name: str, count: int) -> Iterator[str]:
    """Parts of a name that follow each other, so many at a time."""
    parts = name.split(".")
    return (".".join(parts[at : at + count]) for at in range(len(parts) - count + 1))
