"""Suggest the name that was meant by a misspelt one, or by an expression that matches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_NO_NAME = re.compile(r"\(\?[a-zA-Z:!=<]*|\\[dwsbDWSB]|[\\^$()\[\]|*+?]")
_ALIKE = 0.65  # "mpl" is like "mlp" by 0.67; "nowhere" is like "norm" by 0.55


def nearest_name(pattern: str, known: Iterable[str]) -> str | None:
    """The known name nearest to a name, a regular expression or a map's ``layers.{i}.mlp``; None if none is near.

    A short text may mean part of a long name: ``donw_proj`` is close to the end of ``layers.0.mlp.down_proj``.
    """
    plain = _NO_NAME.sub("", _PLACEHOLDER.sub("0", pattern)).strip(".")
    names = list(dict.fromkeys(known))
    if whole := get_close_matches(plain, names, 1, _ALIKE):
        return whole[0]
    by_part = {part: name for name in reversed(names) for part in _parts(name, plain.count(".") + 1)}
    return next((by_part[part] for part in get_close_matches(plain, by_part, 1, _ALIKE)), None)


def _parts(name: str, count: int) -> Iterator[str]:
    """All runs of ``count`` consecutive parts of a name."""
    parts = name.split(".")
    return (".".join(parts[at : at + count]) for at in range(len(parts) - count + 1))
