"""PaDiff: ``report.json``, a tree of layers with the order they ran in, and ``tensors/tensor_N.npy``.

The paths in the report are those of the machine that wrote it; only file names are used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tensordiff.dump.files import map_file, parse_json
from tensordiff.dump.folders import DumpPath, list_below
from tensordiff.dump.leftovers import is_named_as_tensors
from tensordiff.dump.model import Dump, Entry, Origin, Problem
from tensordiff.dump.readers import Format
from tensordiff.dump.readers.npy import NpyFile
from tensordiff.errors import BadFile

FORMAT = "padiff"
FORMATS = (
    Format(
        FORMAT,
        "a report of PaDiff and its tensors",
        "`report.json` with a `tree`, beside `tensors/`",
        "`fwd_step` in the report",
    ),
)

REPORT, TENSORS = "report.json", "tensors"
_INDEX = re.compile(r"\[(\d+)\]")
_MOST_DEPTH = 200
_BIG = 1 << 53


class _Output(NamedTuple):
    step: float
    layer: str
    port: str
    module_class: str
    file: str


def try_open(at: DumpPath) -> Dump | None:
    """Open a folder that PaDiff wrote."""
    if not at.is_folder or REPORT not in at.files or TENSORS not in at.folders:
        return None
    path = at.path / REPORT
    report = parse_json(map_file(path)[:], path, "it")
    if not isinstance(report, dict) or not isinstance(report.get("tree"), list):
        return None
    files = list_below(at.path / TENSORS)
    try:
        outputs = [output for tree in report["tree"] for output in _outputs(tree, _route(tree), 0)]
    except ValueError as error:
        raise BadFile(path, f"is a tree of more than {_MOST_DEPTH} levels, too deep to be real") from error
    outputs.sort(key=lambda output: output.step)
    named = {output.file for output in outputs}
    problems = [
        *at.problems,
        *(p._replace(file=f"{TENSORS}/{p.file}") for p in files.problems),
        *(
            Problem(f"{TENSORS}/{file:.120}", f"is named in {REPORT} and not there; was it copied?", is_unread=True)
            for file in sorted(named - set(files.files))
        ),
        *(
            Problem(f"{TENSORS}/{file}", f"is named nowhere in {REPORT}; it is not read", is_unread=True)
            for file in files.files
            if file not in named and is_named_as_tensors(file)
        ),
    ]
    present = set(files.files)
    entries = tuple(_entries(at, [output for output in outputs if output.file in present]))
    if not entries:
        raise BadFile(path, f"names no tensor that lies in {TENSORS}")
    return Dump(at.path, FORMAT, entries, True, tuple(problems), files=frozenset((TENSORS,)))


def _entries(at: DumpPath, outputs: list[_Output]) -> Iterator[Entry]:
    """The entries of the outputs; a layer that is listed again was called again."""
    calls: Counter[tuple[str, str]] = Counter()
    for o in outputs:
        calls[o.layer, o.port] += 1
        call, stored = calls[o.layer, o.port], NpyFile(at.path / TENSORS / o.file)
        name = f"{o.layer}-{o.port}" if call == 1 else f"{o.layer}({call})-{o.port}"
        yield Entry(name, o.layer, o.port, call, 0, stored, Origin(o.module_class))


def _route(tree: object) -> str:
    return str(tree.get("route", "")) if isinstance(tree, dict) else ""


def _outputs(node: object, root: str, depth: int) -> Iterator[_Output]:
    if not isinstance(node, dict):
        return
    if depth > _MOST_DEPTH:
        raise ValueError
    route = str(node.get("route", ""))
    layer = "model" + _INDEX.sub(r".\1", route.removeprefix(root))
    metas = node.get("metas")
    step = metas.get("fwd_step") if isinstance(metas, dict) else None
    listed = node.get("fwd_outputs")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    for index, row in enumerate(rows):
        port = "output" if len(rows) == 1 else f"output_{index}"
        file = re.split(r"[\\/]", str(row.get("path", "")))[-1]
        at = float(step) if isinstance(step, int | float) and abs(step) < _BIG else float("inf")
        yield _Output(at, layer, port, str(node.get("name", "")), file)
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        yield from _outputs(child, root, depth + 1)
