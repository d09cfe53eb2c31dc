"""Names that begin with a number for the order they were written in: ``00012__layers.0.mlp.pt``.

Hooks that people write, and vLLM's on ROCm, count what they save. The number is no part of a layer's name: one
operation more on a side would give every later tensor another one.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tensordiff.dump.model import Dump, entry

_NUMBERED = re.compile(r"(?P<number>\d{2,9})(?:__|[_.-])(?P<name>[A-Za-z].*)", re.DOTALL)
_FEWEST = 4
"""Of fewer files it may be chance that all begin with a number."""


def in_numbered_order(dump: Dump) -> Dump:
    """A dump in the order that its names count, and without the numbers; as it is where not all of them count."""
    matches = [_NUMBERED.fullmatch(one.name) for one in dump.entries]
    if dump.ordered or len(matches) < _FEWEST:
        return dump
    parts = [(match["number"], match["name"]) for match in matches if match is not None]
    numbers = {int(number) for number, _ in parts}
    same_width = len({len(number) for number, _ in parts}) == 1
    if not len(numbers) == len({name for _, name in parts}) == len(matches) or not same_width:
        return dump  # where names repeat, the number tells layers apart
    found = [
        (int(number), entry(name, one.stored, one.step)._replace(name=one.name))
        for (number, name), one in zip(parts, dump.entries, strict=True)
    ]
    return replace(dump, entries=tuple(one for _, one in sorted(found, key=lambda item: item[0])), ordered=True)
