"""Reading ``.safetensors``: one file, or a folder of them. Only headers are touched on opening.

The common library sorts tensors by dtype and name as it writes, so the order of a file says nothing
of execution: entries stand in file order and the dump is not ``ordered``, unless the ``__metadata__``
of every file has ``order``, a JSON list of all its names as they were executed. What a header claims
is checked in ``safetensors_header``. A dtype we do not know refuses its own tensor and no other.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.collector import collector_held
from tensordiff.dump.detect import Found
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.files import MappedFile, view_buffer
from tensordiff.dump.model import Dump, Entry, Problem, Spec, entry
from tensordiff.dump.parts import Part, join, open_parts
from tensordiff.dump.safetensors_header import CODES, MAX_HEADER_BYTES, Row, read_header
from tensordiff.dump.strict_json import parse_json
from tensordiff.errors import BadFile

SUFFIX = ".safetensors"
_ORDER = "order"
_IN_PLACE = {code: dtype for code, dtype in CODES.items() if code != "F4"}


class _Tensor(NamedTuple):
    """A tensor as its header's row places it. One small tuple each: a file may hold many thousands."""

    file: MappedFile
    data_start: int
    row: Row

    @property
    def spec(self) -> Spec:
        """Shape and dtype, unless the dtype is one we do not read."""
        dtype = CODES.get(self.row.code)
        if dtype is None:
            raise self._refusal()
        return Spec(self.row.shape, dtype)

    def read(self) -> Array:
        """Map the values; packed ones are unpacked into a copy."""
        file, data_start, (begin, end, _, code, shape) = self
        dtype, buffer = _IN_PLACE.get(code), file.buffer
        if dtype is not None and end - begin > 0 and data_start + end <= len(buffer):
            return np.ndarray(shape, dtype, buffer, data_start + begin)  # the header was checked, the file's end is now
        if code != "F4":
            return view_buffer(file.buffer, file.path, data_start + begin, self.spec)
        packed = Spec((end - begin,), DTYPES["uint8"])
        return _unpack(view_buffer(file.buffer, file.path, data_start + begin, packed), self.spec)

    def _refusal(self) -> BadFile:
        _, _, name, code, _ = self.row
        why = "how its bits are packed is written nowhere" if code.startswith("F6_") else "which is not known"
        return BadFile(self.file.path, f"tensor {name!r:.120} has dtype {code!r:.40}, {why}; dump it in another dtype")


def _unpack(packed: Array, spec: Spec) -> Array:
    """Two 4-bit floats a byte, the first in the low bits, as torch's ``float4_e2m1fn_x2`` keeps them."""
    values = np.stack((packed & 0xF, packed >> 4), axis=-1).view(spec.dtype).reshape(spec.shape)
    values.flags.writeable = False
    return values


def look(found: Found) -> Dump | None:
    """Open a ``.safetensors`` file or a folder that holds some."""
    if not found.is_folder:
        return join(found, "safetensors", [_open_part(found.path)], []) if _is_ours(found) else None
    names = found.named(SUFFIX)
    return open_parts(found, "safetensors", names, _open_part) if names else None


def _is_ours(found: Found) -> bool:
    """By suffix, or by the look of a header: the Hugging Face cache keeps its files under bare hashes."""
    if found.path.name.lower().endswith(SUFFIX):
        return True
    return found.head[8:10] == b'{"' and int.from_bytes(found.head[:8], "little") <= MAX_HEADER_BYTES


def _open_part(path: Path) -> Part:
    with collector_held():
        header = read_header(path)
        file = MappedFile(path)
        entries = [entry(row.name, _Tensor(file, header.data_start, row)) for row in header.rows]
    order = header.metadata.pop(_ORDER, None)
    if order is None:
        return Part(path.name, entries, False, [], header.metadata)
    try:
        return Part(path.name, _in_order(path, entries, order), True, [], header.metadata)
    except BadFile as error:
        return Part(path.name, entries, False, [Problem(path.name, error.problem)], header.metadata)


def _in_order(path: Path, entries: list[Entry], order: str) -> list[Entry]:
    """The entries as ``order`` lists them; a list that does not name each once orders nothing."""
    names = parse_json(order.encode(errors="surrogatepass"), path, "the order in its __metadata__")
    by_name = {item.name: item for item in entries}
    is_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_names or len(names) != len(by_name) or set(names) != by_name.keys():
        raise BadFile(path, "the order in its __metadata__ does not list its tensors, each once, and is ignored")
    return [by_name[name] for name in names]
