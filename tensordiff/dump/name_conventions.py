"""Naming conventions that only a whole dump shows: numbers in front of names, and outputs called ``layer.out``.

Hooks that people write, and vLLM's on ROCm, count what they save: ``00012__layers.0.mlp.pt``. The number is not part of
the layer's name: if one side ran one operation more, every later tensor would get another name.

``attn.out`` may be the output of ``attn``, or a layer of its own (the last projection of an attention). The name alone
does not tell which, so the other names of the dump decide.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tensordiff.dump.model import Dump, Entry, entry
from tensordiff.dump.names import parse_name

_NUMBERED = re.compile(r"(?P<number>\d{2,9})(?:__|[_.-])(?P<name>[A-Za-z].*)", re.DOTALL)
_FEWEST_FILES = 4
"""With fewer files, it may be chance that all names begin with a number."""


def in_numbered_order(dump: Dump) -> Dump:
    """Order a dump by the numbers in front of its names, and drop them; unchanged if not all names have one."""
    if dump.ordered or len(dump) < _FEWEST_FILES or _NUMBERED.fullmatch(dump.entries[0].name) is None:
        return dump
    matches = [_NUMBERED.fullmatch(one.name) for one in dump.entries]
    parts = [(match["number"], match["name"]) for match in matches if match is not None]
    numbers = {int(number) for number, _ in parts}
    same_width = len({len(number) for number, _ in parts}) == 1
    if not len(numbers) == len({name for _, name in parts}) == len(matches) or not same_width:
        return dump  # if names repeat, the number may distinguish layers
    numbered = [
        (int(number), entry(name, one.stored, one.step)._replace(name=one.name))
        for (number, name), one in zip(parts, dump.entries, strict=True)
    ]
    return replace(dump, entries=tuple(one for _, one in sorted(numbered, key=lambda item: item[0])), ordered=True)


_OUTPUT_ENDS = (".out", "/out")
_INPUT = re.compile(r"[./]in_\d+$")
_PORT = re.compile(r"[./](?:in_\d+|out(?:_\d+)?)$")
_LONGEST_PORT = 16  # characters at the end that hold such a port


def with_short_outputs(dump: Dump) -> Dump:
    """Make ``layer.out`` the output of ``layer``, if that has an input ``in_0`` and no other output.

    If every name of the dump ends in such a port, layers without inputs are included: embeddings.
    """
    if not dump.has_inputs:
        return dump
    calls_with_inputs = {
        entry.call_key for entry in dump.entries if entry.is_input and _INPUT.search(entry.name[-_LONGEST_PORT:])
    }
    if not calls_with_inputs:
        return dump
    pairs = [(entry, _as_output(entry)) for entry in dump.entries]
    known = {entry.call_key for entry, own in pairs if own is None and not entry.is_input}
    is_everywhere = all(_PORT.search(entry.name[-_LONGEST_PORT:]) for entry in dump.entries)

    def is_output(own: Entry) -> bool:
        return own.call_key not in known and (is_everywhere or own.call_key in calls_with_inputs)

    return replace(dump, entries=tuple(own if own and is_output(own) else entry for entry, own in pairs))


def _as_output(entry: Entry) -> Entry | None:
    """An entry as the output of the layer that its name would mean; None if it has another name."""
    stem = entry.layer[:-4]
    if (
        entry.port != "output"
        or not stem
        or not (entry.name.endswith(_OUTPUT_ENDS) and entry.layer.endswith(_OUTPUT_ENDS))
    ):
        return None
    layer, port, call = parse_name(f"{stem}-output")
    return entry._replace(layer=layer, port=port, call=call)
