"""Outputs that are called ``layer.out``, beside inputs that are called ``layer.in_0``.

By itself ``attn.out`` may be a layer, the last projection of an attention, so a name alone does not tell: what else the
dump holds does.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tensordiff.dump.model import Dump, Entry
from tensordiff.dump.names import parse_name

_ENDS = (".out", "/out")
_INPUT = re.compile(r"[./]in_\d+$")
_PORT = re.compile(r"[./](?:in_\d+|out(?:_\d+)?)$")
_WITHIN = 16  # characters at the end that hold such a port


def with_short_outputs(dump: Dump) -> Dump:
    """A dump in which ``layer.out`` is the output of ``layer``, where that has an input ``in_0`` and no other output.

    Where every name of the dump ends in such a port, those without inputs are outputs, too: embeddings.
    """
    given = {entry.call_key for entry in dump.entries if entry.is_input and _INPUT.search(entry.name[-_WITHIN:])}
    if not given:
        return dump
    pairs = [(entry, _as_output(entry)) for entry in dump.entries]
    known = {entry.call_key for entry, own in pairs if own is None and not entry.is_input}
    is_everywhere = all(_PORT.search(entry.name[-_WITHIN:]) for entry in dump.entries)

    def is_output(own: Entry) -> bool:
        return own.call_key not in known and (is_everywhere or own.call_key in given)

    return replace(dump, entries=tuple(own if own and is_output(own) else entry for entry, own in pairs))


def _as_output(entry: Entry) -> Entry | None:
    """An entry as the output of the layer that its name would then mean; None where it has another name."""
    stem = entry.layer[:-4]
    if entry.port != "output" or not stem or not (entry.name.endswith(_ENDS) and entry.layer.endswith(_ENDS)):
        return None
    layer, port, call = parse_name(f"{stem}-output")
    return entry._replace(layer=layer, port=port, call=call)
