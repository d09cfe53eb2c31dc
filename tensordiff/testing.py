"""For tests: ``assert_agrees(reference, candidate)``, on dumps or on arrays, with a report where it fails.

    def test_port(tmp_path):
        assert_agrees("dumps/hf", "dumps/max", tolerances="tolerances.toml")

    def test_layer():
        assert_agrees({"mlp": theirs}, {"mlp": ours}, rtol=1e-3)

It judges as ``tensordiff compare`` does. Arrays are numpy's, or anything that numpy or ``.detach().cpu()`` can make
one of; no framework is imported. pytest finds where to keep the report by itself, see ``pytest_plugin``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row
from tensordiff.disagreement import Disagreement, place_for_report
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor, entry
from tensordiff.errors import TensordiffError
from tensordiff.report import write_report
from tensordiff.report.labels import label
from tensordiff.report.model import summary_sentence
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.third_dumps import ThirdDumps

__all__ = ["Disagreement", "assert_agrees"]

PathLike = str | os.PathLike[str]
Arrays = Mapping[str, Any]
_NAMED = 5  # faults that a message names


def assert_agrees(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    rules: PathLike | None = None,
    tolerances: PathLike | None = None,
    golden: PathLike | Arrays | None = None,
    injected: PathLike | Arrays | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    threshold: float | None = None,
    step: int | None = None,
    only: str | None = None,
    report: PathLike | None = None,
) -> Outcome:
    """Raise an ``AssertionError`` that names the culprit, unless the two agree; what was measured, where they do.

    ``reference`` and ``candidate`` are each a dump's path or arrays by name, in the order they were computed. The rest
    is as on the command line. Where it fails, ``report`` is written (by suffix: ``.html .md .txt .json .csv .png``).
    """
    __tracebackhide__ = True
    request = Request(
        _path(reference, "reference"),
        _path(candidate, "candidate"),
        rules=_given(rules),
        golden=_given(golden),
        injected=_given(injected),
        tolerances=_given(tolerances),
        limits=Limits(Tolerance.of(atol, rtol), threshold),
        step=step,
        only=only,
    )
    session = Session.of_dumps(
        request,
        _dump(reference, "reference"),
        _dump(candidate, "candidate"),
        ThirdDumps(
            injected=None if injected is None else _dump(injected, "injected"),
            golden=None if golden is None else _dump(golden, "golden"),
        ),
    )
    outcome = session.outcome(session.rows())
    if outcome.exit_status == 0:
        return outcome
    raise Disagreement(summary_sentence(outcome), _detail(session, outcome), _report(session, outcome, report))


def _path(given: PathLike | Arrays, side: str) -> Path:
    return Path(side) if isinstance(given, Mapping) else Path(given)


def _given(path: PathLike | Arrays | None) -> Path | None:
    return None if path is None or isinstance(path, Mapping) else Path(path)


def _dump(given: PathLike | Arrays, side: str) -> Dump:
    if not isinstance(given, Mapping):
        return open_dump(Path(given))
    entries = tuple(entry(name, MemoryTensor(_array(name, value))) for name, value in given.items())
    return Dump(Path(side), "arrays", entries, ordered=True)


def _array(name: str, value: Any) -> Array:
    """Whatever holds numbers, as numpy has it."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no such type; its bits are those of an int16
            return np.asarray(value.view(value.new_empty(0).short().dtype)).view(ml_dtypes.bfloat16)
    array = np.asarray(value)
    if array.dtype.kind not in "biufcV":
        raise TensordiffError(f"{name!r}: holds {array.dtype}, which are no numbers; give arrays by name")
    return array


def _detail(session: Session, outcome: Outcome) -> str:
    lines = [""]
    if outcome.culprit is not None and (found := session.hint(outcome.culprit)) is not None:
        lines.append(f"looks like: {found.sentence}")
    faults = [row for row in outcome.rows if row.verdict.name in ("diverges", "unknown")]
    lines += [_fault(row) for row in faults[:_NAMED]]
    if len(faults) > _NAMED:
        lines.append(f"  and {len(faults) - _NAMED} more")
    return "\n".join(lines)


def _fault(row: Row) -> str:
    return f"  {row.verdict.name} {label(row.pair)}: {row.verdict.why}"


def _report(session: Session, outcome: Outcome, told: PathLike | None) -> Path | None:
    place = place_for_report.get()
    path = Path(told) if told is not None else place() if place is not None else None
    if path is not None:
        write_report(session, outcome, path)
    return path
