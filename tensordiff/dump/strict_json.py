"""The only code that parses JSON from a dump.

Stricter than ``json.loads``: a name given twice is an error, because which of the two counts would
be a guess. Every way a stranger's JSON can fail comes out as one ``BadFile``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from tensordiff.errors import BadFile


def parse_json(text: bytes, path: str | os.PathLike[str], what: str) -> Any:
    """Parse JSON text; ``what`` names it in a sentence: ``its header``."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_without_twins)
    except RecursionError as error:
        raise BadFile(path, f"{what} is nested too deeply to be real") from error
    except ValueError as error:
        raise BadFile(path, f"{what} is not valid JSON ({error!s:.200}); dump it again") from error


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twin, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twin!r:.80} stands in it twice")
    return unique
